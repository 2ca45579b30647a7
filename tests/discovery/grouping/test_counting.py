"""Counting categories: distributions over k by hand, and what separation, sizes and hidden labels make of clusters."""

from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support import tiny_folder as tiny
from support.runtimes import CPU

from sortal.config import Discovery
from sortal.discovery import defaults
from sortal.discovery.grouping import counting, shared_kmeans
from sortal.discovery.grouping.choose_k import recounted_k
from sortal.discovery.grouping.clusters import rows_of
from sortal.discovery.grouping.counting import (
    HIDDEN_WEIGHT,
    MOST_WORSE,
    SIZES_DIFFER,
    WORSE_TRAINED,
    Evidence,
    KDistribution,
    Pilot,
    count_again,
    count_first,
    hidden_classes,
    separation_scores,
)
from sortal.discovery.job import Job
from sortal.images.image_set import ImageSet, image_set
from sortal.runs.confidence import Features, Ints
from sortal.runs.facts import Trial
from sortal.system.distributed import alone


def distribution(ks: tuple[int, ...], scores: tuple[float, ...]) -> KDistribution:
    return KDistribution(1, ks, scores, separations=scores)


# Distributions over k


@pytest.mark.parametrize(
    ("ks", "scores", "weights", "k", "interval"),
    [
        ((7,), (-3.0,), [1.0], 7, (7, 7)),
        ((4, 8, 16), (0.0, 0.0, 0.0), [0.25, 0.5, 0.25], 8, (4, 16)),  # the outer ones have half an interval
        ((4, 8, 16), (log(2), 0.0, -99.0), [0.5, 0.5, 0.0], 6, (4, 8)),  # the mean of logarithms: 4 · √2
        ((4, 8, 16), (-99.0, 0.0, -99.0), [0.0, 1.0, 0.0], 8, (8, 8)),
        ((2, 4, 16), (0.0, 0.0, 0.0), [1 / 6, 1 / 2, 1 / 3], 6, (2, 16)),  # 2 to the 1/6 + 1 + 4/3
        ((4, 16), (0.0, 0.0), [0.5, 0.5], 8, (4, 16)),  # k was not tried itself
        ((1, 2, 4), (5.0, 5.0, 5.0 - 99.0), [1 / 3, 2 / 3, 0.0], 2, (1, 2)),
    ],
)
def test_k_is_the_mean_on_a_log_scale_and_the_interval_has_most_of_the_distribution(
    ks: tuple[int, ...], scores: tuple[float, ...], weights: list[float], k: int, interval: tuple[int, int]
) -> None:
    found = distribution(ks, scores)
    np.testing.assert_allclose(found.weights, weights, rtol=0, atol=1e-12)
    assert (found.k, found.interval) == (k, interval)


distributions = st.lists(st.tuples(st.integers(1, 2000), st.floats(-50, 50)), min_size=1, max_size=30).map(
    lambda pairs: distribution(*zip(*sorted(dict(pairs).items()), strict=True))
)


@given(distributions, st.floats(-50, 50))
def test_distributions_keep_to_what_was_tried(found: KDistribution, constant: float) -> None:
    low, high = found.interval
    assert found.ks[0] <= low <= found.k <= high <= found.ks[-1]
    assert found.weights.sum() == pytest.approx(1)
    shifted = replace(found, scores=tuple(each + constant for each in found.scores))
    np.testing.assert_allclose(shifted.weights, found.weights, atol=1e-9)


@given(distributions)
def test_scores_between_ks_are_interpolated(found: KDistribution) -> None:
    for k, score in zip(found.ks, found.scores, strict=True):
        assert found.score_of(k) == pytest.approx(score)
        assert found.separation_of(k) == pytest.approx(score)
    for k in range(1, 2001, 97):
        assert min(found.scores) - 1e-9 <= found.score_of(k) <= max(found.scores) + 1e-9


def test_scores_are_interpolated_over_log_k() -> None:
    found = KDistribution(1, (4, 16), (-2.0, 0.0), (0.1, 0.3))
    assert [found.score_of(k) for k in (2, 4, 8, 16, 99)] == pytest.approx([-2, -2, -1, 0, 0])
    assert found.separation_of(8) == pytest.approx(0.2)


def test_a_share_of_the_best_separation_is_one_standard_deviation() -> None:
    assert separation_scores([0.5, 0.47, 0.44], 0.06) == pytest.approx([0, -0.5, -2])
    assert separation_scores([-0.5, -0.53], 0.06) == pytest.approx([0, -0.5])
    assert separation_scores([0.0, -0.003], 0.06) == pytest.approx([0, -0.5])  # of at least 0.05
    assert separation_scores([0.9, 0.85], 0.5) == pytest.approx([0, -0.5])  # at most 0.05


# Scores of evidence


def evidence(k: int, **changes: Any) -> Evidence:
    same = Evidence(k=k, separation=0.5, smoothed=0.5, known_size=2.0, known_spread=0.0, new_size=2.0)
    return replace(same, **changes)


