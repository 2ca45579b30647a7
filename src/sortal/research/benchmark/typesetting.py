"""Tables as Markdown, CSV and LaTeX, and their files."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

from sortal.errors import InputError, Remedy
from sortal.system import csv_tables
from sortal.system.files import lock_folder, replace_all
from sortal.system.text import plain

DOCUMENT_FILE = "tables.md"
NO_FIGURE = "–"
LATEX = {  # what these characters are in LaTeX; brackets and stars would belong to the end of the line before
    **{each: f"\\{each}" for each in "&%$#_{}"},
    **{each: f"{{{each}}}" for each in "[]*"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": "$-$",
    "–": "--",
}
FITTED = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{"  # \width is that of the content
LIGATURES = ("--", "``", "''", "?`", "!`", "<<", ">>", ",,")


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A mean over runs, and the published figure."""

    mean: float | None
    sd: float | None  # of the sample; None for fewer than two runs
    n: int  # runs in which it is defined
    runs: int
    published: float | None = None
    digits: int = 1

    def __str__(self) -> str:
        own = NO_FIGURE if self.mean is None else f"{self.mean:.{self.digits}f}"
        if self.sd is not None:
            own += f" ± {self.sd:.{self.digits}f}"
        if self.published is None:
            return own
        return f"{own} ({self.published if isinstance(self.published, int) else f'{self.published:.1f}'})"

    def parts(self) -> dict[str, Any]:
        return {"mean": self.mean, "sd": self.sd, "n": self.n or None, "published": self.published}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How far a method is ahead of another, with the ends of an interval; None for these where there is one run."""

    mean: float
    low: float | None
    high: float | None
    n: int  # runs that both have

    def __str__(self) -> str:
        own = _signed(self.mean)
        return own if self.low is None or self.high is None else f"{own} [{_signed(self.low)}, {_signed(self.high)}]"

    def parts(self) -> dict[str, Any]:
        return {"mean": self.mean, "low": self.low, "high": self.high, "n": self.n}


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


Cell: TypeAlias = str | int | Figure | Difference | None


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of cells, one per heading."""

    name: str  # of its file
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...] = ()
    notes: tuple[str, ...]

    @property
    def is_text(self) -> list[bool]:
        """Tell which columns contain words."""
        return [any(isinstance(row[at], str) for row in self.rows) for at in range(len(self.header))]

    @property
    def text(self) -> list[list[str]]:
        """Return the rows as they are printed."""
        return [[NO_FIGURE if cell is None else str(cell) for cell in row] for row in self.rows]


def markdown(table: Table) -> str:
    cells = [[_escaped(cell) for cell in row] for row in table.text]
    rows = [[*map(_escaped, table.header)], ["---" if each else "---:" for each in table.is_text], *cells]
    body = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    notes = "\n".join(f"- {_escaped(note)}" for note in table.notes)
    return f"## {_escaped(table.title)}\n\n{body}\n\n{notes}\n"


def document(made: Sequence[Table], title: str = "Benchmarks") -> str:
    """Return all tables as one Markdown text."""
    return "\n".join([f"# {title}\n", *map(markdown, made)])


def latex(table: Table) -> str:
    """Return a table for LaTeX with the packages booktabs and graphicx, which shrinks it to the text if it is wider."""
    rows = ["    " + " & ".join(map(latex_text, row)) + r" \\" for row in (table.header, *table.text)]
    notes = " ".join(map(latex_text, table.notes))
    lines = [
        r"% \usepackage{booktabs,graphicx}",
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{latex_text(table.title)}}}",
        rf"  {FITTED}\begin{{tabular}}{{{''.join('l' if each else 'r' for each in table.is_text)}}}",
        *(r"    \toprule", rows[0], r"    \midrule", *rows[1:], r"    \bottomrule"),
        r"  \end{tabular}}",
        rf"  \par\smallskip{{\footnotesize {notes}\par}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def latex_text(text: str) -> str:
    """Escape what LaTeX would take for a command, a column, a ligature, or an option of the end of a line."""
    found = ""
    for before, each in pairwise(" " + plain(text)):
        found += ("{}" if before + each in LIGATURES else "") + LATEX.get(each, each)
    return found


def csv(table: Table) -> bytes:
    """Return unrounded numbers, in columns for each part of a figure or difference."""
    columns: list[tuple[str, list[Any]]] = []
    for at, heading in enumerate(table.header):
        column = [row[at] for row in table.rows]
        figures = [cell for cell in column if isinstance(cell, Figure | Difference)]
        if not figures:
            columns.append((heading, column))
            continue
        for part in figures[0].parts():
            values = [cell.parts()[part] if isinstance(cell, Figure | Difference) else None for cell in column]
            if part != "published" or any(value is not None for value in values):
                columns.append((f"{heading} {part}", values))
    return csv_tables.table(columns)


def write(
    made: Sequence[Table],
    out: str | os.PathLike[str],
    *,
    force: bool = False,
    text: tuple[str, str] | None = None,
    pictures: Mapping[str, bytes] | None = None,
) -> tuple[Path, ...]:
    """Write tables to a folder, all or none: a Markdown file for all, a CSV file and a LaTeX file for each.

    `text` is the name and the content of the Markdown file, if they are not the usual ones; `pictures` are written
    beside it. `force` overwrites existing files.
    """
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"Tables are written to a folder, got {str(folder)!r}, which is a file. Choose another.")
    name, content = text or (DOCUMENT_FILE, document(made))
    files = {name: content.encode()}
    for table in made:
        files |= {f"{table.name}.csv": csv(table), f"{table.name}.tex": latex(table).encode()}
    files |= pictures or {}
    with lock_folder(folder):
        if not force and (existing := [each for each in files if (folder / each).exists()]):
            another, overwrite = Remedy("choose another folder", out=...), Remedy("overwrite it", force=True)
            raise InputError(f"The file {str(folder / existing[0])!r} already exists.", another, overwrite)
        replace_all(folder, files, ())
    return tuple(folder / each for each in files)


def file_name(text: str, taken: set[str]) -> str:
    """Return a file name that is valid on every system and not taken."""
    name = re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip(".-")[:80]
    others = (f"{name}-{number}" for number in range(2, len(taken) + 3))
    return next(each for each in (name, *others) if each not in taken)


def _escaped(text: str) -> str:
    """Escape Markdown, and characters that could disturb a terminal."""
    escaped = re.sub(r"([\\`*\[\]|#~$]|(?<!\w)_|_(?!\w))", r"\\\1", plain(text))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
