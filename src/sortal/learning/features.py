"""Features: one row per image, computed by a backbone from the centre crop."""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sortal.config import AUTO, Auto, Precision
from sortal.errors import InputError
from sortal.images.image_set import ImageSet
from sortal.images.store.packing import Settings, pack
from sortal.images.store.pixel_store import PixelStore
from sortal.learning import frozen, views
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.frozen import FrozenEncoder, KeptTokens
from sortal.system.cache import load_arrays, save_arrays
from sortal.system.device import MIN_VIEWS_TO_COMPILE, choose_compute
from sortal.system.distributed import Processes, launch
from sortal.system.mapped_arrays import scratch
from sortal.system.progress import Runtime
from sortal.system.signals import defer_signals

logger = logging.getLogger(__name__)

NORMALISED_AT_ONCE = 2**14  # rows that are normalised at once
LARGEST_FEATURE_FILE = 2**28  # bytes of features in a file of the cache, which is made in memory


class FeatureCache:
    """A cache of features by image content, for one backbone, one precision and one way of making pixels (`made`)."""

    def __init__(self, folder: Path, encoder: FrozenEncoder, made: str) -> None:
        about = {"backbone": encoder.backbone.fingerprint(), "bf16": encoder.compute.bf16, "pixels": made}
        about |= {"view": "centre", "format": 2, **({"int8": True} if encoder.int8 else {})}
        self.folder = folder / hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]

    def fill(self, contents: NDArray[np.bytes_], first: NDArray[np.int64], x: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Fill in the rows `first` of x whose contents (sorted) are cached; return the mask of these contents."""
        have = np.zeros(len(contents), dtype=bool)
        for path in sorted(self.folder.glob("*.safetensors")) if len(contents) else ():
            try:
                digests, rows = _read_block(path)
                if rows.shape != (len(digests), x.shape[1]) or rows.dtype != x.dtype:
                    raise ValueError(f"{rows.dtype} {rows.shape}, expected {x.dtype} {(len(digests), x.shape[1])}")
            except (KeyError, ValueError) as error:
                logger.warning("Recomputing the damaged features in %s: %s", path, error)
                continue
            at = np.minimum(np.searchsorted(contents, digests), len(contents) - 1)
            found = contents[at] == digests
            x[first[at[found]]] = rows[found]
            have[at[found]] = True
        return have

    def contents(self) -> set[str]:
        """Return the contents whose features are cached."""
        found = set[str]()
        for path in self.folder.glob("*.safetensors"):
            with suppress(KeyError, ValueError):
                found.update(each.decode() for each in _read_block(path)[0].tolist())
        return found

    def load(self, contents: NDArray[np.bytes_], x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Fill the rows of x (n, d) with the features of these contents (n,), all of which must be cached; return x."""
        each, first, inverse = np.unique(contents, return_index=True, return_inverse=True)
        have = self.fill(each, first, x)
        if not have.all():
            raise InputError(f"The cached features in {str(self.folder)!r} are damaged. Delete the folder.")
        return _copied(x, first, inverse)

    def add(self, contents: NDArray[np.bytes_], rows: NDArray[np.float32]) -> None:
        digests = np.ascontiguousarray(contents.astype("S32")).view(np.uint8).reshape(-1, 32)
        path = self.folder / f"{hashlib.sha256(digests.tobytes()).hexdigest()[:16]}.safetensors"
        save_arrays(path, {"digests": digests, "features": rows})


def _read_block(path: Path) -> tuple[NDArray[np.bytes_], NDArray[np.float32]]:
    """Read the contents (n,) and the features (n, d) in a file of the cache."""
    block = load_arrays(path) or {}
    return block["digests"].view("S32").ravel(), block["features"]


def extract(
    backbone: Backbone,
    images: ImageSet | PixelStore,
    *,
    normalise: bool = False,
    folder: str | os.PathLike[str] | None = None,
    batch_size: int = 256,
    precision: Precision = AUTO,
    compile: bool | Auto = AUTO,
    processes: Processes | None = None,
    kept: KeptTokens | None = None,
    runtime: Runtime = Runtime(),
) -> NDArray[np.float32]:
    """Compute the features of images, (n, d) float32: row i is image i; with `normalise`, rows have unit length.

    `folder` caches features by image content, weights and settings, so that an interrupted call resumes (after Ctrl-C
    without loss). An `ImageSet` is packed there too, or into a temporary folder. Processes that torchrun started share
    the work, and each returns all rows. With `kept`, the trunk computes its tokens only once for several calls with the
    same trunk and images.
    """
    if batch_size < 1:
        raise InputError(f"batch_size must be a whole number of at least 1, got {batch_size!r}.")
    cache_folder = None if folder is None else Path(folder)
    processes = processes or launch(runtime.device)
    with TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        store = images
        if isinstance(store, ImageSet):
            place = processes.broadcast((cache_folder or Path(temporary)) / "pixels")
            settings = Settings.of(backbone.spec)
            store = pack(store, place, settings=settings, team=processes, runtime=runtime)
        views.check_store(store, backbone.spec)
        many = backbone.has_trunk and len(store) >= MIN_VIEWS_TO_COMPILE  # not the small network
        chosen = choose_compute(processes.device, precision=precision, compiled=compile, worthwhile=many)
        encoder = FrozenEncoder(backbone.to(processes.device), chosen, whole=kept is None)
        cache = None if cache_folder is None else FeatureCache(cache_folder / "features", encoder, store.made)
        x = _compute(encoder, store, cache, batch_size, processes, kept, runtime)
    return normalised(x) if normalise else x


def normalised(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Give rows (n, d) unit length in place, and return them."""
    for part in np.split(x, range(NORMALISED_AT_ONCE, len(x), NORMALISED_AT_ONCE)):
        part /= np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-12)
    return x


def _compute(
    encoder: FrozenEncoder,
    store: PixelStore,
    cache: FeatureCache | None,
    batch_size: int,
    processes: Processes,
    kept: KeptTokens | None,
    runtime: Runtime,
) -> NDArray[np.float32]:
    """Compute the features of all rows of a store, each content once, unless the cache has it."""
    contents, first, inverse = np.unique(store.digests, return_index=True, return_inverse=True)
    place = None if cache is None else cache.folder.parent
    x = scratch((len(store), encoder.backbone.spec.width), place)
    have = np.zeros(len(contents), dtype=bool)
    if cache is not None and processes.is_first:
        have = cache.fill(contents, first, x)
    missing = np.flatnonzero(~processes.broadcast(have))
    computed = torch.from_numpy(scratch((len(missing), x.shape[1]), place))
    start, end = processes.share_of(len(missing))
    wanted = first[missing[start:end]]
    if kept is None:
        batches = encoder.centre_crops(store, wanted, batch_size)
    else:
        batches = encoder.finished(kept.of(wanted, lambda: encoder.centre_crops(store, wanted, batch_size)))
    done, saved, committed = start, start, monotonic()
    with defer_signals(cache is not None) as stopped:
        for rows in _one_behind(batches, stopped):
            computed[done : done + len(rows)] = rows
            done += len(rows)
            full = (done - saved) * 4 * x.shape[1] >= LARGEST_FEATURE_FILE
            due = full or monotonic() - committed > frozen.COMMIT_SECONDS
            if cache is not None and (due or done == end or stopped()):
                cache.add(contents[missing[saved:done]], computed[saved:done].numpy())
                saved, committed = done, monotonic()
            runtime.progress("Computing features", done - start, end - start)
    processes.exchange_rows(computed)
    x[first[missing]] = computed.numpy()
    if processes.broadcast(bool(have.any())):
        x = processes.broadcast(x)
    return _copied(x, first, inverse)


def _copied(x: NDArray[np.float32], first: NDArray[np.int64], inverse: NDArray[np.int64]) -> NDArray[np.float32]:
    """Copy the features of the `first` row of each content to the other rows (n,) that have it."""
    copies = np.setdiff1d(np.arange(len(x)), first)
    x[copies] = x[first[inverse[copies]]]
    return x


def _one_behind(batches: Iterator[Tensor], stopped: Callable[[], bool]) -> Iterator[Tensor]:
    """Copy each batch to memory once the next has started, so that the device never idles; end once stopped."""
    waiting = next(batches, None)
    while waiting is not None:
        following = None if stopped() else next(batches, None)
        yield waiting.float().cpu()
        waiting = following
