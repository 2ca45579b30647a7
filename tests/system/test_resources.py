"""Free memory is that of the machine or its container; a new folder is on the disk of its parents."""

from __future__ import annotations

import io
import os
import shutil
from pathlib import Path

import pytest

from sortal.system import resources

MEMORY = "MemTotal:  32000000 kB\nMemFree:    100 kB\nMemAvailable:   1234 kB\nHugePages_Total:    0\n"
PAGES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("meminfo", "free"),
    [
        (MEMORY, 1234 * 1024),
        (None, PAGES // 2),
        ("MemTotal: 5 kB\n", PAGES // 2),
        ("MemAvailable: many kB\n", PAGES // 2),
    ],
)
def test_free_memory_is_that_of_the_system_or_else_half_of_the_total(
    monkeypatch: pytest.MonkeyPatch, meminfo: str | None, free: int
) -> None:
    def opened(*_: object, **__: object) -> io.StringIO:
        if meminfo is None:
            raise FileNotFoundError("/proc/meminfo")
        return io.StringIO(meminfo)

    assert 0 < resources.free_memory() <= PAGES
    monkeypatch.setattr(resources, "CGROUP", ("none",) * 3)  # as outside of containers
    monkeypatch.setattr(resources, "open", opened, raising=False)
    assert resources.free_memory() == free
    monkeypatch.delattr(os, "sysconf")
    assert resources.free_memory() == (free if meminfo == MEMORY else 2**32)


@pytest.mark.parametrize(("limit", "free"), [("1000", 520), ("400", 0), ("max", 10**6)])
def test_the_free_memory_of_a_container_is_the_rest_of_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, free: int
) -> None:
    """600 bytes are used, of which 50 and 70 are file caches that can be reclaimed."""
    written = {"max": limit, "current": "600", "stat": "anon 9\nactive_file 50\ninactive_file 70\n"}
    for name, text in written.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(resources, "CGROUP", [tmp_path / name for name in written])
    monkeypatch.setattr(resources, "_free_in_machine", lambda: 10**6)
    assert resources.free_memory() == free


def test_a_folder_that_will_be_made_is_on_the_disk_of_its_parents(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    (tmp_path / "file").touch()
    for folder in (tmp_path, tmp_path / "a" / "b", tmp_path / "file"):
        assert abs(resources.free_disk(folder) - free) < 2**30


@pytest.mark.parametrize(
    ("files", "most"),
    [
        ({}, 4),
        ({"cpu.max": "max 100000"}, 4),
        ({"cpu.max": "150000 100000"}, 2),
        ({"cpu.max": "1000 100000"}, 1),
        ({"cpu.max": "900000 100000"}, 4),
        ({"cpu.max": "100000 0"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 4),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
    ],
)
def test_cores_are_those_of_the_affinity_and_the_share_of_a_container(
    files: dict[str, str], most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(f"{text}\n")
    monkeypatch.setattr(resources, "CGROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 3, 5}, raising=False)
    assert resources.cores() == most
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert resources.cores() == 1


NESTED = "4:memory:/other\n1:cpu,cpuacct:/user/job\n0::/user.slice/run.scope\n"


@pytest.mark.parametrize(
    ("own", "files", "most", "free"),
    [
        (NESTED, {"user.slice/run.scope/cpu.max": "200000 100000"}, 2, None),
        (NESTED, {"user.slice/cpu.max": "300000 100000", "user.slice/run.scope/cpu.max": "max 100000"}, 3, None),
        (NESTED, {"user.slice/cpu.max": "100000 100000", "user.slice/run.scope/cpu.max": "300000 100000"}, 1, None),
        (NESTED, {"cpu/user/job/cpu.cfs_quota_us": "200000", "cpu/user/job/cpu.cfs_period_us": "100000"}, 2, None),
        (NESTED, {"other/cpu.max": "100000 100000"}, 4, None),
        ("0::/../../elsewhere\n", {"cpu.max": "200000 100000", "../elsewhere/cpu.max": "100000 100000"}, 2, None),
        ("no groups", {"cpu.max": "200000 100000"}, 2, None),
        (None, {"cpu.max": "200000 100000"}, 2, None),
        (NESTED, {"user.slice/memory.max": "1000", "user.slice/run.scope/memory.max": "max"}, 4, 500),
        (NESTED, {"user.slice/memory.max": "max", "user.slice/run.scope/memory.max": "700"}, 4, 200),
    ],
)
def test_limits_of_all_groups_around_a_process_hold(
    own: str | None, files: dict[str, str], most: int, free: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of memory, each group uses 500 bytes."""
    groups = tmp_path / "groups"
    for name, text in files.items():
        (groups / name).parent.mkdir(parents=True, exist_ok=True)
        (groups / name).write_text(f"{text}\n")
    for limit in groups.rglob("memory.max"):
        (limit.parent / "memory.current").write_text("500\n")
        (limit.parent / "memory.stat").write_text("active_file 0\ninactive_file 0\n")
    if own is not None:
        (tmp_path / "cgroup").write_text(own)
    monkeypatch.setattr(resources, "CGROUPS", groups)
    monkeypatch.setattr(resources, "OWN_CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(resources, "_free_in_machine", lambda: 10**6)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 3, 5}, raising=False)
    assert resources.cores() == most
    assert resources.free_memory() == (10**6 if free is None else free)


def test_the_load_is_what_others_used_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """All cores were busy for 3 s of 2, of which this process took 1."""
    times = iter(
        [(100.0, 7.0, 50.0), (103.0, 8.0, 52.0), (100.0, 7.0, 50.0), (103.0, 8.0, 50.1), None, (1.0, 1.0, 9.0)]
    )
    monkeypatch.setattr(resources.Load, "_seconds", staticmethod(lambda: next(times)))
    assert [resources.Load().others() for _ in range(3)] == [1.0, None, None], "not in a moment"
    monkeypatch.undo()
    monkeypatch.setattr(resources, "cores", lambda: 0)
    assert resources.Load._seconds() is None, "others on these cores take nothing from the share of a container"
    monkeypatch.undo()
    assert (seconds := resources.Load._seconds()) is None or all(each > 0 for each in seconds)
