"""Views: a function of seed, epoch, content and number and of nothing else; spread evenly; torchvision as oracle."""

import hashlib
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from sortal import views
from sortal.errors import InputError
from sortal.pixels import Quarantined
from sortal.store import PixelStore
from sortal.views import Crops, centre, check_present, check_size, content_keys, mixed, pair

Ints = NDArray[np.int64]
BIG = 2**63 - 1
untimed = settings(deadline=None)


def build(sizes: Sequence[tuple[int, int]], contents: Sequence[object] | None = None) -> PixelStore:
    """A store of images of these heights and widths, without pixels; those of size 0 could not be read."""
    names = [hashlib.blake2b(repr(each).encode(), digest_size=16).hexdigest() for each in contents or range(len(sizes))]
    digests = np.array([name if size[0] else "" for name, size in zip(names, sizes, strict=True)], dtype="S32")
    heights, widths = np.array(sizes, dtype=np.int64).reshape(-1, 2).T
    quarantine = tuple(Quarantined(f"{row}.png", "truncated", "") for row in np.flatnonzero(heights == 0))
    none = np.zeros(len(sizes), dtype=np.int64)
    return PixelStore([], none, none, heights, widths, quarantine, digests)


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
    return views.random(store, content_keys(store), rows, numbers, size=size, flip=flip, seed=seed, epoch=epoch)


def table(found: Crops) -> NDArray[np.int64]:
    """Top, left and flip of each view, (n, 3)."""
    return np.stack([found.tops, found.lefts, found.flipped], axis=1)


def is_even(values: Ints, n: int) -> bool:
    """Whether whole numbers from 0 to below n are about equally frequent; with fixed seeds, so always or never."""
    assert values.min() >= 0
    assert values.max() < n
    return bool(stats.chisquare(np.bincount(values, minlength=n)).pvalue > 0.001)


# What a view depends on

SIZES = [(256, 300), (224, 400), (256, 256), (512, 256), (240, 250), (300, 224)]


@untimed
@given(st.permutations(range(6)), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=20))
def test_neither_the_order_of_the_store_nor_the_rest_of_the_batch_matters(
    order: list[int], wanted: list[tuple[int, int]]
) -> None:
    store = build(SIZES)
    shuffled = build([SIZES[i] for i in order], contents=order)
    rows, numbers = np.array(wanted, dtype=np.int64).reshape(-1, 2).T
    found = crops(shuffled, np.array([order.index(row) for row in rows], dtype=np.int64), numbers, seed=3, epoch=2)
    assert len(found.tops) == len(wanted)
    for view, row, number in zip(table(found), rows, numbers, strict=True):
        alone = crops(store, np.array([row]), int(number), seed=3, epoch=2)
        assert view.tolist() == table(alone)[0].tolist()


def test_rows_come_back_in_the_order_they_were_asked_for() -> None:
    rows = np.array([5, 0, 0, 3])
    assert crops(build(SIZES), rows).rows.tolist() == [5, 0, 0, 3]
    assert centre(build(SIZES), rows, size=224).rows.tolist() == [5, 0, 0, 3]


def test_copies_of_an_image_have_the_same_views() -> None:
    found = table(crops(build([(300, 300)] * 3, contents=["a", "b", "a"]), np.arange(3)))
    assert found[0].tolist() == found[2].tolist() != found[1].tolist()


def test_each_of_seed_epoch_content_and_number_makes_another_view() -> None:
    n, some = 6, [0, 1, 2, 1000, 2**32, BIG]  # of 10¹² places, 6⁴ views should share none
    store = build([(10**6, 10**6)] * n)
    both = np.meshgrid(np.arange(n), np.array(some), indexing="ij")
    rows, numbers = (values.ravel() for values in both)
    found = [
        (top, left)
        for seed in some
        for epoch in some
        for top, left, _ in table(crops(store, rows, numbers, size=1, seed=seed, epoch=epoch)).tolist()
    ]
    assert len(set(found)) == len(found) == 6**4


def split_mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) % 2**64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ value >> 27) * 0x94D049BB133111EB % 2**64
    return value ^ value >> 31


