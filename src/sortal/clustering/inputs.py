"""What users pass to the clustering: rows, labels and a device, checked and turned into tensors."""

from __future__ import annotations

import re
import warnings
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_array
from torch import Tensor

from sortal.errors import InputError
from sortal.shards import Shards

UNLABELLED = -1


def check_number(name: str, value: object, kind: type, least: int, also: str = "") -> None:
    """A parameter must be a number of some kind, and not too small."""
    if not isinstance(value, kind) or isinstance(value, bool) or not value >= least:  # type: ignore[operator]
        what = "a whole number" if kind is Integral else "a number"
        raise InputError(f"{name} must be {what} of at least {least}{also}, got {value!r}.")


def read(
    x: ArrayLike | Tensor, y: ArrayLike | Tensor | None, device: str, shards: Shards
) -> tuple[Tensor, NDArray[np.int64], NDArray[Any]]:
    """Rows (n, d), their class numbers (n,), and the classes, numbered alike in all processes.

    A problem in one process is raised in all, so that none waits for ever.
    """
    problem: Exception | None = None
    try:
        rows = read_rows(x, choose_device(device, x), at_least=1 if shards.size == 1 else 0)
        labels, classes = read_labels(y, len(rows))
    except (TypeError, ValueError) as error:
        problem = error
    told = shards.objects(None if problem is None else str(problem))
    if problem is not None:
        raise problem
    if any(told):
        raise InputError(next(f"process {rank}: {text}" for rank, text in enumerate(told) if text))
    return (rows, labels, classes) if shards.size == 1 else _alike(rows, labels, classes, shards)


def _alike(
    rows: Tensor, labels: NDArray[np.int64], classes: NDArray[Any], shards: Shards
) -> tuple[Tensor, NDArray[np.int64], NDArray[Any]]:
    """Rows of one type and width, and classes of one numbering, in all processes."""
    parts = shards.objects((tuple(rows.shape), rows.dtype, classes.tolist()))
    widths = [shape[1] for shape, _, _ in parts]
    if len(set(widths)) > 1:
        raise InputError(f"X must have the same number of features in all processes, got {widths}.")
    if types := [dtype for shape, dtype, _ in parts if shape[0]]:
        rows = rows.to(torch.float64 if torch.float64 in types else types[0])
    names = [name for _, _, part in parts for name in part]
    _, everyone = read_labels(np.array([*names, UNLABELLED], dtype=object), len(names) + 1)
    place = {name: j for j, name in enumerate(everyone.tolist())}
    number = np.array([*(place[name] for name in classes.tolist()), UNLABELLED], dtype=np.int64)
    return rows, number[labels], everyone


def choose_device(device: str, x: object) -> torch.device:
    """The device asked for; "auto" is where a tensor already is, else the GPU when there is one, else the CPU."""
    if device == "auto":
        if isinstance(x, Tensor):
            return x.device
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = re.fullmatch(r"(cpu|cuda|mps)(?::(0|[1-9][0-9]*))?", str(device))
    if name is None:
        raise InputError(f"device must be 'auto', 'cpu', 'cuda', 'cuda:N' or 'mps', got {device!r}.")
    have = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}[name[1]]
    if int(name[2] or 0) >= have:
        raise InputError(
            f"device must be on this machine, got {device!r}, of which there are {have}. Use device='auto'."
        )
    return torch.device(device)


def read_rows(x: ArrayLike | Tensor, device: torch.device, *, at_least: int = 1) -> Tensor:
    """(n, d) float32 or float64 on `device`; an array of those types, even a memory-mapped one, is not copied."""
    if isinstance(x, Tensor):
        rows = _checked(x.detach(), at_least)
    else:
        kept = [np.float32] if getattr(x, "dtype", None) == np.float16 else [np.float64, np.float32]
        try:
            array = check_array(x, dtype=kept, input_name="X", ensure_min_samples=at_least)
        except ValueError as error:
            raise InputError(str(error)) from None
        if any(stride < 0 or stride % array.itemsize for stride in array.strides):
            array = np.ascontiguousarray(array)  # strides that torch does not have
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*not writable.*")  # nothing here writes
            rows = torch.from_numpy(array)
    if device.type == "mps":
        rows = rows.float()  # it has no float64
    if rows.numel():
        largest, most = (
            max(-float(rows.min()), float(rows.max())),
            (torch.finfo(rows.dtype).max / 8 / rows.shape[1]) ** 0.5,
        )
        if largest > most:
            raise InputError(
                f"X must not exceed {most:.0e}, or its squares overflow, got {largest:.0e}. Scale it down."
            )
    return rows.to(device)


