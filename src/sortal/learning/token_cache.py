"""Where training's inputs come from: views computed anew, or the trunk's tokens of a few views kept from the start."""

from __future__ import annotations

import json
import os
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sortal import views
from sortal.batches import Draws
from sortal.errors import InputError
from sortal.interrupt import deferred
from sortal.network import Backbone
from sortal.segments import write_atomically
from sortal.shards import Shards
from sortal.space import for_people
from sortal.store import PixelStore
from sortal.trunk import ON_CPU, Frozen, ahead
from sortal.views import Crops
from sortal.workers import Progress

Where = Literal["device", "memory", "file"]
COMMIT = 10.0  # seconds between marks of a file: what a kill can cost
PIECE = 256  # crops that go through the trunk at once
MARGIN = 2**28  # bytes that stay free on the disk
TOKENS, MARK = "tokens.bf16", "tokens.json"
CGROUP = ("memory.max", "memory.current", "memory.stat")  # in bytes, as Linux tells containers


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The most bytes of tokens that may be kept in each place; None takes a share of the memory that is free."""

    device: int | None = None
    memory: int | None = None
    disk: int = 0

    def __post_init__(self) -> None:
        for name in ("device", "memory", "disk"):
            value = getattr(self, name)
            if value is None and name != "disk":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise InputError(f"The budget of {name} must be a number of bytes of at least 0, got {value!r}.")


@dataclass(frozen=True)
class Plan:
    """What keeping tokens would cost, and where they go: None is nowhere, and views are computed anew."""

    bytes: int
    where: Where | None

    def __str__(self) -> str:
        size = for_people(self.bytes)[0]
        if self.where is None:
            return f"{size} of tokens do not fit the budget: views are computed in every epoch"
        place = {"device": "on the device", "memory": "in memory", "file": "in a file"}[self.where]
        return f"{size} of tokens are kept {place}"


def plan(n_bytes: int, budget: Budget, device: torch.device, folder: Path | None) -> Plan:
    """The fastest place that has room."""
    if n_bytes <= room_for(budget, device):
        return Plan(n_bytes, "device" if device.type == "cuda" else "memory")
    if device.type == "cuda" and n_bytes <= room_for(budget, torch.device("cpu")):
        return Plan(n_bytes, "memory")
    if folder is not None and n_bytes <= min(budget.disk, _free_disk(folder) - MARGIN):
        return Plan(n_bytes, "file")
    return Plan(n_bytes, None)


def room_for(budget: Budget, device: torch.device) -> int:
    """Bytes of tokens that may be kept on a device; on the CPU that is memory."""
    if device.type == "cuda":
        limit, free, share = budget.device, torch.cuda.mem_get_info(device)[0], 0.7
    else:
        beside = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # processes on this machine, each with its own tokens
        limit, free, share = budget.memory, free_memory() // beside, 0.5
    return int(share * free) if limit is None else min(limit, free)


def free_memory() -> int:
    """Bytes of memory that may still be taken on this machine, or in the container this runs in."""
    return min(_free_in_machine(), _free_in_container())


def _free_in_container() -> int:
    try:
        limit, used, kinds = (Path("/sys/fs/cgroup", name).read_text(encoding="ascii") for name in CGROUP)
        of_kind = dict(line.split() for line in kinds.splitlines())
        cached = int(of_kind["active_file"]) + int(of_kind["inactive_file"])  # given up when memory is asked for
        return max(int(limit) - int(used) + cached, 0)
    except (OSError, ValueError, KeyError):  # there is none, or its limit is "max"
        return sys.maxsize


def _free_in_machine() -> int:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":") for line in file)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2) if hasattr(os, "sysconf") else 2**32


def _free_disk(folder: Path) -> int:
    """Bytes a file of tokens may take; one that is there already is gone on with, or written over."""
    file = folder / TOKENS
    held = getattr(file.stat(), "st_blocks", 0) * 512 if file.is_file() else 0
    return shutil.disk_usage(folder).free + held


class Source(ABC):
    """Gives the inputs of the tail for the steps of an epoch."""

    @abstractmethod
    def stream(self, draws: Draws, epoch: int) -> Iterator[Tensor]:
        """For each step (2 · batch_size, ...): the first view of every image, then the second."""


class Live(Source):
    """New crops in every epoch, through the trunk each time."""

    def __init__(self, trunk: Frozen, store: PixelStore, *, flip: bool, seed: int) -> None:
        self.trunk = trunk
        self.store = store
        self.flip = flip
        self.seed = seed
        self.keys = views.content_keys(store)

    def stream(self, draws: Draws, epoch: int) -> Iterator[Tensor]:
        return self.trunk.stream(
            self.store, (self._crops(*step, epoch) for step in zip(draws.rows, draws.times, strict=True))
        )

    def _crops(self, rows: NDArray[np.int64], times: NDArray[np.int64], epoch: int) -> Crops:
        both = np.concatenate([rows, rows])
        numbers = np.concatenate([2 * times, 2 * times + 1])
        return views.random(
            self.store, self.keys, both, numbers, size=self._size, flip=self.flip, seed=self.seed, epoch=epoch
        )

    @property
    def _size(self) -> int:
        return self.trunk.backbone.spec.image_size


class Cached(Source):
    """The tokens of `n_views` views of each of some images, computed once, kept in bfloat16."""

    def __init__(
        self, tokens: Tensor, rows: NDArray[np.int64], keys: NDArray[np.uint64], *, seed: int, device: torch.device
    ) -> None:
        self.tokens = tokens  # (images, views, ...)
        self.seed = seed
        self.device = device
        self.keys = keys
        self.slot = np.full(len(keys), -1)
        self.slot[rows] = np.arange(len(rows))

    def stream(self, draws: Draws, epoch: int) -> Iterator[Tensor]:
        n_views = self.tokens.shape[1]
        flat = self.tokens.flatten(0, 1)
        pairs = views.pair(
            self.keys[draws.rows.ravel()], draws.times.ravel(), views=n_views, seed=self.seed, epoch=epoch
        ).reshape(2, *draws.rows.shape)
        places = self.slot[draws.rows] * n_views + pairs  # (2, steps, batch_size)
        slots = torch.from_numpy(places.transpose(1, 0, 2).reshape(len(draws), 2 * draws.rows.shape[1]))
        if self.tokens.device.type == self.device.type != "cpu":
            yield from (flat.index_select(0, step) for step in slots.to(self.device))
            return
        pinned = self.device.type == "cuda"

        def gather(step: Tensor) -> Tensor:
            rows = torch.empty((len(step), *flat.shape[1:]), dtype=flat.dtype, pin_memory=pinned)
            return torch.index_select(flat, 0, step, out=rows)

        for rows in ahead(gather, slots):
            yield rows.to(self.device, non_blocking=True)


def token_shape(backbone: Backbone) -> tuple[int, ...]:
    """The shape of the tokens of one view."""
    size = backbone.spec.image_size
    pixels = torch.zeros((1, size, size, 3), dtype=torch.uint8, device=backbone.device)
    with torch.no_grad():
        return tuple(backbone.trunk(backbone.normalise(pixels)).shape[1:])


@dataclass
class Room:
    """Where tokens lie while they are computed, and how many views are done."""

    tokens: Tensor  # (views of all images, ...), bfloat16
    done: int = 0
    file: np.memmap[Any, Any] | None = None  # what the tokens lie in
    mark: Path | None = None  # beside the file: whose tokens they are, and how many are done
    key: str = ""

    def commit(self) -> None:
        """Say in the mark that all so far is on disk."""
        if self.file is not None and self.mark is not None:
            self.file.flush()
            write_atomically(self.mark, json.dumps({"key": self.key, "done": self.done}).encode())


def _room(where: Where, shape: tuple[int, ...], device: torch.device, folder: Path | None, key: str) -> Room:
    if where == "device":
        return Room(torch.empty(shape, dtype=torch.bfloat16, device=device))
    if where == "memory":
        return Room(torch.empty(shape, dtype=torch.bfloat16))
    assert folder is not None
    file, mark = folder / TOKENS, folder / MARK
    done = _done(mark, key, shape[0]) if file.is_file() and file.stat().st_size == 2 * int(np.prod(shape)) else 0
    if not done:
        mark.unlink(missing_ok=True)
        _allocate(file, 2 * int(np.prod(shape)))
    array = np.memmap(file, dtype=np.int16, mode="r+", shape=shape)
    return Room(torch.from_numpy(array).view(torch.bfloat16), done, array, mark, key)


def _allocate(file: Path, size: int) -> None:
    """A file of that many bytes, which the disk has set aside: writing to it cannot fail halfway."""
    with file.open("wb") as empty:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(empty.fileno(), 0, size)
        else:
            empty.truncate(size)


def _done(mark: Path, key: str, total: int) -> int:
    """How many views of `total` a mark vouches for: none where it is damaged, or of another key."""
    try:
        found = json.loads(mark.read_text(encoding="utf-8"))
        done = found["done"] if found["key"] == key else 0
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    return done if type(done) is int and 0 <= done <= total else 0


def cache(
    trunk: Frozen,
    store: PixelStore,
    rows: NDArray[np.int64],
    *,
    n_views: int,
    flip: bool,
    seed: int,
    where: Where,
    folder: Path | None = None,
    key: str = "",
    shards: Shards | None = None,
    on_progress: Progress = lambda *_: None,
) -> Cached:
    """Run the trunk over `n_views` views of every one of `rows` and keep what comes out; processes share the work.

    In a file in `folder`, what is done is marked now and then, and at Ctrl-C, so that a killed run goes on there; `key`
    says whose tokens they are, and those of another key are written over.
    """
    keys = views.content_keys(store)
    total, size = len(rows) * n_views, trunk.backbone.spec.image_size
    room = _room(where, (total, *token_shape(trunk.backbone)), trunk.compute.device, folder, key)
    shards = shards or Shards()
    first, end = shards.part(total)
    room.done = max(room.done, first)

    def crops() -> Iterator[Crops]:
        piece = min(PIECE, ON_CPU) if trunk.backbone.device.type == "cpu" else PIECE
        for start in range(room.done, end, piece):
            at = np.arange(start, min(start + piece, end))
            yield views.random(store, keys, rows[at // n_views], at % n_views, size=size, flip=flip, seed=seed, epoch=0)

    committed = monotonic()
    with deferred(room.file is not None) as stopped:
        for part in trunk.stream(store, crops()):
            room.tokens[room.done : room.done + len(part)] = part.to(torch.bfloat16)
            room.done += len(part)
            if monotonic() - committed > COMMIT or room.done == end:
                room.commit()
                committed = monotonic()
            on_progress("Computing tokens", room.done - first, end - first)
            if stopped():
                room.commit()
                raise KeyboardInterrupt
    shards.complete(room.tokens)
    return Cached(room.tokens.unflatten(0, (len(rows), n_views)), rows, keys, seed=seed, device=trunk.compute.device)


def forget(folder: Path) -> None:
    """Delete the file of tokens of a run that is done."""
    for name in (TOKENS, MARK):
        with suppress(OSError):
            (folder / name).unlink(missing_ok=True)
