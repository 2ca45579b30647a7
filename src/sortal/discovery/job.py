"""A job of `discover`: what to sort, how, and where the result goes. Jobs that would fail are refused here.

Most mistakes are found before torch, which takes seconds, is imported.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sortal.config import (
    AUTO,
    BACKBONE,
    CONVNET,
    LARGER,
    OWN_K,
    SMALLER,
    Discovery,
    Reading,
    Recipe,
    not_loaded,
    registered,
    registration_of,
)
from sortal.discovery.defaults import recipe_for, resolved, trained_blocks
from sortal.discovery.earlier import NO_RUN, EarlierRun, Wanted, folders_of, retraining, training_settings, with_added
from sortal.discovery.given_features import FeatureFile, feature_file, with_added_features, without_network
from sortal.discovery.run_places import check_free, check_output_folder, place_and_folders, run_of_files
from sortal.errors import InputError, Remedy, listing
from sortal.exchange.field_data import lacking
from sortal.images.class_names import like_places, named_like_places
from sortal.images.folders import are_folders, common_folder, unread_pictures
from sortal.images.image_set import ImageSet
from sortal.images.reading import read_images
from sortal.images.vector_sets import check_features_differ
from sortal.learning.backbones import hub
from sortal.learning.backbones.names import check_backbone
from sortal.runs.facts import RunFacts
from sortal.system import cache
from sortal.system.open_folder import CACHE, own_folder
from sortal.system.progress import Runtime
from sortal.system.text import plural, setting
from sortal.system.workers import worker_count

if TYPE_CHECKING:
    import torch

    from sortal.system.distributed import Processes

Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | ImageSet
AGREED = "agreed.json"  # in the cache
MANY_IMAGES = 1000  # from which learning without a GPU may take long


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where the images of a job were read, and the command that repeats it."""

    folder: str | None = None  # which all images are in; None for rows of an array
    folders: tuple[str, ...] = ()  # as they were given
    features: str | None = None  # the file of feature vectors; "" for an array, None for images
    labels: str | None = None  # the table of labels
    reading: Reading = Reading()
    command: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """What to sort, how, and where the result goes."""

    images: ImageSet
    origin: Origin = Origin()
    settings: Discovery
    recipe: Recipe  # how the settings are carried out on these images
    place: Path
    force: bool = False  # whether a run in `place` may be overwritten
    watch_truth: bool = False  # whether accuracy by the truth is written down after each epoch
    earlier: EarlierRun = NO_RUN
    shared: Path | None = None  # a cache shared with other jobs; by default the cache is in `place`
    runtime: Runtime
    processes: Processes  # that carry it out together, each on its device; only the first writes the run

    def __post_init__(self) -> None:
        assert self.runtime.device == str(self.processes.device)  # both are told to functions that compute

    @property
    def cache(self) -> Path:
        return self.shared or own_folder(self.place) / CACHE

    @property
    def device(self) -> torch.device:
        return self.processes.device

    def reporting_to(self, runtime: Runtime) -> Job:
        """Return the job with another place for progress and notes."""
        return replace(self, runtime=self.processes.runtime(runtime))

    @property
    def retraining(self) -> str | None:
        """Why the job trains again what its folder has, if it does."""
        return self.earlier.retraining

    @property
    def agreed(self) -> bool:
        """Whether a person has agreed to train again with these settings, so that resuming needs no confirmation."""
        return bool(cache.load(self.cache / AGREED) == _of_training(self.settings))

    def agree(self) -> None:
        """Remember that a person has agreed to train again."""
        cache.save(self.cache / AGREED, _of_training(self.settings))

    @property
    def trained(self) -> int | None:
        """The number of last blocks to train; None for what is usual for the backbone."""
        return trained_blocks(self.settings)

    @property
    def image_size(self) -> int | None:
        """The height and width of the network's input; None for its own."""
        return None if self.settings.image_size == AUTO else self.settings.image_size

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def may_take_long(self) -> bool:
        """Whether to look for quicker ways first: learning from many images without a GPU, for the first time."""
        many = self.images.features is None and len(self.images) >= MANY_IMAGES
        return many and not self.on_gpu and self.recipe.learns and not self.cache.exists()

    @property
    def order(self) -> tuple[str, ...]:
        """Return the stages of sorting in their order: k is estimated first where training needs it."""
        if self.settings.k == AUTO and self.recipe.learns and self.recipe.estimate_on == "raw":
            return ("pixels", "k", "learn", "features", "clusters")
        return ("pixels", "learn", "features", "k", "clusters")


