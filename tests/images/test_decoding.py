"""Decoding: a corpus of nasty files with expected outcomes; Pillow and torchvision as oracles; damaged files."""

import io
import random
import signal
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageFile, WebPImagePlugin
from PIL.JpegImagePlugin import JpegImageFile
from PIL.TiffImagePlugin import TiffImageFile
from support import nasty
from support.nasty import CORPUS, Ok

from sortal.errors import UnreadableError
from sortal.images import decoding
from sortal.images.decoding import Picture, check_resized, decode, digest, read, resized_size, size

GOOD = [name for name, (_, verdict) in CORPUS.items() if isinstance(verdict, Ok)]
BAD = [name for name in CORPUS if name not in GOOD]
HUGE = [name for name in BAD if CORPUS[name][1] == "too large"]
sides = st.integers(1, 20_000)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return nasty.write(tmp_path_factory.mktemp("nasty"))


@pytest.fixture
def impatient() -> Iterator[None]:
    """Fail instead of hanging."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("timed out"))
    signal.alarm(120)
    yield
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
    """Return the reason why an image was refused, or "ok"; warnings are errors."""
    found: UnreadableError | None = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            work()
        except UnreadableError as error:
            found = error
    assert [str(warning.message) for warning in caught] == []
    if found is None:
        return "ok"
    assert found.detail
    assert str(found) == f"{found.reason}: {found.detail}"
    return found.reason


def shrunk(width: int, height: int, side: int) -> tuple[int, int]:
    """Apply the rule of torchvision.transforms.Resize as documented."""
    short, long = sorted((width, height))
    new_long = int(side * long / short)
    return (side, new_long) if width <= height else (new_long, side)


def shrink(rgb: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    image = Image.fromarray(rgb)
    return np.asarray(image.resize(shrunk(*image.size, side), Image.Resampling.BICUBIC))


@pytest.mark.parametrize("name", GOOD)
def test_readable_files_are_decoded_as_expected(name: str, paths: dict[str, Path]) -> None:
    expected = CORPUS[name][1]
    assert isinstance(expected, Ok)
    data = read(str(paths[name]))
    assert outcome(lambda: (decode(data), size(data))) == "ok"
    found = decode(data)
    assert found.rgb.shape == expected.rgb.shape
    assert found.rgb.dtype == np.uint8
    assert difference(found.rgb, expected.rgb).max() <= expected.near
    assert (found.bits, found.rotated) == (expected.bits, expected.rotated)
    assert (found.height, found.width) == expected.rgb.shape[:2]
    # The header alone gives the size
    assert sorted(size(data)) == sorted((found.width, found.height))
    assert found.rotated or size(data) == (found.width, found.height)
    # A smaller image is the full one resized
    small = decode(data, shorter_side=12, draft=False)
    assert np.array_equal(small.rgb, shrink(found.rgb, 12))
    assert (small.width, small.height) == (found.width, found.height)
    assert (small.bits, small.rotated) == (found.bits, found.rotated)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("name", BAD)
def test_unreadable_files_are_refused_with_a_reason(name: str, paths: dict[str, Path]) -> None:
    """Even if JPEGs are decoded at an eighth of their size."""
    assert outcome(lambda: decode(read(str(paths[name])))) == CORPUS[name][1]
    assert outcome(lambda: decode(read(str(paths[name])), shorter_side=2)) == CORPUS[name][1]


@pytest.mark.parametrize("name", HUGE)
def test_decompression_bombs_are_refused_before_decoding(
    name: str, paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = read(str(paths[name]))
    for kind in (ImageFile.ImageFile, TiffImageFile, WebPImagePlugin.WebPImageFile):
        monkeypatch.setattr(kind, "load", lambda self: pytest.fail("it was decoded"))
    for work in (decode, size):
        with pytest.raises(UnreadableError, match="pixels; max_pixels is 80,000,000") as caught:
            work(data)
        assert caught.value.reason == "too large"


def test_phone_formats_are_recognised_with_a_suggestion() -> None:
    with pytest.raises(UnreadableError, match="not an image: HEIC, AVIF or a video; save it as JPEG"):
        decode(content("photo.heic.jpg"))
    with pytest.raises(UnreadableError, match="not an image: none of JPEG, PNG"):
        decode(content("text.jpg"))


def test_heic_is_decoded_where_pillow_heif_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for it, whose HEIC is a PNG after the first box; the one that decodes is registered once."""
    start, scene = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", nasty.saved(nasty.SCENE, "PNG")
    registered = Mock(side_effect=lambda: Image.register_open("HEIF", lambda file, _: opened(file), lambda head: True))

    def opened(file: Any) -> ImageFile.ImageFile:
        return Image.open(io.BytesIO(file.read()[len(start) :]), formats=["PNG"])

    monkeypatch.setitem(sys.modules, "pillow_heif", SimpleNamespace(register_heif_opener=registered))
    monkeypatch.setattr(decoding, "reads_heif", lambda: True)
    monkeypatch.setattr(Image, "OPEN", {name: each for name, each in Image.OPEN.items() if name != "HEIF"})
    monkeypatch.setattr(Image, "ID", [each for each in Image.ID if each != "HEIF"])
    for _ in range(2):
        np.testing.assert_array_equal(decode(start + scene).rgb, decode(scene).rgb)
    registered.assert_called_once()
    monkeypatch.setattr(decoding, "reads_heif", lambda: False)
    with pytest.raises(UnreadableError, match="save it as JPEG, or to read HEIC, pip install pillow-heif"):
        decode(start + scene)


