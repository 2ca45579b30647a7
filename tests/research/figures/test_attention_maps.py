"""Attention: focus scores computed by hand, the choice of images, and a page without overlaps."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from math import log, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from support.sample_run import HOSTILE, sample_run
from support.thorough import thorough_but

from sortal.errors import InputError
from sortal.research.figures import FIGURE_FORMATS, focus_score, style
from sortal.research.figures.attention_maps import EACH_KIND, MOST_IMAGES, Subject, draw_page, find_rows, sample_rows
from sortal.runs.facts import ImageSource
from sortal.runs.run import LABELLED


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[1, 1], [1, 1]], 0),
        ([[0, 0], [5, 0]], 1),
        ([[1, 1], [0, 0]], 0.5),  # 2 of 4 patches alike: 1 − log 2 / log 4
        ([[3, 0], [0, 1]], 1 + (0.75 * log(0.75) + 0.25 * log(0.25)) / log(4)),
        ([[1, 0, 0], [1, 0, 0], [1, 0, 0]], 0.5),  # 3 of 9: 1 − log 3 / log 9
        ([[0, 0], [0, 0]], nan),  # no attention at all
        ([[1]], nan),  # a single patch
    ],
)
def test_focus_matches_scores_computed_by_hand(values: list[list[float]], expected: float) -> None:
    assert_allclose(focus_score(values), expected, atol=1e-12)
    maps = np.array([[values, np.ones_like(values)], [values[::-1], values]], dtype=np.float64)
    each = np.array([focus_score(maps[0, 1]) if at == 1 else expected for at in range(4)], dtype=np.float64)
    assert_allclose(focus_score(maps).ravel(), each, atol=1e-12)


@given(arrays(np.float64, (2, 3), elements=st.floats(1e-6, 1)), st.floats(1e-3, 1e3))
def test_focus_is_between_0_and_1_and_ignores_scale_and_position(values: NDArray[np.float64], scale: float) -> None:
    found = focus_score(values)
    assert 0 <= found <= 1
    assert_allclose(focus_score(scale * values), found, atol=1e-9)
    assert_allclose(focus_score(values[::-1, ::-1]), found, atol=1e-9)
    assert focus_score(values**2) >= found - 1e-9  # a sharper map


def test_a_sample_has_unlabelled_images_of_distinct_old_and_new_classes() -> None:
    run = sample_run(categories=12, known=6, images=240)
    rows = sample_rows(run, seed=0)
    names = [str(run.assignments.truth[row]) for row in rows]
    assert [name[:3] for name in names] == ["cla"] * EACH_KIND + ["new"] * EACH_KIND
    assert len(set(names)) == 2 * EACH_KIND
    assert not (run.assignments.status[rows] == LABELLED).any()
    assert rows == sample_rows(run, seed=0) != sample_rows(run, seed=1)
    few = sample_run(categories=2, known=1, images=8)
    a = few.assignments
    assert sorted(str(a.truth[row]) for row in sample_rows(few, seed=0)) == ["class 0"] * 3 + ["new 1"] * 3
    labelled = replace(few, assignments=replace(a, status=np.full(8, LABELLED), truth=("class 0",) * 8))
    assert len(sample_rows(labelled, seed=0)) == EACH_KIND, "otherwise labelled images are used"


def test_images_are_found_by_name_and_by_path() -> None:
    run, array = sample_run(), ImageSource(folder=None, images=72, paths={})
    source = replace(array, folder="/pictures")
    run = replace(run, facts=replace(run.facts, images=(source,)))
    files = run.assignments.files
    assert find_rows(run, ["/pictures/photos/00007.jpg", "photos/00002.jpg", "photos/00002.jpg"]) == [7, 2]
    twice = replace(run, assignments=replace(run.assignments, files=("a.jpg", "a.jpg", *files[2:])))
    assert find_rows(twice, ["a.jpg"]) == [0, 1], "both images with this name"
    with pytest.raises(InputError, match=r"got 'photos/00005.jpeg'\. Use names such as 'photos/00000.jpg'"):
        find_rows(run, ["photos/00001.jpg", "photos/00005.jpeg"])
    with pytest.raises(InputError, match="got 'x', 'y'"):
        find_rows(replace(run, facts=replace(run.facts, images=(array,))), ["x", "y"])
    assert find_rows(run, files[:MOST_IMAGES]) == [*range(MOST_IMAGES)]
    for names, got in ((files[1], "'photos/00001.jpg'"), ([], "0"), (files[: MOST_IMAGES + 1], "13")):
        with pytest.raises(InputError, match=f"images must be a list of 1 to 12 file names of the run, got {got}"):
            find_rows(run, names)


def page(images: int, states: int, heads: int) -> tuple[Figure, NDArray[np.uint8], NDArray[np.float64]]:
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (images, 32, 32, 3), dtype=np.uint8)
    maps = generator.dirichlet(np.full(25, 0.2), (images, states, heads)).reshape(images, states, heads, 5, 5)
    names = (*HOSTILE, "$\\frac{1")
    subjects = [Subject(names[i], i % 2 == 0, i % 3 == 0, names[-i]) for i in range(images)]
    return draw_page(pixels, maps, subjects, "Said."), pixels, maps


def maps_of(drawn: Figure) -> list[Axes]:
    return [axes for axes in drawn.axes if str(axes.get_label()).startswith("head")]


def test_every_map_is_drawn_over_its_image_with_its_focus_above() -> None:
    drawn, pixels, maps = page(2, 2, 3)
    assert [axes.get_label() for axes in maps_of(drawn)] == [f"head {i}" for i in (1, 2, 3)] * 4
    for axes, at in zip(maps_of(drawn), np.ndindex(2, 2, 3), strict=True):
        below, above = axes.images
        assert_allclose(np.asarray(below.get_array()), pixels[at[0]].mean(axis=2))
        assert_allclose(np.asarray(above.get_array()), maps[at])
        assert above.get_clim() == (0, maps[at].max())
        assert axes.get_title(loc="center") == f"{float(focus_score(maps[at])):.2f}"
        assert below.get_extent() == above.get_extent()
    means = focus_score(maps).mean(axis=0)  # (states, heads)
    words = [text.get_text() for text in drawn.texts]
    heads = [f"Head {i}" for i in (1, 2, 3)]
    assert all(words.count(word) == 1 for word in [*heads, *(f"{a:.2f} → {b:.2f}" for a, b in means.T)])
    assert words.count("before") == words.count("after") == 2
    pictures = [np.asarray(axes.images[0].get_array()) for axes in drawn.axes if axes.get_label() == "image"]
    assert np.array_equal(pictures, pixels)


def test_undefined_scores_are_shown_as_dashes_and_excluded_from_means() -> None:
    maps = np.zeros((2, 1, 2, 2, 2))
    maps[0, 0, 0] = [[1, 1], [0, 0]]
    pixels = np.zeros((2, 8, 8, 3), dtype=np.uint8)
    drawn = draw_page(pixels, maps, [Subject("a", True, False, "a.png")] * 2, "")
    assert [axes.get_title(loc="center") for axes in maps_of(drawn)] == ["0.50", "–", "–", "–"]
    words = [text.get_text() for text in drawn.texts]
    assert [words.count(word) for word in ("0.50", "–", "before")] == [1, 1, 0]


@pytest.mark.parametrize(("states", "heads"), thorough_but([(1, 1), (2, 6)], [(1, 1), (2, 6), (2, 16)]))
def test_nothing_overlaps_or_leaves_the_page(states: int, heads: int) -> None:
    drawn, _, _ = page(2, states, heads)
    boxes = [axes.get_position() for axes in drawn.axes]
    assert len(boxes) == 2 * (1 + states * heads)
    for box in boxes:
        assert 0 <= box.x0 < box.x1 <= 1
        assert 0 <= box.y0 < box.y1 <= 1
        assert_allclose(box.width * drawn.get_figwidth(), box.height * drawn.get_figheight())  # squares
    for one, other in combinations(boxes, 2):
        assert one.x1 <= other.x0 or other.x1 <= one.x0 or one.y1 <= other.y0 or other.y1 <= one.y0
    assert drawn.get_figwidth() <= 13
    names = [text.get_text() for text in drawn.texts]
    assert names.count(f"Head {heads}") == 1


def test_hostile_names_are_drawn_literally() -> None:
    drawn, _, _ = page(9, 1, 2)
    words = [text.get_text() for text in drawn.texts if text.get_text() != drawn.get_supxlabel()]
    assert {"$\\frac{1", "<script…cript>"} <= {*words}
    assert not any("\n" in word for word in words)
    assert all(style.render(drawn, kind) for kind in FIGURE_FORMATS)
