"""PixelStore: an image is what lies at its place, and a crop is a piece of it."""

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sortal.errors import InputError
from sortal.pixels import Quarantined
from sortal.store import PixelStore

SIZES = ((7, 5), (4, 9), (0, 0), (6, 6))  # row 2 could not be read


def build(sizes: Sequence[tuple[int, int]] = SIZES) -> tuple[PixelStore, list[NDArray[np.uint8]]]:
    """A store in two segments: rows of even number in the first, the others in the second; and its images."""
    generator = np.random.default_rng(0)
    images = [generator.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]
    segments: list[NDArray[np.uint8]] = []
    segment, offset = np.arange(len(sizes)) % 2, np.zeros(len(sizes), dtype=np.int64)
    for number in (0, 1):
        rows = np.flatnonzero(segment == number)
        offset[rows] = np.cumsum([0, *(images[row].size for row in rows)])[:-1]
        segments.append(np.concatenate([images[row].ravel() for row in rows]))
    heights, widths = np.array(sizes, dtype=np.int64).T
    quarantine = tuple(Quarantined(f"{row}.png", "truncated", "") for row in np.flatnonzero(heights == 0))
    return PixelStore(segments, segment, offset, heights, widths, quarantine), images


def test_rows_are_the_images() -> None:
    store, images = build()
    assert len(store) == 4
    assert store.heights.tolist() == [7, 4, 0, 6]
    assert store.widths.tolist() == [5, 9, 0, 6]
    assert store.present.tolist() == [True, True, False, True]
    assert [entry.file for entry in store.quarantine] == ["2.png"]
    for row in (3, 0, 1):
        np.testing.assert_array_equal(store.image(row), images[row])


def test_an_image_that_could_not_be_read_is_never_another_one() -> None:
    store, _ = build()
    with pytest.raises(InputError, match="Row 2 has no pixels: its image could not be read; see quarantine"):
        store.image(2)
    for row in (-1, 4):
        with pytest.raises(InputError, match=f"row must be from 0 to 3, got {row}"):
            store.image(row)


def test_a_set_in_which_nothing_could_be_read() -> None:
    none = np.zeros(2, dtype=np.int64)
    quarantine = (Quarantined("a", "empty", ""), Quarantined("b", "empty", ""))
    store = PixelStore([], none, none, none, none, quarantine)
    assert not store.present.any()
    with pytest.raises(InputError, match="Row 1 has no pixels"):
        store.image(1)


def test_crops_are_slices() -> None:
    store, images = build()
    places = [(row, top, left) for row in (0, 1, 3) for top in range(SIZES[row][0] - 2) for left in (0, 1, 2)]
    rows, tops, lefts = np.array(places)[np.random.default_rng(1).permutation(len(places))].T
    pieces = store.crops(rows, tops, lefts, 3)
    assert pieces.shape == (len(places), 3, 3, 3)
    assert pieces.dtype == np.uint8
    for piece, row, top, left in zip(pieces, rows, tops, lefts, strict=True):
        np.testing.assert_array_equal(piece, images[row][top : top + 3, left : left + 3])


def test_rows_may_repeat_and_come_in_any_order() -> None:
    store, images = build()
    zeros = np.zeros(4, dtype=np.int64)
    pieces = store.crops(np.array([3, 1, 3, 0]), zeros, zeros, 4)
    for piece, row in zip(pieces, (3, 1, 3, 0), strict=True):
        np.testing.assert_array_equal(piece, images[row][:4, :4])


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, np.uint64])
def test_numbers_of_any_type_will_do(dtype: type[np.integer[Any]]) -> None:
    store, images = build()
    pieces = store.crops(np.array([0], dtype=dtype), np.array([1], dtype=dtype), np.array([2], dtype=dtype), 3)
    np.testing.assert_array_equal(pieces[0], images[0][1:4, 2:5])


def test_crops_go_where_they_are_told() -> None:
    store, images = build()
    out = np.zeros((2, 3, 3, 3), dtype=np.uint8)
    rows, zeros = np.array([1, 0]), np.zeros(2, dtype=np.int64)
    assert store.crops(rows, zeros, zeros, 3, out=out) is out
    np.testing.assert_array_equal(out[0], images[1][:3, :3])
    np.testing.assert_array_equal(out[1], images[0][:3, :3])


def test_no_crops_are_an_empty_batch() -> None:
    none = np.zeros(0, dtype=np.int64)
    assert build()[0].crops(none, none, none, 3).shape == (0, 3, 3, 3)


@pytest.mark.parametrize(
    ("row", "top", "left", "size", "where", "shape"),
    [
        (0, -1, 0, 3, "3 × 3 at (-1, 0)", "7 × 5"),
        (0, 0, -1, 3, "3 × 3 at (0, -1)", "7 × 5"),
        (0, 5, 0, 3, "3 × 3 at (5, 0)", "7 × 5"),
        (0, 0, 3, 3, "3 × 3 at (0, 3)", "7 × 5"),
        (1, 0, 0, 5, "5 × 5 at (0, 0)", "4 × 9"),
        (2, 0, 0, 1, "1 × 1 at (0, 0)", "0 × 0"),  # in quarantine
    ],
)
def test_a_crop_outside_its_image_is_named(row: int, top: int, left: int, size: int, where: str, shape: str) -> None:
    store, _ = build()
    rows, tops, lefts = np.array([3, row]), np.array([0, top]), np.array([0, left])
    out = np.zeros((2, size, size, 3), dtype=np.uint8)
    with pytest.raises(InputError) as caught:
        store.crops(rows, tops, lefts, size, out=out)
    assert where in str(caught.value)
    assert f"row {row}, {shape} pixels" in str(caught.value)
    assert not out.any()  # nothing of the batch was written


