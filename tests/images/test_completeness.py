"""Completeness: sound files of any shape and kind pass with Pillow's pixels; what lacks pixels does not."""

import io
import re
import struct
import zlib
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image
from support import nasty

from sortal.errors import UnreadableError
from sortal.images import completeness
from sortal.images.decoding import decode

END = b"\xff\xd9"
LOST = 8  # blocks at the end that may be missing: as much as a decoder reads ahead
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


@given(st.integers(33, 70), st.integers(33, 70), kinds, st.floats(0, 1))
@example(width=64, height=64, kind="sequential", where=0.5)
def test_a_jpeg_cut_and_ended_is_refused_unless_next_to_nothing_is_lost(
    width: int, height: int, kind: str, where: float
) -> None:
    data = nasty.jpeg(picture(width, height, "noise"), **JPEGS[kind])
    start = data.index(b"\xff\xda") + 14
    cut = data[: start + int(where * (len(data) - 2 - start))] + END
    if reason(cut) == "none":
        assert len(data) - len(cut) <= LOST * len(data) * 8 * 8 / (width * height)
    frame = re.search(rb"\xff[\xc0-\xc2]\x00\x11\x08", data)
    assert frame is not None
    assert reason(nasty.patched(data, frame.end(), struct.pack(">H", 2 * height))) == "truncated"


@pytest.mark.parametrize("scans", range(1, 11))
def test_a_progressive_jpeg_without_its_last_scans_is_refused(scans: int) -> None:
    data = nasty.jpeg(nasty.NOISE, progressive=True)
    starts = [at.start() for at in re.finditer(rb"\xff[\xc4\xda]", data)]  # of scans and the tables before them
    ends = [end for begin, end in pairwise(starts) if data[begin + 1] == 0xDA] + [len(data) - 2]
    assert len(ends) == 10
    assert reason(data[: ends[scans - 1]] + END) == ("none" if scans == 10 else "truncated")


def test_the_number_of_scans_is_limited() -> None:
    """Each costs a pass over all pixels, however short it is."""
    data = nasty.jpeg(progressive=True)
    last = data[data.rindex(b"\xff\xda") : -2]
    for more, expected in ((completeness.MAX_SCANS - 10, "none"), (completeness.MAX_SCANS - 9, "too large")):
        assert reason(data[:-2] + more * last + END) == expected


@given(sides, sides, looks, st.booleans(), st.integers(0, 200))
def test_a_png_passes_if_and_only_if_it_has_all_rows(
    width: int, height: int, look: str, interlaced: bool, lost: int
) -> None:
    values = np.asarray(picture(width, height, look))[..., 0]
    if interlaced:
        assert np.array_equal(decode(nasty.interlaced(values)).rgb, nasty.grey(values))
        assert (reason(nasty.interlaced(values, -lost)) if lost else "truncated") == "truncated"
    else:
        assert np.array_equal(decode(nasty.png(values)).rgb, nasty.grey(values))
        length = max(height - 1 - lost, 0) * (1 + width)
        assert reason(nasty.png(values, stream=lambda raw: zlib.compress(raw[:length]))) == "truncated"
