"""Inference without gradients: crops of stored images through a backbone's trunk, or through all of it."""

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from sortal.errors import SortalError
from sortal.images.store.pixel_store import PixelStore
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.views import Crops, RowNumbers, centre_crop_batches, pattern_of, uniform_draws, vector_views
from sortal.system import workers
from sortal.system.device import Compute, is_out_of_memory

logger = logging.getLogger(__name__)

READER_THREADS = min(8, workers.worker_count(None))  # threads that prepare batches
MOST_STREAMS = 8  # batches that a CPU encodes at once; each needs memory of its own
ENCODED_ON_CPU = 64  # views per batch on a CPU: larger batches overflow its caches
ENCODED_ON_CPU_IF_LARGE = 8  # of a large network: as fast, and Ctrl-C and progress wait for less
COMMIT_SECONDS = 10.0  # between commits of computed features or tokens; a kill loses at most what was computed since
CROPS_AT_ONCE = 256  # centre crops
DRAWN_NUMBERS = 16  # for the augmentation of a view
SPARE = 2  # batches to prefetch beyond those that threads work on

Augmentation = Callable[..., Tensor]  # of images (n, 3, size, size) and draws (n, DRAWN_NUMBERS)
In = TypeVar("In")
Out = TypeVar("Out")


def views_at_once(backbone: Backbone, most: int) -> int:
    """Return how many views to encode at once, up to `most`."""
    if backbone.device.type != "cpu":
        return most
    return min(most, ENCODED_ON_CPU_IF_LARGE if backbone.has_trunk else ENCODED_ON_CPU)


def streams_of(backbone: Backbone) -> int:
    """Return how many batches to encode at a time."""
    if backbone.device.type != "cpu" or not backbone.concurrent:
        return 1
    threads = torch.get_num_threads()
    return threads // math.ceil(threads / MOST_STREAMS)  # each has as many threads