def test_a_photograph_in_heic_is_decoded() -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    file = io.BytesIO()
    pillow_heif.from_pillow(Image.new("RGB", (64, 48), (200, 40, 40))).save(file, quality=90)
    rgb = decode(file.getvalue()).rgb
    assert rgb.shape == (48, 64, 3)
    assert np.abs(rgb.astype(int) - (200, 40, 40)).max() <= 8, "a plain colour survives the encoder"


def test_possible_lack_of_memory_is_not_a_lasting_verdict() -> None:
    """JPEG and WebP decoders report it as damage."""
    assert UnreadableError("truncated", "image file is truncated").lasting
    assert UnreadableError("damaged", "bad checksum").lasting
    for detail in ("broken data stream when reading image file", "could not create decoder object"):
        assert not UnreadableError("damaged", detail).lasting
    assert not UnreadableError("no memory", "").lasting
    assert not UnreadableError("unavailable", "").lasting


@pytest.mark.usefixtures("impatient")
def test_only_regular_files_up_to_a_size_limit_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "MAX_BYTES", 10)
    ten = b"\0\r\n\xff" + bytes(6)
    (tmp_path / "ten").write_bytes(ten)
    (tmp_path / "eleven").write_bytes(bytes(11))
    assert read(str(tmp_path / "ten")) == ten
    assert outcome(lambda: read(str(tmp_path / "eleven"))) == "too large"
    assert outcome(lambda: read("/dev/zero")) == "not a file"
    for name in ("nothing", "ten/below a file", "x" * 300 + ".jpg", "null \0.jpg", "\ud800.jpg"):
        assert outcome(lambda path=f"{tmp_path}/{name}": read(path)) == "missing"  # type: ignore[misc]
    for error, reason in (
        (PermissionError(13, "Permission denied"), "forbidden"),
        (OSError(5, "Input/output error"), "unavailable"),
        (MemoryError(), "no memory"),
    ):
        monkeypatch.setattr(decoding, "open_regular", Mock(side_effect=error))
        assert outcome(lambda: read(str(tmp_path / "ten"))) == reason


@given(sides, sides, st.integers(1, 4096), st.integers(1, 10**9))
def test_sizes_equal_those_of_torchvision_up_to_a_limit(width: int, height: int, side: int, limit: int) -> None:
    wide, high = shrunk(width, height, side)
    assert resized_size(width, height, side) == (wide, high)
    assert check_resized(width, height, side, wide * high) == (wide, high)
    assert outcome(lambda: check_resized(width, height, side, wide * high - 1)) == "too large"
    assert outcome(lambda: check_resized(width, height, side, limit)) == ("ok" if wide * high <= limit else "too large")


