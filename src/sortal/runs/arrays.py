"""Arrays of a run as .npy files; features in several, so that rows can be added without writing all of them again."""

import io
from itertools import count, takewhile
from pathlib import Path
from threading import Lock

import numpy as np

from sortal.runs.confidence import Features
from sortal.system.regular_files import open_regular

FEATURES = "features.npy"
HEADER_LOCK = Lock()  # Python 3.11 may fail where two threads parse headers of arrays at the same time
# What NumPy raises for a damaged header.
DAMAGED_HEADER = (OSError, EOFError, ValueError, TypeError, ArithmeticError, MemoryError)


def segment(at: int) -> str:
    """Return the name of a file of features, of which the first has number 0."""
    return FEATURES if at == 0 else f"features-{at + 1}.npy"


def segments(place: Path) -> list[str]:
    """List the feature files of a run: the rows of the first, then of those that were added."""
    return list(takewhile(lambda name: (place / name).exists(), map(segment, count())))


def npy_parts(array: Features) -> tuple[bytes, memoryview]:
    """Return the two parts of a .npy file, its header and the array, of which no copy is made."""
    header, rows = io.BytesIO(), np.ascontiguousarray(array)
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(rows))
    return header.getvalue(), rows.reshape(-1).view(np.uint8).data


def read_features(place: Path) -> Features:
    """Map the features into memory where they are one file, else join them."""
    parts = [read_array(place / name) for name in segments(place) or [FEATURES]]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def read_array(path: Path) -> Features:
    """Map an array into memory, which must be the whole file: a header cannot claim more than there is."""
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
    """Read an array of numbers that are all finite."""
    found = np.array(read_array(path))
    if not np.isfinite(found).all():
        raise ValueError(f"{path.name} must be finite, got NaN or infinity")
    return found
