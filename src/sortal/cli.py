"""The command line: parse, make one library call, print. Heavy imports stay inside the command that needs them."""

import errno
import io
import json as jsonlib
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, CycloptsError, Parameter

from sortal import __version__
from sortal.errors import InputError, SortalError

HELP = "Sortal sorts partly labelled images into classes: the ones you have named and the ones nobody has named yet."

# Line breaks here, and after the first paragraph of a command's docstring, are printed as they stand: 80 columns.
EXAMPLES = """\
Examples:
  sortal discover photos       sort a folder of images, and show the result
  sortal predict RUN new       sort further images like that
  sortal export RUN --format folders --out sorted
  sortal figures RUN           pictures of a run, for print
  sortal benchmark presets     the rows of the paper's tables, each one command
  sortal check photos          what is in a folder of images, and what is wrong
  sortal demo                  find ten digits, five of them never named
"""
DISCOVER_EXAMPLES = """\
Examples:
  sortal discover photos
  sortal discover photos --labels labels.csv --out run
  sortal discover photos --dry-run      what it would do, and how long it takes
  sortal discover photos --k 40         another k: only what follows is redone
  sortal discover photos --backbone vit_small_patch16_224.dino --weights FILE
"""
PREDICT_EXAMPLES = """\
Examples:
  sortal predict photos-run new_photos > table.csv
  sortal predict photos-run new_photos --update
"""
EXPORT_EXAMPLES = """\
Examples:
  sortal export photos-run --format folders --out sorted
  sortal export photos-run --format coco --out photos.json
"""
BENCHMARK_EXAMPLES = """\
Examples:
  sortal benchmark cub --root data --method gcd
  sortal benchmark --preset table3/cub/gcd --root data
  sortal benchmark --preset table2 --root data        all rows of a table
  sortal benchmark folder --root flowers --method gcd,uno --k auto
  sortal benchmark presets
  sortal benchmark table benchmark --out tables
"""
FIGURES_EXAMPLES = """\
Examples:
  sortal figures photos-run
  sortal figures photos-run --which attention --images oak/1.jpg --out pictures
"""
CHECK_EXAMPLES = """\
Examples:
  sortal check photos
  sortal check photos --labels labels.csv --unlisted unlabelled
  sortal check photos --json > report.json
"""
SAMPLE_EXAMPLES = """\
Examples:
  sortal sample digits OUT
  sortal check OUT --labels OUT/labels.csv
"""
DEMO_EXAMPLES = """\
Examples:
  sortal demo
  sortal demo --k 10           told that there are ten
  sortal demo --labelled 0.1   with fewer labels
  sortal demo --json           the result as JSON
"""

app = App(
    name="sortal",
    help=HELP,
    help_epilogue=EXAMPLES,
    help_format="plaintext",
    version=__version__,
    # Errors, Ctrl-C and the exit code are handled in one place, main().
    exit_on_error=False,
    print_error=False,
    suppress_keyboard_interrupt=False,
    result_action="return_value",
)


_typed: ContextVar[tuple[str, ...]] = ContextVar("typed", default=())  # what main() was given, for records of it

Device = Literal["auto", "cpu", "cuda", "mps"]
Flag = Annotated[bool, Parameter(negative="", show_default=False)]
Count = Annotated[int | Literal["auto"], Parameter(metavar="INT|auto", show_choices=False)]


