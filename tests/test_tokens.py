"""Tokens: kept ones are those of the trunk, in the right place; a kill costs little; plans keep to their budgets."""

import io
import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Iterator
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from processes import run_two
from stores import small_store
from torch import Tensor

from sortal import tokens, train, views
from sortal.backbone import load_backbone
from sortal.batches import Draws, draw
from sortal.compute import Compute
from sortal.config import Contrast, Training
from sortal.errors import InputError
from sortal.images import image_set
from sortal.methods import Contrastive
from sortal.network import Backbone
from sortal.segments import write_atomically
from sortal.shards import Shards
from sortal.store import PixelStore
from sortal.tokens import Budget, Cached, Live, Plan, Source, cache, free_memory, plan, room_for, token_shape
from sortal.trunk import Frozen

CPU, GPU = torch.device("cpu"), torch.device("cuda")
ROWS = np.array([4, 0, 5, 2])  # some of the six rows of the store, in no order
V = 3
MARGIN = 2**28  # bytes of a disk that stay free
Report = tuple[str, int, int]


def bits(values: Tensor) -> bytes:
    return values.contiguous().view(torch.uint8).numpy().tobytes()


def tiny(size: int = 8) -> Backbone:
    """All of it is tail, so its tokens are the normalised pixels, exactly, whatever else is in a batch."""
    return load_backbone("convnet", weights="random", image_size=size)


class Counting(Frozen):
    """A trunk that notes how many views it is given."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__(backbone, Compute(CPU))
        self.sizes: list[int] = []

    def __call__(self, pixels: Tensor, flipped: Tensor) -> Tensor:
        self.sizes.append(len(pixels))
        return super().__call__(pixels, flipped)


def computed(
    trunk: Frozen | None = None,
    store: PixelStore | None = None,
    *,
    rows: NDArray[np.int64] = ROWS,
    n_views: int = V,
    seed: int = 7,
    where: Literal["memory", "file"] = "memory",
    **options: Any,
) -> Cached:
    """Tokens of the small store."""
    return cache(
        trunk or Counting(tiny()),
        store or small_store(6, 8),
        rows,
        n_views=n_views,
        flip=True,
        seed=seed,
        where=where,
        **options,
    )


def one_view(
    backbone: Backbone, store: PixelStore, row: int, number: int, *, flip: bool = True, seed: int = 7, epoch: int = 0
) -> Tensor:
    """The trunk's tokens of one view, alone, from the definitions."""
    size, keys = backbone.spec.image_size, views.content_keys(store)
    where = views.random(store, keys, np.array([row]), np.array([number]), size=size, flip=flip, seed=seed, epoch=epoch)
    piece = store.image(row)[where.tops[0] :, where.lefts[0] :][:size, :size]
    if where.flipped[0]:
        piece = piece[:, ::-1]
    with torch.no_grad():
        return backbone.trunk(backbone.normalise(torch.from_numpy(piece.copy())[None]))[0]


# What is kept


@pytest.mark.parametrize("where", ["memory", "file"])
def test_kept_tokens_are_those_of_each_view_by_itself(where: Literal["memory", "file"], tmp_path: Path) -> None:
    vit, store = load_backbone("test_vit", weights="random", image_size=32), small_store(6, 32)
    kept = computed(Frozen(vit, Compute(CPU)), store, where=where, folder=tmp_path)
    assert kept.tokens.shape == (4, V, *token_shape(vit)) == (4, V, 5, 64)
    assert kept.tokens.dtype == torch.bfloat16
    for at, row in enumerate(ROWS.tolist()):
        for number in range(V):
            wanted = one_view(vit, store, row, number).bfloat16()
            torch.testing.assert_close(kept.tokens[at, number], wanted, rtol=2**-6, atol=2**-7)
    others = [(kept.tokens[at, i] - kept.tokens[at, j]).abs().max() for at in range(4) for i, j in ((0, 1), (1, 2))]
    assert min(others) > 2**-4  # so that the right one of them was asked for


