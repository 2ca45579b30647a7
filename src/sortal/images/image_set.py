"""ImageSet: images, their labels, and their split into labelled, unlabelled and validation."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sortal.errors import InputError, listing
from sortal.images.class_names import in_order
from sortal.images.columns import NO_COLUMNS, Columns
from sortal.system.text import plural
from sortal.system.workers import PathOrPixels


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageSet:
    """Images in a fixed order, one row each, with their labels. It is immutable.

    Every image is in exactly one of three splits, given as masks: `labelled` (D_L of the paper), `unlabelled` (D_U)
    and `validation` (D_V: labelled, of known classes, not trained on).

    `files`: names as the user wrote them; below a folder, relative to it with "/".
    `paths`: paths to open; empty if the images are rows of an archive, "" for a feature vector without a picture.
    `pixels`: (n, height, width, 3), if the images are rows of an archive.
    `features`: (n, d), if feature vectors are sorted instead of images, which then are only looked at.
    `labels`: (n,) numbers of `classes`; −1 is unlabelled.
    `classes`: names of the known classes, those with a label.
    `truth`: (n,) numbers of `classes + new_classes`, −1 if unknown; for evaluation only.
    `new_classes`: names of classes that occur only in the truth.
    `validation`: (n,) mask.
    `ignored`: files in the folder without the extension of an image.
    `columns`: what else a table says of the images; a column `group` says which of them belong together.

    >>> images = sortal.read_images("photos")  # doctest: +SKIP
    >>> images.select(images.labelled).files  # doctest: +SKIP
    """

    files: tuple[str, ...]
    paths: tuple[str, ...]
    pixels: NDArray[np.uint8] | None = None
    features: NDArray[np.float32] | None = None
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    truth: NDArray[np.int64]
    new_classes: tuple[str, ...] = ()
    validation: NDArray[np.bool_]
    ignored: tuple[str, ...] = ()
    columns: Columns = NO_COLUMNS

    def __post_init__(self) -> None:
        for name in ("labels", "truth", "validation"):
            array = getattr(self, name).copy()
            array.flags.writeable = False
            object.__setattr__(self, name, array)
            assert array.shape == (len(self),), name
        for name in ("pixels", "features"):
            if (given := getattr(self, name)) is not None:
                array = given.view()  # not a copy: an archive may be large
                array.flags.writeable = False
                object.__setattr__(self, name, array)
                assert len(array) == len(self), name
        assert self.pixels is not None or len(self.paths) == len(self)
        assert not (self.validation & (self.labels < 0)).any()
        assert all(len(column.cells) == len(self) for column in self.columns.each)

    def __len__(self) -> int:
        return len(self.files)

    @property
    def labelled(self) -> NDArray[np.bool_]:
        return (self.labels >= 0) & ~self.validation

    @property
    def unlabelled(self) -> NDArray[np.bool_]:
        return self.labels < 0

    @cached_property
    def known(self) -> NDArray[np.int64]:
        """The numbers of the classes that have a labelled image, ascending."""
        return np.unique(self.labels[self.labelled])

    @cached_property
    def groups(self) -> NDArray[np.int64]:
        """The number (n,) of the group of each image; an image without one has a number of its own."""
        return self.columns.groups(len(self))

    def source(self, row: int) -> PathOrPixels:
        """Return what the decoder reads for image number `row`."""
        return self.paths[row] if self.pixels is None else self.pixels[row]

    def select(self, rows: NDArray[np.bool_]) -> "ImageSet":
        """Return the images of a mask, `rows`, in the same order. Classes keep their numbers, even without images."""
        rows = np.asarray(rows)
        if rows.dtype != np.bool_ or rows.shape != (len(self),):
            got = f"{rows.dtype} of shape {rows.shape}"
            raise InputError(f"rows must be a mask, one boolean for each of {plural(len(self), 'image')}, got {got}.")
        return replace(
            self,
            files=tuple(compress(self.files, rows)),
            paths=tuple(compress(self.paths, rows)),
            pixels=None if self.pixels is None else self.pixels[rows],
            features=None if self.features is None else self.features[rows],
            labels=self.labels[rows],
            truth=self.truth[rows],
            validation=self.validation[rows],
            columns=self.columns.take(np.flatnonzero(rows).tolist()),
        )

    def without_labels(self, rows: Sequence[int]) -> "ImageSet":
        """Return the set with images, by their numbers in `rows`, of which neither label nor truth is known."""
        labels, truth = self.labels.copy(), self.truth.copy()
        labels[[*rows]] = truth[[*rows]] = -1
        return replace(self, labels=labels, truth=truth)

    def hide_labels(self, *, old: int | Collection[str], fraction: float = 0.5, seed: int = 0) -> "ImageSet":
        """Turn a set whose truth is known into a benchmark: a `fraction` of the old classes' images keep a label.

        `old` names the old classes, or gives the number of classes, from the first, that are old. The draw is the
        paper's: uniform over the images of all old classes in their order, by NumPy's legacy generator and `seed`.
        Validation images of new classes are dropped.
        """
        chosen = self._old(old)
        if not 0 < fraction <= 1:
            raise InputError(f"The labelled fraction must be above 0 and at most 1, got {fraction}.")
        is_old = np.isin(self.truth, chosen)
        rows = np.flatnonzero(is_old & ~self.validation)
        kept = rows[_generator(seed).choice(len(rows), size=int(fraction * len(rows)), replace=False)]
        if bare := sorted(set(chosen) - set(self.truth[kept].tolist())):
            raise InputError(
                f"The labelled fraction must leave every old class a labelled image, got {fraction}: "
                f"{listing([self._names[i] for i in bare])} would have none. Choose a larger fraction."
            )
        labelled = self.validation.copy()
        labelled[kept] = True
        stay = is_old | ~self.validation
        rest = self.select(stay)
        new = sorted(set(rest.truth[rest.truth >= 0].tolist()) - set(chosen))
        number = np.full(len(self._names) + 1, -1)  # the last is that of an unknown truth
        number[[*chosen, *new]] = np.arange(len(chosen) + len(new))
        truth = number[rest.truth]
        classes, new_classes = (tuple(self._names[i] for i in numbers) for numbers in (chosen, new))
        labels = np.where(labelled[stay], truth, -1)
        return replace(rest, labels=labels, truth=truth, classes=classes, new_classes=new_classes)

    def hold_out(self, *, fraction: float, seed: int = 0) -> "ImageSet":
        """Move a `fraction` of the labelled images of each class, rounded down and drawn by `seed`, to validation."""
        if not 0 < fraction < 1:
            raise InputError(f"fraction must be above 0 and below 1, got {fraction}.")
        generator = _generator(seed)
        validation = self.validation.copy()
        by_class = np.flatnonzero(self.labelled)[np.argsort(self.labels[self.labelled], kind="stable")]
        starts = np.searchsorted(self.labels[by_class], np.arange(1, len(self.classes)))
        for rows in np.split(by_class, starts):
            validation[generator.choice(rows, size=int(fraction * len(rows)), replace=False)] = True
        if validation.sum() == self.validation.sum():
            raise InputError(f"fraction must hold out at least one image, got {fraction}: every class is too small.")
        return replace(self, validation=validation)

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame with file_name, label, truth and split, then other columns, one row per image."""
        import pandas

        names = (*self._names, None)
        labels, truth = ([names[i] for i in numbers] for numbers in (self.labels, self.truth))
        split = np.where(self.validation, "validation", np.where(self.unlabelled, "unlabelled", "labelled"))
        columns = {"file_name": list(self.files), "label": labels, "truth": truth}
        # Not the string type of pandas, which refuses file names that are not UTF-8.
        frame = pandas.DataFrame(columns, dtype=object).assign(split=split)
        own = {column.name: pandas.Series(column.array()) for column in self.columns.each}
        return pandas.concat([frame, pandas.DataFrame(own, index=frame.index)], axis=1)

    def __repr__(self) -> str:
        return (
            f"<ImageSet: {plural(len(self), 'image')}, {self.labelled.sum():,} labelled in "
            f"{plural(len(self.classes), 'class', 'classes')}, "
            f"{self.unlabelled.sum():,} unlabelled, {self.validation.sum():,} for validation>"
        )

    def _repr_html_(self) -> str:
        counts = np.bincount(self.labels[self.labels >= 0], minlength=len(self.classes))
        rows = [(f"<i>{escape(repr(self)[1:-1])}</i>", ""), *zip(map(escape, self.classes), counts, strict=True)]
        html = f"<table>{''.join(f'<tr><td>{name}</td><td>{count}</td></tr>' for name, count in rows)}</table>"
        return html.encode("utf-8", "backslashreplace").decode("utf-8")  # folder names need not be UTF-8

    @property
    def _names(self) -> tuple[str, ...]:
        return self.classes + self.new_classes

    def _old(self, old: int | Collection[str]) -> list[int]:
        """Return the numbers of the old classes."""
        there = np.unique(self.truth[~self.validation & (self.truth >= 0)]).tolist()
        if isinstance(old, int | np.integer):
            if not 0 < old <= len(there):
                raise InputError(f"old must be from 1 to {len(there)} (the number of classes with images), got {old}.")
            return [int(i) for i in there[: int(old)]]
        if isinstance(old, str) or len(old) == 0:
            raise InputError(f"old must be a number of classes or a non-empty list of class names, got {old!r}.")
        number = {name: i for i, name in enumerate(self._names)}
        if unknown := [name for name in old if name not in number]:
            known = listing(self._names)
            raise InputError(f"old must name classes of the set, which are {known}; got {listing(unknown)}.")
        if bare := [name for name in old if number[name] not in there]:
            raise InputError(f"old must name classes with images; these have none: {listing(bare)}.")
        return sorted({number[name] for name in old})


