"""The commands that sort a collection: discover and demo."""

import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import astuple, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args

from cyclopts import Parameter

from sortal.cli import printing
from sortal.cli.options import (
    CountOption,
    Device,
    DryRun,
    FeaturesOption,
    Flag,
    Flat,
    Json,
    Labelled,
    TableOption,
    WatchTruth,
    Workers,
    given,
    processes,
    source_or_pictures,
    spell,
)
from sortal.config import Discovery, Granularity, Reading, load_method, load_named_backbone, registered
from sortal.errors import InputError, Remedy
from sortal.system.progress import is_first, say
from sortal.system.text import byte_sizes, duration, plain, plural

if TYPE_CHECKING:
    from sortal.discovery.demo import DemoResult
    from sortal.discovery.forecast import RunForecast as Forecast
    from sortal.runs.run import Run

OptionGroup = TypeVar("OptionGroup", Discovery, Reading)
# Line breaks in examples, and after the first paragraph of a command's docstring, are printed as they are: 80 columns.
DISCOVER_EXAMPLES = """\
Examples:
  sortal discover photos
  sortal discover photos --labels labels.csv --out run
  sortal discover photos --dry-run      what it would do, and how long it takes
  sortal discover photos --k 40         another k: only later stages are redone
  sortal discover photos --granularity finer   more, smaller categories; likewise
  sortal discover photos more_photos    several folders
  sortal discover photos-run            the images of a run, again
  sortal discover photos --backbone vit_small_patch14_dinov2 --weights FILE
  sortal discover photos --method my_file.py:MyMethod   a method of your own
  sortal discover --features tiles.parquet   feature vectors instead of images
"""
DEMO_EXAMPLES = """\
Examples:
  sortal demo
  sortal demo --k 10           with the true number of classes
  sortal demo --labelled 0.1   with fewer labels
  sortal demo --json           the result as JSON
"""
SORTED_FOLDERS_HELP = "A folder of images, or several."
RUN_FOLDER_HELP = "Folder of the run; IMAGES-run in the current folder by default."
FORCE_HELP = "Overwrite the run in the folder and take nothing from it, or write into a folder that is not empty."
CONFIG_HELP = "Settings that are not given here: the run.json of a run, which repeats it, or a TOML file."
TRACK_HELP = "Send the figures of each epoch to Weights & Biases or MLflow, if it is installed."
YES_HELP = "Train again without asking, if settings of an earlier run have changed."
NONE_HELD_OUT = "no labelled image, so confidence will not be calibrated; that takes about 100 labelled images"
_SHA256 = re.compile(r"(?<=sha256 [0-9a-f]{8})[0-9a-f]+")  # all but the first eight digits


