"""Defaults: every choice and every suggestion; explicit settings are never changed."""

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortal.config import (
    AUTO,
    BACKBONE,
    BUILT_IN,
    CONVNET,
    FASTER,
    LARGER,
    LIVE,
    METHODS,
    ROBUST,
    SMALLER,
    TINY_CONTRAST,
    TINY_DISTILLATION,
    TINY_ROUNDS,
    VECTORS,
    Contrast,
    Debiasing,
    Discovery,
    Distillation,
    Ranks,
    Reciprocity,
    Retention,
    Rounds,
    Swaps,
    registration_of,
)
from sortal.discovery.defaults import VECTOR_LOSSES, notes, recipe_for, resolved

CLASSIFYING = [name for name, of in BUILT_IN.items() if of.classifies]

PAPER = "Training for 200 epochs, as in the paper."
SHORT = (
    "Without a GPU, training is short: {} epochs on 4 views of each image{}. 8 views may sort better, and take longer."
)
OTHERS = (
    f"The backbone is {SMALLER}; {LARGER} may sort better, and takes about four times as long, and {FASTER} "
    "computes features in a fraction of it, and may sort worse."
)
FEW_IMAGES = "Training for 100 epochs, for fewer than 2,000 images (the paper: 200)."
TINY = "Most images are tiny; the backbone convnet, trained on them alone, may sort them better."
SLOW = f"No GPU is in use; the backbone {SMALLER} is several times as fast."
BY_LOOKS = "No image is labelled, so categories follow appearance alone."

# By the number of images: 150 for few, 80,000 images in all below 1,000, and 180,000 in 40 to 80 epochs above.
EPOCHS_BY_COUNT = {1: 150, 533: 150, 800: 100, 1000: 80, 1999: 80, 2000: 80, 3000: 60, 10**6: 40}
# Of Sortal's own method with a GPU: 600,000 images in all, in 40 to 200 epochs.
OWN_BY_COUNT = {1: 200, 533: 200, 800: 200, 1000: 200, 1999: 200, 2000: 200, 3000: 200, 5000: 120, 8189: 73, 10**6: 40}

untimed = hypothesis.settings(deadline=None)
NAMES = tuple(sorted(BUILT_IN))


@st.composite
def discoveries(draw: st.DrawFn) -> Discovery:
    method = draw(st.sampled_from(NAMES))
    return Discovery(
        method=method,
        backbone=draw(st.sampled_from([BACKBONE, CONVNET, SMALLER, "models/mine.json"])),
        epochs=draw(st.just(AUTO) | st.integers(1 if method in CLASSIFYING else 0, 500)),
        lr=draw(st.just(AUTO) | st.floats(1e-6, 10)),
        views=draw(st.sampled_from([AUTO, LIVE, 2, 8])),
        seed=draw(st.integers(0, 2**31 - 1)),
    )


def notes_for(
    settings: Discovery, n_images: int = 5000, *, on_gpu: bool = True, tiny: bool = False, labelled: int = 10
) -> list[str]:
    recipe = recipe_for(settings, n_images, on_gpu=on_gpu)
    return notes(settings, recipe, mostly_tiny=tiny, labelled=labelled, on_gpu=on_gpu)


@pytest.mark.parametrize(("n_images", "epochs"), OWN_BY_COUNT.items())
def test_the_epochs_of_our_method_with_a_gpu_follow_the_images(n_images: int, epochs: int) -> None:
    assert recipe_for(Discovery(backbone=BACKBONE), n_images, on_gpu=True).training.epochs == epochs


