"""The command line: options reach the library, results go to stdout, notes to stderr, and exit codes tell outcomes."""

import csv
import errno
import importlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, astuple, dataclass, fields, replace
from inspect import Parameter, signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import pytest
from support import tiny_folder
from support.sample_results import HEALTHY, RESULT
from support.sample_run import HOSTILE, sample_run

import sortal
from sortal.cli import app, benchmark, decisions, printing, runs
from sortal.cli.options import spell
from sortal.config import Discovery, Overrides, Reading, SettingsGroup
from sortal.discovery import demo, pipeline, prediction
from sortal.discovery.demo import DemoResult
from sortal.discovery.prediction import Prediction
from sortal.errors import InputError, SortalError
from sortal.exchange.export import FORMATS, ExportResult, export
from sortal.exchange.format import How
from sortal.images import check
from sortal.images.datasets import digits
from sortal.images.decoding import Quarantined
from sortal.images.reading import read_images
from sortal.research import figures
from sortal.research.benchmark import presets, records, sweep, tables
from sortal.research.benchmark.select import choose
from sortal.review import journal
from sortal.review.actions import Action, Move, Rename, Undo
from sortal.review.loading import load_run, save_run
from sortal.runs.run import DECISIONS

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(app, name) for name in ("check", "demo", "discover", "export", "figures", "predict", "sample")},
    "report": runs.report,
    "review": runs.review,
    "decisions": decisions.list_decisions,
    "decisions merge": decisions.merge,
    "import": decisions.import_annotations,
    "benchmark": benchmark.run_benchmark,
    "benchmark presets": benchmark.list_presets,
    "benchmark table": benchmark.table,
}
QUICK = ("--backbone", "convnet", "--epochs", "1", "--k", "6", "--workers", "1")
NASTY = '=1+1, "a"\n\x1b[31m.png'
STOPPING = "sortal: stopping… (press Ctrl-C again to stop at once)\n"
INTERRUPTED = "sortal: interrupted; run the same command to resume\n"


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def invoke(*tokens: object, encoding: str = "utf-8") -> Done:
    """Call the command line with streams like those of a process."""
    out, err = io.BytesIO(), io.BytesIO()
    with (
        io.TextIOWrapper(out, encoding=encoding, newline="\n") as stdout,
        io.TextIOWrapper(err, encoding=encoding, newline="\n") as stderr,
    ):
        with redirect_stdout(stdout), redirect_stderr(stderr):
            code = app.main([str(token) for token in tokens])
        stdout.flush()
        stderr.flush()
        return Done(code, out.getvalue().decode(encoding), err.getvalue().decode(encoding))


def refused(*tokens: object) -> str:
    """Call the command line with something it must reject, and return its one-line error."""
    done = invoke(*tokens)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("sortal: error: ")
    assert done.err.count("\n") == 1
    return done.err


