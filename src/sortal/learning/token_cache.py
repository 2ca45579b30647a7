"""Sources of training inputs: new views in every epoch, or cached tokens of a fixed number of views."""

import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sortal.config import VECTORS
from sortal.images.store.pixel_store import PixelStore
from sortal.learning import frozen, views
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.batches import Draws
from sortal.learning.frozen import FrozenEncoder, KeptTokens, prefetch, views_at_once
from sortal.learning.views import Crops, Keys, RowNumbers
from sortal.system import cache
from sortal.system.files import writing
from sortal.system.mapped_arrays import check_whole
from sortal.system.progress import Runtime
from sortal.system.regular_files import regular
from sortal.system.resources import free_disk, free_memory
from sortal.system.signals import defer_signals
from sortal.system.text import byte_sizes

Where = Literal["device", "memory", "file"]
ViewMask = NDArray[np.bool_]
TOKENS_AT_ONCE = 256  # crops per batch
DISK_MARGIN = 2**28  # bytes to leave free on the disk
TOKENS, TOKEN_MARK = "tokens.bf16", "tokens.json"
TOKEN_FILE = f"The file {TOKENS} in the cache of the run"


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Limits in bytes for cached tokens; None allows a fraction of the free memory.

    With `file_first`, tokens go to a file even if they fit in memory.
    """

    device: int | None = None
    memory: int | None = None
    disk: int = 0
    file_first: bool = False


@dataclass(frozen=True)
class TokenPlan:
    """The size of cached tokens and their place; None if they fit nowhere."""

    bytes: int
    where: Where | None

    def __str__(self) -> str:
        size = byte_sizes(self.bytes)[0]
        if self.where is None:
            return f"{size} of tokens do not fit the budget; views are computed in every epoch"
        place = {"device": "on the device", "memory": "in memory", "file": "in a file"}[self.where]
        return f"{size} of tokens are cached {place}"


def plan_tokens(n_bytes: int, budget: Budget, device: torch.device, folder: Path | None) -> TokenPlan:
    """Choose the fastest place with enough space, or a file if that comes first."""
    file = TokenPlan(n_bytes, "file")
    fits_file = folder is not None and n_bytes <= min(budget.disk, _free_disk(folder) - DISK_MARGIN)
    if fits_file and budget.file_first:
        return file
    if n_bytes <= available_bytes(budget, device):
        return TokenPlan(n_bytes, "device" if device.type == "cuda" else "memory")
    if device.type == "cuda" and n_bytes <= available_bytes(budget, torch.device("cpu")):
        return TokenPlan(n_bytes, "memory")
    return file if fits_file else TokenPlan(n_bytes, None)


def available_bytes(budget: Budget, device: torch.device) -> int:
    """Return how many bytes of tokens may be cached on a device; for the CPU, in memory."""
    if device.type == "cuda":
        limit, free, share = budget.device, torch.cuda.mem_get_info(device)[0], 0.7
    else:
        local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # processes on this machine, each with its own tokens
        limit, free, share = budget.memory, free_memory() // local, 0.5
    return int(share * free) if limit is None else min(limit, free)


def free_bytes(device: torch.device) -> int:
    """Return the bytes of memory that are available on a device."""
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else free_memory()


def _free_disk(folder: Path) -> int:
    """Return the free disk space plus that of an existing token file, which is resumed or overwritten."""
    file = folder / TOKENS
    held = getattr(file.stat(), "st_blocks", 0) * 512 if file.is_file() else 0
    return free_disk(folder) + held


@dataclass(frozen=True)
class LiveViews:
    """New crops in every epoch, encoded by the trunk."""

    trunk: FrozenEncoder
    store: PixelStore
    flip: bool
    seed: int
    share: tuple[int, int] = (0, 1)  # number of this process, and of all processes, among which batches are divided
    of_image: int = 2  # views of each image of a batch

    def chosen(self, draws: Draws) -> ViewMask:
        """Return the mask (steps, batch_size) of the images whose views this process computes: an equal share."""
        (rank, size), n = self.share, draws.rows.shape[1]
        at = np.arange(n)
        return np.broadcast_to((at >= n * rank // size) & (at < n * (rank + 1) // size), draws.rows.shape)

    def stream(self, draws: Draws, epoch: int, chosen: ViewMask | None = None) -> Iterator[Tensor]:
        """Yield the tail's inputs of each step, first views of all images, then second views; only those `chosen`."""
        size, keys = self.trunk.backbone.spec.image_size, views.content_keys(self.store)
        draw = partial(views.random_crops, self.store, keys, size=size, flip=self.flip, seed=self.seed, epoch=epoch)
        count = self.of_image
        each = [draws.rows] * count, [count * draws.times + number for number in range(count)]
        rows, numbers = (_by_step(of_views, chosen) for of_views in each)
        return self.trunk.stream(self.store, map(draw, rows, numbers), large=True)