@app.command(help_epilogue=DISCOVER_EXAMPLES)
def discover(
    images: Path,
    *,
    labels: Path | None = None,
    out: Path | None = None,
    k: Count = "auto",
    method: Literal["gcd", "kmeans", "rankstats", "simgcd", "uno"] = "gcd",
    backbone: str = "vit_base_patch16_224.dino",
    weights: Path | None = None,
    epochs: Count = "auto",
    lr: Annotated[float | Literal["auto"], Parameter(metavar="FLOAT|auto", show_choices=False)] = "auto",
    views: Annotated[int | Literal["auto", "live"], Parameter(metavar="INT|auto|live", show_choices=False)] = "auto",
    k_max: int = 1000,
    n_init: int = 20,
    held_out: float = 0.2,
    unsure_below: float = 0.5,
    folders: Literal["classes", "ignore"] = "classes",
    unlabelled: str = "unlabelled",
    unlisted: Literal["error", "unlabelled", "ignore"] = "error",
    extra_columns: Literal["error", "ignore"] = "error",
    seed: int = 0,
    device: Device = "auto",
    workers: int | None = None,
    json: Flag = False,
    force: Flag = False,
    dry_run: Flag = False,
) -> int:
    """Sort images into the classes you know and the ones nobody has named yet.

    Checks the images, learns a representation from all of them, finds out how
    many classes there are, puts every image into a known or a new category
    with a confidence, and writes it all into a folder, with a report to open
    in a browser. Your files are not touched.

    Each folder in IMAGES is a class, but for the one named unlabelled; loose
    files are unlabelled too. With a table the folders do not matter.

    The same command goes on where an interrupted one was. With other settings
    it redoes what depends on them.

    Exit codes: 0 done; 1 failed; 2 bad usage or input; 3 done, but some files
    cannot be read and were left out; 130 interrupted.

    Parameters
    ----------
    images
        A folder of images.
    labels
        A table (CSV, TSV, JSON lines, Parquet) with the columns file_name, label (may be empty) and, if known, truth.
    out
        Folder of the run; IMAGES-run in the current folder unless given.
    k
        Number of classes, known ones included; auto estimates it.
    method
        gcd, rankstats, simgcd and uno learn from the images; kmeans takes the features of the backbone as they are.
    backbone
        A vision transformer or ResNet of timm; convnet, a small network for tiny images; or a saved model.json.
    weights
        File of the backbone's weights; from the hub unless given.
    epochs
        How long to learn; auto suits the images and the machine.
    lr
        Learning rate; auto is the method's own. Lower it where the loss is no number any more.
    views
        Views of each image that are kept, or live for new ones in every epoch, which is slower.
    k_max
        Where the search for k ends.
    n_init
        Restarts of k-means; the best one counts.
    held_out
        Share of the labelled images to calibrate confidence on; their labels are not learned from.
    unsure_below
        Confidence below which an image is unsure.
    folders
        Whether folders are classes or mean nothing.
    unlabelled
        Name of the folder whose images have no label.
    unlisted
        What to do about images that the table does not name.
    extra_columns
        What to do about other columns of the table.
    seed
        Seed of everything that is drawn.
    device
        Where to compute.
    workers
        Processes that read images; as many as cores unless given.
    json
        Write the result as JSON.
    force
        Write over a run of other images, one that images were added to, or into a folder that holds other things.
    dry_run
        Only say what would be done, with what memory and disk, and how long it takes.
    """
    from sortal import show

    with show.bar("Starting") as on_progress:
        from sortal.config import Discovery
        from sortal.job import prepare

        settings = Discovery(
            k=k,
            method=method,
            backbone=backbone,
            weights=None if weights is None else str(weights),
            epochs=epochs,
            lr=lr,
            views=None if views == "live" else views,
            seed=seed,
            k_max=k_max,
            n_init=n_init,
            held_out=held_out,
            unsure_below=unsure_below,
        )
        reading = {"folders": folders, "unlabelled": unlabelled, "unlisted": unlisted, "extra_columns": extra_columns}
        on_progress("Looking for images", 0, 0)
        job = prepare(images, labels, out, settings, reading, device=device, workers=workers, force=force)
        if dry_run:
            from sortal.plan import plan

            planned = plan(job, on_progress=on_progress)
        else:
            from sortal.pipeline import carry_out

            found = carry_out(job, on_progress=on_progress, on_note=_note)
    if dry_run:
        print(jsonlib.dumps(planned.to_json(), indent=2)) if json else show.plan(planned)
        return 0
    print(jsonlib.dumps(found.to_json(), indent=2)) if json else show.run(found)
    return 3 if found.quarantine else 0


