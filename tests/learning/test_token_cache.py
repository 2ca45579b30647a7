"""Tokens: cached ones match the trunk, killed runs resume, and plans respect their budgets."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.fork_server import KILLED, ForkServer, die
from support.stores import small_store
from torch import Tensor

from sortal.images.store.pixel_store import PixelStore
from sortal.learning import frozen, token_cache, views
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.backbones.registry import load_backbone
from sortal.learning.batches import Draws
from sortal.learning.frozen import FrozenEncoder
from sortal.learning.token_cache import (
    Budget,
    CachedTokens,
    InputSource,
    LiveViews,
    TokenPlan,
    ViewMask,
    cache_tokens,
    plan_tokens,
)
from sortal.system import cache
from sortal.system.device import Compute
from sortal.system.files import write_atomically
from sortal.system.progress import Runtime

CPU, GPU = torch.device("cpu"), torch.device("cuda")
ROWS = np.array([4, 0, 5, 2])  # some of the six rows of the store, in no order
V = 3
DISK_MARGIN = 2**28  # bytes of a disk that stay free
Report = tuple[str, int, int]


def bits(values: Tensor) -> bytes:
    return values.contiguous().view(torch.uint8).numpy().tobytes()


def tiny(size: int = 8) -> Backbone:
    """Make a backbone without a trunk, so that its tokens are exactly the normalised pixels in any batch."""
    return load_backbone("convnet", weights="random", image_size=size)


class Counting(FrozenEncoder):
    """Lists the sizes of its batches."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__(backbone, Compute(CPU))
        self.sizes: list[int] = []

    def __call__(self, pixels: Tensor, *others: Any) -> Tensor:
        self.sizes.append(len(pixels))
        return super().__call__(pixels, *others)


def computed(
    trunk: FrozenEncoder | None = None, store: PixelStore | None = None, rows: NDArray[np.int64] = ROWS, **options: Any
) -> CachedTokens:
    """Compute the tokens of the small store."""
    options = {"n_views": V, "flip": True, "seed": 7, "where": "memory", **options}
    return cache_tokens(trunk or Counting(tiny()), store or small_store(6, 8), rows, **options)


def one_view(
    backbone: Backbone, store: PixelStore, row: int, number: int, *, flip: bool = True, seed: int = 7, epoch: int = 0
) -> Tensor:
    """Compute the tokens of a single view from the definitions."""
    size, keys = backbone.spec.image_size, views.content_keys(store)
    at = np.array([row]), np.array([number])
    where = views.random_crops(store, keys, *at, size=size, flip=flip, seed=seed, epoch=epoch)
    piece = store.image(row)[where.tops[0] :, where.lefts[0] :][:size, :size]
    if where.flipped[0]:
        piece = piece[:, ::-1]
    with torch.no_grad():
        return backbone.trunk(backbone.normalise(torch.from_numpy(piece.copy())[None]))[0]


# Cached tokens


def test_cached_tokens_match_those_of_each_view_alone() -> None:
    vit, store = load_backbone("test_vit", weights="random", image_size=32), small_store(6, 32)
    kept = computed(FrozenEncoder(vit, Compute(CPU)), store)
    assert kept.tokens.shape == (4, V, *token_cache.token_shape(vit)) == (4, V, 5, 64)
    assert kept.tokens.dtype == torch.bfloat16
    assert kept.tokens.untyped_storage().nbytes() == 4 * V * 5 * 64 * 2  # no more than planned
    for at, row in enumerate(ROWS.tolist()):
        for number in range(V):
            wanted = one_view(vit, store, row, number).bfloat16()
            torch.testing.assert_close(kept.tokens[at, number], wanted, rtol=2**-6, atol=2**-7)
    others = [(kept.tokens[at, i] - kept.tokens[at, j]).abs().max() for at in range(4) for i, j in ((0, 1), (1, 2))]
    assert min(others) > 2**-4  # no two views are confused


