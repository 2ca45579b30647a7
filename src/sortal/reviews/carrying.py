"""What people decided about an earlier run in the same folder, carried over to a new one.

Images whose category a person has decided count as labelled; they are recognised by their content. A category that a
person has named, merged, split or kept is a statement about all its images: of those that nobody has looked at, half of
the sure ones count as labelled while clusters are found, and each stays in its category unless it is twice as sure to
be in another one now. Categories keep their ids. A class is recognised by its name. Any other new category is an
earlier one if the two share more than half of their images, or a fifth if a person has named that one, which then
counts as known. An image never returns to a category that it was rejected from.
"""

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sortal.errors import InputError, quoted
from sortal.images.class_names import in_order
from sortal.images.image_set import ImageSet
from sortal.images.review_states import SETTLED, ReviewState
from sortal.reviews.journal import archive_name
from sortal.reviews.loading import load_run
from sortal.reviews.rejections import keep_away
from sortal.runs.categories import free_names, ids_of, is_generated, jaccard, match_by_overlap, positions, rows_by
from sortal.runs.confidence import Confidence, Features, Ints, place
from sortal.runs.run import DECISIONS, DOUBTFUL_STATUSES, KNOWN, LABELLED, NEW, Category, CategoryKind, Run, sizes_of
from sortal.runs.storage import peek

SHOWN_TARGETS = 3  # categories that are named among those that images of one have gone to
MADE_BY_PEOPLE = 2.0  # times as sure as it was must an image be elsewhere to leave a category that people made
ENOUGH_DECIDED = 1 / 3  # share of the images of a category whose labels say enough about the others
FEWEST_CARRIED = 8  # images at least that stand for a category that people made
SAME_OVERLAP = 0.5  # (Jaccard) above which a new category is one of the earlier run
NAMED_OVERLAP = 0.2  # the same, if people have named that one


def is_made(category: Category) -> bool:
    """Tell whether a person has named, merged, split or kept a category; earlier versions tell by its name alone."""
    return category.made or (not category.labelled and not is_generated(category.name))


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
    made = any(each.former or is_made(each) for each in run.categories)
    if not (run.decisions or made or run.assignments.reviewed.any() or run.rejected):
        return None
    # How sure an image was before categories were merged or split counts, too: the centre of the result may be far.
    raw = load_run(place, raw=True).assignments.confidence if run.decisions else run.assignments.confidence
    a = run.assignments
    return replace(run, assignments=replace(a, confidence=np.maximum(a.confidence, raw)))


