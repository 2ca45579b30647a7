"""ImageSet: which images there are, which of them are labelled, and how."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sortal.errors import InputError, listing

if TYPE_CHECKING:
    import pandas

Source: TypeAlias = "str | NDArray[np.uint8]"  # a path, or the pixels themselves, (height, width, 3)


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageSet:
    """Images in a fixed order, one row each, and what is known of them. Nothing in it can be changed.

    Every image is in exactly one of three splits, given as masks: `labelled` (D_L of the paper), `unlabelled` (D_U)
    and `validation` (D_V: labelled, of known classes, kept out of learning).
    """

    files: tuple[str, ...]  # names as the user wrote them; below a folder, relative to it with "/"
    paths: tuple[str, ...]  # where each file opens; empty where the images are rows of an archive
    pixels: NDArray[np.uint8] | None = None  # (n, height, width, 3), where the images are rows of an archive
    labels: NDArray[np.int64]  # (n,) numbers of `classes`; −1 is unlabelled
    classes: tuple[str, ...]  # the known classes: those with a label
    truth: NDArray[np.int64]  # (n,) numbers of `classes + new_classes`, −1 where not known; for evaluation only
    new_classes: tuple[str, ...] = ()  # classes that only the truth knows; for evaluation only
    validation: NDArray[np.bool_]  # (n,)
    ignored: tuple[str, ...] = ()  # files beside the images that are none by their extension

    def __post_init__(self) -> None:
        for name in ("labels", "truth", "validation"):
            array = getattr(self, name).copy()
            array.flags.writeable = False
            object.__setattr__(self, name, array)
            assert array.shape == (len(self),), name
        if self.pixels is not None:
            pixels = self.pixels.view()  # an archive may be large, so not a copy
            pixels.flags.writeable = False
            object.__setattr__(self, "pixels", pixels)
        assert len(self.paths) == len(self) if self.pixels is None else len(self.pixels) == len(self)
        assert not (self.validation & (self.labels < 0)).any()

    def __len__(self) -> int:
        return len(self.files)

    @property
    def labelled(self) -> NDArray[np.bool_]:
        return (self.labels >= 0) & ~self.validation

    @property
    def unlabelled(self) -> NDArray[np.bool_]:
        return self.labels < 0

    def source(self, row: int) -> Source:
        """What the decoder reads for a row."""
        return self.paths[row] if self.pixels is None else self.pixels[row]

    def select(self, rows: NDArray[np.bool_]) -> "ImageSet":
        """The images of a mask, in the same order. Classes stay and keep their numbers, also without an image left."""
        rows = np.asarray(rows)
        if rows.dtype != np.bool_ or rows.shape != (len(self),):
            raise InputError(
                f"rows must be a mask, one boolean for each of {len(self):,} images, "
                f"got {rows.dtype} of shape {rows.shape}."
            )
        picked = np.flatnonzero(rows)
        return replace(
            self,
            files=tuple(self.files[i] for i in picked),
            paths=tuple(self.paths[i] for i in picked) if self.pixels is None else (),
            pixels=None if self.pixels is None else self.pixels[picked],
            labels=self.labels[picked],
            truth=self.truth[picked],
            validation=self.validation[picked],
        )

    def hide_labels(self, *, old: int | Collection[str], fraction: float = 0.5, seed: int = 0) -> "ImageSet":
        """A benchmark's split of a set whose truth is known: a fraction of the old classes' images keep a label.

        `old` names the old classes, or says how many of the first are. The draw is the paper's: uniform over the images
        of all old classes together in their order, by NumPy's legacy generator. The validation images stay
        those of old classes; validation images of new classes are left out.
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
        labels = np.full(len(self), -1)
        labels[kept] = self.truth[kept]
        labels[self.validation] = self.truth[self.validation]
        stay = is_old | ~self.validation
        return self.select(stay)._relabelled(labels[stay])

    def hold_out(self, *, fraction: float, seed: int = 0) -> "ImageSet":
        """Move a fraction of the labelled images of each class to validation, rounded down, so that each keeps some."""
        if not 0 < fraction < 1:
            raise InputError(f"fraction must be above 0 and below 1, got {fraction}.")
        generator = _generator(seed)
        validation = self.validation.copy()
        by_class = np.flatnonzero(self.labelled)[np.argsort(self.labels[self.labelled], kind="stable")]
        ends = np.searchsorted(self.labels[by_class], np.arange(len(self.classes) + 1))
        for start, end in pairwise(ends):
            rows = by_class[start:end]
            validation[generator.choice(rows, size=int(fraction * len(rows)), replace=False)] = True
        if validation.sum() == self.validation.sum():
            raise InputError(f"fraction must hold out at least one image, got {fraction}: every class is too small.")
        return replace(self, validation=validation)

    def to_pandas(self) -> "pandas.DataFrame":
        """One row per image: file_name, label, truth and split; missing where not known."""
        import pandas

        names = (*self._names, None)
        # Not the type for text that pandas would choose: it refuses file names that are not UTF-8.
        columns = {
            "file_name": list(self.files),
            "label": [names[i] for i in self.labels],
            "truth": [names[i] for i in self.truth],
        }
        split = np.where(self.validation, "validation", np.where(self.unlabelled, "unlabelled", "labelled"))
        return pandas.DataFrame(columns, dtype=object).assign(split=split)

    def __repr__(self) -> str:
        return (
            f"<ImageSet: {len(self):,} images, {self.labelled.sum():,} labelled in {len(self.classes):,} classes, "
            f"{self.unlabelled.sum():,} unlabelled, {self.validation.sum():,} for validation>"
        )

    def _repr_html_(self) -> str:
        counts = np.bincount(self.labels[self.labels >= 0], minlength=len(self.classes))
        rows = [(f"<i>{escape(repr(self)[1:-1])}</i>", ""), *zip(map(escape, self.classes), counts, strict=True)]
        html = f"<table>{''.join(f'<tr><td>{name}</td><td>{count}</td></tr>' for name, count in rows)}</table>"
        return html.encode("utf-8", "backslashreplace").decode("utf-8")  # folder names may be no UTF-8

    @property
    def _names(self) -> tuple[str, ...]:
        return self.classes + self.new_classes

    def _old(self, old: int | Collection[str]) -> list[int]:
        """The numbers of old classes among all classes."""
        there = np.unique(self.truth[~self.validation & (self.truth >= 0)]).tolist()
        if isinstance(old, int | np.integer):
            if not 0 < old <= len(there):
                raise InputError(f"old must be from 1 to {len(there)} (the classes there are), got {old}.")
            return [int(i) for i in there[: int(old)]]
        if isinstance(old, str) or len(old) == 0:
            raise InputError(f"old must name at least one class, in a list, or be a number of classes, got {old!r}.")
        number = {name: i for i, name in enumerate(self._names)}
        if unknown := [name for name in old if name not in number]:
            raise InputError(
                f"old must name classes of the set; {listing(unknown)} is none. It has: {listing(self._names)}."
            )
        if bare := [name for name in old if number[name] not in there]:
            raise InputError(f"old must name classes that have images; {listing(bare)} has none.")
        return sorted({number[name] for name in old})

    def _relabelled(self, labels: NDArray[np.int64]) -> "ImageSet":
        """The same images under other labels (numbers of `_names`), with the classes these labels make known."""
        names = (*self._names, None)
        return image_set(
            self.files,
            paths=self.paths,
            pixels=self.pixels,
            labels=[names[i] for i in labels],
            truth=[names[i] for i in self.truth],
            validation=self.validation,
            order=self._names,
            ignored=self.ignored,
        )


