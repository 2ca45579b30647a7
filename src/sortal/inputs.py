"""What users pass to the clustering: rows, labels and a device, checked and turned into tensors."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_array
from torch import Tensor

from sortal.errors import InputError
from sortal.shards import Shards

UNLABELLED = -1
DEVICES = ("cpu", "cuda", "mps")


def read(
    x: ArrayLike | Tensor, y: ArrayLike | Tensor | None, device: str, shards: Shards
) -> tuple[Tensor, NDArray[np.int64], NDArray[Any]]:
    """Rows (n, d), their class numbers (n,), and the classes, numbered alike in all processes.

    A problem in one process is raised in all, so that none waits for ever.
    """
    problem: ValueError | None = None
    try:
        rows = read_rows(x, choose_device(device, x), at_least=1 if shards.size == 1 else 0)
        labels, classes = read_labels(y, len(rows))
    except ValueError as error:
        problem = error
    told = shards.objects(None if problem is None else str(problem))
    if problem is not None:
        raise problem
    if any(told):
        raise InputError(next(f"process {rank}: {text}" for rank, text in enumerate(told) if text))
    if shards.size > 1:
        names = [name for part in shards.objects(classes.tolist()) for name in part]
        _, everyone = read_labels(np.array([*names, UNLABELLED], dtype=object), len(names) + 1)
        place = {name: j for j, name in enumerate(everyone.tolist())}
        labels = np.array([*(place[name] for name in classes.tolist()), UNLABELLED], dtype=np.int64)[labels]
        classes = everyone
    return rows, labels, classes


def choose_device(device: str, x: object) -> torch.device:
    """The device asked for; "auto" is where a tensor already is, else the GPU when there is one, else the CPU."""
    if device == "auto":
        if isinstance(x, Tensor):
            return x.device
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, number = str(device).partition(":")
    if kind not in DEVICES or (number and not number.isdigit()):
        raise InputError(f"device must be 'auto', {', '.join(map(repr, DEVICES))} or 'cuda:N', got {device!r}.")
    have = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}[kind]
    if int(number or 0) >= have:
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
        array = check_array(x, dtype=kept, input_name="X", ensure_min_samples=at_least)
        if any(stride < 0 for stride in array.strides):
            array = np.ascontiguousarray(array)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*not writable.*")  # nothing here writes
            rows = torch.from_numpy(array)
    if device.type == "mps":
        rows = rows.float()  # it has no float64
    return rows.to(device)


def _checked(rows: Tensor, at_least: int) -> Tensor:
    """The rules scikit-learn holds arrays to, for tensors that it cannot read."""
    if rows.ndim != 2:
        raise InputError(f"X must be a 2-D array of rows and features, got shape {tuple(rows.shape)}.")
    if rows.shape[0] < at_least or rows.shape[1] < 1:
        raise InputError(f"X must have at least {at_least} row(s) and 1 feature, got shape {tuple(rows.shape)}.")
    if rows.is_complex():
        raise InputError(f"X must hold real numbers, got {rows.dtype}.")
    if rows.dtype not in (torch.float32, torch.float64):
        rows = rows.float() if rows.is_floating_point() else rows.to(torch.get_default_dtype())
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
    values = y.detach().cpu().numpy() if isinstance(y, Tensor) else _column(y)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1 or len(values) != n:
        raise InputError(f"y must have one label for each of the {n} rows of X, got shape {values.shape}.")
    if values.dtype.kind in "fc":
        if not np.isfinite(values).all():
            raise InputError(f"y must mark unlabelled rows with -1, got {values[~np.isfinite(values)][0]}.")
        if (values != np.round(values.real)).any():
            raise InputError(
                f"y must hold classes, not measurements, got {values[values != np.round(values.real)][0]}."
            )
        values = values.real.astype(np.int64)
    if values.dtype.kind == "O":
        return _read_objects(values)
    known = values != ("-1" if values.dtype.kind == "U" else b"-1" if values.dtype.kind == "S" else UNLABELLED)
    classes, numbers = np.unique(values[known], return_inverse=True)
    labels = np.full(n, UNLABELLED, dtype=np.int64)
    labels[known] = numbers
    return labels, classes


def _column(y: ArrayLike) -> NDArray[Any]:
    """`y` as an array, without turning the numbers of a mixed list into text."""
    array = np.asarray(y)
    if array.dtype.kind in "US" and not isinstance(y, np.ndarray):
        array = np.asarray(y, dtype=object)
    return array


def _read_objects(values: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[Any]]:
    listed = values.tolist()
    for row, value in enumerate(listed):
        if value is None or value != value:
            raise InputError(f"y must mark unlabelled rows with -1, got {value!r} in row {row}.")
    known = [value != UNLABELLED and value != "-1" for value in listed]
    found = {value for value, keep in zip(listed, known, strict=True) if keep}
    # Names of different types have no order of their own: by type first.
    ordered = sorted(found, key=lambda value: (isinstance(value, str), type(value).__name__, value))
    number = {value: j for j, value in enumerate(ordered)}
    labels = [number[value] if keep else UNLABELLED for value, keep in zip(listed, known, strict=True)]
    classes: NDArray[Any] = np.array(ordered)
    if classes.ndim != 1 or classes.tolist() != ordered:
        classes = np.empty(len(ordered), dtype=object)
        classes[:] = ordered
    return np.array(labels, dtype=np.int64), classes
