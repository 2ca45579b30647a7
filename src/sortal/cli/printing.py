"""Results as text, and a progress bar."""

import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from sortal.config import AUTO
from sortal.images.folders import is_picture, unread_pictures
from sortal.system.progress import Runtime, say, shown
from sortal.system.text import byte_sizes, duration, percent, plain, plural, shorten

if TYPE_CHECKING:
    from sortal.discovery.demo import DemoResult
    from sortal.discovery.dry_run import DryPrediction, DryRun
    from sortal.discovery.prediction import Prediction
    from sortal.exchange.export import ExportResult
    from sortal.exchange.importing import ImportResult
    from sortal.images.check import Duplicates, Health
    from sortal.images.decoding import Quarantined
    from sortal.research.benchmark.presets import Preset
    from sortal.research.benchmark.sweep import SweepResult
    from sortal.research.figures import FiguresResult
    from sortal.review.history import Decision
    from sortal.runs.run import Category, Run

CLASSES = 24  # listed at most; of more, the largest and the smallest
FILES = 10  # per finding
MEMBERS = 4  # per group of duplicates
NAME = 40  # characters of a category's name
PERSON, LINE = 60, 400  # characters of who decided something, and of any other text
NONE_HELD_OUT = "no labelled image, so confidence will not be calibrated; that takes about 100 labelled images"
MIN_CLASSES = 2  # with labels, to estimate how many there are
TOO_FEW = "To estimate how many classes there are, sortal discover needs two that are labelled; or tell it, with --k N."
UNREADABLE = "Unreadable files in the sample, which would be left out"
_percent = partial(percent, unit="")  # in tables whose heading has the unit
_SHA256 = re.compile(r"(?<=sha256 [0-9a-f]{8})[0-9a-f]+")  # all but the first eight digits


def runtime(first: str = "Starting", device: str = AUTO, workers: int | None = None) -> AbstractContextManager[Runtime]:
    """Return a context with a runtime that shows progress and notes on standard error."""
    return shown(Runtime(device=device, workers=workers), first)


