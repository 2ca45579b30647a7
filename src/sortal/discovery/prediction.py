"""Prediction: categories of new images from a saved run, which can be updated with them."""

import os
import shlex
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sortal.clustering.tsne import mapper
from sortal.config import Reading, load_named_backbone
from sortal.discovery import results
from sortal.discovery.given_features import FeatureFile, feature_file
from sortal.discovery.grouping.outliers import apartness
from sortal.discovery.job import folders_in
from sortal.discovery.reviewing.advice import compare
from sortal.discovery.streaming import pixels_of
from sortal.errors import InputError, quoted
from sortal.images.decoding import Quarantined
from sortal.images.exported import as_json
from sortal.images.folders import common_folder
from sortal.images.image_set import ImageSet
from sortal.images.reading import PerImage, read_images
from sortal.images.store.packing import Settings, pack, select_readable, store_pictures
from sortal.images.store.vector_rows import digests_of
from sortal.images.vector_sets import features_in_memory, read_features
from sortal.learning.backbones.registry import load_backbone
from sortal.learning.features import extract
from sortal.reviews.loading import load_run, locked_run, save_run
from sortal.runs.building import assess, unassigned
from sortal.runs.categories import rows_of
from sortal.runs.confidence import Features
from sortal.runs.facts import ImageSource, Update
from sortal.runs.reference import check_has_images, is_handed_over, reference_of
from sortal.runs.run import DOUBTFUL_STATUSES, KNOWN, MODEL, REPORT, Assignments, Run, columns_of
from sortal.runs.storage import RUN, check_features
from sortal.system import csv_tables
from sortal.system.csv_tables import Column
from sortal.system.distributed import alone
from sortal.system.files import write_atomically
from sortal.system.progress import Runtime, shown
from sortal.system.text import plural
from sortal.web.report import report

PREDICTED_COLUMNS = ("file_name", "category", "category_id", "status", "confidence", "distance", "next_category")


@dataclass(frozen=True, kw_only=True, eq=False)
class Prediction:
    """The categories of new images, one row each, and the run, which includes them if it was updated."""

    run: Run
    assignments: Assignments
    quarantine: tuple[Quarantined, ...]
    added: int  # images that were added to the run

    def __repr__(self) -> str:
        bad = f", {len(self.quarantine):,} unreadable" if self.quarantine else ""
        return f"<Prediction: {plural(len(self.assignments), 'image')}{bad}, {self.added:,} added; {self.run!r}>"

    def columns(self) -> list[tuple[str, Column]]:
        """Return what the table says of each image, by name, then its own columns."""
        own = ((each.name, each.typed()) for each in self.assignments.columns.each)
        return [*self._predicted(), *own]

    def _predicted(self) -> list[tuple[str, Column]]:
        return [column for column in columns_of(self.assignments, self.run.names) if column[0] in PREDICTED_COLUMNS]

    def to_csv(self) -> bytes:
        """Return the table as CSV in UTF-8."""
        return csv_tables.table(self.columns())

    def to_pandas(self) -> Any:
        """Return the table as a pandas.DataFrame, one row per image."""
        own = ((each.name, each.array()) for each in self.assignments.columns.each)
        return csv_tables.data_frame([*self._predicted(), *own])

    def to_json(self) -> dict[str, Any]:
        names = [name for name, _ in self.columns()]
        columns = [[*map(as_json, np.asarray(column, dtype=object).tolist())] for _, column in self.columns()]
        return {
            "images": [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)],
            "quarantine": [asdict(bad) for bad in self.quarantine],
            "added": self.added,
            "candidates": [asdict(candidate) for candidate in self.run.candidates] if self.added else [],
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """What sorts new images: a run, or one that was exported as hub, without its images."""

    run: Run

    def __repr__(self) -> str:
        known = sum(each.kind == KNOWN for each in self.run.categories)
        new = plural(len(self.categories) - known, "new category", "new categories")
        return f"<Model: {known:,} known and {new}; {str(self.run.folder)!r}>"

    @property
    def categories(self) -> tuple[str, ...]:
        """The names of the categories, known and new."""
        return tuple(self.run.names.values())

    def predict(self, images: Any = None, **options: Any) -> Prediction:
        """Sort new images, as `predict` does with the same options."""
        return predict(self.run, images, **options)


def load(folder: str | os.PathLike[str]) -> Model:
    """Load what sorts new images.

    `folder`: that of a run, or one that `export` wrote in the format hub.

    >>> model = sortal.load("photos-run-hub")  # doctest: +SKIP
    >>> model.predict("more-photos").to_pandas()  # doctest: +SKIP
    """
    return Model(run=load_run(folder))