def options_of(command: Callable[..., Any]) -> dict[str, Parameter]:
    """Return the options of a command by name, with the fields of records as options of their own."""
    found: dict[str, Parameter] = {}
    for each in signature(command).parameters.values():
        if isinstance(each.default, SettingsGroup):
            for own in fields(each.default):
                found[own.name] = Parameter(own.name, Parameter.KEYWORD_ONLY, default=own.default, annotation=own.type)
        else:
            found[each.name] = each
    return found


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Create two classes, an unlabelled image and a file that is not an image."""
    folder = tmp_path / "pets"
    for seed, name in enumerate(("cat/1.png", "cat/2.png", "dog/1.png", "unlabelled/x.png")):
        tiny_folder.save(folder / name, tiny_folder.noise(seed, side=40))
    (folder / "notes.txt").touch()
    return folder


Asked = list[dict[str, Any]]  # the arguments of each call
Stub = Callable[[str, object], Asked]
NOTE = "sortal: A note.\n"


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Stub:
    """Replace a function of the library by one that records its arguments and returns or raises the given result."""

    def replace_by(name: str, result: object) -> Asked:
        module, _, function = name.rpartition(".")
        real = signature(getattr(importlib.import_module(module), function))
        seen: Asked = []

        def noted(*values: object, **options: object) -> object:
            asked = dict(real.bind(*values, **options).arguments)
            if "runtime" in asked:
                runtime = asked.pop("runtime")
                runtime.progress("[3/7] Working", 1, 2)
                runtime.note("A note.")
                where = {"device": runtime.device, "workers": runtime.workers}
                asked |= {name: value for name, value in where.items() if value not in ("auto", None)}
            seen.append(asked)
            if isinstance(result, BaseException):
                raise result
            return result

        vars(noted)["__signature__"] = real  # for a stub of this stub
        monkeypatch.setattr(name, noted)
        return seen

    return replace_by


# Help


@pytest.mark.parametrize("name", FUNCTIONS)
def test_help_lists_every_option_and_fits_a_terminal(name: str) -> None:
    done = invoke(*name.split(), "--help")
    assert (done.code, done.err) == (0, "")
    assert re.search(rf"^  sortal {name}\b", done.out.split("Examples:")[1], flags=re.MULTILINE)
    for option in options_of(FUNCTIONS[name]).values():
        shown = f"--{option.name.replace('_', '-')}" if option.kind is option.KEYWORD_ONLY else option.name.upper()
        assert re.search(rf"(?<![\w-]){shown}(?![\w-])", done.out), shown
    assert max(map(len, done.out.splitlines())) <= 80


def test_help_the_readme_and_the_reference_list_every_command() -> None:
    assert invoke("--version") == Done(0, f"{sortal.__version__}\n", "")
    done = invoke("--help")
    assert done == invoke() == replace(done, code=0, err="")
    assert done.out.startswith("Usage: sortal")
    assert "sortal discover photos  " in done.out.split("Examples:")[1]
    groups = {"": app.app, "benchmark ": benchmark.benchmark, "decisions ": decisions.decisions}
    listed = {prefix: invoke(*prefix.split(), "--help").out.split("Commands")[1] for prefix in groups}
    pages = [Path(__file__).parents[2] / name for name in ("README.md", "docs/commands.md")]
    commands = "".join(page.read_text(encoding="utf-8") for page in pages)
    names = {prefix + name for prefix, each in groups.items() for name in each}
    assert {name for name in names if "-" not in name} == FUNCTIONS.keys()
    for name in FUNCTIONS:
        above, _, last = name.rpartition(" ")
        assert re.search(rf"^\W*{last} ", listed[f"{above} ".lstrip()], flags=re.MULTILINE)
        assert f"\nsortal {name} " in commands


def test_help_imports_nothing_heavy_and_commands_without_computation_no_torch(benchmarked: "Benchmarked") -> None:
    code = (
        "import sys; from sortal.cli.app import main; assert 0 == main(['--version']) == main(['--help']); "
        f"assert not any(main([*name.split(), '--help']) for name in {[*FUNCTIONS]}); "
        "print(*{'PIL', 'numpy', 'scipy', 'sklearn', 'torch', 'timm', 'pandas'} & set(sys.modules), file=sys.stderr); "
        "assert main(['benchmark', 'presets']) == main(['benchmark', 'presets', '--json']) == 0; "
        f"assert main(['benchmark', 'table', {str(benchmarked.out)!r}]) == 0; "
        "assert main(['benchmark']) == main(['benchmark', 'mnist']) == main(['benchmark', '--preset', 'x']) == 2; "
        "import sortal.exchange.export; "
        "print(*{'torch', 'timm', 'sklearn', 'pandas', 'matplotlib'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    light, *complaints, no_torch = done.stderr.splitlines()
    assert (light, no_torch) == ("", "")
    assert [line[:15] for line in complaints] == ["sortal: error: "] * 3
    done = subprocess.run([sys.executable, "-m", "sortal", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{sortal.__version__}\n", "sortal runs as a module"


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
        (FUNCTIONS["discover"], [pipeline.discover], {"settings", "reading", "yes", "progress"}),
        (FUNCTIONS["predict"], [prediction.predict], {"csv", "force", "progress"}),
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
    assert signature(benchmark.run_benchmark).parameters["seeds"].default == tuple(map(str, sweep.SEEDS))
    assert set(get_args(get_type_hints(FUNCTIONS["export"])["format"])) == set(FORMATS)
    assert set(get_args(get_type_hints(FUNCTIONS["export"])["how"])) == set(get_args(How))


def test_bad_usage_exits_2_and_says_the_rule_and_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests").mkdir()
    commands = ", ".join(name for name in app.app if not name.startswith("-"))
    for tokens, message in (
        ("dmo", f"sortal has no command 'dmo'. Did you mean demo? It has {commands}. See sortal --help."),
        ("tests", "sortal has no command 'tests'. To sort a folder: sortal discover tests. It has "),
        ("demo --zzz 1", "sortal demo has no option --zzz. See sortal demo --help."),
        ("discover x --epoch 1", "sortal discover has no option --epoch. Did you mean --epochs?"),
        ("discover x -k 1", "sortal discover has no option -k. Did you mean --k?"),
        ("discover", "sortal discover needs IMAGES: a folder of images, or several. See sortal discover --help."),
        ("predict run", "sortal predict needs IMAGES: a folder of images, or several; searched recursively."),
        ("decisions merge run", "sortal decisions merge needs OTHER: the decisions.jsonl of another person's copy"),
        ("discover x --k", "--k needs a value: number of classes, including the known ones; auto estimates it."),
        ("discover x --k ten", "--k must be a whole number or 'auto', got 'ten'. See sortal discover --help."),
        ("discover x --k 3.5", "--k must be a whole number or 'auto', got '3.5'. See sortal discover --help."),
        ("discover x --k 3 --k 4", "--k is given more than once. Give it once."),
        ("discover x --held-out half", "--held-out must be a number, got 'half'."),
        ("discover x --workers two", "--workers must be a whole number, got 'two'."),
        ("discover x --views dead", "--views must be a whole number, 'auto' or 'live', got 'dead'."),
        (
            "discover x --folders class",
            "--folders must be 'classes', 'reviewed' or 'ignore', got 'class'. Did you mean classes?",
        ),
        ("sample digit out", "NAME must be 'digits', got 'digit'. Did you mean digits?"),
        ("export run --out x", "sortal export needs --format, which must be 'csv', 'parquet', 'folders', "),
        ("benchmark cub --epochs auto", "--epochs must be a whole number, got 'auto'."),
        ("benchmark cub --device gpu", "--device must be 'auto', 'cpu', 'cuda' or 'mps', got 'gpu'. See sortal"),
        ("figures run legacy", "sortal figures takes RUN and options, but got 'legacy' as well."),
        ("demo out", "sortal demo takes options only, got 'out'."),
    ):
        done = invoke(*tokens.split())
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith(f"sortal: error: {message}")
        assert done.err.endswith("--help.\n")


def test_an_option_that_takes_several_values_takes_them_apart_by_spaces_or_commas(stub: Stub) -> None:
    stub("sortal.review.loading.load_run", "the run")
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


# Demo


def test_demo_prints_a_table_or_json(stub: Stub) -> None:
    asked = stub("sortal.discovery.demo.run", RESULT)
    done = invoke("demo")
    assert (done.code, done.err) == (0, NOTE)
    assert done.out.startswith("72 images: ")
    assert "\nsortal discover                     95.0   90.0    97.5\n" in done.out
    found = json.loads(invoke("demo", "--json").out)
    accuracy = {"plain": RESULT.plain, "semi_supervised": RESULT.semi_supervised, "discovered": RESULT.discovered}
    assert found.pop("accuracy") == {name: asdict(each) for name, each in accuracy.items()}
    assert (found.pop("k_true"), found.pop("seconds")) == (10, 61.6)
    assert found == json.loads(json.dumps(RESULT.run.to_json())), "the rest is the output of discover"
    words = "--k 7 --labelled 0.25 --epochs 2 --seed 5 --out x --device cpu"
    assert invoke("demo", *words.split()).code == 0
    usual = {"out": Path("digits-run"), "k": "auto", "labelled": 0.5, "epochs": "auto", "seed": 0}
    chosen = {"out": Path("x"), "k": 7, "labelled": 0.25, "epochs": 2, "seed": 5, "device": "cpu"}
    assert asked == [usual, usual, chosen]


def test_progress_goes_to_the_terminal_and_only_the_result_to_stdout(
    stub: Stub, pets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub("sortal.discovery.demo.run", RESULT)
    monkeypatch.setenv("TERM", "xterm")
    with redirect_stderr(Terminal()) as terminal, redirect_stdout(io.StringIO()) as out:
        assert app.main(["demo", "--json"]) == 0
    assert "[3/7] Working" in terminal.getvalue()
    assert NOTE in terminal.getvalue()
    assert json.loads(out.getvalue())["k"]["k"] == 6
    with redirect_stderr(Terminal()) as terminal, redirect_stdout(io.StringIO()):
        assert app.main(["check", str(pets)]) == 0
    assert "Checking images" in terminal.getvalue()
    assert "4/4" in terminal.getvalue()


# Discover


JOB: Any = SimpleNamespace(retraining=None, agreed=False, reporting_to=lambda runtime: JOB)
NUMBERS = {"k": 7, "epochs": 3, "lr": 0.5, "views": 4, "seed": 5, "k_max": 60, "n_init": 2, "held_out": 0.25}
SETTINGS = {
    **NUMBERS,
    "learn_on": 9,
    "unsure_below": 0.75,
    "max_pixels": 9,
    "method": "kmeans",
    "backbone": "convnet",
    "weights": "w.pth",
}
READ = {"folders": "ignore", "unlabelled": "rest", "unlisted": "unlabelled", "extra_columns": "ignore"}
READ |= {"placeholders": "classes"}
OTHERS = {"labels": Path("l.csv"), "out": Path("o"), "device": "cpu", "workers": 1}


def test_each_option_of_discover_reaches_the_library(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("photos", "more"):
        (tmp_path / name).mkdir()
    prepared, carried_out = (
        stub("sortal.discovery.job.prepare", JOB),
        stub("sortal.discovery.pipeline.carry_out", sample_run()),
    )

    def asked(*words: str) -> dict[str, Any]:
        assert invoke("discover", "photos", *words).code == 0
        assert carried_out.pop() == {"job": JOB}
        return prepared.pop()

    usual = asked()
    paths: dict[str, Any] = {
        "images": Path("photos"),
        "labels": None,
        "out": None,
        "force": False,
        "given": set(),
    }
    assert usual == {**paths, "settings": Discovery(), "reading": Reading()}
    for name, value in {**SETTINGS, **READ, **OTHERS}.items():
        changed: dict[str, Any] = {name: value}
        if name in SETTINGS:
            changed = {"settings": replace(Discovery(), **changed), "given": {name}}
        elif name in READ:
            changed = {"reading": replace(Reading(), **changed), "given": {name}}
        assert asked(f"--{name.replace('_', '-')}", str(value)) == {**usual, **changed}
    assert asked("--force") == {**usual, "force": True}
    assert asked("--views", "live")["settings"] == Discovery(views="live")
    words = "--views auto --k=auto --epochs auto --lr auto"
    assert asked(*words.split()) == {**usual, "given": {"views", "k", "epochs", "lr"}}
    assert asked("more")["images"] == [Path("photos"), Path("more")]
    tried = {*SETTINGS, *READ, *OTHERS, "images", "force", "json", "dry_run", "yes"}
    assert options_of(FUNCTIONS["discover"]).keys() == tried


def test_training_again_is_asked_about(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    job: Any = SimpleNamespace(
        retraining="A change of seed means training again.",
        agreed=False,
        reporting_to=lambda runtime: job,
    )
    stub("sortal.discovery.job.prepare", job)
    carried_out = stub("sortal.discovery.pipeline.carry_out", sample_run())
    planned = stub("sortal.discovery.dry_run.forecast", SimpleNamespace(seconds={"learn": 600.0}))
    code, _, message = astuple(invoke("discover", "photos", "--seed", "1"))
    assert code == 2
    assert f"error: {job.retraining} Train again (--yes), see what it costs (--dry-run), or choose another" in message
    assert (carried_out, planned) == ([], [])
    assert invoke("discover", "photos", "--yes").code == 0
    assert (len(carried_out), planned) == (1, [])
    monkeypatch.setattr(printing, "can_ask", lambda: True)
    for answer, code in (("n", 1), ("", 1), ("YES", 0)):
        carried_out.clear()
        monkeypatch.setattr(sys, "stdin", io.StringIO(f"{answer}\n"))
        done = invoke("discover", "photos", "--seed", "1")
        assert f"{job.retraining} In all, this takes about 10 min: learn 10 min.\nGo on? [y/N] " in done.err
        assert (done.code, len(carried_out)) == (code, 1 - code)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert invoke("discover", "photos").code == 2, "nobody can answer for several processes"
    job.agreed = True
    assert invoke("discover", "photos").code == 0, "resuming is not asked about again"


def test_discover_prints_text_or_json(stub: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    stub("sortal.discovery.job.prepare", JOB)
    found = sample_run()
    stub("sortal.discovery.pipeline.carry_out", found)
    printing.run(found)
    assert invoke("discover", "photos") == Done(0, capsys.readouterr().out, NOTE)
    with redirect_stderr(None), redirect_stdout(io.StringIO()) as out:  # as in Python if stderr is closed
        assert app.main(["discover", "photos"]) == 0
    assert "72 images: " in out.getvalue()
    assert "A note." not in out.getvalue()

    bad = Quarantined("a/b.jpg", "empty", "0 bytes")
    found = sample_run(name=lambda number: f"{HOSTILE[number]}\x1b[31m"[-99:], quarantine=[bad])
    stub("sortal.discovery.pipeline.carry_out", found)
    done = invoke("discover", "photos")
    assert done.code == 3, "some files were skipped"
    assert "a/b.jpg" in done.out
    done = invoke("discover", "photos", "--json")
    assert (done.code, done.err) == (3, NOTE)
    assert json.loads(done.out) == json.loads(json.dumps(found.to_json()))
    assert all(line.isprintable() for line in done.out.splitlines())


def test_a_dry_run_only_plans(stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(printing, "dry_run", lambda plan: sys.stdout.write(f"a plan of {plan.to_json()['images']}\n"))
    stub("sortal.discovery.job.prepare", JOB)
    carried_out = stub("sortal.discovery.pipeline.carry_out", None)
    planned = stub("sortal.discovery.dry_run.forecast", SimpleNamespace(to_json=lambda: {"images": 36}))
    assert invoke("discover", "photos", "--dry-run") == Done(0, "a plan of 36\n", NOTE)
    assert json.loads(invoke("discover", "photos", "--dry-run", "--json").out) == {"images": 36}
    since = [each.pop("since") for each in planned]
    assert since == sorted(since)
    assert (planned, carried_out, [*tmp_path.iterdir()]) == ([{"job": JOB, "spell": spell}] * 2, [], [])


def test_a_dry_prediction_only_plans(stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        printing, "dry_prediction", lambda plan: sys.stdout.write(f"{plan.to_json()['images']} images\n")
    )
    predicted = stub("sortal.discovery.prediction.predict", None)
    planned = stub("sortal.discovery.dry_run.forecast_prediction", SimpleNamespace(to_json=lambda: {"images": 36}))
    assert invoke("predict", "run", "photos", "--dry-run").out == "36 images\n"
    assert json.loads(invoke("predict", "run", "photos", "--update", "--dry-run", "--json").out) == {"images": 36}
    assert [(each["run"], each["images"], each["update"]) for each in planned] == [
        (Path("run"), Path("photos"), False),
        (Path("run"), Path("photos"), True),
    ]
    assert (predicted, [*tmp_path.iterdir()]) == ([], [])


@dataclass(frozen=True)
class Real:
    """A folder of images, one of them unreadable, and the outcome of sorting it."""

    images: Path
    run: Path
    done: Done


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Real:
    folder = tmp_path_factory.mktemp("real")
    tiny_folder.write(folder / "photos", tiny_folder.planted(6, 3))
    (folder / "photos" / "ash" / "broken.png").write_bytes(b"")
    (folder / "run").mkdir()
    (folder / "run" / ".lock").touch()  # left by a run that was killed at once
    done = invoke("discover", folder / "photos", "--out", folder / "run", *QUICK)
    return Real(folder / "photos", folder / "run", done)


def test_discover_sorts_a_folder_once_and_then_reads_the_run(real: Real) -> None:
    assert real.done.code == 3
    lines = real.done.out.splitlines()
    assert lines[0].startswith("36 images: 9 labelled, ")
    assert lines[1] == "k = 6, given: 3 known categories and 3 new."
    assert lines[-4:] == ["  empty: 0 bytes", "    ash/broken.png", "", f"Report: {real.run / 'report.html'}"]
    assert real.done.err.splitlines()[0] == "sortal: 1 file could not be read and will be left out."
    assert (real.run / "report.html").stat().st_size > 10_000
    assert load_run(real.run).facts.settings.backbone == "convnet"
    again = invoke("discover", real.images, "--out", real.run, *QUICK, "--json")
    assert again.code == 3
    assert json.loads(again.out) == json.loads(json.dumps(load_run(real.run).to_json()))


def test_impossible_requests_exit_2_and_write_nothing(
    real: Real, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(real.images, tmp_path / "photos")
    (tmp_path / "file").touch()
    before, no_run = sorted(tmp_path.rglob("*")), "A run must be a folder that sortal discover wrote, got 'photos'"
    for words, message in (
        ("discover nowhere", "The image folder 'nowhere' does not exist."),
        ("discover photos nowhere", "Images must be one or more folders, got 'nowhere', which does not exist."),
        ("check photos file", "Images must be one or more folders, got 'file', which is a file."),
        ("discover photos --labels nowhere.csv", "The table 'nowhere.csv' does not exist."),
        ("discover photos --out photos/run", f"got 'photos/run'. Choose another folder (--out {tmp_path}/photos-run)."),
        ("discover photos --out file/run --backbone convnet", "The folder 'file/run' cannot be written"),
        ("predict photos photos", no_run),
        ("export photos --format csv --out x.csv", no_run),
        ("figures photos", no_run),
        ("benchmark", "Name a data set or a preset. List the presets with: sortal benchmark presets."),
        ("benchmark mnist", "The data set must be one of cifar10, cifar100, imagenet100, cub,"),
        ("benchmark cub", "root must be the folder that contains CUB-200-2011, got 'data', which does not exist."),
        (
            "benchmark cub --method gcd,x",
            "method must be 'gcd', 'kmeans', 'rankstats', 'simgcd', 'sortal' or 'uno', got 'x'.",
        ),
        ("benchmark cub --seeds a", "seeds must be whole numbers, like 0 1 2 or 0,1,2, got 'a'."),
        ("benchmark table", "got no path. Name at least one."),
    ):
        assert message in refused(*words.split())
        assert sorted(tmp_path.rglob("*")) == before


# Predict


@pytest.fixture(scope="module")
def further(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write images that the run has not seen, one of them with a name that is hostile to tables and terminals."""
    folder = tmp_path_factory.mktemp("further")
    for at, name in enumerate(("ash", "elm", "oak")):
        tiny_folder.save(folder / "some" / f"{name}.png", tiny_folder.picture(name, 50 + at))
    tiny_folder.save(folder / NASTY, tiny_folder.picture("fir", 60))
    return folder


