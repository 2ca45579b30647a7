"""What people decided about an earlier run in the same folder, carried over to a new one.

Images whose category a person has decided count as labelled; they are recognised by their content. Categories keep
their ids. A class is recognised by its name. A new category is an earlier one if the two share more than half of their
images, or a fifth if a person has named that one, which then counts as known. An image never returns to a category that
it was rejected from.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sortal.errors import InputError
from sortal.images.image_set import ImageSet, image_set
from sortal.images.review_states import SETTLED, ReviewState
from sortal.reviews.journal import archive_name
from sortal.reviews.loading import load_run
from sortal.reviews.rejections import keep_away
from sortal.runs.categories import free_names, ids_of, is_generated, positions
from sortal.runs.confidence import Features
from sortal.runs.overlaps import jaccard, match_by_overlap
from sortal.runs.run import DECISIONS, KNOWN, NEW, Category, CategoryKind, Run
from sortal.runs.storage import peek

SAME_OVERLAP = 0.5  # (Jaccard) above which a new category is one of the earlier run
NAMED_OVERLAP = 0.2  # the same, if people have named that one


def reviewed_run(place: Path, *, force: bool = False) -> Run | None:
    """Return the run in a folder if people have reviewed it, else None; a damaged run without a journal is ignored.

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
    return run if run.decisions or named or run.assignments.reviewed.any() or run.rejected else None


@dataclass(frozen=True, eq=False)
class EarlierReview:
    """The decisions about the earlier run, if there is one, for images given by their contents."""

    before: Run | None
    contents: tuple[str, ...]  # of the images that are sorted now

    @property
    def states(self) -> NDArray[np.int64]:
        """What people have said of each image (n,): its ReviewState."""
        if self.before is None:
            return np.zeros(len(self.contents), dtype=np.int64)
        a = self.before.assignments
        # Of copies, one that was settled counts.
        order = np.argsort(a.settled, kind="stable").tolist()
        known = {a.contents[row]: int(a.reviewed[row]) for row in order}
        return np.array([known.get(each, ReviewState.OPEN) for each in self.contents], dtype=np.int64)

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
            features=images.features,
            validation=images.validation,
            ignored=images.ignored,
            columns=images.columns,
        )
        return found, given

    def named(self, outlined: tuple[Category, ...], own: NDArray[np.int64]) -> tuple[tuple[Category, ...], list[str]]:
        """Give categories their earlier ids; also return lost names. `own` (n,) is the row of an image's category."""
        if self.before is None:
            return outlined, []
        earlier_of = {each.name: each for each in self.before.categories}
        found: dict[int, Category] = {}
        for row, each in enumerate(outlined):
            if each.kind == KNOWN and each.name in earlier_of:
                same = earlier_of[each.name]
                found[row] = replace(each, id=same.id, former=same.former)
        taken = {each.id for each in found.values()}
        for row, earlier in self._matched(self.before, outlined, own, taken).items():
            kind: CategoryKind = "new" if is_generated(earlier.name) else "known"
            found[row] = replace(outlined[row], id=earlier.id, name=earlier.name, kind=kind)
        fresh = self.before.facts.next_id
        used = {*earlier_of, *(each.name for each in outlined if each.kind == KNOWN)}  # a name means one category
        used |= {former for each in self.before.categories for former in each.former}
        names = iter(free_names([*used], len(outlined), after=self.before.facts.next_id))
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
        self, before: Run, outlined: tuple[Category, ...], own: NDArray[np.int64], taken: set[int]
    ) -> dict[int, Category]:
        """Match the new categories with those of the earlier run that are not taken, by the images they share."""
        where = dict(zip(before.assignments.contents, before.assignments.category_id.tolist(), strict=True))
        free = [each for each in before.categories if each.id not in taken]
        rows = [row for row, content in enumerate(self.contents) if content in where]
        earlier = np.array([where[self.contents[row]] for row in rows], dtype=np.int64)
        ids = [*(each.id for each in free), *taken]
        shares = jaccard(own[rows], positions(earlier, ids), (len(outlined), len(ids)))[:, : len(free)]
        least = [SAME_OVERLAP if is_generated(each.name) else NAMED_OVERLAP for each in free]
        is_new = np.array([each.kind == NEW for each in outlined], dtype=bool)
        found = match_by_overlap(shares, is_new[:, None] & (shares > np.array(least)))
        return {row: free[at] for row, at in found.items()}

    def kept_away(
        self, own: NDArray[np.int64], categories: tuple[Category, ...], x: Features, centres: Features
    ) -> NDArray[np.int64]:
        """Move images (n, d) out of categories, rows (n,) of the centres (k, d), that they were rejected from."""
        if self.before is None or not self.before.rejected:
            return own
        category, ids, open_ = ids_of(categories, own), [each.id for each in categories], ~np.isin(self.states, SETTLED)
        rejected = self.before.rejected
        moved = keep_away(category, x, self.contents, centres, ids, rejected, open_=open_, otherwise=category)
        return positions(moved, ids)
