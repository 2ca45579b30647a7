"""A job: what is to be sorted, how, and where the result goes; what cannot end well is refused here."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sortal import run
from sortal.config import AUTO, CONVNET, Discovery, Recipe
from sortal.errors import InputError, listing
from sortal.images import ImageSet
from sortal.inputs import choose_device
from sortal.lock import NAME as LOCK
from sortal.reading import UNLABELLED, read_images
from sortal.run import CACHE
from sortal.whole import NEXT
from sortal.workers import count

Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | ImageSet
READING: dict[str, Any] = {  # how images are read unless told
    "folders": "classes",
    "unlabelled": UNLABELLED,
    "unlisted": "error",
    "extra_columns": "error",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """What is to be sorted, how, and where the result goes."""

    images: ImageSet
    source: str | None  # the folder where the images lie; None for rows of an array
    settings: Discovery
    place: Path
    device: str
    workers: int | None
    command: str  # what gives the same again
    recipe: Recipe | None = None  # how it is done; None is what suits the settings
    shared: Path | None = None  # where stages keep what they made for other jobs too; None is in the place

    @property
    def cache(self) -> Path:
        return self.shared or self.place / CACHE

    @property
    def on_gpu(self) -> bool:
        return choose_device(self.device, None).type == "cuda"


def prepare(
    images: Source,
    labels: str | os.PathLike[str] | None,
    out: str | os.PathLike[str] | None,
    settings: Discovery,
    reading: dict[str, Any],
    *,
    device: str,
    workers: int | None,
    force: bool,
) -> Job:
    """Read what there is to sort, and refuse what cannot end well before any work is done."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError("discover must be started as one process, not by torchrun. sortal.train.train takes several.")
    folder = os.path.abspath(images) if isinstance(images, str | os.PathLike) else None
    if folder is None and out is None:
        raise InputError("out must be given for images that are no folder: there is nothing to name the run after.")
    if isinstance(images, ImageSet) and (labels is not None or reading != READING):
        raise InputError("An ImageSet has its labels; give neither labels nor how to read them beside it.")
    found = images if isinstance(images, ImageSet) else read_images(images, labels=labels, need_labels=False, **reading)
    if folder is None and found.pixels is None:
        folder = os.getcwd()
    check_sortable(found, settings)
    choose_device(device, None)
    count(workers)
    place = Path(out) if out is not None else Path(f"{os.path.basename(folder or '')}-run")
    check_place(place, folder, isinstance(images, str | os.PathLike), force)
    command = _command(images, labels, place, settings, reading)
    return Job(
        images=found,
        source=folder,
        settings=settings,
        place=place,
        device=device,
        workers=workers,
        command=command,
    )


def check_sortable(images: ImageSet, settings: Discovery) -> None:
    """Refuse images and settings that do not go together."""
    known, n = len(np.unique(images.labels[images.labels >= 0])), len(images)
    if images.validation.any():
        raise InputError(
            f"Images to be sorted must be labelled or unlabelled, got {images.validation.sum():,} for validation. "
            "Leave them out: images.select(~images.validation)."
        )
    unlabelled = int(images.unlabelled.sum())
    if not unlabelled:
        raise InputError(
            f"There must be images without a label to sort, got {n:,} images, all labelled. Put those without a label "
            "into a folder named unlabelled, or leave their label empty in the table."
        )
    if settings.k == AUTO:
        if known < 2:
            raise InputError(
                f"To estimate k, images of at least two classes must be labelled, got {known}. Label some, or give k."
            )
        if settings.k_max < known:
            raise InputError(f"k_max must be at least {known} (the labelled classes), got {settings.k_max}.")
    elif not known <= settings.k <= known + unlabelled:
        raise InputError(
            f"k must be from {known} (the labelled classes) to {known + unlabelled} (and every unlabelled image a "
            f"class of its own), got {settings.k}."
        )
    if settings.backbone == CONVNET and isinstance(settings.views, int):
        raise InputError(
            f"views must be 'auto' or 'live' for {CONVNET}, of which nothing is kept, got {settings.views}."
        )


def check_place(place: Path, folder: str | None, of_folder: bool, force: bool) -> None:
    if os.path.lexists(place) and not place.is_dir():
        raise InputError(f"The run must be a folder, got {str(place)!r}, which is a file. Choose another (--out).")
    here = Path(os.path.realpath(place))  # without links and dots, which hide what lies where
    images = Path(os.path.realpath(folder)) if folder else None
    if of_folder and images and here.is_relative_to(images):
        raise InputError(
            f"The run must not lie among the images, got {str(place)!r}. Choose another folder (--out {folder}-run)."
        )
    if force or not place.is_dir():
        return
    about = run.peek(place)
    if about is None:
        others = {
            path.name for path in here.iterdir() if not images or not images.is_relative_to(os.path.realpath(path))
        }
        others -= {LOCK, CACHE, NEXT}  # what a run that was broken off leaves
        if others:
            raise InputError(
                f"The run must be a new or empty folder or an earlier run, got {str(place)!r}, which holds "
                f"{listing(sorted(others))}. Choose another (--out), or allow it (--force)."
            )
        return
    if about["images"][0]["folder"] != folder:
        raise InputError(
            f"{str(place)!r} holds a run of other images, {about['images'][0]['folder']!r}. "
            "Choose another folder (--out), or write over it (--force)."
        )
    if about.get("updates"):
        added = sum(update["images"] for update in about["updates"])
        raise InputError(
            f"{added:,} images were added to the run in {str(place)!r}, which sorting anew would drop. "
            "Choose another folder (--out), or write over it (--force)."
        )


def _command(images: Source, labels: Any, place: Path, settings: Discovery, reading: dict[str, Any]) -> str:
    if not isinstance(images, str | os.PathLike):
        return "sortal.discover(...) with the settings above"
    path = os.fspath(images)
    words = ["sortal", "discover", os.path.join(os.curdir, path) if path.startswith("-") else path]
    defaults: dict[str, Any] = {"out": None, "labels": None, **asdict(Discovery()), **READING}
    for name, value in {"out": place, "labels": labels, **asdict(settings), **reading}.items():
        if value != defaults[name]:
            option, text = f"--{name.replace('_', '-')}", "live" if name == "views" and value is None else str(value)
            words += [f"{option}={text}"] if text.startswith("-") else [option, text]
    return shlex.join(words)
