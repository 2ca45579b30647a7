"""Shards: nothing happens without a group, and two processes agree on what one process would find."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from processes import run_two
from scipy.sparse import csr_array
from torch import Tensor

from sortal import shards as module
from sortal.inputs import read
from sortal.members import Fixed, Members
from sortal.points import Points
from sortal.seeding import Seeds, row_keys
from sortal.shards import Shards

SPLITS = {"uneven": (17, 43), "all in the first": (60, 0), "all in the second": (0, 60)}
Result = dict[str, Any]


def test_one_process_has_everything_to_itself() -> None:
    shards, x = Shards(), torch.arange(6).view(2, 3)
    assert (shards.rank, shards.size) == (0, 1)
    assert torch.equal(shards.sum(x), x)
    assert torch.equal(shards.stack(x), x[None])
    joined, start = shards.concat(x[0])
    assert torch.equal(joined, x[0])
    assert start == 0
    assert shards.objects({"a": 1}) == [{"a": 1}]
    assert shards.part(7) == (0, 7)
    kept = x.clone()
    shards.complete(x)
    assert torch.equal(x, kept)


@given(n=st.integers(0, 10**12), size=st.integers(1, 300))
def test_parts_are_all_rows_in_rank_order_and_about_as_large(n: int, size: int) -> None:
    shards, parts = Shards(), []
    shards.size = size
    for shards.rank in range(size):
        parts.append(shards.part(n))
    assert [start for start, _ in parts] == [0, *(end for _, end in parts[:-1])]
    assert parts[-1][1] == n
    lengths = {end - start for start, end in parts}
    assert min(lengths) >= 0
    assert max(lengths) - min(lengths) <= 1


def rows() -> tuple[Tensor, Tensor]:
    """Sixty rows, some of them copies, and their labels, −1 for most."""
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)) + 5
    x[50:] = x[:10]
    return x, torch.where(torch.arange(60) % 5 == 0, torch.arange(60) % 2, -1)


def cluster(x: Tensor, labels: Tensor, shards: Shards) -> Result:
    """Every step that needs the other processes, up to who moves to an empty centre."""
    points = Points(x, (labels < 0).nonzero()[:, 0], shards=shards)
    fixed = Fixed.of(x, labels, 2, points)
    keys = row_keys(points)
    seeds = Seeds(points, keys, [0, 1, 2], (fixed.means - points.mean).float()).grow(12)
    greedy = Seeds(points, keys, [0, 1, 2], (fixed.means - points.mean).float(), candidates=3).grow(30)
    assigned = seeds.nearest % 6
    members = Members.of(points, fixed, assigned, 8)  # centres 6 and 7 are empty
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


def attempt(call: Callable[[], Any]) -> Any:
    """What the call returns, or the error it ends in."""
    try:
        return call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


TYPES = (torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
SHAPES = ((5,), (5, 3), (4, 2, 3), (1, 2), (0, 2), (3, 0))


def numbers(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Rows to be computed; as booleans they alternate in some way."""
    values = torch.arange(1, math.prod(shape) + 1).view(shape)
    return values % 3 == 1 if dtype == torch.bool else values.to(dtype)


def completed(values: Tensor, shards: Shards) -> Tensor:
    """What becomes of rows of which each process has only its part."""
    mine = torch.zeros_like(values)
    start, end = shards.part(len(values))
    mine[start:end] = values[start:end]
    shards.complete(mine)
    return mine


def fill_in(rank: int, shards: Shards) -> Result:
    """Every way to complete rows."""
    found: Result = {}
    for dtype in TYPES:
        for shape in SHAPES:
            found[f"{dtype} {shape}"] = completed(numbers(shape, dtype), shards)
    found["columns"] = completed(numbers((3, 5), torch.float32).T, shards)
    with patch.object(module, "PIECE", 16, create=True):  # bytes, which is less than a row and no part of two
        found["in pieces"] = completed(numbers((7, 3), torch.float32), shards)
        found["in pieces of rows"] = completed(numbers((9, 2), torch.bfloat16), shards)
    second = dist.new_group([1])
    if rank == 1:
        found["a smaller group"] = completed(numbers((5, 3), torch.float32), Shards(second))
    return found


def work(rank: int, folder: Path) -> None:
    """One of two processes; writes what it found."""
    shards, mine = Shards(dist.group.WORLD), torch.arange(6).view(2, 3) + 10 * rank
    kept = mine.clone()
    found: Result = {
        "place": (shards.rank, shards.size),
        "sum": shards.sum(mine),
        "sum of columns": shards.sum(mine.T),
        "kept": torch.equal(mine, kept),
        "stack": shards.stack(mine),
        "stack of columns": attempt(lambda: shards.stack(mine.T)),
        "concat": shards.concat(mine.flatten()[: 2 + 3 * rank]),
        "concat with nothing": shards.concat(mine.flatten()[: 4 * rank]),
        "concat of nothing": shards.concat(mine.flatten()[:0]),
        "objects": shards.objects({"rank": rank}),
        "parts": (shards.part(5), shards.part(4), shards.part(1), shards.part(0)),
        "completed": fill_in(rank, shards),
    }
    x, labels = rows()
    for name, lengths in SPLITS.items():
        part = slice(0, lengths[0]) if rank == 0 else slice(lengths[0], None)
        found[name] = cluster(x[part], labels[part], shards)
    three = np.zeros((3, 2))
    label: Any = ["b", -1, 7] if rank == 0 else ["a", "b", -1]
    found["read"] = read(three, label, "cpu", shards)
    found["read nothing"] = read(three[: 3 * rank], np.array([4, -1, 2])[: 3 * rank], "cpu", shards)
    missing: Any = [0, 1, None] if rank else None
    found["bad labels"] = attempt(lambda: read(three, missing, "cpu", shards))
    found["other features"] = attempt(lambda: read(np.zeros((3, 2 + rank)), None, "cpu", shards))
    found["other type"] = attempt(lambda: read(np.zeros((3, 2), dtype=["f4", "f8"][rank]), None, "cpu", shards))
    # Last, as a process that gives up alone leaves the other waiting.
    found["sparse"] = attempt(lambda: read(csr_array(three) if rank else three, None, "cpu", shards))
    torch.save(found, folder / f"{rank}.pt")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    """What each of two processes found."""
    folder = tmp_path_factory.mktemp("shards")
    run_two(work, folder)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


