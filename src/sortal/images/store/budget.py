"""The limits of a pixel store: its budget and the free disk space."""

import shutil
from pathlib import Path

from sortal.errors import InputError
from sortal.system.text import byte_sizes

MARGIN = 2**26  # bytes that stay free on the disk
WAY_OUT = "or choose a smaller shorter_side; then run again to resume"


def stored_bytes(folder: Path) -> int:
    """Return the size of all pixel files of a store, under all settings."""
    return sum(path.stat().st_size for path in folder.glob("*/*.bin"))


def check_room(folder: Path, stored: int, more: int, budget: int | None) -> None:
    """Raise InputError unless a store of `stored` bytes may grow by `more` bytes."""
    if budget is not None and stored + more > budget:
        total, limit = byte_sizes(stored + more, budget)
        raise InputError(
            f"The pixel store in {str(folder)!r} must not exceed its budget of {limit}, and needs at least {total}. "
            f"Raise the budget, {WAY_OUT}."
        )
    free = shutil.disk_usage(folder).free
    if more > free - MARGIN:
        needed, found = byte_sizes(more + MARGIN, free)
        raise InputError(
            f"Not enough disk space for the pixel store in {str(folder)!r}: it needs at least {needed} of free space "
            f"({byte_sizes(MARGIN)[0]} of it as a reserve), and {found} are free. "
            f"Free some space, use another folder, {WAY_OUT}."
        )