def image_set(
    files: Sequence[str],
    *,
    labels: Sequence[str | None],
    truth: Sequence[str | None] | None = None,
    paths: Sequence[str] = (),
    pixels: NDArray[np.uint8] | None = None,
    validation: NDArray[np.bool_] | None = None,
    order: Sequence[str] | None = None,
    ignored: Sequence[str] = (),
) -> ImageSet:
    """An ImageSet from names of classes; `order` is that of the classes where it is not the one of `in_order`.

    Where no truth is given for a labelled image, its label is the truth.
    """
    known = {name for name in labels if name is not None}
    told = labels if truth is None else [t if t is not None else y for t, y in zip(truth, labels, strict=True)]
    wrong = [file for file, t, y in zip(files, told, labels, strict=True) if y is not None and t != y]
    if wrong:
        raise InputError(
            f"A labelled image must have its label as truth; {len(wrong):,} have another: {listing(wrong)}. "
            "Correct them, or leave their truth empty."
        )
    everything = known | {name for name in told if name is not None}
    # Each in its own order, so that what only the truth knows does not renumber the known classes.
    rank = in_order if order is None else lambda names: [name for name in order if name in names]
    classes, new_classes = tuple(rank(known)), tuple(rank(everything - known))
    number: dict[str | None, int] = {name: i for i, name in enumerate(classes + new_classes)}
    number[None] = -1
    return ImageSet(
        files=tuple(files),
        paths=tuple(paths),
        pixels=pixels,
        labels=np.array([number[name] for name in labels], dtype=np.int64),
        classes=classes,
        truth=np.array([number[name] for name in told], dtype=np.int64),
        new_classes=new_classes,
        validation=np.zeros(len(files), dtype=bool) if validation is None else validation,
        ignored=tuple(ignored),
    )


def in_order(names: Iterable[str]) -> list[str]:
    """Names of classes in their order: by code point, or by value where every one is a whole number in digits."""
    names = list(names)
    return sorted(names, key=_by_value) if all(map(_is_number, names)) else sorted(names)


def _by_value(digits: str) -> tuple[int, str, str]:
    """Not int(), which refuses more than 4,300 digits."""
    value = digits.lstrip("0")
    return len(value), value, digits


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit()


def _generator(seed: int) -> np.random.RandomState:
    if not 0 <= seed < 2**32:
        raise InputError(f"seed must be between 0 and 2**32 - 1, got {seed}.")
    return np.random.RandomState(seed)
