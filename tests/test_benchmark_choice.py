"""What a person asks for in a few words becomes presets, and what cannot be meant is refused with a way out."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from sortal import datasets
from sortal.benchmark.choice import choose, numbers
from sortal.benchmark.presets import PRESETS, Preset, ad_hoc, select
from sortal.config import AUTO, BACKBONE, CLASSIFIERS, CONVNET, Contrast, MethodName
from sortal.errors import InputError

ROOT = Path("photos/flowers")
METHODS: tuple[MethodName, ...] = get_args(MethodName)


def chosen(dataset: str | None = None, **options: Any) -> tuple[Preset, ...]:
    return choose(dataset, ROOT, **options)


def named(*names: str, dataset: str | None = None, **options: Any) -> tuple[Preset, ...]:
    return chosen(dataset, names=names, **options)


def names_of(presets: tuple[Preset, ...]) -> list[str]:
    return [preset.name for preset in presets]


# Methods on a data set


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dataset", datasets.NAMES)
def test_a_method_on_a_data_set_is_what_sortal_does_by_itself(dataset: str, method: MethodName) -> None:
    assert chosen(dataset, methods=[method]) == (ad_hoc(dataset, method),)
    assert chosen(dataset, methods=[method])[0].name == f"{dataset}/{method}"
    assert chosen(dataset, methods=[method])[0].version is None


def test_several_methods_come_once_and_in_the_order_they_were_named() -> None:
    found = chosen("cub", methods=["uno", "gcd", "uno", "kmeans"])
    assert names_of(found) == ["cub/uno", "cub/gcd", "cub/kmeans"]
    assert chosen("cub") == chosen("cub", methods=["gcd"]), "GCD unless told"


def test_a_folder_is_called_what_it_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = chosen("folder")
    assert (found.name, found.dataset) == ("flowers/gcd", "folder")
    monkeypatch.chdir(tmp_path)
    for root in (Path(), Path("here/.."), tmp_path):
        (found,) = choose("folder", root)
        assert found.name == f"{tmp_path.name}/gcd"


@pytest.mark.parametrize("name", datasets.NAMES)
def test_a_folder_that_is_called_like_a_benchmark_is_not_taken_for_it(name: str) -> None:
    (mine,), (theirs,) = choose("folder", Path("my") / name), choose(name, Path("data"))
    assert (mine.name, theirs.name) == (f"{name}-folder/gcd", f"{name}/gcd")


def test_a_folder_without_a_name_is_refused() -> None:
    """What is called nothing would not lie below the folder of runs."""
    with pytest.raises(InputError, match=r"root must be a folder that has a name, got '/'\."):
        choose("folder", Path("/"))


def test_a_backbone_decides_how_a_method_learns() -> None:
    """The small network has a training of its own."""
    (found,) = chosen("cub", backbone=CONVNET)
    assert found == ad_hoc("cub", "gcd", backbone=CONVNET)
    assert found.recipe.training.epochs == 40
    (slow,) = chosen("cub")
    assert (slow.backbone, slow.recipe.training.epochs) == (BACKBONE, 200)


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({"k": "true"}, {"k": "true"}),
        ({"k": "auto"}, {"k": "auto"}),
        ({"k": "55"}, {"k": 55}),
        ({"k": "007"}, {"k": 7}),
        ({"weights": "w.pth"}, {"weights": "w.pth"}),
        ({"backbone": "vit_small_patch16_224.dino"}, {"backbone": "vit_small_patch16_224.dino"}),
    ],
)
def test_what_is_given_takes_the_place_of_the_usual(options: Any, fields: dict[str, Any]) -> None:
    assert chosen("cub", **options) == (replace(ad_hoc("cub", "gcd"), **fields),)


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({"epochs": 3}, {"epochs": 3}),
        ({"epochs": 0}, {"epochs": 0}),
        ({"lr": 0.5}, {"lr": 0.5}),
        ({"views": "live"}, {"views": None}),
        ({"views": 4}, {"views": 4}),
        ({"views": "auto"}, {"views": AUTO}),
        ({"fast": True}, {"views": AUTO}),
        ({"fast": True, "views": "live"}, {"views": None}),
        ({"epochs": 3, "lr": 0.5, "views": 2}, {"epochs": 3, "lr": 0.5, "views": 2}),
    ],
)
@pytest.mark.parametrize("method", ["gcd", "kmeans"])
def test_training_is_changed_where_it_is_said(options: Any, fields: dict[str, Any], method: MethodName) -> None:
    usual = ad_hoc("cub", method)
    training = replace(usual.recipe.training, **fields)
    assert chosen("cub", methods=[method], **options) == (
        replace(usual, recipe=replace(usual.recipe, training=training)),
    )


# Presets by name


@pytest.mark.parametrize("name", PRESETS)
def test_a_name_is_its_preset_unchanged(name: str) -> None:
    assert named(name) == (PRESETS[name],)


@pytest.mark.parametrize(("name", "n"), [("table2", 15), ("table2/cifar10", 5), ("table3/cub/", 5), ("table4", 6)])
def test_the_beginning_of_names_is_all_of_them(name: str, n: int) -> None:
    found = named(name)
    assert found == select(name)
    assert len(found) == n


def test_each_preset_comes_once_and_in_the_order_of_the_names() -> None:
    found = named("table3/cub/uno", "table3/cub", "table2/cifar10/gcd", "table3/cub/uno")
    assert names_of(found) == [
        "table3/cub/uno",
        *(f"table3/cub/{method}" for method in ("kmeans", "rankstats", "gcd", "simgcd")),
        "table2/cifar10/gcd",
    ]


def test_a_preset_has_its_method() -> None:
    with pytest.raises(InputError, match=r"A preset has its method; give none beside it, got gcd, uno\."):
        named("table3/cub/uno", methods=["gcd", "uno"])


def test_weights_from_a_file_may_be_the_same_as_those_of_the_hub() -> None:
    (found,) = named("table3/cub/gcd", weights="dino.pth")
    assert found == replace(PRESETS["table3/cub/gcd"], weights="dino.pth")
    assert found.version == 1


@pytest.mark.parametrize(
    "options",
    [
        {"k": "auto"},
        {"k": "200"},
        {"epochs": 100},
        {"lr": 0.05},
        {"views": "auto"},
        {"views": 8},
        {"fast": True},
        {"backbone": "vit_small_patch16_224.dino"},
        {"backbone": "vit_small_patch16_224.dino", "weights": "small.pth"},
        {"epochs": 100, "weights": "dino.pth"},
    ],
)
def test_a_preset_that_is_changed_has_no_version(options: Any) -> None:
    (found,) = named("table3/cub/gcd", **options)
    assert found.version is None
    assert found.name == "table3/cub/gcd"


@pytest.mark.parametrize(
    "options", [{}, {"k": "true"}, {"epochs": 200}, {"lr": 0.1}, {"views": "live"}, {"backbone": BACKBONE}]
)
def test_a_preset_that_is_told_what_it_says_stays_one(options: Any) -> None:
    assert named("table3/cub/gcd", **options) == (PRESETS["table3/cub/gcd"],)


def test_fast_is_the_way_sortal_learns() -> None:
    """Views are kept, and the two losses of GCD are taken on the bottleneck; other methods have no prototypes."""
    for method in METHODS:
        preset = PRESETS[f"table3/cub/{method}"]
        (found,) = named(preset.name, fast=True)
        assert found.recipe.training == replace(preset.recipe.training, views=AUTO)
        if method == "gcd":
            assert isinstance(preset.recipe.losses, Contrast)
            assert found.recipe.losses == replace(preset.recipe.losses, output="bottleneck")
            assert found.recipe.losses == ad_hoc("cub", "gcd").recipe.losses
        else:
            assert found.recipe.losses == preset.recipe.losses


def test_another_backbone_needs_other_weights() -> None:
    (row,) = named("table5/cifar100/1")
    assert row.needs is not None
    assert named("table5/cifar100/1", backbone="resnet50")[0].needs == row.needs
    (other,) = named("table5/cifar100/1", backbone=CONVNET)
    assert (other.needs, other.version, other.backbone) == (None, None, CONVNET)


def test_where_presets_need_a_file_of_weights_it_is_for_them_alone() -> None:
    """Row 1 of the ablation has another network than the others, which have theirs from the hub."""
    rows = named("table5/cifar100", weights="resnet.pth")
    assert [row.weights for row in rows] == ["resnet.pth", *[None] * 5]
    assert [row.version for row in rows] == [1] * 6
    assert [row.weights for row in named("table5/cifar100/2", "table3/cub", weights="vit.pth")] == ["vit.pth"] * 6
    small = named("table5/cifar100", weights="small.pth", backbone="vit_small_patch16_224.dino")
    assert [row.weights for row in small] == ["small.pth"] * 6, "no row needs another one then"


# A preset on another data set


@pytest.mark.parametrize(
    ("name", "moved"),
    [
        ("table3/cub/gcd", "flowers/table3-gcd"),
        ("table2/cifar10/rankstats", "flowers/table2-rankstats"),
        ("table5/cifar100/6", "flowers/table5-6"),
        ("table4/cub", "flowers/table4-k"),
    ],
)
def test_a_preset_on_another_data_set_has_another_name_and_no_version(name: str, moved: str) -> None:
    (found,) = named(name, dataset="folder")
    assert (found.name, found.dataset, found.version) == (moved, "folder", None)
    assert (found.recipe, found.k, found.backbone) == (PRESETS[name].recipe, PRESETS[name].k, PRESETS[name].backbone)
    (found,) = named(name, dataset="stanford_cars")
    assert found.name == moved.replace("flowers", "stanford_cars")


def test_a_preset_on_its_own_data_set_is_itself() -> None:
    assert named("table3/cub/gcd", dataset="cub") == (PRESETS["table3/cub/gcd"],)
    assert named("table3/cub", dataset="cub") == select("table3/cub")


def test_presets_that_are_the_same_on_another_data_set_are_one() -> None:
    """Else they would write over each other, each time anew."""
    assert names_of(named("table5", dataset="folder")) == [f"flowers/table5-{row}" for row in range(1, 7)]
    assert names_of(named("table4", dataset="folder")) == ["flowers/table4-k"]
    assert [preset.title for preset in named("table4", dataset="folder")] == ["flowers, how many classes"]


@pytest.mark.parametrize("dataset", ["folder", "cub", "cifar10", "cifar100"])
@pytest.mark.parametrize("table", ["table2", "table3", "table4", "table5", "table6"])
def test_no_two_presets_have_one_name_on_a_data_set(table: str, dataset: str) -> None:
    """Runs are kept under it."""
    found = named(table, dataset=dataset)
    assert len(set(names_of(found))) == len(found)
    assert {preset.dataset for preset in found} == {dataset}
    without = [replace(preset, name="", title="") for preset in found]
    assert len(set(without)) == len(without), "nor do two do the same"
    of_table = {replace(p, name="", title="", dataset=dataset, version=None) for p in select(table)}
    assert {replace(p, version=None) for p in without} == of_table, "and none is lost"


def test_presets_that_differ_have_names_that_differ() -> None:
    """RankStats+ has other weights on CIFAR-10 than elsewhere."""
    found = names_of(named("table2", dataset="folder"))
    assert [name for name in found if "rankstats" in name] == [
        "flowers/table2-cifar10-rankstats",
        "flowers/table2-cifar100-rankstats",
    ]
    assert "flowers/table2-gcd" in found


def test_changes_go_on_top_of_another_data_set() -> None:
    (found,) = named("table3/cub/gcd", dataset="folder", epochs=2, k="auto", weights="w.pth")
    assert (found.recipe.training.epochs, found.k, found.weights) == (2, "auto", "w.pth")
    assert (found.name, found.version) == ("flowers/table3-gcd", None)


# What cannot be meant


@pytest.mark.parametrize(
    ("dataset", "options", "parts"),
    [
        ("mnist", {}, ["data set", "one of cifar10, cifar100,", "herbarium19, folder", "'mnist'", "--root"]),
        ("flowers", {}, ["'flowers'", "folder of yours", "--root"]),
        ("", {}, ["data set", "got ''"]),
        (None, {}, ["data set or a preset must be named", "sortal benchmark presets"]),
        ("cub", {"methods": ["gdc"]}, ["method must be one of gcd, kmeans, rankstats, simgcd, uno", "'gdc'"]),
        ("cub", {"methods": ["gcd", ""]}, ["method must be one of", "got ''"]),
        ("cub", {"methods": ["GCD"]}, ["method must be one of", "'GCD'"]),
        ("cub", {"k": "0"}, ["k must be true, auto or a number of at least 1", "'0'"]),
        ("cub", {"k": "-3"}, ["k must be", "'-3'"]),
        ("cub", {"k": "many"}, ["k must be", "'many'"]),
        ("cub", {"k": "1.5"}, ["k must be", "'1.5'"]),
        ("cub", {"k": "²"}, ["k must be", "'²'"]),
        ("cub", {"k": ""}, ["k must be", "''"]),
        ("cub", {"epochs": -1}, ["epochs must be a whole number of at least 0", "-1"]),
        ("cub", {"lr": 0.0}, ["lr must be a number above 0", "0.0"]),
        ("cub", {"lr": float("nan")}, ["lr must be a number above 0", "nan"]),
        ("cub", {"views": 1}, ["views must be a whole number of at least 2", "1"]),
        (None, {"names": ["table7"]}, ["no preset 'table7'", "sortal benchmark presets"]),
        (None, {"names": ["table3/cub/gdc"]}, ["no preset 'table3/cub/gdc'", "'table3/cub/gcd'"]),
        (None, {"names": ["table3/cub/gcd"], "methods": ["uno"]}, ["A preset has its method", "uno"]),
        ("mnist", {"names": ["table3/cub/gcd"]}, ["data set must be one of", "'mnist'"]),
        ("cub", {"names": ["table3", "nothing"]}, ["no preset 'nothing'"]),
    ],
)
def test_errors_name_the_thing_the_rule_the_value_and_the_way_out(
    dataset: str | None, options: Any, parts: list[str]
) -> None:
    with pytest.raises(InputError) as error:
        chosen(dataset, **options)
    message = str(error.value)
    assert all(part in message for part in parts), message
    assert message.endswith((".", "?"))


@pytest.mark.parametrize("method", CLASSIFIERS)
def test_a_classifier_that_is_not_trained_is_refused_before_anything_is_read(method: MethodName) -> None:
    with pytest.raises(InputError, match=rf"epochs must be at least 1 for {method}.*got 0\."):
        chosen("cub", methods=[method], epochs=0)


@pytest.mark.parametrize(("text", "seeds"), [("0", (0,)), ("0,1,2", (0, 1, 2)), ("7,3", (7, 3)), ("007", (7,))])
def test_seeds_as_they_are_typed(text: str, seeds: tuple[int, ...]) -> None:
    assert numbers(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "0,", "0;1", "0-2", "0,,1", "1.5", "-1", "1_0", "²"])
def test_seeds_that_are_no_numbers(text: str) -> None:
    with pytest.raises(InputError) as error:
        numbers(text)
    assert str(error.value) == f"seeds must be whole numbers with commas between, like 0,1,2, got {text!r}."


def test_choosing_loads_nothing_heavy() -> None:
    code = (
        "import sys; from pathlib import Path; from sortal.benchmark.choice import choose; "
        "choose('cub', Path('data')); choose(None, Path('data'), names=['table2']); "
        "print(*{'PIL', 'scipy', 'sklearn', 'torch', 'timm', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