@app.command(help_epilogue=PREDICT_EXAMPLES)
def predict(
    run: Path,
    images: Path,
    *,
    out: Path | None = None,
    update: Flag = False,
    device: Device = "auto",
    workers: int | None = None,
    json: Flag = False,
    force: Flag = False,
) -> int:
    """Sort images never seen before by a run, without training.

    Writes a table with the category of each image, known or discovered, or
    unsure, and its confidence.

    Exit codes: 0 done; 1 failed; 2 bad usage or input; 3 done, but some files
    cannot be read and were left out; 130 interrupted.

    Parameters
    ----------
    run
        Folder of a run.
    images
        A folder of images, however nested.
    out
        File of the table, CSV; standard output unless given.
    update
        Add the images to the run: categories keep their ids, their centres move, and images far from all are gathered
        as candidates for further categories.
    device
        Where to compute.
    workers
        Processes that read images; as many as cores unless given.
    json
        Write the table as JSON.
    force
        Write over the file of the table.
    """
    from sortal import show

    if out is not None:
        _check_table(out, run, force)
    with show.bar("Starting") as on_progress:
        from sortal.prediction import predict

        found = predict(
            run, images, update=update, device=device, workers=workers, on_progress=on_progress, on_note=_note
        )
        content = (jsonlib.dumps(found.to_json(), indent=2) + "\n").encode() if json else found.to_csv()
        if out is not None:
            _write(out, content)
    if out is None and sys.stdout.isatty():  # names of files may hold what disturbs a terminal
        print("\n".join(map(show.plain, content.decode("utf-8", "surrogateescape").splitlines())))
    elif out is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    for line in show.prediction(found):
        _say(line)
    return 3 if found.quarantine else 0


@app.command(help_epilogue=EXPORT_EXAMPLES)
def export(
    run: Path,
    *,
    format: Literal["csv", "parquet", "folders", "coco", "fiftyone", "labelstudio", "imagefolder"],
    out: Path | None = None,
    how: Literal["hardlink", "symlink", "copy"] = "hardlink",
    force: Flag = False,
) -> int:
    """Give a run to other tools.

    Originals are never moved or changed: folders hold hard links to them,
    symbolic links or copies.

    Exit codes: 0 done; 1 failed; 2 bad usage or input; 3 done, but some files
    are not there any more and were left out; 130 interrupted.

    Parameters
    ----------
    run
        Folder of a run.
    format
        What to write.
    out
        File or folder to write; it must be new. RUN-FORMAT in the current folder unless given.
    how
        How images get into a folder.
    force
        Write over a file, or over a folder that an export wrote.
    """
    from sortal import show

    with show.bar("Reading the run") as on_progress:
        from sortal.export import export
        from sortal.run import load

        written = export(load(run), format, out, how=how, force=force, on_progress=on_progress)
    for line in show.exported(written):
        print(line)
    return 3 if written.missing else 0


@app.command(help_epilogue=FIGURES_EXAMPLES)
def figures(
    run: Path,
    *,
    out: Path | None = None,
    which: Annotated[str | None, Parameter(metavar="NAME,…")] = None,
    images: Annotated[list[str] | None, Parameter(consume_multiple=True, negative="")] = None,
    seed: int = 0,
    device: Device = "auto",
    workers: int | None = None,
    force: Flag = False,
) -> None:
    """Draw a run for print, each figure as PNG and SVG.

    The figures are tsne (features before and after learning), attention (what
    each head of the last block looks at, before and after), k-curve (accuracy
    on labelled images against k), risk-coverage (accuracy on the surest images)
    and legacy (how two matches instead of one inflate). What a run does not have
    the material for is left out, and why is said.

    Parameters
    ----------
    run
        Folder of a run.
    out
        Folder to write into; RUN/figures unless given.
    which
        Figures to draw, with commas between; all unless given.
    images
        Files to show the attention on; some of old and some of new classes unless given.
    seed
        Seed of what is sampled and of the map.
    device
        Where to compute.
    workers
        Processes that read images; as many as cores unless given.
    force
        Write over files that are no figures of an earlier drawing.
    """
    from sortal import show

    with show.bar("Reading the run") as on_progress:
        from sortal.figures import draw
        from sortal.run import load

        drawn = draw(
            load(run),
            out,
            which=None if which is None else which.split(","),
            images=images,
            seed=seed,
            device=device,
            workers=workers,
            force=force,
            on_progress=on_progress,
            on_note=_note,
        )
    for line in show.drawn(drawn):
        print(line)