@untimed
@given(discoveries(), st.sampled_from([*EPOCHS_BY_COUNT]), st.booleans())
def test_explicit_settings_are_never_changed(settings: Discovery, n_images: int, on_gpu: bool) -> None:
    before = asdict(settings)
    recipe = recipe_for(settings, n_images, on_gpu=on_gpu)
    training = recipe.training
    assert asdict(settings) == before
    assert recipe.method == settings.method
    views: dict[Any, Any] = {LIVE: None, AUTO: AUTO if on_gpu or settings.backbone == CONVNET else 4}
    assert (training.views, training.seed) == (views.get(settings.views, settings.views), settings.seed)
    if settings.epochs != AUTO:
        assert training.epochs == settings.epochs
    elif settings.backbone == CONVNET:
        assert training.epochs == 40
    elif not on_gpu:
        assert training.epochs == EPOCHS_BY_COUNT[n_images]
    elif settings.method == "sortal":
        assert training.epochs == OWN_BY_COUNT[n_images]
    else:
        assert training.epochs == (200 if n_images >= 2000 else 100)
    if settings.lr != AUTO:
        assert training.lr == settings.lr
    # The rest suits the method, except for the schedule of the small network.
    usual, own = asdict(replace(BUILT_IN[settings.method].training, **ROBUST)), {"epochs", "views", "seed"}
    if settings.lr != AUTO or settings.backbone == CONVNET:
        own.add("lr")
    if not on_gpu and settings.method == "sortal" and settings.backbone != CONVNET:
        own.add("patches")
        assert training.patches == 0.25
    if settings.backbone == CONVNET:
        own |= {"flip", "precision"}
        assert (training.flip, training.precision) == (False, "float32")
        assert settings.lr != AUTO or training.lr == 0.05
    assert {name for name, value in asdict(training).items() if value != usual[name]} <= own


@pytest.mark.parametrize(
    ("method", "losses", "tiny", "clustering", "estimate_on"),
    [
        ("debgcd", Debiasing(), Debiasing(temperature=0.3, hidden=256), "head", "raw"),
        ("gcd", Contrast(), TINY_CONTRAST, "semi-supervised", "learned"),
        ("kmeans", None, None, "semi-supervised", "raw"),
        ("legogcd", Retention(), Retention(temperature=0.3, hidden=256), "head", "raw"),
        ("rankstats", Ranks(), Ranks(), "head", "raw"),
        ("rlcd", Reciprocity(), Reciprocity(), "head", "raw"),
        ("simgcd", Distillation(), TINY_DISTILLATION, "head", "raw"),
        ("sortal", Rounds(), TINY_ROUNDS, "semi-supervised", "learned"),
        ("uno", Swaps(), Swaps(), "head", "raw"),
    ],
)
@pytest.mark.parametrize("backbone", [BACKBONE, CONVNET])
def test_losses_and_clustering_follow_the_method_and_the_backbone(
    method: str, losses: Any, tiny: Any, clustering: str, estimate_on: str, backbone: str
) -> None:
    recipe = recipe_for(Discovery(method=method, backbone=backbone), 5000, on_gpu=True)
    assert recipe.losses == (tiny if backbone == CONVNET else losses)
    assert (recipe.clustering, recipe.estimate_on, recipe.select) == (clustering, estimate_on, False)
    assert recipe.learns is (method != "kmeans")
    assert recipe.neighbours == (8 if method == "sortal" else 0)


@dataclass(frozen=True, kw_only=True)
class Derived(Distillation):
    """Settings of a method from outside, with one more and one other default."""

    hidden: int = 64
    extra: float = 1.0


def test_derived_settings_suit_the_small_network_as_those_they_derive_from(monkeypatch: pytest.MonkeyPatch) -> None:
    of = replace(METHODS["simgcd"], name="derived", losses=Derived)
    monkeypatch.setitem(METHODS, "derived", of)
    recipe = recipe_for(Discovery(method="derived", backbone=CONVNET), 5000, on_gpu=True)
    assert recipe.losses == Derived(temperature=TINY_DISTILLATION.temperature), "but for defaults of its own"
    assert recipe_for(Discovery(method="derived"), 5000, on_gpu=True).losses == Derived()


