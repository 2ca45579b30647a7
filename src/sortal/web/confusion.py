"""Which known classes were taken for which categories, where the truth is known."""

from collections.abc import Sequence
from dataclasses import dataclass

from sortal.report.words import readable
from sortal.run import KNOWN, NEW, Category

CLASSES = 30  # as many make a table that can be read; of more, only the largest confusions are listed
LISTED = 40


@dataclass(frozen=True)
class Cell:
    count: int
    share: float  # of the images of the true class
    right: bool


@dataclass(frozen=True)
class Line:
    """A true class, and where its images went."""

    name: str
    images: int
    cells: list[Cell]  # for each of the columns


@dataclass(frozen=True)
class Mistake:
    """Images of a true class in a category that is not its own."""

    truth: str
    category: str
    kind: str
    count: int
    share: float


@dataclass(frozen=True)
class Confusion:
    columns: list[str]  # the known classes, and the new categories together; none where there are too many
    lines: list[Line]
    mistakes: list[Mistake]  # the largest first
    more: int  # mistakes that are not listed


def confusion(counts: Sequence[tuple[str, int, int]], categories: Sequence[Category]) -> Confusion | None:
    """From (true class, category id, count) of images without a label whose true class is known."""
    if not counts:
        return None
    known = {category.name: category.id for category in categories if category.kind == KNOWN}
    totals: dict[str, int] = {}
    for truth, _, count in counts:
        totals[truth] = totals.get(truth, 0) + count
    wrong = [each for each in counts if known.get(each[0]) != each[1]]
    mistakes = [
        Mistake(readable(t), readable(categories[c].name), categories[c].kind, count, count / totals[t])
        for t, c, count in sorted(wrong, key=lambda each: -each[2])
    ]
    few = len(totals) <= CLASSES and len(known) <= CLASSES
    lines = _lines(counts, categories, known, totals) if few else []
    columns = [*map(readable, known), "new categories"] if few else []
    return Confusion(columns, lines, mistakes[:LISTED], max(0, len(mistakes) - LISTED))


def _lines(
    counts: Sequence[tuple[str, int, int]],
    categories: Sequence[Category],
    known: dict[str, int],
    totals: dict[str, int],
) -> list[Line]:
    columns = {at: column for column, at in enumerate(known.values())}
    table = {truth: [0] * (len(known) + 1) for truth in [*(name for name in known if name in totals), *totals]}
    for truth, category, count in counts:
        table[truth][len(known) if categories[category].kind == NEW else columns[category]] += count
    own = {name: columns[at] for name, at in known.items()}
    return [
        Line(
            readable(truth),
            totals[truth],
            [Cell(count, count / totals[truth], own.get(truth) == column) for column, count in enumerate(cells)],
        )
        for truth, cells in table.items()
    ]