@pytest.mark.parametrize("piece", [1, 2, 5, 12, 256])
def test_pieces_of_any_size_give_the_same_bits(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(tokens, "PIECE", piece)
    store, trunk = small_store(6, 8), Counting(tiny())
    kept = computed(trunk, store)
    assert trunk.sizes == [piece] * (12 // piece) + [12 % piece] * (12 % piece > 0)
    for at, row in enumerate(ROWS.tolist()):
        for number in range(V):
            assert torch.equal(kept.tokens[at, number], one_view(tiny(), store, row, number).bfloat16())


def test_a_file_holds_the_bits_of_memory(tmp_path: Path) -> None:
    memory, file = computed(), computed(where="file", folder=tmp_path, key="run")
    assert bits(file.tokens) == bits(memory.tokens)
    assert (tmp_path / "tokens.bf16").read_bytes() == bits(memory.tokens)
    assert json.loads((tmp_path / "tokens.json").read_text()) == {"key": "run", "done": 12}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tokens.bf16", "tokens.json"]


def test_other_settings_keep_other_tokens() -> None:
    kept = bits(computed().tokens)
    assert bits(computed(seed=8).tokens) != kept
    unflipped = cache(Counting(tiny()), small_store(6, 8), ROWS, n_views=V, flip=False, seed=7, where="memory").tokens
    assert bits(unflipped) != kept
    for at, row in enumerate(ROWS.tolist()):
        wanted = one_view(tiny(), small_store(6, 8), row, 1, flip=False).bfloat16()
        assert torch.equal(unflipped[at, 1], wanted)


def test_an_image_has_its_tokens_in_any_place() -> None:
    kept, other = computed().tokens, computed(rows=ROWS[::-1].copy()).tokens
    assert bits(other.flip(0)) == bits(kept)


def test_progress_goes_up_to_all_views(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "PIECE", 5)
    said: list[Report] = []
    computed(on_progress=lambda *report: said.append(report))
    assert said == [("Computing tokens", done, 12) for done in (5, 10, 12)]


@pytest.mark.parametrize("where", ["memory", "file"])
def test_the_memory_that_is_stated_is_what_is_taken(where: Literal["memory", "file"], tmp_path: Path) -> None:
    images = image_set([f"{i}.png" for i in range(6)], paths=["x"] * 6, labels=["a", "b", None, None, None, None])
    backbone = load_backbone("test_vit", weights="random", image_size=32)
    method = Contrastive(backbone, Contrast(hidden=8, bottleneck=8))
    taken: list[int] = []
    notes: list[str] = []

    def watched(*values: Any, **named: Any) -> Cached:
        made = cache(*values, **named)
        taken.append(made.tokens.nbytes)
        assert made.tokens.nbytes == made.tokens.untyped_storage().nbytes()
        if where == "file":
            assert (tmp_path / "tokens.bf16").stat().st_size == made.tokens.nbytes
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "cache", watched)
        train.train(
            method,
            images,
            small_store(6, 32),
            Training(epochs=1, batch_size=3, views=5, precision="float32"),
            folder=tmp_path if where == "file" else None,
            device="cpu",
            budget=Budget(memory=None if where == "memory" else 0, disk=10**8),
            on_note=notes.append,
        )
    assert taken == [6 * 5 * prod(token_shape(backbone)) * 2] == [19_200]
    place = {"memory": "in memory", "file": "in a file"}[where]
    assert notes == [f"5 views of 6 images: 19,200 bytes of tokens are kept {place}."]
    assert not (tmp_path / "tokens.bf16").exists()  # once the run is done


# Going on


def kept_in(folder: Path, **options: Any) -> tuple[Cached, int]:
    """Tokens in a file, and how many views were computed for that."""
    trunk = Counting(tiny())
    made = computed(trunk, where="file", folder=folder, **{"key": "run", **options})
    return made, sum(trunk.sizes)


def set_mark(folder: Path, done: Any, key: str = "run") -> None:
    (folder / "tokens.json").write_text(json.dumps({"key": key, "done": done}))


def spoil(folder: Path, start: int, end: int) -> None:
    """Other numbers in the place of some views."""
    with (folder / "tokens.bf16").open("rb+") as file:
        file.seek(start * 3 * 8 * 8 * 2)
        file.write(b"\x42" * (end - start) * 3 * 8 * 8 * 2)


def test_what_is_there_already_is_not_computed(tmp_path: Path) -> None:
    first, views_computed = kept_in(tmp_path)
    assert views_computed == 12
    again, views_computed = kept_in(tmp_path)
    assert views_computed == 0
    assert bits(again.tokens) == bits(first.tokens)


@pytest.mark.parametrize("done", [0, 1, 5, 11, 12])
def test_what_is_marked_is_left_and_the_rest_computed(tmp_path: Path, done: int) -> None:
    wanted = kept_in(tmp_path)[0].tokens.flatten(0, 1).clone()
    spoil(tmp_path, 0, 12)
    set_mark(tmp_path, done)
    again, views_computed = kept_in(tmp_path)
    assert views_computed == 12 - done
    found = again.tokens.flatten(0, 1)
    assert bits(found[done:]) == bits(wanted[done:])
    assert bits(found[:done]) == b"\x42" * done * 384  # nobody looked at these
    assert json.loads((tmp_path / "tokens.json").read_text()) == {"key": "run", "done": 12}


def test_going_on_says_how_much_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "PIECE", 4)
    kept_in(tmp_path)
    set_mark(tmp_path, 3)
    said: list[Report] = []
    kept_in(tmp_path, on_progress=lambda *report: said.append(report))
    assert said == [("Computing tokens", done, 12) for done in (7, 11, 12)]