@pytest.mark.parametrize(
    ("chosen", "options", "expected"),
    [
        ({"method": "gcd"}, {}, [PAPER]),
        ({"method": "gcd"}, {"n_images": 1999}, [FEW_IMAGES]),
        ({"method": "gcd"}, {"on_gpu": False}, [SHORT.format(40, ""), SLOW]),
        ({"method": "gcd", "epochs": 200}, {}, []),
        ({"method": "simgcd"}, {}, [PAPER]),
        ({}, {"on_gpu": False}, [SHORT.format(40, ""), SLOW]),
        ({}, {"on_gpu": False, "n_images": 1500}, [SHORT.format(80, ""), SLOW]),
        ({"epochs": 100}, {"on_gpu": False}, [SLOW]),
        ({"views": 4}, {"on_gpu": False}, [SLOW]),
        ({"epochs": 0}, {"labelled": 0}, [BY_LOOKS]),
        ({}, {"tiny": True}, [TINY]),
        ({}, {"labelled": 0, "tiny": True, "on_gpu": False}, [SHORT.format(40, ""), TINY, BY_LOOKS]),
        (
            {"method": "gcd", "backbone": SMALLER, "image_size": 168},
            {"on_gpu": False},
            [SHORT.format(40, ", of 168 pixels"), OTHERS],
        ),
        ({"backbone": CONVNET}, {"on_gpu": False, "tiny": True}, []),
        ({"backbone": CONVNET}, {"labelled": 0}, [BY_LOOKS]),
        ({"method": "kmeans"}, {"labelled": 0}, []),
        ({"method": "kmeans"}, {"tiny": True}, []),  # an untrained convnet would not help
        ({"backbone": LARGER, "method": "kmeans"}, {"on_gpu": False}, [SLOW]),
        ({"method": "kmeans"}, {"tiny": True, "on_gpu": False}, [SLOW]),
    ],
)
def test_notes_explain_choices_and_suggest_alternatives(
    chosen: dict[str, Any], options: dict[str, Any], expected: list[str]
) -> None:
    assert notes_for(Discovery(**{"backbone": BACKBONE, **chosen}), **options) == expected


def test_the_backbone_suits_the_machine() -> None:
    assert resolved(Discovery(), on_gpu=True).backbone == LARGER
    assert resolved(Discovery(), on_gpu=False).backbone == SMALLER
    assert resolved(Discovery(weights="w.safetensors"), on_gpu=False).backbone == BACKBONE
    assert resolved(Discovery(backbone=CONVNET), on_gpu=False) == Discovery(backbone=CONVNET)


def test_the_default_networks_see_smaller_images_without_a_gpu() -> None:
    def size(on_gpu: bool, **asked: Any) -> int | str:
        return resolved(Discovery(**asked), on_gpu=on_gpu).image_size

    for default in (AUTO, SMALLER, LARGER, "vit_small_patch14_dinov2"):
        assert (size(False, backbone=default), size(True, backbone=default)) == (168, AUTO)
        assert size(False, backbone=default, image_size=224) == 224
    for other in (CONVNET, FASTER, BACKBONE):
        assert size(False, backbone=other) == AUTO


def test_the_head_of_sortals_method_is_narrower_without_a_gpu_unless_it_is_asked_for() -> None:
    def hidden(on_gpu: bool, **settings: Any) -> int:
        losses: Any = recipe_for(Discovery(backbone=SMALLER, **settings), 100, on_gpu=on_gpu).losses
        return int(losses.hidden)

    assert (hidden(False), hidden(True)) == (512, 2048)
    assert (hidden(False, method="simgcd"), hidden(False, set=("losses.hidden=64",))) == (2048, 64)


@pytest.mark.parametrize("method", ["gcd", "simgcd", "sortal", "debgcd", "legogcd"])
def test_losses_on_features_suit_them_also_where_they_are_derived(method: str) -> None:
    settings = Discovery(method=method, backbone=VECTORS)
    found, usual = recipe_for(settings, 100, on_gpu=False).losses, registration_of(method).usual_losses()
    suited = next(each for each in VECTOR_LOSSES if isinstance(usual, type(each)))
    assert found == replace(usual, **{field.name: getattr(suited, field.name) for field in fields(suited)
                                      if getattr(usual, field.name) == field.default})  # fmt: skip
    assert found != usual
