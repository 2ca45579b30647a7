"""Arrays mapped from files: reading one beyond the end of a file that has been cut kills a process without a word."""

from mmap import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sortal.errors import InputError


def is_whole(array: NDArray[Any]) -> bool:
    """Tell whether the file that an array is mapped from is as long as it was; true of an array in memory."""
    memory: object = array
    while isinstance(memory, np.ndarray):
        memory = memory.base
    return not isinstance(memory, mmap) or memory.size() >= len(memory)


def check_whole(array: NDArray[Any], what: str) -> None:
    """Raise InputError if the file that an array is mapped from has been cut."""
    if not is_whole(array):
        raise InputError(
            f"{what} must not be changed while it is being read, but has become shorter. Run the same command again."
        )
