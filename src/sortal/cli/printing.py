"""What commands print with: progress, JSON, tables and lists that a terminal shows as they are."""

import json
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from sortal.config import AUTO
from sortal.system.gathering import gathered
from sortal.system.progress import Runtime, shown
from sortal.system.text import byte_sizes, duration, percent, plain, plural, shorten

if TYPE_CHECKING:
    from sortal.images.decoding import Quarantined

TABLE_ROWS = 24  # of a table of categories or classes
MOST_LISTED = 10  # files or other findings under one title
CATEGORY_LENGTH = 40  # characters of a category's name
LINE_LENGTH = 400  # characters of any other text
IN_SAMPLE = "Unreadable files in the sample, which would be left out"
share = partial(percent, unit="")  # in tables whose heading has the unit


def runtime(first: str = "Starting", device: str = AUTO, workers: int | None = None) -> AbstractContextManager[Runtime]:
    """Return a context with a runtime that shows progress and notes on standard error."""
    return shown(Runtime(device=device, workers=workers), first)


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2))


def line(text: object) -> str:
    """Return text that a terminal shows as it is, shortened to a few lines."""
    return shorten(plain(text), LINE_LENGTH)


def name(text: object) -> str:
    """Return the name of a category or class, short enough for a table."""
    return shorten(plain(text), CATEGORY_LENGTH)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, left: int = 1) -> None:
    """Print rows under headings, if any, with the first `left` columns aligned to the left and the others to the right.

    Whole numbers get separators of thousands; None is an empty cell.
    """
    table = Table(
        box=box.SIMPLE_HEAD if headings else None, show_header=bool(headings), show_edge=False, pad_edge=False
    )
    cells = [[_cell(value) for value in row] for row in rows]
    for at, heading in enumerate(headings or cells[0]):
        table.add_column(heading, justify="left" if at < left else "right", overflow="fold")
    for row in cells:
        table.add_row(*row)
    Console(highlight=False, markup=False, emoji=False).print(table)


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else plain(value)


def abridge(rows: Sequence[Sequence[object]], one: str, many: str, *, last: int = 0) -> list[Sequence[object]]:
    """Return the rows of a table, if too many only the first and the `last` ones, and their sums for those between."""
    if len(rows) <= TABLE_ROWS:
        return list(rows)
    start, end = TABLE_ROWS - 1 - last, len(rows) - last
    _, *columns = zip(*rows[start:end], strict=True)
    sums = [sum(column) if isinstance(column[0], int) else None for column in columns]
    return [*rows[:start], (f"… {plural(end - start, one, many)}", *sums), *rows[end:]]


def print_list(title: str, rows: Sequence[str]) -> None:
    """Print how many rows there are, and the first; nothing if there are none."""
    if rows:
        print(f"\n{title}: {len(rows):,}", *first_rows(rows), sep="\n")


def first_rows(rows: Sequence[str], more: str = "more; --json lists all") -> list[str]:
    """Indent the first rows, and count the others."""
    rest = [f"  … and {len(rows) - MOST_LISTED:,} {more}"] if len(rows) > MOST_LISTED else []
    return [*(f"  {row}" for row in rows[:MOST_LISTED]), *rest]


def print_unreadable(files: "Sequence[Quarantined]") -> None:
    """Print unreadable files, grouped by reason."""
    by_reason = gathered((line(f"{bad.reason}: {bad.detail}"), line(bad.file)) for bad in files)
    if files:
        print(f"\nUnreadable, left out of every run (exit code 3): {len(files):,}")
    left = MOST_LISTED
    for reason, named in by_reason.items():
        if left > 0:
            print(f"  {reason}", *(f"    {file}" for file in named[:left]), sep="\n")
        left -= len(named)
    if left < 0:
        print(f"  … and {-left:,} more; --json lists all")
    if any("max_pixels" in bad.detail for bad in files):
        print("  Use larger images with --max-pixels N.")


def counted(
    images: int, statuses: "dict[str, int]", binned: int = 0, moments: int | None = None, unit: str = "moment"
) -> str:
    """Return how many images there are, of how many moments if fewer, and how many of each status.

    The status other and the bin are left out where no image has it or is in it.
    """
    of = f", {plural(moments, unit)}" if moments is not None and moments < images else ""
    parts = [f"{count:,} {status}" for status, count in statuses.items() if count or status != "other"]
    parts += [f"{binned:,} in the bin"] if binned else []
    return f"{plural(images, 'image')}{of}: {', '.join(parts)}."


def disk_space(needed: int, free: int) -> str:
    return f"about {byte_sizes(needed)[0]}; {byte_sizes(free)[0]} free"


def total_time(seconds: dict[str, float]) -> str:
    """Return the sum of the seconds by stage, and those that matter."""
    stages = ", ".join(f"{stage} {duration(each)}" for stage, each in seconds.items() if each >= 0.5)
    return f"about {duration(sum(seconds.values()))}{f': {stages}' if stages else ''}"
