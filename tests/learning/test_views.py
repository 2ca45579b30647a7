"""Views depend on seed, epoch, content and number alone; centre crops match torchvision."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.stores import store_of

from sortal.errors import InputError
from sortal.images.decoding import FACTS, Quarantined
from sortal.images.store.pixel_store import PixelStore
from sortal.learning import views
from sortal.learning.views import (
    Crops,
    centre_crops,
    check_present,
    check_size,
    choose_pairs,
    choose_patterns,
    content_keys,
    patch_patterns,
)

Ints = NDArray[np.int64]
BIG = 2**63 - 1


def build(sizes: Sequence[tuple[int, int]], contents: Sequence[object] | None = None) -> PixelStore:
    """Make a store of images with these heights and widths, without pixels; those of size 0 were unreadable."""
    names = [hashlib.blake2b(repr(each).encode(), digest_size=16).hexdigest() for each in contents or range(len(sizes))]
    digests = np.array([name if size[0] else "" for name, size in zip(names, sizes, strict=True)], dtype="S32")
    heights, widths = np.array(sizes, dtype=np.int64).reshape(-1, 2).T
    quarantine = tuple(Quarantined(f"{row}.png", "truncated", "") for row in np.flatnonzero(heights == 0))
    offsets, facts = np.zeros(len(sizes), dtype=np.int64), np.zeros(len(sizes), FACTS)
    return replace(
        store_of([]),
        parts=offsets,
        offsets=offsets,
        heights=heights,
        widths=widths,
        quarantine=quarantine,
        digests=digests,
        facts=facts,
    )


def crops(
    store: PixelStore,
    rows: Ints,
    numbers: Ints | int = 0,
    *,
    size: int = 224,
    flip: bool = True,
    seed: int = 0,
    epoch: int = 0,
) -> Crops:
    numbers = np.broadcast_to(numbers, rows.shape)
    return views.random_crops(store, content_keys(store), rows, numbers, size=size, flip=flip, seed=seed, epoch=epoch)


def table(found: Crops) -> NDArray[np.int64]:
    """Return top, left and flip of each view, (n, 3)."""
    return np.stack([found.tops, found.lefts, found.flipped], axis=1)


# Random views

SIZES = [(256, 300), (224, 400), (256, 256), (512, 256), (240, 250), (300, 224)]


@settings(deadline=None, max_examples=40)
@given(st.permutations(range(6)), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=20))
def test_neither_the_order_of_the_store_nor_the_rest_of_the_batch_matters(
    order: list[int], wanted: list[tuple[int, int]]
) -> None:
    store = build(SIZES)
    shuffled = build([SIZES[i] for i in order], contents=order)
    rows, numbers = np.array(wanted, dtype=np.int64).reshape(-1, 2).T
    places = np.array([order.index(row) for row in rows], dtype=np.int64)
    found = crops(shuffled, places, numbers, seed=3, epoch=2)
    assert found.rows.tolist() == places.tolist()
    pairs = choose_pairs(content_keys(shuffled)[places], numbers, views=8, seed=3, epoch=2)
    for view, two, row, number in zip(table(found), pairs.T, rows, numbers, strict=True):
        alone = crops(store, np.array([row]), int(number), seed=3, epoch=2)
        assert view.tolist() == table(alone)[0].tolist()
        alone_pair = choose_pairs(content_keys(store)[[row]], np.array([number]), views=8, seed=3, epoch=2)
        assert two.tolist() == alone_pair[:, 0].tolist()


def split_mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) % 2**64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ value >> 27) * 0x94D049BB133111EB % 2**64
    return value ^ value >> 31


@settings(deadline=None)
@given(
    seed=st.integers(0, BIG),
    epoch=st.integers(0, BIG),
    number=st.integers(0, BIG),
    digest=st.text("0123456789abcdef", min_size=32, max_size=32),
    n_views=st.integers(2, 30),
)
@example(seed=BIG, epoch=BIG, number=BIG, digest="f" * 32, n_views=2)
def test_views_match_a_computation_in_python_integers(
    seed: int, epoch: int, number: int, digest: str, n_views: int
) -> None:
    """A fixed rule: runs resumed after an update, and tokens on disk, rely on it."""
    # The first numbers of the reference implementation from the state 1234567.
    assert split_mix(1234567) == 6457827717110365317
    assert split_mix(1234567 + 0x9E3779B97F4A7C15) == 3203168211198807973
    store = build([(256, 1000)])
    store.digests[0] = digest.encode()
    first, second = (int.from_bytes(digest[at : at + 8].encode(), "little") for at in (0, 8))
    key = split_mix(first) ^ second
    assert content_keys(store).tolist() == [key]

    state = split_mix(split_mix(seed) + epoch)
    state = split_mix(split_mix(key ^ state) + number)
    top, left, flip, one, step = (split_mix(state + i) for i in range(1, 6))
    for flips in (True, False):
        found = crops(store, np.array([0]), number, seed=seed, epoch=epoch, flip=flips)
        expected = [(top >> 11) * 33 >> 53, (left >> 11) * 777 >> 53, (flip >> 63) * flips]
        assert table(found).tolist() == [expected]

    one, step = (one >> 11) * n_views >> 53, 1 + ((step >> 11) * (n_views - 1) >> 53)
    pairs = choose_pairs(content_keys(store), np.array([number]), views=n_views, seed=seed, epoch=epoch)
    assert pairs.tolist() == [[one], [(one + step) % n_views]]

    patterns = choose_patterns(content_keys(store), np.array([number]), seed=seed, epoch=epoch)
    assert patterns.tolist() == [[(split_mix(state + i) >> 11) * 4096 >> 53] for i in (6, 7)]


def test_no_rows_give_no_views() -> None:
    none = np.zeros(0, dtype=np.int64)
    empty = build([])
    assert content_keys(empty).shape == (0,)
    for found in (crops(build(SIZES), none), crops(empty, none), centre_crops(empty, none, size=224)):
        assert table(found).shape == (0, 3)
    assert choose_pairs(content_keys(empty), none, views=8, seed=0, epoch=0).shape == (2, 0)
    assert choose_patterns(content_keys(empty), none, seed=0, epoch=0).shape == (2, 0)


@pytest.mark.parametrize("room", [0, 1, 32, 2**31 - 225])
def test_the_smallest_and_largest_random_words_give_the_first_and_last_position(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = build([(224 + room, 224)])
    for random, top in ((0, 0), (2**64 - 1, room)):
        constant = np.array([random], dtype=np.uint64)
        monkeypatch.setattr(views, "splitmix64", lambda _, constant=constant: constant)
        assert crops(store, np.array([0])).tops.tolist() == [top]


# Patches


@pytest.mark.parametrize(
    ("grid", "kept", "count"), [((16, 16), 0.5, 128), ((5, 8), 0.25, 10), ((3, 3), 1.0, 9), ((2, 2), 0.01, 1)]
)
def test_patterns_are_some_patches_of_a_window(grid: tuple[int, int], kept: float, count: int) -> None:
    found = patch_patterns(grid, kept)
    assert found.shape == (4096, count)
    assert found.min() == 0
    assert found.max() == grid[0] * grid[1] - 1, "every corner is seen"
    assert (np.diff(found, axis=1) > 0).all(), "no patch is seen twice"
    np.testing.assert_array_equal(patch_patterns(grid, kept), found)


def test_patterns_come_from_windows_of_different_sizes_all_over_the_grid() -> None:
    """From the whole grid alone, a tenth of the patches would hardly ever fit into six tenths of each side."""
    rows, columns = np.divmod(patch_patterns((10, 10), 0.1), 10)
    heights, widths = np.ptp(rows, axis=1) + 1, np.ptp(columns, axis=1) + 1
    assert ((heights <= 6) & (widths <= 6)).mean() > 1 / 25, "one of 5 × 5 sizes is the smallest"
    assert heights.max() == widths.max() == 10
    seen = np.bincount((10 * rows + columns).ravel(), minlength=100).reshape(10, 10)
    assert seen.min() > 0
    assert seen[4:6, 4:6].mean() > seen[[0, 0, -1, -1], [0, -1, 0, -1]].mean(), "windows overlap in the middle"


# Centre crops


@pytest.mark.parametrize("size", [4, 5])
def test_centre_crops_match_torchvision(size: int) -> None:
    """Halves are rounded to even: with 1 extra pixel the crop starts at 0, with 3 at 2."""
    functional = pytest.importorskip("torchvision.transforms.functional")
    torch = pytest.importorskip("torch")
    sizes = [(size + i, size + j) for i in range(9) for j in (0, 1, 3, 200)]
    store, rows = build(sizes), np.arange(len(sizes))[::-1]
    found = centre_crops(store, rows, size=size)
    assert found.rows.tolist() == rows.tolist()
    for row, top, left in zip(rows, found.tops, found.lefts, strict=True):
        height, width = sizes[row]
        places = torch.arange(height * width).reshape(1, height, width)
        expected = functional.center_crop(places, [size, size])[0]
        np.testing.assert_array_equal(places[0, top : top + size, left : left + size], expected)
    assert not found.flipped.any()
    batches = list(views.centre_crop_batches(store, rows, size=size, batch_size=7))
    assert [len(batch.rows) for batch in batches] == [7, 7, 7, 7, 7, 1]
    np.testing.assert_array_equal(np.concatenate([table(batch) for batch in batches]), table(found))


# Checks


def test_images_too_small_or_too_large_are_counted_and_the_first_is_reported() -> None:
    store = build([(256, 256), (0, 0), (300, 223), (224, 224), (100, 400)])
    with pytest.raises(InputError) as caught:
        check_size(store, 224, 256)
    assert str(caught.value) == (
        "Stored images must be at least 224 × 224 pixels for this backbone, but 2 are smaller, the first in row 2 "
        "(300 × 223). Pack them with Settings(shorter_side=256)."
    )
    check_size(store, 100, 128)  # missing images have no size
    with pytest.raises(InputError, match=r"1 are smaller, the first in row 4 \(100 × 400\)"):
        check_size(store, 101, 128)
    scraps = build([(256, 256), (0, 0), (513, 600), (512, 9000)])
    check_size(scraps, 224, 257)
    with pytest.raises(InputError) as caught:
        check_size(scraps, 224, 256)
    assert str(caught.value) == (
        "Stored images must have a shorter side of about 256 pixels for this backbone, but 1 have more than twice "
        "that, the first in row 2 (513 × 600). Pack them with Settings(shorter_side=256)."
    )


def test_unreadable_images_are_counted_and_listed() -> None:
    store = build([(9, 9), (0, 0), (9, 9), (0, 0), (0, 0)])
    with pytest.raises(InputError) as caught:
        check_present(store.select(np.arange(5) < 4))
    assert str(caught.value) == (
        "All images must be readable, but 2 could not be read: '1.png', '3.png'. "
        "Leave them out: pack(images.select(store.present), ...)."
    )
    read = store.select(store.present)
    check_present(read)
    check_present(store.select(np.zeros(5, dtype=bool)))
    read.digests[1] = b""
    with pytest.raises(InputError, match=r"^The store must hold a digest of each image\."):
        check_present(read)
