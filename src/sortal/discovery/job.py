"""A job of `discover`: what to sort, how, and where the result goes. Jobs that must fail are refused here.

Most mistakes are found before torch is imported, which takes seconds.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sortal.config import AUTO, CONVNET, Discovery, Reading, Recipe
from sortal.discovery.defaults import recipe_for
from sortal.errors import InputError, Remedy, listing
from sortal.images.image_set import ImageSet
from sortal.images.reading import read_images
from sortal.learning.backbones.names import check_backbone
from sortal.runs.run import CACHE, Run
from sortal.runs.storage import peek
from sortal.system.files import LOCK, NEXT
from sortal.system.progress import Runtime
from sortal.system.workers import worker_count

if TYPE_CHECKING:
    import torch

    from sortal.system.distributed import Processes

Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | ImageSet
ANOTHER_FOLDER = Remedy("choose another folder", out=...)


def _alone() -> Processes:
    from sortal.system.distributed import Processes

    return Processes()


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """What to sort, how, and where the result goes."""

    images: ImageSet
    source: str | None  # the folder of the images; None for rows of an array
    settings: Discovery
    recipe: Recipe  # how the settings are carried out on these images
    place: Path
    runtime: Runtime
    command: str  # repeats the job
    shared: Path | None = None  # a cache shared with other jobs; by default the cache is in `place`
    before: Run | None = None  # the run in `place`, if people have reviewed it; read once the folder is locked
    force: bool = False  # whether a run in `place` may be overwritten
    processes: Processes = field(default_factory=_alone)  # that carry it out together; only the first writes the run

    @property
    def cache(self) -> Path:
        return self.shared or self.place / CACHE

    @property
    def device(self) -> torch.device:
        from sortal.system.device import choose_device

        return choose_device(self.runtime.device, None)

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def order(self) -> tuple[str, ...]:
        """Return the stages of sorting in their order: k is estimated first where training needs it."""
        if self.settings.k == AUTO and self.recipe.learns and self.recipe.estimate_on == "raw":
            return ("pixels", "k", "learn", "features", "clusters")
        return ("pixels", "learn", "features", "k", "clusters")


def prepare(
    images: Source,
    labels: str | os.PathLike[str] | None,
    out: str | os.PathLike[str] | None,
    settings: Discovery,
    reading: Reading,
    *,
    runtime: Runtime,
    force: bool,
    download: bool = True,
) -> Job:
    """Read the images, and refuse a job that must fail before any work is done; a dry run does not `download`."""
    folder = os.path.abspath(images) if isinstance(images, str | os.PathLike) else None
    is_folder = folder is not None
    if not is_folder and out is None:
        raise InputError("out is required for images that are not a folder. Name a folder for the run.")
    if isinstance(images, ImageSet) and (labels is not None or reading != Reading()):
        raise InputError("labels and reading settings cannot be combined with an ImageSet, which has labels.")
    place = Path(out) if out is not None else Path(f"{os.path.basename(folder or '')}-run")

    def found() -> ImageSet:
        it = images
        if not isinstance(it, ImageSet):
            it = read_images(it, labels=labels, need_labels=False, **asdict(reading))
        check_sortable(it, settings)
        worker_count(runtime.workers)
        check_output_folder(place, folder or (os.getcwd() if it.pixels is None else None), is_folder, force)
        check_backbone(settings.backbone, settings.weights, download=download)
        return it

    early = found() if int(os.environ.get("WORLD_SIZE", "1")) == 1 else None
    runtime.progress("Starting PyTorch", 0, 0)
    from sortal.system.distributed import launch

    processes = launch(runtime.device)
    sortable = processes.by_first(found) if early is None else early
    learned_on = min(settings.learn_on or len(sortable), len(sortable))
    return Job(
        images=sortable,
        source=folder or (os.getcwd() if sortable.pixels is None else None),
        settings=settings,
        recipe=recipe_for(settings, learned_on, on_gpu=processes.device.type == "cuda"),
        place=place,
        runtime=processes.runtime(runtime),
        command=_command(images, labels, place, settings, reading),
        force=force,
        processes=processes,
    )


def check_sortable(images: ImageSet, settings: Discovery) -> None:
    """Refuse settings that do not fit the images."""
    known, n = len(np.unique(images.labels[images.labels >= 0])), len(images)
    if images.validation.any():
        raise InputError(
            f"Images to sort must be labelled or unlabelled, got {images.validation.sum():,} for validation. "
            "Leave them out: images.select(~images.validation)."
        )
    unlabelled = int(images.unlabelled.sum())
    if not unlabelled:
        raise InputError(
            f"Some images must be unlabelled, got {n:,} images, all labelled. Put unlabelled images into a folder "
            "named unlabelled, or leave their label empty in the table."
        )
    if settings.k == AUTO:
        if known < 2:
            raise InputError(
                f"Estimating k requires labelled images of at least two classes, got {known}.",
                Remedy("label some images"),
                Remedy("give the number of classes", k=...),
            )
        if settings.k_max < known:
            raise InputError(f"k_max must be at least {known} (the labelled classes), got {settings.k_max}.")
    elif not known <= settings.k <= known + unlabelled:
        raise InputError(
            f"k must be from {known} (the labelled classes) to {known + unlabelled} (with a class for each unlabelled "
            f"image), got {settings.k}."
        )
    if settings.backbone == CONVNET and isinstance(settings.views, int):
        raise InputError(f"views must be 'auto' or 'live' for {CONVNET}, which caches no views, got {settings.views}.")


def check_output_folder(place: Path, folder: str | None, is_folder: bool, force: bool) -> None:
    """Refuse a place for the run among the images, or one that holds other things unless `force` is set."""
    if os.path.lexists(place) and not place.is_dir():
        raise InputError(f"The run must be a folder, got {str(place)!r}, which is a file.", ANOTHER_FOLDER)
    here = Path(os.path.realpath(place))  # resolves links and dots, which hide where things are
    images = Path(os.path.realpath(folder)) if folder else None
    if is_folder and images and here.is_relative_to(images):
        raise InputError(
            f"The run must be outside the folder of images, got {str(place)!r}.",
            Remedy("choose another folder", out=f"{folder}-run"),
        )
    if force or not place.is_dir():
        return
    facts = peek(place)
    if facts is None:
        others = {
            path.name for path in here.iterdir() if not images or not images.is_relative_to(os.path.realpath(path))
        }
        others -= {LOCK, CACHE, NEXT}  # left by an interrupted run
        if others:
            raise InputError(
                f"The run must be a new or empty folder or an earlier run, got {str(place)!r}, which contains "
                f"{listing(sorted(others))}.",
                ANOTHER_FOLDER,
                Remedy("write into it nevertheless", force=True),
            )
        return
    run, before, added = repr(str(place)), facts.images[0].folder, sum(update.images for update in facts.updates)
    for lost, problem in (
        (before != folder, f"{run} holds a run of other images, {before!r}."),
        (facts.updates, f"{added:,} images were added to the run in {run}; a new run would drop them."),
    ):
        if lost:
            raise InputError(problem, ANOTHER_FOLDER, Remedy("overwrite it", force=True))


def _command(images: Source, labels: Any, place: Path, settings: Discovery, reading: Reading) -> str:
    if not isinstance(images, str | os.PathLike):
        return "sortal.discover(...) with the settings above"
    path = os.fspath(images)
    words = ["sortal", "discover", os.path.join(os.curdir, path) if path.startswith("-") else path]
    defaults: dict[str, Any] = {"out": None, "labels": None, **asdict(Discovery()), **asdict(Reading())}
    for name, value in {"out": place, "labels": labels, **asdict(settings), **asdict(reading)}.items():
        if value != defaults[name]:
            option, text = f"--{name.replace('_', '-')}", str(value)
            words += [f"{option}={text}"] if text.startswith("-") else [option, text]
    return shlex.join(words)