@untimed
@given(
    st.integers(0, BIG), st.integers(0, BIG), st.integers(0, BIG), st.text("0123456789abcdef", min_size=32, max_size=32)
)
def test_views_are_those_of_python_s_whole_numbers(seed: int, epoch: int, number: int, digest: str) -> None:
    """A rule written down: a run that goes on after an update, and tokens on disk, count on it."""
    store = build([(256, 1000)])
    store.digests[0] = digest.encode()
    first, second = (int.from_bytes(digest[at : at + 8].encode(), "little") for at in (0, 8))
    key = split_mix(first) ^ second
    assert content_keys(store).tolist() == [key]

    state = split_mix(split_mix(seed) + epoch)
    state = split_mix(split_mix(key ^ state) + number)
    top, left, flip, one, step = (split_mix(state + i) for i in range(1, 6))
    found = crops(store, np.array([0]), number, seed=seed, epoch=epoch)
    assert table(found).tolist() == [[(top >> 11) * 33 >> 53, (left >> 11) * 777 >> 53, flip >> 63]]

    one, step = (one >> 11) * 8 >> 53, 1 + ((step >> 11) * 7 >> 53)
    pairs = pair(content_keys(store), np.array([number]), views=8, seed=seed, epoch=epoch)
    assert pairs.tolist() == [[one], [(one + step) % 8]]


def test_without_flips_the_crops_are_the_same() -> None:
    store, rows = build([(300, 300)] * 50), np.arange(50)
    with_flips, without = crops(store, rows), crops(store, rows, flip=False)
    assert with_flips.flipped.any()
    assert not without.flipped.any()
    np.testing.assert_array_equal(with_flips.tops, without.tops)
    np.testing.assert_array_equal(with_flips.lefts, without.lefts)


def test_the_largest_numbers_are_no_trouble() -> None:
    store = build([(256, 256)] * 10)
    found = crops(store, np.arange(10), np.full(10, BIG), seed=BIG, epoch=BIG)
    assert len(np.unique(table(found), axis=0)) == 10
    found_pairs = pair(np.full(3, 2**64 - 1, dtype=np.uint64), np.full(3, BIG), views=8, seed=BIG, epoch=BIG)
    assert found_pairs.shape == (2, 3)


def test_no_rows_give_no_views() -> None:
    none = np.zeros(0, dtype=np.int64)
    empty = build([])
    assert content_keys(empty).shape == (0,)
    for found in (crops(build(SIZES), none), crops(empty, none), centre(empty, none, size=224)):
        assert table(found).shape == (0, 3)
    assert pair(content_keys(empty), none, views=8, seed=0, epoch=0).shape == (2, 0)


# How views are spread

MANY = 20_000


