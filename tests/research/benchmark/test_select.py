"""Options of a command turned into presets; invalid ones are refused with a remedy."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sortal.config import AUTO, BACKBONE, BUILT_IN, CONVNET, Contrast
from sortal.errors import InputError
from sortal.research.benchmark.presets import PRESETS, Preset, ad_hoc, select
from sortal.research.benchmark.select import choose, numbers

NAMES = tuple(sorted(BUILT_IN))
SMALL = "vit_small_patch16_224.dino"


def chosen(dataset: str | None = None, *names: str, **options: Any) -> tuple[Preset, ...]:
    return choose(dataset, Path("photos/flowers"), names=names, **options)


def names_of(presets: tuple[Preset, ...]) -> list[str]:
    return [preset.name for preset in presets]


def test_methods_on_a_data_set_are_listed_once_in_the_given_order() -> None:
    assert chosen("cifar10", methods=NAMES) == tuple(ad_hoc("cifar10", method) for method in NAMES)
    assert names_of(chosen("cub", methods=["uno", "gcd", "uno", "kmeans"])) == ["cub/uno", "cub/gcd", "cub/kmeans"]
    assert chosen("cub") == chosen("cub", methods=["sortal"]), "the default of discover"
    (small,) = chosen("cub", backbone=CONVNET)
    assert small == ad_hoc("cub", "sortal", backbone=CONVNET), "with its own training schedule"


def test_a_folder_of_images_has_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = chosen("folder")
    assert (found.name, found.dataset) == ("flowers/sortal", "folder")
    monkeypatch.chdir(tmp_path)
    for root in (Path(), Path("here/.."), tmp_path):
        assert names_of(choose("folder", root)) == [f"{tmp_path.name}/sortal"]
    assert names_of(choose("folder", Path("my/cub"))) == ["cub-folder/sortal"], "not confused with the benchmark"
    with pytest.raises(InputError, match=r"root must be a folder with a name, got '/'\."):
        choose("folder", Path("/"))


@pytest.mark.parametrize(
    ("options", "fields", "training"),
    [
        ({"k": 7, "weights": "w.pth"}, {"k": 7, "weights": "w.pth"}, {}),
        ({"k": "auto", "backbone": SMALL}, {"k": "auto", "backbone": SMALL}, {}),
        ({"k": "true", "epochs": 0}, {"k": "true"}, {"epochs": 0}),
        ({"views": "live"}, {}, {"views": None}),
        ({"views": "auto"}, {}, {"views": AUTO}),
        ({"fast": True}, {}, {"views": AUTO}),
        ({"fast": True, "views": "live"}, {}, {"views": None}),
        ({"epochs": 3, "lr": 0.5, "views": 2}, {}, {"epochs": 3, "lr": 0.5, "views": 2}),
    ],
)
def test_options_replace_defaults(options: Any, fields: Any, training: Any) -> None:
    methods: list[str] = ["gcd", "kmeans"]
    for method in methods:
        usual = ad_hoc("cub", method)
        recipe = replace(usual.recipe, training=replace(usual.recipe.training, **training))
        assert chosen("cub", methods=[method], **options) == (replace(usual, recipe=recipe, **fields),)


def test_presets_are_chosen_by_name_without_repetitions() -> None:
    assert chosen(None, *PRESETS) == tuple(PRESETS.values())
    assert chosen(None, "table2/cifar10") == select("table2/cifar10")
    rest = [f"table3/cub/{method}" for method in ("kmeans", "rankstats", "gcd", "simgcd", "sortal")]
    found = chosen(None, "table3/cub/uno", "table3/cub", "table2/cifar10/gcd", "table3/cub/uno")
    assert names_of(found) == ["table3/cub/uno", *rest, "table2/cifar10/gcd"]


def test_only_an_unmodified_preset_keeps_its_version() -> None:
    preset = PRESETS["table3/cub/gcd"]
    same: list[Any] = [{"k": "true"}, {"epochs": 200}, {"lr": 0.1}, {"views": "live"}, {"backbone": BACKBONE}]
    for options in same:
        assert chosen(None, preset.name, **options) == (preset,)
    (found,) = chosen(None, preset.name, weights="dino.pth")
    assert found == replace(preset, weights="dino.pth"), "the file may hold the weights of the hub"
    other: list[Any] = [{"k": "auto"}, {"k": 200}, {"lr": 0.05}, {"views": 8}, {"fast": True}]
    other += [{"backbone": SMALL, "weights": "small.pth"}, {"epochs": 100, "weights": "dino.pth"}]
    for options in other:
        (found,) = chosen(None, preset.name, **options)
        assert (found.name, found.version) == (preset.name, None)


def test_fast_replaces_the_papers_views_and_losses() -> None:
    """Views are cached, and GCD's losses are computed on the bottleneck."""
    for preset, found in zip(select("table3/cub"), chosen(None, "table3/cub", fast=True), strict=True):
        assert found.recipe.training == replace(preset.recipe.training, views=AUTO)
        losses = preset.recipe.losses
        if isinstance(losses, Contrast):
            assert losses.output == "prototypes"
            losses = replace(losses, output="bottleneck")
        assert found.recipe.losses == losses


