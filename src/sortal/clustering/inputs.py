"""Validation of the inputs of clustering: rows, labels and device."""

import warnings
from math import isfinite
from numbers import Integral
from typing import Any, TypeAlias, TypeGuard, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from sortal.errors import InputError
from sortal.system.device import choose_device
from sortal.system.distributed import Peers
from sortal.system.text import plural

NO_CLASS = -1
ArrayOrTensor: TypeAlias = ArrayLike | Tensor


def check_number(name: str, value: object, kind: type, least: int, also: str = "") -> None:
    """Raise InputError unless a parameter is a number of this kind and at least `least`."""
    if not isinstance(value, kind) or isinstance(value, bool) or not value >= least:  # type: ignore[operator]
        what = "a whole number" if kind is Integral else "a number"
        raise InputError(f"{name} must be {what} of at least {least}{also}, got {value!r}.")


def draw_seed(random_state: int | np.random.RandomState | None, processes: Peers) -> int:
    """Draw a seed as scikit-learn does, from a number, a generator or NumPy's global one; the same in all processes."""
    match random_state:
        case None:
            drawn = np.random.randint(2**31 - 1)
        case np.random.RandomState():
            drawn = random_state.randint(2**31 - 1)
        case Integral() if 0 <= int(random_state) < 2**32:
            drawn = np.random.RandomState(int(random_state)).randint(2**31 - 1)
        case _:
            raise InputError(
                f"random_state must be None, a RandomState or a number from 0 to 2³² − 1, got {random_state!r}."
            )
    return int(processes.gather_objects(int(drawn))[0])


def read_inputs(
    x: ArrayOrTensor, y: ArrayOrTensor | None, device: str, processes: Peers
) -> tuple[Tensor, NDArray[np.int64], NDArray[Any]]:
    """Return rows (n, d), their class numbers (n,), and the classes, numbered alike in all processes.

    An error in one process is raised in all, so that none waits forever.
    """
    problem: Exception | None = None
    try:
        rows = read_rows(x, choose_device(device, x), at_least=1 if processes.size == 1 else 0)
        labels, classes = read_labels(y, len(rows))
    except (TypeError, ValueError) as error:
        problem = error
    problems = processes.gather_objects(None if problem is None else str(problem))
    if problem is not None:
        raise problem
    if any(problems):
        raise InputError(next(f"process {rank}: {text}" for rank, text in enumerate(problems) if text))
    return (rows, labels, classes) if processes.size == 1 else _unify(rows, labels, classes, processes)


def _unify(
    rows: Tensor, labels: NDArray[np.int64], classes: NDArray[Any], processes: Peers
) -> tuple[Tensor, NDArray[np.int64], NDArray[Any]]:
    """Convert rows to one type and number the classes alike in all processes."""
    parts = processes.gather_objects((tuple(rows.shape), rows.dtype, classes.tolist()))
    widths = [shape[1] for shape, _, _ in parts]
    if len(set(widths)) > 1:
        raise InputError(f"X must have the same number of features in all processes, got {widths}.")
    if types := [dtype for shape, dtype, _ in parts if shape[0]]:
        rows = rows.to(torch.float64 if torch.float64 in types else types[0])
    names = [name for _, _, part in parts for name in part]
    _, everyone = read_labels(np.array([*names, NO_CLASS], dtype=object), len(names) + 1)
    place = {name: j for j, name in enumerate(everyone.tolist())}
    number = np.array([*(place[name] for name in classes.tolist()), NO_CLASS], dtype=np.int64)
    return rows, number[labels], everyone


def read_rows(x: ArrayOrTensor, device: torch.device, *, at_least: int = 1) -> Tensor:
    """Convert rows to (n, d) float32 or float64 on `device`, without copying arrays of these types."""
    if isinstance(x, Tensor):
        rows = _check_tensor(x.detach(), at_least)
    elif _is_plain(x, at_least):
        rows = _check_tensor(_as_tensor(x), at_least)
    else:
        from sklearn.utils import check_array

        types = [np.float32] if getattr(x, "dtype", None) == np.float16 else [np.float64, np.float32]
        try:
            rows = _as_tensor(check_array(x, dtype=types, input_name="X", ensure_min_samples=at_least))
        except ValueError as error:
            raise InputError(str(error)) from None
    if device.type == "mps":
        rows = rows.float()  # MPS lacks float64
    most = (torch.finfo(rows.dtype).max / 8 / rows.shape[1]) ** 0.5
    if rows.numel() and (largest := max(-float(rows.min()), float(rows.max()))) > most:
        raise InputError(
            f"X must not exceed {most:.0e}, as its squares would overflow, got {largest:.0e}. Scale it down."
        )
    return rows.to(device)


