"""Presets: one for every row of the papers, with their settings; a change requires a new version."""

import hashlib
import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from sortal.config import (
    BACKBONE,
    BUILT_IN,
    CONVNET,
    ROBUST,
    TINY_CONTRAST,
    TINY_TRAINING,
    Contrast,
    Debiasing,
    Distillation,
    Ranks,
    Reciprocity,
)
from sortal.config.rivals import MeanShift, SelfExpertise
from sortal.errors import InputError
from sortal.images import datasets
from sortal.research.benchmark import published
from sortal.research.benchmark.presets import PRESETS, VERSIONS, ad_hoc, select

# As printed in the papers
ACCURACY = """
          cifar10        cifar100       imagenet100    cub            stanford_cars  fgvc_aircraft  herbarium19
kmeans    83.6/85.7/82.5 52.0/52.2/50.8 72.7/75.5/71.3 34.3/38.9/32.1 12.8/10.6/13.8 16.0/14.4/16.8 12.9/12.9/12.8
rankstats 46.8/19.2/60.5 58.2/77.6/19.3 37.1/61.6/24.8 33.3/51.6/24.2 28.3/61.8/12.1 26.9/36.4/22.2 27.9/55.8/12.8
uno       68.6/98.3/53.8 69.5/80.6/47.2 70.3/95.0/57.9 35.1/49.0/28.1 35.5/70.5/18.6 40.3/56.4/32.2 28.3/53.7/14.7
gcd       91.5/97.9/88.2 73.0/76.2/66.5 74.1/89.8/66.3 51.3/56.6/48.7 39.0/57.6/29.9 45.0/41.1/46.9 35.4/51.0/27.0
simgcd    97.0/93.9/98.5 79.8/81.1/77.4 83.6/92.4/79.1 61.5/65.7/59.4 53.4/71.5/44.6 54.3/59.4/51.7 44.2/57.6/37.0
"""
RIVALS = """
        cub            stanford_cars  fgvc_aircraft  cifar100       imagenet100    herbarium19
legogcd 63.8/71.9/59.8 57.3/75.7/48.4 55.0/61.5/51.7 81.8/81.4/82.5 86.3/94.5/82.1 45.1/57.4/38.4
debgcd  66.3/71.8/63.5 65.3/81.6/57.4 61.7/63.9/60.6 83.0/84.6/79.9 85.9/94.3/81.6 44.7/59.4/36.8
rlcd    70.0           64.9           60.6           83.4           86.9           46.4
cms     68.2/76.5/64.0 56.9/76.1/47.6 56.0/63.4/52.3 82.3/85.7/75.5 84.7/95.6/79.2 36.4/54.9/26.4
selex   73.6/75.3/72.8 58.5/75.6/50.3 57.1/64.7/53.3 82.3/85.3/76.3 83.1/93.6/77.8 39.6/54.9/31.3
"""
HYPERBOLIC = """
          cub            stanford_cars  fgvc_aircraft  cifar100       imagenet100
hyp-selex 79.8/75.8/81.8 62.9/80.0/54.7 65.9/67.3/65.1 82.4/85.1/77.0 86.8/94.6/82.8
"""
ABLATION = """
  cifar100       herbarium19
1 34.0/34.8/32.4 12.1/12.5/11.9
2 52.0/52.2/50.8 12.9/12.9/12.8
3 54.6/54.1/53.7 14.3/15.1/13.9
4 60.5/72.2/35.0 17.8/22.7/15.4
5 71.1/78.3/56.6 28.7/32.1/26.9
6 73.0/76.2/66.5 35.4/51.0/27.0
"""
NUMBERS = """
  cifar10 cifar100 imagenet100 cub     stanford_cars herbarium19
k 9/10    100/100  109/100     231/200 230/196       520/683
"""
# Digests of the presets of each method and its version: results of old and new recipes must not be mixed.
DIGESTS: dict[str, tuple[int, str]] = {
    "kmeans": (1, "0794c34c657e"),
    "rankstats": (1, "fc53487e48cd"),
    "uno": (1, "e4735bd1dcb3"),
    "gcd": (1, "29afc8bdd840"),
    "simgcd": (2, "3bfc08a0bdb4"),
    "sortal": (7, "1cac0e674cab"),
    "legogcd": (1, "af411688503d"),
    "rlcd": (1, "f9bdd9c5964b"),
    "debgcd": (1, "b5d20d93e354"),
    "cms": (2, "d845629cd1a0"),
    "selex": (2, "15ae9e80b4ac"),
}