benchmark = App(name="benchmark", help_format="plaintext", help_epilogue=BENCHMARK_EXAMPLES)
app.command(benchmark)


@benchmark.default
def run_benchmark(
    dataset: str | None = None,
    *,
    root: Path = Path("data"),
    method: Annotated[str | None, Parameter(metavar="NAME,…")] = None,
    preset: Annotated[list[str] | None, Parameter(negative="")] = None,
    seeds: Annotated[str, Parameter(metavar="INT,…")] = "0,1,2",
    k: Annotated[str | None, Parameter(metavar="true|auto|INT")] = None,
    backbone: str | None = None,
    weights: Path | None = None,
    epochs: int | None = None,
    lr: float | None = None,
    views: Annotated[
        int | Literal["auto", "live"] | None, Parameter(metavar="INT|auto|live", show_choices=False)
    ] = None,
    fast: Flag = False,
    out: Path = Path("benchmark"),
    processes: int | None = None,
    device: Device = "auto",
    workers: int | None = None,
    json: Flag = False,
) -> int:
    """Run a benchmark: split, learn, sort, evaluate; one record for each seed.

    DATASET is cifar10, cifar100, imagenet100, cub, stanford_cars, fgvc_aircraft
    or herbarium19, as its publisher packs it, or folder: a folder for each
    class, of which the first half are old. A preset is the recipe of a row of
    the paper; with a DATASET beside it, it is run on that one instead.

    The same command goes on where an interrupted one was, and does not repeat
    what is recorded.

    Exit codes: 0 done; 1 a run failed; 2 bad usage or input; 130 interrupted.

    Parameters
    ----------
    dataset
        The data set; not needed with a preset.
    root
        The folder that holds it.
    method
        gcd, kmeans, rankstats, simgcd or uno, or several with commas between; gcd unless given.
    preset
        Name of a preset, or the beginning of several: table3/cub/gcd, table3/cub, table3. May be given again.
    seeds
        Seeds, with commas between; each is a run.
    k
        Number of classes: true, auto (estimated first, on the features as they come) or a number.
    backbone
        As in sortal discover; the paper's, or the preset's, unless given.
    weights
        File of the backbone's weights; from the hub unless given. Beside presets that need a file, it is for these.
    epochs
        How long to learn; 200, or what the preset says, unless given.
    lr
        Learning rate; what the method or the preset says unless given.
    views
        Views of each image that are kept, or live; auto, or what the preset says, unless given.
    fast
        Presets as Sortal learns by itself: views are kept, and losses are taken on the bottleneck.
    out
        Folder of runs and records.
    processes
        Runs at the same time; as many as there are GPUs unless given.
    device
        Where to compute.
    workers
        Processes that read images; as many as cores unless given.
    json
        Write the records as JSON.
    """
    from sortal import show
    from sortal.benchmark.choice import choose, numbers

    chosen = choose(
        dataset,
        root,
        methods=() if method is None else method.split(","),
        names=preset or (),
        k=k,
        backbone=backbone,
        weights=None if weights is None else str(weights),
        epochs=epochs,
        lr=lr,
        views=views,
        fast=fast,
    )
    with show.bar("Starting") as on_progress:
        from sortal.benchmark.sweep import sweep

        swept = sweep(
            chosen,
            root,
            out=out,
            seeds=numbers(seeds),
            device=device,
            workers=workers,
            processes=processes,
            command=shlex.join(["sortal", *_typed.get()]),
            on_progress=on_progress,
            on_note=_note,
        )
    if json:
        print(jsonlib.dumps([record.to_json() for record in swept.records], indent=2))
    else:
        show.swept(swept)
    return 1 if swept.failed else 0