def test_predict_prints_a_summary_and_writes_the_table_where_it_is_asked_to(
    real: Real, further: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [f"some/{name}.png" for name in ("ash", "elm", "oak")]
    tokens = ("predict", real.run, further, "--workers", "1")
    summary = invoke(*tokens)
    assert (summary.code, summary.err) == (0, "")
    assert re.match(r"4 images: \d known, \d new, \d unsure\.\n\nCategory +Kind +Images +Unsure\n", summary.out)
    assert f"--csv FILE\nTo add these images to the run: sortal predict {real.run} {further} --update\n" in summary.out
    printed = invoke(*tokens, "--csv", "-")
    assert (printed.code, printed.err) == (0, "")
    header, *rows = csv.reader(io.StringIO(printed.out, newline=""), strict=True)
    assert header == list(prediction.COLUMNS)
    assert sorted(row[0] for row in rows) == sorted([f"'{NASTY}", *files])
    with redirect_stdout(Terminal()) as terminal, redirect_stderr(io.StringIO()):
        assert app.main([*map(str, tokens), "--csv", "-"]) == 0
    assert all(line.isprintable() for line in terminal.getvalue().splitlines())
    assert r"\x1b[31m.png" in terminal.getvalue()

    table = tmp_path / "table.csv"
    assert f"\nTable: {table}\n" in invoke(*tokens, "--csv", table).out
    assert table.read_bytes().decode() == printed.out
    found = json.loads(invoke(*tokens, "--csv", table, "--force", "--json").out)
    assert table.read_bytes().decode() == printed.out
    assert "takes the table or JSON, not both" in refused(*tokens, "--csv", "-", "--json")
    assert "--csv needs a value: " in refused(*tokens, "--csv", "--update")
    assert sorted(row["file_name"] for row in found["images"]) == sorted([NASTY, *files])
    assert (found["quarantine"], found["added"], found["candidates"]) == ([], 0, [])
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]

    monkeypatch.setattr("sortal.discovery.prediction.predict", lambda *_, **__: pytest.fail("checked too late"))
    (tmp_path / "folder").mkdir()
    before = tiny_folder.contents(tmp_path)
    complaint = refused(*tokens, "--csv", table)
    assert "must be a new file" in complaint
    assert "--force" in complaint
    for place in ("nowhere/table.csv", "table.csv/table.csv", "folder", real.run / "table.csv"):
        complaint = refused(*tokens, "--csv", tmp_path / place, "--force")
        assert complaint.startswith("sortal: error: The table must ")
        assert str(tmp_path / place) in complaint
    assert tiny_folder.contents(tmp_path) == before


