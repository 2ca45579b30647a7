"""Sweeps: every preset with every seed, in one process or one per GPU; recorded runs are not repeated."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from sortal.config import line_of_method
from sortal.errors import NO_SPACE, InputError, Remedy, SortalError, no_space
from sortal.images.decoding import Quarantined
from sortal.learning.backbones.names import RANDOM
from sortal.learning.backbones.registry import load_backbone
from sortal.research.benchmark import records
from sortal.research.benchmark.parallel import in_processes
from sortal.research.benchmark.presets import Preset
from sortal.research.benchmark.records import Record
from sortal.research.benchmark.task import Data, Task, read, run, settings_of
from sortal.system.distributed import Processes, alone, launch
from sortal.system.gathering import gathered
from sortal.system.progress import Runtime
from sortal.system.text import plural

DEFAULT_SEEDS = (0, 1, 2)
Todo = Sequence[tuple[int, Task]]  # tasks and their positions in the sweep
TaskOutcome = tuple[int, Record | SortalError]  # position of the task, and its record or why it failed
DIED = "its process died, perhaps out of memory; run again with fewer processes"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """The records of a sweep, in the order of its presets and seeds, and the runs that failed."""

    records: tuple[Record, ...]
    folders: tuple[Path, ...]  # of the runs, in the same order
    failed: tuple[tuple[str, str], ...]  # title and reason
    reused: int  # records of earlier sweeps

    @property
    def unreadable(self) -> tuple[Quarantined, ...]:
        """Return the files that were left out of some run, each once."""
        return tuple(dict.fromkeys(bad for record in self.records for bad in record.unreadable))


def sweep(
    presets: Sequence[Preset],
    root: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] = "benchmark",
    seeds: Sequence[int] = DEFAULT_SEEDS,
    processes: int | None = None,
    watch_truth: bool = False,
    command: str = "sortal.research.benchmark.sweep.sweep(...)",
    runtime: Runtime = Runtime(),
) -> SweepResult:
    """Run every preset with every seed on the data in `root`, and write a record of each run to `out`.

    Recorded runs are not repeated, and interrupted ones are resumed. A run that fails does not stop the others.
    `processes` is the number of runs at the same time, by default one per GPU; `command` is stored in the records as
    the way to reproduce them. `watch_truth` writes the accuracy of each epoch into the folder of a run. Processes that
    torchrun started carry out one run after the other together, and end with the first that fails.
    """
    _check(presets, seeds, processes, Path(out))
    team = launch(runtime.device)
    gpus = _gpus(team.device)
    if team.size > 1 and processes is not None:
        raise InputError(f"processes cannot be combined with torchrun, which started {team.size}, got {processes}.")
    runtime = team.runtime(runtime)
    same: Any = {"root": Path(root), "out": Path(out), "command": command, "watch_truth": watch_truth}
    tasks = [Task(preset=preset, seed=seed, **same) for preset in presets for seed in seeds]
    runtime.progress("Reading data sets", 0, 0)
    names = dict.fromkeys(preset.dataset for preset in presets)
    data = team.by_first(lambda: {name: read(name, Path(root)) for name in names})
    recorded = team.by_first(lambda: [_recorded(task, data[task.preset.dataset]) for task in tasks])
    todo = [(at, task) for at, task in enumerate(tasks) if recorded[at] is None]
    if reused := len(tasks) - len(todo):
        runtime.note(f"{reused:,} of {plural(len(tasks), 'run is', 'runs are')} already recorded.")
    _check_tasks([task for _, task in todo], data, runtime)
    n = min(processes or max(len(gpus), 1), len(todo)) if team.size == 1 else 1
    outcomes = _in_parallel(todo, n, gpus, runtime) if n > 1 else _in_sequence(todo, data, len(tasks), team, runtime)
    failed: dict[int, str] = {}
    for at, outcome in outcomes:
        if isinstance(outcome, Record):
            recorded[at] = outcome
            shares = vars(outcome.transductive.accuracy).items()
            summary = ", ".join(f"{part.capitalize()} {100 * share:.1f}" for part, share in shares if share is not None)
            runtime.note(f"{tasks[at].title}: {summary}")
        else:
            failed[at] = str(outcome)
            runtime.note(f"{tasks[at].title} failed: {outcome}")
    return SweepResult(
        records=tuple(record for record in recorded if record is not None),
        folders=tuple(task.place for task, record in zip(tasks, recorded, strict=True) if record is not None),
        failed=tuple((tasks[at].title, failed[at]) for at in sorted(failed)),
        reused=reused,
    )


def _check(presets: Sequence[Preset], seeds: Sequence[int], processes: int | None, out: Path) -> None:
    if not presets:
        raise InputError("A sweep needs at least one preset, got none. Name a data set and a method, or a preset.")
    if not seeds or len(set(seeds)) < len(seeds):
        raise InputError(f"seeds must be one or more different numbers, got {list(seeds)}.")
    if processes is not None and processes < 1:
        raise InputError(f"processes must be at least 1, got {processes}.")
    if any(path.exists() and not path.is_dir() for path in (out, *out.parents)):
        raise InputError(f"Runs are written to a folder, got {str(out)!r}, which is a file or lies below one.")
    for preset in presets:
        weights = preset.weights
        if preset.needs is not None and weights is None:
            raise InputError(
                f"The preset {preset.name} needs weights that are not on the hub: {preset.needs}.",
                Remedy("download them and pass the file", weights=...),
            )
        if weights is not None and weights != RANDOM and not Path(weights).is_file():
            raise InputError(f"The weights file {weights!r} does not exist. Check the path.")


def _check_tasks(tasks: Sequence[Task], data: Mapping[str, Data], runtime: Runtime) -> None:
    """Raise errors of later runs before the first one starts."""
    for task in tasks:
        settings_of(task, data[task.preset.dataset])
    for name, weights in dict.fromkeys((task.preset.backbone, task.preset.weights) for task in tasks):
        runtime.progress(f"Loading {name}", 0, 0)
        load_backbone(name, weights=weights)
    if replaced := sum((task.place / records.RECORD_FILE).is_file() for task in tasks):
        runtime.note(f"{plural(replaced, 'recorded run')} with other settings or images will be replaced.")


def _gpus(device: torch.device) -> list[str]:
    """Return the GPUs to use, named as in CUDA_VISIBLE_DEVICES; none on another device."""
    if device.type != "cuda":
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count())]
    return names if device.index is None else [names[device.index]]


def _recorded(task: Task, data: Data) -> Record | None:
    """Return the record of an earlier run of the same task, if there is a valid one."""
    try:
        record = records.load(task.place)
    except InputError:
        return None
    return record if record.key == task.key(data) else None


def _in_sequence(
    todo: Todo, data: Mapping[str, Data], total: int, team: Processes, runtime: Runtime
) -> Iterator[TaskOutcome]:
    for number, (at, task) in enumerate(todo, start=total - len(todo) + 1):
        here = runtime.prefixed(f"Run {number} of {total}, {task.title}: ")
        if team.size == 1:
            yield at, _attempt(task, data.__getitem__, team, here)
        else:  # an error in one process leaves the others behind
            yield at, run(task, data[task.preset.dataset], processes=team, runtime=here)


def _attempt(task: Task, data: Callable[[str], Data], processes: Processes, runtime: Runtime) -> Record | SortalError:
    """Return the record of a run, or the error that ended it, so that the sweep continues."""
    try:
        return run(task, data(task.preset.dataset), processes=processes, runtime=runtime)
    except SortalError as error:
        return error
    except Exception as error:
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            return no_space(error, repr(error.filename or str(task.place)))
        logger.exception("%s failed", task.title)
        what = f"{type(error).__name__}: {error}".partition("\n")[0].rstrip(".: ")
        return SortalError(f"{what}{line_of_method(error)}")


def _in_parallel(todo: Todo, n: int, gpus: Sequence[str], runtime: Runtime) -> Iterator[TaskOutcome]:
    """Run tasks in n processes, each with one of the GPUs; tasks that share their training go to the same process."""
    groups = gathered((task.training_key, (at, task)) for at, task in todo)
    n, done = min(n, len(groups)), 0
    what = f"{plural(len(todo), 'run')} in {plural(n, 'process', 'processes')}"
    runtime.progress(what, 0, len(todo))
    silent = Runtime(device="cuda" if gpus else runtime.device, workers=runtime.workers)
    for group, outcomes in in_processes(partial(_run_group, runtime=silent), [*groups.values()], n, gpus):
        for outcome in outcomes or [(at, SortalError(DIED)) for at, _ in group]:
            done += 1
            runtime.progress(what, done, len(todo))
            yield outcome


def _run_group(group: Todo, runtime: Runtime) -> list[TaskOutcome]:
    @cache
    def data(name: str) -> Data:
        return read(name, group[0][1].root)

    processes = alone(runtime.device)
    here = processes.runtime(runtime)
    return [(at, _attempt(task, data, processes, here)) for at, task in group]