@benchmark.command
def table(*runs: Path, out: Path | None = None, force: Flag = False) -> None:
    """Make the paper's tables of recorded runs, with the published figures.

    Prints Markdown; with --out also writes it, and each table as CSV.

    Parameters
    ----------
    runs
        Folders of runs, or any folders with runs in them.
    out
        Folder for tables.md and the CSV files.
    force
        Write over files.
    """
    from sortal.benchmark import records, tables

    made = tables.tables(records.find(runs))
    if out is not None:
        tables.write(made, out, force=force)
    print(tables.document(made), end="")


@benchmark.command(name="presets")
def list_presets(*, json: Flag = False) -> None:
    """List the presets: the recipe of every row of the paper's tables.

    Parameters
    ----------
    json
        Write all of every recipe as JSON.
    """
    from sortal import show
    from sortal.benchmark.presets import PRESETS, listing

    if json:
        print(jsonlib.dumps({name: asdict(preset) for name, preset in PRESETS.items()}, indent=2))
    else:
        show.presets(listing())


@app.command(help_epilogue=DEMO_EXAMPLES)
def demo(
    *,
    out: Path = Path("digits-run"),
    k: Count = "auto",
    labelled: float = 0.5,
    epochs: Count = "auto",
    seed: int = 0,
    device: Device = "auto",
    json: Flag = False,
) -> None:
    """Discover classes among handwritten digits.

    Writes 1,797 small images as files, half of the digits 0 to 4 labelled, 5 to
    9 without any label, and sorts them as sortal discover does, with a small
    network that learns from them alone. Compares the result with k-means on
    the pixels, for as many classes, on the unlabelled images only.

    Parameters
    ----------
    out
        Folder of the run.
    k
        Number of classes to find; auto estimates it.
    labelled
        Fraction of the images of digits 0 to 4 that are labelled.
    epochs
        How long to learn; auto is 40.
    seed
        Seed of the choice of labelled images, of learning and of clustering.
    device
        Where to compute.
    json
        Write the result as JSON.
    """
    from sortal import show

    with show.bar("Starting") as on_progress:
        from sortal.demo import run

        result = run(
            out,
            k=k,
            labelled=labelled,
            epochs=epochs,
            seed=seed,
            device=device,
            on_progress=on_progress,
            on_note=_note,
        )
    if json:
        print(jsonlib.dumps(result.to_json(), indent=2))
    else:
        show.demo(result)


@app.command(help_epilogue=CHECK_EXAMPLES)
def check(
    images: Path,
    *,
    labels: Path | None = None,
    folders: Literal["classes", "ignore"] = "classes",
    unlabelled: str = "unlabelled",
    unlisted: Literal["error", "unlabelled", "ignore"] = "error",
    extra_columns: Literal["error", "ignore"] = "error",
    tiny: int = 32,
    max_pixels: int = 80_000_000,
    workers: int | None = None,
    json: Flag = False,
) -> int:
    """Check a folder of images before anything is learned from it.

    Reads every image once and changes nothing. Reports images per class,
    files that cannot be read, images that are there twice (first of all those
    under two labels, or both labelled and unlabelled), near-duplicates, tiny,
    rotated and 16-bit images.

    Each folder in IMAGES is a class, but for the one named unlabelled; loose
    files are unlabelled too. With a table the folders do not matter.

    Exit codes: 0 all images can be used; 1 one image is under two labels;
    2 bad usage or input; 3 some files cannot be read.

    Parameters
    ----------
    images
        A folder of images.
    labels
        A table (CSV, TSV, JSON lines, Parquet) with the columns file_name, label (may be empty) and, if known, truth.
    folders
        Whether folders are classes or mean nothing.
    unlabelled
        Name of the folder whose images have no label.
    unlisted
        What to do about images that the table does not name.
    extra_columns
        What to do about other columns of the table.
    tiny
        Report images whose shorter side is below this many pixels.
    max_pixels
        Refuse images of more pixels.
    workers
        Processes that read images; as many as cores unless given.
    json
        Write the report as JSON.
    """
    from sortal import show
    from sortal.check import check
    from sortal.reading import read_images

    with show.bar("Looking for images") as on_progress:
        found = read_images(
            images,
            labels=labels,
            folders=folders,
            unlabelled=unlabelled,
            unlisted=unlisted,
            extra_columns=extra_columns,
            need_labels=False,
        )
        health = check(found, tiny=tiny, max_pixels=max_pixels, workers=workers, on_progress=on_progress)
    if json:
        print(jsonlib.dumps(asdict(health), indent=2))
    else:
        show.health(health, tiny)
    return 1 if health.contradictions else 3 if health.unreadable else 0


