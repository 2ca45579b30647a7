"""Processes: a single one, those of torchrun, and two that compute what one would."""

import math
import os
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from support.processes import run_two
from torch import Tensor
from torch.testing import assert_close

from sortal.clustering.cluster_sums import ClusterSums, LabelledSums
from sortal.clustering.inputs import read_inputs
from sortal.clustering.points import Points
from sortal.clustering.seeding import Seeds, row_keys
from sortal.errors import InputError
from sortal.system import distributed
from sortal.system.distributed import Peers, Processes, alone, launch

TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID")
SPLITS = ((17, 43), (60, 0), (0, 60))  # rows of the first and the second process


@pytest.fixture(autouse=True)
def without_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in TORCHRUN:
        monkeypatch.delenv(name, raising=False)


def test_operations_of_a_single_process_change_nothing() -> None:
    processes, x = alone("cpu"), torch.arange(6).view(2, 3)
    assert (processes.rank, processes.size) == (0, 1)
    assert torch.equal(processes.sum(x), x)
    assert torch.equal(processes.stack(x), x[None])
    joined, start = processes.concat(x[0])
    assert torch.equal(joined, x[0])
    assert start == 0
    assert processes.gather_objects({"a": 1}) == [{"a": 1}]
    assert processes.share_of(7) == (0, 7)
    kept = x.clone()
    processes.exchange_rows(x)
    processes.broadcast_tensors([x])
    processes.sum_in_place([x])
    processes.barrier()
    assert torch.equal(x, kept)
    assert processes.broadcast({"a": 1}) == {"a": 1}


def test_without_torchrun_a_process_is_alone_and_draws_no_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    before = torch.get_rng_state()
    found = launch("auto")
    assert torch.equal(torch.get_rng_state(), before)
    assert (found.group, found.rank, found.size, found.device) == (None, 0, 1, torch.device("cpu"))
    assert not dist.is_initialized()


def test_each_process_of_torchrun_uses_the_gpu_of_its_local_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[object] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(dist, "is_initialized", lambda: False)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, timeout: taken.append((backend, timeout)))
    monkeypatch.setattr(distributed, "Processes", lambda device, group: device)
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert str(launch("cuda")) == "cuda:3"
    assert taken == [torch.device("cuda:3"), ("nccl", timedelta(days=1))]
    assert str(launch("cpu")) == "cpu"
    assert taken[2:] == [("gloo", timedelta(days=1))]
    monkeypatch.setenv("LOCAL_RANK", "4")
    with pytest.raises(InputError, match=r"device must be on this machine, got 'cuda:4' \(4 available\)"):
        launch("cuda")


@given(n=st.integers(0, 10**12), size=st.integers(1, 300))
def test_shares_cover_all_rows_in_rank_order_and_are_about_equal(n: int, size: int) -> None:
    processes, parts = Peers(), []
    processes.size = size
    for processes.rank in range(size):
        parts.append(processes.share_of(n))
    assert [start for start, _ in parts] == [0, *(end for _, end in parts[:-1])]
    assert parts[-1][1] == n
    assert {end - start for start, end in parts} <= {n // size, n // size + 1}


def rows() -> tuple[Tensor, Tensor]:
    """Make sixty rows, some of them copies, and their labels, mostly −1."""
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)) + 5
    x[50:] = x[:10]
    return x, torch.where(torch.arange(60) % 5 == 0, torch.arange(60) % 2, -1)


