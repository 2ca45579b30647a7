"""Presets: every row of the paper has one, with the paper's settings, and none changes without a new version."""

import hashlib
import json
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from sortal import datasets
from sortal.benchmark import published
from sortal.benchmark.presets import PRESETS, Preset, ad_hoc, listing, select
from sortal.config import (
    BACKBONE,
    CONVNET,
    LOSSES,
    TINY_CONTRAST,
    TINY_TRAINING,
    TRAININGS,
    Contrast,
    Distillation,
    MethodName,
    Ranks,
    Swaps,
    Training,
)
from sortal.errors import InputError

METHOD_8 = """
| | CIFAR-10 | CIFAR-100 | ImageNet-100 | CUB | Cars | Aircraft | Herbarium-19 |
|---|---|---|---|---|---|---|---|
| k-means | 83.6/85.7/82.5 | 52.0/52.2/50.8 | 72.7/75.5/71.3 | 34.3/38.9/32.1 | 12.8/10.6/13.8 | 16.0/14.4/16.8 | 12.9/12.9/12.8 |
| RankStats+ | 46.8/19.2/60.5 | 58.2/77.6/19.3 | 37.1/61.6/24.8 | 33.3/51.6/24.2 | 28.3/61.8/12.1 | 26.9/36.4/22.2 | 27.9/55.8/12.8 |
| UNO+ | 68.6/98.3/53.8 | 69.5/80.6/47.2 | 70.3/95.0/57.9 | 35.1/49.0/28.1 | 35.5/70.5/18.6 | 40.3/56.4/32.2 | 28.3/53.7/14.7 |
| GCD | 91.5/97.9/88.2 | 73.0/76.2/66.5 | 74.1/89.8/66.3 | 51.3/56.6/48.7 | 39.0/57.6/29.9 | 45.0/41.1/46.9 | 35.4/51.0/27.0 |
| SimGCD (5 runs) | 97.0/93.9/98.5 | 79.8/81.1/77.4 | 83.6/92.4/79.1 | 61.5/65.7/59.4 | 53.4/71.5/44.6 | 54.3/59.4/51.7 | 44.2/57.6/37.0 |
"""  # noqa: E501
METHOD_8_ABLATION = """\
ResNet-50 k-means 34.0/34.8/32.4 · 12.1/12.5/11.9; ViT 52.0/52.2/50.8 · 12.9/12.9/12.8; + unsupervised loss \
54.6/54.1/53.7 · 14.3/15.1/13.9; + supervised loss only 60.5/72.2/35.0 · 17.8/22.7/15.4; + both 71.1/78.3/56.6 · \
28.7/32.1/26.9; + semi-supervised k-means 73.0/76.2/66.5 · 35.4/51.0/27.0."""
METHOD_4 = """\
CIFAR-10 9 (10), CIFAR-100 100 (100), ImageNet-100 109 (100), CUB 231 (200), Cars 230 (196), Herbarium 520 (683)."""
NAMES = {
    "CIFAR-10": "cifar10",
    "CIFAR-100": "cifar100",
    "ImageNet-100": "imagenet100",
    "CUB": "cub",
    "Cars": "stanford_cars",
    "Aircraft": "fgvc_aircraft",
    "Herbarium-19": "herbarium19",
    "Herbarium": "herbarium19",
    "k-means": "kmeans",
    "RankStats+": "rankstats",
    "UNO+": "uno",
    "GCD": "gcd",
    "SimGCD (5 runs)": "simgcd",
}
TABLE_OF = {
    **dict.fromkeys(("cifar10", "cifar100", "imagenet100"), "table2"),
    **dict.fromkeys(("cub", "stanford_cars", "herbarium19"), "table3"),
    "fgvc_aircraft": "table6",
}

