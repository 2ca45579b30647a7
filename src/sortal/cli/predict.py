"""The command predict: new images sorted with an existing run, and a table of them."""

import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from sortal.cli import printing
from sortal.cli.options import Device, DryRun, FeaturesOption, Flag, Json, RunFolder, Workers, source_or_pictures
from sortal.config import load_named_backbone
from sortal.errors import InputError, Remedy
from sortal.system.files import write_atomically
from sortal.system.publishing import holding, publishing
from sortal.system.regular_files import special
from sortal.system.temporary import sweep
from sortal.system.text import plain, plural

if TYPE_CHECKING:
    from sortal.discovery.forecast import PredictionForecast as Forecast
    from sortal.discovery.prediction import Prediction

PREDICT_EXAMPLES = """\
Examples:
  sortal predict photos-run new_photos
  sortal predict photos-run new_photos --csv table.csv
  sortal predict photos-run new_photos --update
  sortal predict photos-run new_photos --update --dry-run
"""
UPDATE_HELP = (
    "Add the images to the run: categories keep their ids, their centres move, and images far from all of them are "
    "grouped into candidates for new categories."
)
PREDICTED_FOLDERS_HELP = "A folder of images, or several; searched recursively."
CSV_HELP = "File to write the table to, a row per image; - is standard output."
MAX_PIXELS_HELP = "Leave out images with more pixels; as in the run by default."
OWN_BACKBONE_HELP = "The backbone of the run, if it is your own, FILE.py:NAME: code is loaded only where you name it."
ANOTHER_FILE = Remedy("choose another file", csv=...)
STDOUT = Path("-")


def predict(
    run: RunFolder,
    images: Annotated[list[Path] | None, Parameter(help=PREDICTED_FOLDERS_HELP, negative="")] = None,
    *,
    features: FeaturesOption = None,
    csv: Annotated[Path | None, Parameter(allow_leading_hyphen=True, help=CSV_HELP)] = None,
    update: Annotated[Flag, Parameter(help=UPDATE_HELP)] = False,
    max_pixels: Annotated[int | None, Parameter(help=MAX_PIXELS_HELP)] = None,
    backbone: Annotated[str | None, Parameter(help=OWN_BACKBONE_HELP)] = None,
    device: Device = "auto",
    workers: Workers = None,
    json: Json = False,
    force: Annotated[Flag, Parameter(help="Overwrite the table.")] = False,
    dry_run: DryRun = False,
) -> int:
    """Sort new images with an existing run, without training.

    Prints how many images belong to each category, known or new, and how many
    are unsure or fit none (other); --csv writes the category and the confidence
    of each image.

    Exit codes: 0 done; 1 failed; 2 bad usage or input; 3 done, but some files
    could not be read and were left out; 130 interrupted.
    """
    if csv == STDOUT and json:
        raise InputError(
            "Standard output takes the table or JSON, not both. Give the table a file, or leave out --json."
        )
    since, source = perf_counter(), source_or_pictures(images, features)
    if backbone is not None:
        load_named_backbone(backbone)
    if dry_run:
        if csv is not None and csv != STDOUT:
            _check_table(csv, run, force)
        with printing.runtime(device=device, workers=workers) as runtime:
            from sortal.discovery.forecast import forecast_prediction

            asked: Any = {"update": update, "max_pixels": max_pixels}
            planned = forecast_prediction(run, source, features=features, **asked, since=since, runtime=runtime)
        printing.print_json(planned.to_json()) if json else print_forecast(planned)
        return 0
    with _table_to_write(csv, run, force) as write, printing.runtime(device=device, workers=workers) as runtime:
        from sortal.discovery.prediction import predict

        found = predict(run, source, features=features, update=update, max_pixels=max_pixels, runtime=runtime)
        write(found)
    if csv == STDOUT:
        _print_table(found.to_csv())
    elif json:
        printing.print_json(found.to_json())
    else:
        print_prediction(found, images or (), csv, features)
    return 3 if found.quarantine else 0