def _of_training(settings: Discovery) -> dict[str, Any]:
    """Return the settings that training depends on as JSON has them."""
    return {name: getattr(settings, name) for name in training_settings(settings)} | {"set": list(settings.set)}


def prepare(
    images: Source | None,
    labels: str | os.PathLike[str] | None,
    out: str | os.PathLike[str] | None,
    settings: Discovery,
    reading: Reading,
    *,
    given: Collection[str] = (),
    runtime: Runtime,
    force: bool,
    watch_truth: bool = False,
    features: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
) -> Job:
    """Read the images, and refuse a job that would fail, before any work is done.

    Settings that were not `given`, by name, come from the run that is already in the folder, if there is one. So do
    its other folders, and images that were added to it, unless `force` is set. With a file of `features`, `images` is
    the folder of their pictures, if there are any. A `dry_run` may look at a run that another process is making.
    """
    file = feature_file(images, features)
    folders = () if file is not None or images is None else folders_in(images)
    run = run_of_files(folders[0]) if len(folders) == 1 else None
    if run is not None:
        images, folders, out = run.images(), (), run.folder if out is None else out
    if not folders and out is None and file is None:
        raise InputError("out is required for images that are not a folder. Name a folder for the run.")
    if isinstance(images, ImageSet) and (labels is not None or reading != Reading()):
        raise InputError(
            "labels and reading settings cannot be combined with an ImageSet, or with a run of an ImageSet or a list "
            "of files: these have labels of their own."
        )
    root = None
    if not folders and not (isinstance(images, ImageSet) and images.pixels is not None):
        root = os.getcwd() if run is None else run.facts.images[0].folder
    named = None if file is None else file.place if out is None else Path(out)
    place, folders = place_and_folders(folders, out) if named is None else (named, folders)
    table = None if labels is None else os.fspath(labels)
    wanted = Wanted(settings=settings, reading=reading, labels=table, given=frozenset(given))
    check_free(place, unless=dry_run)
    find = partial(_find, images, file, folders, root, wanted, place, force=force, runtime=runtime)
    early = find() if int(os.environ.get("WORLD_SIZE", "1")) == 1 else None
    runtime.progress("Starting PyTorch", 0, 0)
    from sortal.system.distributed import launch

    processes = launch(runtime.device)
    found = processes.by_first(find) if early is None else early
    on_gpu, n = processes.device.type == "cuda", len(found.images)
    settings = resolved(found.wanted.settings, on_gpu=on_gpu, features=found.images.features is not None)
    return Job(
        images=found.images,
        origin=_origin(images, file, root, found, place),
        settings=settings,
        recipe=recipe_for(settings, min(settings.learn_on or n, n), on_gpu=on_gpu),
        place=place,
        force=force,
        watch_truth=watch_truth,
        earlier=found.earlier,
        runtime=processes.runtime(runtime),
        processes=processes,
    )


class _Found(NamedTuple):
    """The images of a job, with what it takes over from the run in its folder."""

    images: ImageSet
    folders: tuple[str, ...]
    wanted: Wanted
    earlier: EarlierRun