def test_a_weights_file_is_used_by_the_presets_that_need_one() -> None:
    """Row 1 of the ablation has another network; the others use weights from the hub."""
    rows = chosen(None, "table5/cifar100", weights="resnet.pth")
    assert [row.weights for row in rows] == ["resnet.pth", *[None] * 5]
    assert [row.version for row in rows] == [1] * 6
    others = chosen(None, "table5/cifar100/2", "table3/cub", weights="vit.pth")
    assert [row.weights for row in others] == ["vit.pth"] * 7
    small = chosen(None, "table5/cifar100", weights="small.pth", backbone=SMALL)
    assert [(row.weights, row.needs) for row in small] == [("small.pth", None)] * 6, "no row needs its own file"
    (same,) = chosen(None, "table5/cifar100/1", backbone="resnet50")
    assert same == PRESETS["table5/cifar100/1"]


def test_a_preset_on_another_data_set_has_another_name_and_no_version() -> None:
    names = {"table3/cub/gcd": "table3-gcd", "table5/cifar100/6": "table5-6", "table4/cub": "table4-k"}
    for name, moved in names.items():
        (found,), (elsewhere,) = chosen("folder", name), chosen("stanford_cars", name)
        preset, title = PRESETS[name], PRESETS[name].title.replace(", ", "!", 1).partition("!")[2]
        fields: Any = {"name": f"flowers/{moved}", "dataset": "folder", "version": None, "title": f"flowers, {title}"}
        assert found == replace(preset, **fields)
        assert (elsewhere.name, elsewhere.dataset) == (f"stanford_cars/{moved}", "stanford_cars")
    assert chosen("cub", "table3/cub") == select("table3/cub"), "unmodified on its own data set"
    (changed,) = chosen("folder", "table3/cub/gcd", epochs=2, k="auto", weights="w.pth")
    assert (changed.recipe.training.epochs, changed.k, changed.weights) == (2, "auto", "w.pth")
    # Names are long only if presets differ: RankStats+ and SimGCD have other loss weights on some data sets.
    rows = ["kmeans", "cifar10-rankstats", "uno", "gcd", "cifar10-simgcd", "sortal"]
    rows += ["cifar100-rankstats", "cifar100-simgcd"]
    assert names_of(chosen("folder", "table2")) == [f"flowers/table2-{row}" for row in rows]


@pytest.mark.parametrize("dataset", ["folder", "cub", "cifar10", "cifar100"])
@pytest.mark.parametrize("table", ["table2", "table3", "table4", "table5", "table6"])
def test_presets_on_a_data_set_differ_in_name_and_content(table: str, dataset: str) -> None:
    """Otherwise they would overwrite each other."""
    found = chosen(dataset, table)
    assert len(set(names_of(found))) == len(found)
    contents = [replace(preset, name="", title="", version=None) for preset in found]
    assert len(set(contents)) == len(contents)
    of_table = {replace(preset, name="", title="", dataset=dataset, version=None) for preset in select(table)}
    assert set(contents) == of_table, "none is lost"


@pytest.mark.parametrize(
    ("dataset", "options", "parts"),
    [
        ("mnist", {}, ["data set", "one of cifar10, cifar100,", "herbarium19, folder", "'mnist'", "(root=...)"]),
        (None, {}, ["Name a data set or a preset", "sortal benchmark presets"]),
        (
            "cub",
            {"methods": ["gcd", "GCD"]},
            [f"{', '.join(NAMES)}, or", "'GCD'. Did you mean"],
        ),
        ("cub", {"k": 0}, ["k must be a whole number of at least 1, 'true', 'auto' or None", "got 0."]),
        ("cub", {"metod": "gcd"}, ["'metod' is not a setting"]),
        ("cub", {"lr": 0.0}, ["lr must be a number above 0", "0.0"]),
        ("cub", {"methods": ["uno"], "epochs": 0}, ["epochs must be at least 1 for uno", "got 0."]),
        (None, {"names": ["table3/cub/gcd"], "methods": ["gcd", "uno"]}, ["includes its method", "got gcd, uno."]),
        ("mnist", {"names": ["table3/cub/gcd"]}, ["data set must be one of", "'mnist'"]),
        ("cub", {"names": ["table3", "nothing"]}, ["Unknown preset 'nothing'"]),
    ],
)
def test_errors_name_the_option_the_rule_and_the_value(dataset: str | None, options: Any, parts: list[str]) -> None:
    with pytest.raises(InputError) as error:
        choose(dataset, Path("data"), **options)
    assert all(part in str(error.value) for part in parts), str(error.value)


def test_seeds_are_whole_numbers() -> None:
    assert [numbers(text.split()) for text in ("0", "0 1 2", "7 03")] == [(0,), (0, 1, 2), (7, 3)]
    for text in ("", "a", "0 x", "0;1", "1.5", "-1", "1_0", "²"):
        with pytest.raises(InputError) as error:
            numbers(text.split())
        assert str(error.value) == f"seeds must be whole numbers, like 0 1 2 or 0,1,2, got {text!r}."
