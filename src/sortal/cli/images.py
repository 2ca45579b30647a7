"""The commands on images without a run: check, sample and features."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from sortal.cli import printing
from sortal.cli.options import Device, Flag, Flat, Images, Json, Labelled, TableOption, Workers, source_of
from sortal.config import AUTO, MAX_PIXELS, Reading
from sortal.images.class_names import like_places
from sortal.images.folders import is_picture, unread_pictures
from sortal.system.text import plain, plural

if TYPE_CHECKING:
    from sortal.images.check import Duplicates, Health

CHECK_EXAMPLES = """\
Examples:
  sortal check photos
  sortal check photos --labels labels.csv --unlisted unlabelled
  sortal check photos --json > report.json
"""
FEATURES_EXAMPLES = """\
Examples:
  sortal features photos --out photos.parquet
  sortal discover photos --features photos.parquet
"""
SAMPLE_EXAMPLES = """\
Examples:
  sortal sample digits OUT
  sortal check OUT --labels OUT/labels.csv
"""
MOST_MEMBERS = 4  # listed of a group of duplicates
SMALLEST_CLASSES = 12  # listed below the largest, if there are many
MIN_CLASSES = 2  # with labels, to show what sets classes apart
TOO_FEW = "sortal discover then goes by looks alone; labels of two classes or more tell it which differences matter."
TWO_LABELS = "Images with two labels (exit code 1), which a run ignores; keep one copy of each"


def check(
    images: Images,
    *,
    labels: TableOption = None,
    reading: Annotated[Reading, Flat] = Reading(),
    tiny: Annotated[int, Parameter(help="Report images whose shorter side has fewer pixels.")] = 32,
    max_pixels: Annotated[int, Parameter(help="Refuse images with more pixels.")] = MAX_PIXELS,
    workers: Workers = None,
    json: Json = False,
) -> int:
    """Check a folder of images before training on it.

    Reads every image once and changes nothing. Reports images per class,
    files that cannot be read, duplicates (first those with two labels, or both
    labelled and unlabelled), near-duplicates, tiny, rotated and 16-bit images.

    Each folder in IMAGES is a class, except the one named unlabelled; loose
    files are unlabelled too. With a table, folders have no meaning.

    Exit codes: 0 all images can be used; 1 an image has two labels; 2 bad usage
    or input; 3 some files cannot be read.
    """
    from sortal.exchange.field_data import lacking
    from sortal.images.check import check
    from sortal.images.reading import read_images

    with printing.runtime("Finding images", workers=workers) as runtime:
        found = read_images(source_of(images), labels=labels, need_labels=False, **asdict(reading))
        health = check(found, tiny=tiny, max_pixels=max_pixels, runtime=runtime)
    printing.print_json(asdict(health)) if json else print_health(health, tiny)
    if not json and (text := lacking(found.columns, len(found))):
        print(f"\n{text}")
    return 1 if health.contradictions else 3 if health.unreadable else 0


def print_health(found: "Health", tiny: int) -> None:
    """Print the counts, then the findings, the worst first."""
    bad = f" {plural(len(found.unreadable), 'is', 'are')} unreadable." if found.unreadable else ""
    labelled = f"{found.labelled:,} labelled in {plural(len(found.classes) - 1, 'class', 'classes')}"
    print(f"{plural(found.images, 'image')}: {labelled}, {found.images - found.labelled:,} unlabelled.{bad}\n")
    _print_classes(found)
    if found.like_places:
        print(f"\n{printing.line(like_places(found.like_places))}")
    if found.groups:
        print(f"\n{plural(found.grouped, 'image')} in {plural(found.groups, 'group')}, which stay together in a run.")
    alike = [" = ".join(map(printing.line, names)) for names in found.alike_names]
    printing.print_list("Classes whose names differ only in case and spaces", alike)
    _print_duplicates(TWO_LABELS, found.duplicates, "two labels")
    _print_duplicates("Images both labelled and unlabelled", found.duplicates, "labelled and unlabelled")
    printing.print_unreadable(found.unreadable)
    _print_duplicates("Duplicates", found.duplicates, "same")
    if found.near_duplicates is None:
        print("\nToo many images to search for near-duplicates.")
    for kind in ("two labels", "labelled and unlabelled", "same"):
        title = f"Near-duplicates{'' if kind == 'same' else f', {kind}'}"
        _print_duplicates(title, found.near_duplicates or (), kind, " ≈ ")
    _print_files(f"Tiny, shorter side below {tiny} pixels", found.tiny, found.images)
    _print_files("Rotated by EXIF, shown upright", found.rotated, found.images)
    _print_files("More than 8 bits per channel, scaled to 8", found.deep, found.images)
    unread = unread_pictures(found.ignored)
    for text in unread:
        print(f"\n{printing.line(text)}")
    _print_files("Ignored, not pictures", [name for name in found.ignored if not is_picture(name)])
    problems = (
        found.like_places,
        found.alike_names,
        found.unreadable,
        found.duplicates,
        found.near_duplicates,
        found.tiny,
        found.rotated,
    )
    if not any((*problems, found.deep, unread)) and len(found.classes) > MIN_CLASSES:  # with the unlabelled
        print("\nNo problems found.")


def _print_classes(found: "Health") -> None:
    *known, unlabelled = found.classes
    if len(known) > printing.TABLE_ROWS:
        known.sort(key=lambda each: -each.images)
    rows = [(printing.name(each.name), each.images, each.unreadable) for each in known]
    shown = printing.abridge(rows, "more class", "more classes", last=SMALLEST_CLASSES)
    if unlabelled.images:
        shown.append(("(unlabelled)", unlabelled.images, unlabelled.unreadable))
    headings = ("Class", "Images", "Unreadable") if found.unreadable else ("Class", "Images")
    printing.print_table(headings, [row[: len(headings)] for row in shown])
    if not known:
        print("\nNo image is labelled. Put the images of a class into a folder named after it, or pass --labels TABLE.")
    if len(known) < MIN_CLASSES:
        print(f"\n{'Only one class is labelled; ' if known else ''}{TOO_FEW}")


def _print_duplicates(title: str, groups: "Sequence[Duplicates]", kind: str, sign: str = " = ") -> None:
    rows = []
    for group in (each for each in groups if each.kind == kind):
        labels = ["unlabelled" if label is None else printing.name(label) for label in group.labels]
        order = sorted(range(len(labels)), key=lambda row: labels[row] in labels[:row])  # one file of each label first
        named = [f"{printing.line(group.files[row])} ({labels[row]})" for row in order[:MOST_MEMBERS]]
        rest = f" and {len(labels) - MOST_MEMBERS:,} more" if len(labels) > MOST_MEMBERS else ""
        rows.append(sign.join(named) + rest)
    printing.print_list(title, rows)


def _print_files(title: str, files: Sequence[str], images: int = 0) -> None:
    if files and len(files) == images:
        print(f"\n{title}: all {images:,}")
    else:
        printing.print_list(title, [printing.line(file) for file in files])


def sample(
    name: Annotated[Literal["digits"], Parameter(help="The sample.")],
    out: Annotated[Path, Parameter(help="Folder to write; it must be new or empty.")],
    *,
    labelled: Labelled = 0.5,
    seed: Annotated[int, Parameter(help="Seed for choosing the labelled images.")] = 0,
) -> None:
    """Write a built-in sample as image files and a table of labels.

    The digits are 1,797 real handwritten ones, 8 by 8 pixels. Half of the
    images of 0 to 4 are labelled in labels.csv; its column truth has every class.
    """
    from sortal.images.datasets.digits import TABLE, write

    images = write(out, labelled=labelled, seed=seed)
    print(f"Wrote {len(images):,} images and {TABLE} to {plain(out)}. Check them with:")
    print(f"  {shlex.join(['sortal', 'check', plain(out), '--labels', plain(out / TABLE)])}")


def features(
    images: Images,
    *,
    out: Annotated[Path, Parameter(help="File to write: .parquet or .npz.")],
    backbone: Annotated[str, Parameter(help="Network that computes them, as in sortal discover.")] = AUTO,
    weights: Annotated[str | None, Parameter(help="File of its weights; downloaded from the hub by default.")] = None,
    labels: TableOption = None,
    reading: Annotated[Reading, Flat] = Reading(),
    max_pixels: Annotated[int, Parameter(help="Leave out images with more pixels.")] = MAX_PIXELS,
    device: Device = "auto",
    workers: Workers = None,
    force: Annotated[Flag, Parameter(help="Overwrite the file.")] = False,
) -> int:
    """Compute the features of images, and nothing else.

    Writes the name, the label and the features of each image, as the network
    gives them, of unit length. The same command resumes after an interruption.
    sortal discover --features sorts them.

    Exit codes: 0 done; 1 failed; 2 bad usage or input; 3 done, but some files
    could not be read and were left out; 130 interrupted.
    """
    with printing.runtime("Finding images", device, workers) as runtime:
        from sortal.images.reading import read_images

        given = asdict(reading)
        read = read_images(source_of(images), labels=labels, need_labels=False, **given)
        from sortal.discovery.computing import compute_features

        asked: Any = {"backbone": backbone, "weights": weights, "force": force}
        found = compute_features(read, out, max_pixels=max_pixels, runtime=runtime, **asked)
    print(f"Features of {plural(len(found.x), 'image')}, {found.x.shape[1]:,} each: {plain(out)}")
    printing.print_unreadable(found.quarantine)
    return 3 if found.quarantine else 0