@pytest.mark.parametrize("shape", [(100, 75), (64, 64), (17, 333), (1, 5)])
@pytest.mark.parametrize("side", [16, 75, 224])
def test_pixels_equal_those_of_torchvision(shape: tuple[int, int], side: int) -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    picture = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    expected = transforms.Resize(side, transforms.InterpolationMode.BICUBIC)(Image.fromarray(picture))
    assert np.array_equal(decode(picture, shorter_side=side).rgb, np.asarray(expected))
    assert np.array_equal(decode(nasty.saved(picture, "PNG"), shorter_side=side).rgb, np.asarray(expected))


@pytest.mark.parametrize(("width", "height"), [(40, 25), (25, 40)])
def test_the_pixel_limit_can_be_set(width: int, height: int) -> None:
    picture = np.zeros((height, width, 3), dtype=np.uint8)
    data = nasty.saved(picture, "PNG")
    assert decode(data, max_pixels=1000).rgb.shape == (height, width, 3)
    assert size(data, max_pixels=1000) == (width, height)
    assert outcome(lambda: decode(data, max_pixels=999)) == "too large"
    assert outcome(lambda: size(data, max_pixels=999)) == "too large"
    for either in (data, picture):
        assert decode(either, shorter_side=50, max_pixels=4000).rgb.size == 3 * 4000
        assert outcome(lambda source=either: decode(source, shorter_side=51, max_pixels=4000)) == "too large"  # type: ignore[misc]
    with pytest.raises(UnreadableError, match=r"1 × 20,000 pixels would become .*5,120,000.*max_pixels is 80,000,000"):
        decode(content("thin.png"), shorter_side=256)
    data = nasty.png(nasty.LUMA, size=(20_000, 10_000))  # beyond Pillow's own limit, which is 179 million
    theirs = Image.MAX_IMAGE_PIXELS
    assert size(data, max_pixels=200_000_000) == (20_000, 10_000)
    assert outcome(lambda: size(data, max_pixels=199_999_999)) == "too large"
    assert theirs == Image.MAX_IMAGE_PIXELS


# Drafts: a JPEG decoded at a fraction of its size


@cache
def photograph(way: int = 1, mode: str = "RGB") -> bytes:
    """Make a JPEG of 400 × 300 pixels with soft shapes."""
    y, x = np.mgrid[:300, :400]
    waves = [np.sin(x / 37) * np.cos(y / 23), np.sin((x + y) / 41), np.cos(x / 29 - y / 53)]
    image = Image.fromarray(np.rint(127.5 + 127 * np.dstack(waves)).astype(np.uint8)).convert(mode)
    return nasty.jpeg(image, exif=nasty.exif(way))


@pytest.mark.parametrize("way", [1, 6])
def test_drafts_have_at_least_twice_the_requested_size(way: int, monkeypatch: pytest.MonkeyPatch) -> None:
    widths: list[int] = []
    load = JpegImageFile.load

    def note(self: JpegImageFile) -> Any:
        widths.append(self.width)
        return load(self)

    monkeypatch.setattr(JpegImageFile, "load", note)
    # 76 is a reduction by 3.95; 75 is one by 4, so half the image is still twice the requested size
    for side, width in {None: 400, 400: 400, 76: 400, 75: 200, 38: 200, 37: 100, 3: 50}.items():
        widths.clear()
        decode(photograph(way), shorter_side=side)
        assert widths[0] == width
        decode(photograph(way), shorter_side=side, draft=False)
        assert widths[-1] == 400


@pytest.mark.parametrize(("way", "mode"), [(1, "RGB"), (5, "RGB"), (6, "L"), (1, "CMYK")])
def test_a_draft_changes_pixels_only_slightly(way: int, mode: str) -> None:
    data = photograph(way, mode)
    whole = decode(data)
    for side in (300, 76, 75, 37, 18):
        draft, exact = decode(data, shorter_side=side), decode(data, shorter_side=side, draft=False)
        off = difference(draft.rgb, exact.rgb).mean()
        assert 0 < off < 1 if side < 76 else off == 0  # 3 or more if misaligned
        assert np.array_equal(exact.rgb, shrink(whole.rgb, side))
        assert (draft.width, draft.height) == (exact.width, exact.height) == ((400, 300) if way == 1 else (300, 400))


