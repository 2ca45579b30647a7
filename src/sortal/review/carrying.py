"""What people decided about an earlier run in the same folder, carried over to a new one.

Images whose category a person has decided count as labelled, by their content. Categories keep their ids: a class by
its name, a new one if it shares more than half of its images with one that was there, or a fifth if that has been
named; one with a name of its own is known from now on. An image never returns to a category that it was rejected from.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sortal.errors import InputError
from sortal.images.image_set import ImageSet, image_set
from sortal.metrics import jaccard
from sortal.review.journal import archive_name
from sortal.review.loading import load_run
from sortal.runs.categories import free_names, is_generated
from sortal.runs.confidence import Features
from sortal.runs.run import CONFIRMED, DECISIONS, KNOWN, MOVED, NEW, OPEN, UNSEEN, Category, Kind, Run
from sortal.runs.storage import peek

SAME, NAMED = 0.5, 0.2  # overlap (Jaccard) above which a new category is one of the earlier run, or one with a name


def reviewed_run(place: Path, *, force: bool = False) -> Run | None:
    """Return the run in a folder if people have reviewed it; a damaged one that has no journal counts as none.

    With `force`, the journal of a damaged run is put aside.
    """
    if peek(place) is None:
        return None
    try:
        run = load_run(place)
    except InputError:
        if (place / DECISIONS).exists():
            if not force:
                raise
            (place / DECISIONS).rename(place / archive_name(place))
        return None
    named = any(each.former or (not each.labelled and not is_generated(each.name)) for each in run.categories)
    return run if run.decisions or named or (run.assignments.reviewed != OPEN).any() or run.rejected else None


@dataclass(frozen=True, eq=False)
class Review:
    """The decisions about an earlier run, for images given by their contents; without such a run there are none."""

    before: Run | None
    contents: tuple[str, ...]  # of the images that are sorted now

    @property
    def states(self) -> NDArray[np.str_]:
        """What people have said of each image (n,)."""
        if self.before is None:
            return np.full(len(self.contents), OPEN)
        a = self.before.assignments
        # Of copies, one that was settled counts.
        order = np.argsort(a.settled, kind="stable").tolist()
        known = {a.contents[row]: str(a.reviewed[row]) for row in order}
        return np.array([known.get(each, OPEN) for each in self.contents], dtype=np.str_)

    def labelled(self, images: ImageSet) -> tuple[ImageSet, NDArray[np.bool_]]:
        """Label the images whose category was decided, whatever label they had; also return their mask (n,)."""
        given = np.zeros(len(images), dtype=bool)
        if self.before is None:
            return images, given
        a, names = self.before.assignments, self.before.names
        rows = np.flatnonzero(a.settled).tolist()
        decided = {a.contents[row]: names[int(a.category_id[row])] for row in rows}
        given = np.array([each in decided for each in self.contents], dtype=bool)
        renamed = {former: each.name for each in self.before.categories for former in each.former}
        classes = (*(renamed.get(each, each) for each in (*images.classes, *images.new_classes)), None)
        if not given.any() and not renamed:
            return images, given
        labels, truth = ([classes[i] for i in numbers.tolist()] for numbers in (images.labels, images.truth))
        for row in np.flatnonzero(given).tolist():
            labels[row] = truth[row] = decided[self.contents[row]]
        found = image_set(
            images.files,
            labels=labels,
            truth=truth,
            paths=images.paths,
            pixels=images.pixels,
            validation=images.validation,
            ignored=images.ignored,
        )
        return found, given

    def named(self, outlined: tuple[Category, ...], own: NDArray[np.int64]) -> tuple[tuple[Category, ...], list[str]]:
        """Give categories, of which the rows (n,) are `own`, the ids they had; also return names that are lost."""
        if self.before is None:
            return outlined, []
        earlier_of = {each.name: each for each in self.before.categories}
        found: dict[int, Category] = {}
        for row, each in enumerate(outlined):
            if each.kind == KNOWN and each.name in earlier_of:
                same = earlier_of[each.name]
                found[row] = replace(each, id=same.id, former=same.former)
        taken = {each.id for each in found.values()}
        for row, earlier in self._matched(outlined, own, taken).items():
            kind: Kind = "new" if is_generated(earlier.name) else "known"
            found[row] = replace(outlined[row], id=earlier.id, name=earlier.name, kind=kind)
        fresh = self.before.facts.next_id
        used = {*earlier_of, *(each.name for each in outlined if each.kind == KNOWN)}  # a name means one category
        used |= {former for each in self.before.categories for former in each.former}
        names = iter(free_names([*used], len(outlined)))
        for row, each in enumerate(outlined):
            if row not in found:
                found[row] = replace(each, id=fresh, name=each.name if each.kind == KNOWN else next(names))
                fresh += 1
        lost = [
            each.name
            for each in self.before.categories
            if not is_generated(each.name) and each.name not in {one.name for one in found.values()}
        ]
        return tuple(found[row] for row in range(len(outlined))), lost

    def _matched(
        self, outlined: tuple[Category, ...], own: NDArray[np.int64], taken: set[int]
    ) -> Mapping[int, Category]:
        """Match the new categories with those of the earlier run that are not taken, by the images they share."""
        assert self.before is not None
        a = self.before.assignments
        where = dict(zip(a.contents, a.category_id.tolist(), strict=True))
        free = [each for each in self.before.categories if each.id not in taken]
        number = {each.id: at for at, each in enumerate(free)}
        rows = [row for row, content in enumerate(self.contents) if content in where]
        others = np.array([number.get(where[self.contents[row]], len(free)) for row in rows], dtype=np.int64)
        shared = jaccard(own[rows], others, (len(outlined), len(free) + 1))[:, :-1]
        found: dict[int, Category] = {}
        for row, at in zip(*np.unravel_index(np.argsort(-shared, axis=None), shared.shape), strict=True):
            least = SAME if is_generated(free[at].name) else NAMED
            if outlined[row].kind == NEW and shared[row, at] > least and free[at] not in found.values():
                found.setdefault(int(row), free[at])
        return found

    def kept_away(
        self, own: NDArray[np.int64], categories: tuple[Category, ...], x: Features, centres: Features
    ) -> NDArray[np.int64]:
        """Move images (n, d) out of categories, rows (n,) of the centres (k, d), that they were rejected from."""
        if self.before is None or not self.before.rejected:
            return own
        barred: dict[str, set[int]] = {}
        for content, category in self.before.rejected:
            barred.setdefault(content, set()).add(category)
        moved, ids = own.copy(), np.array([each.id for each in categories])
        settled = np.isin(self.states, (CONFIRMED, MOVED, UNSEEN))
        for row, content in enumerate(self.contents):
            if not settled[row] and ids[own[row]] in barred.get(content, ()):
                distance = np.linalg.norm(centres - x[row], axis=1)
                distance[np.isin(ids, [*barred[content]])] = np.inf
                if np.isfinite(distance).any():
                    moved[row] = int(distance.argmin())
        return moved