def _checked(rows: Tensor, at_least: int) -> Tensor:
    """The rules scikit-learn holds arrays to, for tensors that it cannot read."""
    if rows.layout != torch.strided:
        raise InputError(f"X must be a dense tensor, got a sparse one ({rows.layout}). Pass X.to_dense().")
    if rows.ndim != 2:
        raise InputError(f"X must be a 2-D array of rows and features, got shape {tuple(rows.shape)}.")
    if rows.shape[0] < at_least or rows.shape[1] < 1:
        raise InputError(f"X must have at least {at_least} row(s) and 1 feature, got shape {tuple(rows.shape)}.")
    if rows.is_complex():
        raise InputError(f"X must hold real numbers, got {rows.dtype}.")
    if rows.dtype not in (torch.float32, torch.float64):
        rows = rows.float() if rows.is_floating_point() or rows.device.type == "mps" else rows.double()
    bad = (~rows.isfinite()).any(1)
    if bad.any():
        first = int(bad.int().argmax())
        raise InputError(
            f"X must hold finite numbers, got NaN or infinity in {int(bad.sum())} rows, first in row {first}."
        )
    return rows


def read_labels(y: ArrayLike | Tensor | None, n: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Labels as (n,) class numbers, −1 for unlabelled rows, and the classes in order.

    Unlabelled is −1, also as the text "-1", which is what numpy makes of it among strings.
    """
    if y is None:
        return np.full(n, UNLABELLED, dtype=np.int64), np.empty(0, dtype=np.int64)
    if isinstance(y, Tensor):
        y = y.detach().cpu()
        values = (y.double() if y.is_floating_point() else y).numpy()
    else:
        values = _column(y, n)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1 or len(values) != n:
        raise InputError(f"y must have one label for each of the {n} rows of X, got shape {values.shape}.")
    if values.dtype.kind in "fc":
        values = _whole(values)
    if values.dtype.kind in "biu":
        known = values != UNLABELLED
        classes, numbers = np.unique(values[known], return_inverse=True)
        labels = np.full(n, UNLABELLED, dtype=np.int64)
        labels[known] = numbers
        return labels, classes
    return _names(values.tolist())


def _column(y: ArrayLike, n: int) -> NDArray[Any]:
    """`y` as an array, without turning the numbers of a mixed list into text."""
    try:
        array = np.asarray(y)
    except ValueError as error:  # lists of different lengths
        raise InputError(f"y must have one label for each of the {n} rows of X: {error}.") from None
    return np.asarray(y, dtype=object) if array.dtype.kind in "US" and not isinstance(y, np.ndarray) else array


def _whole(values: NDArray[Any]) -> NDArray[np.int64]:
    """Classes that came as floats, as integers."""
    if not np.isfinite(values).all():
        raise InputError(f"y must mark unlabelled rows with -1, got {values[~np.isfinite(values)][0]}.")
    odd = (values != np.round(values.real)) | (np.abs(values) >= 2**63)
    if odd.any():
        raise InputError(f"y must hold classes, not measurements, got {values[odd][0]}.")
    return values.real.astype(np.int64)


def _names(values: list[Any]) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Labels that are not all numbers."""
    for row, value in enumerate(values):
        if _missing(value):
            raise InputError(f"y must mark unlabelled rows with -1, got {value!r} in row {row}.")
    known = [value not in (UNLABELLED, "-1", b"-1") for value in values]
    try:
        found = {value for value, keep in zip(values, known, strict=True) if keep}
    except TypeError as error:
        raise InputError(f"y must hold hashable classes: {error}.") from None
    try:
        ordered = sorted(found, key=_place)
    except TypeError:  # classes without an order
        ordered = sorted(found, key=repr)
    number = {value: j for j, value in enumerate(ordered)}
    labels = [number[value] if keep else UNLABELLED for value, keep in zip(values, known, strict=True)]
    if {type(value) for value in ordered} in ({str}, {int}, {bytes}):
        return np.array(labels, dtype=np.int64), np.array(ordered)
    classes = np.empty(len(ordered), dtype=object)
    classes[:] = ordered
    return np.array(labels, dtype=np.int64), classes


def _missing(value: object) -> bool:
    """None, NaN, and what other libraries have for them."""
    try:
        return value is None or bool(value != value)
    except TypeError:
        return True


def _place(value: Any) -> tuple[int, str, Any]:
    """Numbers first, texts last; classes of different types have no order of their own."""
    if isinstance(value, Real):
        return 0, "", value
    return (2 if isinstance(value, str) else 1), type(value).__name__, value
