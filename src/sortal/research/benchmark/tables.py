"""Tables of benchmark runs: the paper's, our figures beside the published ones, and one for each other set of runs."""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias

from sortal import cells, kept, whole
from sortal.benchmark import published
from sortal.benchmark.means import NOTHING, Figure, Group, figure, flat, lines, number_of_classes, share, shortened
from sortal.benchmark.presets import ABLATED, ACCURACY, COUNTED, DATASETS, METHODS, PRESETS, Preset
from sortal.benchmark.records import SHARES, Record
from sortal.config import BACKBONE, Contrast
from sortal.errors import InputError

FILE, MARKER = "tables.md", ".sortal-tables.json"  # MARKER: the files that were written
UNTRAINED = "random weights"
TITLES = {
    "table2": "Table 2: generic images",
    "table3": "Table 3: fine-grained images",
    "table4": "Table 4: how many classes",
    "table5": "Table 5: what each part gives",
    "table6": "Table 6: aircraft",
}
K_WORDS = {"true": "true k", "auto": "estimated k"}
ABOUT_ACCURACY = (
    "Accuracy on the unlabelled images in %, true k: mean ± standard deviation (of the sample) over seeds; in "
    "brackets what was published.",
    "Of the epochs of GCD ours is the one that is best on validation images of old classes; the published one was "
    "chosen on the test split, with new classes and true k.",
)
ABOUT_SIMGCD = "SimGCD came after the paper; its published figures are means of 5 runs."
ABOUT_K = "Mean ± standard deviation (of the sample) over seeds; in brackets what was published. The error is in %."
ABOUT_OTHERS = (
    "In %, but for k, seeds and minutes: mean ± standard deviation (of the sample) over seeds. Legacy matches old and "
    "new classes apart; Old by name goes by the names of categories, without a match; inductive is on the test split, "
    "whose images of old classes chose the epoch where one was chosen. Minutes leave out what was there from other "
    "runs.",
)
OTHERS = (
    *("All", "Old", "New", "Legacy All", "Old by name", "NMI", "ARI", "k"),
    *("Inductive All", "Inductive Old", "Inductive New", "Seeds", "Minutes"),
)

Cell: TypeAlias = str | int | Figure | None
Row: TypeAlias = tuple[tuple[str, ...], Mapping[str, Sequence[Record]]]  # first cells, and records by column


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of cells, one a heading."""

    name: str  # of its file
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...]


def tables(records: Sequence[Record]) -> tuple[Table, ...]:
    """The paper's tables of which there is something, then the others. The order of records does not matter."""
    ordered = sorted(records, key=lambda record: json.dumps(record.to_json(), sort_keys=True))
    of_paper = [record for record in ordered if _is_preset(record)]
    by_name = {name: [record for record in of_paper if record.name == name] for name in PRESETS}
    there = {record.name.partition("/")[0] for record in of_paper}
    made = {"table4": _counted, "table5": _ablated}
    paper = [made[name](by_name) if name in made else _accuracy(name, by_name) for name in TITLES if name in there]
    return (*paper, *_others([record for record in ordered if not _is_preset(record)]))


def _is_preset(record: Record) -> bool:
    """Whether a run is what its name and version say; recipes of other versions are not known here."""
    preset = PRESETS.get(record.name)
    if preset is None or record.version is None or record.weights == UNTRAINED:
        return False
    if (record.dataset, record.backbone, record.k["asked"]) != (preset.dataset, preset.backbone, preset.k):
        return False
    ours, theirs = flat(preset.settings()), flat(record.recipe)
    return record.version != preset.version or all(ours[name] == theirs[name] for name in ours.keys() & theirs.keys())


# The paper's


def _accuracy(table: str, by_name: Mapping[str, Sequence[Record]]) -> Table:
    rows: list[Row] = [
        ((title,), {name: by_name[name] for name in (f"{table}/{dataset}/{method}" for dataset in ACCURACY[table])})
        for method, title in METHODS.items()
    ]
    header = ("Method", *_headings(ACCURACY[table]))
    return _table(
        table, TITLES[table], header, rows, _accuracy_cells, (*ABOUT_ACCURACY, ABOUT_SIMGCD, _made_with(rows))
    )