@dataclass(frozen=True, eq=False)
class CachedTokens:
    """Tokens of a few views per image, computed once and cached in bfloat16."""

    tokens: Tensor  # (images, views, ...)
    slot: RowNumbers  # (n,), the place of each row of the store in `tokens`; −1 without tokens
    keys: Keys  # (n,)
    seed: int
    device: torch.device  # to stream to
    mapped: NDArray[np.int16] | None = None  # the file that the tokens are in
    patterns: Tensor | None = None  # (patterns, count), which of a view's tokens a step may see; None: all
    of_image: int = 2  # views of each image of a batch

    def chosen(self, draws: Draws) -> ViewMask:
        """Return the mask (steps, batch_size) of the images that have tokens here, not in another process."""
        return self.slot[draws.rows] >= 0

    def stream(self, draws: Draws, epoch: int, chosen: ViewMask | None = None) -> Iterator[Tensor]:
        """Yield the same as `LiveViews.stream`, from cached views."""
        n_views = self.tokens.shape[1]
        flat = self.tokens.flatten(0, 1)
        keys, times = self.keys[draws.rows.ravel()], draws.times.ravel()
        chosen_views = views.choose_views(keys, times, self.of_image, views=n_views, seed=self.seed, epoch=epoch)
        places = self.slot[draws.rows] * n_views + chosen_views.reshape(
            self.of_image, *draws.rows.shape
        )  # (of_image, steps, …)
        slots = [torch.from_numpy(step) for step in _by_step(places, chosen)]
        seen = self._seen(draws, epoch, chosen)
        if self.tokens.device.type == self.device.type != "cpu":
            there = torch.cat(slots).to(self.device) if slots else torch.zeros(0)
            for step, patterns in zip(there.split([len(step) for step in slots]), seen, strict=True):
                yield flat.index_select(0, step) if patterns is None else _tokens_of(flat, step, patterns)
            return
        pinned = self.device.type == "cuda"

        def gather(step: tuple[Tensor, Tensor | None]) -> Tensor:
            if self.mapped is not None:
                check_whole(self.mapped, TOKEN_FILE)
            views_of, patterns = step
            if patterns is not None:
                found = _tokens_of(flat, views_of, patterns)
                return found.pin_memory() if pinned else found
            rows = torch.empty((len(views_of), *flat.shape[1:]), dtype=flat.dtype, pin_memory=pinned)
            return torch.index_select(flat, 0, views_of, out=rows)

        for rows in prefetch(gather, list(zip(slots, seen, strict=True))):
            yield rows.to(self.device, non_blocking=True)

    def _seen(self, draws: Draws, epoch: int, chosen: ViewMask | None) -> list[Tensor | None]:
        """Return which tokens each step sees of its views, (views, count); None for all."""
        if self.patterns is None:
            return [None] * len(draws.rows)
        numbers = views.choose_patterns(
            self.keys[draws.rows.ravel()], draws.times.ravel(), self.of_image, seed=self.seed, epoch=epoch
        ).reshape(self.of_image, *draws.rows.shape)
        at = [torch.from_numpy(step) for step in _by_step(numbers, chosen)]
        return [self.patterns[step.to(self.patterns.device)] for step in at]


def _tokens_of(flat: Tensor, rows: Tensor, patterns: Tensor) -> Tensor:
    """Gather some tokens, (views, count), of each of these views, rows of (all views, tokens, d)."""
    places = rows[:, None] * flat.shape[1] + patterns
    return flat.flatten(0, 1).index_select(0, places.flatten()).unflatten(0, places.shape)


InputSource = LiveViews | CachedTokens


def _by_step(views_of: Iterable[RowNumbers], chosen: ViewMask | None) -> Iterator[RowNumbers]:
    """Yield the entries of each step: those of first views, then those of second views, …; only those `chosen`."""
    for step, each in enumerate(zip(*views_of, strict=True)):
        which = slice(None) if chosen is None else chosen[step]
        yield np.concatenate([of_view[which] for of_view in each])


@dataclass(eq=False)
class SharedTokens:
    """Tokens that several training runs on the same images share, one after the other; a file is in `folder`."""

    folder: Path
    key: str = ""  # of the tokens that are held
    where: Where = "memory"
    tokens: CachedTokens | None = None
    centre: KeptTokens | None = None  # those of the images whose health is measured

    def hold(self, key: str, where: Where, tokens: CachedTokens) -> None:
        """Replace the tokens."""
        self.key, self.where, self.tokens, self.centre = key, where, tokens, None

    def close(self) -> None:
        """Drop the tokens, and delete their file and its folder."""
        self.tokens, self.key, self.centre = None, "", None
        delete_tokens(self.folder)
        with suppress(OSError):
            self.folder.rmdir()