# What every preset was at its version. A recipe that changes is another recipe: figures made with the old one must
# not be taken for figures of the new one.
DIGESTS: dict[str, tuple[int, str]] = {
    "table2/cifar10/kmeans": (1, "add1670bc364"),
    "table2/cifar10/rankstats": (1, "cc55b98d4c9a"),
    "table2/cifar10/uno": (1, "6ffd512d59fe"),
    "table2/cifar10/gcd": (1, "73422e7a52b6"),
    "table2/cifar10/simgcd": (1, "4a84e9ffcb3d"),
    "table2/cifar100/kmeans": (1, "89e5f9098756"),
    "table2/cifar100/rankstats": (1, "86efdf3981e6"),
    "table2/cifar100/uno": (1, "37ed0690dcf5"),
    "table2/cifar100/gcd": (1, "ad2c03cfd00b"),
    "table2/cifar100/simgcd": (1, "4c63813aa5e2"),
    "table2/imagenet100/kmeans": (1, "c42d9d78d972"),
    "table2/imagenet100/rankstats": (1, "e1e771113b27"),
    "table2/imagenet100/uno": (1, "07f4c5daa388"),
    "table2/imagenet100/gcd": (1, "fe215905e708"),
    "table2/imagenet100/simgcd": (1, "dc6636b5d79c"),
    "table3/cub/kmeans": (1, "dfc936a4db44"),
    "table3/cub/rankstats": (1, "c6872c7fa1b3"),
    "table3/cub/uno": (1, "69c9d8d08a4e"),
    "table3/cub/gcd": (1, "74342503a08e"),
    "table3/cub/simgcd": (1, "d7a3e8d3c49e"),
    "table3/stanford_cars/kmeans": (1, "e25e939e53f1"),
    "table3/stanford_cars/rankstats": (1, "efcc4104e135"),
    "table3/stanford_cars/uno": (1, "3688ea16264c"),
    "table3/stanford_cars/gcd": (1, "fa7e943cb542"),
    "table3/stanford_cars/simgcd": (1, "dfbaca663817"),
    "table3/herbarium19/kmeans": (1, "e83f734e0c00"),
    "table3/herbarium19/rankstats": (1, "d6df1638f681"),
    "table3/herbarium19/uno": (1, "c61a9a0007be"),
    "table3/herbarium19/gcd": (1, "8dab0ff4d8d5"),
    "table3/herbarium19/simgcd": (1, "c8f3bc51fe0c"),
    "table4/cifar10": (1, "cb4411f2052b"),
    "table4/cifar100": (1, "981699bea93e"),
    "table4/imagenet100": (1, "5fb8273f0ccb"),
    "table4/cub": (1, "3218ece44f35"),
    "table4/stanford_cars": (1, "b7dbec1b7b99"),
    "table4/herbarium19": (1, "70a90c4cb66a"),
    "table5/cifar100/1": (1, "000bfede7436"),
    "table5/cifar100/2": (1, "89e5f9098756"),
    "table5/cifar100/3": (1, "3d7e54fb19d7"),
    "table5/cifar100/4": (1, "504188c37875"),
    "table5/cifar100/5": (1, "8c512b2b984e"),
    "table5/cifar100/6": (1, "ad2c03cfd00b"),
    "table5/herbarium19/1": (1, "5a5ed6739ec1"),
    "table5/herbarium19/2": (1, "e83f734e0c00"),
    "table5/herbarium19/3": (1, "1dc4bd2bafe9"),
    "table5/herbarium19/4": (1, "3a75095c9de6"),
    "table5/herbarium19/5": (1, "4af3dad33a5e"),
    "table5/herbarium19/6": (1, "8dab0ff4d8d5"),
    "table6/fgvc_aircraft/kmeans": (1, "b405bbd0776b"),
    "table6/fgvc_aircraft/rankstats": (1, "0027e1f42319"),
    "table6/fgvc_aircraft/uno": (1, "3f72e92561b3"),
    "table6/fgvc_aircraft/gcd": (1, "19250de0fbc3"),
    "table6/fgvc_aircraft/simgcd": (1, "504af013fc70"),
}


def triples(text: str) -> list[tuple[float, ...]]:
    return [tuple(map(float, three.split("/"))) for three in re.findall(r"\d+\.\d/\d+\.\d/\d+\.\d", text)]


def digest(preset: Preset) -> str:
    decides = [preset.dataset, preset.backbone, preset.weights, preset.k, preset.settings()]
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:12]


def test_no_recipe_changes_without_a_new_version() -> None:
    now = {name: (preset.version, digest(preset)) for name, preset in PRESETS.items()}
    changed = "\n".join(
        f'    "{name}": ({now[name][0]}, "{now[name][1]}"),' for name in now if now[name] != DIGESTS.get(name)
    )
    assert now == DIGESTS, (
        "Presets have changed. Where their results can change, raise the version of the method (VERSIONS in "
        "src/sortal/benchmark/presets.py), so that no table mixes old runs with new ones; where they cannot (a new "
        f"setting that changes nothing), leave it. Then put this into DIGESTS:\n{changed}"
    )