def _ablated(by_name: Mapping[str, Sequence[Record]]) -> Table:
    rows: list[Row] = []
    for row in range(1, 7):
        names = [f"table5/{dataset}/{row}" for dataset in ABLATED]
        rows.append(((f"Row {row}", *_parts(PRESETS[names[0]])), {name: by_name[name] for name in names}))
    header = ("Ablation", "Backbone", "Unsupervised loss", "Supervised loss", "Clustering", *_headings(ABLATED))
    return _table("table5", TITLES["table5"], header, rows, _accuracy_cells, (*ABOUT_ACCURACY, _made_with(rows)))


def _parts(preset: Preset) -> tuple[str, ...]:
    """What a row of the ablation has."""
    losses = preset.recipe.losses
    supervised = losses.supervised_weight if isinstance(losses, Contrast) else None
    return (
        "ViT-B/16" if preset.backbone == BACKBONE else "ResNet-50",
        "no" if supervised in (None, 1) else "yes",
        "no" if supervised in (None, 0) else "yes",
        "k-means" if preset.recipe.clustering == "kmeans" else "semi-supervised k-means",
    )


def _headings(datasets: Sequence[str]) -> list[str]:
    return [f"{DATASETS[dataset]} {what}" for dataset in datasets for what in ("All", "Old", "New", "seeds")]


def _accuracy_cells(name: str, group: Group) -> list[Cell]:
    known = published.of(name).accuracy or (None, None, None)
    figures = [share(group, "accuracy", of, beside) for of, beside in zip(SHARES, known, strict=True)]
    return [*figures, len(group) or None]


def _counted(by_name: Mapping[str, Sequence[Record]]) -> Table:
    rows: list[Row] = [((DATASETS[each],), {f"table4/{each}": by_name[f"table4/{each}"]}) for each in COUNTED]
    header = ("Data set", "k", "k of each seed", "Classes", "Error", "Seeds")
    return _table("table4", TITLES["table4"], header, rows, _k_cells, (ABOUT_K, _made_with(rows)))


def _k_cells(name: str, group: Group) -> list[Cell]:
    estimated, true = published.of(name).k or (None, None)
    error = None if estimated is None or true is None else 100 * abs(estimated - true) / true
    return [
        number_of_classes(group, estimated),
        ", ".join(str(record.k["k"]) for record in group) or None,
        group[0].k["true"] if group else true,
        figure([100 * record.k["error"] for record in group], error),
        len(group) or None,
    ]


def _made_with(rows: Sequence[Row]) -> str:
    """Of which version, and with which weights: a file of any may have been given."""
    records = [record for _, by_column in rows for some in by_column.values() for record in some]
    versions = ", ".join(str(version) for version in sorted({record.version or 0 for record in records}))
    weights = "; ".join(sorted({f"{record.backbone} with {shortened(record.weights)}" for record in records}))
    return f"Recipes of version {versions}; {weights}."


# All others


def _others(records: Sequence[Record]) -> list[Table]:
    """One table for each data set, backbone, weights and k asked."""

    def where(record: Record) -> tuple[str, str, str, str]:
        return record.dataset, record.backbone, record.weights, str(record.k["asked"])

    made: list[Table] = []
    for (dataset, backbone, weights, asked), some in groupby(sorted(records, key=where), where):
        by_label: dict[str, list[Record]] = {}
        for record in sorted(some, key=_place):
            by_label.setdefault(_label(record), []).append(record)
        name = _file_name(f"{dataset}-{backbone}-k-{asked}", {table.name for table in made})
        title = f"{dataset}: {backbone}, {shortened(weights)}, {K_WORDS.get(asked, f'k = {asked}')}"
        rows: list[Row] = [((label,), {"": of_label}) for label, of_label in by_label.items()]
        made.append(_table(name, title, ("Method", *OTHERS), rows, _other_cells, ABOUT_OTHERS))
    return made


def _label(record: Record) -> str:
    """What a run is called in a table of its data set; a preset that was changed has its whole name."""
    own = record.name if record.name in PRESETS else record.name.partition("/")[2] or record.name
    return next((title for method, title in METHODS.items() if method == own), own)


def _place(record: Record) -> tuple[int, str]:
    """Methods as in the paper, then all else by name."""
    label, titles = _label(record), [*METHODS.values()]
    return titles.index(label) if label in titles else len(titles), label


def _other_cells(_: str, group: Group) -> list[Cell]:
    return [
        *(share(group, "accuracy", of) for of in SHARES),
        share(group, "legacy", "all"),
        *(share(group, score) for score in ("known_accuracy", "nmi", "ari")),
        number_of_classes(group),
        *(share(group, "accuracy", of, part="inductive") for of in SHARES),
        len(group),
        figure([record.minutes for record in group]),
    ]


