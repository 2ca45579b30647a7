"""Advice: every default that is chosen and every suggestion; what the user set stays."""

from dataclasses import asdict, replace
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortal.advice import SMALLER, contrast_for, notes, training_for
from sortal.config import AUTO, BACKBONE, CONVNET, TINY_CONTRAST, TINY_TRAINING, Contrast, Discovery, Training

PAPER = "Learning for 200 epochs: as in the paper."
NO_GPU = "Learning for 100 epochs: no GPU is in use; --epochs 200 is the paper's."
FEW_IMAGES = "Learning for 100 epochs: there are fewer than 2,000 images; --epochs 200 is the paper's."
TINY = "Most images are tiny: --backbone convnet learns from them alone, which may be better."
FASTER = f"No GPU is in use: --backbone {SMALLER} is about four times as fast."
BY_LOOKS = "No image is labelled: learning and clusters go by looks alone."

untimed = hypothesis.settings(deadline=None)
discoveries = st.builds(
    Discovery,
    method=st.sampled_from(["gcd", "kmeans"]),
    backbone=st.sampled_from([BACKBONE, CONVNET, SMALLER, "models/mine.json"]),
    epochs=st.just(AUTO) | st.integers(0, 500),
    views=st.sampled_from([AUTO, None, 2, 8]),
    seed=st.integers(0, 2**31 - 1),
)


def said(
    settings: Discovery, n_images: int = 5000, *, on_gpu: bool = True, tiny: bool = False, labelled: int = 10
) -> list[str]:
    training = training_for(settings, n_images, on_gpu=on_gpu)
    return notes(settings, training, mostly_tiny=tiny, labelled=labelled, on_gpu=on_gpu)


@pytest.mark.parametrize(
    ("backbone", "n_images", "on_gpu", "epochs"),
    [
        (BACKBONE, 2000, True, 200),
        (BACKBONE, 1999, True, 100),
        (BACKBONE, 2000, False, 100),
        (BACKBONE, 1999, False, 100),
        (SMALLER, 10**6, True, 200),
        (CONVNET, 10**6, True, 40),
        (CONVNET, 10, False, 40),
    ],
)
def test_how_long_to_learn(backbone: str, n_images: int, on_gpu: bool, epochs: int) -> None:
    assert training_for(Discovery(backbone=backbone), n_images, on_gpu=on_gpu).epochs == epochs


@untimed
@given(discoveries, st.integers(1, 10**6), st.booleans())
def test_what_the_user_set_stays(settings: Discovery, n_images: int, on_gpu: bool) -> None:
    before = asdict(settings)
    training = training_for(settings, n_images, on_gpu=on_gpu)
    assert asdict(settings) == before
    assert (training.views, training.seed) == (settings.views, settings.seed)
    if settings.epochs != AUTO:
        assert training.epochs == settings.epochs
    start = TINY_TRAINING if settings.backbone == CONVNET else Training()
    # All else suits the backbone.
    assert training == replace(start, epochs=training.epochs, views=training.views, seed=training.seed)


@untimed
@given(discoveries, st.integers(1, 10**4), st.booleans(), st.booleans(), st.integers(0, 2))
def test_a_suggestion_is_never_what_is_done_already(
    settings: Discovery, n_images: int, on_gpu: bool, tiny: bool, labelled: int
) -> None:
    told = said(settings, n_images, on_gpu=on_gpu, tiny=tiny, labelled=labelled)
    assert len(told) == len(set(told))
    assert not [text for text in told if f"--backbone {settings.backbone} " in text]
    assert bool([text for text in told if text.startswith("Learning for ")]) == (
        settings.epochs == AUTO and settings.method == "gcd" and settings.backbone != CONVNET
    )


@pytest.mark.parametrize(
    ("chosen", "options", "expected"),
    [
        ({}, {}, [PAPER]),
        ({}, {"n_images": 1999}, [FEW_IMAGES]),
        ({}, {"on_gpu": False}, [NO_GPU, FASTER]),
        ({}, {"on_gpu": False, "n_images": 5}, [NO_GPU, FASTER]),
        ({"epochs": 200}, {}, []),
        ({"epochs": 100}, {"on_gpu": False}, [FASTER]),
        ({"epochs": 0}, {"labelled": 0}, [BY_LOOKS]),
        ({}, {"tiny": True}, [PAPER, TINY]),
        ({}, {"tiny": True, "on_gpu": False}, [NO_GPU, TINY]),
        ({}, {"labelled": 0}, [PAPER, BY_LOOKS]),
        ({}, {"labelled": 0, "tiny": True, "on_gpu": False}, [NO_GPU, TINY, BY_LOOKS]),
        ({"backbone": SMALLER}, {"on_gpu": False}, [NO_GPU]),
        ({"backbone": CONVNET}, {"on_gpu": False, "tiny": True}, []),
        ({"backbone": CONVNET}, {"labelled": 0}, [BY_LOOKS]),
        ({"method": "kmeans"}, {"labelled": 0}, []),
        ({"method": "kmeans"}, {"on_gpu": False}, [FASTER]),
        ({"method": "kmeans"}, {"tiny": True}, []),  # a network that never learns has nothing to offer
        ({"method": "kmeans"}, {"tiny": True, "on_gpu": False}, [FASTER]),
    ],
)
def test_what_is_said(chosen: dict[str, Any], options: dict[str, Any], expected: list[str]) -> None:
    assert said(Discovery(**chosen), **options) == expected


def test_losses_go_with_the_backbone() -> None:
    assert contrast_for(Discovery()) == Contrast()
    assert contrast_for(Discovery(backbone=CONVNET)) == TINY_CONTRAST != Contrast()