def _find(
    images: Source | None,
    file: FeatureFile | None,
    folders: tuple[str, ...],
    root: str | None,
    wanted: Wanted,
    place: Path,
    *,
    force: bool,
    runtime: Runtime,
) -> _Found:
    """Read the images of a job, complete it from the run in its folder, and refuse what would fail."""
    facts = check_output_folder(place, folders, root, force=force, features=_key_of(images, file))
    earlier, notes, taken = NO_RUN, list[str](), dict[str, Any]()
    if facts is not None:
        wanted, taken = wanted.completed(facts)
        if facts.features is not None:
            taken.pop("backbone", None)
        if taken:
            same = ", ".join(f"{name} {setting(value)}" for name, value in taken.items())
            notes.append(f"As in the run in {str(place)!r}: {same}.")
        if others := tuple(each for each in folders_of(facts) if folders and each not in folders):
            folders = (*folders, *others)
            notes.append(f"Images of {listing(others)} take part, as in that run.")
    if wanted.settings.k != AUTO and wanted.settings.granularity != "usual":
        raise InputError(
            f"granularity must be 'usual' where k is given, got {wanted.settings.granularity!r} with k = "
            f"{wanted.settings.k}.",
            Remedy("let k be estimated", k=AUTO),
            Remedy("leave granularity out, and give another k"),
        )
    _check_method(wanted, facts)
    if file is not None:
        images = file.read(wanted)
    elif not isinstance(images, ImageSet):
        assert images is not None
        source = images if folders_in(images) == folders else folders  # errors name it as it was given
        images = read_images(source, labels=wanted.labels, need_labels=False, **asdict(wanted.reading))
    if facts is not None:
        earlier = EarlierRun(facts=facts, same_k="k" in taken, retraining=retraining(facts, wanted.settings))
        if images.pixels is None:
            if images.features is None:
                images, added = with_added(images, place, facts)
            else:
                images, added = with_added_features(images, facts, wanted.reading, notes.append)
            earlier = replace(earlier, added=added)
            if added.rows:
                count = plural(len(added.rows), "image that was", "images that were")
                notes.append(f"{count} added to that run take part, unlabelled.")
    check_sortable(images, wanted.settings)
    worker_count(runtime.workers)
    if images.features is not None:
        check_features_differ(images)
        wanted = replace(wanted, settings=without_network(wanted.settings))
    else:
        _check_backbone(wanted.settings)
    for text in (*notes, *_early_notes(images, by_folders=bool(folders) and wanted.labels is None)):
        runtime.note(text)
    return _Found(images, folders, wanted, earlier)


def _check_method(wanted: Wanted, facts: RunFacts | None) -> None:
    """Refuse a method that is unknown, or that an earlier run had and that is not loaded."""
    method = wanted.settings.method
    if facts is not None and method == facts.settings.method and registered(method) is None:
        raise not_loaded(method, facts.method_source)
    of, k = registration_of(method), wanted.settings.k
    recipe_for(wanted.settings, 1, on_gpu=False)  # refuses settings that the method does not have
    if k == OWN_K and not of.finds_k:
        raise InputError(f"k must be a number or 'auto' for {of.name}, which does not find it itself, got 'own'.")


def _key_of(images: Source | None, file: FeatureFile | None) -> str | None:
    """Return what tells features from others: their file, or "" for an array; None for images."""
    if file is not None:
        return file.path
    return "" if isinstance(images, ImageSet) and images.features is not None else None


def _origin(images: Source | None, file: FeatureFile | None, root: str | None, found: _Found, place: Path) -> Origin:
    """Return where the images were read; the command has the folder as it was given."""
    folders, wanted = found.folders, found.wanted
    folder = common_folder(folders) if folders else root
    folder = folder if file is None else file.folder
    return Origin(
        folder=folder,
        folders=folders,
        features=_key_of(images, file),
        labels=None if wanted.labels is None else os.path.abspath(wanted.labels),
        reading=wanted.reading,
        command=_command(images, file, folders, wanted, place),
    )


