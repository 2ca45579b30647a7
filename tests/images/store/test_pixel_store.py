"""PixelStore: rows are images, and crops are pieces of them."""

import pickle
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sortal.errors import InputError
from sortal.images.decoding import FACTS, Quarantined
from sortal.images.store.pixel_store import PixelStore

SIZES = ((7, 5), (4, 9), (0, 0), (6, 6))  # row 2 could not be read
Images = list[NDArray[np.uint8]]


def build(folder: Path | None = None) -> tuple[PixelStore, Images]:
    """Make a store in memory or mapped from a folder, with its images in reverse order."""
    generator = np.random.default_rng(0)
    images = [generator.integers(0, 256, (*size, 3), dtype=np.uint8) for size in SIZES]
    sizes = np.array([image.size for image in images])
    flat = np.concatenate([image.ravel() for image in reversed(images)])
    file = None
    if folder is not None:
        file = folder / "pixels"
        np.concatenate([flat, np.zeros(200_000, np.uint8)]).tofile(file)
        flat = np.memmap(file, dtype=np.uint8, mode="r")
    heights, widths = np.array(SIZES, dtype=np.int64).T
    digests = [b"%032d" % row if heights[row] else b"" for row in range(len(SIZES))]
    store = PixelStore(
        flat=(flat,),
        parts=np.zeros(len(SIZES), dtype=np.int64),
        offsets=sizes.sum() - np.cumsum(sizes),
        heights=heights,
        widths=widths,
        quarantine=(Quarantined("2.png", "truncated", ""),),
        digests=np.array(digests, dtype="S32"),
        facts=np.zeros(len(SIZES), FACTS),
        made="so",
        files=() if file is None else (file,),
    )
    return store, images


def test_rows_are_the_images_and_an_unreadable_row_is_refused() -> None:
    store, images = build()
    assert repr(store) == "<PixelStore: 4 images, 3 stored, 1 in quarantine>"
    assert len(store) == 4
    assert store.present.tolist() == [True, True, False, True]
    for row in (3, 0, 1):
        np.testing.assert_array_equal(store.image(row), images[row])
    with pytest.raises(InputError, match="Row 2 has no pixels: its image could not be read; see `quarantine`"):
        store.image(2)
    zero = np.zeros(1, dtype=np.int64)
    for row in (-1, 4):
        with pytest.raises(InputError, match=f"row must be from 0 to 3, got {row}"):
            store.image(row)
        with pytest.raises(InputError, match=f"rows must be from 0 to 3, got {row} to {row}"):
            store.crops([row], zero, zero, 3)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, np.uint64])
def test_crops_are_slices(dtype: type[np.integer[Any]]) -> None:
    """In any order, repeated, up to the edges, with indices of any type."""
    store, images = build()
    places = [(r, *at) for r in (0, 1, 3) for at in product(range(SIZES[r][0] - 2), range(SIZES[r][1] - 2))] * 2
    rows, tops, lefts = np.array(places, dtype)[np.random.default_rng(1).permutation(len(places))].T
    out = np.zeros((len(places), 3, 3, 3), np.uint8)
    assert store.crops(rows, tops, lefts, 3, out=out) is out
    pieces = store.crops(rows, tops, lefts, 3)
    assert pieces.dtype == np.uint8
    np.testing.assert_array_equal(pieces, out)
    for piece, row, top, left in zip(pieces, rows.tolist(), tops.tolist(), lefts.tolist(), strict=True):
        np.testing.assert_array_equal(piece, images[row][top : top + 3, left : left + 3])
    assert store.crops(rows[:0], tops[:0], lefts[:0], 3).shape == (0, 3, 3, 3)


@pytest.mark.parametrize(
    ("row", "top", "left", "size", "shape"),
    [
        (0, -1, 0, 3, "7 × 5 pixels."),
        (0, 0, -1, 3, "7 × 5 pixels."),
        (0, 5, 0, 3, "7 × 5 pixels."),
        (0, 0, 3, 3, "7 × 5 pixels."),
        (2, 0, 0, 1, "0 × 0 pixels; it could not be read, see `quarantine`."),
    ],
)
def test_a_crop_outside_its_image_is_refused(row: int, top: int, left: int, size: int, shape: str) -> None:
    store, _ = build()
    out = np.zeros((2, size, size, 3), dtype=np.uint8)
    with pytest.raises(InputError) as caught:
        store.crops([3, row], [0, top], [0, left], size, out=out)
    assert f"{size} × {size} at ({top}, {left}) does not lie within row {row}, {shape}" in str(caught.value)
    assert not out.any()  # no part of the batch is written


def test_the_arguments_of_crops_must_match_in_length_and_shape() -> None:
    store, _ = build()
    two, three = np.zeros(2, dtype=np.int64), np.zeros(3, dtype=np.int64)
    for rows, tops, lefts in ((two, three, three), (two, two[:1], two), (two, two, two[:1]), (two[None], two, two)):
        with pytest.raises(InputError, match="rows, tops and lefts must have the same length"):
            store.crops(rows, tops, lefts, 3)
    for out in (np.zeros((3, 3, 3, 3), np.uint8), np.zeros((2, 4, 4, 3), np.uint8), np.zeros((2, 3, 3, 3), np.int8)):
        with pytest.raises(InputError, match="out must be uint8 of shape"):
            store.crops(two, two, two, 3, out=out)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="size must be at least 1, got 0"):
        store.crops(two, two, two, 0)


def check_rows(some: PixelStore, images: Images, rows: list[int]) -> None:
    """Check that a store has these rows of `build`, in this order."""
    assert len(some) == len(rows)
    assert some.heights.tolist() == [SIZES[row][0] for row in rows]
    assert some.widths.tolist() == [SIZES[row][1] for row in rows]
    assert some.digests.tolist() == [b"" if row == 2 else b"%032d" % row for row in rows]
    assert (some.made, [bad.file for bad in some.quarantine]) == ("so", ["2.png"] * rows.count(2))
    for at, row in enumerate(rows):
        if row == 2:
            with pytest.raises(InputError, match=f"Row {at} has no pixels"):
                some.image(at)
        else:
            np.testing.assert_array_equal(some.image(at), images[row])
            np.testing.assert_array_equal(some.crops([at], [1], [2], 3)[0], images[row][1:4, 2:5])


@given(st.lists(st.booleans(), min_size=4, max_size=4))
def test_selected_rows_are_the_images_in_their_order(mask: list[bool]) -> None:
    store, images = build()
    rows = np.flatnonzero(mask).tolist()
    some = store.select(np.array(mask))
    check_rows(some, images, rows)
    check_rows(some.select(np.arange(len(rows)) != 0), images, rows[1:])
    check_rows(store, images, [0, 1, 2, 3])  # unchanged


def test_a_pickled_store_is_small_and_maps_its_pixels_again(tmp_path: Path) -> None:
    store, images = build(tmp_path)
    for one, rows in ((store, [0, 1, 2, 3]), (store.select(np.array([False, True, True, True])), [1, 2, 3])):
        pickled = pickle.dumps(one)
        assert len(pickled) < 10_000  # of 200,000 bytes of pixels
        check_rows(pickle.loads(pickled), images, rows)
    in_memory, _ = build()
    check_rows(pickle.loads(pickle.dumps(in_memory)), images, [0, 1, 2, 3])
