"""The commands that sort a collection: discover and demo."""

import json as jsonlib
from pathlib import Path
from time import perf_counter
from typing import Annotated

from cyclopts import Parameter

from sortal.cli import printing
from sortal.cli.options import (
    Count,
    Device,
    DryRun,
    Flag,
    Flat,
    Images,
    Json,
    Labelled,
    Labels,
    Workers,
    given,
    processes,
    source_of,
    spell,
)
from sortal.config import Discovery, Reading
from sortal.errors import InputError, Remedy
from sortal.system.progress import is_first, say

# Line breaks in examples, and after the first paragraph of a command's docstring, are printed as they are: 80 columns.
DISCOVER_EXAMPLES = """\
Examples:
  sortal discover photos
  sortal discover photos --labels labels.csv --out run
  sortal discover photos --dry-run      what it would do, and how long it takes
  sortal discover photos --k 40         another k: only later stages are redone
  sortal discover photos more_photos    several folders
  sortal discover photos-run            the images of a run, again
  sortal discover photos --backbone vit_small_patch16_224.dino --weights FILE
"""
DEMO_EXAMPLES = """\
Examples:
  sortal demo
  sortal demo --k 10           with the true number of classes
  sortal demo --labelled 0.1   with fewer labels
  sortal demo --json           the result as JSON
"""
OUT = "Folder of the run; IMAGES-run in the current folder by default."
FORCE = "Overwrite the run in the folder and take nothing from it, or write into a folder that is not empty."
YES = "Train again without asking, if settings of an earlier run have changed."


def discover(
    images: Images,
    *,
    labels: Labels = None,
    out: Annotated[Path | None, Parameter(help=OUT)] = None,
    settings: Annotated[Discovery, Flat] = Discovery(),
    reading: Annotated[Reading, Flat] = Reading(),
    device: Device = "auto",
    workers: Workers = None,
    json: Json = False,
    yes: Annotated[Flag, Parameter(help=YES)] = False,
    force: Annotated[Flag, Parameter(help=FORCE)] = False,
    dry_run: DryRun = False,
) -> int:
    """Sort images into the classes you know and the ones nobody has named yet.

    Checks the images, trains a representation on all of them, estimates the
    number of classes, assigns every image to a known or a new category with a
    confidence, and writes the result into a folder, with a report to open in a
    browser. Your files are not changed.

    Each folder in IMAGES is a class, except the one named unlabelled; loose
    files are unlabelled too. With a table, folders have no meaning.

    Run the same command to resume an interrupted run. Other settings redo only
    the steps that depend on them; settings that are not given again stay as they
    were in the run, and images that were added to it take part. A changed
    setting that means training again is asked about first; other images or
    labels are not.

    How long it takes, by images and machine (see --dry-run for yours):
      600 photographs     8 min on two CPU cores
      8,000 photographs   1 min on an H200 GPU
      1,800 tiny images   70 s on two CPU cores (--backbone convnet)

    Exit codes: 0 done; 1 failed; 2 bad usage or input; 3 done, but some files
    could not be read and were left out; 130 interrupted.
    """
    since = perf_counter()
    with printing.runtime("Starting", device, workers) as runtime:
        runtime.progress("Finding images", 0, 0)
        from sortal.discovery.job import ANOTHER_FOLDER, prepare

        source = source_of(images)
        job = prepare(
            source,
            labels,
            out,
            settings,
            reading,
            given=given(Discovery, Reading),
            runtime=runtime,
            force=force,
        )
        asked = job.retraining is not None and not (yes or dry_run or job.agreed)
        if asked and not (printing.can_ask() and processes() == 1):
            ways = (Remedy("train again", yes=True), Remedy("see what it costs", dry_run=True), ANOTHER_FOLDER)
            raise InputError(str(job.retraining), *ways)
        if asked or dry_run:
            from sortal.discovery.forecast import forecast

            planned = forecast(job, spell, since=since)
    if dry_run:
        print(jsonlib.dumps(planned.to_json(), indent=2)) if json else printing.dry_run(planned)
        return 0
    if asked and not printing.agreed(f"{job.retraining} In all, this takes {printing.times(planned.seconds)}."):
        say("sortal: stopped; the run is as it was")
        return 1
    with printing.runtime("Starting", device, workers) as runtime:
        from sortal.discovery.pipeline import carry_out

        found = carry_out(job.reporting_to(runtime))
    if is_first():
        print(jsonlib.dumps(found.to_json(), indent=2)) if json else printing.run(found)
    return 3 if found.quarantine and processes() == 1 else 0  # torchrun takes any other code for a crash


def demo(
    *,
    out: Annotated[Path, Parameter(help="Folder of the run.")] = Path("digits-run"),
    k: Annotated[Count, Parameter(help="Number of classes; auto estimates it.")] = "auto",
    labelled: Labelled = 0.5,
    epochs: Annotated[Count, Parameter(help="Epochs to train for; auto is 40.")] = "auto",
    seed: Annotated[int, Parameter(help="Seed of every random choice.")] = 0,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Discover classes among handwritten digits.

    Writes 1,797 small images as files, half of the digits 0 to 4 labelled, 5 to
    9 unlabelled, and sorts them as sortal discover does, with a small network
    trained on them alone. Compares the result with k-means on the pixels, with
    the same number of classes, on the unlabelled images only.
    """
    with printing.runtime("Starting", device) as runtime:
        from sortal.discovery.demo import run

        result = run(out, k=k, labelled=labelled, epochs=epochs, seed=seed, runtime=runtime)
    print(jsonlib.dumps(result.to_json(), indent=2)) if json else printing.demo(result)