def can_ask() -> bool:
    """Tell whether there is somebody to ask."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def agreed(text: str) -> bool:
    """Ask whether to go on."""
    say(text)
    print("Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def run(found: "Run") -> None:
    """Print a summary of a run and the path of its report."""
    _found(found)
    print(f"\nReport: {plain(str(found.report))}")


def _found(found: "Run") -> None:
    counts, k = found.counts(), found.k
    statuses = ", ".join(f"{count:,} {status}" for status, count in counts.items())
    print(f"{plural(len(found.assignments), 'image')}: {statuses}.")
    new = sum(category.kind == "new" for category in found.categories)
    how = "estimated" if k.estimated else "given"
    if k.interval and k.interval[0] < k.interval[1]:
        how += f", likely {k.interval[0]} to {k.interval[1]}"
    known = plural(len(found.categories) - new, "known category", "known categories")
    print(f"k = {k.k}, {how}: {known} and {new:,} new.\n")
    _categories(found.categories)
    if found.metrics is not None:
        m = found.metrics
        figures = ", ".join(f"{part.capitalize()} {_percent(share)}" for part, share in vars(m.accuracy).items())
        print(f"\nAccuracy, %: {figures}; on the {plural(m.images, 'unlabelled image')} whose truth is known.")
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
        table.add_row(
            f"… {plural(len(rest), 'more category', 'more categories')}", "", *(f"{number:,}" for number in sums), ""
        )
    _show(table)


def dry_run(p: "DryRun") -> None:
    """Print the plan of a run and its cost."""
    _plan(
        ("images", f"{p.images:,}: {p.labelled:,} labelled in {_classes_of(p.classes)}, {p.unlabelled:,} unlabelled"),
        (
            "held out",
            f"{plural(p.held_out, 'labelled image')}, to calibrate confidence" if p.held_out else NONE_HELD_OUT,
        ),
        ("classes", "estimated" if p.k == "auto" else f"k = {p.k}"),
        ("backbone", f"{p.backbone}, {_SHA256.sub('…', p.weights)}"),
        ("training", _training(p)),
        ("device", p.device),
        ("memory", f"about {byte_sizes(p.memory)[0]}"),
        ("disk", f"about {byte_sizes(p.disk)[0]}; {byte_sizes(p.free_disk)[0]} free"),
        ("time", times(p.seconds)),
    )
    for text in p.notes:
        print(f"\n{plain(text)}")
    _files(UNREADABLE, p.unreadable_sample)


def dry_prediction(p: "DryPrediction") -> None:
    """Print the plan of a prediction and its cost."""
    added = f", to be added to the {p.in_run:,} of the run, as far as it does not have them" if p.update else ""
    _plan(
        ("images", f"{p.images:,}{added}"),
        ("backbone", p.backbone),
        ("device", p.device),
        ("disk", f"about {byte_sizes(p.disk)[0]}; {byte_sizes(p.free_disk)[0]} free"),
        ("time", times(p.seconds)),
    )
    _files(UNREADABLE, p.unreadable_sample)


def _plan(*rows: tuple[str, str]) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in rows:
        table.add_row(name, plain(value))
    _show(table)


def times(seconds: dict[str, float]) -> str:
    """Return the sum of the seconds by stage, and those that matter."""
    stages = ", ".join(f"{name} {duration(each)}" for name, each in seconds.items() if each >= 0.5)
    return f"about {duration(sum(seconds.values()))}{f': {stages}' if stages else ''}"


def _classes_of(count: int) -> str:
    return plural(count, "class", "classes")


def _training(p: "DryRun") -> str:
    if p.method == "kmeans" or not p.epochs:
        return "none"
    views = "new views in every epoch" if p.views is None else f"{p.views} cached views per image"
    where = f"; {p.tokens}" if p.tokens is not None else ""
    return f"{plural(p.epochs, 'epoch')}, {views}{where}"


def prediction(found: "Prediction", images: Sequence[Path], csv: Path | None) -> None:
    """Print how many images are in each category, what could not be read, and the next steps."""
    a = found.assignments
    counts = {status: int((a.status == status).sum()) for status in ("known", "new", "unsure")}
    print(f"{plural(len(a), 'image')}: {', '.join(f'{count:,} {status}' for status, count in counts.items())}.")
    if len(a):
        print()
        _predicted(found)
    _unreadable(found.quarantine)
    print()
    if found.added:
        print(f"{plural(found.added, 'image')} added to the run. Report: {plain(str(found.run.report))}")
        for each in found.run.candidates[:FILES]:
            far = f"{plural(len(each.files), 'image')} far from all others"
            such = ", ".join(map(_line, each.files[:3]))
            print(f"  candidate {each.id} for a new category: {far}, such as {such}")
    again = shlex.join(["sortal", "predict", *(plain(str(place)) for place in (found.run.folder, *images))])
    print(f"Table: {plain(str(csv))}" if csv else f"To get the category of each image: {again} --csv FILE")
    if not found.added:
        print(f"To add these images to the run: {again} --update")


def _predicted(found: "Prediction") -> None:
    """Print the categories that images were put into, the largest first."""
    a, of = found.assignments, {each.id: each for each in found.run.categories}
    table = _table("Category", "Kind", "Images", "Unsure")
    rows: list[tuple[str, str, int, int]] = []
    for category, size in Counter(a.category_id.tolist()).most_common():
        unsure = int(((a.category_id == category) & (a.status == "unsure")).sum())
        rows.append((shorten(plain(of[category].name), NAME), of[category].kind, size, unsure))
    shown = rows if len(rows) <= CLASSES else rows[: CLASSES - 1]
    rest = rows[len(shown) :]
    if rest:
        shown = [
            *shown,
            (
                f"… {plural(len(rest), 'more category', 'more categories')}",
                "",
                sum(row[2] for row in rest),
                sum(row[3] for row in rest),
            ),
        ]
    for name, kind, *numbers in shown:
        table.add_row(name, kind, *(f"{number:,}" for number in numbers))
    _show(table)


def exported(written: "ExportResult") -> list[str]:
    lines = [f"{plural(written.images, 'image')} written as {written.format}: {plain(str(written.out))}"]
    lines += _first([f"missing, left out: {_line(file)}" for file in written.missing], "more")
    return lines + _first([f"changed since it was sorted, left out: {_line(file)}" for file in written.changed], "more")


def decisions(lines: "Sequence[Decision]", told: Sequence[str]) -> None:
    """Print what was decided, when and by whom."""
    if not lines:
        print("Nobody has decided anything about this run yet.")
        return
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for heading in ("", "When", "Who", "What"):
        table.add_column(heading, overflow="fold", justify="right" if not heading else "left")
    for number, (line, words) in enumerate(zip(lines, told, strict=True), start=1):
        when = plain(line.at[:16].replace("T", " "))
        table.add_row(str(number), when, shorten(plain(line.by), PERSON), _line(words))
    _show(table)


def joined(added: "Sequence[Decision]", told: Sequence[str]) -> None:
    """Print how many decisions were added, and those that are disputed."""
    rows = [_said(*each) for each in zip(added, told, strict=True) if each[0].disputed]
    print(f"{plural(len(added) - len(rows), 'decision')} added, {len(rows):,} disputed.")
    _list("Not carried out", rows)


def imported(found: "ImportResult") -> None:
    """Print what an import has decided, and what it has left out."""
    disputed = sum(bool(line.disputed) for line in found.decisions)
    added = plural(len(found.decisions) - disputed, "decision")
    print(f"{plural(found.images, 'image')} in {plain(str(found.file))} ({found.format}): {added} added.")
    _list("Added", [_said(*each) for each in _told(found) if not each[0].disputed])
    _list("Not carried out", [_said(*each) for each in _told(found) if each[0].disputed])
    _list("Names taken for others", [f"{_line(name)} → {_line(meant)}" for name, meant in found.respelt.items()])
    _files("Left out, not in the run", found.missing)
    _files("Left out, with several categories", found.disagreeing)
    if found.unchanged:
        print(f"\n{plural(found.unchanged, 'image')}: nothing new.")


def _told(found: "ImportResult") -> Iterator[tuple["Decision", str]]:
    return zip(found.decisions, found.words, strict=True)


def _said(line: "Decision", words: str) -> str:
    return f"{shorten(plain(line.by), PERSON)}: {_line(words)}"


def drawn(result: "FiguresResult") -> list[str]:
    left_out = [f"Left out: {name}. {plain(why)}" for name, why in result.left_out.items()]
    return [*map(plain, result.files), *left_out]


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
        print(f"{lines[0]}\n{'─' * len(lines[0])}")
    name = None
    for record, line in zip(result.records, lines[1:], strict=True):
        if record.name != name:
            print(plain(record.name))
        name = record.name
        print(line)
    for title, why in result.failed:
        print(f"\nFailed: {plain(title)}: {plain(why)}")
    _unreadable(result.unreadable)
    if result.folders:
        place = plain(os.path.commonpath(result.folders))
        print(f"\nThe runs are in {place}; sortal benchmark table makes tables of them.")


def presets(by_name: "Mapping[str, Preset]") -> None:
    """Print the presets, with unbroken names at any width of the terminal."""
    longest = max(map(len, by_name))
    print(f"{'Preset':{longest}}   Version   Recipe\n{'─' * 80}")
    for preset in by_name.values():
        start = f"{preset.name:{longest}}   {preset.version!s:>7}   "
        print(fill(preset.title, 80, initial_indent=start, subsequent_indent=" " * len(start)))


def demo(result: "DemoResult") -> None:
    _found(result.run)
    table = _table("Accuracy, %", "All", "Old", "New")
    for name, row in (
        ("k-means on pixels", result.plain),
        ("semi-supervised k-means on pixels", result.semi_supervised),
        ("sortal discover", result.discovered),
    ):
        table.add_row(name, *map(_percent, astuple(row)))
    print(f"\nThere are {result.k_true} true classes. On the unlabelled images, with k = {result.run.k.k}:\n")
    _show(table)
    print(f"\n{duration(result.seconds)}. Report: {plain(str(result.run.report))}")
    print(f"To name the new classes and correct the result: sortal review {shlex.quote(plain(str(result.run.folder)))}")


def health(found: "Health", tiny: int) -> None:
    """Print the counts, then the findings, the worst first."""
    bad = f" {plural(len(found.unreadable), 'is', 'are')} unreadable." if found.unreadable else ""
    labelled = f"{found.labelled:,} labelled in {_classes_of(len(found.classes) - 1)}"
    print(f"{plural(found.images, 'image')}: {labelled}, {found.images - found.labelled:,} unlabelled.{bad}\n")
    _classes(found)
    _list("Classes whose names differ only in case and spaces", [" = ".join(map(_line, g)) for g in found.alike_names])
    _duplicates(
        "Images with two labels (exit code 1), which a run ignores; keep one copy of each",
        found.duplicates,
        "two labels",
    )
    _duplicates("Images both labelled and unlabelled", found.duplicates, "labelled and unlabelled")
    _unreadable(found.unreadable)
    _duplicates("Duplicates", found.duplicates, "same")
    if found.near_duplicates is None:
        print("\nToo many images to search for near-duplicates.")
    for kind in ("two labels", "labelled and unlabelled", "same"):
        title = f"Near-duplicates{'' if kind == 'same' else f', {kind}'}"
        _duplicates(title, found.near_duplicates or (), kind, " ≈ ")
    _files(f"Tiny, shorter side below {tiny} pixels", found.tiny, found.images)
    _files("Rotated by EXIF, shown upright", found.rotated, found.images)
    _files("More than 8 bits per channel, scaled to 8", found.deep, found.images)
    for text in unread_pictures(found.ignored):
        print(f"\n{_line(text)}")
    _files("Ignored, not pictures", [name for name in found.ignored if not is_picture(name)])
    odd = (found.tiny, found.rotated, found.deep, unread_pictures(found.ignored))
    sound = not any((found.alike_names, found.unreadable, found.duplicates, found.near_duplicates, *odd))
    if sound and len(found.classes) > MIN_CLASSES:  # with the unlabelled
        print("\nNo problems found.")


def _classes(found: "Health") -> None:
    *known, unlabelled = found.classes
    table = _table("Class", "Images", *(["Unreadable"] if found.unreadable else []))
    rows = [(shorten(plain(each.name), NAME), each.images, each.unreadable) for each in known]
    if len(rows) > CLASSES:
        rows.sort(key=lambda row: -row[1])
        between = slice(CLASSES // 2, -(CLASSES // 2))
        names, images, unreadable = zip(*rows[between], strict=True)
        rows[between] = [(f"… {plural(len(names), 'more class', 'more classes')}", sum(images), sum(unreadable))]
    if unlabelled.images:
        rows.append(("(unlabelled)", unlabelled.images, unlabelled.unreadable))
    for name, *counts in rows:
        table.add_row(name, *(f"{count:,}" for count in counts[: len(table.columns) - 1]))
    _show(table)
    if not known:
        print("\nNo image is labelled. Put the images of a class into a folder named after it, or pass --labels TABLE.")
    if len(known) < MIN_CLASSES:
        labelled = "Only one class is labelled. " if known else ""
        print(f"\n{labelled}{TOO_FEW}")


def _duplicates(title: str, groups: "Sequence[Duplicates]", kind: str, sign: str = " = ") -> None:
    rows = []
    for group in (each for each in groups if each.kind == kind):
        labels = ["unlabelled" if label is None else shorten(plain(label), NAME) for label in group.labels]
        order = sorted(range(len(labels)), key=lambda row: labels[row] in labels[:row])  # one file of each label first
        named = [f"{_line(group.files[row])} ({labels[row]})" for row in order[:MEMBERS]]
        rest = f" and {len(labels) - MEMBERS:,} more" if len(labels) > MEMBERS else ""
        rows.append(sign.join(named) + rest)
    _list(title, rows)


def _unreadable(files: "Sequence[Quarantined]") -> None:
    """Print unreadable files, grouped by reason."""
    if not files:
        return
    by_reason: dict[str, list[tuple[str, str]]] = {}
    for bad in files:
        reason = _line(f"{bad.reason}: {bad.detail}")
        by_reason.setdefault(reason, []).append((reason, _line(bad.file)))
    print(f"\nUnreadable, left out of every run (exit code 3): {len(files):,}")
    ordered = list(chain.from_iterable(by_reason.values()))
    for reason, rows in groupby(ordered[:FILES], key=itemgetter(0)):
        print(f"  {reason}", *(f"    {file}" for _, file in rows), sep="\n")
    if len(files) > FILES:
        print(f"  … and {len(files) - FILES:,} more; --json lists all")
    if hint := _raise_limit(files):
        print(f"  {hint}")


def _raise_limit(files: "Sequence[Quarantined]") -> str:
    """Name the option for images with too many pixels, if any of these has."""
    return "Use larger images with --max-pixels N." if any("max_pixels" in bad.detail for bad in files) else ""


def _files(title: str, files: Sequence[str], of: int = 0) -> None:
    if files and len(files) == of:
        print(f"\n{title}: all {of:,}")
    else:
        _list(title, [_line(file) for file in files])


def _list(title: str, rows: Sequence[str]) -> None:
    if rows:
        print(f"\n{title}: {len(rows):,}", *_first(rows), sep="\n")


def _first(rows: Sequence[str], more: str = "more; --json lists all") -> list[str]:
    """Indent the first rows, and count the others."""
    rest = [f"  … and {len(rows) - FILES:,} {more}"] if len(rows) > FILES else []
    return [*(f"  {row}" for row in rows[:FILES]), *rest]


def _line(text: object) -> str:
    """Return text that a terminal shows as it is, shortened to a few lines."""
    return shorten(plain(text), LINE)


def _table(first: str, *others: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column(first, overflow="fold")
    for heading in others:
        table.add_column(heading, justify="right")
    return table


def _show(table: Table) -> None:
    Console(highlight=False, markup=False, emoji=False).print(table)
