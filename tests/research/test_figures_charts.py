"""Figures that need no network, compared with the run by reading the axes."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.collections import Collection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from support.sample_run import HOSTILE, sample_run

from sortal import metrics
from sortal.errors import InputError
from sortal.research.figures import (
    FORMATS,
    LeftOutError,
    SharedCluster,
    k_curve,
    legacy_inflation,
    risk_coverage,
    scatter,
    shared_clusters,
    style,
    tsne,
)
from sortal.research.figures.samples import sampling_order
from sortal.runs import projection
from sortal.runs.facts import CoveragePoint, RiskCoverage, TriedK
from sortal.runs.run import LABELLED, Run

MARKUP = ("$\\frac{1", "_hidden", "a $b$ c", "%s {0}", "--> <!-- x", "\ufffe", "日本語", "😀")


def texts_of(drawn: Figure) -> list[str]:
    """Return the texts of all legends of a figure, and its caption."""
    legends = [*drawn.legends, *(legend for axes in drawn.axes if (legend := axes.get_legend()))]
    return [text for legend in legends for text in words(legend.get_texts())] + [caption(drawn)]


def caption(drawn: Figure) -> str:
    return drawn.get_supxlabel().replace("\n", " ")


def words(labels: Iterable[Text]) -> list[str]:
    return [label.get_text() for label in labels]


def heights(axes: Axes) -> list[list[float]]:
    """Return the heights of the bars of each kind."""
    return [[bar.get_height() for bar in bars] for bars in axes.containers]


def xy(line: Line2D) -> list[list[float]]:
    rows: list[list[float]] = np.asarray(line.get_xydata()).tolist()
    return rows


def corners(collection: Collection) -> int:
    """Count the vertices of its marker: a circle has more than a triangle."""
    return len(np.asarray(collection.get_paths()[0].vertices))


def points_of(axes: Axes) -> list[tuple[float, float, str, int]]:
    """Return the position, colour and number of corners of every point, sorted."""
    return sorted(
        (float(x), float(y), to_hex(colour), corners(each))
        for each in axes.collections
        for (x, y), colour in zip(np.asarray(each.get_offsets()), np.asarray(each.get_facecolor()), strict=True)
    )


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return replace(sample_run(), folder=tmp_path)


@pytest.fixture
def by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the first two features as positions instead of t-SNE."""
    monkeypatch.setattr(scatter, "place", lambda x, seed, device: x[:, :2].astype(np.float64))


def _whole(x: NDArray[np.float32]) -> NDArray[np.int64]:
    return projection.coordinates(x, lambda x, seed: x[:, :2].astype(np.float64), seed=0)


def test_every_image_is_a_point_in_the_colour_of_its_class_and_the_shape_of_its_kind(run: Run, by_rows: None) -> None:
    (axes,) = tsne(run).axes
    expected = sorted(
        (float(x), float(y), style.COLOURS[int(name[-1]) - (name[:3] == "new")], name[:3] == "new")
        for (x, y), name in zip(_whole(np.asarray(run.features)), map(str, run.assignments.truth), strict=True)
    )
    circle = max(map(corners, axes.collections))
    assert [(x, y, colour, shape != circle) for x, y, colour, shape in points_of(axes)] == expected
    assert words(axes.texts) == [*"ABCDEF"]  # "class 0" is too long to be written among the points
    legends = {legend.get_title().get_text(): words(legend.get_texts()) for legend in axes.figure.legends}
    assert [*legends] == ["Old classes", "New classes"]
    assert legends["Old classes"] == ["A  class 0", "B  class 1", "C  class 2", "D  class 3"]
    assert legends["New classes"] == ["E  new 1", "F  new 2"]
    # Short names are written among the points of their class.
    short = replace(run, assignments=replace(run.assignments, truth=tuple(str(i % 3) for i in range(72))))
    (axes,) = tsne(short).axes
    places = _whole(np.asarray(run.features))
    assert sorted(words(axes.texts)) == ["0", "1", "2"]
    for text in axes.texts:
        assert [*map(int, text.get_position())] in places[int(text.get_text()) :: 3].tolist()


def test_only_the_nine_largest_classes_of_a_kind_have_their_own_colours(tmp_path: Path, by_rows: None) -> None:
    run = replace(sample_run(categories=23, known=12, images=400), folder=tmp_path)
    drawn = tsne(run)
    colours = Counter(colour for _, _, colour, _ in points_of(drawn.axes[0]))
    sizes = Counter(run.assignments.truth)
    assert set(colours) == {*style.COLOURS, style.PALE}
    coloured = [text.split("  ")[1] for text in texts_of(drawn) if "  " in text]
    assert len(coloured) == 18
    assert colours[style.PALE] == 400 - sum(sizes[name] for name in coloured)
    assert min(sizes[name] for name in coloured) >= max(sizes[name] for name in sizes if name not in coloured)
    assert [text for text in texts_of(drawn) if "more" in text] == ["3 more", "2 more"]


