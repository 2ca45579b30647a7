"""The confusion between known classes and categories, if the true classes are known."""

from collections.abc import Sequence
from dataclasses import dataclass

from sortal.runs.facts import Confused
from sortal.runs.run import KNOWN, Category
from sortal.system.text import readable

CLASSES = 30  # of a readable matrix; with more, only the largest confusions are listed
LISTED = 40


@dataclass(frozen=True)
class Cell:
    count: int
    share: float  # of the true class
    right: bool


@dataclass(frozen=True)
class ClassRow:
    """A true class, and the categories of its images."""

    name: str
    images: int
    cells: list[Cell]  # one per column


@dataclass(frozen=True)
class Mistake:
    """The images of a true class in a category that is not its own."""

    truth: str
    category: str
    kind: str
    count: int
    share: float


@dataclass(frozen=True)
class Confusion:
    columns: list[str]  # the known classes, then all new categories; empty with too many classes
    rows: list[ClassRow]
    mistakes: list[Mistake]  # largest first
    more: int  # mistakes not listed


def confusion(counts: Sequence[Confused], categories: Sequence[Category]) -> Confusion | None:
    """Tabulate the categories of the unlabelled images of known classes."""
    if not counts:
        return None
    known = {category.name: category.id for category in categories if category.kind == KNOWN}
    by_id = {category.id: category for category in categories}
    totals: dict[str, int] = {}
    for truth, _, count in counts:
        totals[truth] = totals.get(truth, 0) + count
    wrong = [each for each in counts if known.get(each[0]) != each[1]]
    mistakes = [
        Mistake(readable(t), readable(by_id[c].name), by_id[c].kind, count, count / totals[t])
        for t, c, count in sorted(wrong, key=lambda each: -each[2])
    ]
    few = len(totals) <= CLASSES and len(known) <= CLASSES
    rows = _rows(counts, known, totals) if few else []
    columns = [*map(readable, known), "new categories"] if few else []
    return Confusion(columns, rows, mistakes[:LISTED], max(0, len(mistakes) - LISTED))


def _rows(counts: Sequence[Confused], known: dict[str, int], totals: dict[str, int]) -> list[ClassRow]:
    columns = {at: column for column, at in enumerate(known.values())}
    table = {truth: [0] * (len(known) + 1) for truth in [*(name for name in known if name in totals), *totals]}
    for truth, category, count in counts:
        table[truth][columns.get(category, len(known))] += count
    own = {name: columns[at] for name, at in known.items()}
    return [
        ClassRow(
            readable(truth),
            totals[truth],
            [Cell(count, count / totals[truth], own.get(truth) == column) for column, count in enumerate(cells)],
        )
        for truth, cells in table.items()
    ]
