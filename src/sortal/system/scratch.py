"""Large arrays in files without a name, which the system writes out where memory is short."""

import os
from math import prod
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np
from numpy.typing import NDArray

from sortal.system.open_folder import make_folder

LARGE = 2**28  # bytes from which an array is kept in a file


def scratch(shape: tuple[int, ...], folder: Path | None) -> NDArray[np.float32]:
    """Return zeros; a large array is in a file in the folder, which goes when the array goes.

    Without a folder, or room for the file, it is in memory.
    """
    size = 4 * prod(shape)
    if folder is None or size < LARGE:
        return np.zeros(shape, dtype=np.float32)
    try:
        make_folder(folder)
        with TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk must raise here; later it would be a bus error
            mapped = np.memmap(file, dtype=np.float32, mode="w+", shape=shape)
            return np.asarray(mapped)
    except OSError:
        return np.zeros(shape, dtype=np.float32)
