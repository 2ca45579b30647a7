"""Tables of benchmark runs: the paper's, with the published figures, and one for each other group of runs."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any, TypeAlias

from sortal.config import BACKBONE, METHODS, Contrast
from sortal.research.benchmark import aggregate, published
from sortal.research.benchmark.aggregate import Group, figure, flat, lines, share, shortened
from sortal.research.benchmark.presets import (
    ABLATED,
    ACCURACY_TABLES,
    COUNTED,
    DATASET_TITLES,
    PAPER_METHODS,
    PRESETS,
    RIVAL_TITLES,
    RIVALRY,
    Preset,
)
from sortal.research.benchmark.records import SHARES, KRecord, Record, RequestedK
from sortal.research.benchmark.typesetting import Cell, Figure, Table, file_name
from sortal.system.gathering import gathered

TITLES = {
    "table2": "Table 2: generic images",
    "table3": "Table 3: fine-grained images",
    "table4": "Table 4: number of classes",
    "table5": "Table 5: ablation",
    "table6": "Table 6: aircraft",
    "rivals": "Later methods",
}
K_WORDS = {"true": "true k", "auto": "estimated k", "own": "the method's own k"}
ABOUT_ACCURACY = (
    "Accuracy on the unlabelled images in %, true k: mean ± sample standard deviation over seeds; published figures "
    "in brackets.",
    "GCD: our epoch is the best one on validation images of old classes; the published epoch was selected on the test "
    "split, with new classes and true k.",
)
ABOUT_SIMGCD = "SimGCD is newer than the paper; its published figures are means of 5 runs."
ABOUT_RIVALS = (
    "The last epoch; the published figures of DebGCD are those of the epoch with the best true accuracy, and those of "
    "CMS, SelEx and Hyp-SelEx of the epoch with the best Old on the test split."
)
ABOUT_K = "Mean ± sample standard deviation over seeds; published figures in brackets. The error is in %."
ABOUT_OTHERS = (
    "In %, except k, seeds and minutes: mean ± sample standard deviation over seeds. Legacy matches old and new "
    "classes separately; Old by name compares the names of categories, without a match; Inductive is on the test "
    "split, whose images of old classes decide the epoch where one is selected. Minutes exclude stages reused from "
    "other runs.",
)
BOUND_TITLES = {"floor": "Floor: raw k-means", "ceiling": "Ceiling: linear probe on the truth"}
ABOUT_BOUNDS = (
    "Floor is k-means on the features of the network as it came, without labels, with the true k. Ceiling is a linear "
    "probe on the same features that is trained on the truth of all other images; a method that trains the network may "
    "pass it."
)
OTHER_HEADINGS = (
    *("All", "Old", "New", "Legacy All", "Old by name", "NMI", "ARI", "k"),
    *("Inductive All", "Inductive Old", "Inductive New", "Seeds", "Minutes"),
)

Row: TypeAlias = tuple[tuple[str, ...], Mapping[str, Sequence[Record]]]  # first cells, and records by column


def tables(records: Sequence[Record]) -> tuple[Table, ...]:
    """Return the paper's tables for which there are records, then the others, whatever the order of records."""
    by_name: dict[str, list[Record]] = {}
    others: list[Record] = []
    for record in sorted(records, key=lambda record: json.dumps(record.to_json(), sort_keys=True)):
        group = by_name.setdefault(record.name, []) if _is_preset(record) else others
        group.append(record)
    with_bounds = (*ACCURACY_TABLES, "rivals")
    of_methods = [run for name, some in by_name.items() for run in some if name.partition("/")[0] in with_bounds]
    for bound in bound_records(of_methods, lambda record, which: f"{record.name.rpartition('/')[0]}/{which}"):
        by_name.setdefault(bound.name, []).append(bound)
    others += bound_records(others, lambda record, which: f"{record.dataset}/{which}")
    present = {name.partition("/")[0] for name in by_name}
    return (*(_paper(table, by_name) for table in TITLES if table in present), *_others(others))


def bound_records(
    found: Iterable[Record], name: Callable[[Record, str], str], asked: RequestedK | None = None
) -> list[Record]:
    """Return the floors and ceilings of runs as runs of their own, once for each seed, however many runs have them."""
    made: dict[tuple[Any, ...], Record] = {}
    for record in found:
        k, n_init = asked or record.k.asked, record.recipe.get("n_init")
        for which in BOUND_TITLES if record.bounds is not None else ():
            bound = replace(
                record,
                name=name(record, which),
                version=None,
                method=which,
                clustering="",
                k=KRecord(asked=k, k=record.k.true, true=record.k.true, error=0.0),
                transductive=getattr(record.bounds, which),
                inductive=None,
                recipe={"n_init": n_init},
                training=None,
                timings={},
                unreadable=(),
                bounds=None,
            )
            images = bound.transductive.images
            made.setdefault((bound.name, bound.backbone, bound.weights, bound.seed, str(k), n_init, images), bound)
    return [*made.values()]


