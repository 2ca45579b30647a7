"""Accuracy in print, compared with the run by reading the axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.patches import Rectangle
from numpy.testing import assert_allclose
from support.decisions import apply
from support.drawn import caption, heights, texts_of, words, xy
from support.sample_run import sample_run

from sortal import metrics
from sortal.research.figures import (
    LeftOutError,
    SharedCluster,
    k_curve,
    legacy_inflation,
    risk_coverage,
    shared_clusters,
)
from sortal.research.figures.samples import classes_of
from sortal.reviews.actions import Bin
from sortal.runs.facts import CoveragePoint, RiskCoverage, TriedK
from sortal.runs.run import LABELLED, Run


def test_the_k_curve_shows_every_k_that_was_tried(run: Run) -> None:
    drawn = k_curve(run)
    (axes,) = drawn.axes
    curve = run.k.curve
    mean = next(line for line in axes.lines if line.get_label() == "Mean of restarts")
    assert_allclose(xy(mean), [(tried.k, tried.score) for tried in curve])
    restarts = np.concatenate([np.asarray(collection.get_offsets()) for collection in axes.collections])
    assert_allclose(restarts, [(tried.k, score) for tried in curve for score in tried.each])
    dots = [line for line in axes.lines if len(xy(line)) == 1]
    assert_allclose(np.concatenate([xy(dot) for dot in dots]), xy(mean))
    upright = [line for line in axes.lines if line is not mean and line not in dots]
    assert {str(line.get_label()): float(np.asarray(line.get_xdata())[0]) for line in upright} == {
        "Chosen: k = 6": 6,
        "True: k = 6": 6,
    }
    (band,) = (patch for patch in axes.patches if isinstance(patch, Rectangle))
    assert (band.get_x(), band.get_x() + band.get_width()) == run.k.interval == (5, 7)
    assert axes.get_ylabel() == "accuracy on the labelled images"
    assert [text for text in texts_of(drawn) if "Interval" in text] == ["Interval: likely 5 to 7"]
    assert not [text for text in texts_of(k_curve(sample_run(truth=False))) if "True" in text]
    with pytest.raises(LeftOutError, match=r"The number of categories was given \(k = 6\)"):
        k_curve(replace(run, k=replace(run.k, curve=(), interval=None)))


def test_the_axis_of_k_is_logarithmic_with_round_ticks(run: Run) -> None:
    def tried(*ks: int, method: str = "brent") -> Run:
        curve = tuple(TriedK(k=k, score=0.5, each=(0.5,)) for k in ks)
        return replace(run, k=replace(run.k, curve=curve, k=ks[0], interval=None, method=method), metrics=None)

    wide = k_curve(tried(10, 1000)).axes[0]
    assert wide.get_xscale() == "log"
    assert {"10", "20", "50", "100", "200", "500", "1,000"} <= {*words(wide.get_xticklabels())}
    assert k_curve(tried(10, 60)).axes[0].get_xticks().tolist() == [10, 20, 30, 40, 50]
    assert k_curve(tried(19, 30, method="separation")).axes[0].get_ylabel() == "score"
    assert k_curve(tried(1)).axes[0].get_xticks().tolist() == [1]


def test_accuracy_is_drawn_against_coverage_for_all_old_and_new(run: Run) -> None:
    assert run.metrics is not None
    drawn = risk_coverage(run)
    lines = [line for line in drawn.axes[0].lines if len(xy(line)) > 1]
    curves = dict(zip(("all", "old", "new"), lines, strict=True))
    assert len({line.get_linestyle() for line in curves.values()}) == 3  # distinguishable without colour
    for part, line in curves.items():
        assert_allclose(xy(line), np.array(getattr(run.metrics.risk_coverage, part))[:, :2])
    assert texts_of(drawn)[:3] == ["All: 88.0%", "Known classes: 89.0%", "New classes: 79.0%"]
    # A dot marks the last sure image: of three, the first is right, the second wrong and the last unsure.
    rows = tuple(CoveragePoint(*row) for row in ((1 / 3, 1.0, 0.9), (2 / 3, 0.5, 0.6), (1.0, 2 / 3, 0.4)))
    three = replace(run, metrics=replace(run.metrics, risk_coverage=RiskCoverage(all=rows, old=rows[:2], new=())))
    axes = risk_coverage(three).axes[0]
    (dot,) = (xy(line) for line in axes.lines if len(xy(line)) == 1)
    assert dot == [[2 / 3, 0.5]]  # none for old, which are all sure, nor for new, which are absent
    assert axes.get_ylim()[0] == 0.4
    for calibrated in (True, False):
        (legend,) = risk_coverage(replace(run, confidence=replace(run.confidence, held_out=40 * calibrated))).legends
        assert ("Confidence is not calibrated." in legend.get_title().get_text()) != calibrated
    for figure in (risk_coverage, legacy_inflation):
        with pytest.raises(LeftOutError, match="No unlabelled image has a known true class"):
            figure(sample_run(truth=False))


def test_a_cluster_matched_with_an_old_and_a_new_class_is_found() -> None:
    """Cluster 0 holds four images of the old class a and three of the new class b; cluster 1 two of the old class c."""
    truth, clusters = [*"aaaabbbcc"], [0, 0, 0, 0, 0, 0, 0, 1, 1]
    (twice,) = shared_clusters(truth, clusters, old={"a", "c"})
    assert twice == SharedCluster(cluster=0, old="a", old_images=4, new="b", new_images=3)
    assert shared_clusters([1, 1, 2, 2], [2, 2, 1, 1], old=[1]) == shared_clusters([], [], old=[1]) == ()


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=40))
def test_legacy_matching_gains_only_from_clusters_used_twice(rows: Sequence[tuple[int, int]]) -> None:
    """The gain is bounded by the smaller classes of these clusters, without which there is a single match."""
    truth, clusters = [t for t, _ in rows], [c for _, c in rows]
    one, two = (f(truth, clusters, old=range(3)).all for f in (metrics.accuracy, metrics.legacy_accuracy))
    assert one is not None
    assert two is not None
    twice = shared_clusters(truth, clusters, old=range(3))
    gained = round((two - one) * len(rows))
    assert 0 <= gained <= sum(min(each.old_images, each.new_images) for each in twice)
    sizes = [each.old_images + each.new_images for each in twice]
    assert sizes == sorted(sizes, reverse=True)
    for each in twice:
        assert [each.old in range(3), each.new in range(3)] == [True, False]
        assert each.old_images == rows.count((each.old, each.cluster))
        assert each.new_images == rows.count((each.new, each.cluster))


def test_bars_show_accuracy_by_one_match_and_by_two() -> None:
    """Of 8 images, 7 are unlabelled: 4 of the old class and 2 of a new one are in the first category."""
    run = sample_run(categories=2, known=1, images=8, category=np.array([0] * 7 + [1]))
    status = np.array([LABELLED, *["known"] * 7])
    truth = (*["class 0"] * 5, "new 1", "new 1", None)
    run = replace(run, assignments=replace(run.assignments, status=status, truth=truth))
    drawn = legacy_inflation(run)
    left, right = drawn.axes
    assert_allclose(np.array(heights(left)), np.array([[4 / 6, 1, 0], [1, 1, 1]]))
    assert words(left.get_xticklabels()) == ["All", "Old", "New"]
    assert words(left.texts) == ["66.7", "100.0", "0.0", "100.0", "100.0", "100.0"]
    old, new = ([(bar.get_x(), bar.get_width()) for bar in bars] for bars in right.containers)
    assert (old, new) == ([(0, 4)], [(4, 2)])
    assert words([*right.texts, *right.get_yticklabels()]) == [" class 0 (4) + new 1 (2)", "class 0"]
    assert right.get_title(loc="left") == "1 of 1 cluster used twice"
    assert caption(drawn).startswith("6 unlabelled images. Legacy matching counts 2 more of them as correct.")
    assert "count for 4 images of old classes and 2 of new ones" in caption(drawn)
    left, right = legacy_inflation(sample_run()).axes  # nothing is inflated
    one, two = heights(left)
    assert one == two
    assert words(right.texts) == ["No cluster is used\nfor an old and a new class."]
    only_old = replace(run, assignments=replace(run.assignments, truth=("class 0",) * 8))
    assert words(legacy_inflation(only_old).axes[0].get_xticklabels()) == ["All", "Old"]


def test_only_the_largest_clusters_used_twice_are_shown() -> None:
    merged = np.arange(900) % 11
    run = sample_run(categories=22, known=11, images=900, category=merged)
    truth = tuple(run.names[j + 11 * (row % 3 > 0)] for row, j in enumerate(merged.tolist()))
    right = legacy_inflation(replace(run, assignments=replace(run.assignments, truth=truth))).axes[1]
    assert right.get_title(loc="left") == "11 of 11 clusters used twice; the 8 largest"
    assert len(right.texts) == 8


def test_images_in_the_bin_are_in_no_measure_and_no_class() -> None:
    run = sample_run(truth=False)
    unlabelled = int(np.flatnonzero(run.assignments.status != LABELLED)[0])
    binned = apply(run, [Bin(images=(run.assignments.contents[unlabelled],))])
    assert classes_of(binned).names[unlabelled] == "no category"
    run = sample_run()
    binned = apply(run, [Bin(images=(run.assignments.contents[unlabelled],))])
    before, after = (caption(legacy_inflation(each)) for each in (run, binned))
    images = int((run.assignments.status != LABELLED).sum())
    assert f"{images:,} " in before
    assert f"{images - 1:,} " in after