# The published figures


def test_the_published_accuracies_are_those_of_the_papers() -> None:
    header, _, *rows = ([cell.strip() for cell in row.split("|")[1:-1]] for row in METHOD_8.strip().splitlines())
    told = {
        NAMES[dataset]: {NAMES[row[0]]: triples(row[at])[0] for row in rows}
        for at, dataset in enumerate(header)
        if dataset
    }
    assert told == published.ACCURACY
    assert sum(map(len, told.values())) == 35


def test_the_published_ablation_is_that_of_the_paper() -> None:
    figures = triples(METHOD_8_ABLATION)
    told = {name: dict(enumerate(figures[first::2], start=1)) for first, name in enumerate(("cifar100", "herbarium19"))}
    assert told == published.ABLATION
    assert len(figures) == 12


def test_the_published_numbers_of_classes_are_those_of_the_paper() -> None:
    told = re.findall(r"([A-Z][\w-]+) (\d+) \((\d+)\)", METHOD_4)
    assert {NAMES[name]: (int(estimated), int(true)) for name, estimated, true in told} == published.K


def test_every_published_figure_has_a_preset_and_every_preset_a_figure() -> None:
    rows = [
        *(f"{TABLE_OF[dataset]}/{dataset}/{row}" for dataset, of in published.ACCURACY.items() for row in of),
        *(f"table4/{dataset}" for dataset in published.K),
        *(f"table5/{dataset}/{row}" for dataset, of in published.ABLATION.items() for row in of),
    ]
    assert sorted(rows) == sorted(PRESETS)
    assert published.of("table3/cub/gcd") == published.Published(accuracy=(51.3, 56.6, 48.7))
    assert published.of("table6/fgvc_aircraft/kmeans").accuracy == (16.0, 14.4, 16.8)
    assert published.of("table4/herbarium19") == published.Published(k=(520, 683))
    assert published.of("table5/cifar100/4").accuracy == (60.5, 72.2, 35.0)
    for name in PRESETS:
        found = published.of(name)
        assert (found.accuracy is None) == (found.k is not None) == name.startswith("table4/")


@pytest.mark.parametrize(
    "name", ["", "cub/gcd", "flowers55/gcd", "table4/cub/gcd", "table5/cub/1", "table5/cifar100/x"]
)
def test_nothing_was_published_under_other_names(name: str) -> None:
    assert published.of(name) == published.Published()


# The paper's settings


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_presets_are_whole(preset: Preset) -> None:
    table, dataset, *_ = preset.name.split("/")
    recipe, training = preset.recipe, preset.recipe.training
    assert PRESETS[preset.name] is preset
    assert preset.dataset == dataset in datasets.NAMES
    assert preset.version == 1
    assert preset.n_init == 100
    assert preset.weights is None
    assert preset.k == ("auto" if table == "table4" else "true")
    assert recipe.estimate_on == "raw"
    assert (training.epochs, training.batch_size, training.lr, training.momentum) == (200, 128, 0.1, 0.9)
    assert (training.views, training.flip, training.balanced, training.seed) == (None, True, True, 0)
    assert recipe.select == (recipe.method == "gcd")
    if table in ("table2", "table3", "table6"):
        assert preset.name.endswith(f"/{recipe.method}")
        expected = {"kmeans": "kmeans", "gcd": "semi-supervised"}.get(recipe.method, "head")
        assert recipe.clustering == expected
    if preset.name not in ("table5/cifar100/1", "table5/herbarium19/1"):
        assert (preset.backbone, preset.needs) == ("vit_base_patch16_224.dino", None)


