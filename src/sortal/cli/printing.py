"""Results as text, and a progress bar."""

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, replace
from functools import partial
from textwrap import wrap
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from sortal.cli.stderr import note
from sortal.config import AUTO
from sortal.system.progress import Runtime
from sortal.system.text import byte_sizes, duration, percent, plain, plural, shorten

if TYPE_CHECKING:
    from sortal.discovery.demo import DemoResult
    from sortal.discovery.dry_run import DryRun
    from sortal.discovery.prediction import Prediction
    from sortal.images.check import ClassCount, Duplicates, Health
    from sortal.images.decoding import Quarantined
    from sortal.research.benchmark.sweep import SweepResult
    from sortal.research.figures import FiguresResult
    from sortal.runs.export import ExportResult
    from sortal.runs.run import Category, Run

CLASSES = 24  # listed at most; of more, the largest and the smallest
FILES = 10  # per finding
MEMBERS = 4  # per group of duplicates
NAME = 40  # characters of a category's name
_percent = partial(percent, unit="")  # in tables whose heading has the unit
_SHA256 = re.compile(r"(?<=sha256 [0-9a-f]{8})[0-9a-f]+")  # all but the first eight digits


@contextmanager
def runtime(first: str = "Starting", device: str = AUTO, workers: int | None = None) -> Iterator[Runtime]:
    """Yield a runtime that prints notes to stderr and, if that is a terminal, draws a bar with the time left."""
    quiet = Runtime(device=device, workers=workers, note=note)
    if sys.stderr is None or not sys.stderr.isatty():
        yield quiet
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(first, total=None)

        def show(what: str, done: int, total: int) -> None:
            if what != progress.tasks[0].description:
                progress.reset(task, description=what)
            progress.update(task, completed=done, total=total or None)

        yield replace(quiet, progress=show)


def run(found: "Run") -> None:
    """Print a summary of a run and the path of its report."""
    _found(found)
    _line(f"\nReport: {plain(str(found.report))}")


def _found(found: "Run") -> None:
    counts, k = found.counts(), found.k
    _line(f"{len(found.assignments):,} images: {', '.join(f'{count:,} {status}' for status, count in counts.items())}.")
    new = sum(category.kind == "new" for category in found.categories)
    how = f"estimated, likely {k.interval[0]} to {k.interval[1]}" if k.interval else "given"
    _line(f"k = {k.k}, {how}: {len(found.categories) - new:,} known categories and {new:,} new ones.\n")
    _categories(found.categories)
    if found.metrics is not None:
        m = found.metrics
        figures = ", ".join(f"{part.capitalize()} {_percent(share)}" for part, share in vars(m.accuracy).items())
        _line(f"\nAccuracy, %: {figures}; on the {m.images:,} unlabelled images whose truth is known.")
    _unreadable(found.quarantine)


def _categories(categories: "Sequence[Category]") -> None:
    """Print all categories, or the largest."""
    table = _table("Category", "Kind", "Images", "Labelled", "Unsure", "Cohesion")
    ranked = sorted(categories, key=lambda category: (category.kind != "known", -category.size))
    shown = ranked if len(ranked) <= CLASSES else sorted(ranked, key=lambda each: -each.size)[: CLASSES - 1]
    for each in shown:
        cohesion = "" if each.cohesion is None else f"{each.cohesion:.2f}"
        numbers = (f"{each.size:,}", f"{each.labelled:,}", f"{each.unsure:,}", cohesion)
        table.add_row(shorten(plain(each.name), NAME), each.kind, *numbers)
    rest = [each for each in categories if each not in shown]
    if rest:
        sums = (sum(getattr(each, name) for each in rest) for name in ("size", "labelled", "unsure"))
        table.add_row(f"… {len(rest):,} more categories", "", *(f"{number:,}" for number in sums), "")
    _console().print(table)


