"""The command that sorts further images by a run."""

import json as jsonlib
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from sortal.cli.options import Device, Flag, Json, RunFolder, Workers, say
from sortal.errors import InputError, Remedy
from sortal.system.files import write_atomically
from sortal.system.text import plain

PREDICT_EXAMPLES = """\
Examples:
  sortal predict photos-run new_photos > table.csv
  sortal predict photos-run new_photos --update
"""
UPDATE = (
    "Add the images to the run: categories keep their ids, their centres move, and images far from all of them are "
    "grouped into candidates for new categories."
)
ANOTHER = Remedy("choose another file", out=...)


def predict(
    run: RunFolder,
    images: Annotated[Path, Parameter(help="A folder of images, searched recursively.")],
    *,
    out: Annotated[Path | None, Parameter(help="CSV file to write the table to; standard output by default.")] = None,
    update: Annotated[Flag, Parameter(help=UPDATE)] = False,
    device: Device = "auto",
    workers: Workers = None,
    json: Json = False,
    force: Annotated[Flag, Parameter(help="Overwrite the file of the table.")] = False,
) -> int:
    """Sort new images by an existing run, without training.

    Writes a table with the category of each image, known or discovered, or
    unsure, and its confidence.

    Exit codes: 0 done; 1 failed; 2 bad usage or input; 3 done, but some files
    could not be read and were left out; 130 interrupted.
    """
    from sortal.cli import printing

    if out is not None:
        _check_table(out, run, force)
    with printing.runtime("Starting", device, workers) as runtime:
        from sortal.discovery.prediction import predict

        found = predict(run, images, update=update, runtime=runtime)
        content = (jsonlib.dumps(found.to_json(), indent=2) + "\n").encode() if json else found.to_csv()
        if out is not None:
            try:
                write_atomically(out, content)
            except OSError as error:
                raise InputError(f"The table {str(out)!r} cannot be written: {error.strerror}.", ANOTHER) from error
    if out is None and sys.stdout.isatty():  # file names may hold control characters
        print("\n".join(map(plain, content.decode("utf-8", "surrogateescape").splitlines())))
    elif out is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    say("\n".join(printing.prediction(found)))
    return 3 if found.quarantine else 0


def _check_table(out: Path, run: Path, force: bool) -> None:
    if out.resolve().parent == run.resolve():
        raise InputError(f"The table must be outside the run, got {str(out)!r}.", ANOTHER)
    if out.is_dir():
        raise InputError(f"The table must be a file, got {str(out)!r}, which is a folder.", ANOTHER)
    if not out.parent.is_dir():
        raise InputError(f"The table must be in an existing folder, got {str(out)!r}. Create its folder first.")
    if out.exists() and not force:
        overwrite = Remedy("overwrite it", force=True)
        raise InputError(f"The table must be a new file, got {str(out)!r}, which exists.", ANOTHER, overwrite)
