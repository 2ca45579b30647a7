"""Features of images and nothing else: computed at full speed, resumed where they were interrupted, and written."""

import io
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from sortal.config import AUTO, Discovery, load_named_backbone
from sortal.discovery.defaults import resolved
from sortal.discovery.streaming import StreamedRows, read_once
from sortal.errors import InputError, Remedy
from sortal.images.columns import OWN_PREFIX, ImageColumn
from sortal.images.exported import utf8
from sortal.images.image_set import ImageSet
from sortal.images.parquet_tables import arrow
from sortal.images.store.packing import Settings
from sortal.learning.backbones.names import check_backbone
from sortal.learning.backbones.registry import load_backbone
from sortal.system.device import choose_device, start
from sortal.system.files import write_atomically
from sortal.system.open_folder import make_folder
from sortal.system.progress import Runtime

ARGUMENTS = {name: f"{OWN_PREFIX}{name}" for name in ("file", "allow_pickle")}  # names that numpy.savez cannot write
WRITTEN = (".parquet", ".npz")  # extensions
TO_WRITE = ("Parquet", "write an .npz file")  # what needs pyarrow, and the way out
CACHE_MARK = "sortal-features"  # a file in folders that are made here, and may be removed


def compute_features(
    images: ImageSet,
    out: Path,
    *,
    backbone: str = AUTO,
    weights: str | None = None,
    max_pixels: int = Discovery().max_pixels,
    force: bool = False,
    runtime: Runtime = Runtime(),
) -> StreamedRows:
    """Compute the features of images, and write them to a file with the names, labels, truth and columns of the images.

    What is computed is kept beside the file until that is written, so that the same call resumes.
    """
    check_file_to_write(out, force)
    load_named_backbone(backbone)
    device = choose_device(runtime.device, None)
    start(device)
    chosen = resolved(Discovery(backbone=backbone, weights=weights), on_gpu=device.type == "cuda").backbone
    check_backbone(chosen, weights)
    network = load_backbone(chosen, weights=weights).to(device)
    settings = Settings.of(network.spec, max_pixels)
    cache = _cache_of(out)
    make_folder(cache)
    (cache / CACHE_MARK).touch()
    found = read_once(images, network, cache, settings, AUTO, runtime)
    write_atomically(out, _encoded(images.select(found.readable), found, out.suffix.lower()))
    shutil.rmtree(cache, ignore_errors=True)
    return found


def check_file_to_write(out: Path, force: bool) -> None:
    """Refuse a file that cannot be written, before any work."""
    another = Remedy("choose another file", out=...)
    if out.suffix.lower() not in WRITTEN:
        raise InputError(f"The features must be written as {' or '.join(WRITTEN)}, got {str(out)!r}.", another)
    if not out.parent.is_dir() or out.is_dir():
        raise InputError(f"The features must be a file in an existing folder, got {str(out)!r}.", another)
    if os.path.lexists(out) and not force:
        raise InputError(f"The file {str(out)!r} exists.", another, Remedy("overwrite it", force=True))
    cache = _cache_of(out)
    if os.path.lexists(cache) and not (cache / CACHE_MARK).is_file():
        raise InputError(f"{str(cache)!r}, where features are kept until all are computed, is not Sortal's.", another)
    if out.suffix.lower() == ".parquet":
        arrow(*TO_WRITE)


def _cache_of(out: Path) -> Path:
    return out.with_name(f"{out.name}.cache")


def _encoded(images: ImageSet, found: StreamedRows, kind: str) -> bytes:
    names = (*images.classes, *images.new_classes, None)
    files, numbers = [utf8(file) for file in images.files], {"label": images.labels}
    if (images.truth != images.labels).any():  # by default, that of a labelled image is its label
        numbers["truth"] = images.truth
    classes = {column: [names[each] for each in own.tolist()] for column, own in numbers.items()}
    buffer, x = io.BytesIO(), np.ascontiguousarray(found.x)
    own = {utf8(each.name): each for each in images.columns.each}
    if kind == ".npz":
        arrays = {ARGUMENTS.get(name, name): np.array([*map(utf8, each.cells)]) for name, each in own.items()}
        arrays |= {"file_name": np.array(files), "features": x}
        arrays |= {column: np.array([each or "" for each in cells]) for column, cells in classes.items()}
        np.savez(buffer, **arrays)  # type: ignore[arg-type]  # none is called allow_pickle
        return buffer.getvalue()
    pyarrow, parquet = arrow(*TO_WRITE)
    values = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(x.ravel(), pyarrow.float32()), x.shape[1])
    columns = {"file_name": files} | {name: _typed(each, pyarrow) for name, each in own.items()}
    columns |= {column: pyarrow.array(cells, pyarrow.string()) for column, cells in classes.items()}
    parquet.write_table(pyarrow.table({**columns, "features": values}), buffer)
    return buffer.getvalue()


def _typed(column: ImageColumn, pyarrow: Any) -> Any:
    if column.kind == "number":
        return pyarrow.array(column.values, pyarrow.float64())
    return pyarrow.array([utf8(cell) or None for cell in column.cells], pyarrow.string())
