"""Decoding: a corpus of nasty files and what must become of each; Pillow and torchvision as oracles; cuts and flips."""

import io
import os
import random
import signal
import string
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import nasty
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from nasty import CORPUS, UNTOLD, Ok
from numpy.typing import NDArray
from PIL import Image, ImageFile, ImageOps, WebPImagePlugin
from PIL.JpegImagePlugin import JpegImageFile
from PIL.TiffImagePlugin import TiffImageFile

from sortal import pixels
from sortal.pixels import Picture, UnreadableError, check_resized, decode, digest, read, resized, size

GOOD = [name for name, (_, verdict) in CORPUS.items() if isinstance(verdict, Ok)]
BAD = [name for name in CORPUS if name not in GOOD]
HUGE = [name for name in BAD if CORPUS[name][1] == "too large"]
untimed = settings(deadline=None)
sides = st.integers(1, 20_000)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return nasty.write(tmp_path_factory.mktemp("nasty"))


@contextmanager
def patience(seconds: int = 20) -> Iterator[None]:
    """Fail rather than wait for ever."""

    def give_up(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def content(name: str) -> bytes:
    data = CORPUS[name][0]
    assert isinstance(data, bytes)
    return data


def difference(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> NDArray[np.int64]:
    off: NDArray[np.int64] = np.abs(one.astype(np.int64) - other)
    return off


def outcome(work: Callable[[], Any]) -> str:
    """The reason for which an image was refused, or "ok"."""
    try:
        work()
    except UnreadableError as error:
        caught = error
    else:
        return "ok"
    assert caught.detail
    assert str(caught) == f"{caught.reason}: {caught.detail}"
    return caught.reason


# The corpus


def test_the_corpus_is_as_large_as_promised() -> None:
    parts = (
        *(nasty.JPEGS, nasty.PNGS, nasty.TIFFS, nasty.OTHERS, nasty.WAYS),
        *(nasty.HALVES, nasty.FOREIGN, nasty.PLACES, nasty.NAMES),
    )
    assert sum(map(len, parts)) == len(CORPUS)  # no name is given twice
    assert len(GOOD) >= 60
    assert len(BAD) >= 60


@pytest.mark.parametrize("name", GOOD)
def test_what_can_be_seen_is_seen_as_it_is(name: str, paths: dict[str, Path]) -> None:
    expected = CORPUS[name][1]
    assert isinstance(expected, Ok)
    found = decode(read(str(paths[name])))
    assert found.rgb.shape == expected.rgb.shape
    assert found.rgb.dtype == np.uint8
    off = difference(found.rgb, expected.rgb)
    if expected.seams:
        high, wide = (np.abs(np.arange(n) + 0.5 - n / 2) > expected.seams for n in off.shape[:2])
        off = off[high][:, wide]
    assert off.max() <= expected.near
    assert (found.format, found.bits, found.rotated) == (expected.format, expected.bits, expected.rotated)
    assert (found.height, found.width) == expected.rgb.shape[:2]


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_read_says_why(name: str, paths: dict[str, Path]) -> None:
    with patience():
        assert outcome(lambda: decode(read(str(paths[name])))) == CORPUS[name][1]


@pytest.mark.parametrize("name", BAD)
def test_shrinking_overlooks_no_damage(name: str, paths: dict[str, Path]) -> None:
    """Not even where JPEGs are decoded at an eighth of their size."""
    with patience():
        assert outcome(lambda: decode(read(str(paths[name])), shorter_side=2)) == CORPUS[name][1]


@pytest.mark.parametrize("name", GOOD)
def test_header_alone_tells_the_size(name: str, paths: dict[str, Path]) -> None:
    data = read(str(paths[name]))
    found = decode(data)
    assert sorted(size(data)) == sorted((found.width, found.height))
    if not found.rotated:
        assert size(data) == (found.width, found.height)


@pytest.mark.parametrize("name", HUGE)
def test_bombs_are_refused_before_anything_is_decoded(
    name: str, paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = read(str(paths[name]))
    for kind in (ImageFile.ImageFile, TiffImageFile, WebPImagePlugin.WebPImageFile):
        monkeypatch.setattr(kind, "load", lambda self: pytest.fail("it was decoded"))
    assert outcome(lambda: decode(data)) == "too large"
    assert outcome(lambda: size(data)) == "too large"


@pytest.mark.parametrize("name", GOOD)
def test_a_smaller_image_is_the_whole_one_resized(name: str, paths: dict[str, Path]) -> None:
    data = read(str(paths[name]))
    whole, small = decode(data), decode(data, shorter_side=12, draft=False)
    upright = Image.fromarray(whole.rgb)
    expected = upright.resize(shrunk(*upright.size, 12), Image.Resampling.BICUBIC)
    assert np.array_equal(small.rgb, np.asarray(expected))
    assert (small.width, small.height, small.format) == (whole.width, whole.height, whole.format)
    assert (small.bits, small.rotated) == (whole.bits, whole.rotated)


@pytest.mark.parametrize("name", ["thin.png", "wide.png"])
def test_too_thin_to_be_resized(name: str, paths: dict[str, Path]) -> None:
    """1 × 20,000 pixels would become 256 × 5,120,000."""
    data = read(str(paths[name]))
    with pytest.raises(UnreadableError, match=r"20,000.* would become .*5,120,000.*the limit is 80,000,000") as caught:
        decode(data, shorter_side=256)
    assert caught.value.reason == "too large"
    assert decode(data, shorter_side=10).rgb.size == 3 * 10 * 200_000


def test_no_warning_escapes(paths: dict[str, Path]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for path in paths.values():
            outcome(lambda path=path: decode(read(str(path)), shorter_side=8))  # type: ignore[misc]
            outcome(lambda path=path: size(read(str(path))))  # type: ignore[misc]
    assert [str(warning.message) for warning in caught] == []


@pytest.mark.xfail(reason="Pillow's decoders fill in what is missing and say nothing")
@pytest.mark.parametrize("name", UNTOLD)
def test_damage_that_decoders_keep_to_themselves(name: str) -> None:
    data, verdict = UNTOLD[name]
    assert isinstance(data, bytes)
    assert outcome(lambda: decode(data)) == verdict


# Reading


def test_read_gives_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\0\r\n\xff")
    assert read(str(tmp_path / "a")) == b"\0\r\n\xff"


@pytest.mark.parametrize("name", ["nothing", "file/below a file", "x" * 300 + ".jpg", "null \0.jpg", "\ud800.jpg"])
def test_nothing_there_is_missing(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    assert outcome(lambda: read(f"{tmp_path}/{name}")) == "missing"


def test_a_device_is_not_a_file() -> None:
    with patience():
        assert outcome(lambda: read("/dev/zero")) == "not a file"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_forbidden_folder(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed" / "a.png").write_bytes(nasty.PLAIN["png"])
    (tmp_path / "closed").chmod(0)
    try:
        assert outcome(lambda: read(str(tmp_path / "closed" / "a.png"))) == "forbidden"
    finally:
        (tmp_path / "closed").chmod(0o700)


def test_files_beyond_all_images_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixels, "MAX_BYTES", 10)
    (tmp_path / "ten").write_bytes(bytes(10))
    (tmp_path / "eleven").write_bytes(bytes(11))
    assert read(str(tmp_path / "ten")) == bytes(10)
    assert outcome(lambda: read(str(tmp_path / "eleven"))) == "too large"


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_links_are_followed(link: Callable[[Path, Path], None], tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    link(tmp_path / "a", tmp_path / "b")
    assert read(str(tmp_path / "b")) == b"abc"


# Sizes


def shrunk(width: int, height: int, side: int) -> tuple[int, int]:
    """The rule of torchvision.transforms.Resize, in its own words."""
    short, long = (width, height) if width <= height else (height, width)
    new_short, new_long = side, int(side * long / short)
    return (new_short, new_long) if width <= height else (new_long, new_short)


@given(sides, sides, st.integers(1, 4096))
def test_resized_follows_torchvision(width: int, height: int, side: int) -> None:
    assert resized(width, height, side) == shrunk(width, height, side)


@given(sides, sides, st.integers(1, 4096))
def test_resized_has_the_shorter_side_asked_for(width: int, height: int, side: int) -> None:
    wide, high = resized(width, height, side)
    assert min(wide, high) == side
    assert (high, wide) == resized(height, width, side)
    assert (width < height) <= (wide <= high)
    assert abs(max(wide, high) - side * max(width, height) / min(width, height)) < 1


@pytest.mark.parametrize(
    ("width", "height", "side", "expected"),
    [(640, 480, 256, (341, 256)), (480, 640, 256, (256, 341)), (5, 5, 7, (7, 7)), (1, 3, 2, (2, 6)), (3, 2, 1, (1, 1))],
)
def test_resized_by_hand(width: int, height: int, side: int, expected: tuple[int, int]) -> None:
    assert resized(width, height, side) == expected


@given(sides, sides, st.integers(1, 4096), st.integers(1, 10**9))
def test_check_resized_holds_the_limit(width: int, height: int, side: int, limit: int) -> None:
    wide, high = resized(width, height, side)
    found = outcome(lambda: check_resized(width, height, side, limit))
    assert found == ("ok" if wide * high <= limit else "too large")
    if found == "ok":
        assert check_resized(width, height, side, limit) == (wide, high)


@pytest.mark.parametrize("shape", [(100, 75), (75, 100), (64, 64), (333, 17), (17, 333), (1, 5), (224, 300)])
@pytest.mark.parametrize("side", [16, 75, 224])
def test_pixels_equal_those_of_torchvision(shape: tuple[int, int], side: int) -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    picture = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    expected = transforms.Resize(side, transforms.InterpolationMode.BICUBIC)(Image.fromarray(picture))
    assert np.array_equal(decode(picture, shorter_side=side).rgb, np.asarray(expected))
    assert np.array_equal(decode(nasty.saved(picture, "PNG"), shorter_side=side).rgb, np.asarray(expected))


@pytest.mark.parametrize(("width", "height"), [(40, 25), (25, 40)])
def test_the_limit_of_pixels_is_an_option(width: int, height: int) -> None:
    data = nasty.saved(np.zeros((height, width, 3), dtype=np.uint8), "PNG")
    assert decode(data, max_pixels=1000).rgb.shape == (height, width, 3)
    assert size(data, max_pixels=1000) == (width, height)
    assert outcome(lambda: decode(data, max_pixels=999)) == "too large"
    assert outcome(lambda: size(data, max_pixels=999)) == "too large"
    assert decode(data, shorter_side=50, max_pixels=4000).rgb.size == 3 * 4000
    assert outcome(lambda: decode(data, shorter_side=51, max_pixels=4000)) == "too large"


def test_the_limit_of_pixels_holds_for_pixels_too() -> None:
    assert outcome(lambda: decode(np.zeros((1, 9, 3), dtype=np.uint8), shorter_side=4, max_pixels=143)) == "too large"


def test_the_limit_of_pixels_can_be_raised_beyond_the_one_of_pillow() -> None:
    data = nasty.png(nasty.LUMA, size=(20_000, 10_000))  # Pillow's is 179 million
    assert size(data, max_pixels=200_000_000) == (20_000, 10_000)
    assert outcome(lambda: size(data, max_pixels=199_999_999)) == "too large"


# Ways up


@pytest.mark.parametrize("way", nasty.SIDES)
@pytest.mark.parametrize("end", ["jpg", "png", "webp", "tif"])
def test_all_ways_up_agree_with_pillow(way: int, end: str) -> None:
    data = content(f"way {way}.{end}")
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    assert np.array_equal(decode(data).rgb, expected)


@pytest.mark.parametrize(
    ("way", "corners"),
    [
        (1, [nasty.RED, nasty.GREEN, nasty.BLUE, nasty.GOLD]),
        (3, [nasty.GOLD, nasty.BLUE, nasty.GREEN, nasty.RED]),  # upside down
        (6, [nasty.BLUE, nasty.RED, nasty.GOLD, nasty.GREEN]),  # the camera was turned to the left
        (8, [nasty.GREEN, nasty.GOLD, nasty.RED, nasty.BLUE]),
    ],
)
def test_corners_of_turned_photographs(way: int, corners: list[tuple[int, int, int]]) -> None:
    """Top left, top right, bottom left, bottom right."""
    rgb = decode(nasty.saved(nasty.SCENE, "WEBP", lossless=True, exif=nasty.exif(way))).rgb
    assert [tuple(rgb[y, x].tolist()) for y in (0, -1) for x in (0, -1)] == corners


# Depth


def test_every_value_of_16_bits() -> None:
    values = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    expected = (2 * values.astype(np.int64) + 257) // 514  # v · 255 / 65535, rounded, without floats
    for data in (nasty.png(values, bits=16), nasty.grey_tiff(values), nasty.grey_tiff(values, order=">")):
        found = decode(data)
        assert np.array_equal(found.rgb, np.repeat(expected[..., None], 3, axis=2))
        assert found.bits == 16


@given(hnp.arrays(np.uint16, hnp.array_shapes(min_dims=2, max_dims=2, max_side=8)))
@untimed
def test_16_bits_keep_their_order(values: NDArray[np.uint16]) -> None:
    seen = decode(nasty.png(values, bits=16)).rgb[..., 0].ravel()
    assert (np.diff(seen[np.argsort(values.ravel())].astype(int)) >= 0).all()


@given(hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=8)))
@untimed
def test_floats_of_any_value_keep_their_order(values: NDArray[np.float32]) -> None:
    """NaN is black, as is −∞; ∞ is the lightest there is."""
    seen = decode(nasty.grey_tiff(values)).rgb[..., 0].astype(int)
    known = values[~np.isnan(values)]
    assert (np.diff(seen[~np.isnan(values)][np.argsort(known)]) >= 0).all()
    assert (seen[np.isnan(values)] == 0).all()


@given(hnp.arrays(np.int32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=8)))
@untimed
def test_whole_numbers_of_any_value_keep_their_order(values: NDArray[np.int32]) -> None:
    seen = decode(nasty.grey_tiff(values)).rgb[..., 0].ravel().astype(int)
    assert (np.diff(seen[np.argsort(values.ravel())]) >= 0).all()


# Drafts: a JPEG decoded at a fraction of its size


@cache
def photograph(way: int = 1, mode: str = "RGB") -> bytes:
    """400 × 300 pixels of soft shapes."""
    y, x = np.mgrid[:300, :400]
    waves = [np.sin(x / 37) * np.cos(y / 23), np.sin((x + y) / 41), np.cos(x / 29 - y / 53)]
    image = Image.fromarray(np.rint(127.5 + 127 * np.dstack(waves)).astype(np.uint8)).convert(mode)
    return nasty.jpeg(image, exif=nasty.exif(way))


@pytest.fixture
def drafted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The sizes at which JPEGs were decoded."""
    sizes: list[tuple[int, int]] = []
    load = JpegImageFile.load

    def note(self: JpegImageFile) -> Any:
        sizes.append(self.size)
        return load(self)

    monkeypatch.setattr(JpegImageFile, "load", note)
    return sizes


@pytest.mark.parametrize("way", [1, 6])
@pytest.mark.parametrize(
    ("side", "expected"),
    [
        (400, (400, 300)),
        (300, (400, 300)),
        (76, (400, 300)),  # 3.95 times as large
        (75, (200, 150)),  # 4 times: half of it is still twice what is asked for
        (38, (200, 150)),
        (37, (100, 75)),
        (18, (50, 38)),
        (3, (50, 38)),
    ],
)
def test_drafts_are_never_below_twice_the_size_asked_for(
    side: int, expected: tuple[int, int], way: int, drafted: list[tuple[int, int]]
) -> None:
    decode(photograph(way), shorter_side=side)
    assert drafted[0] == expected


def test_no_draft_when_nothing_is_asked_for(drafted: list[tuple[int, int]]) -> None:
    decode(photograph())
    decode(photograph(), shorter_side=20, draft=False)
    assert set(drafted) == {(400, 300)}


@pytest.mark.parametrize("way", [1, 5, 6])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_draft_changes_pixels_a_little(way: int, mode: str) -> None:
    data = photograph(way, mode)
    for side in (75, 37, 18):
        draft, exact = decode(data, shorter_side=side), decode(data, shorter_side=side, draft=False)
        assert draft.rgb.shape == exact.rgb.shape
        assert 0 < difference(draft.rgb, exact.rgb).mean() < 1  # 3 or more where they do not lie on each other
        assert (draft.width, draft.height) == (exact.width, exact.height) == ((400, 300) if way == 1 else (300, 400))


@pytest.mark.parametrize("side", [76, 150, 299, 300, 500])
def test_an_image_less_than_four_times_as_large_is_exact(side: int) -> None:
    with Image.open(io.BytesIO(photograph())) as image:
        expected = image.convert("RGB").resize(shrunk(400, 300, side), Image.Resampling.BICUBIC)
    assert np.array_equal(decode(photograph(), shorter_side=side).rgb, np.asarray(expected))


def test_without_draft_it_is_exact_at_any_size() -> None:
    with Image.open(io.BytesIO(photograph())) as image:
        for side in (75, 37, 18, 1):
            expected = image.convert("RGB").resize(shrunk(400, 300, side), Image.Resampling.BICUBIC)
            assert np.array_equal(decode(photograph(), shorter_side=side, draft=False).rgb, np.asarray(expected))


# Pixels as they are, and what content is known by


@given(hnp.arrays(np.uint8, st.tuples(st.integers(1, 6), st.integers(1, 6), st.just(3))))
@untimed
def test_pixels_are_taken_as_they_are(array: NDArray[np.uint8]) -> None:
    found = decode(array)
    assert np.array_equal(found.rgb, array)
    assert (found.height, found.width) == array.shape[:2]
    assert (found.format, found.bits, found.rotated) == ("pixels", 8, False)


def test_pixels_may_lie_in_memory_in_any_way() -> None:
    wide = nasty.NOISE[::2, ::-3]
    assert np.array_equal(decode(wide).rgb, wide)
    assert digest(wide) == digest(wide.copy())


@given(st.binary(), st.binary())
def test_digests_are_equal_for_equal_bytes_only(one: bytes, other: bytes) -> None:
    assert len(digest(one)) == pixels.DIGEST
    assert set(digest(one)) <= set(string.hexdigits.lower())
    assert (digest(one) == digest(other)) == (one == other)
    assert digest(one) == digest(bytes(bytearray(one)))


@given(
    st.lists(
        hnp.arrays(np.uint8, st.tuples(st.integers(1, 3), st.integers(1, 3), st.just(3)), elements=st.integers(0, 1)),
        min_size=2,
        max_size=2,
    )
)
def test_digests_are_equal_for_equal_pixels_only(arrays: list[NDArray[np.uint8]]) -> None:
    one, other = arrays
    assert (digest(one) == digest(other)) == np.array_equal(one, other)  # which is false where shapes differ
    assert digest(one) != digest(one.tobytes())


def test_digests_stay_what_they_were() -> None:
    """Stores are known by them."""
    assert digest(b"") == "cae66941d9efbd404e4d88758ea67670"
    assert digest(np.zeros((1, 1, 3), dtype=np.uint8)) == digest(b"pixels (1, 1, 3) \0\0\0")


# Cuts and flips

SAMPLES: dict[str, bytes] = {
    **nasty.PLAIN,
    "noise.jpg": nasty.jpeg(nasty.NOISE),
    "grey noise.jpg": nasty.jpeg(nasty.NOISE[..., 0], quality=50),
    "progressive noise.jpg": nasty.jpeg(nasty.NOISE, progressive=True),
    "restart noise.jpg": nasty.jpeg(nasty.NOISE, restart_marker_blocks=2),
    "noise.png": nasty.png(nasty.NOISE, colour=2, split=1000),
    "interlaced noise.png": nasty.png(nasty.NOISE, colour=2, interlaced=True),
    "noise.webp": nasty.saved(nasty.NOISE, "WEBP", quality=80),
    "lossless noise.webp": nasty.saved(nasty.NOISE, "WEBP", lossless=True),
    "noise.gif": nasty.saved(nasty.NOISE[..., 0], "GIF"),
    "LZW noise.tif": nasty.saved(nasty.NOISE, "TIFF", compression="tiff_lzw"),
    "deflate noise.tif": nasty.saved(nasty.NOISE, "TIFF", compression="tiff_adobe_deflate"),
    "JPEG noise.tif": nasty.saved(nasty.NOISE, "TIFF", compression="jpeg"),
    "directory first LZW.tif": nasty.tiff([nasty.lzw(nasty.SCENE)], bits=[8, 8, 8], photometric=2, compression=5),
    **{
        name: content(name)
        for name in (
            "phone.jpg",
            "animated.png",
            "animated.gif",
            "animated.webp",
            "pages.tif",
            "tiles.tif",
            "planes.tif",
            "fax.tif",
            "big.tif",
            "float to 1.tif",
            "grey 12 bits.tif",
            "way by XMP.tif",
            "palette, half clear.png",
            "runs.bmp",
            "4 bits.bmp",
        )
    },
}
SMALL = 1_000_000  # pixels; a header that lies costs no time


def cuts(length: int) -> list[int]:
    """Where to cut: all over the file, at every byte of its start and its end."""
    return sorted({*range(min(64, length)), *range(0, length, length // 60 or 1), *range(max(length - 64, 0), length)})


def attempt(data: bytes, side: int | None = None) -> Picture | str:
    """A picture, or the reason why not; anything else is a mistake of ours."""
    try:
        return decode(data, shorter_side=side, max_pixels=SMALL)
    except UnreadableError as error:
        return error.reason


@pytest.mark.parametrize("name", SAMPLES)
def test_a_cut_file_is_refused_or_the_same(name: str) -> None:
    """What is missing may only be what does not matter."""
    data = SAMPLES[name]
    whole = decode(data)
    found = {end: attempt(data[:end]) for end in cuts(len(data))}
    other = [end for end, got in found.items() if isinstance(got, Picture) and not np.array_equal(got.rgb, whole.rgb)]
    assert other == [], f"other pixels when cut there, of {len(data)} bytes"
    reasons = [got for got in found.values() if not isinstance(got, Picture)]
    assert set(reasons) <= {"truncated", "damaged", "not an image", "unsupported"}
    assert len(reasons) > len(found) // 3


@pytest.mark.parametrize("name", SAMPLES)
def test_flipped_bytes_cause_nothing_else_than_refusal(name: str) -> None:
    generator = random.Random(name)
    for _ in range(150):
        data = bytearray(SAMPLES[name])
        reach = generator.choice([64, len(data)])  # headers have few bytes and deserve most of the attention
        for _ in range(generator.randint(1, 4)):
            data[generator.randrange(min(reach, len(data)))] = generator.randrange(256)
        side = generator.choice([None, 8])
        found = attempt(bytes(data), side)
        if isinstance(found, Picture):
            shape = (found.width, found.height) if side is None else resized(found.width, found.height, side)
            assert found.rgb.shape == (*shape[::-1], 3)


def test_pictures_of_phones_are_told_apart() -> None:
    with pytest.raises(UnreadableError) as caught:
        pixels.decode(b"\0\0\0\x18ftypheic" + bytes(100))
    assert (caught.value.reason, caught.value.detail) == ("not an image", "HEIC, AVIF or a film; save it as JPEG")


@pytest.mark.parametrize("side", [9_000, 60_000])  # above our limit, and above Pillow's own
def test_too_large_names_our_limit(side: int) -> None:
    header = struct.pack(">II5B", side, side, 8, 0, 0, 0, 0)
    chunk = b"IHDR" + header
    data = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk)) + b"\0\0\0\0IDAT"
    with pytest.raises(UnreadableError, match="pixels; the limit is 80,000,000") as caught:
        pixels.size(data)
    assert caught.value.reason == "too large"


@pytest.mark.parametrize(
    ("reason", "detail", "lasting"),
    [
        ("truncated", "image file is truncated", True),
        ("damaged", "bad checksum", True),
        ("damaged", "broken data stream when reading image file", False),  # or too little memory, for a JPEG
        ("damaged", "could not create decoder object", False),  # the same for a WebP
        ("no memory", "", False),
        ("changed", "", False),
    ],
)
def test_which_verdicts_last(reason: pixels.Reason, detail: str, lasting: bool) -> None:
    assert UnreadableError(reason, detail).lasting == lasting