def test_each_kind_of_evidence_lowers_the_score_of_a_k_by_itself() -> None:
    found = [
        evidence(6, agreement=0.9),
        evidence(7, agreement=0.9, separation=0.5 - MOST_WORSE),
        evidence(8, agreement=0.9, new_size=2 - SIZES_DIFFER),  # by as much as they differ anyway
        evidence(9, agreement=0.9, known_spread=SIZES_DIFFER, new_size=2 - SIZES_DIFFER),  # means of three and six
        evidence(10, agreement=0.9, new_size=2 + 3 * SIZES_DIFFER),  # larger ones say less
        evidence(11, agreement=0.4),
        evidence(12, agreement=-0.2),
    ]
    smaller, larger = -1 / (1 / 3 + 1 / 6 + 1) / 2, -log(10) / 2
    agreement = [2 * HIDDEN_WEIGHT * log(share) for share in (0.5, 0.1)]
    expected = [0, -0.5, -0.5, smaller, larger, *agreement]
    assert counting._scores(found, hidden=2, known=3) == pytest.approx(expected)
    assert counting._scores(found, hidden=0, known=3) == pytest.approx([*expected[:5], 0, 0])
    alone = -((MOST_WORSE / (0.5 * WORSE_TRAINED)) ** 2) / 2
    assert counting._scores(found, hidden=0, known=1) == pytest.approx([0, alone, *[0] * 5]), "one size is none"


def test_without_a_new_category_sizes_are_those_of_the_next_k() -> None:
    found = [evidence(3, new_size=None), evidence(4, new_size=2 - SIZES_DIFFER), evidence(5)]
    assert counting._scores(found, hidden=0, known=3) == pytest.approx([-0.5, -0.5, 0])
    assert counting._scores(found[:1], hidden=0, known=3) == [0]


@pytest.mark.parametrize(
    ("clusters", "found"),
    [
        ([0, 0, 0, 1, 2, 2, 2, 2, 3, 3, 3, 3], 3),
        ([0, 0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3], 2),  # one is cut into halves
        ([0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2], 1),  # two are merged
        ([2, 0, 0, 0, 2, 2, 2, 2, 2, 2, 3, 3], 2),  # four of seven are most
        ([2, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 3], 1),  # four of eight are not
    ],
)
def test_a_hidden_class_is_found_if_one_cluster_is_mostly_it(clusters: list[int], found: int) -> None:
    assert counting._classes_found(np.repeat([3, 5, 8], 4), np.array(clusters), 4) == found


# Hidden classes


def labelled_as(labels: Ints) -> ImageSet:
    names = [None if label < 0 else f"c{label:02}" for label in labels.tolist()]
    pixels = np.zeros((len(labels), 8, 8, 3), np.uint8)
    return image_set([f"{at}.png" for at in range(len(labels))], pixels=pixels, labels=names)


@pytest.mark.parametrize(("known", "hidden"), [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (12, 4)])
def test_a_third_of_three_or_more_known_classes_is_hidden(known: int, hidden: int) -> None:
    images = labelled_as(np.repeat(np.arange(-1, known), 3))
    found = hidden_classes(images, 0)
    assert len(found) == len(set(found.tolist())) == hidden
    assert set(found.tolist()) <= set(images.known.tolist())
    np.testing.assert_array_equal(hidden_classes(images, 0), found)


def test_other_seeds_hide_other_classes_and_none_with_a_single_label() -> None:
    images = labelled_as(np.concatenate([np.arange(12), np.repeat([2, 3, 5, 7, 11], 2)]))
    drawn = {tuple(hidden_classes(images, seed).tolist()) for seed in range(40)}
    assert drawn == {(2, 3, 5, 7), (2, 3, 5, 11), (2, 3, 7, 11), (2, 5, 7, 11), (3, 5, 7, 11)}
    few = labelled_as(np.array([0, 1, 2, 2, 3, 4]))
    assert hidden_classes(few, 0).tolist() == [2]


# Counting


def job_on(images: ImageSet, place: Path, **settings: Any) -> Job:
    asked = Discovery(method="sortal", backbone="convnet", epochs=4, **{"k_max": 60, **settings})
    recipe = defaults.recipe_for(asked, len(images), on_gpu=False)
    return Job(images=images, settings=asked, recipe=recipe, place=place, runtime=CPU, processes=alone("cpu"))


def blobs(centres: NDArray[np.float64], each: int, noise: float) -> Features:
    x = np.repeat(centres, each, axis=0)
    x = x + np.random.default_rng(0).normal(0, noise, x.shape)
    rows: Features = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    return rows


def first_count(place: Path, x: Features, labels: Ints, *, hide: bool = True) -> KDistribution:
    images = labelled_as(labels)
    job = job_on(images, place)
    hidden = hidden_classes(images, 0)
    bounds = (max(len(images.known), 1), 60)
    rows = rows_of(job, x)
    return count_first(job, rows, images, bounds, CPU, pilot=Pilot(rows, hidden) if hide and len(hidden) else None)


