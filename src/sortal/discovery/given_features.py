"""A file of feature vectors that a job sorts instead of images, and what does not go together with it."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sortal.config import AUTO, VECTORS, Discovery, Reading
from sortal.discovery.earlier import NOTHING_ADDED, Additions, Wanted
from sortal.errors import InputError, Remedy
from sortal.images.columns import Columns
from sortal.images.image_set import ImageSet
from sortal.images.store.vector_rows import digests_of
from sortal.images.vector_sets import read_features
from sortal.runs.facts import RunFacts
from sortal.runs.storage import peek
from sortal.system.text import plural

FROM_NETWORKS = ("backbone", "weights", "image_size", "trained")  # settings that are about a network


@dataclass(frozen=True, kw_only=True)
class FeatureFile:
    """A file of feature vectors, and the folder of their pictures; the folder of a run that is sorted again."""

    path: str
    folder: str
    run: str | None = None

    @property
    def place(self) -> Path:
        """The folder of the run, unless another is given."""
        return Path(self.run or f"{Path(self.path).stem}-run")

    def read(self, wanted: Wanted) -> ImageSet:
        """Read the vectors and their labels."""
        table = None if wanted.labels is None else Path(wanted.labels)
        return read_features(
            Path(self.path), folder=Path(self.folder), labels=table, reading=wanted.reading, learned=True
        )


def feature_file(images: object, features: str | os.PathLike[str] | None) -> FeatureFile | None:
    """Return the file of features that was given, or that a run was made of; None where images are sorted.

    With such a file, `images` is the folder of the pictures, by default that of the file.
    """
    if features is not None:
        path = os.path.abspath(features)
        if images is not None and (not isinstance(images, str | os.PathLike) or not os.path.isdir(images)):
            raise InputError(f"Beside features, images must be the one folder of their pictures, got {images!r}.")
        return FeatureFile(path=path, folder=os.path.dirname(path) if images is None else os.path.abspath(images))
    if not isinstance(images, str | os.PathLike):
        return None
    facts = peek(Path(images))
    if facts is None or facts.features is None:
        return None
    run = os.fspath(images)
    if not os.path.isfile(facts.features):
        where = f"are not in {facts.features!r} any more" if facts.features else "were given as an array"
        raise InputError(
            f"The features of the run in {run!r} {where}.",
            Remedy("give them again, with the folder of the run", features=..., out=run),
        )
    return FeatureFile(path=facts.features, folder=facts.images[0].folder or os.path.dirname(facts.features), run=run)


def without_network(settings: Discovery) -> Discovery:
    """Refuse settings of a network, which features do not have; return those that are about the head on them."""
    settings = replace(settings, backbone=AUTO) if settings.backbone == VECTORS else settings
    for name in FROM_NETWORKS:
        if getattr(settings, name) not in (AUTO, None):
            raise InputError(f"{name} cannot be combined with features, which no network computes. Leave it out.")
    if isinstance(settings.views, int):
        raise InputError(f"views must be 'auto' or 'live' for features, as none are cached, got {settings.views}.")
    return settings


def _followed(images: ImageSet, parts: Sequence[ImageSet]) -> Columns:
    columns, n = images.columns, len(images)
    for part in parts:
        columns, n = columns.followed(n, part.columns, len(part)), n + len(part)
    return columns


def with_added_features(
    images: ImageSet, facts: RunFacts, reading: Reading, note: Callable[[str], None]
) -> tuple[ImageSet, Additions]:
    """Append the vectors that were added to a run, unlabelled, from their files, unless they are in the set already."""
    assert images.features is not None
    first, rows, parts = len(facts.images) - len(facts.updates), dict[str, tuple[int, str]](), list[ImageSet]()
    here = {*digests_of(images.features).tolist()}
    used = list[int]()
    for at, update in enumerate(facts.updates):
        if not update.features or not os.path.isfile(update.features):
            why = f"{update.features!r} is gone" if update.features else "they were given as an array"
            note(f"{plural(update.images, 'row')} added to that run will be left out, as {why}.")
            continue
        more = read_features(Path(update.features), folder=Path(update.folder), reading=reading)
        assert more.features is not None
        width, own = images.features.shape[1], more.features.shape[1]
        if own != width:
            raise InputError(
                f"The features {update.features!r}, which were added to the run, must have {width:,} dimensions, as "
                f"the others have, got {own:,}."
            )
        contents, once = np.unique(digests_of(more.features), return_index=True)
        new = np.zeros(len(more), dtype=bool)
        new[once[[content not in here for content in contents.tolist()]]] = True
        if new.any():
            parts.append(more.select(new))
            here |= {*contents.tolist()}
            rows |= {f"{update.features}: {file}": (len(used), file) for file in parts[-1].files}
            used.append(at)
    if not parts:
        return images, NOTHING_ADDED
    none = np.full(len(rows), -1)
    joined = replace(
        images,
        files=(*images.files, *rows),  # with their file: names may occur in several
        paths=(*images.paths, *(path for each in parts for path in each.paths)),
        features=np.concatenate([images.features, *(each.features for each in parts if each.features is not None)]),
        labels=np.concatenate([images.labels, none]),
        truth=np.concatenate([images.truth, none]),
        validation=np.concatenate([images.validation, none > 0]),
        columns=_followed(images, parts),
    )
    return joined, Additions(
        sources=tuple(facts.images[first + at] for at in used),
        updates=tuple(facts.updates[at] for at in used),
        rows=rows,
    )