def _is_preset(record: Record) -> bool:
    """Tell whether a run is an unmodified preset; the recipes of other versions are not known here."""
    preset = PRESETS.get(record.name)
    if preset is None or record.version is None or record.weights == "random weights":
        return False
    if (record.dataset, record.backbone, record.k.asked) != (preset.dataset, preset.backbone, preset.k):
        return False
    ours, theirs = flat(preset.settings()), flat(record.recipe)
    return record.version != preset.version or all(ours[name] == theirs[name] for name in ours.keys() & theirs.keys())


def _paper(table: str, by_name: Mapping[str, Sequence[Record]]) -> Table:
    names: dict[tuple[str, ...], list[str]]  # of the presets of each row, by its first cells
    header: tuple[str, ...]
    about: tuple[str, ...] = ABOUT_ACCURACY
    cells_of = _accuracy_cells
    if table == "table4":
        names = {(DATASET_TITLES[dataset],): [f"table4/{dataset}"] for dataset in COUNTED}
        header = ("Data set", "k", "k of each seed", "Classes", "Error", "Seeds")
        cells_of, about = _k_cells, (ABOUT_K,)
    elif table == "table5":
        rows_of = {row: [f"table5/{dataset}/{row}" for dataset in ABLATED] for row in range(1, 7)}
        names = {(f"Row {row}", *_parts(PRESETS[own[0]])): own for row, own in rows_of.items()}
        header = ("Ablation", "Backbone", "Unsupervised loss", "Supervised loss", "Clustering", *_headings(ABLATED))
    else:
        of_paper = {method: METHODS[method].title for method in PAPER_METHODS}
        of, methods = (RIVALRY, RIVAL_TITLES) if table == "rivals" else (ACCURACY_TABLES[table], of_paper)
        names = {(title,): [f"{table}/{dataset}/{row}" for dataset in of] for row, title in methods.items()}
        header = ("Method", *_headings(of))
        about = (ABOUT_ACCURACY[0], ABOUT_RIVALS) if table == "rivals" else (*ABOUT_ACCURACY, ABOUT_SIMGCD)
        rows_of_bounds = {which: [f"{table}/{dataset}/{which}" for dataset in of] for which in BOUND_TITLES}
        if any(name in by_name for own in rows_of_bounds.values() for name in own):
            titles = {which: (title,) for which, title in BOUND_TITLES.items()}
            names = {titles["floor"]: rows_of_bounds["floor"], **names, titles["ceiling"]: rows_of_bounds["ceiling"]}
            about = (*about, ABOUT_BOUNDS)
    rows: list[Row] = [(first, {name: by_name.get(name, ()) for name in own}) for first, own in names.items()]
    empty = Table(name=table, title=TITLES[table], header=header, notes=(*about, _made_with(rows)))
    return _fill(empty, rows, cells_of)


def _parts(preset: Preset) -> tuple[str, ...]:
    """Return the cells that describe a row of the ablation."""
    losses = preset.recipe.losses
    supervised = losses.supervised_weight if isinstance(losses, Contrast) else None
    return (
        "ViT-B/16" if preset.backbone == BACKBONE else "ResNet-50",
        "no" if supervised in (None, 1) else "yes",
        "no" if supervised in (None, 0) else "yes",
        "k-means" if preset.recipe.clustering == "kmeans" else "semi-supervised k-means",
    )


def _headings(datasets: Sequence[str]) -> list[str]:
    return [f"{DATASET_TITLES[dataset]} {what}" for dataset in datasets for what in ("All", "Old", "New", "seeds")]


def _accuracy_cells(name: str, group: Group) -> list[Cell]:
    known = zip(SHARES, published.accuracy(name) or (None, None, None), strict=True)
    figures = [share(group, f"accuracy.{of}", figure_of) for of, figure_of in known]
    return [*figures, len(group) or None]


def _k_cells(name: str, group: Group) -> list[Cell]:
    estimated, true = published.CLASS_COUNTS[name.removeprefix("table4/")]
    return [
        aggregate.number_of_classes(group, estimated),
        ", ".join(str(record.k.k) for record in group) or None,
        group[0].k.true if group else true,
        figure([100 * record.k.error for record in group], 100 * abs(estimated - true) / true),
        len(group) or None,
    ]