def half_known(truth: Ints) -> Ints:
    """Label every second image of the first half of the classes."""
    return np.where((truth <= truth.max() // 2) & (np.arange(len(truth)) % 2 == 0), truth, -1)


@pytest.mark.parametrize("hide", [True, False])
def test_clear_classes_are_counted(hide: bool, tmp_path: Path) -> None:
    x, truth = blobs(np.eye(32)[:12], 16, 0.08), np.repeat(np.arange(12), 16)
    found = first_count(tmp_path, x, half_known(truth), hide=hide)
    low, high = found.interval
    assert low <= 12 <= high <= 24
    assert abs(found.k - 12) <= 1
    assert found.known == 6
    assert found.ks[0] == 6
    assert found.trial == (Trial(2, 2) if hide else None)


def pairs(apart: float) -> tuple[Features, Ints]:
    """Eight pairs of blobs: classes of their own, or halves of one."""
    centres = np.repeat(np.eye(64)[:8], 2, axis=0) + apart * np.eye(64)[16:32]
    return blobs(centres, 16, 0.08), np.repeat(np.arange(16), 16)


def test_labels_say_how_finely_to_cut(tmp_path: Path) -> None:
    """Separation alone leaves the choice open."""
    x, fine = pairs(0.8)
    bare = first_count(tmp_path, x, np.full(len(x), -1))
    by_fine, by_coarse = (first_count(tmp_path, x, half_known(truth)) for truth in (fine, fine // 2))
    assert min(bare.score_of(8), bare.score_of(16)) > max(bare.scores) - 1
    assert by_coarse.interval[1] < 16
    assert by_fine.interval[0] > 8
    assert by_fine.interval[1] >= 16
    assert abs(by_coarse.k - 8) <= 1
    assert by_fine.k >= 12, "nearer to 16 than to 8, on a log scale"


def test_nothing_is_clustered_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, truth = blobs(np.eye(16)[:6], 10, 0.08), np.repeat(np.arange(6), 10)
    images = labelled_as(half_known(truth))
    job = job_on(images, tmp_path)
    first = first_count(tmp_path, x, images.labels)
    again = count_again(job, rows_of(job, x), images, first, CPU, also=9)
    monkeypatch.setattr(shared_kmeans, "fit_each", tiny.never)
    assert first_count(tmp_path, x, images.labels) == first
    assert count_again(job, rows_of(job, x), images, first, CPU, also=9) == again
    with pytest.raises(AssertionError, match="done before"):
        count_again(job, rows_of(job, x), images, first, CPU, also=10)


def test_a_later_count_is_what_was_counted_times_how_features_separate_now(tmp_path: Path) -> None:
    x, truth = blobs(np.eye(32)[:12], 10, 0.08), np.repeat(np.arange(12), 10)
    images = labelled_as(half_known(truth))
    job = job_on(images, tmp_path)
    before = replace(distribution((6, 8, 12, 20), (-3.0, 0.0, 0.0, -3.0)), known=6, trial=Trial(2, 1))
    found = count_again(job, rows_of(job, x), images, before, CPU, also=30)
    assert before.interval == (8, 12)
    assert found.ks == (7, 8, 9, 10, 11, 12, 13, 30), "a tenth below and above"
    now = separation_scores(found.separations)
    assert found.scores == pytest.approx([before.score_of(k) + each for k, each in zip(found.ks, now, strict=True)])
    assert found.k == 12
    assert found.k != before.k
    assert (found.known, found.trial) == (6, Trial(2, 1))


def test_the_last_count_tries_all_that_is_likely_and_reports_a_narrower_range(tmp_path: Path) -> None:
    x, truth = blobs(np.eye(32)[:12], 10, 0.08), np.repeat(np.arange(12), 10)
    images = labelled_as(half_known(truth))
    job = job_on(images, tmp_path)
    before = replace(distribution((6, 12, 24), (0.0, 0.0, 0.0)), known=6, trial=Trial(2, 1))
    assert before.interval == (6, 24)
    found = recounted_k(job, rows_of(job, x), images, before, CPU)
    assert {6, 24} <= {each.k for each in found.curve}
    assert (found.k, found.interval, found.trial) == (12, (8, 16), Trial(2, 1)), "12 / √2 and 12 · √2, rounded, 8 · 2"


@pytest.mark.parametrize("likely", [3, 20, 150, 900])
def test_judging_several_ks_ahead_tries_the_same(likely: int) -> None:
    def judge(ks: list[int]) -> list[Evidence]:
        return [evidence(k, separation=-abs(log(k / likely))) for k in ks]

    def score(found: list[Evidence]) -> list[float]:
        return [9 * each.separation for each in found]

    noted = list[int]()
    one, eight = (counting._search(judge, score, (3, 900), ahead, noted.append) for ahead in (1, 8))
    assert [each.k for each in one] == [each.k for each in eight]
    assert max(noted) == len(one) <= counting.MOST_TRIED
    assert abs(log(max(one, key=lambda each: each.separation).k / likely)) < log(counting.NARROW_STEP)