@contextmanager
def _table_to_write(csv: Path | None, run: Path, force: bool) -> Iterator[Callable[["Prediction"], None]]:
    """Check the place of the table before any work, and yield what writes it, replacing only the file there now."""
    if csv is None or csv == STDOUT:
        yield lambda found: None
        return
    with holding(csv) as there:
        _check_table(csv, run, force)

        def write(found: "Prediction") -> None:
            try:
                sweep(csv.parent)
                with publishing(csv, there if force else None) as made:
                    write_atomically(made, found.to_csv())
            except OSError as error:
                raise InputError(
                    f"The table {str(csv)!r} cannot be written: {error.strerror}.", ANOTHER_FILE
                ) from error

        yield write


def _print_table(content: bytes) -> None:
    if sys.stdout.isatty():  # file names may hold control characters
        print("\n".join(map(plain, content.decode("utf-8", "surrogateescape").splitlines())))
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()


def _check_table(out: Path, run: Path, force: bool) -> None:
    if str(out).startswith("-"):
        raise InputError(
            f"--csv needs a value: a file that does not begin with a hyphen, or - alone, got {str(out)!r}."
        )
    if os.path.dirname(os.path.realpath(out)) == os.path.realpath(run):  # Path.resolve fails on circular links
        raise InputError(f"The table must be outside the run, got {str(out)!r}.", ANOTHER_FILE)
    if out.is_dir():
        raise InputError(f"The table must be a file, got {str(out)!r}, which is a folder.", ANOTHER_FILE)
    if kind := special(out):
        raise InputError(f"The table must be a file, got {str(out)!r}, which is {kind}.", ANOTHER_FILE)
    if not out.parent.is_dir():
        raise InputError(f"The table must be in an existing folder, got {str(out)!r}. Create its folder first.")
    if out.exists() and not force:
        overwrite = Remedy("overwrite it", force=True)
        raise InputError(f"The table must be a new file, got {str(out)!r}, which exists.", ANOTHER_FILE, overwrite)


def print_forecast(p: "Forecast") -> None:
    """Print the plan of a prediction and its cost."""
    added = f"; those that the run does not have yet are added to its {p.in_run:,}" if p.update else ""
    rows = (
        ("images", f"{p.images:,}{added}"),
        ("backbone", p.backbone),
        ("device", p.device),
        ("disk", printing.disk_space(p.disk, p.free_disk)),
        ("time", printing.total_time(p.seconds)),
    )
    printing.print_table((), rows, left=2)
    printing.print_list(printing.IN_SAMPLE, [printing.line(file) for file in p.unreadable_sample])


def print_prediction(
    found: "Prediction", images: Sequence[Path], csv: Path | None, features: Path | None = None
) -> None:
    """Print how many images are in each category, what could not be read, and the next steps."""
    from sortal.runs.reference import is_handed_over

    a = found.assignments
    print(
        printing.counted(len(a), {each: int((a.status == each).sum()) for each in ("known", "new", "unsure", "other")})
    )
    if len(a):
        print()
        _print_categories(found)
    printing.print_unreadable(found.quarantine)
    print()
    if found.added:
        print(f"{plural(found.added, 'image')} added to the run. Report: {plain(found.run.report)}")
        for each in found.run.candidates[: printing.MOST_LISTED]:
            far = f"{plural(len(each.files), 'image')} far from all others"
            such = ", ".join(map(printing.line, each.files[:3]))
            print(f"  candidate {each.id} for a new category: {far}, such as {such}")
        if found.run.candidates:
            review = shlex.join(["sortal", "review", plain(found.run.folder)])
            print(f"To make categories of candidates: {review}")
    given = [] if features is None else ["--features", plain(features)]
    again = shlex.join(["sortal", "predict", *map(plain, (found.run.folder, *images)), *given])
    print(f"Table: {plain(csv)}" if csv else f"To get the category of each image: {again} --csv FILE")
    if not found.added and not is_handed_over(found.run):
        print(f"To add these images to the run: {again} --update")


def _print_categories(found: "Prediction") -> None:
    """Print the categories that images were put into, the largest first."""
    a, by_id = found.assignments, {each.id: each for each in found.run.categories}
    unsure, other = (Counter(a.category_id[a.status == status].tolist()) for status in ("unsure", "other"))
    rows = [
        (printing.name(by_id[own].name), by_id[own].kind, size, unsure[own], *([other[own]] if other else []))
        for own, size in Counter(a.category_id.tolist()).most_common()
    ]
    headings = ("Category", "Kind", "Images", "Unsure", *(["Other"] if other else []))
    printing.print_table(headings, printing.abridge(rows, "more category", "more categories"))
