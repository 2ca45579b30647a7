"""Growing a category: which page of its most likely images to show next, and what follows from the answers.

Images are ranked by confidence, and pages are numbered from the surest to the least sure. The first page shown is the
last that is likely to be right. From there the step doubles until the first bad page, then the pages between are
bisected; a page that is mostly right is the boundary itself. What lies before it was not shown, but is accepted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from sortal.runs.confidence import Floats, Ints

SHOWN_FIRST = 4  # images that are shown with the first page, so that a person knows what to look for
PAGE_IMAGES, SMALL_PAGE = 16, 8  # images of a page, and of one of a small category
LIKELY = 0.85  # mean confidence of a page that is likely to be right
# Answers: every image is right but those chosen, most are, or too many are not.
ALL_RIGHT, MOSTLY_RIGHT, TOO_MANY_WRONG = "y", "m", "n"
ANSWERS = frozenset((ALL_RIGHT, MOSTLY_RIGHT, TOO_MANY_WRONG))
ALLOWED = 1 / 4  # share of wrong images on a page that is mostly right
CLOSE_ENOUGH = 8  # the boundary need not be known better than to this part of all pages


@dataclass(frozen=True, kw_only=True)
class Search:
    """Where a search stands after some answers."""

    page: int | None  # to be shown next; None when the boundary is found
    good: int  # pages before the boundary, as far as is known
    answers: dict[int, str]  # by page


def search(pages: int, first: int, answers: Sequence[str]) -> Search:
    """Return the state of a search over so many pages that began at page `first`, after these answers.

    It ends after at most 2 log₂(pages) + 2 answers; what comes after its end is ignored.
    """
    low, high, step, page, found = -1, pages, 1, first, dict[int, str]()
    for answer in answers:
        found[page] = answer
        if answer == MOSTLY_RIGHT:
            return Search(page=None, good=page, answers=found)
        if answer == TOO_MANY_WRONG:
            high = page
        else:
            low = page
        if high - low <= (1 if high == pages or low < 0 else max(1, pages // CLOSE_ENOUGH)):
            return Search(page=None, good=low + 1, answers=found)
        if high == pages:  # nothing bad yet
            page, step = min(low + step, pages - 1), 2 * step
        else:
            page = (low + high) // 2
    return Search(page=page, good=low + 1, answers=found)


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranking:
    """The open images of a category, the surest first: a few typical ones, then pages."""

    rows: Ints  # (n,)
    edges: Ints  # (pages + 1,) where pages begin and end; typical ones come before the first
    first: int  # page to begin with

    @property
    def pages(self) -> int:
        return len(self.edges) - 1

    @property
    def typical(self) -> Ints:
        return self.rows[: self.edges[0]]

    def page(self, number: int) -> Ints:
        return self.rows[self.edges[number] : self.edges[number + 1]]


def rank(rows: Ints, confidence: Floats) -> Ranking:
    """Rank the rows (n,) of open images by their confidence (n,), and divide them into pages."""
    order = np.argsort(-confidence, kind="stable")
    rows, sure, n = rows[order], confidence[order], len(rows)
    typical = min(SHOWN_FIRST, n)
    size = min(PAGE_IMAGES, max(SMALL_PAGE, n // 3))
    pages = max(1, round((n - typical) / size))
    edges = np.linspace(typical, n, pages + 1).round().astype(np.int64)
    means = [sure[low:high].mean() if high > low else 0.0 for low, high in pairwise(edges.tolist())]
    likely = [page for page, mean in enumerate(means) if mean >= LIKELY]
    return Ranking(rows=rows, edges=edges, first=max(likely, default=0))


def shown(ranking: Ranking, answers: str) -> set[int]:
    """Return the rows that were on the pages that these answers are about."""
    found = search(ranking.pages, ranking.first, answers)
    return {row for page in found.answers for row in _rows(ranking, page)}


def outcome(ranking: Ranking, answers: str, wrong: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """Return the rows that were seen and are right, those accepted unseen, and those that are wrong.

    On a page that is mostly right, images that were not chosen as wrong stay open: some of them are.
    """
    found, bad, visible = search(ranking.pages, ranking.first, answers), {*wrong}, shown(ranking, answers)
    right = [page for page, answer in found.answers.items() if answer == ALL_RIGHT]
    seen = [row for page in right for row in _rows(ranking, page) if row not in bad]
    before = ranking.rows[: ranking.edges[found.good]].tolist() if found.good else []
    return seen, [row for row in before if row not in visible], [row for row in wrong if row in visible]


def _rows(ranking: Ranking, page: int) -> list[int]:
    """Return what is shown of a page: typical images come with the first."""
    typical = ranking.typical.tolist() if page == ranking.first else []
    return [*typical, *ranking.page(page).tolist()]
