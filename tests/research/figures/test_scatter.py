"""t-SNE: points, colours and captions compared with the run."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from support.drawn import caption, corners, points_of, texts_of, words
from support.sample_run import sample_run

from sortal.errors import InputError
from sortal.research.figures import (
    scatter,
    style,
    tsne,
)
from sortal.research.figures.samples import sampling_order
from sortal.runs import projection
from sortal.runs.run import Run


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
    other = replace(run, assignments=run.assignments.take(order), features=run.features[order])
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
