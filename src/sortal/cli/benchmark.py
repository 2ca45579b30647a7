"""The commands of `sortal benchmark`: run, table and presets."""

import json as jsonlib
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from sortal.cli import printing
from sortal.cli.options import Device, Flag, Flat, Json, Several, Workers, split, words
from sortal.cli.options import processes as torchrun
from sortal.config import Overrides
from sortal.system.progress import is_first

BENCHMARK_EXAMPLES = """\
Examples:
  sortal benchmark cub --root data --method gcd
  sortal benchmark --preset table3/cub/gcd --root data
  sortal benchmark --preset table2 --root data        all rows of a table
  sortal benchmark folder --root flowers --method gcd,uno --k auto
  sortal benchmark presets
  sortal benchmark table benchmark --out tables
"""
METHOD = "One or more of sortal, gcd, kmeans, rankstats, simgcd and uno; sortal by default."
PRESET = "Names of presets, or the start of several: table3/cub/gcd, table3/cub, table3."
SEEDS = "One or more whole numbers, a run each: 0 1 2 or 0,1,2."
FAST = "Train presets in Sortal's own way: cache views, and take the losses on the bottleneck."

benchmark = App(name="benchmark", help_format="plaintext", help_epilogue=BENCHMARK_EXAMPLES)


@benchmark.default
def run_benchmark(
    dataset: Annotated[str | None, Parameter(help="The data set; optional with a preset.")] = None,
    *,
    root: Annotated[Path, Parameter(help="The folder that contains it.")] = Path("data"),
    method: Annotated[tuple[str, ...], Several, Parameter(help=METHOD)] = (),
    preset: Annotated[tuple[str, ...], Several, Parameter(help=PRESET)] = (),
    seeds: Annotated[tuple[str, ...], Several, Parameter(metavar="INT …", help=SEEDS, show_default=" ".join)] = (
        "0",
        "1",
        "2",
    ),
    overrides: Annotated[Overrides, Flat] = Overrides(),
    fast: Annotated[Flag, Parameter(help=FAST)] = False,
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
    with printing.runtime("Starting", device, workers) as runtime:
        from sortal.research.benchmark.sweep import sweep

        command = shlex.join(["sortal", *words.get()])
        result = sweep(chosen, root, out=out, seeds=each, processes=processes, command=command, runtime=runtime)
    if not is_first():
        return 0
    if json:
        print(jsonlib.dumps([record.to_json() for record in result.records], indent=2))
    else:
        printing.sweep(result)
    left_out = result.unreadable and torchrun() == 1  # it takes any other code for a crash
    return 1 if result.failed else 3 if left_out else 0


@benchmark.command
def table(
    *runs: Annotated[Path, Parameter(help="Folders of runs, or folders that contain runs.")],
    out: Annotated[Path | None, Parameter(help="Folder for tables.md and the CSV files.")] = None,
    force: Annotated[Flag, Parameter(help="Overwrite files.")] = False,
) -> None:
    """Print the paper's tables for recorded runs, beside the published figures.

    Prints Markdown; --out also writes it, and each table as CSV.
    """
    from sortal.research.benchmark import records, tables

    made = tables.tables(records.find(runs))
    if out is not None:
        tables.write(made, out, force=force)
    print(tables.document(made), end="")


@benchmark.command(name="presets")
def list_presets(*, json: Json = False) -> None:
    """List the presets: the recipe of every row of the paper's tables."""
    from sortal.research.benchmark.presets import PRESETS

    if json:
        print(jsonlib.dumps({name: asdict(preset) for name, preset in PRESETS.items()}, indent=2))
    else:
        printing.presets(PRESETS)
