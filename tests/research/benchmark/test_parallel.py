"""Processes of a sweep: their GPUs, their end with the one that started them, and how they are started."""

import contextlib
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.fork_server import KILLED, ForkServer, die, is_running, wait_until
from support.parallel_tasks import environment, wait_for_the_end

from sortal.errors import InputError
from sortal.research.benchmark import parallel, sweep


@pytest.mark.parametrize(
    ("visible", "device", "taken"),
    [
        (None, "cuda", ["0", "1", "0"]),
        (None, "cuda:1", ["1", "1", "1"]),
        ("4,7", "cuda", ["4", "7", "4"]),
        ("4,7", "cuda:1", ["7", "7", "7"]),
        ("", "cpu", ["", "", ""]),
    ],
)
def test_each_process_takes_one_of_the_gpus_unless_one_is_named(
    visible: str | None, device: str, taken: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    gpus = sweep._gpus(torch.device(device))
    found = [value for _, value in parallel.in_processes(environment, range(3), 3, gpus)]
    assert sorted(str(name) for name, _ in filter(None, found)) == sorted(taken)
    assert {size for _, size in filter(None, found)} == {"3"}, "the memory is divided among the processes"


def test_processes_are_not_started_where_python_ignores_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(parallel.SAFE_PATH, raising=False)
    for ignored, safe in ((True, False), (True, True), (False, False)):
        monkeypatch.setattr(sys, "flags", SimpleNamespace(ignore_environment=ignored, safe_path=safe))
        wrong = pytest.raises(InputError, match="add -P") if ignored and not safe else contextlib.nullcontext()
        with wrong, parallel.start_safely():
            assert os.environ[parallel.SAFE_PATH] == "1"
        assert parallel.SAFE_PATH not in os.environ


def die_with_two_processes(folder: str) -> None:
    """In a child, start two processes that wait, and be killed as soon as both run."""

    def watch() -> None:
        wait_until(lambda: len(os.listdir(folder)) == 2)
        die()

    threading.Thread(target=watch, daemon=True).start()
    for _ in parallel.in_processes(wait_for_the_end, [folder, folder], 2, ()):
        raise AssertionError("a process ended by itself")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux")
def test_processes_end_with_the_one_that_started_them(fork_server: ForkServer, tmp_path: Path) -> None:
    fork_server.run(die_with_two_processes, str(tmp_path), codes=[KILLED])
    pids = [int(name) for name in os.listdir(tmp_path)]
    assert len(pids) == 2
    wait_until(lambda: not any(is_running(pid) for pid in pids))