def predict(
    run: Run | str | os.PathLike[str],
    images: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    *,
    features: Any = None,
    files: PerImage | None = None,
    update: bool = False,
    max_pixels: int | None = None,
    backbone: Any = None,
    progress: bool = True,
    runtime: Runtime = Runtime(),
) -> Prediction:
    """Sort new images into the categories of a run, without training.

    `run`: the run, or its folder.
    `images`: a folder, several folders or a list of files. Names of folders in them have no meaning.
    `features`: for a run of feature vectors, a file of more of them, or an array (n, d) with names in `files`; `images`
        is then the folder of their pictures, if there are any.
    `update`: add the images to the run. Categories keep their ids, their centres move, and images far from every centre
        are grouped as candidates for new categories. Images that the run already contains are not added again.
    `max_pixels`: leave out images with more pixels; by default as in the run.
    `backbone`: that of the run, if it is your own, as `discover` got it: its code is loaded only where you name it.
    `progress`: show what is being done.
    `runtime`: the device, and the processes that read images.

    >>> found = sortal.predict("photos-run", "more-photos")  # doctest: +SKIP
    >>> found.run.names[found.assignments.category_id[0]]  # doctest: +SKIP
    'oak'
    """
    if backbone is not None:
        load_named_backbone(backbone)
    with shown(runtime, wanted=progress) as runtime:
        found = run if isinstance(run, Run) else load_run(run)
        read, file = read_more(found, images, features, files)
        return _predict(found, images, read, file, update, max_pixels, runtime)


def read_more(
    found: Run,
    images: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
    features: Any = None,
    files: PerImage | None = None,
) -> tuple[ImageSet, FeatureFile | None]:
    """Read what is to be sorted: images, or feature vectors as those that the run was made of, without labels."""
    if (features is None) != (found.facts.features is None):
        of, needed = ("feature vectors", "features") if features is None else ("images", "images")
        where = quoted(str(found.folder / RUN))
        raise InputError(f"By {where}, the run was made of {of}, so {needed} must be given to sort more of them.")
    if features is None:
        if images is None:
            raise InputError("images are required: a folder, several, or a list of files.")
        kept = {name: getattr(found.facts.reading, name) for name in ("exif", "group_by_time")}
        return read_images(images, folders="ignore", need_labels=False, **kept), None
    file = feature_file(images, features) if isinstance(features, str | os.PathLike) else None
    if file is None:
        read = features_in_memory(features, files=files)
    else:
        read = read_features(Path(file.path), folder=Path(file.folder), reading=Reading(placeholders="unlabelled"))
    width, own = found.facts.backbone.width, 0 if read.features is None else read.features.shape[1]
    if own != width:
        raise InputError(f"The features must have {width:,} dimensions, as those of the run have, got {own:,}.")
    return read.without_labels(range(len(read))), file


def _predict(
    found: Run,
    images: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
    read: ImageSet,
    file: FeatureFile | None,
    update: bool,
    max_pixels: int | None,
    runtime: Runtime,
) -> Prediction:
    if update and is_handed_over(found):
        raise InputError(
            f"The model in {str(found.folder)!r} was exported without its images, so none can be added to it. "
            "Add them to the run that it was made of."
        )
    with locked_run(found.folder) if update else nullcontext(found) as found, ExitStack() as temporary:
        if update:
            found.paths()  # raises where the images have no files, which the report needs
        facts = found.facts
        limit = facts.settings.max_pixels if max_pixels is None else max_pixels
        settings = Settings.of(facts.backbone, limit)
        work = Path(temporary.enter_context(TemporaryDirectory())) if is_handed_over(found) else found.cache
        place = work / "pixels"
        if read.features is None:
            store = pack(read, place, settings=settings, runtime=runtime)
        else:
            shown = read if update else replace(read, paths=("",) * len(read))
            store = store_pictures(shown, digests_of(read.features), place, settings=settings, runtime=runtime)
        quarantine = store.quarantine
        read, store = select_readable(read, store)
        backbone, precision = load_backbone(str(found.folder / f"{MODEL}.json")), found.facts.precision
        x = extract(backbone, store, normalise=True, folder=work, precision=precision, runtime=runtime)
        apart = apartness(x, alone(runtime.device), reference=reference_of(found))
        blank = _known_places(found, replace(unassigned(read, store.digests), apart=apart))
        new = assess(blank, x, found.categories, found.centres, found.confidence, found.head, reassign=True)
        if not update:
            return Prediction(run=found, assignments=new, quarantine=quarantine, added=0)
        fresh = _fresh(found, new)
        if not fresh.any():
            runtime.note("The run already contains all of these images, so it is unchanged.")
            return Prediction(run=found, assignments=new, quarantine=quarantine, added=0)
        if not fresh.all():
            runtime.note(f"The run already contains {int((~fresh).sum()):,} of these images; no image is added twice.")
        folders = () if images is None or read.features is not None else folders_in(images)
        where = common_folder(folders) if folders else os.getcwd() if file is None else file.folder
        vectors = None if read.features is None else "" if file is None else file.path
        source = results.source_of(read.select(fresh), where)
        if limit > facts.settings.max_pixels:  # so that whatever reads the run again finds what was added
            found = replace(found, facts=replace(facts, settings=replace(facts.settings, max_pixels=limit)))
        options = [] if max_pixels is None else ["--max-pixels", str(max_pixels)]
        updated = add_images(
            found, new.select(fresh), x[fresh], source, quarantine, runtime, options=options, vectors=vectors
        )
        return Prediction(run=updated, assignments=new, quarantine=quarantine, added=int(fresh.sum()))


