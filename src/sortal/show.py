"""What the command line shows of a result, as text for people."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from sortal.check import ClassCount, Duplicates, Health
    from sortal.demo import DemoResult

CLASSES = 24  # as many are listed; of more, those with most and those with fewest images
FILES = 10  # of each finding


def demo(result: "DemoResult") -> None:
    def percent(fraction: float | None) -> str:
        return "n/a" if fraction is None else f"{100 * fraction:.1f}"

    table = _table("Accuracy, %", "All", "Old", "New")
    for name, row in (("plain k-means", result.plain), ("semi-supervised k-means", result.semi_supervised)):
        table.add_row(name, percent(row.all), percent(row.old), percent(row.new))

    _line(
        f"{result.n_labelled + result.n_unlabelled:,} handwritten digits, {result.n_labelled:,} labelled. "
        f"Old classes {_span(result.old)}, new classes {_span(result.new)}."
    )
    _line(f"k = {result.k}, {'estimated' if result.k_estimated else 'given'}; the truth is {result.k_true}.\n")
    _console().print(table)
    _line(f"\nMeasured on the {result.n_unlabelled:,} unlabelled images; {result.seconds:.1f} s.")
    _line("On raw pixels labels gain little: the tightest clusters are not the digits.")


def _span(classes: Sequence[int]) -> str:
    return f"{min(classes)}–{max(classes)}"


def health(found: "Health", tiny: int) -> None:
    """The counts, then the findings, the worst first."""
    _line(
        f"{found.images:,} images: {found.labelled:,} labelled in {len(found.classes) - 1:,} classes, "
        f"{found.images - found.labelled:,} unlabelled.\n"
    )
    _classes(found)
    _duplicates("One image under two labels", found.duplicates, "two labels")
    _duplicates("One image labelled and unlabelled", found.duplicates, "labelled and unlabelled")
    _files("Unreadable, left out of every run", [(bad.file, f"{bad.reason}: {bad.detail}") for bad in found.unreadable])
    _duplicates("The same image several times", found.duplicates, "same")
    if found.near_duplicates is None:
        _line("\nNear-duplicates were not searched for: there are too many images.")
    for kind in ("two labels", "labelled and unlabelled", "same"):
        title = f"Nearly the same image, {'several times' if kind == 'same' else kind}"
        _duplicates(title, found.near_duplicates or (), kind, " ≈ ")
    _files(f"Tiny, shorter side below {tiny} pixels", [(file, "") for file in found.tiny])
    _files("Rotated by EXIF, shown upright", [(file, "") for file in found.rotated])
    _files("More than 8 bits a channel, scaled to 8", [(file, "") for file in found.deep])
    _files("No images by their extension, ignored", [(file, "") for file in found.ignored])
    if not any((found.unreadable, found.duplicates, found.near_duplicates, found.tiny, found.rotated, found.deep)):
        _line("\nNothing is wrong with them.")


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
        members = [
            f"{plain(file)} ({plain(label) if label is not None else 'unlabelled'})"
            for file, label in zip(group.files, group.labels, strict=True)
        ]
        rest = f" and {len(members) - 4:,} more" if len(members) > 4 else ""
        rows.append(sign.join(members[:4]) + rest)
    _list(title, rows)


def _files(title: str, files: Sequence[tuple[str, str]]) -> None:
    _list(title, [f"{plain(file)}  {plain(note)}".rstrip() for file, note in files])


def _list(title: str, rows: Sequence[str]) -> None:
    if not rows:
        return
    _line(f"\n{title}: {len(rows):,}")
    for row in rows[:FILES]:
        _line(f"  {row}")
    if len(rows) > FILES:
        _line(f"  … and {len(rows) - FILES:,} more; --json lists all")


def plain(text: str) -> str:
    """Text that cannot disturb a terminal: what is not printable is escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _table(first: str, *others: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column(first, overflow="fold")
    for heading in others:
        table.add_column(heading, justify="right")
    return table


def _console() -> Console:
    return Console(highlight=False, markup=False)


def _line(text: str) -> None:
    _console().print(text, soft_wrap=True)
