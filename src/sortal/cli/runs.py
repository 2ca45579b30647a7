"""The commands that use a run: export, review, report and figures."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from sortal.cli import printing
from sortal.cli.options import Device, Flag, RunFolder, Several, Workers, split
from sortal.system.text import plain, plural

if TYPE_CHECKING:
    from sortal.exchange.export import ExportResult
    from sortal.research.figures import FiguresResult

EXPORT_EXAMPLES = """\
Examples:
  sortal export photos-run --format folders --out sorted
  sortal export photos-run --format coco --out photos.json
  sortal export photos-run --format onnx --out photos.onnx
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
FormatName = Literal[
    "csv",
    "parquet",
    "embeddings",
    "folders",
    "imagefolder",
    "coco",
    "fiftyone",
    "labelstudio",
    "camtrap-dp",
    "ecotaxa",
    "onnx",
    "hub",
]
EXPORT_HELP = "New file or folder to write; in the current folder, RUN.csv, RUN.parquet or RUN-FORMAT by default."
FULL_PATHS_HELP = "Name the folders of images and of the run in full, and link to images wherever they are."
ABSOLUTE_PATHS_HELP = "Say where the images are on this computer; by default, names are relative to their folder."
HOW_HELP = "How images are placed into a folder."
WHICH_HELP = "One or more of tsne, attention, k-curve, risk-coverage and legacy; all by default."
PEOPLE_HELP = "Names of people who review together: a link each, and decisions signed with the name."
WORDS_HELP = "File of names to choose from, one per line."
TEXT_MODEL_HELP = "Folder of an image-text model of open_clip, for names and for what is seen; nothing is downloaded."
CACHE_HELP = "Folder of cached pixels; RUN/cache by default. Runs of a benchmark share OUT/cache/DATASET."
IMAGES_HELP = "Files to show attention on; a sample of old and new classes by default."


def export(
    run: RunFolder,
    *,
    format: Annotated[FormatName, Parameter(help="Format to write.")],
    out: Annotated[Path | None, Parameter(help=EXPORT_HELP)] = None,
    how: Annotated[Literal["hardlink", "symlink", "copy"], Parameter(help=HOW_HELP)] = "hardlink",
    force: Annotated[Flag, Parameter(help="Overwrite a file, or a folder written by an earlier export.")] = False,
    absolute_paths: Annotated[Flag, Parameter(help=ABSOLUTE_PATHS_HELP)] = False,
) -> int:
    """Export a run for other tools: its images, or the model that sorts new ones.

    Originals are never moved or changed: folders contain hard links to them,
    symbolic links or copies.

    Exit codes: 0 done; 1 failed; 2 bad usage or input; 3 done, but some files
    no longer exist or have changed, and were left out; 130 interrupted.
    """
    with printing.runtime("Reading the run") as runtime:
        from sortal.discovery.exporting import export
        from sortal.reviews.loading import load_run

        options: Any = {"how": how, "force": force, "absolute_paths": absolute_paths}
        written = export(load_run(run), format, out, **options, runtime=runtime)
    print_exported(written)
    return 3 if written.missing or written.changed else 0


def print_exported(written: "ExportResult") -> None:
    """Print where the export is, and the files that it lacks."""
    what = "Model" if written.format in ("onnx", "hub") else plural(written.images, "image")
    print(f"{what} written as {written.format}: {plain(written.out)}")
    for files, why in ((written.missing, "missing"), (written.changed, "changed since it was sorted")):
        rows = [f"{why}, left out: {printing.line(file)}" for file in files]
        print("".join(f"{row}\n" for row in printing.first_rows(rows, "more")), end="")


def review(
    run: RunFolder,
    *,
    words: Annotated[Path | None, Parameter(help=WORDS_HELP)] = None,
    text_model: Annotated[Path | None, Parameter(help=TEXT_MODEL_HELP)] = None,
    port: Annotated[int, Parameter(help="Port to listen on; 0 takes a free one.")] = 0,
    host: Annotated[
        str, Parameter(help="Address to listen on; by default only this computer can connect.")
    ] = "127.0.0.1",
    people: Annotated[tuple[str, ...], Several, Parameter(help=PEOPLE_HELP)] = (),
    certificate: Annotated[Path | None, Parameter(help="Certificate in PEM, to speak HTTPS.")] = None,
    certificate_key: Annotated[Path | None, Parameter(help="Its key, if that is in a file of its own.")] = None,
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

        server = open_review(
            run,
            words=words,
            text_model=text_model,
            host=host,
            port=port,
            people=people,
            certificate=certificate,
            certificate_key=certificate_key,
            runtime=runtime,
        )
    with server, suppress(KeyboardInterrupt):  # from here on it is the way to end
        serve(server, browser=browser, say=lambda text: print(text, flush=True))


def report(
    run: RunFolder,
    *,
    absolute_paths: Annotated[Flag, Parameter(help=FULL_PATHS_HELP)] = False,
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
    which: Annotated[tuple[str, ...] | None, Several, Parameter(help=WHICH_HELP)] = None,
    images: Annotated[list[str] | None, Parameter(consume_multiple=True, negative="", help=IMAGES_HELP)] = None,
    seed: Annotated[int, Parameter(help="Seed of the samples and of the map.")] = 0,
    cache: Annotated[Path | None, Parameter(help=CACHE_HELP)] = None,
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
        from sortal.reviews.loading import load_run

        names = None if which is None else split(which)
        options: Any = {"which": names, "images": images, "seed": seed, "cache": cache, "force": force}
        drawn = draw(load_run(run), out, **options, runtime=runtime)
    print_drawn(drawn)


def print_drawn(drawn: "FiguresResult") -> None:
    """Print the files of figures, and why others were left out."""
    for file in drawn.files:
        print(plain(file))
    for name, why in drawn.left_out.items():
        print(f"Left out: {name}. {plain(why)}")