def discover(
    images: Annotated[list[Path] | None, Parameter(help=SORTED_FOLDERS_HELP, negative="")] = None,
    *,
    features: FeaturesOption = None,
    labels: TableOption = None,
    out: Annotated[Path | None, Parameter(help=RUN_FOLDER_HELP)] = None,
    config: Annotated[Path | None, Parameter(help=CONFIG_HELP)] = None,
    settings: Annotated[Discovery, Flat] = Discovery(),
    reading: Annotated[Reading, Flat] = Reading(),
    device: Device = "auto",
    workers: Workers = None,
    json: Json = False,
    yes: Annotated[Flag, Parameter(help=YES_HELP)] = False,
    force: Annotated[Flag, Parameter(help=FORCE_HELP)] = False,
    watch_truth: WatchTruth = False,
    track: Annotated[Literal["wandb", "mlflow"] | None, Parameter(help=TRACK_HELP)] = None,
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
    were in the run, and images that were added to it take part. You are asked
    first if a changed setting means training again, but not if only images or
    labels have changed.

    How long it takes, by images and machine (see --dry-run for yours):
      1,000 photographs   6 min on two CPU cores
      8,000 photographs   1 min on an H200 GPU
      1,800 tiny images   73 s on two CPU cores (--backbone convnet)

    Exit codes: 0 done; 1 failed; 2 bad usage or input; 3 done, but some files
    could not be read and were left out; 130 interrupted.
    """
    since = perf_counter()
    with printing.runtime(device=device, workers=workers) as runtime:
        runtime.progress("Finding images", 0, 0)
        from sortal.discovery.job import prepare
        from sortal.discovery.run_places import ANOTHER_FOLDER

        source = source_or_pictures(images, features)
        named = given(Discovery, Reading)
        if "method" in named:
            load_method(settings.method)
        if "backbone" in named:
            load_named_backbone(settings.backbone)
        if config is not None:
            from sortal.discovery.config_files import settings_in

            in_file = settings_in(config, {*named, *(["labels"] if labels is not None else [])})
            labels, named = in_file.pop("labels", labels), named | {*in_file}
            settings, reading = _with(settings, in_file), _with(reading, in_file)
        job = prepare(
            source,
            labels,
            out,
            settings,
            reading,
            given=named,
            runtime=runtime,
            force=force,
            watch_truth=watch_truth,
            features=features,
            dry_run=dry_run,
        )
        asked = job.retraining is not None and not (yes or dry_run or job.agreed)
        if asked and not (_can_ask() and processes() == 1):
            ways = (Remedy("train again", yes=True), Remedy("see what it costs", dry_run=True), ANOTHER_FOLDER)
            raise InputError(str(job.retraining), *ways)
        quicker = ""
        if asked or dry_run:
            from sortal.discovery.forecast import forecast

            planned = forecast(job, spell, since=since)
            quicker = "" if dry_run else planned.quicker
        elif processes() == 1 and job.may_take_long:
            from sortal.discovery.forecast import quicker_ways

            quicker = quicker_ways(job, spell)
        if quicker:
            say(quicker)
    if dry_run:
        printing.print_json(planned.to_json()) if json else print_forecast(planned)
        return 0
    if asked and not _agreed(f"{job.retraining} In all, this takes {printing.total_time(planned.seconds)}."):
        say("sortal: stopped; the run is as it was")
        return 1
    with printing.runtime(device=device, workers=workers) as runtime:
        from sortal.discovery.pipeline import carry_out

        if track is not None and is_first():
            from sortal.discovery.tracking import tracker

            runtime = replace(runtime, on_epoch=tracker(track, job.place.name))
        found = carry_out(job.reporting_to(runtime))
    if is_first():
        printing.print_json(found.to_json()) if json else print_run(found)
    return 3 if found.quarantine and processes() == 1 else 0  # torchrun takes any other code for a crash


def _with(record: OptionGroup, values: Mapping[str, Any]) -> OptionGroup:
    """Return the record with those of the values that it has fields for."""
    return replace(record, **{name: value for name, value in values.items() if hasattr(record, name)})


def _can_ask() -> bool:
    """Tell whether there is somebody to ask."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def _agreed(text: str) -> bool:
    """Ask whether to go on."""
    say(text)
    print("Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def print_forecast(p: "Forecast") -> None:
    """Print the plan of a run and its cost."""
    known = f"{p.labelled:,} labelled in {plural(p.classes, 'class', 'classes')}"
    rows = (
        ("images", f"{p.images:,}: {known}, {p.unlabelled:,} unlabelled"),
        (
            "held out",
            f"{plural(p.held_out, 'labelled image')}, to calibrate confidence" if p.held_out else NONE_HELD_OUT,
        ),
        ("classes", _classes(p)),
        ("backbone", f"{p.backbone}, {_SHA256.sub('…', p.weights)}"),
        ("training", _training(p)),
        ("device", p.device),
        ("memory", f"about {byte_sizes(p.memory)[0]}"),
        ("disk", printing.disk_space(p.disk, p.free_disk)),
        ("time", printing.total_time(p.seconds)),
    )
    printing.print_table((), rows, left=2)
    for text in (*p.notes, *filter(None, [p.quicker])):
        print(f"\n{plain(text)}")
    printing.print_list(printing.IN_SAMPLE, [printing.line(file) for file in p.unreadable_sample])


def _classes(p: "Forecast") -> str:
    if p.k == "own":
        return "found by the method"
    if p.k != "auto":
        return f"k = {p.k}"
    return "estimated" if p.granularity == "usual" else f"estimated, {p.granularity} than usual"


def _training(p: "Forecast") -> str:
    if p.method == "kmeans" or not p.epochs:
        return "none"
    views = "new views in every epoch" if p.views is None else f"{p.views} cached views per image"
    where = f"; {p.tokens}" if p.tokens is not None else ""
    more = f" and {p.counting_epochs} to count the classes" if p.counting_epochs else ""
    return f"{plural(p.epochs, 'epoch')}{more}, {views}{where}"


def print_run(run: "Run") -> None:
    """Print a summary of a run and the path of its report."""
    _print_result(run)
    print(f"\nReport: {plain(run.report)}")
    if run.k.estimated:
        asked = run.facts.settings.granularity
        first, second = (each for each in get_args(Granularity) if each != asked)
        again = shlex.join(("sortal", "discover", plain(run.folder), "--granularity", first))
        of = registered(run.facts.settings.method)
        how = "" if of is None or of.needs_k else " without training"
        print(f"Too coarse or too fine? {again} (or {second}) sorts again{how}.")


def _print_result(run: "Run") -> None:
    """Print what a run found: the number of categories, and each of them or the largest."""
    k = run.k
    a = run.assignments
    print(printing.counted(len(a), run.counts(), int(a.binned.sum()), a.moments, a.counted_once))
    new = sum(category.kind == "new" for category in run.categories)
    how = "estimated" if k.estimated else "given"
    likely = f", likely {k.interval[0]} to {k.interval[1]}" if k.interval and k.interval[0] < k.interval[1] else ""
    how += likely if k.wish is None else f" ({k.usual} without the wish for {k.wish} ones{likely})"
    known = plural(len(run.categories) - new, "known category", "known categories")
    print(f"k = {k.k}, {how}: {known} and {new:,} new.")
    print(f"{k.basis}\n" if k.basis else "")
    few = len(run.categories) <= printing.TABLE_ROWS  # the known ones come first; among many, the largest
    ranked = sorted(run.categories, key=lambda each: (few and each.kind != "known", -each.size))
    rows, counts = [], ("labelled", "unsure", *(["other"] if any(each.other for each in ranked) else []))
    for each in ranked:
        cohesion = None if each.cohesion is None else f"{each.cohesion:.2f}"
        numbers = (getattr(each, name) for name in counts)
        rows.append((printing.name(each.name), each.kind, each.size, *numbers, cohesion))
    headings = ("Category", "Kind", "Images", *map(str.capitalize, counts), "Cohesion")
    printing.print_table(headings, printing.abridge(rows, "more category", "more categories"))
    if count := len(run.assignments.labels_to_check):
        checked = f"{plural(count, 'label')} to check, which may be right"
        print(f"\n{checked}: sortal review shows what each image looks like instead.")
    if (m := run.metrics) is not None:
        shares = (*map(printing.share, astuple(m.accuracy)), printing.share(m.known_accuracy))
        figures = "All {0}, Old {1} ({3} by name), New {2}".format(*shares)
        print(f"\nAccuracy, %: {figures}; on the {plural(m.images, 'unlabelled image')} whose truth is known.")
    printing.print_unreadable(run.quarantine)


def demo(
    *,
    out: Annotated[Path, Parameter(help="Folder of the run.")] = Path("digits-run"),
    k: Annotated[CountOption, Parameter(help="Number of classes; auto estimates it.")] = "auto",
    labelled: Labelled = 0.5,
    epochs: Annotated[CountOption, Parameter(help="Epochs to train for; auto is 40.")] = "auto",
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
    with printing.runtime(device=device) as runtime:
        from sortal.discovery.demo import run

        result = run(out, k=k, labelled=labelled, epochs=epochs, seed=seed, runtime=runtime)
    printing.print_json(result.to_json()) if json else print_demo(result)


def print_demo(result: "DemoResult") -> None:
    """Print what discover prints, and a comparison with k-means."""
    run = result.run
    _print_result(run)
    print(f"\nThere are {result.k_true} true classes. On the unlabelled images, with k = {run.k.k}:\n")
    compared = {
        "k-means on pixels": result.plain,
        "semi-supervised k-means on pixels": result.semi_supervised,
        "sortal discover": result.discovered,
    }
    rows = [(name, *map(printing.share, astuple(accuracy))) for name, accuracy in compared.items()]
    printing.print_table(("Accuracy, %", "All", "Old", "New"), rows)
    print(f"\n{duration(result.seconds)}. Report: {plain(run.report)}")
    print(f"To name the new classes and correct the result: sortal review {shlex.quote(plain(run.folder))}")
