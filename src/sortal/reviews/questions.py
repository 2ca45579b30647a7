"""What to ask next in a review: questions that settle the most images per second of a person's time come first.

Times are those of the keystroke-level model (Card, Moran and Newell 1980) and of looking at a thumbnail.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sortal.images.review_states import ReviewState
from sortal.reviews import growing
from sortal.reviews.actions import Create, Leave, Merge, Move
from sortal.reviews.advising import Advisor
from sortal.reviews.audit import due
from sortal.reviews.growing import PAGE_IMAGES, SHOWN_FIRST, Ranking
from sortal.reviews.history import Review
from sortal.reviews.journal import run_key
from sortal.reviews.likeness import Likeness
from sortal.reviews.state import ReviewedCategory
from sortal.runs.categories import (
    SMALLEST_CANDIDATE,
    candidate_rows,
    is_generated,
    nearest_first,
    one_of_each,
    rows_by,
)
from sortal.runs.confidence import Floats, Ints
from sortal.runs.run import KNOWN, NEW, NOWHERE, Run, sizes_of

LOOK, KEY, CLICK, POINT, HAND, DECIDE = 0.2, 0.28, 0.2, 1.1, 0.4, 1.35  # seconds
ANSWER = DECIDE + KEY
NAMING = DECIDE + 9 * KEY  # typing a name
MARKING = POINT + CLICK
BESIDE = 8  # images of each category, or part, that are shown beside the other
OF_SQUARES = 0.3  # share of the mean squared distance that stands for the temperature of distances
# Likelihoods from which a merge, or a split, is proposed: above, half or more were right (benchmarks/archive).
MERGE_LIKELY, SPLIT_LIKELY = 0.7, 0.5
FEW_LEFT = 0.1  # share of a named category that is open at most, where nobody is asked whether it is another one
EXAMINED = 60  # categories that are examined for a split: the least sure
SCREEN = 40  # images of an audit, or of a page of a candidate for a new category
MOST_RANKED = 1000  # images of a candidate that can be shown
OFFERED = 20  # pairs that are offered at once, and images one by one
RIVALS = 20  # categories that two parts are compared among
LAST = 0.3  # worth of an audit whose screen is not full
TEACHES = 0.8  # further images that are right when the run is sorted again, for each drawn at random and labelled

QuestionKind = Literal[
    "grow", "merge", "split", "audit", "page", "image", "label", "other", "candidate", "disputed", "name", "union"
]


@dataclass(frozen=True, kw_only=True)
class Question:
    """What to ask, and about which images; answered on one screen."""

    kind: QuestionKind
    categories: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...] = ()  # images of each category, or part
    images: int  # that the answer is about
    likely: float | None = None  # that two are one class, or that one is two
    worth: float = 0.0  # images settled per second
    by: tuple[str, ...] = ()  # who decided, and who contradicts
    name: str = ""  # of a new category that is wanted


@dataclass(eq=False)
class Guide:
    """Finds questions about one run; calls must not overlap."""

    run: Run
    advisor: Advisor | None = None
    lost: NDArray[np.int8] | None = None  # (n,) not 0 where a file is gone or has changed, which nobody is asked about
    _units: Ints = field(init=False)  # (n,) the group of each image, of which an audit shows one
    _later: list[Ints] = field(init=False)  # rows of each candidate for a new category
    _likeness: Likeness | None = None
    # The last proposals and findings, with digests of what they are about.
    _parts: dict[tuple[int, int], tuple[bytes, list[Ints]]] = field(default_factory=dict)
    _mixed: dict[int, tuple[bytes, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Of a site, another image tells something else.
        self._units = self.run.assignments.together(groups=self.run.facts.groups_hold != "several").of
        self._later = candidate_rows(self.run)

    def questions(self, review: Review, sure: Floats) -> list[Question]:
        """Return all questions, the most worthwhile first."""
        free = self._free(review)
        found = [*self._growing(review, sure, free), *self._pages(review, sure, free)]
        best = max((each.worth for each in found), default=1.0)
        confirmed = {each.categories: each.worth for each in found}
        # What looks mixed is asked about before it can be confirmed.
        splits = [
            replace(each, worth=max(each.worth, confirmed.get(each.categories, 0.0)))
            for each in self._splits(review, sure, free)
        ]
        found = [*self._merges(review, free, best), *splits, *found, *self._audits(review)]
        found += [*self._labels(review), *self._others(review), *self._candidates(review)]
        return sorted(found, key=lambda each: -each.worth)

    def likely(self, review: Review, sure: Floats, *, among: int) -> tuple[list[Question], list[Question]]:
        """Return the most likely merges and splits, the most likely first, even if none is likely.

        Only the largest categories are compared, and only new ones are split.
        """
        free = self._free(review)
        largest = sorted(free, key=lambda each: -len(review.members(each)))[:among]
        new = {each: free[each] for each in largest if review.categories[each].kind == NEW}
        merges = self._merges(review, {each: free[each] for each in sorted(largest)}, 1.0, least=0.0)
        splits = self._splits(review, sure, new, least=0.0)
        return merges, sorted(splits, key=lambda each: -(each.likely or 0.0))

    def ranking(self, review: Review, sure: Floats, category: int) -> Ranking:
        """Rank the open images of a category."""
        rows = self.there(review.members(category))
        rows = rows[~review.settled[rows]]
        return growing.rank(rows, sure[rows])

    def parts(self, review: Review, category: int, count: int) -> list[Ints]:
        """Divide a category into `count` parts; labelled and confirmed images are in the first."""
        rows = self.there(review.members(category))
        digest, kept = _digest(rows, review.reviewed[rows]), self._parts.get((category, count))
        if kept is None or kept[0] != digest:
            seen = review.settled[rows] & ~review.unseen[rows]
            found = [] if self.advisor is None else self.advisor.parts(rows, rows[seen], count)
            self._parts[category, count] = kept = digest, found
        return kept[1]

    def sample(self, review: Review) -> list[int]:
        """Draw images that were accepted unseen, for an audit: always the same ones until something changes.

        Images of a group of one class are right or wrong together, more or less, so at most one of it is drawn.
        """
        found, unseen = list[int](), self.there(np.flatnonzero(review.unseen))
        by_category = sorted(rows_by(review.category[unseen]).items(), key=lambda item: (-len(item[1]), item[0]))
        for each, among in by_category:
            rows = unseen[among]
            count = due(len(np.unique(self._units[rows])), review.categories[each].tally)
            if count and (not found or len(found) + count <= SCREEN):
                seed = [int(run_key(self.run.facts), 16), each, len(rows)]
                found += one_of_each(np.random.default_rng(seed).permutation(rows), self._units)[:count].tolist()
        return found

    def there(self, rows: Ints) -> Ints:
        """Return those of the rows whose files still have their content."""
        return rows if self.lost is None else rows[self.lost[rows] == 0]

    def _free(self, review: Review) -> dict[int, Ints]:
        """Return the rows of each category, if it has any, that are not settled."""
        settled = review.settled
        members = rows_by(review.category)
        there = {each: self.there(members[each]) for each in review.categories if each in members}
        return {each: rows[~settled[rows]] for each, rows in there.items() if len(rows)}

    # Each kind of question

    def _growing(self, review: Review, sure: Floats, free: dict[int, Ints]) -> list[Question]:
        found = []
        for each, rows in free.items():
            own = review.categories[each]
            if not len(rows) or _looked_at(own, len(rows)):
                continue
            named = own.kind == KNOWN or not is_generated(own.name)
            looks = min(SHOWN_FIRST + PAGE_IMAGES, len(rows))
            seconds = looks * LOOK + 1.7 * ANSWER + (0 if named else NAMING)
            worth = float(sure[rows].sum()) / seconds
            found.append(Question(kind="grow", categories=(each,), images=len(rows), worth=worth))
        return found

    def _pages(self, review: Review, sure: Floats, free: dict[int, Ints]) -> list[Question]:
        """Ask about pages of images that were left open, the surest first, and about single ones drawn at random."""
        found, rest = [], list[int]()
        for each, rows in free.items():
            if not len(rows) or not _looked_at(review.categories[each], len(rows)):
                continue
            rest += rows.tolist()
            page = rows[np.argsort(-sure[rows], kind="stable")[:PAGE_IMAGES]]
            right = float(sure[page].mean())
            seconds = len(page) * LOOK + ANSWER + 2 * HAND + (1 - right) * len(page) * MARKING
            shown, worth = (tuple(page.tolist()),), right * len(page) / seconds
            found.append(Question(kind="page", categories=(each,), rows=shown, images=len(page), worth=worth))
        if rest:
            place = np.random.default_rng(int(run_key(self.run.facts), 16)).permutation(len(self.run.assignments))
            drawn = tuple(sorted(rest, key=lambda row: int(place[row]))[:OFFERED])
            worth = (1 + TEACHES) / (LOOK + ANSWER)
            found.append(Question(kind="image", categories=(), rows=(drawn,), images=len(rest), worth=worth))
        return found

    def _others(self, review: Review) -> list[Question]:
        """Ask about a page of images that fit no category, those farthest from all others first."""
        rows = self.there(np.flatnonzero(review.other))
        if not len(rows):
            return []
        page = rows[np.argsort(-self.run.assignments.apart[rows], kind="stable")[:PAGE_IMAGES]]
        worth = len(page) / (len(page) * LOOK + ANSWER + 2 * HAND + MARKING)
        return [Question(kind="other", categories=(), rows=(tuple(page.tolist()),), images=len(rows), worth=worth)]

    def _candidates(self, review: Review) -> list[Question]:
        """Ask whether groups of later images are new classes, each beside the category that is most similar to it."""
        found, ids = [], [*sizes_of(review.category[review.category >= 0])]
        centres, settled = review.centres(ids), review.settled
        left = {one for step in review.done if isinstance(step.change, Leave) for one in step.change.images}
        barred = review.rows_of([*left])
        for group in self._later:
            rows = self.there(np.setdiff1d(group[~settled[group]], barred))
            if len(rows) < SMALLEST_CANDIDATE:
                continue
            ranked = nearest_first(self.run.features, rows)[:MOST_RANKED]
            page = ranked[:SCREEN]
            middle = np.asarray(self.run.features[page], dtype=np.float64).mean(axis=0)
            nearest = ids[int(((centres - middle) ** 2).sum(axis=1).argmin())]
            beside = self.typical(review, nearest, len(settled))
            own = {*group.tolist()}
            shown = (ranked.tolist(), [row for row in beside if row not in own][:BESIDE])
            seconds = (len(page) + BESIDE) * LOOK + ANSWER + NAMING
            worth = (1 + TEACHES) * len(page) / seconds  # what comes later is sorted into the class
            asked = tuple(map(tuple, shown))
            found.append(Question(kind="candidate", categories=(nearest,), rows=asked, images=len(rows), worth=worth))
        return found

    def _merges(
        self, review: Review, free: dict[int, Ints], best: float, *, least: float = MERGE_LIKELY
    ) -> list[Question]:
        ids = [*free]
        if len(ids) < 2:
            return []
        sorted_ = _as_sorted(review)
        alike, sizes = self._alike(sorted_.category, ids, sorted_.centres(ids)), sizes_of(review.category)
        pairs = np.argwhere(np.triu(alike >= least, 1))
        pairs = pairs[np.argsort(-alike[pairs[:, 0], pairs[:, 1]], kind="stable")]
        found, told = list[Question](), _told_apart(review)
        saved = NAMING + (SHOWN_FIRST + PAGE_IMAGES) * LOOK + ANSWER  # seconds to grow another category
        for pair in map(tuple, pairs):
            first, second = sorted(
                (review.categories[ids[at]] for at in pair),
                key=lambda c: (c.kind != KNOWN, is_generated(c.name), -len(free[c.id]), c.id),
            )
            settled = not len(free[first.id]) and not len(free[second.id])
            said = second.id in first.apart or frozenset((first.id, second.id)) in told
            done = all(not is_generated(c.name) and len(free[c.id]) <= FEW_LEFT * sizes[c.id] for c in (first, second))
            if settled or said or done or first.kind == second.kind == KNOWN:
                continue
            likely, both = float(alike[pair]), (first.id, second.id)
            rows = tuple(tuple(self.typical(review, each, BESIDE)) for each in both)
            worth = best * likely * saved / (2 * BESIDE * LOOK + ANSWER)
            images = sizes[first.id] + sizes[second.id]
            found.append(Question(kind="merge", categories=both, rows=rows, images=images, likely=likely, worth=worth))
            if len(found) == OFFERED:
                break
        return found

    def _splits(
        self, review: Review, sure: Floats, free: dict[int, Ints], *, least: float = SPLIT_LIKELY
    ) -> list[Question]:
        found, removed = [], review.reviewed == ReviewState.REJECTED  # which one to split off would be no class
        large = (each for each, rows in free.items() if len(rows) >= 2 * BESIDE)
        doubtful = [each for each in large if not review.categories[each].whole]
        doubtful.sort(key=lambda each: float(sure[free[each]].mean()))
        for each in doubtful[:EXAMINED]:
            parts = [rows[~removed[rows]] for rows in self.parts(review, each, 2)]
            if len(parts) < 2 or min(map(len, parts)) < BESIDE // 2:
                continue
            likely = self._is_mixed(review, each, parts)
            if likely >= least:
                rows = tuple(tuple(self._nearest(part)[:BESIDE].tolist()) for part in parts)
                worth = likely * len(free[each]) / 2 / (2 * BESIDE * LOOK + ANSWER + NAMING)
                found.append(
                    Question(
                        kind="split", categories=(each,), rows=rows, images=len(free[each]), likely=likely, worth=worth
                    )
                )
        return found

    def _audits(self, review: Review) -> list[Question]:
        rows = self.sample(review)
        if not rows:
            return []
        ids = tuple(dict.fromkeys(review.category[rows].tolist()))
        once = one_of_each(np.flatnonzero(review.unseen), self._units * len(self._units) + review.category)
        counts = sizes_of(review.category[once])
        waiting = sum(due(count, review.categories[each].tally) for each, count in counts.items())
        worth = np.inf if waiting >= SCREEN else LAST  # as soon as a screen is full, or nearly at the end
        return [Question(kind="audit", categories=ids, rows=(tuple(rows),), images=len(rows), worth=float(worth))]

    def _labels(self, review: Review) -> list[Question]:
        """Ask about labels that look wrong, the most doubtful first, unless a person has decided on them."""
        a = self.run.assignments
        rows = self.there(a.labels_to_check)
        suggested = a.suggested_id[rows]
        left = (review.reviewed[rows] == ReviewState.OPEN) & (suggested != review.category[rows])
        rows = rows[left & np.isin(suggested, [*review.categories])]
        if not len(rows):
            return []
        seconds = (1 + 2 * BESIDE) * LOOK + ANSWER
        worth = 2 * (1 + TEACHES) * float(a.doubt[rows[0]]) / seconds  # a wrong label less, and a right one more
        shown = rows[:OFFERED]
        ids = tuple(np.unique([review.category[shown], a.suggested_id[shown]]).tolist())
        beside = (tuple(self.examples(review, each)) for each in ids)
        asked = (tuple(shown.tolist()), *beside)
        return [Question(kind="label", categories=ids, rows=asked, images=len(rows), worth=worth)]

    def examples(self, review: Review, category: int) -> list[int]:
        """Return typical images of a category: labelled ones that nobody doubts, or else any."""
        sure = review.settled & ~review.unseen
        sure[self.run.assignments.labels_to_check] = False
        typical = self.typical(review, category, len(review.category))
        return sorted(typical, key=lambda row: not sure[row])[:BESIDE]

    # What they rest on

    def typical(self, review: Review, category: int, count: int) -> list[int]:
        """Return the images of a category that are nearest to its centre, one of each moment."""
        rows, centre = self.there(review.members(category)), review.centres([category])[0]
        return self._nearest(rows, centre)[:count].tolist()

    def _nearest(self, rows: Ints, centre: Floats | None = None) -> Ints:
        """Return a row of each moment, nearest to a centre first, by default to the mean of the rows."""
        return one_of_each(nearest_first(self.run.features, rows, centre), self.run.assignments.group)

    def _is_mixed(self, review: Review, category: int, parts: list[Ints]) -> float:
        """Return how likely two parts of a category are two classes."""
        digest, kept = _digest(*parts), self._mixed.get(category)
        if kept is None or kept[0] != digest:
            split, other = _as_sorted(review).category, max(review.categories) + 1
            split[parts[1]] = other
            among = [each for each in sizes_of(review.category) if each not in (category, NOWHERE)]
            distance = ((review.centres(among) - review.centres([category])) ** 2).sum(axis=1)
            rivals = [among[at] for at in np.argsort(distance, kind="stable")[:RIVALS]]
            middles = [np.asarray(self.run.features[part], dtype=np.float64).mean(axis=0) for part in parts]
            centres = np.concatenate([middles, review.centres(rivals)])
            alike = self._alike(split, [category, other, *rivals], centres)
            self._mixed[category] = kept = digest, 1 - float(alike[0, 1])
        return kept[1]

    def _alike(self, category: Ints, ids: Sequence[int], centres: Floats) -> Floats:
        """Return how likely each two of the categories (k, k) with these ids and centres are one class."""
        run = self.run
        if self._likeness is None:
            self._likeness = Likeness(run.features, run.facts.settings.seed)
        temperature = run.confidence.temperature
        if run.head is not None:  # whose scores are no distances
            temperature = max(OF_SQUARES * float(np.mean(run.assignments.distance**2)), 1e-6)
        return self._likeness.between(category, ids, centres, temperature)


def _looked_at(category: ReviewedCategory, left: int) -> bool:
    """Tell whether a person has seen what is open in a category: it was left open when the category was last grown."""
    return category.grown is not None and left < category.grown + PAGE_IMAGES


def _as_sorted(review: Review) -> Review:
    """Return the review without images that a person removed from a category: they are where nobody has put them.

    Such an image is near the category that it was removed from, so the two would look like one class.
    """
    found = review.copy()
    found.category[review.reviewed == ReviewState.REJECTED] = NOWHERE
    return found


def _told_apart(review: Review) -> set[frozenset[int]]:
    """Return pairs of categories that a person has moved images between, and so does not take for one class."""
    found = set[frozenset[int]]()
    for step in review.done:
        match step.change:
            case Merge(categories=(first, *gone)):
                found = {frozenset(first if each in gone else each for each in pair) for pair in found}
            case Move(category=to) | Create(category=to):
                found |= {frozenset((each, to)) for each in np.unique(step.former.category).tolist()}
    confirmed = review.settled & ~review.unseen
    now = {review.base.assignments.contents[row]: int(review.category[row]) for row in np.flatnonzero(confirmed)}
    return found | {frozenset((now[content], each)) for content, each in review.rejected if content in now}


def _digest(*rows: Ints) -> bytes:
    return hashlib.sha256(b"|".join(np.ascontiguousarray(each).tobytes() for each in rows)).digest()