@pytest.mark.parametrize("force", [False, True])
def test_a_table_that_appears_meanwhile_is_not_replaced(
    real: Real, further: Path, tmp_path: Path, force: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, predict = tmp_path / "table.csv", prediction.predict

    def late(*values: Any, **named: Any) -> Any:
        table.write_text("mine")
        return predict(*values, **named)

    monkeypatch.setattr("sortal.discovery.prediction.predict", late)
    complaint = refused("predict", real.run, further, "--workers", "1", "--csv", table, *["--force"] * force)
    assert "something else has been written there meanwhile, and stays" in complaint
    assert table.read_text() == "mine"
    assert os.listdir(tmp_path) == ["table.csv"]


def test_predict_skips_unreadable_files_and_adds_the_rest_to_the_run(real: Real, further: Path, tmp_path: Path) -> None:
    run, images = shutil.copytree(real.run, tmp_path / "run"), shutil.copytree(further, tmp_path / "new")
    (images / "bro\nken.png").write_text("no image")
    with tiny_folder.quickly():
        done = invoke("predict", run, images, "--workers", "1", "--update")
    assert done.code == 3
    assert "\nUnreadable, left out of every run (exit code 3): 1\n  not an image: " in done.out
    assert "\n    bro\\nken.png\n" in done.out
    assert f"\n4 images added to the run. Report: {run / 'report.html'}\n" in done.out
    assert len(load_run(run).assignments) == 40
    done = invoke("predict", run, images, "--workers", "1", "--update")
    assert done.err.startswith("sortal: The run already contains all of these images, so it is unchanged.\n")
    with tiny_folder.quickly():
        done = invoke("discover", real.images, "--out", run, "--k", "5")
    assert (load_run(run).k.k, len(load_run(run).assignments)) == (5, 40)
    assert "4 images that were added to that run take part, unlabelled." in done.err


def test_predict_options_reach_the_library(stub: Stub) -> None:
    one = Prediction(run=sample_run(), assignments=sample_run().assignments, quarantine=(), added=0)
    asked = stub("sortal.discovery.prediction.predict", one)
    assert invoke("predict", "r", "i").out.startswith("72 images: ")
    invoke("predict", "r", "i", "--update", "--device", "cpu", "--workers", "3", "--max-pixels", "9")
    start = {"run": Path("r"), "images": Path("i")}
    assert asked == [
        {**start, "update": False, "max_pixels": None},
        {**start, "update": True, "max_pixels": 9, "device": "cpu", "workers": 3},
    ]


# Export


def test_export_options_reach_the_library(stub: Stub) -> None:
    loaded = stub("sortal.review.loading.load_run", "the run")
    asked = stub("sortal.exchange.export.export", ExportResult(format="csv", out=Path("o"), images=5, missing=()))
    for name in FORMATS:
        assert invoke("export", "r", "--format", name) == Done(0, "5 images written as csv: o\n", NOTE)
        usual = {"run": "the run", "format": name, "out": None, "how": "hardlink", "force": False}
        usual |= {"absolute_paths": False}
        assert (loaded.pop(), asked.pop()) == ({"folder": Path("r")}, usual)
    for how in get_args(How):
        invoke("export", "r", "--format", "folders", "--out", "o", "--how", how, "--force", "--absolute-paths")
        chosen = {"run": "the run", "format": "folders", "out": Path("o"), "how": how, "force": True}
        assert asked.pop() == {**chosen, "absolute_paths": True}
    stub("sortal.exchange.export.export", ExportResult(format="csv", out=Path("o"), images=5, missing=("a.png",)))
    message = "5 images written as csv: o\n  missing, left out: a.png\n"
    assert invoke("export", "r", "--format", "csv") == Done(3, message, NOTE)


def test_export_writes_a_file_named_after_the_run(real: Real, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for format, name in (("coco", "run-coco.json"), ("csv", "run.csv"), ("folders", "run-folders")):
        assert invoke("export", real.run, "--format", format) == Done(0, f"36 images written as {format}: {name}\n", "")
        assert (tmp_path / name).exists()
    assert export(real.run, "csv", "same.csv").images == 36, "a folder will do for a run"
    complaint = refused("export", real.run, "--format", "csv", "--out", "run.csv")
    assert complaint.endswith("/run.csv' already exists. Choose another (--out), or replace it (--force).\n")


# Figures


def test_figures_options_reach_the_library(stub: Stub) -> None:
    stub("sortal.review.loading.load_run", "the run")
    drawn = figures.FiguresResult(out=Path("o"), files=(Path("o/a.png"),), left_out={"legacy": "No truth."})
    asked = stub("sortal.research.figures.draw", drawn)
    assert invoke("figures", "r") == Done(0, "o/a.png\nLeft out: legacy. No truth.\n", NOTE)
    words = "--out o --which tsne,legacy --images a.png b/c.png --seed 5 --cache c --device cpu --workers 1 --force"
    assert invoke("figures", "r", *words.split()).code == 0
    assert invoke("figures", "r", "--images", "a.png", "--images", "b.png").code == 0
    usual = {"run": "the run", "out": None, "which": None, "images": None}
    rest = {"seed": 0, "cache": None, "force": False}
    chosen = {"run": "the run", "out": Path("o"), "which": ["tsne", "legacy"], "images": ["a.png", "b/c.png"]}
    assert asked == [
        {**usual, **rest},
        {**chosen, "seed": 5, "cache": Path("c"), "device": "cpu", "workers": 1, "force": True},
        {**usual, **rest, "images": ["a.png", "b.png"]},
    ]


# Benchmarks


@dataclass(frozen=True)
class Benchmarked:
    """A benchmark of two methods on a folder of classes, run from the command line."""

    words: tuple[object, ...]
    out: Path
    done: Done


@pytest.fixture(scope="module")
def benchmarked(tmp_path_factory: pytest.TempPathFactory) -> Benchmarked:
    folder = tmp_path_factory.mktemp("benchmarked")
    for name in tiny_folder.CLASSES:
        for number in range(10):
            tiny_folder.save(folder / "trees" / name / f"{number}.png", tiny_folder.picture(name, number))
    options = "--method kmeans,uno --backbone convnet --epochs 1 --seeds 0 --device cpu --workers 1"
    words = ("benchmark", "folder", "--root", folder / "trees", "--out", folder / "out", *options.split())
    with tiny_folder.quickly():
        return Benchmarked(words, folder / "out", invoke(*words))


def test_a_benchmark_is_recorded_and_not_repeated(benchmarked: Benchmarked) -> None:
    done, out = benchmarked.done, benchmarked.out
    assert done.code == 0
    found = records.find([out])
    assert sorted((record.name, record.seed) for record in found) == [("trees/kmeans", 0), ("trees/uno", 0)]
    figures_of = [f"{100 * (record.transductive.accuracy.all or 0):.1f}" for record in found]
    assert all(figure in done.out for figure in figures_of)
    assert [line.partition(": All ")[0] for line in done.err.splitlines()] == [
        f"sortal: trees/{method}, k true, seed 0" for method in ("kmeans", "uno")
    ], "a note for each finished run"
    assert done.out.splitlines()[-1] == f"The runs are in {out / 'trees'}; sortal benchmark table makes tables of them."
    assert max(map(len, done.out.splitlines()[:-1])) <= 80
    assert invoke(*benchmarked.words) == replace(done, err="sortal: 2 of 2 runs are already recorded.\n")
    again = invoke(*benchmarked.words, "--json")
    assert again.code == 0
    files = [out / "trees" / method / "k-true" / "seed-0" / "benchmark.json" for method in ("kmeans", "uno")]
    assert json.loads(again.out) == [json.loads(file.read_text()) for file in files]


def test_a_benchmark_names_the_files_it_left_out_whenever_it_is_run(
    benchmarked: Benchmarked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = shutil.copytree(benchmarked.out.parent / "trees", tmp_path / "trees")
    tiny_folder.break_some(root, ["elm/1.png"])
    options = "--method kmeans --backbone convnet --seeds 0 1 --device cpu --workers 1"
    words = ("benchmark", "folder", "--root", root, "--out", tmp_path / "out", *options.split())
    with tiny_folder.quickly():
        done = invoke(*words)
    assert done.code == 3
    assert "Unreadable, left out of every run (exit code 3): 1\n" in done.out
    assert done.out.count("elm/1.png") == 1
    again = invoke(*words)
    assert (again.code, again.out) == (3, done.out), "of recorded runs too"
    listed = [record["unreadable"] for record in json.loads(invoke(*words, "--json").out)]
    assert [[bad["file"] for bad in each] for each in listed] == [["elm/1.png"]] * 2
    monkeypatch.setattr("sortal.cli.benchmark.torchrun", lambda: 2)
    assert invoke(*words).code == 0, "torchrun takes any other code for a crash"


def test_benchmark_table_prints_and_writes_tables(benchmarked: Benchmarked, tmp_path: Path) -> None:
    made = tables.tables(records.find([benchmarked.out]))
    done = invoke("benchmark", "table", benchmarked.out)
    assert done == Done(0, tables.document(made), "")
    assert done.out.startswith("# Benchmarks\n\n## trees: convnet, random weights, true k\n")
    parts = [benchmarked.out / "trees/uno", benchmarked.out / "trees/kmeans/k-true/seed-0"]
    assert invoke("benchmark", "table", *parts) == done

    out = tmp_path / "tables"
    tokens = ("benchmark", "table", benchmarked.out, "--out", out)
    assert invoke(*tokens) == done
    assert (out / "trees-convnet-k-true.csv").exists()
    assert (out / "tables.md").read_text() == done.out
    (out / "tables.md").write_text("mine")
    assert "--force" in refused(*tokens)
    assert (out / "tables.md").read_text() == "mine"
    assert invoke(*tokens, "--force") == done
    assert (out / "tables.md").read_text() == done.out


SWEPT = sweep.SweepResult(records=(), folders=(), failed=(), reused=0)
SWEEP = {"out": Path("benchmark"), "seeds": (0, 1, 2), "processes": None}


def test_each_option_of_benchmark_reaches_the_library(stub: Stub) -> None:
    swept = stub("sortal.research.benchmark.sweep.sweep", SWEPT)
    tried = {"dataset", "json"}
    network = {"k": 7, "backbone": "convnet", "weights": "w.pth", "epochs": 3, "lr": 0.5, "views": 4}
    others = {"seeds": (5, 7), "out": Path("my runs"), "processes": 2, "device": "cpu", "workers": 3}
    cases: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
        ("cub", {"dataset": "cub"}, {}),
        ("cub --method uno,gcd", {"dataset": "cub", "methods": ["uno", "gcd"]}, {}),
        ("--preset table3 --preset table2/cifar10", {"names": ["table3", "table2/cifar10"]}, {}),
        (f"cub {' '.join(f'--{name} {value}' for name, value in network.items())}", {"dataset": "cub", **network}, {}),
        ("cub --views live", {"dataset": "cub", "views": "live"}, {}),
        ("--preset table3/cub/gcd --fast", {"names": ["table3/cub/gcd"], "fast": True}, {}),
        ("folder --root my/flowers", {"dataset": "folder", "root": Path("my/flowers")}, {}),
        ("cub --seeds 5,7 --out 'my runs' --processes 2 --device cpu --workers 3", {"dataset": "cub"}, others),
    )
    for words, asked, options in cases:
        done = invoke("benchmark", *shlex.split(words))
        assert (done.code, done.err) == (0, NOTE)
        given = {"dataset": None, "root": Path("data"), **asked}
        chosen = {"presets": choose(given.pop("dataset"), **given), "root": given["root"]}
        assert swept.pop() == {**chosen, **SWEEP, **options, "command": f"sortal benchmark {words}"}
        tried |= {word[2:] for word in words.split() if word.startswith("--")}
    assert tried == options_of(benchmark.run_benchmark).keys()


def test_a_failed_benchmark_exits_1_and_an_interrupted_one_130(stub: Stub) -> None:
    failed = ("cub/gcd, seed 1", "The loss is no number.")
    stub("sortal.research.benchmark.sweep.sweep", replace(SWEPT, failed=(failed,)))
    done = invoke("benchmark", "cub")
    assert done == Done(1, "\nFailed: cub/gcd, seed 1: The loss is no number.\n", NOTE)
    assert invoke("benchmark", "cub", "--json") == replace(done, out="[]\n")
    stub("sortal.research.benchmark.sweep.sweep", KeyboardInterrupt())
    assert invoke("benchmark", "cub") == Done(130, "", NOTE + INTERRUPTED)


def test_benchmark_presets_are_listed() -> None:
    found = json.loads(invoke("benchmark", "presets", "--json").out)
    assert [*found] == [*presets.PRESETS]
    assert found["table3/cub/gcd"]["recipe"]["training"]["epochs"] == 200
    assert "table5/cifar100/6" in invoke("benchmark", "presets").out


# Check


SMILE = check.ClassCount(name=":smile: дуб", images=3, unreadable=0)
HEALTH = replace(HEALTHY, classes=(SMILE, *HEALTHY.classes))


def test_check_prints_text_or_json_and_exits_by_the_worst_finding(stub: Stub, pets: Path) -> None:
    stub("sortal.images.check.check", HEALTH)
    done = invoke("check", pets)
    assert (done.code, done.err) == (0, NOTE)
    assert ":smile: дуб  " in done.out
    assert r":smile: \u0434\u0443\u0431  " in invoke("check", pets, encoding="ascii").out
    bad = replace(HEALTH, unreadable=(Quarantined("dog/2\n[red].jpg", "empty", "0 bytes"),))
    stub("sortal.images.check.check", bad)
    done = invoke("check", pets, "--json")
    assert (done.code, json.loads(done.out)) == (3, json.loads(json.dumps(asdict(bad))))
    twice = check.Duplicates(kind="two labels", files=("a", "b"), labels=("x", "y"))
    stub("sortal.images.check.check", replace(bad, duplicates=(twice,)))
    assert invoke("check", pets).code == 1, "which takes precedence over an unreadable file"


def test_check_options_reach_the_library(stub: Stub, pets: Path) -> None:
    asked = stub("sortal.images.check.check", HEALTH)

    def checked(*tokens: object) -> tuple[dict[str | None, int], dict[str, Any]]:
        """Return the images per class and the other options passed to the library."""
        assert invoke("check", pets, *tokens).code == 0
        options = asked.pop()
        images = options.pop("images")
        counts = {name: int((images.labels == at).sum()) for at, name in enumerate(images.classes)}
        return {**counts, None: int((images.labels < 0).sum())}, options

    usual = {"tiny": check.TINY, "max_pixels": 80_000_000}
    assert checked() == ({"cat": 2, "dog": 1, None: 1}, usual)
    chosen = {"tiny": 41, "max_pixels": 1599, "workers": 1}
    assert checked("--tiny", 41, "--max-pixels", 1599, "--workers", 1)[1] == chosen
    classes = ("--placeholders", "classes")
    assert checked("--unlabelled", "dog", *classes)[0] == {"cat": 2, "unlabelled": 1, None: 1}
    assert checked("--unlabelled", "dog", "--placeholders", "unlabelled")[0] == {"cat": 2, None: 2}
    assert checked("--folders", "ignore")[0] == {None: 4}

    table = pets / "labels.csv"
    table.write_text("file_name,label,who\ncat/1.png,tom,me\ncat/2.png,,me\n")
    tokens: list[object] = ["--labels", table]
    assert "(--extra-columns ignore)" in refused("check", pets, *tokens), "as a command-line option"
    tokens += ["--extra-columns", "ignore"]
    complaint = refused("check", pets, *tokens)
    assert "2 have none: 'dog/1.png', 'unlabelled/x.png'" in complaint
    assert "as unlabelled (--unlisted unlabelled), or leave them out (--unlisted ignore)." in complaint
    assert checked(*tokens, "--unlisted", "unlabelled")[0] == {"tom": 1, None: 3}
    table.write_text("file_name,label\nunlisted='x'.jpg,a\n")
    assert "does not: \"unlisted='x'.jpg\"." in refused("check", pets, *tokens), "a file name is not rewritten"


def test_sample_writes_digits_and_suggests_how_to_check_them(tmp_path: Path) -> None:
    out = tmp_path / "my digits"
    done = invoke("sample", "digits", out, "--labelled", "0.25", "--seed", "3")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0] == f"Wrote 1,797 images and labels.csv to {out}. Check them with:"
    message = invoke(*shlex.split(lines[1])[1:]).out
    assert "1,797 images: 225 labelled in 5 classes, 1,572 unlabelled." in message
    assert "must be new or empty" in refused("sample", "digits", out)


# Errors and signals


def test_errors_print_one_line_and_bugs_keep_their_traceback(stub: Stub) -> None:
    by_library = RuntimeError("Error calling __set_name__")
    by_library.__cause__ = KeyboardInterrupt()
    denied = "error: Access to 'place' was denied: Read-only. Change that, or use another folder."
    nowhere = "error: There is no folder for temporary files. Set TMPDIR to one that can be written to."
    no_memory = "error: There is not enough memory. Close other programs, or use a machine with more."
    too_many = os.strerror(errno.EMFILE)
    refused_by_system = f"error: The system refused a request: {too_many}. Repeat the command when it can serve it."
    for error, code, message in (
        (InputError("k must be at least 5, got 2."), 2, "error: k must be at least 5, got 2."),
        (SortalError("A process could not start."), 1, "error: A process could not start."),
        (KeyboardInterrupt(), 130, "interrupted"),
        (by_library, 130, "interrupted"),
        (OSError(errno.EROFS, "Read-only", "place"), 2, denied),
        (PermissionError(errno.EACCES, "Read-only", b"place"), 2, denied),
        (FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']"), 2, nowhere),
        # As Python, torch, the loader of libraries and safetensors say it
        *((error, 1, no_memory) for error in (MemoryError(), RuntimeError("can't start new thread"))),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), 1, no_memory),
        (ImportError("libgomp.so: cannot allocate memory in static TLS block"), 1, no_memory),
        (ImportError(f"libtorch.so: cannot open shared object file: {too_many}"), 1, refused_by_system),
        (RuntimeError(f"unable to open file <model> in read-only mode: {too_many} (24)"), 1, refused_by_system),
    ):
        stub("sortal.discovery.demo.run", error)
        assert invoke("demo") == Done(code, "", f"{NOTE}sortal: {message}\n")
        with redirect_stderr(None), redirect_stdout(io.StringIO()) as out:
            assert app.main(["demo"]) == code
        assert out.getvalue() == ""
    stub("sortal.discovery.job.prepare", KeyboardInterrupt())
    assert invoke("discover", "photos") == Done(130, "", NOTE + INTERRUPTED)
    for bug in (RuntimeError("a bug"), ImportError("a bug"), PermissionError(13, "a bug")):
        stub("sortal.discovery.demo.run", bug)
        with pytest.raises(type(bug), match="a bug"):
            app.main(["demo"])


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_interrupted_exits_130(how: signal.Signals, pets: Path) -> None:
    code = (
        "import sys, time; from sortal.images import check; from sortal.cli import app; "
        "check.check = lambda *_, **__: (print('on', flush=True), time.sleep(600)); sys.exit(app.main())"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "check", str(pets)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "on\n"
    process.send_signal(how)
    assert process.communicate(timeout=120) == ("", f"{STOPPING}sortal: interrupted\n")
    assert process.returncode == 130


def test_ctrl_c_is_answered_while_python_cannot_be_interrupted_and_a_second_one_ends_the_command(pets: Path) -> None:
    """As in a long computation of PyTorch, the main thread is outside of Python for minutes, where no handler runs."""
    code = (
        "import hashlib, signal, sys; from sortal.images import check; from sortal.cli import app; "
        "signal.signal(signal.SIGINT, signal.default_int_handler); "  # where the parent ignores it
        "long = lambda *_, **__: (print('on', flush=True), hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)); "
        "check.check = long; sys.exit(app.main())"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "check", str(pets)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "on\n"
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline() == STOPPING
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "sortal: interrupted\n")
    assert process.returncode == 130


def test_warnings_of_libraries_are_not_printed_but_those_of_this_package_are(pets: Path) -> None:
    code = (
        "import logging, sys, warnings; from sortal.images import check; from sortal.cli import app; "
        "from importlib import import_module; "
        "warn = lambda *_, **__: (warnings.warn('raw'), logging.getLogger('timm.models').warning('raw'), "
        "import_module('huggingface_hub.utils.logging').get_logger('huggingface_hub.x').warning('raw'), "
        "logging.getLogger('sortal.learning').warning('%d is slow.', 7), sys.exit(5)); "
        "check.check = warn; sys.exit(app.main())"
    )
    words = [sys.executable, "-c", code, "check", str(pets)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (5, "", "sortal: 7 is slow.\n")


def test_an_ignored_signal_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(*_: object, **__: object) -> DemoResult:
        os.kill(os.getpid(), signal.SIGTERM)
        return RESULT

    monkeypatch.setattr("sortal.discovery.demo.run", ended)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert invoke("demo").code == 0
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        assert invoke("--version").code == 0
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "the handler is restored"
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_closed_pipe_ends_quietly_and_a_full_disk_is_reported() -> None:
    reader, gone = os.pipe()
    os.close(reader)
    no_space = f"sortal: error: {app.FULL_OUTPUT}\n"
    for place, message in ((gone, ""), ("/dev/full", no_space)) if os.path.exists("/dev/full") else ((gone, ""),):
        with open(place, "w") as out, redirect_stdout(out), redirect_stderr(io.StringIO()) as err:
            assert app.main(["benchmark", "presets", "--json"]) == 1
        assert err.getvalue() == message


def test_annotations_are_imported(tmp_path: Path) -> None:
    run = replace(sample_run(images=12), folder=tmp_path / "run")
    save_run(run)
    names, file = run.names, tmp_path / "tasks.json"

    def task(row: int, *choices: str) -> dict[str, Any]:
        result = [{"type": "choices", "value": {"choices": [*choices]}}]
        return {"data": {"file_name": f"photos/{row:05d}.jpg"}, "annotations": [{"result": result, "completed_by": 3}]}

    tasks = [task(7, names[1]), task(8, names[0], names[1]), task(9, names[0].upper()), task(99, "x")]
    file.write_text(json.dumps(tasks))
    done = invoke("import", run.folder, file, "--by", "ann")
    assert done.code == 3
    for line in (
        f"4 images in {file} (Label Studio): 2 decisions added.",
        f"  ann: Moved 1 image to {names[0]!r}",
        "  ann: Confirmed 1 image",
        f"  {names[0].upper()} → {names[0]}",
        "Left out, not in the run: 1",
        "  photos/00099.jpg",
        "Left out, with several categories: 1",
        "  photos/00008.jpg",
    ):
        assert line in done.out.splitlines()
    again = json.loads(invoke("import", run.folder, file, "--json").out)
    assert (again["decisions"], again["unchanged"], again["missing"]) == ([], 2, ["photos/00099.jpg"])
    file.write_text("[]")
    assert invoke("import", run.folder, file).code == 0
    assert "is none of them" in refused("import", run.folder, tmp_path / "run/run.json")


def test_decisions_are_listed_and_joined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    every: tuple[tuple[str, list[Action]], ...] = (
        ("mine", [Rename(category=5, name="=fern"), Move(images=(f"{5:032x}",), category=0), Undo()]),
        ("theirs", [Rename(category=5, name="moss"), Rename(category=4, name="oak")]),
    )
    for name, actions in every:
        run = replace(sample_run(), folder=tmp_path / name)
        save_run(run)
        journal.append(run.folder / DECISIONS, run.facts, [journal.decide(each, name) for each in actions])
    mine = str(tmp_path / "mine")
    assert app.main(["decisions", mine]) == 0
    out = capsys.readouterr().out
    assert "Renamed 'new 2' to '=fern'" in out
    assert "Undid: moved 1 image to 'class 0'" in out
    assert app.main(["decisions", "merge", mine, str(tmp_path / "theirs" / DECISIONS)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("1 decision added, 1 disputed.")
    assert "theirs: Disputed: renamed '=fern' to 'moss'. Here it was renamed to '=fern'." in out
    assert app.main(["decisions", mine, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["do"] for row in rows] == ["rename", "move", "undo", "rename", "rename"]
    assert rows[3]["disputed"]
    assert app.main(["decisions", "merge", mine, mine]) == 2
    assert "must be a file" in capsys.readouterr().err
    for command in (["decisions", str(tmp_path)], ["report", str(tmp_path / "no")]):
        assert app.main(command) == 2
    assert app.main(["decisions", "merge", str(tmp_path / "no"), str(tmp_path / "theirs" / DECISIONS)]) == 2
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("rank", [0, 1])
def test_torchrun_is_refused_where_one_process_works(
    rank: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of several processes, the first says so."""
    for name, value in {"WORLD_SIZE": 2, "RANK": rank}.items():
        monkeypatch.setenv(name, str(value))
    for words in (["check", "."], ["demo"], ["discover", ".", "--dry-run"]):
        assert app.main(words) == (1 if rank else 2)
        said = capsys.readouterr().err
        wanted = "sortal: error: Only discover and benchmark run in several processes, got 2. Do without torchrun.\n"
        assert said == ("" if rank else wanted)
    assert app.main(["discover", "--what"]) == 2
    assert bool(capsys.readouterr().err) == (rank == 0)