@pytest.mark.parametrize(
    "mark",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"\xff\xfe\x00",
        b"{}",
        b'{"key": "run"}',
        b'{"done": 12}',
        b'{"key": null, "done": 12}',
        b'{"key": "run", "done": null}',
        b'{"key": "run", "done": "12"}',
        b'{"key": "run", "done": -1}',
        b'{"key": "run", "done": 13}',
        b'{"key": "run", "done": 1e999}',
        b'{"key": "run", "done": [12]}',
        b'{"key": "another", "done": 12}',
    ],
)
def test_a_damaged_mark_and_one_of_another_run_vouch_for_nothing(tmp_path: Path, mark: bytes) -> None:
    wanted = bits(kept_in(tmp_path)[0].tokens)
    spoil(tmp_path, 0, 12)
    (tmp_path / "tokens.json").write_bytes(mark)
    again, views_computed = kept_in(tmp_path)
    assert views_computed == 12
    assert bits(again.tokens) == wanted == (tmp_path / "tokens.bf16").read_bytes()
    assert json.loads((tmp_path / "tokens.json").read_text()) == {"key": "run", "done": 12}


@pytest.mark.parametrize("size", [None, 0, 12 * 384 - 1, 12 * 384 + 1, 24 * 384])
def test_a_file_of_another_size_is_written_anew(tmp_path: Path, size: int | None) -> None:
    wanted = bits(kept_in(tmp_path)[0].tokens)
    if size is None:
        (tmp_path / "tokens.bf16").unlink()
    else:
        os.truncate(tmp_path / "tokens.bf16", size)
    again, views_computed = kept_in(tmp_path)
    assert views_computed == 12
    assert bits(again.tokens) == wanted == (tmp_path / "tokens.bf16").read_bytes()


def test_tokens_of_another_shape_are_written_over(tmp_path: Path) -> None:
    kept_in(tmp_path, n_views=5)
    wanted = bits(computed().tokens)
    again, views_computed = kept_in(tmp_path)
    assert views_computed == 12
    assert bits(again.tokens) == wanted == (tmp_path / "tokens.bf16").read_bytes()


def test_no_mark_of_others_stays_while_tokens_are_written_over(tmp_path: Path) -> None:
    """Else a kill would leave our half-done tokens under their mark."""
    kept_in(tmp_path, key="another")

    class Dying(Frozen):
        def __call__(self, pixels: Tensor, flipped: Tensor) -> Tensor:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        computed(Dying(tiny(), Compute(CPU)), where="file", folder=tmp_path, key="run")
    assert not (tmp_path / "tokens.json").exists()
    assert kept_in(tmp_path, key="another")[1] == 12


