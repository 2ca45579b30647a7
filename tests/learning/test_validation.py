"""Validation: the fraction of validation images that are nearest to the mean of their own class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as nnf
from sklearn.neighbors import NearestCentroid
from support.stores import Image, noise, store_of
from support.tiny_methods import Colours, double_precision
from support.tiny_run import LARGE, a_convnet, a_transformer, named, reordered

from sortal.images.image_set import ImageSet
from sortal.images.store.pixel_store import PixelStore
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.frozen import FrozenEncoder, KeptTokens
from sortal.learning.health import Validation
from sortal.system.device import Compute

CPU = torch.device("cpu")


def plain(*colours: tuple[int, int, int], side: int = 4) -> list[Image]:
    return [np.full((side, side, 3), colour, dtype=np.uint8) for colour in colours]


def validation(
    backbone: Backbone, images: ImageSet, store: PixelStore, *, keep: bool = False, bf16: bool = False
) -> Validation:
    return Validation(FrozenEncoder(backbone, Compute(CPU, bf16)), images, store, KeptTokens(2**30 if keep else 0))


RED, GREEN, BLUE, YELLOW = (200, 0, 0), (0, 200, 0), (0, 0, 200), (200, 200, 0)


def test_accuracy_by_hand() -> None:
    """Red and green are the means; a dark red is red, whatever its length, and yellow-green is green."""
    colours = [RED, GREEN, (40, 0, 0), (90, 200, 0), (200, 90, 0), GREEN]
    images = named(["red", "green", "red", "green", "green", "red"], held_out=[2, 3, 4, 5])
    assert validation(Colours(), images, store_of(plain(*colours))).accuracy() == 0.5


def test_class_means_are_of_normalised_rows() -> None:
    """Normalised, red and green have the mean (½, ½, 0), to which orange and lime are both nearer than to green.

    Otherwise the mean would be almost red, and lime nearer to green.
    """
    colours = [(250, 0, 0), (0, 10, 0), (0, 200, 0), (200, 140, 0), (140, 200, 0)]
    images = named(["mixed", "mixed", "green", "mixed", "mixed"], held_out=[3, 4])
    assert validation(Colours(), images, store_of(plain(*colours))).accuracy() == 1.0


def test_only_labelled_images_and_validation_images_of_their_classes_count() -> None:
    colours = [RED, GREEN, BLUE, (150, 40, 0), BLUE, RED]
    images = named(["red", "green", None, "red", "blue", "green"], held_out=[3, 4, 5])  # no labelled blue
    counted = validation(Colours(), images, store_of(plain(*colours)))
    assert counted.table.rows.tolist() == [0, 1, 3, 5]
    assert counted.accuracy() == 0.5


def labelled(n: int, classes: int, seed: int) -> ImageSet:
    """Make images of which every class has labelled and validation images, and some are unlabelled."""
    generator = np.random.default_rng(seed)
    kinds = generator.integers(0, classes, size=n)
    kinds[: 2 * classes] = np.tile(np.arange(classes), 2)
    labels = [None if at >= 2 * classes and generator.random() < 0.3 else f"class {k}" for at, k in enumerate(kinds)]
    held_out = [
        at for at, label in enumerate(labels) if label is not None and at >= classes and generator.random() < 0.6
    ]
    return named(labels, held_out)


def by_scikit_learn(backbone: Backbone, images: ImageSet, pixels: Sequence[Image]) -> float:
    size = backbone.spec.image_size
    views = []
    for picture in pixels:
        top, left = (round((side - size) / 2) for side in picture.shape[:2])
        views.append(torch.from_numpy(picture[top : top + size, left : left + size]).permute(2, 0, 1) / 255)
    mean, std = (torch.tensor(values)[:, None, None] for values in (backbone.spec.mean, backbone.spec.std))
    with torch.no_grad():
        x = nnf.normalize(backbone((torch.stack(views) - mean) / std), dim=1).numpy()
    fitted = NearestCentroid().fit(x[images.labelled], images.labels[images.labelled])
    return float((fitted.predict(x[images.validation]) == images.labels[images.validation]).mean())


@double_precision()
@pytest.mark.parametrize(("make", "piece"), [(a_convnet, 1), (a_convnet, 256), (a_transformer, 7)])
def test_accuracy_matches_scikit_learns_nearest_centroid(
    monkeypatch: pytest.MonkeyPatch, make: Any, piece: int
) -> None:
    """For any order and batch size, with cached tokens when the weights change, and without changing the weights.

    In float64, as the features of noise are so close that rounding could decide which mean is nearest.
    """
    monkeypatch.setattr("sortal.learning.frozen.CROPS_AT_ONCE", piece)
    backbone = make().backbone
    images, pixels = labelled(40, 3, 0), noise(40, backbone.spec.image_size)
    order = np.random.default_rng(0).permutation(40).tolist()
    shuffled = reordered(images, order), store_of([pixels[row] for row in order])
    counted = [validation(backbone, images, store_of(pixels), keep=keep) for keep in (True, False)]
    counted.append(validation(backbone, *shuffled))
    seen = set()
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for value in backbone.parameters():
                if value.requires_grad:
                    value.add_(torch.randn(value.shape, generator=generator), alpha=0.3)
        before = {name: value.clone() for name, value in backbone.state_dict().items()}
        wanted = by_scikit_learn(backbone, images, pixels)
        assert [each.accuracy() for each in counted] == pytest.approx([wanted] * 3, abs=1e-6)
        assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())
        assert all(value.grad is None for value in backbone.parameters())
        seen.add(wanted)
    assert len(seen) > 1


def test_caching_tokens_does_not_change_the_accuracy_by_rounding() -> None:
    """Otherwise the selected epoch would depend on the free memory.

    Greens of 100, 101.6 and 100.83 are 201, 204 and 202 steps of bfloat16: rounded, the last is nearer to the first.
    """
    picture = np.zeros((10, 10, 3), dtype=np.uint8)
    picture[..., 0] = 200
    first, second, between = picture.copy(), picture.copy(), picture.copy()
    for image, green, more in ((first, 100, 0), (second, 101, 60), (between, 100, 83)):
        image[..., 1] = green
        image.reshape(100, 3)[:more, 1] += 1
    images = named(["first", "second", "second"], held_out=[2])
    numbers = []
    for keep in (False, True):
        backbone = Colours()
        backbone.spec = replace(backbone.spec, image_size=10, shorter_side=10)
        counted = validation(backbone, images, store_of([first, second, between]), keep=keep)
        numbers += [counted.accuracy(), counted.accuracy()]
    assert numbers == [1.0] * 4


def test_the_trunk_runs_once_if_tokens_are_cached() -> None:
    images, store = named(["red", "green", "red"], held_out=[2]), store_of(plain(RED, GREEN, RED))
    for keep, calls in ((True, [1, 1, 1]), (False, [1, 2, 3])):
        backbone = Colours()
        counted = validation(backbone, images, store, keep=keep)
        seen = []
        for _ in range(3):
            assert counted.accuracy() == 1.0
            seen.append(backbone.calls)
        assert seen == calls


def test_half_precision_is_close_enough_to_select_by() -> None:
    """Colours this far apart are not confused."""
    backbone = a_transformer().backbone
    colours = [RED, GREEN, BLUE, YELLOW] * 3
    images = named(["r", "g", "b", "y"] * 3, held_out=range(4, 12))
    store = store_of(plain(*colours, side=LARGE))
    for keep in (False, True):
        assert validation(backbone, images, store, keep=keep, bf16=True).accuracy() == 1.0