@dataclass(frozen=True, eq=False)
class EarlierReview:
    """The decisions about the earlier run, if there is one, for images given by their contents."""

    before: Run | None
    contents: tuple[str, ...]  # of the images that are sorted now

    @property
    def states(self) -> Ints:
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
        made = {each.name for each in self.before.categories if is_made(each)}
        if not given.any() and not renamed and not made:
            return images, given
        labels, truth = ([classes[i] for i in numbers.tolist()] for numbers in (images.labels, images.truth))
        for row in np.flatnonzero(given).tolist():
            labels[row] = truth[row] = decided[self.contents[row]]
        known = in_order({name for name in labels if name is not None} | made)
        others = in_order({name for name in truth if name is not None} - {*known})
        number: dict[str | None, int] = {name: at for at, name in enumerate((*known, *others))} | {None: -1}
        found = replace(
            images,
            labels=np.array([number[name] for name in labels], dtype=np.int64),
            classes=tuple(known),
            truth=np.array([number[name] for name in truth], dtype=np.int64),
            new_classes=tuple(others),
        )
        return found, given

    def implied(self, images: ImageSet) -> Ints:
        """Return labels (n,) that follow from categories that people made, −1 without one; `images` are `labelled`.

        In the order of their confidence, every second sure image that nobody has decided on has one: if all had, only
        doubtful images would be unlabelled.
        """
        found = np.full(len(images), -1)
        if self.before is None:
            return found
        a, number = self.before.assignments, {name: at for at, name in enumerate(images.classes)}
        row_of = {content: row for row, content in enumerate(self.contents)}
        free = ~a.settled & (a.status != LABELLED) & (a.reviewed != ReviewState.REJECTED)
        sure = ~np.isin(a.status, DOUBTFUL_STATUSES)
        for each in self._stated:
            rows = np.flatnonzero(free & (a.category_id == each.id))
            rows = rows[np.argsort(-a.confidence[rows], kind="stable")]
            chosen = rows[sure[rows]][::2]
            rows = chosen if len(chosen) >= FEWEST_CARRIED else rows[:FEWEST_CARRIED]
            contents = [a.contents[row] for row in rows.tolist()]
            there = [row_of[content] for content in contents if content in row_of]
            found[[row for row in there if images.labels[row] < 0]] = number[each.name]
        return found

    @cached_property
    def _stated(self) -> list[Category]:
        """The categories that people made, without those where labels and decisions on single images say enough.

        What was left open there is what people were not sure of.
        """
        if self.before is None:
            return []
        a = self.before.assignments
        decided = sizes_of(a.category_id[a.settled | (a.status == LABELLED)])
        made = filter(is_made, self.before.categories)
        return [each for each in made if decided.get(each.id, 0) < ENOUGH_DECIDED * each.size]

    def named(self, outlined: tuple[Category, ...], own: Ints) -> tuple[tuple[Category, ...], list[str]]:
        """Give categories their earlier ids; also return lost names. `own` (n,) is the row of an image's category."""
        if self.before is None:
            return outlined, []
        earlier_of, a = {each.name: each for each in self.before.categories}, self.before.assignments
        decided = {self.before.names[each] for each in {*a.category_id[a.settled].tolist()}}
        found: dict[int, Category] = {}
        for row, each in enumerate(outlined):
            if each.kind == KNOWN and each.name in earlier_of:
                same = earlier_of[each.name]
                kind: CategoryKind = "new" if is_generated(each.name) and each.name not in decided else "known"
                found[row] = replace(each, id=same.id, former=same.former, kind=kind, made=is_made(same))
        taken = {each.id for each in found.values()}
        for row, earlier in self._matched(self.before, outlined, own, taken).items():
            kind = "new" if is_generated(earlier.name) else "known"
            found[row] = replace(outlined[row], id=earlier.id, name=earlier.name, kind=kind, made=is_made(earlier))
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
        left = {each.id for each in found.values()}
        kept = {each.id: tuple(other for other in each.kept_apart if other in left) for each in self.before.categories}
        categories = (found[row] for row in range(len(outlined)))
        return tuple(replace(each, kept_apart=kept.get(each.id, ())) for each in categories), lost

    def _matched(self, before: Run, outlined: tuple[Category, ...], own: Ints, taken: set[int]) -> dict[int, Category]:
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

    def weighed(
        self,
        own: Ints,
        free: NDArray[np.bool_],
        categories: tuple[Category, ...],
        x: Features,
        centres: Features,
        confidence: Confidence,
        head: Features | None,
    ) -> Ints:
        """Return the rows of centres (k, d) that images (n, d) belong to, given those (n,) that were found now.

        One that is `free` (n,), having no label, and was in a category that people made leaves it only for one where it
        is twice as sure to belong as it was there.
        """
        if self.before is None:
            return own
        a, ids = self.before.assignments, [each.id for each in categories]
        there = {each.id for each in self.before.categories if is_made(each)} & {*ids}
        open_ = np.isin(a.category_id, [*there]) & ~a.settled & (a.reviewed != ReviewState.REJECTED)
        sure = {
            a.contents[row]: (int(a.category_id[row]), float(a.confidence[row]))
            for row in np.flatnonzero(open_).tolist()
        }
        rows = np.array([row for row, content in enumerate(self.contents) if free[row] and content in sure], dtype=int)
        then, before = (np.array([sure[self.contents[row]][at] for row in rows.tolist()]) for at in (0, 1))
        now = confidence.of(place(x[rows], centres, confidence.temperature, row=own[rows], head=head))
        stays = MADE_BY_PEOPLE * before >= now
        found = own.copy()
        found[rows[stays]] = positions(then[stays], ids)
        return found

    @property
    def complete(self) -> bool:
        """Whether people have made every new category of the earlier run, or decided on some image of it."""
        if self.before is None:
            return False
        a, new = self.before.assignments, [each for each in self.before.categories if each.kind == NEW and each.size]
        decided = {*a.category_id[a.settled].tolist()}
        return bool(new) and all(is_made(each) or each.id in decided for each in new)

    def contradicted(self, run: Run) -> list[str]:
        """Say how many images, which nobody has decided on, have left each category that people made, and for where."""
        if self.before is None:
            return []
        a, found = self.before.assignments, []
        now = dict(zip(self.contents, run.assignments.category_id.tolist(), strict=True))
        rows_of = rows_by(np.where(a.settled, -1, a.category_id))
        for each in filter(is_made, self.before.categories):
            contents = {a.contents[row] for row in rows_of.get(each.id, [])}
            left = Counter(now[one] for one in contents if one in now and now[one] != each.id)
            if left:
                to = ", ".join(f"{count:,} in {quoted(run.names[at])}" for at, count in left.most_common(SHOWN_TARGETS))
                more = ", …" if len(left) > SHOWN_TARGETS else ""
                found.append(f"{left.total():,} of {len(rows_of[each.id]):,} of {quoted(each.name)} ({to}{more})")
        return found

    def kept_away(self, own: Ints, categories: tuple[Category, ...], x: Features, centres: Features) -> Ints:
        """Move images (n, d) out of categories, rows (n,) of the centres (k, d), that they were rejected from."""
        if self.before is None or not self.before.rejected:
            return own
        category, ids, open_ = ids_of(categories, own), [each.id for each in categories], ~np.isin(self.states, SETTLED)
        rejected = self.before.rejected
        moved = keep_away(category, x, self.contents, centres, ids, rejected, open_=open_, otherwise=category)
        return positions(moved, ids)