def columns(text: str) -> dict[str, dict[str, tuple[float, ...]]]:
    """Parse a printed table into columns and rows."""
    header, *rows = (line.split() for line in text.strip().splitlines())
    return {
        heading: {row[0]: tuple(map(float, row[at].split("/"))) for row in rows}
        for at, heading in enumerate(header, start=1)
    }


def test_published_figures_match_the_papers() -> None:
    assert columns(ACCURACY) == published.ACCURACY
    assert columns(ABLATION) == published.ABLATION
    of_rivals = {
        dataset: {method: shares if len(shares) == 3 else (*shares, None, None) for method, shares in rows.items()}
        | columns(HYPERBOLIC).get(dataset, {})
        for dataset, rows in columns(RIVALS).items()
    }
    assert of_rivals == published.RIVAL_FIGURES
    assert columns(NUMBERS) == {name: {"k": k} for name, k in published.CLASS_COUNTS.items()}


def test_every_published_figure_has_a_preset_and_every_preset_but_our_own_a_figure() -> None:
    for name in PRESETS:
        if name.startswith("table4/"):
            assert name.removeprefix("table4/") in published.CLASS_COUNTS
        else:
            assert (published.accuracy(name) is None) == name.endswith("/sortal")
    of_paper = 6 * len(published.ACCURACY) + 6 * len(published.ABLATION) + len(published.CLASS_COUNTS)
    assert len(PRESETS) == of_paper + 5 * len(published.RIVAL_FIGURES) + 5 == 95
    assert published.accuracy("rivals/herbarium19/hyp-selex") is None
    assert published.accuracy("rivals/cub/rlcd") == (70.0, None, None)
    assert published.accuracy("table3/cub/gcd") == (51.3, 56.6, 48.7)
    assert published.accuracy("table6/fgvc_aircraft/kmeans") == (16.0, 14.4, 16.8)
    assert published.accuracy("table5/cifar100/4") == (60.5, 72.2, 35.0)


def test_no_recipe_changes_without_a_new_version() -> None:
    now = {}
    for method, version in VERSIONS.items():
        own = [preset for preset in PRESETS.values() if preset.recipe.method == method]
        assert {preset.version for preset in own} == {version}
        decides = [[each.name, each.dataset, each.backbone, each.weights, each.k, each.settings()] for each in own]
        now[method] = version, hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:12]
    assert now == DIGESTS, (
        "Presets have changed. If that can change their results, increment the method's version (VERSIONS in "
        "research/benchmark/presets.py), so that no table mixes old runs with new ones; if it cannot (a new setting "
        f"that has no effect), leave it. Then set DIGESTS to {now}."
    )


def test_recipes_differ_as_in_the_papers() -> None:
    """METHOD §6, and rows 3 and 4 of the ablation."""
    for name, preset in PRESETS.items():
        losses = preset.recipe.losses
        ours = preset.recipe.method == "sortal"
        larger = {"batch_size": 256, "lr": 0.2} if name == "rivals/cifar100/debgcd" else {}
        generic = preset.dataset in ("cifar100", "imagenet100")
        if isinstance(losses, MeanShift):
            assert losses.temperature == (0.3 if generic else 0.25)
            larger = {"lr": 0.01, "final_lr": 1e-3} if generic else {"lr": 0.05, "final_lr": 5e-3}
        if isinstance(losses, SelfExpertise):
            curved = name.endswith("/hyp-selex")
            assert (losses.curvature, losses.radius) == (0.1 if curved else 0, 2)
            half = curved and preset.dataset in ("stanford_cars", "fgvc_aircraft")
            assert losses.smoothing == (0.1 if generic else 0.5 if half else 1.0)
            assert losses.curved == (0.5 if curved and preset.dataset == "fgvc_aircraft" else 1)
        paper = replace(BUILT_IN[preset.recipe.method].training, views=None, **larger)  # type: ignore[arg-type]
        assert preset.recipe.training == (replace(paper, views="auto", **ROBUST) if ours else paper)
        assert preset.dataset == name.split("/")[1] in datasets.DATASET_NAMES
        if isinstance(losses, Contrast):
            assert losses.output == "prototypes"
            assert losses.supervised_weight == {"3": 0, "4": 1}.get(name[-1], 0.35)
        if isinstance(losses, Ranks):
            assert (losses.consistency, losses.ramp * 200) == ((5, 50) if "cifar10/" in name else (50, 150))
        if isinstance(losses, Distillation) and type(losses) in (Distillation, Debiasing):
            usual = 2 if name == "rivals/herbarium19/debgcd" else 1  # for which there is no script
            assert losses.entropy_weight == {"cifar100": 4, "cub": 2}.get(preset.dataset, usual)
        fine_grained = preset.dataset in ("cub", "stanford_cars", "fgvc_aircraft")
        assert preset.trained == (2 if name.endswith("debgcd") and fine_grained else None)
        if isinstance(losses, Reciprocity):
            assert (losses.block_rate == 0.1) == (preset.dataset in ("cub", "cifar100"))
            assert (losses.distinction_weight == 1) == (preset.dataset in ("stanford_cars", "herbarium19"))