@pytest.mark.parametrize("dataset", TABLE_OF)
def test_methods_have_their_papers_settings(dataset: str) -> None:
    """METHOD §2 and §6, written out."""

    def recipe(method: str) -> tuple[Any, Training]:
        found = PRESETS[f"{TABLE_OF[dataset]}/{dataset}/{method}"].recipe
        return found.losses, found.training

    losses, training = recipe("gcd")
    assert losses == Contrast(
        temperature=1.0,
        supervised_temperature=0.07,
        supervised_weight=0.35,
        hidden=2048,
        bottleneck=256,
        output="prototypes",
        prototypes=65_536,
    )
    assert (training.schedule, training.final_lr, training.warmup, training.weight_decay) == ("cosine", 1e-3, 0, 5e-5)

    losses, training = recipe("rankstats")
    consistency, ramp = (5, 50 / 200) if dataset == "cifar10" else (50, 150 / 200)
    assert losses == Ranks(top=5, consistency=consistency, ramp=ramp)
    assert (training.schedule, training.final_lr, training.drop_at * 200) == ("step", 0.1, 170)
    assert training.weight_decay == 1e-4

    losses, training = recipe("uno")
    assert losses == Swaps(temperature=0.1, epsilon=0.05, iterations=3, queue="auto", heads=1, overclustering=0)
    assert (training.schedule, training.warmup * 200, training.weight_decay) == ("cosine", 10, 1.5e-4)

    losses, training = recipe("simgcd")
    entropy = {
        "cifar10": 1,
        "cifar100": 4,
        "imagenet100": 1,
        "cub": 2,
        "stanford_cars": 1,
        "fgvc_aircraft": 1,
        "herbarium19": 1,
    }
    assert losses == Distillation(
        student_temperature=0.1,
        first_teacher_temperature=0.07,
        teacher_temperature=0.04,
        sharpening=30 / 200,
        entropy_weight=entropy[dataset],
        supervised_weight=0.35,
        temperature=1.0,
        supervised_temperature=0.07,
        hidden=2048,
        bottleneck=256,
    )
    assert (training.schedule, training.final_lr, training.warmup, training.weight_decay) == ("cosine", 1e-3, 0, 5e-5)

    assert recipe("kmeans")[0] is None


@pytest.mark.parametrize("dataset", ["cifar100", "herbarium19"])
def test_each_row_of_the_ablation_changes_one_thing(dataset: str) -> None:
    def row(number: int) -> tuple[str, str, float | None, str]:
        preset = PRESETS[f"table5/{dataset}/{number}"]
        losses = preset.recipe.losses
        assert losses is None or (isinstance(losses, Contrast) and losses.output == "prototypes")
        weight = None if losses is None else losses.supervised_weight
        return preset.backbone, preset.recipe.method, weight, preset.recipe.clustering

    vit = "vit_base_patch16_224.dino"
    assert row(1) == ("resnet50", "kmeans", None, "kmeans")
    assert row(2) == (vit, "kmeans", None, "kmeans")
    assert row(3) == (vit, "gcd", 0.0, "kmeans")
    assert row(4) == (vit, "gcd", 1.0, "kmeans")
    assert row(5) == (vit, "gcd", 0.35, "kmeans")
    assert row(6) == (vit, "gcd", 0.35, "semi-supervised")
    full, best = (PRESETS[name] for name in (f"table5/{dataset}/6", f"{TABLE_OF[dataset]}/{dataset}/gcd"))
    assert full.settings() == best.settings()  # one and the same, in two tables
    assert PRESETS[f"table5/{dataset}/1"].needs == ("dino_resnet50_pretrain.pth, from github.com/facebookresearch/dino")


def test_the_resnet_is_loaded_from_a_file_under_its_bare_name(tmp_path: Path) -> None:
    """No hub that timm knows has its weights, and no tag names them; without a file there would be others."""
    import timm
    import torch

    from sortal.backbone import load_backbone

    preset = PRESETS["table5/cifar100/1"]
    assert preset.needs is not None
    file = tmp_path / preset.needs.partition(",")[0]
    torch.save(timm.create_model(preset.backbone, num_classes=0).state_dict(), file)
    backbone = load_backbone(preset.backbone, weights=file)
    assert backbone.spec.width == 2048
    assert backbone.spec.mean == (0.485, 0.456, 0.406)
    assert backbone.source.startswith("dino_resnet50_pretrain.pth (sha256 ")
    assert not [tag for tag in timm.list_pretrained(f"{preset.backbone}.*") if "dino" in tag]


# Names


def names(text: str) -> list[str]:
    return [preset.name for preset in select(text)]


