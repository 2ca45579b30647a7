"""Repeated clustering: planted clusters that are stable, split or overlap, and the confidence that follows."""

import numpy as np
import pytest
from numpy.typing import NDArray
from support.thorough import thorough_but

from sortal import metrics
from sortal.clustering.kmeans import SemiSupervisedKMeans
from sortal.discovery.grouping import stability
from sortal.discovery.results import add_to_means
from sortal.runs.confidence import Features, Floats, calibrate, place
from sortal.runs.evaluation import calibration_error
from sortal.system.distributed import alone

Labels = NDArray[np.int64]


def planted(n: int, spread: list[float], *, d: int = 12, seed: int = 0) -> tuple[Features, Labels]:
    """Draw n points of each class, which has its own spread around a random centre, in random order."""
    draw = np.random.default_rng(seed)
    centres, truth = draw.normal(size=(len(spread), d)), draw.permutation(np.repeat(np.arange(len(spread)), n))
    noise = np.array(spread)[truth, None] * draw.normal(size=(len(truth), d))
    return (centres[truth] + noise).astype(np.float32), truth


def cluster_again(x: Features, labels: Labels, clusters: Labels, k: int) -> Floats | None:
    return stability.cluster_again(x, labels, clusters, k, order=np.arange(len(x)), seed=0, processes=alone("cpu"))


def clustered(x: Features, labels: Labels, k: int) -> Labels:
    found: Labels = SemiSupervisedKMeans(k, n_init=10, random_state=0, device="cpu").fit(x, labels).labels_
    return found


def test_separate_clusters_are_stable_and_the_parts_of_a_split_one_are_not() -> None:
    x, truth = planted(60, [0.1] * 4)
    labels = np.where((truth < 2) & (np.arange(240) % 2 == 0), truth, -1)
    for k, stable in ((4, [0, 1, 2, 3]), (5, [0, 1])):
        clusters = clustered(x, labels, k)
        found = cluster_again(x, labels, clusters, k)
        assert found is not None
        np.testing.assert_array_equal(np.isnan(found), labels >= 0)
        kept, of = found[labels < 0], truth[labels < 0]
        assert (kept[np.isin(of, stable)] == 1).all()
        assert k == 4 or kept[~np.isin(of, stable)].mean() < 0.95


def test_too_few_images_cannot_be_clustered_again() -> None:
    x = np.arange(6, dtype=np.float32)[:, None]
    labels = np.array([0, 1, -1, -1, -1, -1])
    for k, few in ((4, False), (5, True)):
        assert (cluster_again(x, labels, np.arange(6) % k, k) is None) is few
    assert cluster_again(x[:1], labels[2:3], np.zeros(1, dtype=np.int64), 1) is None
    everything = cluster_again(x * 0, np.full(6, -1), np.zeros(6, dtype=np.int64), 1)
    assert everything is not None
    assert (everything == 1).all()


def test_of_many_images_a_sample_is_clustered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    x, truth = planted(60, [0.1] * 4)
    labels = np.where((truth < 2) & (np.arange(240) % 2 == 0), truth, -1)
    monkeypatch.setattr(stability, "MOST_REPEATED", 40)
    order = np.random.default_rng(1).permutation(240)
    found = stability.cluster_again(x, labels, truth, 4, order=order, seed=0, processes=alone("cpu"))
    assert found is not None
    assert np.isfinite(found).sum() == 40
    assert (found[np.isfinite(found)] == 1).all()
    assert (labels[np.isfinite(found)] < 0).all()
    back = np.argsort(order)  # the same images in another order, as if files were renamed
    again = stability.cluster_again(
        x[order], labels[order], truth[order], 4, order=back[order], seed=0, processes=alone("cpu")
    )
    assert again is not None
    rows = stability._some_of_each(np.flatnonzero(labels >= 0), labels, np.random.default_rng(0))
    assert np.bincount(labels[rows]).tolist() == [20, 20]
    np.testing.assert_array_equal(np.isfinite(again), np.isfinite(found)[order])


def test_overlaps_are_those_computed_by_hand() -> None:
    clusters = np.array([0, 0, 0, 0, 1, 1, 2, 2])
    halves, merged = np.array([0, 0, 1, 1, 2, 2, 2, 2]), np.array([1, 1, 1, 1, 2, 2, 2, 0])
    np.testing.assert_allclose(stability.overlaps(clusters, [halves], 4), [2 / 4, 2 / 4, 2 / 4, 0])
    np.testing.assert_allclose(stability.overlaps(clusters, [merged], 4), [1, 2 / 3, 1 / 2, 0])
    np.testing.assert_allclose(stability.overlaps(clusters, [halves, merged], 4), [1, 2 / 3, 1 / 2, 0])


def calibration_errors(known: float, new: float, seed: int, *, again: bool) -> list[float]:
    """Return the errors over all unlabelled images, and those of 8 known and of 8 new classes of the given spreads.

    Half of the images of known classes are labelled, and a fifth of those is held out.
    """
    x, truth = planted(60, [known] * 8 + [new] * 8, seed=seed)
    at = np.arange(len(x))
    labelled = (truth < 8) & (at % 2 == 0)
    held = labelled & (at % 10 == 0)
    labels = np.where(labelled & ~held, truth, -1)
    row = clustered(x, labels, 16)
    centres, _ = add_to_means(np.zeros((16, 12), dtype=np.float32), np.zeros(16, dtype=np.int64), row, x)
    agreement = cluster_again(x, labels, row, 16) if again else None
    found = calibrate(x, centres, row, held_out=held, truth=truth, unsure_below=0.5, agreement=agreement)
    sure = found.of(place(x, centres, found.temperature, row=row))
    matched = metrics.match(truth[~labelled], row[~labelled])
    right = np.array([matched.get(j) == t for j, t in zip(row.tolist(), truth.tolist(), strict=True)])
    parts = (~labelled, ~labelled & (truth < 8), truth >= 8)
    return [calibration_error(right[part], sure[part]) or 0.0 for part in parts]


@pytest.mark.parametrize(("known", "new"), thorough_but([(0.3, 1.2)], [(0.5, 0.5), (0.3, 1.2)]))
def test_confidence_is_calibrated_for_known_and_for_new_classes(known: float, new: float) -> None:
    """All are apart, or new classes overlap although the known ones, on which T is fitted, are compact."""
    errors = np.mean([calibration_errors(known, new, seed, again=True) for seed in range(4)], axis=0)
    assert (errors < [0.07, 0.09, 0.1]).all()
    if new > known:
        plain = np.mean([calibration_errors(known, new, seed, again=False) for seed in range(4)], axis=0)
        assert (errors[[0, 2]] < 0.75 * plain[[0, 2]]).all()
