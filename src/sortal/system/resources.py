"""How much of the machine there is: room on a disk and in memory, cores, and how busy others keep them."""

import os
import shutil
import sys
from contextlib import suppress
from math import ceil
from pathlib import Path, PurePosixPath
from time import perf_counter

CGROUPS, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
CGROUP = ("memory.max", "memory.current", "memory.stat")  # of a control group, in bytes
QUOTAS = {"": ("cpu.max",), "cpu": ("cpu.cfs_quota_us", "cpu.cfs_period_us")}  # by controller of versions 2 and 1
SHORTEST_LOAD = 0.5  # seconds over which a load means something


def free_disk(folder: Path) -> int:
    """Return the free bytes of the disk that a folder is on, or will be on."""
    there = next(each for each in (folder.absolute() / "_").parents if each.is_dir())
    return shutil.disk_usage(there).free


def free_memory() -> int:
    """Return the bytes of memory that are available on this machine and in its container."""
    return min(_free_in_machine(), _free_in_container())


def cores() -> int:
    """Return how many cores this process may use: those of its affinity, or less where its container has a share."""
    fewest = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for controller, names in QUOTAS.items():
        for group in _groups(controller):
            with suppress(OSError, ValueError, ZeroDivisionError):  # no such version, or no limit
                quota, period = " ".join((group / name).read_text(encoding="ascii") for name in names).split()
                if int(quota) > 0:
                    fewest = min(fewest, ceil(int(quota) / int(period)))
    return max(fewest, 1)


def _groups(controller: str) -> list[Path]:
    """Return the folders of this process's control group and of those around it, as the limits of all of them hold.

    The controller is one of version 1, or "" for version 2. A container may show its own group as the outermost one.
    """
    path, outermost = PurePosixPath("/"), CGROUPS / controller
    with suppress(OSError, ValueError):  # where there are no control groups
        for line in OWN_CGROUPS.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            _, controllers, named = line.split(":", 2)
            if controller in controllers.split(","):
                path = PurePosixPath(named)
    within = () if ".." in path.parts else path.parts[1:]  # ".." is outside of what the container sees
    return [outermost.joinpath(*within[:depth]) for depth in range(len(within), -1, -1)]


class Load:
    """How busy other programs keep the processor while something is measured.

    Unknown but on Linux, and in a container with a share of the cores, from which other programs on them take nothing.
    """

    def __init__(self) -> None:
        self._before = self._seconds()

    def others(self) -> float | None:
        """Return the cores that others have used on average since this was made."""
        before, now = self._before, self._seconds()
        if before is None or now is None or now[2] - before[2] < SHORTEST_LOAD:
            return None
        busy, mine, passed = (after - earlier for after, earlier in zip(now, before, strict=True))
        return max((busy - mine) / passed, 0.0)

    @staticmethod
    def _seconds() -> tuple[float, float, float] | None:
        """Return how long the cores of this process were busy, how long with it, and the time."""
        if sys.platform != "linux" or cores() < len(os.sched_getaffinity(0)):
            return None
        try:
            mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
            with open("/proc/stat", encoding="ascii") as file:
                cells = [line.split() for line in file if line.startswith("cpu")]
            busy = sum(sum(map(int, times[:3])) for name, *times in cells if name in mine)  # user, nice, system
            return busy / os.sysconf("SC_CLK_TCK"), sum(os.times()[:4]), perf_counter()
        except (OSError, ValueError):
            return None


def _free_in_container() -> int:
    return min(map(_free_in_group, _groups("")))


def _free_in_group(group: Path) -> int:
    try:
        limit, used, kinds = (Path(group, name).read_text(encoding="ascii") for name in CGROUP)
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
