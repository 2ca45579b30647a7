"""Processes: one alone, and those of torchrun, each with its device and its place among the others."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric

from sortal import processes
from sortal.errors import InputError
from sortal.processes import launch, shards

OF_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OF_TORCHRUN:
        monkeypatch.delenv(name, raising=False)


def test_one_process_on_the_cpu_has_nobody_to_wait_for() -> None:
    fabric = launch("cpu")
    assert (fabric.world_size, fabric.global_rank, fabric.device) == (1, 0, torch.device("cpu"))
    assert fabric.broadcast({"a": 1}) == {"a": 1}
    found = shards(fabric)
    assert (found.group, found.rank, found.size) == (None, 0, 1)
    assert not torch.distributed.is_initialized()


def test_a_machine_without_gpu_works_on_its_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert launch().device == torch.device("cpu")


@pytest.mark.parametrize("device", ["gpu", "", "cuda:x", "tpu", None])
def test_a_device_that_is_none_is_refused(device: Any) -> None:
    with pytest.raises(InputError, match="device must be 'auto', 'cpu'"):
        launch(device)


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(InputError, match="device must be on this machine, got 'cuda:1', of which there are 1"):
        launch("cuda:1")


class Recorded:
    """In place of Fabric: what it was made with."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.launched = False

    def launch(self) -> None:
        self.launched = True


@pytest.mark.parametrize(
    ("environment", "device", "options"),
    [
        ({}, "cpu", {"accelerator": "cpu", "devices": 1}),
        ({}, "cuda", {"accelerator": "cuda", "devices": [0]}),
        ({}, "cuda:2", {"accelerator": "cuda", "devices": [2]}),
        ({"WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}, "cuda:2", {"accelerator": "cuda", "devices": [2]}),
        (
            {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"},
            "cpu",
            {"accelerator": "cpu", "devices": 2, "num_nodes": 1, "strategy": "ddp"},
        ),
        (
            {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"},
            "cuda",
            {"accelerator": "cuda", "devices": 4, "num_nodes": 2, "strategy": "ddp"},
        ),
    ],
)
def test_what_is_asked_of_fabric(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], device: str, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(processes, "Fabric", Recorded)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    made: Any = launch(device)
    assert made.options == options
    assert made.launched


def of_torchrun(rank: int, folder: Path) -> None:
    """One of two processes; writes what it found."""
    torch.set_num_threads(1)
    fabric, again = launch("cpu"), launch("cpu")  # as a program does that trains and then extracts
    group = shards(fabric)
    rows = torch.zeros(5, 2)
    start, end = group.part(5)
    rows[start:end] = rank + 1
    group.complete(rows)
    found = {
        "places": [(each.world_size, each.global_rank, each.local_rank) for each in (fabric, again)],
        "device": str(fabric.device),
        "shards": (group.rank, group.size),
        "told": fabric.broadcast(f"by {rank}"),
        "rows": rows[:, 0].tolist(),
    }
    torch.save(found, folder / f"{rank}.pt")
    fabric.barrier()
    os._exit(0)  # gloo's threads now and then abort a process that shuts down in good order


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def test_the_processes_of_torchrun_find_each_other(tmp_path: Path) -> None:
    common = {
        **os.environ,
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "TORCHELASTIC_RUN_ID": "test",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    started = []
    for rank in (0, 1):
        code = f"import pathlib, test_processes as t; t.of_torchrun({rank}, pathlib.Path({str(tmp_path)!r}))"
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0"}
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", code],
                env={**common, **place},
                cwd=Path(__file__).parent,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        for process in started:
            _, errors = process.communicate(timeout=120)
            assert process.returncode == 0, errors
    finally:
        for process in started:
            process.kill()
    for rank in (0, 1):
        assert torch.load(tmp_path / f"{rank}.pt") == {
            "places": [(2, rank, rank)] * 2,
            "device": "cpu",
            "shards": (rank, 2),
            "told": "by 0",
            "rows": [1.0, 1.0, 2.0, 2.0, 2.0],
        }


def test_launching_leaves_the_numbers_of_torch_alone() -> None:
    torch.manual_seed(3)
    wanted = torch.rand(2)
    torch.manual_seed(3)
    assert isinstance(launch("cpu"), Fabric)
    assert torch.equal(torch.rand(2), wanted)