def token_shape(backbone: Backbone, patterns: RowNumbers | None = None) -> tuple[int, ...]:
    """Return the shape of the tokens of one view; with patterns (patterns, count), of those that are not left out."""
    if patterns is not None and backbone.patch_grid is not None:
        tokens, *each = token_shape(backbone)
        return tokens - math.prod(backbone.patch_grid) + patterns.shape[1], *each
    if backbone.spec.name == VECTORS:
        return (backbone.spec.width,)
    size = backbone.spec.image_size
    pixels = torch.zeros((1, size, size, 3), dtype=torch.uint8, device=backbone.device)
    with torch.no_grad():
        return tuple(backbone.trunk(backbone.normalise(pixels)).shape[1:])


def _open_file(folder: Path, shape: tuple[int, ...], key: str) -> tuple[NDArray[np.int16], int, Callable[[int], None]]:
    """Open the token file; return its tokens, the number of views done, and a function that commits such a number."""
    file, mark, size = folder / TOKENS, folder / TOKEN_MARK, 2 * math.prod(shape)
    done = _read_mark(mark, key, shape[0]) if file.is_file() and file.stat().st_size == size else 0
    if not done:
        mark.unlink(missing_ok=True)
        with writing(file, size), open(file, "wb", opener=regular) as empty:
            if hasattr(os, "posix_fallocate"):  # so that writing cannot run out of disk space
                os.posix_fallocate(empty.fileno(), 0, size)
            else:
                empty.truncate(size)
    with open(file, "rb+", opener=regular) as opened:
        array = np.memmap(opened, dtype=np.int16, mode="r+", shape=shape)

    def commit(done: int) -> None:
        array.flush()
        cache.save(mark, {"key": key, "done": done})

    return array, done, commit


def _read_mark(mark: Path, key: str, total: int) -> int:
    """Read how many of `total` views are done; 0 if the mark is damaged or has another key."""
    found = cache.load(mark)
    done = found.get("done") if isinstance(found, dict) and found.get("key") == key else 0
    return done if type(done) is int and 0 <= done <= total else 0


def cache_tokens(
    trunk: FrozenEncoder,
    store: PixelStore,
    rows: RowNumbers,
    *,
    n_views: int,
    flip: bool,
    seed: int,
    where: Where,
    folder: Path | None = None,
    key: str = "",
    runtime: Runtime = Runtime(),
) -> CachedTokens:
    """Compute and cache the tokens of `n_views` views of each of `rows`.

    A file in `folder` is marked with `key` and the views done every few seconds and at Ctrl-C, so that an interrupted
    run resumes; tokens with another key are overwritten.
    """
    keys, total, size = views.content_keys(store), len(rows) * n_views, trunk.backbone.spec.image_size
    shape, done = (total, *token_shape(trunk.backbone, trunk.patterns)), 0
    commit: Callable[[int], None] | None = None
    mapped: NDArray[np.int16] | None = None
    if where == "file":
        assert folder is not None
        mapped, done, commit = _open_file(folder, shape, key)
        tokens = torch.from_numpy(mapped).view(torch.bfloat16)
    else:
        tokens = torch.empty(shape, dtype=torch.bfloat16, device=trunk.compute.device if where == "device" else "cpu")

    def crops(begin: int) -> Iterator[Crops]:
        piece = views_at_once(trunk.backbone, TOKENS_AT_ONCE)
        for start in range(begin, total, piece):
            at = np.arange(start, min(start + piece, total))
            of, number = rows[at // n_views], at % n_views
            yield views.random_crops(store, keys, of, number, size=size, flip=flip, seed=seed, epoch=0)

    committed = monotonic()
    with defer_signals(commit is not None) as stopped:
        for part in trunk.stream(store, crops(done)):
            if mapped is not None:
                check_whole(mapped, TOKEN_FILE)
            tokens[done : done + len(part)] = part.to(torch.bfloat16)
            done += len(part)
            if commit is not None and (monotonic() - committed > frozen.COMMIT_SECONDS or done == total):
                commit(done)
                committed = monotonic()
            runtime.progress("Computing tokens", done, total)
            if commit is not None and stopped():
                commit(done)
                raise KeyboardInterrupt
    slot = np.full(len(keys), -1)
    slot[rows] = np.arange(len(rows))
    return CachedTokens(tokens.unflatten(0, (len(rows), n_views)), slot, keys, seed, trunk.compute.device, mapped)


def delete_tokens(folder: Path) -> None:
    """Delete the token file of a folder."""
    for name in (TOKENS, TOKEN_MARK):
        with suppress(OSError):
            (folder / name).unlink(missing_ok=True)
