"""What the processes of test_parallel.py do: nothing that takes a heavy library."""

import os
import time
from pathlib import Path


def environment(_: int) -> tuple[str, str]:
    """Return the GPUs that a process may use, and among how many the memory is divided."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", ""), os.environ["LOCAL_WORLD_SIZE"]


def wait_for_the_end(folder: str) -> None:
    """Leave a file named by the process, and wait for hours."""
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(10_000)
