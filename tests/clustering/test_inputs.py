"""Inputs: conversion of rows, labels and devices, and the message for each mistake."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn.utils import check_random_state

from sortal.clustering.inputs import NO_CLASS, draw_seed, read_inputs, read_labels, read_rows
from sortal.errors import InputError
from sortal.system.device import choose_device
from sortal.system.distributed import Peers

CPU = torch.device("cpu")
untimed = settings(deadline=None)


def objects(*values: object) -> Any:
    """Make a 1-D object array, even of tuples."""
    array = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        array[i] = value
    return array


# Labels


@pytest.mark.parametrize(
    ("y", "labels", "classes"),
    [
        (None, [-1, -1, -1], []),
        ([7, -1, 3, 7], [1, -1, 0, 1], [3, 7]),
        ([-2, -1, 0], [0, -1, 1], [-2, 0]),
        (np.array([2**63, 0], dtype=np.uint64), [1, 0], [0, 2**63]),
        ([0.0, -1.0, 2.0], [0, -1, 1], [0, 2]),
        ([True, False], [1, 0], [False, True]),
        (["b", -1.0, "a"], [1, -1, 0], ["a", "b"]),
        (np.array(["b", -1, "a"]), [1, -1, 0], ["a", "b"]),
        (np.array(["b", "-1", "a"], dtype=np.dtypes.StringDType()), [1, -1, 0], ["a", "b"]),
        (np.array(["-10", "-1", ""]), [1, -1, 0], ["", "-10"]),
        (np.array([b"b", b"-1", b"a"]), [1, -1, 0], [b"a", b"b"]),
        (objects("a", "10", 10, 9, -1), [3, 2, 1, 0, -1], [9, 10, "10", "a"]),
        (objects(2, np.int64(1), "a"), [1, 0, 2], [np.int64(1), 2, "a"]),
        (objects("a", (0, 1), 5, -1), [0, 1, 2, -1], ["a", (0, 1), 5]),  # unordered types by their text
        (objects(-1, "-1", np.int64(-1), -1.0), [-1, -1, -1, -1], []),
        (objects((1,), -1, (0, 1), (1,)), [1, -1, 0, 1], [(0, 1), (1,)]),
        (np.array([[4], [-1], [2]]), [1, -1, 0], [2, 4]),
        (torch.tensor([[5], [255]], dtype=torch.uint8), [0, 1], [5, 255]),
        (torch.tensor([1.0, -1.0], requires_grad=True), [0, -1], [1]),
    ],
)
def test_labels_become_class_numbers(y: Any, labels: list[int], classes: list[Any]) -> None:
    numbers, names = read_labels(y, len(labels))
    assert numbers.dtype == np.int64
    assert numbers.tolist() == labels
    assert names.ndim == 1
    assert names.tolist() == classes
    assert [type(name) for name in names.tolist()] == [type(name) for name in classes]


@untimed
@given(st.lists(st.one_of(st.integers(-3, 3), st.sampled_from(["-1", "a", "b", "10"])), min_size=1))
def test_labels_of_a_list_and_of_its_object_array_agree(y: list[Any]) -> None:
    numbers, names = read_labels(y, len(y))
    again, same = read_labels(objects(*y), len(y))
    assert (numbers.tolist(), names.tolist()) == (again.tolist(), same.tolist())
    for given_name, number in zip(y, numbers, strict=True):
        assert (given_name in (-1, "-1")) if number == NO_CLASS else names[number] == given_name


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([0.0, -np.inf], "-1 for unlabelled rows, got -inf"),
        (["a", None], "unlabelled rows with -1, got None in row 1"),
        (objects("a", float("nan")), "unlabelled rows with -1, got nan in row 1"),
        ([0.0, 0.5], "classes, and -1 for unlabelled rows, got 0.5"),
        ([0.0, 2.0**63], "classes, and -1 for unlabelled rows, got 9.2"),
        (torch.tensor([0.0, float("nan")]), "-1 for unlabelled rows, got nan"),
        ([0, 1, 2], r"each of the 2 rows of X, got shape \(3,\)"),
        (3, r"each of the 2 rows of X, got shape \(\)"),
        (np.zeros((1, 2)), r"each of the 2 rows of X, got shape \(1, 2\)"),
    ],
)
def test_invalid_labels_are_reported(y: Any, message: str) -> None:
    with pytest.raises(InputError, match=rf"^y must .*{message}"):
        read_labels(y, 2)


@pytest.mark.parametrize("y", [objects("a", pd.NA), objects({}, {}), [[0], [1, 2]]])
def test_what_cannot_be_a_class_is_refused_by_python_or_numpy(y: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"ambiguous|unhashable|inhomogeneous"):
        read_labels(y, 2)


# Rows


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_arrays_and_tensors_are_not_copied(tmp_path: Path, dtype: type) -> None:
    x: NDArray[Any] = np.arange(12, dtype=dtype).reshape(4, 3)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")  # read-only
    for view in (x, x.T, x[::2], x[:, 1:], mapped):
        rows = read_rows(view, CPU)
        assert np.shares_memory(rows.numpy(), view)
        np.testing.assert_array_equal(rows.numpy(), view, strict=True)
    tensor = torch.ones(3, 2, requires_grad=True)
    assert read_rows(tensor, CPU).data_ptr() == tensor.data_ptr()


def test_arrays_torch_cannot_share_are_copied() -> None:
    """Negative strides, repeated rows, and records of odd size."""
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    assert read_rows(x[::-1, ::-1], CPU).tolist() == [[5, 4], [3, 2], [1, 0]]
    assert read_rows(np.broadcast_to(np.array([1, 2], dtype=np.float32), (2, 2)), CPU).tolist() == [[1, 2], [1, 2]]
    records = np.array([(1, [0, 1, 2]), (2, [3, 4, 5])], dtype=[("label", "u1"), ("x", "f4", (3,))])
    assert read_rows(records["x"], CPU).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_rows_are_single_or_double_precision() -> None:
    for x, dtype in (
        (np.array([[1, 2.5]], dtype=np.float16), torch.float32),
        (np.array([[1, 2.5]], dtype=">f4"), torch.float64),
        ([[1, 2.5]], torch.float64),
        (np.array([[1, 2.5]], dtype=object), torch.float64),
        (torch.tensor([[1, 2.5]], dtype=torch.float64, requires_grad=True), torch.float64),
        (torch.tensor([[1, 2.5]], dtype=torch.bfloat16), torch.float32),
    ):
        rows = read_rows(x, CPU)
        assert rows.dtype == dtype
        assert rows.tolist() == [[1, 2.5]]
        assert not rows.requires_grad


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int64])
def test_integer_tensors_are_read_like_arrays(dtype: type) -> None:
    x: NDArray[Any] = np.array([[2**24, 2**24 + 1]]).astype(dtype)
    rows = read_rows(x, CPU)
    assert rows.tolist() == x.tolist()
    torch.testing.assert_close(read_rows(torch.from_numpy(x), CPU), rows, rtol=0, atol=0)


@pytest.mark.parametrize("of", [np.array, torch.tensor], ids=["numpy", "torch"])
def test_invalid_rows_are_refused(of: Any) -> None:
    wrong: list[tuple[Any, str]] = [
        ([[0.0], [np.nan]], "NaN"),
        ([[0.0], [-np.inf]], "infinity"),
        ([1.0, 2.0], "2-?D"),
        ([[[1.0]]], "2"),
        ([[], []], "feature"),
        ([[1j]], "[Cc]omplex|real"),
    ]
    for values, message in wrong:
        with pytest.raises(ValueError, match=message):
            read_rows(of(values), CPU)
    zeros: Any = {np.array: np.zeros, torch.tensor: torch.zeros}[of]
    assert read_rows(zeros((0, 2)), CPU, at_least=0).shape == (0, 2)
    assert read_rows(zeros((3, 2)), CPU, at_least=3).shape == (3, 2)
    for n in (0, 2):
        with pytest.raises(ValueError, match="3"):
            read_rows(zeros((n, 2)), CPU, at_least=3)
    sparse = csr_array(np.eye(2)) if of is np.array else torch.eye(2).to_sparse()
    with pytest.raises((TypeError, ValueError), match=r"(?i)sparse|dense"):
        read_rows(sparse, CPU)


def test_rows_whose_squares_overflow_are_refused() -> None:
    """The limit for two features is √(3.4e38 / 16) = 4.6e18 in float32 and √(1.8e308 / 16) = 3.4e153 in float64."""
    for dtype, most, too_much in ((torch.float32, 4e18, 5e18), (torch.float64, 3e153, 4e153)):
        for sign in (1, -1):
            assert read_rows(torch.tensor([[0, sign * most]], dtype=dtype), CPU).dtype == dtype
            with pytest.raises(InputError, match=r"X must not exceed .*, as its squares would overflow"):
                read_rows(torch.tensor([[0, sign * too_much]], dtype=dtype), CPU)
    with pytest.raises(InputError, match="in 2 rows, first in row 1"):
        read_rows(torch.tensor([[0, 0], [0, torch.nan], [torch.inf, 0]]), CPU)


def test_rows_and_labels_are_read_together() -> None:
    rows, labels, classes = read_inputs([[0.5], [1.5]], objects("b", -1), "cpu", Peers())
    assert (rows.tolist(), labels.tolist(), classes.tolist()) == ([[0.5], [1.5]], [0, -1], ["b"])
    wrong: list[tuple[Any, Any, str, str]] = [
        ([[np.nan]], None, "cpu", "NaN"),
        ([[0.5]], [1, 2], "cpu", r"^y must have one label for each of the 1 row"),
        ([[0.5]], None, "gpu", r"^device must be"),
        (np.zeros((0, 2)), None, "cpu", "minimum of 1"),
    ]
    for x, y, device, message in wrong:
        with pytest.raises(ValueError, match=message):
            read_inputs(x, y, device, Peers())


# Devices


def test_auto_is_the_device_of_the_tensor_or_else_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for available, expected in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda found=available: found)
        assert choose_device("auto", torch.zeros(1)) == CPU
        assert choose_device("auto", torch.zeros(1, device="meta")).type == "meta"
        assert choose_device("auto", np.zeros(1)) == torch.device(expected)


def test_an_invalid_device_name_is_refused() -> None:
    wrong: tuple[Any, ...] = ("gpu", "", "CPU", "cuda0", ":0", "cuda:", "cuda:-1", "cpu:00", "cpu:²", None, 0)
    for device in wrong:
        with pytest.raises(InputError, match=r"^device must be .*got "):
            choose_device(device, None)


def test_a_named_device_must_exist_and_overrides_that_of_the_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for device in ("cpu", "cuda", "cuda:1"):
        assert choose_device(device, torch.zeros(1, device="meta")) == torch.device(device)
    for device in ("cuda:2", "cuda:99", "cpu:1"):
        with pytest.raises(InputError, match=rf"machine, got '{device}' .* Let Sortal choose \(device='auto'\)\."):
            choose_device(device, None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(InputError, match=r"on this machine, got 'cuda' \(0 available\)"):
        choose_device("cuda", None)


# Seeds


@pytest.mark.parametrize("state", [0, 7, 2**32 - 1, np.int64(3)])
def test_seeds_are_those_that_scikit_learn_would_draw(state: int) -> None:
    drawn = draw_seed(state, Peers())
    assert drawn == check_random_state(state).randint(2**31 - 1) == draw_seed(np.random.RandomState(state), Peers())
    generator = np.random.RandomState(state)
    assert draw_seed(generator, Peers()) != draw_seed(generator, Peers())


def test_without_a_seed_the_global_generator_draws_it() -> None:
    before = np.random.get_state()
    try:
        np.random.seed(5)
        assert draw_seed(None, Peers()) == np.random.RandomState(5).randint(2**31 - 1)
    finally:
        np.random.set_state(before)


@pytest.mark.parametrize("state", [-1, 2**32, 1.5, "0", np.random.default_rng(0)])
def test_other_seeds_are_refused(state: Any) -> None:
    with pytest.raises(InputError, match="random_state must be None, a RandomState or a number from 0 to"):
        draw_seed(state, Peers())
