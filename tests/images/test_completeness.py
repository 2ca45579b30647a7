"""Completeness: sound files of any shape and kind pass with Pillow's pixels; what was cut does not."""

import io
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support import nasty

from sortal.errors import UnreadableError
from sortal.images import decoding
from sortal.images.decoding import decode

END = b"\xff\xd9"
JPEGS: dict[str, dict[str, Any]] = {
    "sequential": {},
    "sampled": {"subsampling": 2},
    "optimised": {"subsampling": 1, "optimize": True},
    "coarse": {"quality": 5},
    "progressive": {"progressive": True},
    "progressive, sampled": {"progressive": True, "subsampling": 2},
    "restarts": {"restart_marker_blocks": 3},
    "progressive, restarts": {"progressive": True, "restart_marker_blocks": 3},
}
sides = st.integers(1, 70)
kinds = st.sampled_from([*JPEGS])
looks = st.sampled_from(["noise", "flat", "grey to the end", "black to the end"])


def picture(width: int, height: int, look: str) -> Image.Image:
    rgb = np.random.default_rng(width * height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    if look != "noise":
        rgb[0 if look == "flat" else height // 2 :] = {"flat": 128, "grey to the end": 128, "black to the end": 0}[look]
    return Image.fromarray(rgb)


def reason(data: bytes) -> str:
    try:
        decode(data, max_pixels=10**6)
    except UnreadableError as error:
        return error.reason
    return "none"


@given(sides, sides, kinds, looks, st.sampled_from(["RGB", "L", "CMYK"]), st.sampled_from([None, 4]))
def test_sound_jpegs_pass_unchanged(width: int, height: int, kind: str, look: str, mode: str, side: int | None) -> None:
    data = nasty.jpeg(picture(width, height, look).convert(mode), **JPEGS[kind])
    assert decode(data, shorter_side=side).width == width
    assert np.array_equal(decode(data).rgb, np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


@given(sides, sides, kinds, st.integers(2, 10**6))
def test_a_jpeg_without_its_end_is_refused(width: int, height: int, kind: str, lost: int) -> None:
    data = nasty.jpeg(picture(width, height, "noise"), **JPEGS[kind])
    start = data.index(b"\xff\xda")
    assert reason(data[: max(len(data) - lost, start)]) in ("truncated", "damaged")  # the latter by Pillow 12.2


def test_a_jpeg_may_have_the_end_of_a_thumbnail_before_its_own_and_anything_after_it() -> None:
    thumbnail = b"Exif\0\0" + nasty.jpeg()
    data = nasty.jpeg(nasty.NOISE, exif=thumbnail)
    assert thumbnail in data
    assert reason(data[:-2]) == "truncated"
    assert reason(data + b"a film" + b"\xff\xda" * 1000) == "none"


def test_the_number_of_scans_is_limited() -> None:
    """Each costs a pass over all pixels, however short it is."""
    data = nasty.jpeg(progressive=True)
    last = data[data.rindex(b"\xff\xda") : -2]
    for more, expected in ((decoding.MAX_SCANS - 10, "none"), (decoding.MAX_SCANS - 9, "too large")):
        assert reason(data[:-2] + more * last + END) == expected
