"""Images that fit nowhere: planted ones are found, loose classes are not, and a slow implementation agrees."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from support.planted import planted, unit
from support.runtimes import CPU

from sortal.discovery.grouping.outliers import (
    FEWEST_IMAGES,
    GAP_NEIGHBOURS,
    GAPS_AROUND,
    MOST_OVERALL,
    OTHER_ABOVE,
    apartness,
)
from sortal.system.distributed import alone

ALONE = alone(CPU.device)
Features = NDArray[np.float32]


def slowly(x: Features) -> NDArray[np.float64]:
    """The definition, image by image, in double precision."""
    rows = x.astype(np.float64)
    distance = np.linalg.norm(rows[:, None] - rows[None], axis=2)
    np.fill_diagonal(distance, np.inf)
    near = np.argsort(distance, axis=1)[:, :GAPS_AROUND]
    gap = np.log([own[others[:GAP_NEIGHBOURS]].mean() for own, others in zip(distance, near, strict=True)])
    middles = np.sort(gap[near], axis=1)[:, (GAPS_AROUND - 1) // 2]  # the lower of two
    scores = []
    for values in (gap, gap - middles):
        middle = np.sort(values)[(len(values) - 1) // 2]
        away = np.sort(np.abs(values - middle))[(len(values) - 1) // 2]
        scores.append((values - middle) / (1.4826 * away))
    found: NDArray[np.float64] = (np.minimum(scores[0], MOST_OVERALL) + scores[1]) / 2
    return found


def strange(count: int, *, d: int = 16, seed: int = 9) -> Features:
    return unit(np.random.default_rng(seed).normal(size=(count, d)))


def test_apartness_is_as_defined() -> None:
    x = np.concatenate([planted([40, 60, 20], noise=0.3)[0], strange(5)])
    # A distance of 0.1 is rounded by less than 1e-6 and its logarithm by 1e-5, of which a spread of 0.1 makes 1e-4.
    np.testing.assert_allclose(apartness(x, ALONE), slowly(x), atol=1e-3)


def test_images_unlike_all_others_are_found_and_loose_classes_are_not() -> None:
    tight, loose = planted([80, 80], noise=0.25)[0], planted([0, 0, 30], noise=0.6)[0]
    x = np.concatenate([tight, loose, strange(6)])
    other = apartness(x, ALONE) > OTHER_ABOVE
    assert other[-6:].all()
    assert other[:-6].mean() < 0.02


def test_new_images_are_compared_with_a_collection_and_not_with_each_other() -> None:
    x, of = planted([60, 60, 60], noise=0.3)
    held = np.arange(len(x)) % 6 == 0
    crowd = np.concatenate([strange(1), strange(1), strange(1), strange(1), strange(1), strange(1)])  # alike
    found = apartness(np.concatenate([x[held], crowd]), ALONE, reference=x[~held])
    assert (found[-6:] > OTHER_ABOVE).all()
    assert (found[:-6] > OTHER_ABOVE).mean() < 0.05
    assert apartness(x[:0], ALONE, reference=x).shape == (0,)
    assert len({*of[held].tolist()}) == 3


def test_an_image_of_the_collection_is_as_far_apart_when_it_is_seen_again() -> None:
    x = np.concatenate([planted([50, 50], noise=0.3)[0], strange(4)])
    read_only = x.copy()
    read_only.flags.writeable = False
    np.testing.assert_allclose(apartness(x, ALONE, reference=read_only), apartness(x, ALONE), atol=1e-3)


def test_in_a_small_collection_nothing_is_unusual() -> None:
    x = np.concatenate([planted([FEWEST_IMAGES - 2], noise=0.1)[0], strange(1)])
    assert not apartness(x, ALONE).any()
    assert not apartness(strange(2), ALONE, reference=x).any()
    assert apartness(np.concatenate([x, x[:1]]), ALONE)[-2] > OTHER_ABOVE


def test_collections_of_equal_images_are_finite() -> None:
    x = np.repeat(strange(1), 40, axis=0)
    assert not apartness(x, ALONE).any()
    assert np.isfinite(apartness(strange(3, seed=1), ALONE, reference=x)).all()