def dry_run(p: "DryRun") -> None:
    """Print the plan of a run and its cost."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in (
        ("images", f"{p.images:,}: {p.labelled:,} labelled in {p.classes:,} classes, {p.unlabelled:,} unlabelled"),
        ("held out", f"{p.held_out:,} labelled images, to calibrate confidence"),
        ("classes", "estimated" if p.k == "auto" else f"k = {p.k}"),
        ("backbone", f"{p.backbone}, {_SHA256.sub('…', p.weights)}"),
        ("training", _training(p)),
        ("device", p.device),
        ("memory", f"about {byte_sizes(p.memory)[0]}"),
        ("disk", f"about {byte_sizes(p.disk)[0]}; {byte_sizes(p.free_disk)[0]} free"),
        ("time", f"about {duration(sum(p.seconds.values()))}{_stages(p.seconds)}"),
    ):
        table.add_row(name, plain(value))
    _console().print(table)
    for text in p.notes:
        _line(f"\n{plain(text)}")
    _files("Unreadable files in the sample", p.unreadable_sample)


def _training(p: "DryRun") -> str:
    if p.method == "kmeans" or not p.epochs:
        return "none"
    views = "new views in every epoch" if p.views is None else f"{p.views} cached views per image"
    where = f"; {p.tokens}" if p.tokens is not None else ""
    return f"{p.epochs} epochs, {views}{where}"


def _stages(seconds: Mapping[str, float]) -> str:
    """List the stages that take half a second or more."""
    named = ", ".join(f"{name} {duration(each)}" for name, each in seconds.items() if each >= 0.5)
    return f": {named}" if named else ""


def prediction(found: "Prediction") -> list[str]:
    """Return the lines that summarise a prediction."""
    a = found.assignments
    counts = {status: int((a.status == status).sum()) for status in ("known", "new", "unsure")}
    lines = [f"{plural(len(a), 'image')}: {', '.join(f'{count:,} {status}' for status, count in counts.items())}."]
    for bad in found.quarantine[:FILES]:
        lines.append(f"  unreadable, left out: {plain(bad.file)} ({bad.reason}: {plain(bad.detail)})")
    if len(found.quarantine) > FILES:
        lines.append(f"  … and {len(found.quarantine) - FILES:,} more unreadable files")
    if found.added:
        lines.append(f"{plural(found.added, 'image')} added to the run; report: {plain(str(found.run.report))}")
        for each in found.run.candidates[:FILES]:
            lines.append(
                f"  candidate {each.id} for a new category: {plural(len(each.files), 'image')} far from all others, "
                f"such as {', '.join(map(plain, each.files[:3]))}"
            )
    return lines


def exported(written: "ExportResult") -> list[str]:
    lines = [f"{written.images:,} images written as {written.format}: {plain(str(written.out))}"]
    lines += [f"  missing, left out: {plain(file)}" for file in written.missing[:FILES]]
    if len(written.missing) > FILES:
        lines.append(f"  … and {len(written.missing) - FILES:,} more")
    return lines


def drawn(result: "FiguresResult") -> list[str]:
    lines = [f"{plain(str(file))}" for file in result.files]
    return [*lines, *(f"Left out: {name}. {plain(why)}" for name, why in result.left_out.items())]


def sweep(result: "SweepResult") -> None:
    """Print a line for each run under its name, the failures, and the next command."""
    rows: list[tuple[str, ...]] = [("  Seed", "k", "All", "Old", "New", "Legacy", "Test", "Time")]
    for record in result.records:
        t, test, k = record.transductive, record.inductive, record.k
        figures = [_percent(share) for share in astuple(t.accuracy)]
        beside = [_percent(t.legacy.all), _percent(test.accuracy.all if test else None)]
        of = f"{k.k}" if k.k == k.true else f"{k.k} (true {k.true})"
        rows.append((f"  {record.seed}", of, *figures, *beside, duration(sum(record.timings.values()))))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["   ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    if result.records:
        _line(f"{lines[0]}\n{'─' * len(lines[0])}")
    name = None
    for record, line in zip(result.records, lines[1:], strict=True):
        if record.name != name:
            _line(plain(record.name))
        name = record.name
        _line(line)
    for title, why in result.failed:
        _line(f"\nFailed: {plain(title)}: {plain(why)}")
    if result.folders:
        _line(f"\nRuns are in {plain(os.path.commonpath(result.folders))}; sortal benchmark table tabulates them.")


def presets(rows: "Sequence[tuple[str, int | None, str, str]]") -> None:
    """Print the presets, with unbroken names at any width of the terminal."""
    longest = max(len(name) for name, *_ in rows)
    margin = longest + 3 + len("Version") + 3
    _line(f"{'Preset':{longest}}   Version   Recipe\n{'─' * 80}")
    for name, version, _, title in rows:
        first, *others = wrap(title, 80 - margin)
        _line("\n".join([f"{name:{longest}}   {version!s:>7}   {first}", *(" " * margin + line for line in others)]))


def demo(result: "DemoResult") -> None:
    _found(result.run)
    table = _table("Accuracy, %", "All", "Old", "New")
    rows = (
        ("k-means on pixels", result.plain),
        ("semi-supervised k-means on pixels", result.semi_supervised),
        ("sortal discover", result.discovered),
    )
    for name, row in rows:
        table.add_row(name, _percent(row.all), _percent(row.old), _percent(row.new))
    _line(f"\nThe truth is {result.k_true} classes. For k = {result.run.k.k}, on the unlabelled images:\n")
    _console().print(table)
    _line(f"\n{duration(result.seconds)}. Report: {plain(str(result.run.report))}")


def health(found: "Health", tiny: int) -> None:
    """Print the counts, then the findings, the worst first."""
    bad = f" {len(found.unreadable):,} are unreadable." if found.unreadable else ""
    _line(
        f"{found.images:,} images: {found.labelled:,} labelled in {len(found.classes) - 1:,} classes, "
        f"{found.images - found.labelled:,} unlabelled.{bad}\n"
    )
    _classes(found)
    _list("Classes whose names differ only in case and spaces", [" = ".join(map(plain, g)) for g in found.alike_names])
    _duplicates("Images with two labels (exit code 1); keep one of each", found.duplicates, "two labels")
    _duplicates("Images both labelled and unlabelled", found.duplicates, "labelled and unlabelled")
    _unreadable(found.unreadable)
    _duplicates("Duplicates", found.duplicates, "same")
    if found.near_duplicates is None:
        _line("\nToo many images to search for near-duplicates.")
    for kind in ("two labels", "labelled and unlabelled", "same"):
        title = f"Near-duplicates{'' if kind == 'same' else f', {kind}'}"
        _duplicates(title, found.near_duplicates or (), kind, " ≈ ")
    _files(f"Tiny, shorter side below {tiny} pixels", found.tiny, found.images)
    _files("Rotated by EXIF, shown upright", found.rotated, found.images)
    _files("More than 8 bits a channel, scaled to 8", found.deep, found.images)
    _files("Ignored, not in a supported format", found.ignored)
    odd = (found.tiny, found.rotated, found.deep)
    if found.labelled and not any((found.alike_names, found.unreadable, found.duplicates, found.near_duplicates, *odd)):
        _line("\nNo problems found.")


def _classes(found: "Health") -> None:
    *known, unlabelled = found.classes
    table = _table("Class", "Images", *(["Unreadable"] if found.unreadable else []))

    def add(name: str, counts: "Sequence[ClassCount]") -> None:
        columns = [sum(count.images for count in counts), sum(count.unreadable for count in counts)]
        table.add_row(name, *(f"{number:,}" for number in columns[: len(table.columns) - 1]))

    if len(known) <= CLASSES:
        top, between, bottom = known, [], []
    else:
        ranked, half = sorted(known, key=lambda count: -count.images), CLASSES // 2
        top, between, bottom = ranked[:half], ranked[half:-half], ranked[-half:]
    for count in top:
        add(plain(str(count.name)), [count])
    if between:
        add(f"… {len(between):,} more classes", between)
    for count in bottom:
        add(plain(str(count.name)), [count])
    if unlabelled.images:
        add("(unlabelled)", [unlabelled])
    _console().print(table)
    if not known:
        _line("\nNo image is labelled. Put the images of a class into a folder named after it, or pass --labels TABLE.")


def _duplicates(title: str, groups: "Sequence[Duplicates]", kind: str, sign: str = " = ") -> None:
    chosen = [group for group in groups if group.kind == kind]
    rows = []
    for group in chosen:
        labels = ["unlabelled" if label is None else plain(label) for label in group.labels]
        order = sorted(range(len(labels)), key=lambda row: labels[row] in labels[:row])  # one file of each label first
        named = [f"{plain(group.files[row])} ({labels[row]})" for row in order]
        rest = f" and {len(named) - MEMBERS:,} more" if len(named) > MEMBERS else ""
        rows.append(sign.join(named[:MEMBERS]) + rest)
    _list(title, rows)


def _unreadable(files: "Sequence[Quarantined]") -> None:
    """Print unreadable files, grouped by reason."""
    if not files:
        return
    _line(f"\nUnreadable, left out of every run (exit code 3): {len(files):,}")
    reasons: dict[str, list[str]] = {}
    for bad in files:
        reasons.setdefault(f"{bad.reason}: {bad.detail}", []).append(plain(bad.file))
    shown = 0
    for reason, names in reasons.items():
        if shown < FILES:
            _line(f"  {plain(reason)}")
            for name in names[: FILES - shown]:
                _line(f"    {name}")
            shown += len(names[: FILES - shown])
    _more(len(files) - shown)


def _files(title: str, files: Sequence[str], of: int = 0) -> None:
    if files and len(files) == of:
        _line(f"\n{title}: all {of:,}")
    else:
        _list(title, [plain(file) for file in files])


def _list(title: str, rows: Sequence[str]) -> None:
    if not rows:
        return
    _line(f"\n{title}: {len(rows):,}")
    for row in rows[:FILES]:
        _line(f"  {row}")
    _more(len(rows) - FILES)


def _more(count: int) -> None:
    if count > 0:
        _line(f"  … and {count:,} more; --json lists all")


def _table(first: str, *others: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column(first, overflow="fold")
    for heading in others:
        table.add_column(heading, justify="right")
    return table


def _console() -> Console:
    return Console(highlight=False, markup=False, emoji=False)


def _line(text: str) -> None:
    _console().print(text, soft_wrap=True)
