"""Processes: one alone, and those of torchrun, each with its device and its place among the others."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import run_two

from sortal import processes
from sortal.errors import InputError
from sortal.processes import launch, shards

OF_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OF_TORCHRUN:
        monkeypatch.delenv(name, raising=False)


def test_one_process_on_the_cpu_has_nobody_to_wait_for_and_takes_no_random_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    before = torch.get_rng_state()
    fabric = launch()
    assert torch.equal(torch.get_rng_state(), before)
    assert (fabric.world_size, fabric.global_rank, fabric.device) == (1, 0, torch.device("cpu"))
    assert fabric.broadcast({"a": 1}) == {"a": 1}
    found = shards(fabric)
    assert (found.group, found.rank, found.size) == (None, 0, 1)
    assert not torch.distributed.is_initialized()


def test_a_device_that_is_none_or_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="device must be 'auto', 'cpu'"):
        launch("gpu")
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


TOGETHER = {"num_nodes": 1, "strategy": "ddp"}


@pytest.mark.parametrize(
    ("world", "local", "device", "options"),
    [
        (None, None, "cpu", {"accelerator": "cpu", "devices": 1}),
        (None, None, "cuda", {"accelerator": "cuda", "devices": [0]}),
        (1, 1, "cuda:2", {"accelerator": "cuda", "devices": [2]}),
        (2, 2, "cpu", {"accelerator": "cpu", "devices": 2, **TOGETHER}),
        (8, 4, "cuda", {"accelerator": "cuda", "devices": 4, **TOGETHER, "num_nodes": 2}),
    ],
)
def test_what_is_asked_of_fabric(
    monkeypatch: pytest.MonkeyPatch, world: int | None, local: int | None, device: str, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(processes, "Fabric", Recorded)
    if world is not None:
        monkeypatch.setenv("WORLD_SIZE", str(world))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(local))
    made: Any = launch(device)
    assert made.options == options
    assert made.launched


def of_torchrun(rank: int, folder: Path) -> None:
    """One of two processes; writes what it found."""
    os.environ.update({**dict.fromkeys(OF_TORCHRUN, "2"), "RANK": str(rank), "LOCAL_RANK": str(rank)})
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


def test_the_processes_of_torchrun_find_each_other(tmp_path: Path) -> None:
    run_two(of_torchrun, tmp_path)
    for rank in (0, 1):
        assert torch.load(tmp_path / f"{rank}.pt") == {
            "places": [(2, rank, rank)] * 2,
            "device": "cpu",
            "shards": (rank, 2),
            "told": "by 0",
            "rows": [1.0, 1.0, 2.0, 2.0, 2.0],
        }
