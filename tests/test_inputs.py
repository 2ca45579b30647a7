"""Inputs: what every kind of rows, labels and device becomes, and what each mistake is told."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse import csr_array

from sortal.errors import InputError
from sortal.inputs import UNLABELLED, choose_device, read, read_labels, read_rows
from sortal.shards import Shards

CPU = torch.device("cpu")
untimed = settings(deadline=None)


def objects(*values: object) -> Any:
    """A 1-D object array, also of tuples."""
    array = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        array[i] = value
    return array


# Labels


@pytest.mark.parametrize(
    ("y", "labels", "classes"),
    [
        ([7, -1, 3, 7], [1, -1, 0, 1], [3, 7]),
        ([-2, -1, 0], [0, -1, 1], [-2, 0]),
        ((1, 0), [1, 0], [0, 1]),
        (np.array([0, 255], dtype=np.uint8), [0, 1], [0, 255]),
        (np.array([2**63, 0], dtype=np.uint64), [1, 0], [0, 2**63]),
        ([0.0, -1.0, 2.0], [0, -1, 1], [0, 2]),
        ([1 + 0j, -1 + 0j], [0, -1], [1]),
        ([True, False], [1, 0], [False, True]),
        ([-1, -1], [-1, -1], []),
        (["b", "a", "b"], [1, 0, 1], ["a", "b"]),
        (["b", -1, "a"], [1, -1, 0], ["a", "b"]),
        (["b", -1.0, "a"], [1, -1, 0], ["a", "b"]),
        (["b", "-1", "a"], [1, -1, 0], ["a", "b"]),
        (np.array(["b", -1, "a"]), [1, -1, 0], ["a", "b"]),
        (np.array(["-10", "-1", ""]), [1, -1, 0], ["", "-10"]),
        (np.array([b"b", b"-1", b"a"]), [1, -1, 0], [b"a", b"b"]),
        ([b"b", -1, b"a"], [1, -1, 0], [b"a", b"b"]),
        (objects("b", -1, "a"), [1, -1, 0], ["a", "b"]),
        (objects("a", "10", 10, 9, -1), [3, 2, 1, 0, -1], [9, 10, "10", "a"]),
        (objects("a", (0, 1), 5, -1), [2, 1, 0, -1], [5, (0, 1), "a"]),
        (objects(-1, "-1", np.int64(-1), -1.0), [-1, -1, -1, -1], []),
        (objects((1, 0), -1, (0, 1), (1, 0)), [1, -1, 0, 1], [(0, 1), (1, 0)]),
        (np.array([["b"], [-1]], dtype=object), [0, -1], ["b"]),
        (np.array([[4], [-1], [2]]), [1, -1, 0], [2, 4]),
        (torch.tensor([5, -1, 4]), [1, -1, 0], [4, 5]),
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


def test_no_labels_means_all_unlabelled() -> None:
    numbers, names = read_labels(None, 3)
    assert numbers.tolist() == [UNLABELLED] * 3
    assert names.tolist() == []


@untimed
@given(st.lists(st.one_of(st.integers(-3, 3), st.sampled_from(["-1", "a", "b", "10"])), min_size=1))
def test_labels_of_a_list_and_of_its_object_array_agree_and_name_every_row(y: list[Any]) -> None:
    numbers, names = read_labels(y, len(y))
    again, same = read_labels(objects(*y), len(y))
    assert numbers.tolist() == again.tolist()
    assert names.tolist() == same.tolist()
    for given_name, number in zip(y, numbers, strict=True):
        assert (given_name in (-1, "-1")) if number == UNLABELLED else names[number] == given_name


def test_minus_one_is_unlabelled_among_texts_of_any_length() -> None:
    y = np.array(["b", "-1", "a"], dtype=np.dtypes.StringDType())
    assert read_labels(y, 3)[0].tolist() == [1, -1, 0]


@pytest.mark.parametrize("y", [objects(2.0, 1, -1), objects(2, np.int64(1), -1), objects(2, np.int64(1), "a")])
def test_numbers_of_different_types_are_in_numeric_order(y: Any) -> None:
    assert read_labels(y, 3)[1].tolist()[:2] == [1, 2]


def test_tuples_of_different_lengths_are_classes() -> None:
    numbers, names = read_labels(objects((1,), (0, 1), -1), 3)
    assert numbers.tolist() == [1, 0, -1]
    assert names.tolist() == [(0, 1), (1,)]


class NotAvailable:
    """As pandas.NA: comparing it gives itself, which is neither true nor false."""

    def __eq__(self, other: object) -> Any:
        return self

    def __ne__(self, other: object) -> Any:
        return self

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "<NA>"


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([0.0, np.nan], "unlabelled rows with -1, got nan"),
        ([0.0, -np.inf], "unlabelled rows with -1, got -inf"),
        ([0, None], "unlabelled rows with -1, got None in row 1"),
        (["a", None], "unlabelled rows with -1, got None in row 1"),
        (["a", np.nan], "unlabelled rows with -1, got nan in row 1"),
        (objects("a", float("nan")), "unlabelled rows with -1, got nan in row 1"),
        (objects("a", NotAvailable()), "unlabelled rows with -1, got <NA> in row 1"),
        ([0.0, 0.5], "classes, not measurements, got 0.5"),
        ([0.0, 1j], "classes, not measurements, got 1j"),
        (torch.tensor([0.0, float("nan")]), "unlabelled rows with -1, got nan"),
        ([0, 1, 2], r"each of the 2 rows of X, got shape \(3,\)"),
        ([], r"each of the 2 rows of X, got shape \(0,\)"),
        (3, r"each of the 2 rows of X, got shape \(\)"),
        (np.zeros((1, 2)), r"each of the 2 rows of X, got shape \(1, 2\)"),
        (np.zeros((2, 2), dtype=int), r"each of the 2 rows of X, got shape \(2, 2\)"),
        ([(0, 1), (1, 2)], r"each of the 2 rows of X, got shape \(2, 2\)"),
        ([[0], [1, 2]], "each of the 2 rows of X"),
        ([1e300, 2e300], "classes"),
    ],
)
def test_wrong_labels_are_told_the_way_out(y: Any, message: str) -> None:
    with pytest.raises(InputError, match=rf"^y must .*{message}"):
        read_labels(y, 2)


# Rows


def test_float_arrays_are_not_copied() -> None:
    for dtype in (np.float32, np.float64):
        x = np.arange(12, dtype=dtype).reshape(4, 3)
        for view in (x, x.T, x[::2], x[:, 1:], np.asfortranarray(x)):
            rows = read_rows(view, CPU)
            assert np.shares_memory(rows.numpy(), view)
            np.testing.assert_array_equal(rows.numpy(), view, strict=True)


def test_a_read_only_memory_map_is_not_copied(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(6, dtype=np.float32).reshape(3, 2))
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    rows = read_rows(x, CPU)
    assert np.shares_memory(rows.numpy(), x)
    assert rows.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_arrays_torch_cannot_share_are_copied() -> None:
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    assert read_rows(x[::-1, ::-1], CPU).tolist() == [[5, 4], [3, 2], [1, 0]]
    assert read_rows(np.broadcast_to(np.array([1, 2], dtype=np.float32), (2, 2)), CPU).tolist() == [[1, 2], [1, 2]]


def test_rows_inside_records_of_odd_size_are_read() -> None:
    records = np.array([(1, [0, 1, 2]), (2, [3, 4, 5])], dtype=[("label", "u1"), ("x", "f4", (3,))])
    assert read_rows(records["x"], CPU).tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("x", "dtype"),
    [
        (np.array([[1, 2.5]], dtype=np.float16), torch.float32),
        (np.array([[1, 2.5]], dtype=">f4"), torch.float64),
        (np.array([[1, 2.5]], dtype=np.longdouble), torch.float64),
        ([[1, 2.5]], torch.float64),
        (np.array([[1, 2.5]], dtype=object), torch.float64),
        (torch.tensor([[1, 2.5]]), torch.float32),
        (torch.tensor([[1, 2.5]], dtype=torch.float64), torch.float64),
        (torch.tensor([[1, 2.5]], dtype=torch.float16), torch.float32),
        (torch.tensor([[1, 2.5]], dtype=torch.bfloat16), torch.float32),
        (torch.tensor([[1, 2.5]], requires_grad=True), torch.float32),
    ],
)
def test_rows_are_single_or_double_precision(x: Any, dtype: torch.dtype) -> None:
    rows = read_rows(x, CPU)
    assert rows.dtype == dtype
    assert rows.tolist() == [[1, 2.5]]
    assert not rows.requires_grad


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int32, np.int64])
def test_whole_numbers_of_a_tensor_are_read_as_those_of_an_array(dtype: type) -> None:
    x: NDArray[Any] = np.array([[2**24, 2**24 + 1]]).astype(dtype)
    rows = read_rows(x, CPU)
    assert rows.tolist() == x.tolist()
    torch.testing.assert_close(read_rows(torch.from_numpy(x), CPU), rows, rtol=0, atol=0)


def test_a_tensor_is_not_copied() -> None:
    x = torch.ones(3, 2, requires_grad=True)
    assert read_rows(x, CPU).data_ptr() == x.data_ptr()


@pytest.mark.parametrize("of", [np.array, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([[0.0], [np.nan]], "NaN"),
        ([[0.0], [np.inf]], "infinity"),
        ([[0.0], [-np.inf]], "infinity"),
        ([1.0, 2.0], "2-?D"),
        ([[[1.0]]], "2"),
        (1.0, "2-?D"),
        ([[], []], "feature"),
        ([[1j]], "[Cc]omplex|real"),
    ],
)
def test_wrong_rows_are_refused(of: Any, values: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_rows(of(values), CPU)


def test_the_first_wrong_row_of_a_tensor_is_named() -> None:
    x = torch.zeros(5, 2)
    x[3, 1], x[4, 0] = torch.nan, torch.inf
    with pytest.raises(InputError, match="in 2 rows, first in row 3"):
        read_rows(x, CPU)


@pytest.mark.parametrize("of", [np.zeros, torch.zeros], ids=["numpy", "torch"])
def test_too_few_rows_are_refused(of: Any) -> None:
    assert read_rows(of((0, 2)), CPU, at_least=0).shape == (0, 2)
    assert read_rows(of((3, 2)), CPU, at_least=3).shape == (3, 2)
    for n in (0, 2):
        with pytest.raises(ValueError, match="3"):
            read_rows(of((n, 2)), CPU, at_least=3)


@pytest.mark.parametrize("x", [csr_array(np.eye(2)), torch.eye(2).to_sparse()], ids=["scipy", "torch"])
def test_sparse_rows_are_refused(x: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"(?i)sparse|dense"):
        read_rows(x, CPU)


def test_rows_and_labels_are_read_together() -> None:
    rows, labels, classes = read([[0.5], [1.5]], objects("b", -1), "cpu", Shards())
    assert (rows.tolist(), labels.tolist(), classes.tolist()) == ([[0.5], [1.5]], [0, -1], ["b"])
    with pytest.raises(ValueError, match="NaN"):
        read([[np.nan]], None, "cpu", Shards())
    with pytest.raises(InputError, match=r"^y must have one label for each of the 1 rows"):
        read([[0.5]], [1, 2], "cpu", Shards())
    with pytest.raises(InputError, match=r"^device must be"):
        read([[0.5]], None, "gpu", Shards())
    with pytest.raises(ValueError, match="minimum of 1"):
        read(np.zeros((0, 2)), None, "cpu", Shards())


# Devices


def test_auto_is_where_the_tensor_is() -> None:
    assert choose_device("auto", torch.zeros(1)) == CPU
    assert choose_device("auto", torch.zeros(1, device="meta")).type == "meta"


def test_auto_is_the_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto", np.zeros(1)) == torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto", np.zeros(1)) == CPU


def test_a_named_device_wins_over_where_the_tensor_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("cpu", torch.zeros(1, device="meta")) == CPU
    assert choose_device("cuda", None) == torch.device("cuda")
    assert choose_device("cuda:1", None) == torch.device("cuda:1")


@pytest.mark.parametrize(
    "device", ["gpu", "", "CPU", "cuda0", ":0", "cuda:", "cpu:", "cuda:-1", "cuda:x", "cpu:00", "cpu:²", None, 0]
)
def test_a_name_that_is_no_device_is_refused(device: Any) -> None:
    with pytest.raises(InputError, match=r"^device must be .*got "):
        choose_device(device, None)


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:99", "cpu:1"])
def test_a_device_that_is_not_there_is_refused(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(InputError, match=rf"on this machine, got '{device}', .*\. Use device='auto'\."):
        choose_device(device, None)