def test_the_caption_explains_colours_and_positions(tmp_path: Path, by_rows: None) -> None:
    run = replace(sample_run(truth=False), folder=tmp_path)
    a = run.assignments
    some = replace(a, truth=("class 0", *a.truth[1:]), status=np.full(72, "known"))
    colours = ["by label or predicted category", "by true class if known, else predicted category", "by true class;"]
    for expected, each in zip(colours, (a, some, replace(a, truth=("x",) * 72)), strict=True):
        drawn = tsne(replace(run, assignments=each))
        assert expected in caption(drawn)
        titles = {legend.get_title().get_text() for legend in drawn.legends}
        assert any("predicted" in title for title in titles) == ("predicted" in expected)
        assert ("New classes, predicted" in titles) == ("predicted" in expected), "no image of them is labelled"
    few = tsne(replace(sample_run(images=6), folder=tmp_path))
    assert "principal components" in caption(few)
    assert len(points_of(few.axes[0])) == 6


def test_a_sample_depends_only_on_seed_and_content(run: Run, by_rows: None) -> None:
    order = np.random.default_rng(0).permutation(72)
    columns: dict[str, Any] = {
        name: column[order] if isinstance(column, np.ndarray) else tuple(column[i] for i in order)
        for name, column in vars(run.assignments).items()
    }
    other = replace(run, assignments=replace(run.assignments, **columns), features=run.features[order])
    few, same, another = tsne(run, points=20), tsne(other, points=20), tsne(run, points=20, seed=1)
    assert len(points_of(few.axes[0])) == 20
    assert points_of(few.axes[0]) == points_of(same.axes[0])
    assert points_of(few.axes[0]) != points_of(another.axes[0])
    assert caption(few).startswith("20 of 72 images, by true class; t-SNE, seed 0.")
    firsts = {sampling_order(run, seed).tolist()[0] for seed in range(200)}
    assert len(firsts) > 50, "all 72 are equally likely"
    for seed in (-1, 2**32, 1.5):
        with pytest.raises(InputError, match=r"seed must be from 0 to 2\*\*32 - 1, got"):
            tsne(run, seed=seed)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="points must be"):
        tsne(run, points=0)


def test_positions_are_cached(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def place(x: NDArray[np.float32], seed: int, *, device: str) -> NDArray[np.float64]:
        calls.append(seed)
        return x[:, :2].astype(np.float64)

    monkeypatch.setattr(scatter, "place", place)
    assert points_of(tsne(run).axes[0]) == points_of(tsne(run).axes[0])
    assert calls == [0]
    monkeypatch.setattr("os.access", lambda *_: False)  # a read-only folder
    tsne(run, seed=2)
    tsne(run, seed=2)
    assert calls == [0, 2, 2]


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


def test_a_name_is_drawn_literally(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control characters and missing glyphs are escaped, except joiners, which Persian needs."""
    for name in ("Blüte – №1 $x^2$", "\u06cc\u200c\u06cc", "x" * 28):
        assert style.drawable(name) == name
    assert style.drawable("one\ntwo\x00a\u202eb\u2028") == "one\\ntwo\\x00a\\u202eb\\u2028"
    assert style.drawable("\udcff\U000f0000") == "\\xff\\U000f0000"
    assert style.drawable("x" * 29) == "x" * 14 + "…" + "x" * 13
    monkeypatch.setattr(style, "_glyphs", lambda: (frozenset(map(ord, "abc")), frozenset({0x65E5})))
    assert style.drawable("ab日本") == "ab日\\u672c"


@pytest.mark.parametrize("figure", [tsne, legacy_inflation])
@pytest.mark.usefixtures("by_rows")
def test_hostile_names_are_only_text(figure: Callable[[Run], Figure], tmp_path: Path) -> None:
    names = (*HOSTILE, *MARKUP)
    run = sample_run(categories=16, known=8, images=300, name=lambda i: names[i], category=np.arange(300) % 8)
    a = run.assignments
    truth = tuple(names[j % 8 + 8 * (row // 16 % 2)] for row, j in enumerate(a.category_id.tolist()))
    drawn = figure(replace(run, folder=tmp_path, assignments=replace(a, truth=truth)))
    for kind in FORMATS:
        assert len(style.render(drawn, kind)) > 10_000
        drawn.savefig(io.BytesIO(), format=kind)  # as a user would, under other settings
    shown = " ".join([*texts_of(drawn)[:-1], *(word for axes in drawn.axes for word in words(axes.texts))])
    assert [each in shown for each in ("$\\frac{1", "_hidden", "\n")] == [True, True, False]