def killed(folder: Path, after: int) -> None:
    """Compute tokens in a file, and be killed once `after` views are done."""
    torch.set_num_threads(1)
    tokens.PIECE, tokens.COMMIT = 2, -1.0  # every piece is marked

    def die(_: str, done: int, __: int) -> None:
        if done == after:
            os.kill(os.getpid(), signal.SIGKILL)

    kept_in(folder, on_progress=die)


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=killed, args=(tmp_path, 6))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    again, views_computed = kept_in(tmp_path)
    assert views_computed == 6
    assert bits(again.tokens) == bits(computed().tokens) == (tmp_path / "tokens.bf16").read_bytes()


def test_marks_are_made_now_and_then_and_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "PIECE", 2)
    clock = iter([0.0, 4.0, 8.0, 11.0, 11.5, 15.0, 22.0, 22.5, 30.0, 31.0, 32.0])
    monkeypatch.setattr(tokens, "monotonic", lambda: next(clock))
    marks: list[int] = []

    def look(*_: object) -> None:
        mark = tmp_path / "tokens.json"
        marks.append(json.loads(mark.read_text())["done"] if mark.exists() else 0)

    kept_in(tmp_path, on_progress=look)
    assert marks == [0, 0, 6, 6, 10, 12]


# Two processes


def both(rank: int, folder: Path) -> None:
    """One of two processes; writes what it found."""
    tokens.PIECE = 4
    found: dict[str, Any] = {}
    for name, rows, n_views in (("odd", np.array([4, 0, 5]), 3), ("one image", np.array([2]), 3), ("all", ROWS, 3)):
        trunk, said = Counting(tiny()), list[Report]()
        kept = computed(
            trunk,
            rows=rows,
            n_views=n_views,
            shards=Shards(dist.group.WORLD),
            on_progress=lambda *report, said=said: said.append(report),
        )
        draws = Draws(rows[None], np.zeros((1, len(rows)), dtype=np.int64))
        found[name] = (bits(kept.tokens), sum(trunk.sizes), said, bits(next(kept.stream(draws, 0))))
    torch.save(found, folder / f"{rank}.pt")


def test_two_processes_share_the_work_and_both_have_all(tmp_path: Path) -> None:
    run_two(both, tmp_path)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    shares = {"odd": (4, 5), "one image": (1, 2), "all": (6, 6)}
    for name, rows in (("odd", np.array([4, 0, 5])), ("one image", np.array([2])), ("all", ROWS)):
        alone = computed(rows=rows)
        draws = Draws(rows[None], np.zeros((1, len(rows)), dtype=np.int64))
        step = bits(next(alone.stream(draws, 0)))
        for rank, found in enumerate((first, second)):
            share = shares[name][rank]
            assert found[name][:2] == (bits(alone.tokens), share)
            assert found[name][2][-1] == ("Computing tokens", share, share)
            assert found[name][3] == step


# Streams


def numbered(n: int, n_views: int, rows: NDArray[np.int64], keys: NDArray[np.uint64], seed: int) -> Cached:
    """Tokens that say whose they are: image · 16 + view, which bfloat16 has exactly up to 256."""
    values = (rows[:, None] * 16 + np.arange(n_views)).astype(np.float32)
    assert values.max() <= 256
    kept = torch.from_numpy(values).bfloat16()[:, :, None].expand(-1, -1, 2).contiguous()
    return Cached(kept, rows, keys, seed=seed, device=CPU)


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    n_views=st.integers(2, 15),
    batch_size=st.integers(1, 7),
    steps=st.integers(1, 5),
    seed=st.integers(0, 2**63 - 1),
    epoch=st.integers(0, 300),
)
def test_a_step_is_the_first_views_of_its_images_then_the_second(
    data: st.DataObject, n_views: int, batch_size: int, steps: int, seed: int, epoch: int
) -> None:
    rows = np.array(data.draw(st.lists(st.integers(0, 15), unique=True, min_size=1)))
    places = data.draw(
        st.lists(st.sampled_from(rows.tolist()), min_size=steps * batch_size, max_size=steps * batch_size)
    )
    drawn = np.array(places).reshape(steps, batch_size)
    times = np.array(data.draw(st.lists(st.integers(0, 9), min_size=drawn.size, max_size=drawn.size)))
    draws = Draws(drawn, times.reshape(drawn.shape))
    keys = np.random.default_rng(seed).integers(0, 2**64, 16, dtype=np.uint64)
    given_steps = list(numbered(16, n_views, rows, keys, seed).stream(draws, epoch))
    assert len(given_steps) == steps
    for at, step in enumerate(given_steps):
        assert step.shape == (2 * batch_size, 2)
        assert step.dtype == torch.bfloat16
        assert torch.equal(step[:, 0], step[:, 1])
        images, numbers = np.divmod(step[:, 0].float().numpy().astype(np.int64), 16)
        np.testing.assert_array_equal(images, np.concatenate([drawn[at], drawn[at]]))
        first, second = numbers[:batch_size], numbers[batch_size:]
        assert (first != second).all()
        wanted = views.pair(keys[drawn[at]], draws.times[at], views=n_views, seed=seed, epoch=epoch)
        np.testing.assert_array_equal(np.stack([first, second]), wanted)


