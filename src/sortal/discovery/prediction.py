"""Images never seen before: their categories from the saved model and centres, and how a run takes them in."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sortal import categories, cells, outcome, report, run
from sortal.backbone import load_backbone
from sortal.candidates import gather
from sortal.cells import Column
from sortal.config import AUTO
from sortal.evaluation import evaluate
from sortal.features import extract
from sortal.images import ImageSet
from sortal.lock import alone
from sortal.packing import Settings, pack, pack_readable
from sortal.pixels import Quarantined
from sortal.reading import read_images
from sortal.run import INITIAL, LOG, MODEL, REPORT, UNSURE, Assignments, Run
from sortal.store import PixelStore
from sortal.workers import Progress

COLUMNS = ("file_name", "category", "category_name", "status", "confidence", "distance", "next_category")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, eq=False)
class Prediction:
    """The categories of new images, one row each, and the run, which has them in it if it was updated."""

    run: Run
    assignments: Assignments
    quarantine: tuple[Quarantined, ...]
    added: int  # images that the run has now and had not before

    def columns(self) -> list[tuple[str, Column]]:
        """What is told of each image, by name."""
        return [column for column in run.columns_of(self.assignments, self.run.names) if column[0] in COLUMNS]

    def to_csv(self) -> bytes:
        return cells.table(self.columns())

    def to_json(self) -> dict[str, Any]:
        names = [name for name, _ in self.columns()]
        columns = [np.asarray(column, dtype=object).tolist() for _, column in self.columns()]
        return {
            "images": [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)],
            "quarantine": [asdict(bad) for bad in self.quarantine],
            "added": self.added,
            "candidates": [asdict(candidate) for candidate in self.run.candidates] if self.added else [],
        }


def predict(
    folder: str | os.PathLike[str],
    images: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    update: bool = False,
    device: str = AUTO,
    workers: int | None = None,
    on_progress: Progress = lambda *_: None,
    on_note: Callable[[str], None] = logger.info,
) -> Prediction:
    """Give images the categories of the run in a folder, without training.

    With `update` the run takes them in: categories keep their ids, their centres move, and images far from every
    centre are gathered as candidates for categories of their own. Images whose content it has already stay as they are.
    """
    found = run.load(folder)
    read = read_images(images, folders="ignore", need_labels=False)
    with alone(found.folder if update else None):
        if update:
            found = run.load(folder)  # another process may have added images before this one had the folder
            found.paths()  # which tells where there are none: the report shows all images
        read, store, quarantine = pack_readable(
            read, found.cache / "pixels", settings=_settings(found), workers=workers, on_progress=on_progress
        )
        x = _features(found, store, device, on_progress)
        confidence = outcome.confidence_of(found)
        folder_number = len(found.about["images"])
        new = outcome.assign(read, store.digests, x, found.centres, _n_known(found), confidence, folder=folder_number)
        if not update:
            return Prediction(run=found, assignments=new, quarantine=quarantine, added=0)
        fresh = _fresh(found, new)
        if not fresh.any():
            on_note("All of these images are in the run already: it stays as it is.")
            return Prediction(run=found, assignments=new, quarantine=quarantine, added=0)
        if not fresh.all():
            on_note(f"{int((~fresh).sum()):,} images are in the run already and are not added again.")
        source = _source(images, read.select(fresh))
        updated = take_in(found, new.select(fresh), x[fresh], source, quarantine, workers, on_progress)
        return Prediction(run=updated, assignments=new, quarantine=quarantine, added=int(fresh.sum()))


def take_in(
    found: Run,
    new: Assignments,
    x: NDArray[np.float32],
    source: dict[str, Any],
    quarantine: tuple[Quarantined, ...],
    workers: int | None,
    on_progress: Progress,
) -> Run:
    """The run with further images in it, saved."""
    n_known = _n_known(found)
    confidence = outcome.confidence_of(found)
    centres, sizes = moved(found, new, x)
    features = np.concatenate([np.asarray(found.features), x])
    assignments = outcome.placed(found.assignments.joined(new), features, centres, n_known, confidence)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    update = {"folder": source["folder"], "images": len(new), "finished": now}
    updated = replace(
        found,
        about={
            **found.about,
            "command": f"{found.about['command']}\n{_command(found, source['folder'])}",
            "images": [*found.about["images"], source],
            "updates": [*found.about["updates"], update],
            "centre_sizes": sizes.tolist(),
            "hashes": {**found.about["hashes"], **outcome.hashes(assignments, features)},
        },
        assignments=assignments,
        categories=categories.describe(assignments, found.names, n_known, features, centres),
        metrics=evaluate(assignments, found.names, n_known),
        features=features,
        centres=centres,
        quarantine=(*found.quarantine, *(bad for bad in quarantine if bad not in found.quarantine)),
        candidates=gather(assignments, features, centres, confidence),
    )
    store = pack(
        updated.images(),
        updated.cache / "pixels",
        settings=_settings(found),
        workers=workers,
        on_progress=on_progress,
    )
    seed, folder = found.about["settings"]["seed"], updated.cache / "map"
    page = report.make(updated, store, seed=seed, folder=folder, on_progress=on_progress)
    updated.save({REPORT: page}, keep={LOG, INITIAL})
    return updated


def moved(found: Run, new: Assignments, x: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The centres as means over the images that made them and the new ones that are sure, (k, d); how many, (k,)."""
    before = np.array(found.about["centre_sizes"], dtype=np.int64)
    sums = before[:, None] * found.centres.astype(np.float64)
    sure = new.status != UNSURE
    np.add.at(sums, new.category[sure], x[sure].astype(np.float64))
    sizes = before + np.bincount(new.category[sure], minlength=len(before))
    centres: NDArray[np.float32] = np.where(
        sizes[:, None] > 0, sums / np.maximum(sizes[:, None], 1), found.centres
    ).astype(np.float32)
    return centres, sizes


def _command(found: Run, folder: str) -> str:
    return shlex.join(["sortal", "predict", str(found.folder), folder, "--update"])


def _n_known(found: Run) -> int:
    return sum(category.kind == "known" for category in found.categories)


def _settings(found: Run) -> Settings:
    return Settings(shorter_side=found.about["backbone"]["shorter_side"])


def _features(found: Run, store: PixelStore, device: str, on_progress: Progress) -> NDArray[np.float32]:
    backbone = load_backbone(str(found.folder / f"{MODEL}.json"))
    return extract(
        backbone,
        store,
        normalise=True,
        folder=found.cache,
        device=device,
        precision=found.about["precision"],
        on_progress=on_progress,
    )


def _fresh(found: Run, new: Assignments) -> NDArray[np.bool_]:
    """(n,) images whose content the run does not have, and that are not here twice."""
    have = set(found.assignments.contents)
    fresh = np.zeros(len(new), dtype=bool)
    for row, content in enumerate(new.contents):
        fresh[row] = content not in have
        have.add(content)
    return fresh


def _source(images: Any, read: ImageSet) -> dict[str, Any]:
    folder = os.path.abspath(images) if isinstance(images, str | os.PathLike) else os.getcwd()
    return {"folder": folder, "images": len(read), "paths": outcome.elsewhere(read, folder)}
