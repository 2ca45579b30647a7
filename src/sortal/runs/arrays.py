"""Arrays of a run as .npy files. Added rows of features get a file of their own, so the others are not rewritten."""

import io
import os
from itertools import count, takewhile
from pathlib import Path
from threading import Lock

import numpy as np

from sortal.runs.confidence import Features
from sortal.system.regular_files import check_size, open_regular

FEATURES = "features.npy"
HEADER_LOCK = Lock()  # Python 3.11 may fail where two threads parse headers of arrays at the same time
# What NumPy raises for a damaged header.
DAMAGED_HEADER = (OSError, EOFError, ValueError, TypeError, ArithmeticError, MemoryError)


def segment(at: int) -> str:
    """Return the name of a feature file by its number, from 0."""
    return FEATURES if at == 0 else f"features-{at + 1}.npy"


def segments(place: Path) -> list[str]:
    """List the feature files of a run: the rows of the first, then of those that were added."""
    return list(takewhile(lambda name: (place / name).exists(), map(segment, count())))


def npy_parts(array: Features) -> tuple[bytes, memoryview]:
    """Return the header and the data of a .npy file, without copying the array."""
    header, rows = io.BytesIO(), np.ascontiguousarray(array)
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(rows))
    return header.getvalue(), rows.reshape(-1).view(np.uint8).data


def read_features(place: Path) -> Features:
    """Map the features into memory where they are one file, else join them."""
    parts = [read_array(place / name) for name in segments(place) or [FEATURES]]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def read_array(path: Path) -> Features:
    """Map an array into memory; refuse a header that claims more than the file holds."""
    try:
        open_regular(path).close()  # or opening a pipe would block
        with HEADER_LOCK:
            found = np.lib.format.open_memmap(path, mode="r")
    except DAMAGED_HEADER as error:
        raise ValueError(f"{path.name} cannot be read as an array: {error}") from error
    if found.dtype.kind != "f" or found.ndim != 2:
        raise ValueError(f"{path.name} must be numbers of shape (n, d), got {found.dtype} of shape {found.shape}")
    return found


def read_finite(path: Path) -> Features:
    """Read an array of numbers that are all finite; refuse a sparse file, which may not fit into memory."""
    try:
        with open_regular(path) as file:
            check_size(path, file.fileno(), os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read as an array: {error}") from error
    found = np.array(read_array(path))
    if not np.isfinite(found).all():
        raise ValueError(f"{path.name} must be finite, got NaN or infinity")
    return found
