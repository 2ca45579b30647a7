"""The commands that use a run: predict, export, review, report and figures."""

import json as jsonlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from sortal.cli import printing
from sortal.cli.options import Device, DryRun, Flag, Json, RunFolder, Several, Workers, source_of, split
from sortal.errors import InputError, Remedy
from sortal.system.files import write_atomically
from sortal.system.publishing import holding, publishing
from sortal.system.regular_files import special
from sortal.system.temporary import sweep
from sortal.system.text import plain

if TYPE_CHECKING:
    from sortal.discovery.prediction import Prediction

PREDICT_EXAMPLES = """\
Examples:
  sortal predict photos-run new_photos
  sortal predict photos-run new_photos --csv table.csv
  sortal predict photos-run new_photos --update
  sortal predict photos-run new_photos --update --dry-run
"""
UPDATE = (
    "Add the images to the run: categories keep their ids, their centres move, and images far from all of them are "
    "grouped into candidates for new categories."
)
CSV = "File to write the table to, a row per image; - is standard output."
LIMIT = "Leave out images with more pixels; as in the run by default."
ANOTHER = Remedy("choose another file", csv=...)
STDOUT = Path("-")
EXPORT_EXAMPLES = """\
Examples:
  sortal export photos-run --format folders --out sorted
  sortal export photos-run --format coco --out photos.json
"""
REVIEW_EXAMPLES = """\
Examples:
  sortal review photos-run
  sortal review photos-run --no-browser --port 8000
  sortal review photos-run --words names.txt --text-model clip
"""
REPORT_EXAMPLES = """\
Examples:
  sortal report photos-run
"""
FIGURES_EXAMPLES = """\
Examples:
  sortal figures photos-run
  sortal figures photos-run --which attention --images oak/1.jpg --out pictures
"""
Format = Literal["csv", "parquet", "folders", "coco", "fiftyone", "labelstudio", "imagefolder"]
OUT = "New file or folder to write; in the current folder, RUN.csv, RUN.parquet or RUN-FORMAT by default."
ADDRESSES = "Name the folders of images and of the run in full, and link to images wherever they are."
ABSOLUTE = "Say where the images are on this computer; by default, names are relative to their folder."
HOW = "How images are placed into a folder."
WHICH = "One or more of tsne, attention, k-curve, risk-coverage and legacy; all by default."
WORDS = "File of names to choose from, one per line."
TEXT_MODEL = "Folder of an image-text model of open_clip, which suggests some of the names; nothing is downloaded."
SHARED = "Folder of cached pixels; RUN/cache by default. Runs of a benchmark share OUT/cache/DATASET."
SHOWN = "Files to show attention on; a sample of old and new classes by default."


def predict(
    run: RunFolder,
    images: Annotated[list[Path], Parameter(help="A folder of images, or several; searched recursively.", negative="")],
    *,
    csv: Annotated[Path | None, Parameter(allow_leading_hyphen=True, help=CSV)] = None,
    update: Annotated[Flag, Parameter(help=UPDATE)] = False,
    max_pixels: Annotated[int | None, Parameter(help=LIMIT)] = None,
    device: Device = "auto",
    workers: Workers = None,
    json: Json = False,
    force: Annotated[Flag, Parameter(help="Overwrite the table.")] = False,
    dry_run: DryRun = False,
) -> int:
    """Sort new images with an existing run, without training.

    Prints how many images belong to each category, known or new, and how many
    are unsure; --csv writes the category and the confidence of each image.

    Exit codes: 0 done; 1 failed; 2 bad usage or input; 3 done, but some files
    could not be read and were left out; 130 interrupted.
    """
    if csv == STDOUT and json:
        raise InputError(
            "Standard output takes the table or JSON, not both. Give the table a file, or leave out --json."
        )
    since, source = perf_counter(), source_of(images)
    if dry_run:
        if csv is not None and csv != STDOUT:
            _check_table(csv, run, force)
        with printing.runtime("Starting", device, workers) as runtime:
            from sortal.discovery.forecast import forecast_prediction

            planned = forecast_prediction(
                run, source, update=update, max_pixels=max_pixels, since=since, runtime=runtime
            )
        print(jsonlib.dumps(planned.to_json(), indent=2)) if json else printing.dry_prediction(planned)
        return 0
    with (
        _table_to_write(csv, run, force) as write,
        printing.runtime("Starting", device, workers) as runtime,
    ):
        from sortal.discovery.prediction import predict

        found = predict(run, source, update=update, max_pixels=max_pixels, runtime=runtime)
        write(found)
    if csv == STDOUT:
        _print_table(found.to_csv())
    elif json:
        print(jsonlib.dumps(found.to_json(), indent=2))
    else:
        printing.prediction(found, images, csv)
    return 3 if found.quarantine else 0