def add_images(
    found: Run,
    new: Assignments,
    x: Features,
    source: ImageSource,
    bad: Sequence[Quarantined],
    runtime: Runtime,
    *,
    options: Sequence[str] = (),
    vectors: str | None = None,
) -> Run:
    """Add images to a run and save it; a centre is the mean of the images that made it and the sure new ones.

    `options` are those of the command that repeats this; `vectors` is the file of feature vectors.
    """
    before = np.array([category.weight for category in found.categories], dtype=np.int64)
    sure = ~np.isin(new.status, DOUBTFUL_STATUSES)
    rows = rows_of(found.categories, new.category_id[sure])
    centres, weights = results.add_to_means(found.centres, before, rows, x[sure])
    features = np.concatenate([np.asarray(found.features), x])
    assignments, facts = found.assignments.joined(new), found.facts
    folder = source.folder or ""
    given = [] if vectors is None else ["--features", vectors]
    command = shlex.join(["sortal", "predict", str(found.folder), folder, *given, "--update", *options])
    facts = replace(
        facts,
        command=f"{facts.command}\n{command}",
        images=(*facts.images, source),
        updates=(*facts.updates, Update(folder=folder, images=len(new), finished=results.now(), features=vectors)),
    )
    categories = [replace(each, weight=w) for each, w in zip(found.categories, weights.tolist(), strict=True)]
    updated = results.with_images(
        found,
        assignments,
        features,
        facts=facts,
        quarantine=(*found.quarantine, *(each for each in bad if each not in found.quarantine)),
        categories=categories,
        centres=centres,
    )
    save_run(updated, {REPORT: draw_report(updated, runtime=runtime)})
    return updated


def redraw(folder: Path, *, absolute_paths: bool = False, runtime: Runtime = Runtime()) -> Path:
    """Draw the report of a run again, as people have reviewed it, and return its path."""
    check_has_images(folder)
    with locked_run(folder) as found:
        check_features(found)
        page = draw_report(found, absolute_paths=absolute_paths, runtime=runtime)
        try:
            write_atomically(found.report, page)  # raises NoSpaceError where the disk is full
        except OSError as error:
            raise InputError(f"The report {str(found.report)!r} cannot be written: {error.strerror}.") from error
    return found.report


def draw_report(found: Run, *, absolute_paths: bool = False, runtime: Runtime = Runtime()) -> bytes:
    """Draw the report of a saved run, from the pixels in its cache as far as they are there."""
    store, seed = pixels_of(found, found.images(), runtime=runtime), found.facts.settings.seed
    compared = compare(found, store, seed, runtime.device)
    return report.make_report(
        found,
        store,
        mapper(runtime.device),
        compared,
        seed=seed,
        folder=found.cache / "map",
        absolute_paths=absolute_paths,
        runtime=runtime,
    )


def _known_places(found: Run, new: Assignments) -> Assignments:
    """Give images that the run contains the number of the folder they came from, and others the next one."""
    a, following = found.assignments, len(found.facts.images)
    own = dict(zip(reversed(a.contents), a.folders[::-1].tolist(), strict=True))
    return replace(new, folders=np.array([own.get(each, following) for each in new.contents], dtype=np.int64))


def _fresh(found: Run, new: Assignments) -> NDArray[np.bool_]:
    """Return the mask (n,) of images whose content is not in the run, each content once."""
    first = np.isin(np.arange(len(new)), np.unique(new.contents, return_index=True)[1])
    return first & (new.folders == len(found.facts.images))