def test_kept_views_change_from_draw_to_draw_and_from_epoch_to_epoch() -> None:
    keys = np.arange(1, dtype=np.uint64)
    source = numbered(1, 8, np.array([0]), keys, 0)
    draws = Draws(np.zeros((40, 1), dtype=np.int64), np.arange(40)[:, None])
    epochs = [[tuple(step[:, 0].tolist()) for step in source.stream(draws, epoch)] for epoch in (0, 1)]
    assert epochs[0] != epochs[1]
    assert len(set(epochs[0])) > 20  # of 56 pairs
    assert {view for pair in epochs[0] for view in pair} == set(range(8))


def test_an_image_without_tokens_is_never_another_one() -> None:
    source = numbered(4, 2, np.array([0, 2]), np.arange(4, dtype=np.uint64), 0)
    with pytest.raises((IndexError, RuntimeError)):
        list(source.stream(Draws(np.array([[0, 1]]), np.zeros((1, 2), dtype=np.int64)), 0))


def live(backbone: Backbone, store: PixelStore, *, flip: bool = True, seed: int = 7) -> Live:
    return Live(Frozen(backbone, Compute(CPU)), store, flip=flip, seed=seed)


def some_draws(*, epoch: int = 0, batch_size: int = 5) -> Draws:
    """Of six images, of which some come more than once."""
    labelled = np.array([True, True, False, False, False, False])
    draws = draw(np.arange(6), labelled, batch_size=batch_size, balanced=True, seed=3, epoch=epoch)
    return Draws(np.tile(draws.rows, (4, 1)), np.tile(draws.times, (4, 1)) + 2 * np.arange(4)[:, None])


@pytest.mark.parametrize("flip", [True, False])
def test_live_views_are_numbered_by_how_often_an_image_was_drawn(flip: bool) -> None:
    store, backbone, draws = small_store(6, 8), tiny(), some_draws()
    steps = list(live(backbone, store, flip=flip).stream(draws, 11))
    assert len(steps) == len(draws) == 4
    for step, rows, times in zip(steps, draws.rows.tolist(), draws.times.tolist(), strict=True):
        assert len(step) == 10
        for at, (row, time) in enumerate(zip(rows, times, strict=True)):
            for half, number in ((0, 2 * time), (5, 2 * time + 1)):
                wanted = one_view(backbone, store, row, number, flip=flip, epoch=11)
                assert torch.equal(step[half + at], wanted)


def test_an_image_drawn_again_is_seen_in_other_views() -> None:
    store = small_store(2, 50)  # there are thousands of crops of 8 pixels
    draws = Draws(np.array([[1, 1, 1], [1, 1, 1]]), np.arange(6).reshape(2, 3))
    seen = [view for step in live(tiny(), store).stream(draws, 0) for view in step]
    assert len(seen) == len({bits(view) for view in seen}) == 12


def test_live_views_are_new_in_every_epoch() -> None:
    source, draws = live(tiny(), small_store(6, 8)), some_draws()
    first, again, second = (torch.cat(list(source.stream(draws, epoch))) for epoch in (0, 0, 1))
    assert torch.equal(first, again)
    assert (first != second).flatten(1).any(1).float().mean() > 0.8