@contextmanager
def _table_to_write(csv: Path | None, run: Path, force: bool) -> Iterator[Callable[["Prediction"], None]]:
    """Check where the table goes before any work, and yield what writes it, which replaces only what is there now."""
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
                raise InputError(f"The table {str(csv)!r} cannot be written: {error.strerror}.", ANOTHER) from error

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
        raise InputError(f"The table must be outside the run, got {str(out)!r}.", ANOTHER)
    if out.is_dir():
        raise InputError(f"The table must be a file, got {str(out)!r}, which is a folder.", ANOTHER)
    if kind := special(out):
        raise InputError(f"The table must be a file, got {str(out)!r}, which is {kind}.", ANOTHER)
    if not out.parent.is_dir():
        raise InputError(f"The table must be in an existing folder, got {str(out)!r}. Create its folder first.")
    if out.exists() and not force:
        overwrite = Remedy("overwrite it", force=True)
        raise InputError(f"The table must be a new file, got {str(out)!r}, which exists.", ANOTHER, overwrite)


def export(
    run: RunFolder,
    *,
    format: Annotated[Format, Parameter(help="Format to write.")],
    out: Annotated[Path | None, Parameter(help=OUT)] = None,
    how: Annotated[Literal["hardlink", "symlink", "copy"], Parameter(help=HOW)] = "hardlink",
    force: Annotated[Flag, Parameter(help="Overwrite a file, or a folder written by an earlier export.")] = False,
    absolute_paths: Annotated[Flag, Parameter(help=ABSOLUTE)] = False,
) -> int:
    """Export a run for other tools.

    Originals are never moved or changed: folders contain hard links to them,
    symbolic links or copies.

    Exit codes: 0 done; 1 failed; 2 bad usage or input; 3 done, but some files
    no longer exist or have changed, and were left out; 130 interrupted.
    """
    with printing.runtime("Reading the run") as runtime:
        from sortal.exchange.export import export
        from sortal.review.loading import load_run

        options: Any = {"how": how, "force": force, "absolute_paths": absolute_paths}
        written = export(load_run(run), format, out, **options, runtime=runtime)
    print(*printing.exported(written), sep="\n")
    return 3 if written.missing or written.changed else 0


def review(
    run: RunFolder,
    *,
    words: Annotated[Path | None, Parameter(help=WORDS)] = None,
    text_model: Annotated[Path | None, Parameter(help=TEXT_MODEL)] = None,
    port: Annotated[int, Parameter(help="Port to listen on; 0 takes a free one.")] = 0,
    host: Annotated[
        str, Parameter(help="Address to listen on; by default only this computer can connect.")
    ] = "127.0.0.1",
    browser: Annotated[bool, Parameter(help="Open the page in the browser.")] = True,
    workers: Workers = None,
) -> None:
    """Review a run in the browser: name, merge, split, move, confirm.

    Every decision is on disk before the page shows it, and can be undone.
    Ctrl-C ends the review; nothing is lost. The link is for one use, by you;
    Enter in the terminal prints another.
    """
    with printing.runtime("Reading the run", workers=workers) as runtime:
        from sortal.discovery.reviewing.open import open_review, serve

        server = open_review(run, words=words, text_model=text_model, host=host, port=port, runtime=runtime)
    with server, suppress(KeyboardInterrupt):  # from here on it is the way to end
        serve(server, browser=browser, say=lambda text: print(text, flush=True))


def report(
    run: RunFolder,
    *,
    absolute_paths: Annotated[Flag, Parameter(help=ADDRESSES)] = False,
    device: Device = "auto",
    workers: Workers = None,
) -> None:
    """Draw the report of a run again, with what people have decided since.

    Pixels and the map come from the run's cache as far as they are there.
    """
    with printing.runtime("Reading the run", device, workers) as runtime:
        from sortal.discovery.prediction import redraw

        path = redraw(run, absolute_paths=absolute_paths, runtime=runtime)
    print(f"Report: {plain(str(path))}")


def figures(
    run: RunFolder,
    *,
    out: Annotated[Path | None, Parameter(help="Folder to write into; RUN/figures by default.")] = None,
    which: Annotated[tuple[str, ...] | None, Several, Parameter(help=WHICH)] = None,
    images: Annotated[list[str] | None, Parameter(consume_multiple=True, negative="", help=SHOWN)] = None,
    seed: Annotated[int, Parameter(help="Seed of the samples and of the map.")] = 0,
    cache: Annotated[Path | None, Parameter(help=SHARED)] = None,
    device: Device = "auto",
    workers: Workers = None,
    force: Annotated[Flag, Parameter(help="Overwrite files that are not figures drawn by Sortal.")] = False,
) -> None:
    """Draw figures of a run for print, each as PNG and SVG.

    The figures are tsne (features before and after training), attention (the
    regions each head of the last block attends to, before and after), k-curve
    (accuracy on labelled images against k), risk-coverage (accuracy on the most
    confident images) and legacy (how matching old and new classes separately
    inflates accuracy). A figure that the run lacks the data for is left out,
    with the reason.
    """
    with printing.runtime("Reading the run", device, workers) as runtime:
        from sortal.research.figures import draw
        from sortal.review.loading import load_run

        names = None if which is None else split(which)
        drawn = draw(
            load_run(run), out, which=names, images=images, seed=seed, cache=cache, force=force, runtime=runtime
        )
    print(*printing.drawn(drawn), sep="\n")