def test_arrays_are_decoded_unchanged_for_any_memory_layout() -> None:
    for array in (nasty.NOISE, nasty.NOISE[::2, ::-3]):
        found = decode(array)
        assert np.array_equal(found.rgb, array)
        assert (found.height, found.width) == array.shape[:2]
        assert (found.bits, found.rotated) == (8, False)
        assert digest(array) == digest(array.copy())


def test_digests_are_stable() -> None:
    """Stores are keyed by them."""
    assert digest(b"") == "cae66941d9efbd404e4d88758ea67670"
    array = np.arange(6, dtype=np.uint8).reshape(1, 2, 3)
    assert digest(array) == digest(b"pixels (1, 2, 3) \0\1\2\3\4\5")


PACKED = zlib.compress(nasty.SCENE.tobytes())
SAMPLES: dict[str, bytes] = {
    **nasty.PLAIN,
    "noise.jpg": nasty.jpeg(nasty.NOISE),
    "progressive noise.jpg": nasty.jpeg(nasty.NOISE, progressive=True),
    "restart noise.jpg": nasty.jpeg(nasty.NOISE[..., 0], restart_marker_blocks=2),
    "noise.png": nasty.saved(nasty.NOISE, "PNG"),
    "noise.webp": nasty.saved(nasty.NOISE, "WEBP", quality=80),
    "lossless noise.webp": nasty.saved(nasty.NOISE, "WEBP", lossless=True),
    "noise.gif": nasty.saved(nasty.NOISE[..., 0], "GIF"),
    "LZW noise.tif": nasty.saved(nasty.NOISE, "TIFF", compression="tiff_lzw"),
    "deflate noise.tif": nasty.saved(nasty.NOISE, "TIFF", compression="tiff_adobe_deflate"),
    "JPEG noise.tif": nasty.saved(nasty.NOISE, "TIFF", compression="jpeg"),
    "directory first, deflate.tif": nasty.tiff([PACKED], bits=[8] * 3, photometric=2, compression=8),
    **{name: content(name) for name in ("phone.jpg", "animated.png", "animated.gif", "animated.webp", "runs.bmp")},
    **{name: content(name) for name in ("pages.tif", "planes.tif", "fax.tif", "big.tif", "way by XMP.tif")},
    **{name: content(name) for name in ("float to 1.tif", "grey 12 bits.tif", "half clear.png")},
}
SMALL = 1_000_000  # pixels, so that a false header costs no time


def cuts(length: int) -> list[int]:
    """Return where to cut: at every byte of the start and the end, and at intervals in between."""
    return sorted({*range(min(64, length)), *range(0, length, length // 40 or 1), *range(max(length - 48, 0), length)})


def attempt(data: bytes, side: int | None = None) -> Picture | str:
    """Return the picture or the reason for refusal; any other error is a bug."""
    try:
        return decode(data, shorter_side=side, max_pixels=SMALL)
    except UnreadableError as error:
        return error.reason


@pytest.mark.parametrize("name", SAMPLES)
def test_a_truncated_file_is_refused_or_decoded_unchanged(name: str) -> None:
    """Only irrelevant bytes may be missing."""
    data = SAMPLES[name]
    whole = decode(data)
    found = {end: attempt(data[:end]) for end in cuts(len(data))}
    other = [end for end, got in found.items() if isinstance(got, Picture) and not np.array_equal(got.rgb, whole.rgb)]
    assert other == [], f"other pixels when cut there, of {len(data)} bytes"
    reasons = [got for got in found.values() if not isinstance(got, Picture)]
    assert set(reasons) <= {"truncated", "damaged", "not an image", "unsupported"}
    assert len(reasons) > len(found) // 3


@pytest.mark.parametrize("name", SAMPLES)
def test_corrupted_bytes_cause_at_most_a_refusal(name: str) -> None:
    generator = random.Random(name)
    for _ in range(100):
        data = bytearray(SAMPLES[name])
        reach = generator.choice([64, len(data)])  # headers are short and matter most
        for _ in range(generator.randint(1, 4)):
            data[generator.randrange(min(reach, len(data)))] = generator.randrange(256)
        side = generator.choice([None, 8])
        found = attempt(bytes(data), side)
        if isinstance(found, Picture):
            shape = (found.width, found.height) if side is None else resized_size(found.width, found.height, side)
            assert found.rgb.shape == (*shape[::-1], 3)
