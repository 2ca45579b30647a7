"""What a job takes over from the run that is already in its folder: settings, folders, and images that were added."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from sortal.config import AUTO, Discovery, Reading, registration_of
from sortal.discovery.defaults import is_default_network
from sortal.images.columns import Columns
from sortal.images.image_set import ImageSet
from sortal.reviews.loading import load_run
from sortal.runs.facts import ImageSource, RunFacts, Update
from sortal.runs.run import Run
from sortal.system.text import duration, setting

CHANGE_TRAINING = (
    *("method", "backbone", "weights", "image_size", "epochs", "lr", "views", "trained", "set", "seed"),
    *("held_out", "learn_on", "groups"),
)
OLD_K_MAX, BEFORE_1_0 = 1000, re.compile(r"0\.|1\.0\.0rc1\b")  # the versions that had it as a default


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """How to sort, how to read, and the table of labels; `given` names defaults that were asked for explicitly."""

    settings: Discovery
    reading: Reading
    labels: str | None
    given: frozenset[str]

    def completed(self, earlier: RunFacts) -> tuple[Wanted, dict[str, Any]]:
        """Take settings that were not given from an earlier run; also return those that differ from the defaults."""
        records = [(self.settings, as_asked(earlier)), (self.reading, earlier.reading)]
        given = {*self.given}
        given |= {each.name for mine, _ in records for each in fields(mine) if getattr(mine, each.name) != each.default}
        if "backbone" in given and self.settings.backbone != earlier.settings.backbone:
            given |= {"weights", "image_size"}  # those of one backbone do not fit another
        if self.settings.k != AUTO:
            given.add("granularity")  # a given k is neither finer nor coarser
        taken: dict[str, Any] = {}

        def merged(mine: Any, theirs: Any) -> Any:
            values = {each.name: getattr(theirs, each.name) for each in fields(theirs) if each.name not in given}
            for each in fields(theirs):
                if each.name in values and values[each.name] != each.default:
                    taken[each.name] = values[each.name]
            return replace(mine, **values)

        settings, reading = (merged(mine, theirs) for mine, theirs in records)
        labels = self.labels
        if labels is None and earlier.labels is not None:
            labels = taken["labels"] = earlier.labels
        return replace(self, settings=settings, reading=reading, labels=labels), taken


def as_asked(earlier: RunFacts) -> Discovery:
    """Return the settings of a run; the default of k_max was a number before version 1.0.

    A default network keeps the size of its images, which is another by default with a GPU than without.
    """
    settings = earlier.settings
    if settings.k_max == OLD_K_MAX and BEFORE_1_0.match(earlier.versions.get("sortal", "")):
        settings = replace(settings, k_max=AUTO)
    if settings.image_size == AUTO and is_default_network(settings.backbone):
        settings = replace(settings, image_size=earlier.backbone.image_size)
    return settings


@dataclass(frozen=True, kw_only=True)
class Additions:
    """Images that `predict` added to an earlier run, and where they came from."""

    sources: tuple[ImageSource, ...] = ()
    updates: tuple[Update, ...] = ()  # one per source
    rows: Mapping[str, tuple[int, str]] = field(default_factory=dict)  # number of the source, and name there, by file


NOTHING_ADDED = Additions()


@dataclass(frozen=True, kw_only=True, eq=False)
class EarlierRun:
    """The run that is already in the folder of a job, if there is one, and what the job takes over from it."""

    facts: RunFacts | None = None  # from which the job was completed
    added: Additions = NOTHING_ADDED  # images that take part in the job, too
    same_k: bool = False  # whether the job has its k because that one had it
    retraining: str | None = None  # why the job trains again, if settings have changed
    reviewed: Run | None = None  # the run itself, if people have reviewed it; read once the folder is locked
    audited: frozenset[str] = frozenset()  # contents of images that they judged in random samples


NO_RUN = EarlierRun()


def folders_of(facts: RunFacts) -> tuple[str, ...]:
    """Return the folders that a run was made of, without those whose images were added later."""
    first = facts.images[0].folder
    return facts.folders or ((first,) if first is not None else ())


def with_added(images: ImageSet, place: Path, facts: RunFacts) -> tuple[ImageSet, Additions]:
    """Append the images that were added to a run, unlabelled, unless they are among the images already."""
    if not facts.updates:
        return images, NOTHING_ADDED
    run = load_run(place, raw=True)
    here, first = {os.path.realpath(path) for path in images.paths}, len(facts.images) - len(facts.updates)
    a = run.assignments
    added = {
        path: row
        for row, (path, at) in enumerate(zip(run.paths(), a.folders.tolist(), strict=True))
        if at >= first and os.path.realpath(path) not in here
    }
    rows = {path: (int(a.folders[row]) - first, a.files[row]) for path, row in added.items()}
    columns = Columns(tuple(each for each in a.columns.take(added.values()).each if any(each.cells)))
    used = sorted({at for at, _ in rows.values()})
    none = np.full(len(rows), -1)
    joined = replace(
        images,
        files=(*images.files, *rows),  # their paths: names may occur in several folders
        paths=(*images.paths, *rows),
        labels=np.concatenate([images.labels, none]),
        truth=np.concatenate([images.truth, none]),
        validation=np.concatenate([images.validation, none > 0]),
        columns=images.columns.followed(len(images), columns, len(rows)),
    )
    return joined, Additions(
        sources=tuple(facts.images[first + at] for at in used),
        updates=tuple(facts.updates[at] for at in used),
        rows={path: (used.index(at), file) for path, (at, file) in rows.items()},
    )


def training_settings(settings: Discovery) -> tuple[str, ...]:
    """Return the names of settings whose change means training again: also k for a method that needs it."""
    return (*CHANGE_TRAINING, "k", "granularity") if registration_of(settings.method).needs_k else CHANGE_TRAINING


def retraining(facts: RunFacts, settings: Discovery) -> str | None:
    """Describe the changed settings that require training again, and how long it took before; None without any."""
    of = registration_of(settings.method)
    if of.learner is None or settings.epochs == 0:
        return None
    names = [name for name in training_settings(settings) if name != "method" or of.name != facts.recipe.method]
    before = as_asked(facts)
    pairs = ((name, getattr(before, name), getattr(settings, name)) for name in names)
    changes = [f"{name} ({setting(old)}, now {setting(new)})" for name, old, new in pairs if old != new]
    if not changes:
        return None
    took = facts.timings.get("learn", 0.0)
    last = f" Training took {duration(took)} the last time." if took >= 1 else ""
    return f"A change of {', '.join(changes)} means training again.{last}"