def cluster(x: Tensor, labels: Tensor, processes: Processes) -> dict[str, Any]:
    """Run every step that needs the other processes, up to refilling empty centres."""
    points = Points(x, (labels < 0).nonzero()[:, 0], processes=processes)
    fixed = LabelledSums.of(x, labels, 2, points)
    keys = row_keys(points)
    seeds = Seeds(points, keys, [0, 1, 2], (fixed.means - points.mean).float()).grow(12)
    greedy = Seeds(points, keys, [0, 1, 2], (fixed.means - points.mean).float(), candidates=3).grow(30)
    assigned = seeds.nearest % 6
    members = ClusterSums.of(points, fixed, assigned, 8)  # centres 6 and 7 are empty
    empty = members.counts.clone()
    before, after = assigned.clone(), assigned[1].clone()
    moved = members.refill(points, 1, seeds.centres[1, :8], after)
    after = torch.stack([before[0], after, before[2]])
    pairs = torch.stack([torch.full_like(moved, 1), moved], 1)
    touched = members.move(points, pairs, before, after)
    return {
        "mean": points.mean,
        "variance": points.variance(),
        "fixed": fixed.sums,
        "spread": [members.spread(points, r, seeds.centres[r, :8]) for r in range(3)],
        "centres": seeds.grow(50).centres + points.mean,  # every row is drawn, copies last
        "greedy centres": greedy.centres + points.mean,
        "empty": empty,
        "counts": members.counts,
        "sums": members.sums,
        "touched": touched,
        "rows/keys": keys,
        "rows/assigned": before.T,
    }


# In each of two processes


