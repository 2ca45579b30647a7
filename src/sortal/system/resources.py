"""How much room is left: on a disk, and in the memory of this machine or container."""

import os
import shutil
import sys
from pathlib import Path

CGROUP = ("memory.max", "memory.current", "memory.stat")  # of the container, in bytes


def free_disk(folder: Path) -> int:
    """Return the free bytes of the disk that a folder is on, or will be on."""
    there = next(each for each in (folder.absolute() / "_").parents if each.is_dir())
    return shutil.disk_usage(there).free


def free_memory() -> int:
    """Return the bytes of memory that are available on this machine and in its container."""
    return min(_free_in_machine(), _free_in_container())


def _free_in_container() -> int:
    try:
        limit, used, kinds = (Path("/sys/fs/cgroup", name).read_text(encoding="ascii") for name in CGROUP)
        of_kind = dict(line.split() for line in kinds.splitlines())
        cached = int(of_kind["active_file"]) + int(of_kind["inactive_file"])  # reclaimable
        return max(int(limit) - int(used) + cached, 0)
    except (OSError, ValueError, KeyError):  # no container, or its limit is "max"
        return sys.maxsize


def _free_in_machine() -> int:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":") for line in file)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2) if hasattr(os, "sysconf") else 2**32
