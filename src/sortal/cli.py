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
  sortal check photos          what is in a folder of images, and what is wrong
  sortal sample digits OUT     images to try things on
  sortal demo                  find ten digits, five of them never named
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
  sortal demo --k auto         without being told that there are ten
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


@app.command(help_epilogue=DEMO_EXAMPLES)
def demo(
    *,
    k: Annotated[int | Literal["auto"], Parameter(metavar="INT|auto", show_choices=False)] = 10,
    labelled: float = 0.5,
    epochs: int = 40,
    n_init: int = 100,
    seed: int = 0,
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto",
    json: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> None:
    """Discover classes among handwritten digits.

    Of 1,797 small images, half of the digits 0 to 4 are labelled; 5 to 9 have
    no label at all. Clusters their pixels with and without the labels, learns
    features with a small network and clusters those, and compares all three
    with the truth, on the unlabelled images only.

    Parameters
    ----------
    k
        Number of classes to find; auto estimates it.
    labelled
        Fraction of the images of digits 0 to 4 that are labelled.
    epochs
        How long to learn; 0 clusters pixels only.
    n_init
        Restarts of k-means; the best one counts.
    seed
        Seed of the choice of labelled images, of learning and of k-means.
    device
        Where to compute.
    json
        Write the result as JSON.
    """
    from sortal import show

    with show.bar("Starting") as on_progress:
        from sortal.demo import run

        result = run(
            k=k, labelled=labelled, epochs=epochs, n_init=n_init, seed=seed, device=device, on_progress=on_progress
        )
    from sortal import show

    if json:
        print(jsonlib.dumps(asdict(result), indent=2))
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
    json: Annotated[bool, Parameter(negative="", show_default=False)] = False,
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
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names are shown as far as the encoding goes
    try:
        with _ended_like_ctrl_c():
            code = app(sys.argv[1:] if tokens is None else tokens)
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
        print("sortal: interrupted", file=sys.stderr)
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


def _complain(message: str, code: int) -> int:
    print(f"sortal: error: {message}", file=sys.stderr)
    return code