TYPES = (torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
SHAPES = ((5,), (5, 3), (4, 2, 3), (1, 2), (0, 2), (3, 0))


def numbers(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Make rows of consecutive numbers, or a pattern of booleans."""
    values = torch.arange(1, math.prod(shape) + 1).view(shape)
    return values % 3 == 1 if dtype == torch.bool else values.to(dtype)


def check_exchange(values: Tensor, processes: Processes) -> None:
    """Check that rows of which each process has only its part are completed."""
    mine = torch.zeros_like(values)
    start, end = processes.share_of(len(values))
    mine[start:end] = values[start:end]
    processes.exchange_rows(mine)
    assert_close(mine, values, rtol=0, atol=0)


def check_rows_are_exchanged(rank: int, processes: Processes) -> None:
    for dtype in TYPES:
        for shape in SHAPES:
            check_exchange(numbers(shape, dtype), processes)
    check_exchange(numbers((3, 5)).T, processes)
    with patch.object(distributed, "BROADCAST_BYTES", 16):  # bytes: not a multiple of a row
        check_exchange(numbers((7, 3)), processes)
        check_exchange(numbers((9, 2), torch.bfloat16), processes)
    second = dist.new_group([1])
    if rank == 1:
        check_exchange(numbers((5, 3)), Processes(second))


def check_launched(rank: int) -> None:
    """A program that trains and then extracts features launches twice."""
    os.environ.update({**dict.fromkeys(TORCHRUN, "2"), "RANK": str(rank), "LOCAL_RANK": str(rank)})
    for found in (launch("cpu"), launch("cpu")):
        assert (found.group, found.rank, found.size, str(found.device)) == (dist.group.WORLD, rank, 2, "cpu")


def check_operations(rank: int, processes: Processes) -> None:
    assert (processes.rank, processes.size) == (rank, 2)
    assert processes.gather_objects({"rank": rank}) == [{"rank": 0}, {"rank": 1}]
    mine = torch.arange(6).view(2, 3) + 10 * rank
    kept = mine.clone()
    assert processes.sum(mine).tolist() == [[10, 12, 14], [16, 18, 20]]
    assert processes.sum(mine.T).tolist() == [[10, 16], [12, 18], [14, 20]]
    assert torch.equal(mine, kept)
    assert processes.stack(mine).tolist() == [[[0, 1, 2], [3, 4, 5]], [[10, 11, 12], [13, 14, 15]]]
    assert processes.stack(mine[:, ::2]).tolist() == [[[0, 2], [3, 5]], [[10, 12], [13, 15]]]
    assert processes.stack(mine.T).tolist() == [[[0, 3], [1, 4], [2, 5]], [[10, 13], [11, 14], [12, 15]]]
    sums = [torch.tensor([[1.0, rank], [2.0, 3.0]]).T, torch.tensor(10.0 * rank)]
    processes.sum_in_place(sums)
    assert [values.tolist() for values in sums] == [[[2, 4], [1, 6]], 10]
    processes.sum_in_place([])
    ours = [mine.clone().T, torch.nn.Parameter(torch.full((2,), float(rank)))]
    processes.broadcast_tensors(ours)
    assert [values.tolist() for values in ours] == [[[0, 3], [1, 4], [2, 5]], [0, 0]]
    assert processes.broadcast(f"by {rank}") == "by 0"
    processes.barrier()
    for length, joined, start in (
        (2 + 3 * rank, [0, 1, 10, 11, 12, 13, 14], 2 * rank),
        (4 * rank, [10, 11, 12, 13], 0),
        (0, [], 0),
    ):
        found = processes.concat(mine.flatten()[:length])
        assert (found[0].tolist(), found[1]) == (joined, start)


def check_clusters(rank: int, processes: Processes, lengths: tuple[int, int]) -> None:
    """Check that distributed rows are clustered like those of one process."""
    x, labels = rows()
    part = slice(0, lengths[0]) if rank == 0 else slice(lengths[0], None)
    found, whole = cluster(x[part], labels[part], processes), cluster(x, labels, alone("cpu"))
    unlabelled = labels < 0
    rows_here = slice(0, int(unlabelled[part].sum())) if rank == 0 else slice(int(unlabelled[: lengths[0]].sum()), None)
    for name, value in whole.items():
        if name.startswith("rows/"):
            assert_close(found[name], value[rows_here], rtol=0, atol=0)
        else:
            assert_close(found[name], value)
    assert whole["empty"][1, 6:].tolist() == [0, 0]
    assert whole["counts"][1, 6:].tolist() == [1, 1]  # the empty centres were filled


def check_reading(rank: int, processes: Processes) -> None:
    """Check that types and class numbers agree, and that a problem of one process is raised in both."""
    three = np.zeros((3, 2))
    names: Any = ["b", -1, 7] if rank == 0 else ["a", "b", -1]
    _, labels, classes = read_inputs(three, names, "cpu", processes)
    assert (labels.tolist(), classes.tolist()) == ([[2, -1, 0], [1, 2, -1]][rank], [7, "a", "b"])
    _, labels, classes = read_inputs(three[: 3 * rank], np.array([4, -1, 2])[: 3 * rank], "cpu", processes)
    assert (labels.tolist(), classes.tolist()) == ([[], [1, -1, 0]][rank], [2, 4])
    assert read_inputs(np.zeros((3, 2), dtype=["f4", "f8"][rank]), None, "cpu", processes)[0].dtype == torch.float64
    with pytest.raises(InputError, match=r"the same number of features in all processes, got \[2, 3\]"):
        read_inputs(np.zeros((3, 2 + rank)), None, "cpu", processes)
    here = "" if rank else "process 1: "
    missing: Any = [0, 1, None] if rank else None
    with pytest.raises(InputError, match=f"^{here}y must mark unlabelled rows with -1, got None"):
        read_inputs(three, missing, "cpu", processes)
    # Last, as a process that fails alone leaves the other waiting.
    with pytest.raises((TypeError, ValueError), match=f"^{here}Sparse data was passed"):
        read_inputs(csr_array(three) if rank else three, None, "cpu", processes)


def work(rank: int, _: Path) -> None:
    processes = Processes(torch.device("cpu"), dist.group.WORLD)
    check_launched(rank)
    check_operations(rank, processes)
    check_rows_are_exchanged(rank, processes)
    for lengths in SPLITS:
        check_clusters(rank, processes, lengths)
    check_reading(rank, processes)


def test_two_processes_compute_what_one_would(tmp_path: Path) -> None:
    run_two(work, tmp_path)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_rows_in_memory_are_exchanged_over_nccl(tmp_path: Path) -> None:
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        check_exchange(numbers((3, 2)), Processes(torch.device("cuda"), dist.group.WORLD))
    finally:
        dist.destroy_process_group()