@pytest.mark.parametrize("vary", ["image", "number", "epoch", "seed"])
def test_crops_are_spread_evenly_over_images_numbers_epochs_and_seeds(vary: str) -> None:
    store = build([(256, 240)] * (MANY if vary == "image" else 1))
    if vary == "image":
        found = table(crops(store, np.arange(MANY)))
    elif vary == "number":
        found = table(crops(store, np.zeros(MANY, dtype=np.int64), np.arange(MANY)))
    else:
        row = np.zeros(20, dtype=np.int64)
        each = (
            crops(store, row, np.arange(20), seed=i if vary == "seed" else 9, epoch=i if vary == "epoch" else 4)
            for i in range(MANY // 20)
        )
        found = np.concatenate([table(one) for one in each])
    tops, lefts, flipped = found.T
    assert is_even(tops, 33)  # 256 − 224 + 1, both ends among them
    assert is_even(lefts, 17)
    assert is_even(flipped, 2)
    assert is_even((tops * 17 + lefts) * 2 + flipped, 33 * 17 * 2)  # and of each other independent


def test_views_of_consecutive_numbers_and_epochs_are_independent() -> None:
    store, rows = build([(232, 224)] * MANY), np.arange(MANY)
    here = crops(store, rows, 0)
    for other in (crops(store, rows, 1), crops(store, rows, 0, epoch=1), crops(store, rows, 0, seed=1)):
        assert is_even(here.tops * 9 + other.tops, 81)
        assert is_even(here.flipped * 2 + other.flipped, 4)


@untimed
@given(
    st.lists(st.tuples(st.integers(5, 40), st.integers(5, 40)), min_size=1, max_size=30),
    st.integers(1, 5),
    st.integers(0, BIG),
    st.integers(0, 10**6),
)
def test_crops_lie_within_their_images(sizes: list[tuple[int, int]], size: int, seed: int, epoch: int) -> None:
    found = crops(build(sizes), np.arange(len(sizes)), size=size, seed=seed, epoch=epoch)
    for (height, width), top, left in zip(sizes, found.tops, found.lefts, strict=True):
        assert 0 <= top <= height - size
        assert 0 <= left <= width - size


@pytest.mark.parametrize("room", [0, 1, 2, 32, 1000, 2**31 - 225])
def test_the_lowest_and_highest_random_number_give_the_ends(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    store = build([(224 + room, 224)])
    for random, top in ((0, 0), (2**64 - 1, room)):
        constant = np.array([random], dtype=np.uint64)
        monkeypatch.setattr(views, "mixed", lambda _, constant=constant: constant)
        assert crops(store, np.array([0])).tops.tolist() == [top]


def test_an_image_of_the_size_of_a_view_has_one_place() -> None:
    found = crops(build([(224, 224)] * 100), np.arange(100))
    assert not found.tops.any()
    assert not found.lefts.any()


# The middle


@pytest.mark.parametrize("size", [1, 4, 5, 224])
def test_the_middle_is_torchvision_s_centre_crop(size: int) -> None:
    """It rounds halves to even: of 1 pixel too much the crop starts at 0, of 3 at 2."""
    functional = pytest.importorskip("torchvision.transforms.functional")
    torch = pytest.importorskip("torch")
    sizes = [(size + i, size + j) for i in range(9) for j in (0, 1, 3, 200)]
    found = centre(build(sizes), np.arange(len(sizes)), size=size)
    for (height, width), top, left in zip(sizes, found.tops, found.lefts, strict=True):
        places = torch.arange(height * width).reshape(1, height, width)
        expected = functional.center_crop(places, [size, size])[0]
        np.testing.assert_array_equal(places[0, top : top + size, left : left + size], expected)
    assert not found.flipped.any()


def test_the_middle_by_hand() -> None:
    found = centre(build([(256, 341), (225, 227), (224, 224)]), np.arange(3), size=224)
    assert found.tops.tolist() == [16, 0, 0]
    assert found.lefts.tolist() == [58, 2, 0]  # 58.5 and 1.5


# Pairs of kept views


def keys_of(n: int) -> NDArray[np.uint64]:
    return content_keys(build([(1, 1)] * n))


@untimed
@given(st.integers(2, 30), st.integers(0, 40), st.integers(0, BIG), st.integers(0, 10**6))
def test_a_pair_is_two_different_views(n_views: int, n: int, seed: int, epoch: int) -> None:
    first, second = pair(keys_of(n), np.arange(n), views=n_views, seed=seed, epoch=epoch)
    for one, other in zip(first, second, strict=True):
        assert 0 <= one < n_views
        assert 0 <= other < n_views
        assert one != other


@pytest.mark.parametrize("n_views", [2, 3, 8])
@pytest.mark.parametrize("vary", ["image", "time", "epoch", "seed"])
def test_all_ordered_pairs_are_as_frequent(n_views: int, vary: str) -> None:
    if vary == "image":
        first, second = pair(keys_of(MANY), np.zeros(MANY, dtype=np.int64), views=n_views, seed=0, epoch=0)
    elif vary == "time":
        first, second = pair(np.repeat(keys_of(1), MANY), np.arange(MANY), views=n_views, seed=0, epoch=0)
    else:
        ten = keys_of(10), np.zeros(10, dtype=np.int64)
        each = (
            pair(*ten, views=n_views, seed=i if vary == "seed" else 9, epoch=i if vary == "epoch" else 4)
            for i in range(MANY // 10)
        )
        first, second = np.concatenate(list(each), axis=1)
    assert is_even(first * (n_views - 1) + (second - first) % n_views - 1, n_views * (n_views - 1))


def test_a_pair_depends_on_seed_epoch_content_and_times() -> None:
    some = [0, 1, 2**32, BIG]
    contents, times = (values.ravel() for values in np.meshgrid(keys_of(4), np.array(some), indexing="ij"))
    found = [
        tuple(each)
        for seed in some
        for epoch in some
        for each in pair(contents, times, views=10**6, seed=seed, epoch=epoch).T.tolist()
    ]
    assert len(set(found)) == len(found) == 4**4


def test_a_pair_depends_on_nothing_else_in_the_batch() -> None:
    keys, times = keys_of(20), np.arange(20) % 3
    whole = pair(keys, times, views=8, seed=1, epoch=2)
    order = np.random.default_rng(0).permutation(20)[:13]
    np.testing.assert_array_equal(pair(keys[order], times[order], views=8, seed=1, epoch=2), whole[:, order])


def test_the_choice_of_a_pair_says_nothing_about_crops() -> None:
    store = build([(232, 224)] * MANY)
    found = crops(store, np.arange(MANY))
    first, second = pair(content_keys(store), np.zeros(MANY, dtype=np.int64), views=8, seed=0, epoch=0)
    assert is_even(found.tops * 8 + first, 9 * 8)
    assert is_even(found.flipped * 8 + second, 2 * 8)


# Keys


def test_split_mix_is_as_published() -> None:
    """The first three numbers of the reference implementation from the state 1234567."""
    golden = 0x9E3779B97F4A7C15
    states = np.array([(1234567 + i * golden) % 2**64 for i in range(3)], dtype=np.uint64)
    assert mixed(states).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert mixed(np.uint64(0)).tolist() == [0xE220A8397B1DCDAF]


def test_different_contents_have_different_keys() -> None:
    keys = content_keys(build([(1, 1)] * MANY))
    assert keys.dtype == np.uint64
    assert len(np.unique(keys)) == MANY
    assert is_even((keys >> np.uint64(60)).astype(np.int64), 16)


@pytest.mark.parametrize("at", range(16))
def test_each_of_the_first_16_characters_of_a_digest_counts(at: int) -> None:
    store = build([(1, 1)] * 16)
    digest = b"0123456789abcdef" * 2
    store.digests[:] = [digest[:at] + b"%x" % value + digest[at + 1 :] for value in range(16)]
    assert len(np.unique(content_keys(store))) == 16


def test_keys_belong_to_contents_not_to_rows() -> None:
    names = ["a", "b", "c", "b"]
    keys, reverse = (content_keys(build([(9, 9)] * 4, contents=each)) for each in (names, names[::-1]))
    assert keys.tolist() == reverse.tolist()[::-1]
    assert keys[1] == keys[3]


# Checks


def test_images_smaller_than_a_view_are_counted_and_the_first_is_named() -> None:
    store = build([(256, 256), (0, 0), (300, 223), (224, 224), (100, 400)])
    with pytest.raises(InputError) as caught:
        check_size(store, 224, 256)
    assert str(caught.value) == (
        "Stored images must be at least 224 × 224 pixels for this backbone; 2 are not, the first in row 2 (300 × 223). "
        "Pack them with Settings(shorter_side=256)."
    )
    check_size(store, 100, 128)  # an image that is not there has no size
    with pytest.raises(InputError, match=r"1 are not, the first in row 4 \(100 × 400\)"):
        check_size(store, 101, 128)


def test_images_of_which_a_view_would_show_a_scrap_are_refused() -> None:
    store = build([(256, 256), (0, 0), (513, 600), (512, 9000)])
    check_size(store, 224, 257)
    with pytest.raises(InputError) as caught:
        check_size(store, 224, 256)
    assert str(caught.value) == (
        "Stored images must have a shorter side of about 256 pixels for this backbone; 1 have more than twice as much, "
        "the first in row 2 (513 × 600). Pack them with Settings(shorter_side=256)."
    )


def test_images_that_could_not_be_read_are_counted_and_named() -> None:
    store = build([(9, 9), (0, 0), (9, 9), (0, 0)])
    with pytest.raises(InputError) as caught:
        check_present(store, np.arange(4))
    assert str(caught.value) == (
        "Every image must have been read; 2 were not: '1.png', '3.png'. "
        "Leave them out: pack(images.select(store.present), ...)."
    )
    check_present(store, np.array([0, 2]))
    check_present(store, np.zeros(0, dtype=np.int64))


def test_of_images_that_could_not_be_read_only_those_asked_for_are_named() -> None:
    store = build([(0, 0), (9, 9), (0, 0), (9, 9)])
    with pytest.raises(InputError, match=r"1 were not: '2\.png'\. Leave"):
        check_present(store, np.array([1, 2, 3]))
