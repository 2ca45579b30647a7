"""Features: one row for every image, from the middle of it, by a backbone as it is."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor

from sortal import compute, views
from sortal.compute import VIEWS_THAT_PAY
from sortal.config import AUTO, Auto, Precision
from sortal.errors import InputError
from sortal.images import ImageSet
from sortal.interrupt import deferred
from sortal.network import Backbone
from sortal.packing import Settings, pack
from sortal.processes import launch, shards
from sortal.segments import write_atomically
from sortal.store import PixelStore
from sortal.trunk import ON_CPU, Frozen
from sortal.workers import Progress

logger = logging.getLogger(__name__)

COMMIT = 10.0  # seconds between the files of a cache: what a kill can cost


def extract(
    backbone: Backbone,
    images: ImageSet | PixelStore,
    *,
    normalise: bool = False,
    folder: str | os.PathLike[str] | None = None,
    batch_size: int = 256,
    device: str = AUTO,
    precision: Precision = AUTO,
    compile: bool | Auto = AUTO,
    fabric: Fabric | None = None,
    on_progress: Progress = lambda *_: None,
) -> NDArray[np.float32]:
    """The features of images, (n, d) float32: row i is image i; with `normalise`, rows have length 1.

    In `folder` they are kept by the content of the images, the weights and the settings, so that nothing is computed
    twice and a killed call goes on; after Ctrl-C nothing at all is lost. Images that are not packed yet are packed
    there too, else into a temporary folder. Started by torchrun, processes share the work and all get all rows.
    """
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise InputError(f"batch_size must be a whole number of at least 1, got {batch_size!r}.")
    if not isinstance(images, ImageSet | PixelStore):
        raise InputError(f"images must be an ImageSet or a PixelStore, got {type(images).__name__}.")
    place = None if folder is None else Path(folder)
    fabric = fabric or launch(device)
    with TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        store = images
        if isinstance(store, ImageSet):
            store = _packed(store, (place or Path(temporary)) / "pixels", backbone, fabric, on_progress)
        views.check_present(store, np.arange(len(store)))
        views.check_size(store, backbone.spec.image_size, backbone.spec.shorter_side)
        chosen = compute.choose(fabric.device, precision=precision, compiled=compile, pays=len(store) >= VIEWS_THAT_PAY)
        whole = Frozen(backbone.to(fabric.device), chosen, whole=True)
        cache = None if place is None else _Cache(place / "features", backbone, chosen.bf16, store.made)
        x = _rows(whole, store, cache, batch_size, fabric, on_progress)
    if normalise:
        x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    return x


def _packed(images: ImageSet, folder: Path, backbone: Backbone, fabric: Fabric, on_progress: Progress) -> PixelStore:
    """The pixels as the backbone wants them; the first process does the work, and the others find it done."""
    settings = Settings(shorter_side=backbone.spec.shorter_side)
    for turn in (True, False):
        if (fabric.global_rank == 0) == turn:
            store = pack(images, folder, settings=settings, on_progress=on_progress)
        fabric.barrier()
    return store


def _rows(
    whole: Frozen, store: PixelStore, cache: _Cache | None, batch_size: int, fabric: Fabric, on_progress: Progress
) -> NDArray[np.float32]:
    """Features of all rows of a store; those that are in the cache, or there twice, are not computed."""
    contents, first, inverse = np.unique(store.digests, return_index=True, return_inverse=True)
    x = np.zeros((len(contents), whole.backbone.spec.width), dtype=np.float32)
    have = np.zeros(len(contents), dtype=bool)
    if cache is not None and fabric.global_rank == 0:
        have = cache.fill(contents, x)
    missing = np.flatnonzero(~fabric.broadcast(have))
    group = shards(fabric)
    start, end = group.part(len(missing))
    computed = torch.zeros((len(missing), x.shape[1]))
    done, saved, committed = start, start, monotonic()
    size = whole.backbone.spec.image_size
    if whole.backbone.device.type == "cpu":
        batch_size = min(batch_size, ON_CPU)
    crops = views.middles(store, first[missing[start:end]], size=size, batch_size=batch_size)
    with deferred(cache is not None) as stopped:
        for rows in _lagging(whole.stream(store, crops), stopped):
            computed[done : done + len(rows)] = rows
            done += len(rows)
            if cache is not None and (monotonic() - committed > COMMIT or done == end or stopped()):
                cache.add(contents[missing[saved:done]], computed[saved:done].numpy())
                saved, committed = done, monotonic()
            on_progress("Computing features", done - start, end - start)
    group.complete(computed)
    x[missing] = computed.numpy()
    if fabric.broadcast(bool(have.any())) and fabric.world_size > 1:
        x = fabric.broadcast(x)
    return np.ascontiguousarray(x[inverse])


def _lagging(batches: Iterator[Tensor], stopped: Callable[[], bool]) -> Iterator[Tensor]:
    """Batches in memory, each asked for after the next one was started, so that a device never waits.

    Once stopped, none is started, and the last one is that which was.
    """
    waiting: Tensor | None = None
    for rows in batches:
        if waiting is not None:
            yield waiting.float().cpu()
        waiting = rows
        if stopped():
            break
    if waiting is not None:
        yield waiting.float().cpu()


class _Cache:
    """A folder of features by content; any number of files, each whole.

    It is for one backbone, one precision and one way in which pixels are `made` of a content.
    """

    def __init__(self, folder: Path, backbone: Backbone, bf16: bool, made: str) -> None:
        about = {"backbone": backbone.fingerprint(), "bf16": bf16, "pixels": made, "view": "centre", "format": 1}
        self.folder = folder / hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]

    def fill(self, contents: NDArray[np.bytes_], x: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Write what is known of sorted contents into their rows of x; which those are, (n,)."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        have = np.zeros(len(contents), dtype=bool)
        for path in sorted(self.folder.glob("*.safetensors")) if len(contents) else ():
            try:
                block = load_file(path)
                digests, rows = block["digests"].view("S32").ravel(), block["features"]
                if rows.shape != (len(digests), x.shape[1]):
                    raise ValueError(f"{rows.shape} for {len(digests):,} images of {x.shape[1]:,} numbers")
            except (SafetensorError, OSError, KeyError, ValueError) as error:
                logger.warning("Features in %s are damaged and computed again: %s", path, error)
                continue
            at = np.minimum(np.searchsorted(contents, digests), len(contents) - 1)
            found = contents[at] == digests
            x[at[found]] = rows[found]
            have[at[found]] = True
        return have

    def add(self, contents: NDArray[np.bytes_], rows: NDArray[np.float32]) -> None:
        from safetensors.numpy import save

        if not len(contents):
            return
        digests = np.ascontiguousarray(contents.astype("S32")).view(np.uint8).reshape(-1, 32)
        content = save({"digests": digests, "features": np.ascontiguousarray(rows)})
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / f"{hashlib.sha256(digests.tobytes()).hexdigest()[:16]}.safetensors", content)