@app.command(help_epilogue=SAMPLE_EXAMPLES)
def sample(name: Literal["digits"], out: Path, *, labelled: float = 0.5, seed: int = 0) -> None:
    """Write a built-in sample as image files and a table of labels.

    The digits are 1,797 real handwritten ones, 8 by 8 pixels. Half of the
    images of 0 to 4 are labelled in labels.csv; its column truth tells all.

    Parameters
    ----------
    name
        Which sample.
    out
        Folder to write; it must be new or empty.
    labelled
        Fraction of the images of digits 0 to 4 that are labelled.
    seed
        Seed of the choice of labelled images.
    """
    from sortal.datasets.digits import TABLE, write

    images = write(out, labelled=labelled, seed=seed)
    print(f"{len(images):,} images and {TABLE} written to {out}. Look at them with:")
    print(f"  {shlex.join(['sortal', 'check', str(out), '--labels', str(out / TABLE)])}")


def main(tokens: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0 done, 1 failed, 2 bad usage or input, 3 done but files were left out, 130 interrupted.
    """
    words = tuple(sys.argv[1:] if tokens is None else tokens)
    _typed.set(words)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names are shown as far as the encoding goes
    try:
        with _ended_like_ctrl_c():
            code = app(words)
            print(end="", flush=True)  # a reader that has gone away shows here, not while Python shuts down
    except CycloptsError as error:
        return _complain(f"{error} See {' '.join(('sortal', *(error.command_chain or ()), '--help'))}.", 2)
    except SortalError as error:
        # Errors name options as they are in Python: (unlisted='ignore').
        message = re.sub(r"\((unlisted|extra_columns)='(\w+)'\)", r"(--\1 \2)", str(error))
        return _complain(
            message.replace("--extra_columns", "--extra-columns"), 2 if isinstance(error, InputError) else 1
        )
    except KeyboardInterrupt:
        goes_on = words[:1] in (("discover",), ("benchmark",))
        _say(f"sortal: interrupted{'; what was done is kept, and the same command goes on' if goes_on else ''}")
        return 130
    except OSError as error:
        if not isinstance(error, BrokenPipeError) and error.errno != errno.ENOSPC:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the last flush of all succeeds
        return 1 if isinstance(error, BrokenPipeError) else _complain("there is no space left to write to.", 1)
    return code if isinstance(code, int) else 0


@contextmanager
def _ended_like_ctrl_c() -> Iterator[None]:
    """SIGTERM, by which systems end programs, is to them what Ctrl-C is to people."""
    main_thread = threading.current_thread() is threading.main_thread()  # which alone may say what signals do
    if not main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _check_table(out: Path, run: Path, force: bool) -> None:
    if out.resolve().parent == run.resolve():
        raise InputError(f"The table must lie outside the run, got {str(out)!r}. Name another file.")
    if out.is_dir():
        raise InputError(f"The table must be a file, got {str(out)!r}, which is a folder.")
    if not out.parent.is_dir():
        raise InputError(f"The table must go into a folder that is there, got {str(out)!r}. Make its folder first.")
    if out.exists() and not force:
        raise InputError(f"The table must be a new file, got {str(out)!r}, which exists. Write over it with --force.")


def _write(out: Path, content: bytes) -> None:
    from sortal.segments import write_atomically

    try:
        write_atomically(out, content)
    except OSError as error:
        raise InputError(f"The table {str(out)!r} cannot be written: {error.strerror}. Name another file.") from error


def _note(text: str) -> None:
    _say(f"sortal: {text}")


def _complain(message: str, code: int) -> int:
    _say(f"sortal: error: {message}")
    return code


def _say(text: str) -> None:
    if sys.stderr is not None:  # where it is closed, print would take stdout
        print(text, file=sys.stderr)