def _table(
    name: str,
    title: str,
    header: tuple[str, ...],
    rows: Sequence[Row],
    cells_of: Callable[[str, Group], list[Cell]],
    about: Sequence[str],
) -> Table:
    body: list[tuple[Cell, ...]] = []
    notes = [*about]
    for (label, *leading), by_column in rows:
        found, said = lines(label, by_column)
        notes += said
        for own, groups in found.items():
            further = [cell for column in by_column for cell in cells_of(column, groups.get(column, ()))]
            body.append((own, *leading, *further))
            notes += _partial(own, header, body[-1])
    return Table(name=name, title=title, header=header, rows=tuple(body), notes=tuple(notes))


def _partial(label: str, header: Sequence[str], row: Sequence[Cell]) -> list[str]:
    """Figures that not every run has."""
    short: dict[str, list[str]] = {}
    for heading, cell in zip(header, row, strict=True):
        if isinstance(cell, Figure) and 0 < cell.n < cell.runs:
            short.setdefault(f"{cell.n} of {cell.runs} seeds", []).append(heading)
    return [f"{label}: only {seeds} have {', '.join(headings)}." for seeds, headings in short.items()]


# As text and files


def markdown(table: Table) -> str:
    right = [not any(isinstance(row[at], str) for row in table.rows) for at in range(len(table.header))]
    table_rows = [
        table.header,
        ["---:" if each else "---" for each in right],
        *([NOTHING if cell is None else _escaped(str(cell)) for cell in row] for row in table.rows),
    ]
    body = "\n".join(f"| {' | '.join(row)} |" for row in table_rows)
    notes = "\n".join(f"- {_escaped(note)}" for note in table.notes)
    return f"## {_escaped(table.title)}\n\n{body}\n\n{notes}\n"


def document(made: Sequence[Table]) -> str:
    """All tables as one Markdown text."""
    return "\n".join(["# Benchmarks\n", *map(markdown, made)])


def csv(table: Table) -> bytes:
    """Numbers as they are: of a figure its mean, standard deviation, over how many runs, and what was published."""
    columns: list[tuple[str, list[Any]]] = []
    for at, heading in enumerate(table.header):
        column = [row[at] for row in table.rows]
        figures = [cell for cell in column if isinstance(cell, Figure)]
        if not figures:
            columns.append((heading, column))
            continue
        columns.append((f"{heading} mean", [each.mean for each in figures]))
        columns.append((f"{heading} sd", [each.sd for each in figures]))
        columns.append((f"{heading} n", [each.n or None for each in figures]))
        if any(each.published is not None for each in figures):
            columns.append((f"{heading} published", [each.published for each in figures]))
    return cells.table(columns)


def write(made: Sequence[Table], out: str | os.PathLike[str], *, force: bool = False) -> tuple[Path, ...]:
    """Write tables into a folder, together: one Markdown file of all, and a CSV of each.

    `force` writes over files that are there, and removes tables of earlier that are none any more.
    """
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"Tables go into a folder, got {str(folder)!r}, which is a file. Name another.")
    files = {FILE: document(made).encode(), **{f"{table.name}.csv": csv(table) for table in made}}
    if not force and (there := [name for name in files if (folder / name).exists()]):
        raise InputError(
            f"Tables must be new files, got {str(folder / there[0])!r}, which exists. Write over it with --force, or "
            "name another folder."
        )
    marker = json.dumps(sorted(files)).encode()
    whole.replace_all(folder, {**files, MARKER: marker}, _earlier(folder) - files.keys())
    return tuple(folder / name for name in files)


def _earlier(folder: Path) -> set[str]:
    """Tables that were written into a folder; what else a file says there does not count."""
    names = kept.load(folder / MARKER)
    told = {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()
    return {name for name in told if name == os.path.basename(name) and name.endswith(".csv")}


def _file_name(text: str, taken: set[str]) -> str:
    """A name that is one everywhere."""
    name = re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip(".-")[:80]
    others = (f"{name}-{number}" for number in range(2, len(taken) + 3))
    return next(each for each in (name, *others) if each not in taken)


def _escaped(text: str) -> str:
    """Text that is nothing but text in Markdown, and disturbs no terminal."""
    plain = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    plain = re.sub(r"([\\`*\[\]|#~$]|(?<!\w)_|_(?!\w))", r"\\\1", plain)
    return plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
