"""The commands of `sortal benchmark`: run, table, compare and presets."""

import os
import shlex
from dataclasses import asdict, astuple
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from sortal.cli import printing
from sortal.cli.options import Device, Flag, Flat, Json, Several, WatchTruth, Workers, split, words
from sortal.cli.options import processes as torchrun
from sortal.config import Overrides
from sortal.system.progress import is_first
from sortal.system.text import plain

if TYPE_CHECKING:
    from sortal.research.benchmark.records import Record
    from sortal.research.benchmark.sweep import SweepResult

BENCHMARK_EXAMPLES = """\
Examples:
  sortal benchmark cub --root data --method gcd
  sortal benchmark --preset table3/cub/gcd --root data
  sortal benchmark --preset table2 --root data        all rows of a table
  sortal benchmark folder --root flowers --method gcd,uno --k auto
  sortal benchmark folder --root flowers --method gcd,my_file.py:MyMethod
  sortal benchmark folder --root flowers --set losses.temperature=0.3,1.0
  sortal benchmark presets
  sortal benchmark table benchmark --out tables
  sortal benchmark compare benchmark --reference gcd
"""
METHOD_HELP = (
    "One or more of sortal, gcd, kmeans, rankstats, simgcd, uno, legogcd, rlcd, debgcd, cms, selex, mgce, umap-hdbscan "
    "and FILE.py:CLASS; sortal by "
    "default."
)
REFERENCE_HELP = "The method to compare the others with: sortal by default, or else the first one."
PRESET_HELP = "Names of presets, or the start of several: table3/cub/gcd, table3/cub, table3."
SEEDS = ("0", "1", "2")
SEEDS_HELP = "One or more whole numbers, a run each: 0 1 2 or 0,1,2."
FAST_HELP = "Train presets in Sortal's own way: cache views, and take the losses on the bottleneck."

benchmark = App(name="benchmark", help_format="plaintext", help_epilogue=BENCHMARK_EXAMPLES)


@benchmark.default
def run_benchmark(
    dataset: Annotated[str | None, Parameter(help="The data set; optional with a preset.")] = None,
    *,
    root: Annotated[Path, Parameter(help="The folder that contains it.")] = Path("data"),
    method: Annotated[tuple[str, ...], Several, Parameter(help=METHOD_HELP)] = (),
    preset: Annotated[tuple[str, ...], Several, Parameter(help=PRESET_HELP)] = (),
    seeds: Annotated[
        tuple[str, ...], Several, Parameter(metavar="INT …", help=SEEDS_HELP, show_default=" ".join)
    ] = SEEDS,
    overrides: Annotated[Overrides, Flat] = Overrides(),
    fast: Annotated[Flag, Parameter(help=FAST_HELP)] = False,
    watch_truth: WatchTruth = False,
    out: Annotated[Path, Parameter(help="Folder of runs and records.")] = Path("benchmark"),
    processes: Annotated[int | None, Parameter(help="Number of runs in parallel; one per GPU by default.")] = None,
    device: Device = "auto",
    workers: Workers = None,
    json: Json = False,
) -> int:
    """Run a benchmark: split, train, sort, evaluate; one record per seed.

    DATASET is cifar10, cifar100, imagenet100, cub, stanford_cars, fgvc_aircraft
    or herbarium19, as published, or folder: a folder per class, the first half
    of them old. A preset is the recipe of a row of the paper; with a DATASET it
    runs on that one instead. Options replace the settings of a preset.

    Run the same command to resume an interrupted benchmark; recorded runs are
    not repeated.

    Exit codes: 0 done; 1 a run failed; 2 bad usage or input; 3 done, but some files
    could not be read and were left out; 130 interrupted.
    """
    from sortal.research.benchmark.select import choose, numbers

    methods, names, each = split(method), split(preset), numbers(split(seeds))
    chosen = choose(dataset, root, methods=methods, names=names, fast=fast, **asdict(overrides))
    with printing.runtime(device=device, workers=workers) as runtime:
        from sortal.research.benchmark.sweep import sweep

        command = shlex.join(["sortal", *words.get()])
        how: Any = {"processes": processes, "watch_truth": watch_truth, "command": command, "runtime": runtime}
        result = sweep(chosen, root, out=out, seeds=each, **how)
    if not is_first():
        return 0
    if json:
        printing.print_json([record.to_json() for record in result.records])
    else:
        print_sweep(result)
    left_out = result.unreadable and torchrun() == 1  # it takes any other code for a crash
    return 1 if result.failed else 3 if left_out else 0