@pytest.mark.parametrize(
    ("piece", "seed", "flip", "sizes"), [(1, 7, True, [1] * 12), (5, 8, True, [5, 5, 2]), (256, 7, False, [12])]
)
def test_pieces_of_any_size_give_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, piece: int, seed: int, flip: bool, sizes: list[int]
) -> None:
    monkeypatch.setattr(token_cache, "TOKENS_AT_ONCE", piece)
    store, trunk = small_store(6, 8), Counting(tiny())
    reports: list[Report] = []
    runtime = Runtime(progress=lambda *report: reports.append(report))
    kept = computed(trunk, store, seed=seed, flip=flip, runtime=runtime)
    assert trunk.sizes == sizes
    assert reports == [("Computing tokens", int(done), 12) for done in np.cumsum(sizes)]
    for at, row in enumerate(ROWS.tolist()):
        for number in range(V):
            wanted = one_view(tiny(), store, row, number, flip=flip, seed=seed).bfloat16()
            assert torch.equal(kept.tokens[at, number], wanted)


# Resuming


def kept_in(folder: Path, **options: Any) -> tuple[CachedTokens, int]:
    """Cache tokens in a file, and count the computed views."""
    trunk = Counting(tiny())
    made = computed(trunk, where="file", folder=folder, **{"key": "run", **options})
    return made, sum(trunk.sizes)


def spoil(folder: Path, mark: Any, size: int | None = 12 * 384) -> None:
    """Replace the file by this many other bytes, and its mark, by bytes or by a value with its digest."""
    if isinstance(mark, bytes):
        (folder / "tokens.json").write_bytes(mark)
    else:
        cache.save(folder / "tokens.json", mark)
    (folder / "tokens.bf16").unlink()
    if size is not None:
        (folder / "tokens.bf16").write_bytes(b"\x42" * size)


@pytest.mark.parametrize("done", [0, 3, 12])
def test_marked_tokens_are_reused_and_the_rest_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    monkeypatch.setattr(token_cache, "TOKENS_AT_ONCE", 4)
    wanted = kept_in(tmp_path)[0].tokens.flatten(0, 1).clone()
    spoil(tmp_path, {"key": "run", "done": done})
    reports: list[Report] = []
    again, views_computed = kept_in(tmp_path, runtime=Runtime(progress=lambda *report: reports.append(report)))
    assert views_computed == 12 - done
    assert reports == [("Computing tokens", min(at, 12), 12) for at in range(done + 4, 16, 4)]
    found = again.tokens.flatten(0, 1)
    assert bits(found[done:]) == bits(wanted[done:])
    assert bits(found[:done]) == b"\x42" * done * 384  # these were not touched
    assert cache.load(tmp_path / "tokens.json") == {"key": "run", "done": 12}


ALL_DONE = {"key": "run", "done": 12}


@pytest.mark.parametrize(
    ("mark", "size"),
    [
        (b"", 4608),
        (b"null", 4608),
        (b"\xff\xfe\x00", 4608),
        (b'{"key": "run", "done": 12}', 4608),  # without a digest
        (None, 4608),
        ({"done": 12}, 4608),
        ({"key": "run", "done": "12"}, 4608),
        ({"key": "run", "done": -1}, 4608),
        ({"key": "run", "done": 13}, 4608),
        ({"key": "another", "done": 12}, 4608),
        (ALL_DONE, None),
        (ALL_DONE, 4607),
        (ALL_DONE, 4609),
    ],
)
def test_damaged_or_foreign_marks_and_files_of_the_wrong_size_are_not_trusted(
    tmp_path: Path, mark: Any, size: int | None
) -> None:
    wanted = bits(kept_in(tmp_path)[0].tokens)
    spoil(tmp_path, mark, size)
    again, views_computed = kept_in(tmp_path)
    assert views_computed == 12
    assert bits(again.tokens) == wanted == (tmp_path / "tokens.bf16").read_bytes()