def test_what_a_live_image_becomes_does_not_depend_on_the_others() -> None:
    store, backbone = small_store(6, 32), load_backbone("test_vit", weights="random", image_size=32)
    together = Draws(np.array([[0, 1, 2, 3]]), np.array([[0, 4, 0, 1]]))
    (step,) = live(backbone, store).stream(together, 0)
    for at in range(4):
        (alone,) = live(backbone, store).stream(Draws(together.rows[:, [at]], together.times[:, [at]]), 0)
        torch.testing.assert_close(alone, step[[at, 4 + at]], rtol=1e-4, atol=1e-5)


def sources() -> Iterator[Source]:
    yield live(tiny(), small_store(6, 8))
    yield numbered(6, 2, np.arange(6), np.arange(6, dtype=np.uint64), 0)


@pytest.mark.parametrize("source", list(sources()), ids=["live", "cached"])
def test_no_steps_are_nothing(source: Source) -> None:
    none = np.zeros((0, 3), dtype=np.int64)
    assert list(source.stream(Draws(none, none), 0)) == []


def test_live_and_kept_views_come_from_the_same_images() -> None:
    """Both see the same draws, so what is compared between them differs in views alone."""
    store, draws = small_store(6, 8), some_draws()
    kept = computed(store=store, rows=np.arange(6), n_views=2)
    for step, rows in zip(kept.stream(draws, 0), draws.rows.tolist(), strict=True):
        both_views = {row: {bits(one_view(tiny(), store, row, number).bfloat16()) for number in (0, 1)} for row in rows}
        for at, row in enumerate(rows):
            assert {bits(step[at]), bits(step[5 + at])} == both_views[row]


# Plans


def machine(
    monkeypatch: pytest.MonkeyPatch, *, memory: int = 10**6, gpu: int = 10**6, disk: int = 10**6 + MARGIN
) -> None:
    """A machine with so many bytes free."""
    monkeypatch.setattr(tokens, "free_memory", lambda: memory)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (gpu, 10**12))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=disk))


@pytest.mark.parametrize(
    ("n_bytes", "budget", "device", "where"),
    [
        (100, Budget(memory=100), CPU, "memory"),
        (101, Budget(memory=100), CPU, None),
        (1, Budget(memory=0), CPU, None),
        (500, Budget(), CPU, "memory"),  # half of what is free
        (501, Budget(), CPU, None),
        (1000, Budget(memory=5000), CPU, "memory"),  # never more than is free
        (1001, Budget(memory=5000), CPU, None),
        (501, Budget(disk=501), CPU, "file"),
        (501, Budget(disk=500), CPU, None),
        (3000, Budget(disk=5000), CPU, "file"),
        (3001, Budget(disk=5000), CPU, None),
        (100, Budget(device=0, memory=100), CPU, "memory"),  # there is no device but the CPU
        (101, Budget(device=500, memory=100), CPU, None),
        (1400, Budget(), GPU, "device"),  # seven tenths
        (1401, Budget(memory=1000), GPU, None),
        (500, Budget(device=499), GPU, "memory"),
        (500, Budget(device=500), GPU, "device"),
        (501, Budget(device=499), GPU, None),
        (501, Budget(device=499, disk=501), GPU, "file"),
        (2000, Budget(device=9000), GPU, "device"),
        (2001, Budget(device=9000), GPU, None),
    ],
)
def test_tokens_go_to_the_fastest_place_that_has_room(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    n_bytes: int,
    budget: Budget,
    device: torch.device,
    where: str | None,
) -> None:
    machine(monkeypatch, memory=1000, gpu=2000, disk=3000 + MARGIN)
    assert plan(n_bytes, budget, device, tmp_path) == Plan(n_bytes, where)  # type: ignore[arg-type]


def test_there_is_no_file_without_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine(monkeypatch)
    budget = Budget(memory=0, disk=10**6)
    assert plan(100, budget, CPU, tmp_path) == Plan(100, "file")
    assert plan(100, budget, CPU, None) == Plan(100, None)