def _early_notes(images: ImageSet, *, by_folders: bool) -> list[str]:
    """Say what a person may want to change before images are sorted: pictures left out, labels, columns for exports."""
    odd = named_like_places(images.classes) if by_folders and images.pixels is None else ()
    found = (*unread_pictures(images.ignored), like_places(odd), lacking(images.columns, len(images)))
    return [*filter(None, found)]


def _check_backbone(settings: Discovery) -> None:
    """Refuse a backbone that is not available; what "auto" stands for is decided later."""
    if settings.backbone != AUTO or settings.weights is not None:
        name = BACKBONE if settings.backbone == AUTO else settings.backbone
        check_backbone(name, settings.weights)
    elif hub.cached(f"timm/{LARGER}") is None:
        try:
            check_backbone(SMALLER, None)
        except InputError as error:
            ways = (Remedy(way.action, backbone=SMALLER, **way.settings) for way in error.remedies)
            raise InputError(error.message, *ways) from None


def folders_in(images: Source) -> tuple[str, ...]:
    """Return the absolute paths of the folders that were given; none for a list of files, or an ImageSet."""
    if isinstance(images, str | os.PathLike):
        return (os.path.abspath(images),)
    if isinstance(images, ImageSet):
        return ()
    if not isinstance(images, Iterable):
        accepted = "a folder, several folders, a list of files, an ImageSet or a run"
        raise InputError(f"images must be {accepted}, got {type(images).__name__}.")
    if not are_folders(images):
        return ()
    return tuple(map(os.path.abspath, images))


def check_sortable(images: ImageSet, settings: Discovery) -> None:
    """Refuse settings that do not fit the images."""
    known, unlabelled = len(images.known), int(images.unlabelled.sum())
    if images.validation.any():
        raise InputError(
            f"Images to sort must be labelled or unlabelled, got {images.validation.sum():,} for validation. "
            "Leave them out: images.select(~images.validation)."
        )
    if not unlabelled:
        raise InputError(
            f"Some images must be unlabelled, got {plural(len(images), 'image')}, all labelled. Put unlabelled images "
            "into a folder named unlabelled, or leave their label empty in the table."
        )
    if isinstance(settings.k, str):
        if settings.k == AUTO and isinstance(settings.k_max, int) and settings.k_max < known:
            raise InputError(f"k_max must be at least {known} (the labelled classes), got {settings.k_max}.")
    elif not known <= settings.k <= known + unlabelled:
        raise InputError(
            f"k must be from {known} (the labelled classes) to {known + unlabelled} (with a class for each unlabelled "
            f"image), got {settings.k}."
        )
    if settings.backbone == CONVNET and isinstance(settings.views, int):
        raise InputError(f"views must be 'auto' or 'live' for {CONVNET}, which caches no views, got {settings.views}.")


def _command(
    images: Source | None, file: FeatureFile | None, folders: tuple[str, ...], wanted: Wanted, place: Path
) -> str:
    if not folders and file is None:
        return "sortal.discover(...) with the settings above"
    paths = folders if file is None or file.folder == os.path.dirname(file.path) else (file.folder,)
    if file is None and isinstance(images, str | os.PathLike) and folders_in(images) == folders:
        paths = (os.fspath(images),)
    words = ["sortal", "discover", *([] if file is None else ["--features", file.path])]
    words += [*(os.path.join(os.curdir, path) if path.startswith("-") else path for path in paths)]
    defaults: dict[str, Any] = {"out": None, "labels": None, **asdict(Discovery()), **asdict(Reading())}
    wishes = {"labels": wanted.labels, **asdict(wanted.settings), **asdict(wanted.reading)}
    for name, value in {"out": place, **wishes}.items():
        if name == "set":
            words += [word for each in value for word in ("--set", each)]
        elif value != defaults[name]:
            option, text = f"--{name.replace('_', '-')}", str(value)
            words += [option] if value is True else [f"{option}={text}"] if text.startswith("-") else [option, text]
    return shlex.join(words)