def _is_plain(x: object, at_least: int) -> TypeGuard[NDArray[Any]]:
    """Tell whether an array can do without scikit-learn, which takes seconds to import."""
    if type(x) not in (np.ndarray, np.memmap):
        return False
    array = cast(NDArray[Any], x)
    return array.dtype in (np.float32, np.float64) and array.ndim == 2 and len(array) >= at_least and array.size > 0


def _as_tensor(array: NDArray[Any]) -> Tensor:
    if any(stride < 0 or stride % array.itemsize for stride in array.strides):
        array = np.ascontiguousarray(array)  # strides that torch does not support
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")  # rows are never written to
        return torch.from_numpy(array)


def _check_tensor(rows: Tensor, at_least: int) -> Tensor:
    """Apply scikit-learn's rules for arrays to a tensor."""
    if rows.layout != torch.strided:
        raise InputError(f"X must be a dense tensor, got a sparse one ({rows.layout}). Pass X.to_dense().")
    if rows.ndim != 2:
        raise InputError(f"X must be a 2-D array of rows and features, got shape {tuple(rows.shape)}.")
    if rows.shape[0] < at_least or rows.shape[1] < 1:
        raise InputError(f"X must have at least {at_least} row(s) and 1 feature, got shape {tuple(rows.shape)}.")
    if rows.is_complex():
        raise InputError(f"X must be real, got {rows.dtype}.")
    if rows.dtype not in (torch.float32, torch.float64):
        rows = rows.float() if rows.is_floating_point() or rows.device.type == "mps" else rows.double()
    finite = rows.numel() == 0 or isfinite(float(rows.min()) + float(rows.max()))
    if not finite and (bad := (~rows.isfinite()).any(1)).any():
        first = int(bad.int().argmax())
        raise InputError(
            f"X must be finite, got NaN or infinity in {plural(int(bad.sum()), 'row')}, first in row {first}."
        )
    return rows


def read_labels(y: ArrayOrTensor | None, n: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return class numbers (n,), −1 for unlabelled rows, and the classes in order.

    The text "-1" also means unlabelled, as NumPy converts −1 to it among strings.
    """
    if y is None:
        y = np.full(n, NO_CLASS)
    if isinstance(y, Tensor):
        y = y.detach().cpu()
        y = (y.double() if y.is_floating_point() else y).numpy()
    values = np.asarray(y)
    if values.dtype.kind in "US" and not isinstance(y, np.ndarray):  # perhaps the numbers of a mixed list
        values = np.asarray(y, dtype=object)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1 or len(values) != n:
        raise InputError(f"y must have one label for each of the {plural(n, 'row')} of X, got shape {values.shape}.")
    if values.dtype.kind == "f":
        odd = (values != np.round(values)) | ~(np.abs(values) < 2**63)
        if odd.any():
            raise InputError(f"y must contain classes, and -1 for unlabelled rows, got {values[odd][0]}.")
        values = values.astype(np.int64)
    if values.dtype.kind not in "biu":
        return _number_objects(values.tolist())
    known = values != NO_CLASS
    classes, numbers = np.unique(values[known], return_inverse=True)
    labels = np.full(n, NO_CLASS, dtype=np.int64)
    labels[known] = numbers
    return labels, classes


def _number_objects(values: list[Any]) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Number classes that are not all numeric."""
    for row, value in enumerate(values):
        if value is None or value != value:
            raise InputError(f"y must mark unlabelled rows with -1, got {value!r} in row {row}.")
    found = set(values) - {NO_CLASS, "-1", b"-1"}
    try:
        ordered = sorted(found, key=lambda value: (isinstance(value, str), value))  # numbers first
    except TypeError:  # unordered classes
        ordered = sorted(found, key=repr)
    number = {value: j for j, value in enumerate(ordered)}
    classes = np.empty(len(ordered), dtype=object)
    classes[:] = ordered
    if {type(value) for value in ordered} in ({str}, {int}, {bytes}):
        classes = np.array(ordered)
    return np.array([number.get(value, NO_CLASS) for value in values], dtype=np.int64), classes
