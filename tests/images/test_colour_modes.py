import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from sortal.images.colour_modes import to_eight_bits


@pytest.mark.parametrize(
    ("values", "bits", "expected"),
    [
        ([0, 128, 129, 257, 65535], 16, [0, 0, 1, 1, 255]),  # 257 levels of 16 bits map to one of 8
        ([0, 9, 2048, 4095, 5000], 12, [0, 1, 128, 255, 255]),
        ([0, 1, 3], 2, [0, 85, 255]),
    ],
)
def test_integers_are_scaled_by_their_number_of_bits(values: list[int], bits: int, expected: list[int]) -> None:
    for dtype in (np.uint16, np.int32):
        assert to_eight_bits(np.array(values, dtype=dtype), bits).tolist() == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 0.5, 1], [0, 128, 255]),
        ([0.25, 0.25, 0.25], [64, 64, 64]),  # not stretched
        ([0, 1.5, 255], [0, 2, 255]),
        ([-1, 0, 1], [0, 128, 255]),
        ([0, 500, 1000], [0, 128, 255]),
        ([7, 7, 700], [0, 0, 255]),
        ([-3, -3, -3], [0, 0, 0]),
        ([np.nan, 0.5, 1], [0, 128, 255]),
        ([-np.inf, -1, 3, np.inf, np.nan], [0, 0, 255, 255, 0]),
        ([np.nan, np.nan], [0, 0]),
    ],
)
def test_floats_are_scaled_by_their_range(values: list[float], expected: list[int]) -> None:
    assert to_eight_bits(np.array(values, dtype=np.float32), 32).tolist() == expected


def test_long_and_negative_integers_are_stretched() -> None:
    for bits in (16, 32):
        assert to_eight_bits(np.array([-10, 0, 10], dtype=np.int32), bits).tolist() == [0, 128, 255]
    assert to_eight_bits(np.array([10, 2**31, 2**32 - 1], dtype=np.uint32), 32).tolist() == [0, 127, 255]


@given(arrays(np.uint16, 20))
def test_scaling_preserves_the_order_of_brightness(values: NDArray[np.uint16]) -> None:
    scaled = to_eight_bits(np.sort(values), 16)
    assert (np.diff(scaled.astype(int)) >= 0).all()
    assert np.abs(scaled - np.sort(values) / 257).max() <= 0.5


@given(st.floats(width=32, allow_nan=True), st.floats(width=32))
def test_any_float_is_scaled_without_warning(one: float, other: float) -> None:
    assert to_eight_bits(np.array([one, other], dtype=np.float32), 32).dtype == np.uint8