def test_the_resnet_needs_a_weights_file() -> None:
    """timm has no DINO weights for it."""
    needs = {preset.needs for preset in PRESETS.values() if preset.backbone == "resnet50"}
    assert needs == {"dino_resnet50_pretrain.pth, from github.com/facebookresearch/dino"}
    assert all(preset.needs is None for preset in PRESETS.values() if preset.backbone == BACKBONE)


def test_presets_are_selected_by_name_or_prefix() -> None:
    def names(text: str) -> list[str]:
        return [preset.name for preset in select(text)]

    methods = ["kmeans", "rankstats", "uno", "gcd", "simgcd", "sortal"]
    assert names("table3/cub/gcd") == ["table3/cub/gcd"]
    assert names("table2/cifar10") == names("table2/cifar10/") == [f"table2/cifar10/{each}" for each in methods]
    three = ("cifar10", "cifar100", "imagenet100")
    assert names("table2") == [f"table2/{dataset}/{method}" for dataset in three for method in methods]
    assert names("table4/cub") == ["table4/cub"]
    assert names("table5/herbarium19") == [f"table5/herbarium19/{row}" for row in range(1, 7)]
    assert [*PRESETS] == [*(name for number in range(2, 7) for name in names(f"table{number}")), *names("rivals")]


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ("table3/cubs/gcd", " Did you mean 'table3/cub/gcd', "),
        ("tabel2", " Did you mean 'table2', "),
        ("cub", " Did you mean 'table3/cub', 'rivals/cub', 'table4/cub'?"),
        ("table2/cifar1", " Did you mean 'table2/cifar10', 'table2/cifar100', "),
        ("gcd", " Did you mean 'table2/cifar10/gcd', 'table2/cifar100/gcd', 'table2/imagenet100/gcd' and 4 more?"),
        ("zzz", ""),
        ("/", ""),
    ],
)
def test_unknown_names_are_refused_with_suggestions(asked: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        select(asked)
    message = str(caught.value)
    assert message.startswith(f"Unknown preset {asked!r}.{hint}")
    assert message.endswith(" List them with: sortal benchmark presets.")
    assert bool(hint) == ("Did you mean" in message)


def test_every_preset_has_its_own_title() -> None:
    assert PRESETS["table3/cub/gcd"].title == "CUB-200-2011, GCD"
    assert PRESETS["table5/cifar100/1"].title == "CIFAR-100, ResNet-50, k-means"
    assert len({preset.title for preset in PRESETS.values()}) == len(PRESETS)


@pytest.mark.parametrize("method", sorted(BUILT_IN))
def test_a_method_on_any_data_set_has_the_default_recipe(method: str) -> None:
    preset = ad_hoc("flowers55", method)
    assert (preset.name, preset.version, preset.dataset) == (f"flowers55/{method}", None, "flowers55")
    assert (preset.backbone, preset.weights, preset.k, preset.n_init) == (BACKBONE, None, "true", 100)
    recipe = preset.recipe
    assert recipe.training == replace(BUILT_IN[method].training, **ROBUST)
    assert recipe.losses == BUILT_IN[method].usual_losses()
    assert recipe.clustering == ("kmeans" if method == "kmeans" else BUILT_IN[method].clustering)
    estimate_on = "learned" if method == "sortal" else "raw"
    assert (recipe.method, recipe.estimate_on, recipe.select) == (method, estimate_on, method == "gcd")
    whole = asdict(recipe)
    assert whole["training"].pop("seed") == 0
    assert preset.settings() == {**whole, "n_init": 100}, "everything except the seed"


def test_options_replace_the_defaults() -> None:
    given: dict[str, Any] = {"name": "mine/gcd", "backbone": "resnet50"}
    assert asdict(ad_hoc("folder", "gcd", **given)) == {**asdict(ad_hoc("folder", "gcd")), **given}
    assert ad_hoc("cub", "gcd").title == "CUB-200-2011, GCD"
    recipe = ad_hoc("digits", "gcd", backbone=CONVNET).recipe
    assert (recipe.training, recipe.losses) == (TINY_TRAINING, TINY_CONTRAST), "the small network has its own"