def test_processes_know_their_place(both: list[Result]) -> None:
    assert [found["place"] for found in both] == [(0, 2), (1, 2)]
    assert [found["objects"] for found in both] == [[{"rank": 0}, {"rank": 1}]] * 2


def test_sum_adds_up_and_leaves_its_argument(both: list[Result]) -> None:
    for found in both:
        assert found["sum"].tolist() == [[10, 12, 14], [16, 18, 20]]
        assert found["sum of columns"].tolist() == [[10, 16], [12, 18], [14, 20]]
        assert found["kept"]


def test_stack_is_in_rank_order(both: list[Result]) -> None:
    for found in both:
        assert found["stack"].tolist() == [[[0, 1, 2], [3, 4, 5]], [[10, 11, 12], [13, 14, 15]]]


def test_stack_takes_columns_too(both: list[Result]) -> None:
    for found in both:
        assert isinstance(found["stack of columns"], Tensor), found["stack of columns"]
        assert found["stack of columns"].tolist() == [[[0, 3], [1, 4], [2, 5]], [[10, 13], [11, 14], [12, 15]]]


def test_concat_joins_parts_of_any_length(both: list[Result]) -> None:
    for rank, found in enumerate(both):
        for name, joined, start in (
            ("concat", [0, 1, 10, 11, 12, 13, 14], 2 * rank),
            ("concat with nothing", [10, 11, 12, 13], 0),
            ("concat of nothing", [], 0),
        ):
            assert found[name][0].tolist() == joined
            assert found[name][1] == start


def test_each_process_has_its_part(both: list[Result]) -> None:
    assert both[0]["parts"] == ((0, 2), (0, 2), (0, 0), (0, 0))
    assert both[1]["parts"] == ((2, 5), (2, 4), (0, 1), (0, 0))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_of_any_type_and_shape_are_filled_in(
    both: list[Result], dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    for found in both:
        got = found["completed"][f"{dtype} {shape}"]
        assert got.dtype == dtype
        assert got.shape == shape
        assert torch.equal(got, numbers(shape, dtype))


def test_rows_are_filled_in_however_they_lie_and_however_large_they_are(both: list[Result]) -> None:
    for found in both:
        assert torch.equal(found["completed"]["columns"], numbers((3, 5), torch.float32).T)
        assert torch.equal(found["completed"]["in pieces"], numbers((7, 3), torch.float32))
        assert torch.equal(found["completed"]["in pieces of rows"], numbers((9, 2), torch.bfloat16))


def test_a_group_of_some_processes_fills_in_its_own_rows(both: list[Result]) -> None:
    assert torch.equal(both[1]["completed"]["a smaller group"], numbers((5, 3), torch.float32))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_rows_in_memory_are_filled_in_where_processes_talk_from_gpu_to_gpu(tmp_path: Path) -> None:
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        assert torch.equal(completed(torch.arange(6.0).view(3, 2), Shards(dist.group.WORLD)).sum(), torch.tensor(15.0))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("split", SPLITS)
def test_spread_rows_are_clustered_as_together(both: list[Result], split: str) -> None:
    whole = cluster(*rows(), Shards())
    for name, value in whole.items():
        got = [found[split][name] for found in both]
        if name.startswith("rows/"):
            torch.testing.assert_close(torch.cat(got), value, rtol=0, atol=0)
        else:
            for one in got:
                torch.testing.assert_close(one, value)
    assert whole["empty"][1, 6:].tolist() == [0, 0]
    assert whole["counts"][1, 6:].tolist() == [1, 1]  # the empty centres were filled


def test_classes_are_numbered_alike(both: list[Result]) -> None:
    assert [found["read"][1].tolist() for found in both] == [[2, -1, 0], [1, 2, -1]]
    assert [found["read"][2].tolist() for found in both] == [[7, "a", "b"]] * 2
    assert [found["read nothing"][1].tolist() for found in both] == [[], [1, -1, 0]]
    assert [found["read nothing"][2].tolist() for found in both] == [[2, 4]] * 2


def test_a_problem_of_one_process_is_raised_in_both(both: list[Result]) -> None:
    first, second = (found["bad labels"] for found in both)
    assert first.startswith("InputError: process 1: y must mark unlabelled rows with -1, got None")
    assert second.startswith("InputError: y must mark unlabelled rows with -1, got None")


def test_rows_of_different_width_are_refused(both: list[Result]) -> None:
    for found in both:
        assert str(found["other features"]).startswith("InputError: "), found["other features"]


def test_rows_of_different_type_are_refused_or_made_one(both: list[Result]) -> None:
    first, second = (found["other type"] for found in both)
    if isinstance(first, tuple):
        assert first[0].dtype == second[0].dtype
    else:
        assert first.startswith("InputError: ")


def test_rows_of_a_kind_that_is_refused_are_no_reason_to_wait(both: list[Result]) -> None:
    first, second = (found["sparse"] for found in both)
    assert "Sparse data was passed" in second
    assert first.startswith("InputError: process 1: Sparse data was passed")