def test_the_file_of_a_run_that_goes_on_needs_no_room_a_second_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    budget, n_bytes = Budget(memory=0, disk=10**6), 2**16
    write_atomically(tmp_path / "tokens.bf16", b"x" * n_bytes)  # which waits until it has its blocks
    machine(monkeypatch, disk=MARGIN)  # it has filled the disk
    assert plan(n_bytes, budget, CPU, tmp_path) == Plan(n_bytes, "file")
    (tmp_path / "tokens.bf16").unlink()
    assert plan(n_bytes, budget, CPU, tmp_path) == Plan(n_bytes, None)


amount = st.integers(0, 2**50)
maybe = st.none() | amount


@settings(max_examples=200, deadline=None)
@given(
    n_bytes=amount, free=st.tuples(amount, amount, amount), limits=st.tuples(maybe, maybe, amount), on_gpu=st.booleans()
)
def test_no_plan_goes_beyond_what_is_free_or_allowed(
    n_bytes: int, free: tuple[int, int, int], limits: tuple[int | None, int | None, int], on_gpu: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        machine(patch, gpu=free[0], memory=free[1], disk=free[2])
        budget = Budget(device=limits[0], memory=limits[1], disk=limits[2])
        found = plan(n_bytes, budget, GPU if on_gpu else CPU, Path("/nowhere"))
    assert found.bytes == n_bytes
    places = ["device", "memory", "file"]
    rooms = [
        min(have, int(share * have) if limit is None else limit)
        for have, limit, share in zip((*free[:2], free[2] - MARGIN), limits, (0.7, 0.5, 1), strict=True)
    ]
    fits = [place for place, room in zip(places, rooms, strict=True) if n_bytes <= room]
    if not on_gpu:
        fits = [place for place in fits if place != "device"]
    assert found.where == (fits[0] if fits else None)


def test_plans_say_what_they_cost() -> None:
    assert str(Plan(2_500_000_000, "device")) == "2.5 GB of tokens are kept on the device"
    assert str(Plan(25_000_000, "memory")) == "25.0 MB of tokens are kept in memory"
    assert str(Plan(12_345, "file")) == "12,345 bytes of tokens are kept in a file"
    assert str(Plan(10**12, None)) == ("1,000.0 GB of tokens do not fit the budget: views are computed in every epoch")


@pytest.mark.parametrize("name", ["device", "memory", "disk"])
@pytest.mark.parametrize("value", [-1, 1.5, 1e9, "1 GB", True, float("nan")])
def test_budgets_are_numbers_of_bytes(name: str, value: Any) -> None:
    with pytest.raises(InputError) as caught:
        Budget(**{name: value})
    assert str(caught.value) == f"The budget of {name} must be a number of bytes of at least 0, got {value!r}."


def test_no_budget_of_disk_is_no_disk() -> None:
    assert Budget().disk == 0
    nothing: Any = None
    with pytest.raises(InputError, match="The budget of disk must be a number of bytes of at least 0, got None"):
        Budget(disk=nothing)


def test_free_memory_is_some_of_what_there_is() -> None:
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < free_memory() <= there
    assert 0 < room_for(Budget(), CPU) <= there / 2
    assert room_for(Budget(memory=1), CPU) == 1


def test_free_memory_is_what_the_system_says(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "MemTotal:  32000000 kB\nMemFree:    100 kB\nMemAvailable:   1234 kB\nHugePages_Total:    0\n"
    monkeypatch.setattr(tokens, "open", lambda *_, **__: io.StringIO(said), raising=False)
    assert free_memory() == 1234 * 1024


@pytest.mark.parametrize("said", [None, "", "MemTotal: 5 kB\n", "MemAvailable: many kB\n", "no colon\n", "a:b:c\n"])
def test_a_system_that_does_not_say_has_half_of_its_memory_free(
    monkeypatch: pytest.MonkeyPatch, said: str | None
) -> None:
    def opened(*_: object, **__: object) -> io.StringIO:
        if said is None:
            raise FileNotFoundError("/proc/meminfo")
        return io.StringIO(said)

    monkeypatch.setattr(tokens, "open", opened, raising=False)
    assert free_memory() == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    monkeypatch.delattr(os, "sysconf")
    assert free_memory() == 2**32