def print_sweep(result: "SweepResult") -> None:
    """Print a table of runs for each preset, the failures, and the next command."""
    headings = ("Seed", "k", "Classes", "All", "Old", "New", "Legacy", "Test", "Minutes")
    for name, records in groupby(result.records, attrgetter("name")):
        print(f"\n{plain(name)}")
        printing.print_table(headings, map(_row, records))
    for title, why in result.failed:
        print(f"\nFailed: {plain(title)}: {plain(why)}")
    printing.print_unreadable(result.unreadable)
    if result.folders:
        place = plain(os.path.commonpath(result.folders))
        print(f"\nThe runs are in {place}; sortal benchmark table makes tables of them.")


def _row(record: "Record") -> tuple[object, ...]:
    scores, test = record.transductive, record.inductive
    shares = (*astuple(scores.accuracy), scores.legacy.all, test.accuracy.all if test else None)
    return str(record.seed), record.k.k, record.k.true, *map(printing.share, shares), f"{record.minutes:.1f}"


@benchmark.command
def table(
    *runs: Annotated[Path, Parameter(help="Folders of runs, or folders that contain runs.")],
    out: Annotated[Path | None, Parameter(help="Folder for tables.md, CSV and LaTeX files.")] = None,
    force: Annotated[Flag, Parameter(help="Overwrite files.")] = False,
) -> None:
    """Print the paper's tables for recorded runs, beside the published figures.

    Prints Markdown; --out also writes it, and each table as CSV and LaTeX.
    """
    from sortal.research.benchmark import comparison, records, typesetting

    made = comparison.tables(records.find(runs))
    if out is not None:
        typesetting.write(made, out, force=force)
    print(typesetting.document(made), end="")


@benchmark.command
def compare(
    *runs: Annotated[Path, Parameter(help="Folders of runs, and files of JSON lines of benchmarks/wild.py.")],
    reference: Annotated[str | None, Parameter(help=REFERENCE_HELP)] = None,
    method: Annotated[tuple[str, ...], Several, Parameter(help="The others; all by default.")] = (),
    score: Annotated[Literal["all", "old", "new", "mean"], Parameter(help="What to compare.")] = "all",
    out: Annotated[Path | None, Parameter(help="Folder for the tables and the plot of ranks.")] = None,
    force: Annotated[Flag, Parameter(help="Overwrite files.")] = False,
) -> None:
    """Compare methods with a reference, over data sets, splits and seeds.

    Prints Markdown: mean accuracies, paired differences with bootstrap intervals,
    ranks, and every data set by itself. Runs that a method lacks are named. --out
    also writes comparison.md, each table as CSV and LaTeX, and, from three methods
    on, the plot of ranks with their critical difference as PNG and SVG.
    """
    from sortal.research.benchmark import typesetting, versus
    from sortal.research.benchmark.outcomes import read_outcomes

    outcomes, notes = read_outcomes(runs)
    found = versus.compare(outcomes, reference=reference, score=score, methods=split(method), notes=notes)
    text = typesetting.document(found.tables, "Comparison")
    if out is not None:
        pictures = {}
        if found.ranking is not None:
            from sortal.research.figures import FIGURE_FORMATS
            from sortal.research.figures.rank_plot import rank_plot
            from sortal.research.figures.style import render

            plot = rank_plot(found.ranking)
            pictures = {f"ranks.{kind}": render(plot, kind) for kind in FIGURE_FORMATS}
        typesetting.write(found.tables, out, force=force, text=("comparison.md", text), pictures=pictures)
    print(text, end="")


@benchmark.command(name="presets")
def list_presets(*, json: Json = False) -> None:
    """List the presets: the recipe of every row of the paper's tables."""
    from sortal.research.benchmark.presets import PRESETS

    if json:
        printing.print_json({name: asdict(preset) for name, preset in PRESETS.items()})
    else:
        rows = [(preset.name, preset.title, preset.version) for preset in PRESETS.values()]
        printing.print_table(("Preset", "Recipe", "Version"), rows, left=2)