class FrozenEncoder:
    """Computes the tokens of crops (or, with `whole`, features) in batches, which it halves when memory runs out."""

    def __init__(
        self,
        backbone: Backbone,
        compute: Compute,
        *,
        whole: bool = False,
        augment: Augmentation | None = None,
        patterns: RowNumbers | None = None,
    ) -> None:
        """With `patterns` (patterns, count), the trunk sees one of these sets of patches of each random crop."""
        self.backbone = backbone
        self.patterns = patterns
        self.compute = compute
        # Cast once, not in every batch
        trunk = backbone.in_bf16() if compute.bf16 else backbone.in_int8() if compute.int8 else backbone
        self.int8 = compute.int8 and backbone.fits_int8
        self.augment = augment
        self.largest: int | None = None  # rows per batch, once more did not fit

        def run(pixels: Tensor, flipped: Tensor, draws: Tensor, patches: Tensor) -> Tensor:
            recolour = None if augment is None else partial(augment, draws=draws)
            images = trunk.normalise(pixels, flipped, recolour)
            tokens = trunk.windowed_trunk(images, patches) if patches.shape[1] else trunk.trunk(images)
            return backbone.tail(tokens) if whole else tokens

        self._run = compute.maybe_compile(run)

    @torch.no_grad()
    def __call__(
        self, pixels: Tensor, flipped: Tensor, draws: Tensor | None = None, patches: Tensor | None = None
    ) -> Tensor:
        """Encode crops on the device, (n, size, size, 3), those of the mask `flipped` (n,) mirrored.

        `draws` (n, DRAWN_NUMBERS) are for an augmentation, if there is one, and `patches` (n, count) those to be seen.
        """
        none = flipped.new_zeros((len(flipped), 0))
        given = (pixels, flipped, none if draws is None else draws, none if patches is None else patches)
        while True:
            size = min(self.largest or len(pixels), len(pixels))
            try:
                with self.compute.autocast():
                    batches = zip(*(each.split(size) for each in given), strict=True)
                    parts = [self._run(*batch) for batch in batches]
                return parts[0] if len(parts) == 1 else torch.cat(parts)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                if size == 1:
                    message = "Out of memory with a single image. Use a smaller backbone or image_size."
                    raise SortalError(message) from error
            self.largest = min(self.largest or size, size // 2)  # another thread may have found a lower one
            logger.warning("Out of memory with %d images per batch; continuing with %d.", size, self.largest)

    def stream(self, store: PixelStore, crops: Iterable[Crops], *, large: bool = False) -> Iterator[Tensor]:
        """Encode batches of crops, which other threads load in advance; `large` ones one at a time."""
        usual = 0  # rows of a batch; smaller ones are padded, or they would be compiled again
        size, device, draws = self.backbone.spec.image_size, self.compute.device, DRAWN_NUMBERS if self.augment else 0

        def encode(batch: tuple[Tensor, ...]) -> Tensor:
            nonlocal usual
            n, usual = len(batch[0]), max(usual, len(batch[0]))
            more = usual - n if self.compute.compiled else 0
            return self(*(_padded(each, more) for each in batch))[:n]

        batches = load_crops(store, crops, size=size, device=device, draws=draws, patterns=self.patterns)
        yield from in_streams(encode, batches, 1 if large or self.compute.compiled else streams_of(self.backbone))

    def centre_crops(self, store: PixelStore, rows: RowNumbers, batch_size: int = CROPS_AT_ONCE) -> Iterator[Tensor]:
        """Encode the centre crops of some rows of a store, in batches of at most this size."""
        size, at_once = self.backbone.spec.image_size, views_at_once(self.backbone, batch_size)
        return self.stream(store, centre_crop_batches(store, rows, size=size, batch_size=at_once))

    @torch.no_grad()
    def finished(
        self, batches: Iterable[Tensor], forward: Callable[[Tensor], Tensor] | None = None
    ) -> Iterator[Tensor]:
        """Compute features of the trunk's tokens, or what `forward` makes of them."""
        for tokens in batches:
            with self.compute.autocast():
                features = (forward or self.backbone.tail)(tokens)
            yield features


@dataclass(eq=False)
class KeptTokens:
    """The trunk's tokens of centre crops of some rows, kept for further passes unless they exceed `limit` bytes."""

    limit: int
    rows: RowNumbers | None = None  # once the tokens of all of them are kept
    batches: list[Tensor] = field(default_factory=list)

    def of(self, rows: RowNumbers, compute: Callable[[], Iterator[Tensor]]) -> Iterator[Tensor]:
        """Yield the tokens of these rows of a store in batches: those that are kept, or else what `compute` yields."""
        if not len(rows):  # their features are cached, and those of other weights may not be
            return
        if self.rows is not None and np.array_equal(self.rows, rows):
            yield from self.batches
            return
        self.rows, self.batches, left = None, [], self.limit
        for tokens in compute():
            left -= tokens.nbytes
            self.batches = [*self.batches, tokens] if left >= 0 else []
            yield tokens
        self.rows = rows if left >= 0 else None

    @property
    def room(self) -> int:
        """The bytes that are left below the limit."""
        return self.limit - sum(tokens.nbytes for tokens in self.batches)


def _padded(rows: Tensor, more: int) -> Tensor:
    return torch.cat([rows, rows.new_zeros(more, *rows.shape[1:])]) if more else rows


def load_crops(
    store: PixelStore,
    crops: Iterable[Crops],
    *,
    size: int,
    device: torch.device,
    draws: int = 0,
    patterns: RowNumbers | None = None,
) -> Iterator[tuple[Tensor, ...]]:
    """Load batches of crops to the device: pixels, (n, size, size, 3) uint8, or views of vectors, (n, d); the mask of
    those to mirror, (n,); so many random numbers of each; and one of the `patterns` of each random crop, (n, count).
    """
    pinned = device.type == "cuda"

    def cut(batch: Crops) -> list[Tensor]:
        if store.vectors is not None:
            pixels = torch.from_numpy(vector_views(store.vectors, batch.rows, batch.states))
        else:
            pixels = torch.empty((len(batch.rows), size, size, 3), dtype=torch.uint8, pin_memory=pinned)
            store.crops(batch.rows, batch.tops, batch.lefts, size, out=pixels.numpy())
        random, patches = np.zeros((len(batch.rows), 0), np.float32), np.zeros((len(batch.rows), 0), np.int64)
        if draws and batch.states is not None:
            random = uniform_draws(batch.states, draws)
        if patterns is not None and batch.states is not None:
            patches = patterns[pattern_of(batch.states)]
        others = [torch.from_numpy(np.ascontiguousarray(each)) for each in (batch.flipped, random, patches)]
        return [pixels, *(each.pin_memory() if pinned else each for each in others)]

    for loaded in prefetch(cut, crops):
        yield tuple(each.to(device, non_blocking=True) for each in loaded)


def in_streams(work: Callable[[In], Out], items: Iterable[In], streams: int) -> Iterator[Out]:
    """Yield work(item) for each item in order, several at a time, which share the threads of PyTorch.

    Threads that share one operation wait for each other after it: two that encode a batch each need three quarters of
    the time.
    """
    if streams == 1:
        yield from map(work, items)
        return
    threads = torch.get_num_threads()
    try:
        yield from prefetch(work, items, threads=streams, begin=partial(torch.set_num_threads, threads // streams))
    finally:
        torch.set_num_threads(threads)  # what further threads begin with


def prefetch(
    work: Callable[[In], Out],
    items: Iterable[In],
    *,
    threads: int = READER_THREADS,
    begin: Callable[[], None] | None = None,
) -> Iterator[Out]:
    """Yield work(item) for each item in order, computed a few items in advance by other threads, which `begin`."""
    rest, abandoned = iter(items), False
    pool = ThreadPoolExecutor(threads, thread_name_prefix="prefetch", initializer=begin)
    try:
        waiting: deque[Future[Out]] = deque(pool.submit(work, item) for item in islice(rest, threads + SPARE))
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(pool.submit(work, item) for item in islice(rest, 1))
            yield result
    except GeneratorExit:
        abandoned = True
        raise
    finally:
        # The garbage collector may end this in any thread, even in one that is being started, where joining others
        # would never end.
        pool.shutdown(wait=not abandoned, cancel_futures=True)