def _made_with(rows: Sequence[Row]) -> str:
    """Name the versions of the recipes and the weights, which may come from any file."""
    records = [record for _, by_column in rows for some in by_column.values() for record in some]
    versions = ", ".join(str(version) for version in sorted({record.version for record in records if record.version}))
    weights = "; ".join(sorted({f"{record.backbone} with {shortened(record.weights)}" for record in records}))
    return f"Recipe version {versions}; {weights}."


def _others(records: Sequence[Record]) -> list[Table]:
    """Return one table per data set, backbone, weights and requested k."""

    def where(record: Record) -> tuple[str, str, str, str]:
        return record.dataset, record.backbone, record.weights, str(record.k.asked)

    made: list[Table] = []
    for (dataset, backbone, weights, asked), some in groupby(sorted(records, key=where), where):
        name = file_name(f"{dataset}-{backbone}-k-{asked}", {table.name for table in made})
        title = f"{dataset}: {backbone}, {shortened(weights)}, {K_WORDS.get(asked, f'k = {asked}')}"
        runs = sorted(some, key=lambda record: (_BOUND_PLACES.get(record.method, 0), _place(record)))
        of_methods = [run.settings for run in runs if run.method not in BOUND_TITLES]
        shared = [each for each in of_methods[0] if all(each in others for others in of_methods)]
        label_of = partial(_label, shared=shared)
        rows: list[Row] = [((label,), {"": [*group]}) for label, group in groupby(runs, label_of)]
        notes = ABOUT_OTHERS if len(of_methods) == len(runs) else (*ABOUT_OTHERS, ABOUT_BOUNDS)
        notes = (*notes, f"All methods were run with {', '.join(shared)}.") if shared else notes
        empty = Table(name=name, title=title, header=("Method", *OTHER_HEADINGS), notes=notes)
        made.append(_fill(empty, rows, _other_cells))
    return made


_BOUND_PLACES = {"floor": -1, "ceiling": 1}


def _title(record: Record) -> str:
    """Return the name of a run in the table of its data set, without settings; a modified preset keeps its own name."""
    if record.method in BOUND_TITLES:
        return BOUND_TITLES[record.method]
    own = record.name if record.name in PRESETS else record.name.partition("/")[2] or record.name
    method = own.partition(" ")[0]
    if method in METHODS:
        return METHODS[method].title
    return record.title if record.title and method == record.method else method  # its code may be missing here


def _label(record: Record, shared: Sequence[str]) -> str:
    return " ".join((_title(record), *(each for each in record.settings if each not in shared)))


def _place(record: Record) -> tuple[int, str, tuple[str, ...]]:
    """Return a sort key: methods in the order of the paper, then the rest by name."""
    title, titles = _title(record), [*(METHODS[method].title for method in PAPER_METHODS), *RIVAL_TITLES.values()]
    return titles.index(title) if title in titles else len(titles), title, record.settings


def _other_cells(_: str, group: Group) -> list[Cell]:
    return [
        *(share(group, f"accuracy.{of}") for of in SHARES),
        *(share(group, score) for score in ("legacy.all", "known_accuracy", "nmi", "ari")),
        aggregate.number_of_classes(group),
        *(share(group, f"accuracy.{of}", part="inductive") for of in SHARES),
        len(group),
        figure([record.minutes if record.timings else None for record in group]),
    ]


def _fill(table: Table, rows: Sequence[Row], cells_of: Callable[[str, Group], list[Cell]]) -> Table:
    body: list[tuple[Cell, ...]] = []
    notes = [*table.notes]
    for (label, *leading), by_column in rows:
        found, differences = lines(label, by_column)
        notes += differences
        for own, groups in found.items():
            further = [cell for column in by_column for cell in cells_of(column, groups.get(column, ()))]
            body.append((own, *leading, *further))
            notes += _partial(own, table.header, body[-1])
    return replace(table, rows=tuple(body), notes=tuple(notes))


def _partial(label: str, header: Sequence[str], row: Sequence[Cell]) -> list[str]:
    """Note the figures that some runs lack."""
    figures = ((heading, cell) for heading, cell in zip(header, row, strict=True) if isinstance(cell, Figure))
    short = gathered((f"{cell.n} of {cell.runs} seeds", name) for name, cell in figures if 0 < cell.n < cell.runs)
    return [f"{label}: only {seeds} have {', '.join(headings)}." for seeds, headings in short.items()]
