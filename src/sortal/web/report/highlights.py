"""What to look at first in a run: its new categories, those that may be wrong, and what another k would change."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sortal.reviews.advising import Advising
from sortal.reviews.history import Review
from sortal.reviews.questions import MERGE_LIKELY, SPLIT_LIKELY, Guide, Question
from sortal.runs import projection
from sortal.runs.run import NEW, UNSURE, Run
from sortal.web.report.summary import Card, farthest

COMPARED_IMAGES, COMPARED_EACH = 8000, 24  # that categories are compared by, or so many of each, if that is more
COMPARED_CATEGORIES = 2500  # at most, the largest
MOST_LEADING, MOST_PAIRS, MOST_SINGLE, MOST_DOUBTFUL = 10, 4, 8, 8  # categories, pairs of each kind, and images shown
MOST_LABELS = 8  # images whose labels look wrong
PAIR_PICTURES = 4  # of each category, or part


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two categories that may be one, or a category that may be two."""

    cards: tuple[Card, ...]  # two, or one
    rows: tuple[list[int], list[int]]  # images of each category, or part
    likely: float


@dataclass(frozen=True, kw_only=True)
class Highlights:
    """What is shown first; each list begins with what matters most."""

    leading: list[Card]  # new categories, or all where nothing new was found
    found: int  # new categories that have images
    more: int  # of these, how many are not among them
    merges: list[Pair]
    mixed: list[Pair]
    single: list[Card]  # new categories of one image
    singles: int  # how many there are
    doubtful: list[int]
    labels: list[int]  # images whose labels look wrong
    apart: list[int]  # images that fit nowhere
    smaller: Pair | None  # what one category fewer would merge
    larger: Pair | None  # what one category more would split


class Comparison(NamedTuple):
    """What may be merged and what may be split, the likeliest first."""

    merges: Sequence[Question] = ()
    splits: Sequence[Question] = ()

    @property
    def alike(self) -> list[tuple[int, ...]]:
        """The ids of categories that probably are one, in pairs."""
        return [each.categories for each in self.merges if (each.likely or 0.0) >= MERGE_LIKELY]

    @property
    def mixed(self) -> list[int]:
        """The ids of categories that probably are two."""
        return [each.categories[0] for each in self.splits if (each.likely or 0.0) >= SPLIT_LIKELY]


NOT_COMPARED = Comparison()


def compare_categories(run: Run, present: NDArray[np.bool_], advising: Advising | None, *, seed: int) -> Comparison:
    """Return what may be merged and what may be split, the likeliest first, judging by images `present` (n,)."""
    rows, a = np.flatnonzero(present & ~run.assignments.binned), run.assignments
    most = max(COMPARED_IMAGES, COMPARED_EACH * min(len(run.categories), COMPARED_CATEGORIES))
    if len(rows) > most:
        rows = np.sort(rows[projection.sample(a.category_id[rows], a.distance[rows], most, seed=seed)])
    part = run.part(rows)
    guide = Guide(part, None if advising is None else advising(part))
    found = guide.likely(Review(part), part.assignments.confidence, among=COMPARED_CATEGORIES)

    def in_run(question: Question) -> Question:
        return replace(question, rows=tuple(tuple(rows[[*each]].tolist()) for each in question.rows))

    merges, splits = ([in_run(each) for each in questions] for questions in found)
    return Comparison(merges, splits)


def find_highlights(run: Run, cards: Sequence[Card], compared: Comparison) -> Highlights:
    """Choose what to show first, given how categories compare."""
    new = [card for card in cards if card.category.kind == NEW and card.category.size]
    among = sorted(new or (card for card in cards if card.category.size), key=lambda card: card.sure, reverse=True)
    single = [card for card in new if card.category.size == 1]
    own, a = {card.category.id: card for card in cards}, run.assignments
    unsure = {row for card in cards for row in (*card.typical, *card.doubtful) if a.status[row] == UNSURE}

    def pair(question: Question) -> Pair:
        shown = tuple(own[each] for each in question.categories)
        first, second = [card.typical for card in shown] if len(shown) == 2 else map(list, question.rows)
        return Pair(cards=shown, rows=(first[:PAIR_PICTURES], second[:PAIR_PICTURES]), likely=question.likely or 0.0)

    joined, divided = ([pair(each) for each in questions] for questions in compared)
    return Highlights(
        leading=among[:MOST_LEADING],
        found=len(new),
        more=max(0, len(new) - MOST_LEADING),
        merges=[each for each in joined if each.likely >= MERGE_LIKELY][:MOST_PAIRS],
        mixed=[each for each in divided if each.likely >= SPLIT_LIKELY][:MOST_PAIRS],
        single=single[:MOST_SINGLE],
        singles=len(single),
        doubtful=sorted(unsure, key=lambda row: (float(a.confidence[row]), row))[:MOST_DOUBTFUL],
        labels=a.labels_to_check[:MOST_LABELS].tolist(),
        apart=farthest(run),
        smaller=joined[0] if joined else None,
        larger=divided[0] if divided else None,
    )