@pytest.mark.parametrize("row", [-1, 4])
def test_a_row_that_is_none_is_never_another_image(row: int) -> None:
    zero = np.zeros(1, dtype=np.int64)
    with pytest.raises((InputError, IndexError)):
        build()[0].crops(np.array([row]), zero, zero, 3)


def test_rows_and_places_must_be_as_many() -> None:
    store, _ = build()
    two, three = np.zeros(2, dtype=np.int64), np.zeros(3, dtype=np.int64)
    with pytest.raises(ValueError, match=r"shape|argument|must"):
        store.crops(two, three, three, 3)
    with pytest.raises(ValueError, match=r"shape|argument|must"):
        store.crops(two, two[:1], two, 3)
    with pytest.raises(ValueError, match=r"shape|argument|must"):
        store.crops(two, two, two, 3, out=np.zeros((3, 3, 3, 3), dtype=np.uint8))


def test_a_pickled_store_is_small_and_maps_its_pixels_again(tmp_path: Path) -> None:
    content = np.random.default_rng(0).integers(0, 256, 300_000, dtype=np.uint8)
    content.tofile(tmp_path / "pixels")
    one, size = np.zeros(1, dtype=np.int64), np.full(1, 300, dtype=np.int64)
    flat = np.memmap(tmp_path / "pixels", dtype=np.uint8, mode="r")
    store = PixelStore([flat], one, one, size, size, ())
    pickled = pickle.dumps(store)
    assert len(pickled) < 3000
    again = pickle.loads(pickled)
    np.testing.assert_array_equal(again.image(0), content[:270_000].reshape(300, 300, 3))
    np.testing.assert_array_equal(again.crops([0], [1], [2], 3)[0], store.image(0)[1:4, 2:5])


def with_digests(store: PixelStore, made: str) -> PixelStore:
    """The same store, whose rows have contents of their own."""
    digests = np.array([b"%032d" % row if there else b"" for row, there in enumerate(store.present)], dtype="S32")
    columns = (store._segment, store._offset, store.heights, store.widths)
    return PixelStore(store._maps, *columns, store.quarantine, digests, made)


@given(st.lists(st.booleans(), min_size=4, max_size=4))
def test_selected_rows_are_the_images_in_their_order(mask: list[bool]) -> None:
    everything, images = build()
    store, rows = with_digests(everything, "so"), np.flatnonzero(mask)
    some = store.select(np.array(mask))
    assert len(some) == len(rows)
    assert some.heights.tolist() == [SIZES[row][0] for row in rows]
    assert some.widths.tolist() == [SIZES[row][1] for row in rows]
    assert some.digests.tolist() == [store.digests[row] for row in rows]
    assert (some.made, some.quarantine) == ("so", store.quarantine)
    for at, row in enumerate(rows.tolist()):
        if not store.present[row]:
            with pytest.raises(InputError, match=f"Row {at} has no pixels"):
                some.image(at)
            continue
        np.testing.assert_array_equal(some.image(at), images[row])
        np.testing.assert_array_equal(some.crops([at], [1], [2], 3)[0], images[row][1:4, 2:5])
    with pytest.raises(InputError, match="row must be from 0 to"):
        some.image(len(rows))
    assert len(store) == 4  # as it was


def test_a_selection_of_a_selection() -> None:
    store, images = build()
    one = store.select(np.array([True, True, False, True])).select(np.array([False, True, True]))
    assert len(one) == 2
    np.testing.assert_array_equal(one.image(0), images[1])
    np.testing.assert_array_equal(one.image(1), images[3])


def test_a_pickled_selection_maps_its_pixels_again(tmp_path: Path) -> None:
    content = np.random.default_rng(0).integers(0, 256, 300_000, dtype=np.uint8)
    content.tofile(tmp_path / "pixels")
    flat = np.memmap(tmp_path / "pixels", dtype=np.uint8, mode="r")
    sizes, first = np.full(10, 100, dtype=np.int64), np.zeros(10, dtype=np.int64)
    digests = np.array([b"%032d" % row for row in range(10)], dtype="S32")
    store = PixelStore([flat], first, 30_000 * np.arange(10), sizes, sizes, (), digests, "so")
    pickled = pickle.dumps(store.select(np.arange(10) % 4 == 3))
    assert len(pickled) < 3000
    again = pickle.loads(pickled)
    assert (len(again), again.digests.tolist(), again.made) == (2, [b"%032d" % 3, b"%032d" % 7], "so")
    for at, row in enumerate((3, 7)):
        wanted = content[30_000 * row : 30_000 * (row + 1)].reshape(100, 100, 3)
        np.testing.assert_array_equal(again.image(at), wanted)


def test_out_must_fit() -> None:
    store, _ = build()
    for out in (np.zeros((1, 4, 4, 3), np.uint8), np.zeros((1, 3, 3, 3), np.float32)):
        with pytest.raises(InputError, match="out uint8 of shape"):
            store.crops([0], [0], [0], 3, out=out)  # type: ignore[arg-type]