def image_set(
    files: Sequence[str],
    *,
    labels: Sequence[str | None],
    truth: Sequence[str | None] | None = None,
    paths: Sequence[str] = (),
    pixels: NDArray[np.uint8] | None = None,
    features: NDArray[np.float32] | None = None,
    validation: NDArray[np.bool_] | None = None,
    order: Sequence[str] | None = None,
    ignored: Sequence[str] = (),
    columns: Columns = NO_COLUMNS,
) -> ImageSet:
    """Create an ImageSet from class names; `order` overrides the order of classes given by `in_order`.

    The truth of a labelled image defaults to its label.
    """
    known_truth = labels if truth is None else [t if t is not None else y for t, y in zip(truth, labels, strict=True)]
    if wrong := [file for file, t, y in zip(files, known_truth, labels, strict=True) if y is not None and t != y]:
        raise InputError(
            f"The truth of a labelled image must be its label, unlike in {plural(len(wrong), 'image')}: "
            f"{listing(wrong)}. Correct the truth, or leave it empty."
        )
    known = {name for name in labels if name is not None}
    others = {name for name in known_truth if name is not None} - known
    rank = in_order if order is None else lambda names: [name for name in order if name in names]
    # Ordered separately, so that classes that occur only in the truth do not renumber the known ones.
    classes, new_classes = tuple(rank(known)), tuple(rank(others))
    number: dict[str | None, int] = {name: i for i, name in enumerate(classes + new_classes)}
    number[None] = -1
    return ImageSet(
        files=tuple(files),
        paths=tuple(paths),
        pixels=pixels,
        features=features,
        labels=np.array([number[name] for name in labels], dtype=np.int64),
        classes=classes,
        truth=np.array([number[name] for name in known_truth], dtype=np.int64),
        new_classes=new_classes,
        validation=np.zeros(len(files), dtype=bool) if validation is None else validation,
        ignored=tuple(ignored),
        columns=columns,
    )


def _generator(seed: int) -> np.random.RandomState:
    if not 0 <= seed < 2**32:
        raise InputError(f"seed must be between 0 and 2**32 - 1, got {seed}.")
    return np.random.RandomState(seed)
