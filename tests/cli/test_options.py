"""Options: names, defaults and choices are those of the library."""

import re
from collections.abc import Callable
from dataclasses import fields
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, get_args, get_type_hints

from support.command_line import (
    FUNCTIONS,
    Stub,
    invoke,
)

from sortal.cli import app, benchmark
from sortal.config import Discovery, Overrides, Reading
from sortal.discovery import demo, pipeline, prediction
from sortal.discovery.exporting import MODEL_FORMATS, export
from sortal.exchange.export import EXPORT_FORMATS
from sortal.exchange.format import How
from sortal.images import check
from sortal.images.datasets import digits
from sortal.images.reading import read_images
from sortal.research import figures
from sortal.research.benchmark import sweep
from sortal.research.benchmark.select import choose

SWEPT = sweep.SweepResult(records=(), folders=(), failed=(), reused=0)


def test_each_setting_is_an_option_with_its_default_and_is_documented() -> None:
    assert {type(each.default) for each in signature(FUNCTIONS["discover"]).parameters.values()} > {Discovery, Reading}
    asked = app.app.parse_args(["discover", "photos"], exit_on_error=False, print_error=False)[1].arguments
    assert asked == {"images": [Path("photos")]}, "everything else is left to the records"
    shown = re.sub(r"\W+", " ", invoke("discover", "--help").out)
    for each in (*fields(Discovery), *fields(Reading)):
        assert f" {each.name.replace('_', ' ')} " in shown
        assert re.sub(r"\W+", " ", each.metadata["help"]) in shown
        assert f"\n        {each.name} = {each.default!r}: {each.metadata['help']}\n" in str(pipeline.discover.__doc__)
    assert all(each.metadata["help"] for each in fields(Overrides))


def test_options_have_the_names_defaults_and_choices_of_the_library() -> None:
    own = {"json", "dry_run", "runtime", "device", "workers", "command", "folder", "formats", "images", "run", "name"}
    words = {"methods": "method", "names": "preset", "presets": "preset"}  # other names on the command line
    of_library: list[tuple[Callable[..., Any], list[Callable[..., Any]], set[str]]] = [
        (FUNCTIONS["discover"], [pipeline.discover], {"settings", "reading", "yes", "progress", "track", "files"}),
        (FUNCTIONS["predict"], [prediction.predict], {"csv", "force", "progress", "files"}),
        (FUNCTIONS["export"], [export], set()),
        (FUNCTIONS["figures"], [figures.draw], set()),
        (FUNCTIONS["demo"], [demo.run], set()),
        (FUNCTIONS["sample"], [digits.write], set()),
        (FUNCTIONS["check"], [check.check, read_images], {"need_labels", "source", "truth", "reading"}),
        (benchmark.run_benchmark, [choose, sweep.sweep], {"overrides", "changes"}),
    ]
    for command, functions, others in of_library:
        shown = dict(signature(command).parameters)
        real = {words.get(name, name): each for f in functions for name, each in signature(f).parameters.items()}
        assert shown.keys() - own - others == real.keys() - own - others, command
        for name in shown.keys() & real.keys() - {"seeds", "method", "preset", "reading"}:
            theirs = real[name].default
            if theirs is not Parameter.empty:
                wanted = Path(theirs) if isinstance(theirs, str) and name == "out" else theirs
                assert shown[name].default == wanted, (command, name)
        for name in shown.keys() & {"json", "dry_run", "force"}:
            assert shown[name].default is False, (command, name)
    assert signature(benchmark.run_benchmark).parameters["seeds"].default == tuple(map(str, sweep.DEFAULT_SEEDS))
    assert set(get_args(get_type_hints(FUNCTIONS["export"])["format"])) == {*EXPORT_FORMATS, *MODEL_FORMATS}
    assert set(get_args(get_type_hints(FUNCTIONS["export"])["how"])) == set(get_args(How))


def test_an_option_that_takes_several_values_takes_them_apart_by_spaces_or_commas(stub: Stub) -> None:
    stub("sortal.reviews.loading.load_run", "the run")
    drawn = stub("sortal.research.figures.draw", figures.FiguresResult(out=Path("o"), files=(), left_out={}))
    for words in ("tsne legacy", "tsne,legacy", "tsne, legacy", "tsne --which legacy"):
        assert invoke("figures", "r", "--which", *words.split()).code == 0
        assert drawn.pop()["which"] == ["tsne", "legacy"]
    asked = stub("sortal.research.benchmark.sweep.sweep", SWEPT)
    for seeds in ("4 5", "4,5", "4, 5"):
        words = f"benchmark folder --root photos --method gcd uno --seeds {seeds}"
        assert invoke(*words.split()).code == 0
        found = asked.pop()
        assert (found["seeds"], [each.recipe.method for each in found["presets"]]) == ((4, 5), ["gcd", "uno"])
    invoke("benchmark", "--preset", "table3/cub/gcd", "table6", "--seeds", "0")
    assert {each.name.partition("/")[0] for each in asked.pop()["presets"]} == {"table3", "table6"}
