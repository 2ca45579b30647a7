"""Arrays in files that are mapped into memory, so that the system can write them out where memory is short."""

import os
from math import prod
from mmap import mmap
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sortal.errors import InputError
from sortal.system.open_folder import make_folder

LARGE_ARRAY = 2**28  # bytes from which an array is kept in a file


def scratch(shape: tuple[int, ...], folder: Path | None) -> NDArray[np.float32]:
    """Return zeros; a large array is in a nameless file in the folder, which is deleted with the array.

    Without a folder, or room for the file, it is in memory.
    """
    size = 4 * prod(shape)
    if folder is None or size < LARGE_ARRAY:
        return np.zeros(shape, dtype=np.float32)
    try:
        make_folder(folder)
        with TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk must raise here; later it would be a bus error
            return np.asarray(np.memmap(file, dtype=np.float32, mode="w+", shape=shape))
    except OSError:
        return np.zeros(shape, dtype=np.float32)


def is_whole(array: NDArray[Any]) -> bool:
    """Tell whether the file that an array is mapped from is as long as it was; true of an array in memory."""
    memory: object = array
    while isinstance(memory, np.ndarray):
        memory = memory.base
    return not isinstance(memory, mmap) or memory.size() >= len(memory)


def check_whole(array: NDArray[Any], what: str) -> None:
    """Raise InputError if the file that an array is mapped from has been cut: reading past its end kills a process."""
    if not is_whole(array):
        raise InputError(
            f"{what} must not be changed while it is being read, but has become shorter. Run the same command again."
        )