def kept_until_killed(folder: str) -> None:
    """In a child: compute tokens in a file, and die once half of the views are done."""
    token_cache.TOKENS_AT_ONCE, frozen.COMMIT_SECONDS = 2, -1.0  # every piece is marked
    kept_in(Path(folder), runtime=Runtime(progress=lambda _, done, __: die() if done == 6 else None))


def test_a_killed_run_resumes_where_it_stopped(fork_server: ForkServer, tmp_path: Path) -> None:
    fork_server.run(kept_until_killed, str(tmp_path), codes=[KILLED])
    again, views_computed = kept_in(tmp_path)
    assert views_computed == 6
    assert bits(again.tokens) == bits(computed().tokens) == (tmp_path / "tokens.bf16").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tokens.bf16", "tokens.json"]


def test_marks_are_written_periodically_and_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark of another run is removed first, or a kill would leave unfinished tokens under it."""
    kept_in(tmp_path, key="another")
    monkeypatch.setattr(token_cache, "TOKENS_AT_ONCE", 2)
    clock = iter([0.0, 4.0, 8.0, 11.0, 11.5, 15.0, 22.0, 22.5, 30.0, 31.0, 32.0])
    monkeypatch.setattr(token_cache, "monotonic", lambda: next(clock))
    marks: list[int] = []

    def look(*_: object) -> None:
        mark = tmp_path / "tokens.json"
        marks.append(cache.load(mark)["done"] if mark.exists() else 0)

    kept_in(tmp_path, runtime=Runtime(progress=look))
    assert marks == [0, 0, 6, 6, 10, 12]


# Streams

NONE = Draws(np.zeros((0, 3), dtype=np.int64), np.zeros((0, 3), dtype=np.int64))


def some_draws(rows: NDArray[np.int64]) -> Draws:
    """Make six steps of five images, some of them repeated."""
    generator = np.random.default_rng(0)
    return Draws(generator.choice(rows, (6, 5)), generator.integers(0, 9, (6, 5)))


@pytest.mark.parametrize("epoch", [0, 11])
def test_a_step_of_cached_views_has_the_first_view_of_each_image_then_the_second(epoch: int) -> None:
    kept, keys, draws = computed(n_views=4), views.content_keys(small_store(6, 8)), some_draws(ROWS)
    steps = list(kept.stream(draws, epoch))
    for step, rows, times in zip(steps, draws.rows, draws.times, strict=True):
        pairs = views.choose_pairs(keys[rows], times, views=4, seed=7, epoch=epoch)
        assert (pairs[0] != pairs[1]).all()
        wanted = [kept.tokens[[*ROWS].index(row), view] for half in pairs for row, view in zip(rows, half, strict=True)]
        assert torch.equal(step, torch.stack(wanted))
    assert list(kept.stream(NONE, epoch)) == []
    with pytest.raises((IndexError, RuntimeError)):  # an image without tokens is an error
        list(kept.stream(Draws(np.array([[1]]), np.array([[0]])), epoch))


@pytest.mark.parametrize("split", [0, 1, 3])
def test_processes_that_cache_some_images_each_stream_together_what_one_would(split: int) -> None:
    """Each at its own places of the batch; a process without images streams nothing."""
    draws, shards = some_draws(ROWS), [computed(rows=rows) for rows in (ROWS[:split], ROWS[split:])]
    masks = [shard.chosen(draws) for shard in shards]
    assert (masks[0] ^ masks[1]).all()
    assert_streams_join(computed(), list(zip(shards, masks, strict=True)), draws)


def thinned(kept: CachedTokens) -> CachedTokens:
    """Let a step see the first token of a view, and two of four others."""
    several = torch.tensor([[0, a, b] for a in range(1, 5) for b in range(a + 1, 5)])
    return replace(kept, patterns=several[torch.arange(views.PATTERNS) % len(several)])


def with_five_tokens(rows: NDArray[np.int64] = ROWS) -> CachedTokens:
    """Make tokens (images, views, 5, 2) that tell their image, view and number."""
    of = torch.from_numpy(rows).view(-1, 1, 1) * 100 + torch.arange(V).view(1, -1, 1) * 10 + torch.arange(5)
    slot = np.full(6, -1)
    slot[rows] = np.arange(len(rows))
    keys = views.content_keys(small_store(6, 8))
    return CachedTokens(torch.stack([of, -of], dim=-1).float(), slot, keys, 7, CPU)


@pytest.mark.parametrize("epoch", [0, 11])
def test_a_step_sees_the_tokens_of_a_pattern_of_each_cached_view(epoch: int) -> None:
    kept, draws = thinned(with_five_tokens()), some_draws(ROWS)
    assert kept.patterns is not None
    drawn = set[tuple[float, ...]]()
    for step, rows, times in zip(kept.stream(draws, epoch), draws.rows, draws.times, strict=True):
        keys = kept.keys[rows]
        pairs = views.choose_pairs(keys, times, views=V, seed=7, epoch=epoch).ravel()
        numbers = views.choose_patterns(keys, times, seed=7, epoch=epoch).ravel()
        wanted = [
            [100.0 * row + 10 * view + token for token in kept.patterns[number].tolist()]
            for row, view, number in zip(np.tile(rows, 2), pairs, numbers, strict=True)
        ]
        assert step[..., 0].tolist() == wanted
        assert torch.equal(step[..., 1], -step[..., 0])
        assert (step[:, 0, 0] % 10 == 0).all(), "the class token comes first"
        drawn |= {tuple(each) for each in (step[:, 1:, 0] % 10).tolist()}
    assert len(drawn) > 1
    assert list(kept.stream(NONE, epoch)) == []


@pytest.mark.parametrize("split", [0, 1, 3])
def test_processes_see_the_same_patches_as_one_would(split: int) -> None:
    draws, shards = some_draws(ROWS), [thinned(with_five_tokens(rows)) for rows in (ROWS[:split], ROWS[split:])]
    masks = [shard.chosen(draws) for shard in shards]
    assert_streams_join(thinned(with_five_tokens()), list(zip(shards, masks, strict=True)), draws)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_processes_divide_live_views_equally(size: int) -> None:
    store, trunk, draws = small_store(6, 8), FrozenEncoder(tiny(), Compute(CPU)), some_draws(np.arange(6))
    each = [LiveViews(trunk, store, flip=True, seed=7, share=(rank, size)) for rank in range(size)]
    masks = [one.chosen(draws) for one in each]
    assert (np.sum(masks, axis=0) == 1).all()
    assert {mask.sum(1).max() for mask in masks} <= {5 // size, 5 // size + 1}
    parts = [(one, mask) for one, mask in zip(each, masks, strict=True) if mask.any()]
    assert_streams_join(LiveViews(trunk, store, flip=True, seed=7), parts, draws)


def assert_streams_join(whole: InputSource, parts: Sequence[tuple[InputSource, ViewMask]], draws: Draws) -> None:
    streams = [list(source.stream(draws, 3, mask)) for source, mask in parts]
    for at, wanted in enumerate(whole.stream(draws, 3)):
        joined = torch.zeros_like(wanted)
        for stream, (_, mask) in zip(streams, parts, strict=True):
            joined[np.flatnonzero(np.tile(mask[at], 2))] = stream[at]
        assert torch.equal(joined, wanted)


@pytest.mark.parametrize("flip", [True, False])
def test_live_views_are_numbered_by_earlier_draws(flip: bool) -> None:
    store, backbone, draws = small_store(6, 8), tiny(), some_draws(np.arange(6))
    source = LiveViews(FrozenEncoder(backbone, Compute(CPU)), store, flip=flip, seed=7)
    for step, rows, times in zip(source.stream(draws, 11), draws.rows.tolist(), draws.times.tolist(), strict=True):
        views_of = [(row, 2 * time + second) for second in (0, 1) for row, time in zip(rows, times, strict=True)]
        wanted = [one_view(backbone, store, row, number, flip=flip, epoch=11) for row, number in views_of]
        assert torch.equal(step, torch.stack(wanted))
    assert list(source.stream(NONE, 0)) == []


# Plans


def machine(patch: pytest.MonkeyPatch, *, gpu: int = 0, memory: int = 0, disk: int = 0) -> None:
    """Pretend that this many bytes are free, on the disk in addition to the margin."""
    patch.setattr(token_cache, "free_memory", lambda: memory)
    patch.setattr(torch.cuda, "mem_get_info", lambda _: (gpu, 10**12))
    patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=disk + DISK_MARGIN))


def test_the_file_of_a_resumed_run_needs_no_additional_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    budget, n_bytes = Budget(memory=0, disk=10**6), 2**16
    write_atomically(tmp_path / "tokens.bf16", b"x" * n_bytes)  # synced, so that its blocks are allocated
    machine(monkeypatch)  # the disk is full
    assert plan_tokens(n_bytes, budget, CPU, tmp_path) == TokenPlan(n_bytes, "file")
    (tmp_path / "tokens.bf16").unlink()
    assert plan_tokens(n_bytes, budget, CPU, tmp_path) == TokenPlan(n_bytes, None)


def test_a_file_comes_first_where_that_is_wanted_and_it_fits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine(monkeypatch, memory=100, disk=20)
    budget = Budget(disk=10, file_first=True)
    for n_bytes, where in ((10, "file"), (11, "memory"), (60, None)):
        assert plan_tokens(n_bytes, budget, CPU, tmp_path).where == where
    assert plan_tokens(10, replace(budget, file_first=False), CPU, tmp_path).where == "memory"
    assert plan_tokens(10, budget, CPU, None).where == "memory"


amount = st.integers(0, 30)
maybe = st.none() | amount


@settings(max_examples=300, deadline=None)
@given(
    n_bytes=amount,
    free=st.tuples(amount, amount, amount),
    limits=st.tuples(maybe, maybe, amount),
    device=st.sampled_from([CPU, GPU]),
    folder=st.sampled_from([None, Path("/nowhere")]),
)
def test_tokens_go_to_the_fastest_place_with_room(
    n_bytes: int,
    free: tuple[int, int, int],
    limits: tuple[int | None, int | None, int],
    device: torch.device,
    folder: Path | None,
) -> None:
    """Never more than is free or allowed: by default 70 % of a GPU and half of the memory."""
    with pytest.MonkeyPatch.context() as patch:
        machine(patch, gpu=free[0], memory=free[1], disk=free[2])
        budget = Budget(device=limits[0], memory=limits[1], disk=limits[2])
        found = plan_tokens(n_bytes, budget, device, folder)
    shares = (int(0.7 * free[0]), free[1] // 2, 0)
    rooms = [
        share if limit is None else min(limit, have) for have, limit, share in zip(free, limits, shares, strict=True)
    ]
    there = {"device": device == GPU, "memory": True, "file": folder is not None}
    fits = [place for place, buffer in zip(there, rooms, strict=True) if there[place] and n_bytes <= buffer]
    assert (found.bytes, found.where) == (n_bytes, fits[0] if fits else None)


def test_plans_state_their_size_and_place() -> None:
    assert str(TokenPlan(2_500_000_000, "device")) == "2.5 GB of tokens are cached on the device"
    assert str(TokenPlan(25_000_000, "memory")) == "25.0 MB of tokens are cached in memory"
    assert str(TokenPlan(12_345, "file")) == "12,345 bytes of tokens are cached in a file"
    assert str(TokenPlan(10**12, None)) == (
        "1,000.0 GB of tokens do not fit the budget; views are computed in every epoch"
    )