def test_a_name_or_the_beginning_of_one_selects() -> None:
    methods = ["kmeans", "rankstats", "uno", "gcd", "simgcd"]
    assert names("table3/cub/gcd") == ["table3/cub/gcd"]
    assert names("table2/cifar10") == names("table2/cifar10/") == [f"table2/cifar10/{each}" for each in methods]
    three = ("cifar10", "cifar100", "imagenet100")
    assert names("table2") == [f"table2/{dataset}/{method}" for dataset in three for method in methods]
    assert names("table4/cub") == ["table4/cub"]
    assert names("table5/herbarium19") == [f"table5/herbarium19/{row}" for row in range(1, 7)]
    assert names("table6") == names("table6/fgvc_aircraft")
    assert len(PRESETS) == 35 + 6 + 12
    assert [*PRESETS] == [name for number in range(2, 7) for name in names(f"table{number}")]


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ("table3/cubs/gcd", " Did you mean 'table3/cub/gcd', "),
        ("tabel2", " Did you mean 'table2', "),
        ("cub", " Did you mean 'table3/cub', 'table4/cub'?"),
        ("table2/cifar1", " Did you mean 'table2/cifar10', 'table2/cifar100', "),
        ("gcd", " Did you mean 'table2/cifar10/gcd', 'table2/cifar100/gcd', 'table2/imagenet100/gcd' and 4 more?"),
        ("zzz", ""),
        ("", ""),
        ("/", ""),
    ],
)
def test_other_names_are_refused_with_near_ones(asked: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        select(asked)
    message = str(caught.value)
    assert message.startswith(f"There is no preset {asked!r}.{hint}")
    assert message.endswith(" sortal benchmark presets lists them.")
    assert bool(hint) == ("Did you mean" in message)


def test_the_listing_has_every_preset() -> None:
    rows = listing()
    assert [row[0] for row in rows] == [*PRESETS]
    assert ("table3/cub/gcd", 1, "cub", "CUB-200-2011, GCD") in rows
    assert ("table5/cifar100/1", 1, "cifar100", "CIFAR-100, ResNet-50, k-means") in rows
    assert len({row[3] for row in rows}) == len(rows)


# What is no preset


@pytest.mark.parametrize(
    ("method", "clustering"),
    [("kmeans", "kmeans"), ("gcd", "semi-supervised"), ("rankstats", "head"), ("uno", "head"), ("simgcd", "head")],
)
def test_a_method_on_any_data_set_has_our_defaults(method: MethodName, clustering: str) -> None:
    preset = ad_hoc("flowers55", method)
    assert (preset.name, preset.version, preset.dataset) == (f"flowers55/{method}", None, "flowers55")
    assert (preset.backbone, preset.weights, preset.k, preset.n_init) == (BACKBONE, None, "true", 100)
    assert preset.needs is None
    recipe = preset.recipe
    assert recipe.training == TRAININGS[method]
    assert recipe.training.views == "auto"
    assert recipe.losses == (LOSSES[method]() if method in LOSSES else None)
    assert (recipe.method, recipe.clustering, recipe.estimate_on) == (method, clustering, "raw")
    assert recipe.select == (method == "gcd")


def test_what_is_given_is_taken() -> None:
    given = ad_hoc("folder", "gcd", 40, name="mine/gcd", backbone="resnet50", weights="file.pth", n_init=7)
    assert asdict(given) == {
        **asdict(ad_hoc("folder", "gcd")),
        "name": "mine/gcd",
        "backbone": "resnet50",
        "weights": "file.pth",
        "k": 40,
        "n_init": 7,
    }
    assert given.settings()["n_init"] == 7
    assert ad_hoc("cub", "gcd", "auto").k == "auto"
    assert ad_hoc("cub", "gcd").title == "CUB-200-2011, GCD"


def test_the_small_network_has_its_own_settings() -> None:
    recipe = ad_hoc("digits", "gcd", backbone=CONVNET).recipe
    assert (recipe.training, recipe.losses) == (TINY_TRAINING, TINY_CONTRAST)


@pytest.mark.parametrize("k", [0, -1, True, 2.5, "many", None])
def test_k_must_be_one(k: Any) -> None:
    with pytest.raises(InputError, match="k must be 'true', 'auto' or a whole number of at least 1, got"):
        ad_hoc("cub", "gcd", k)


def test_the_method_must_be_one() -> None:
    with pytest.raises(InputError, match="method must be"):
        ad_hoc("cub", "sorting")  # type: ignore[arg-type]


def test_settings_leave_out_the_seed_alone() -> None:
    preset = PRESETS["table3/cub/uno"]
    settings = preset.settings()
    whole = asdict(preset.recipe)
    assert whole["training"].pop("seed") == 0
    assert settings == {**whole, "n_init": 100}


def test_presets_records_and_tables_are_light() -> None:
    heavy = ("torch", "matplotlib", "scipy", "sklearn")
    code = f"import sys, sortal.benchmark.tables; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
