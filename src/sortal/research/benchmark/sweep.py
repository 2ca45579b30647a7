"""Sweeps: presets run on data sets, seed by seed; what is done is not done again."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sortal.backbone import RANDOM, load_backbone
from sortal.benchmark import records
from sortal.benchmark.presets import Preset
from sortal.benchmark.records import Record
from sortal.benchmark.task import Data, Task, read, run, settings_of
from sortal.config import AUTO
from sortal.errors import InputError, SortalError
from sortal.inputs import choose_device
from sortal.workers import Progress

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess
    from multiprocessing.queues import Queue

OUT = "benchmark"  # the folder of runs unless told
SEEDS = (0, 1, 2)
PATIENCE = 60.0  # seconds that a process has to keep what it has

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Swept:
    """What came of a sweep."""

    records: tuple[Record, ...]
    folders: tuple[Path, ...]  # of the runs, in the same order
    failed: tuple[tuple[str, str], ...]  # runs that failed, and why
    again: int  # of the records, those that were there before


def sweep(
    presets: Sequence[Preset],
    root: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] = OUT,
    seeds: Sequence[int] = SEEDS,
    device: str = AUTO,
    workers: int | None = None,
    processes: int | None = None,
    command: str = "sortal.benchmark.sweep.sweep(...)",
    on_progress: Progress = lambda *_: None,
    on_note: Callable[[str], None] = logger.info,
) -> Swept:
    """Run every preset with every seed, on data in `root`, and keep a record of each in `out`.

    What was recorded before is not run again; a run that was broken off goes on. With several GPUs each process has
    one of them and takes runs as it gets done with others; `processes` is how many, or as many as there are GPUs. A run
    that fails does not stop the others. `command` is written down as what gives the same again.
    """
    _check(presets, seeds, processes, Path(out))
    choose_device(device, None)
    options: Any = {"device": device, "workers": workers, "command": command}
    tasks = [
        Task(preset=preset, seed=seed, root=Path(root), out=Path(out), **options)
        for preset in presets
        for seed in seeds
    ]
    on_progress("Reading data sets", 0, 0)
    data = {name: read(name, Path(root)) for name in dict.fromkeys(preset.dataset for preset in presets)}
    recorded = [_recorded(task, data[task.preset.dataset]) for task in tasks]
    found = {at: record for at, record in enumerate(recorded) if record is not None}
    failed: dict[int, str] = {}
    again = len(found)
    if again:
        on_note(f"{again:,} of {len(tasks):,} runs were done before.")
    todo = [(at, task) for at, task in enumerate(tasks) if at not in found]
    for _, task in todo:
        settings_of(task, data[task.preset.dataset])  # which tells what would fail, before the first run
    for name, weights in dict.fromkeys((task.preset.backbone, task.preset.weights) for _, task in todo):
        on_progress(f"Loading {name}", 0, 0)
        load_backbone(name, weights=weights)  # likewise
    if replaced := sum((task.place / records.NAME).is_file() for _, task in todo):
        on_note(f"{replaced:,} recorded runs are of other settings or images, and will be replaced.")
    if todo:
        gpus = _gpus(device)
        n = min(max(gpus, 1) if processes is None else processes, len(todo))
        if n > 1:
            results = _at_once(todo, n, gpus, on_progress)
        else:
            results = _in_turn(todo, data, len(tasks), on_progress, on_note)
        for at, result in results:
            if isinstance(result, Record):
                found[at] = result
                on_note(f"{tasks[at].title}: {_in_short(result)}")
            else:
                failed[at] = str(result)
                on_note(f"{tasks[at].title} failed: {result}")
    return Swept(
        records=tuple(found[at] for at in sorted(found)),
        folders=tuple(tasks[at].place for at in sorted(found)),
        failed=tuple((tasks[at].title, failed[at]) for at in sorted(failed)),
        again=again,
    )


def _in_short(record: Record) -> str:
    shares = record.transductive["accuracy"]
    return ", ".join(f"{part.capitalize()} {100 * share:.1f}" for part, share in shares.items() if share is not None)


def _check(presets: Sequence[Preset], seeds: Sequence[int], processes: int | None, out: Path) -> None:
    if not presets:
        raise InputError("There must be something to run: name a data set and a method, or a preset.")
    if not seeds or len(set(seeds)) < len(seeds):
        raise InputError(f"seeds must be at least one, each once, got {list(seeds)}.")
    if processes is not None and processes < 1:
        raise InputError(f"processes must be at least 1, got {processes}.")
    if any(path.exists() and not path.is_dir() for path in (out, *out.parents)):
        raise InputError(f"Runs go into a folder, got {str(out)!r}, which is a file or lies in one. Name another.")
    for preset in presets:
        weights = preset.weights
        if preset.needs is not None and weights is None:
            raise InputError(f"The preset {preset.name} needs weights that no hub has: {preset.needs}. Pass --weights.")
        if weights is not None and weights != RANDOM and not Path(weights).is_file():
            raise InputError(f"The file of weights {weights!r} is not there. Check the path.")


def _gpus(device: str) -> int:
    import torch

    chosen = choose_device(device, None)
    return 0 if chosen.type != "cuda" else 1 if chosen.index is not None else torch.cuda.device_count()


def _recorded(task: Task, data: Data) -> Record | None:
    """The record of a task that was done before, and would come out the same."""
    if not (task.place / records.NAME).is_file():
        return None
    try:
        record = records.load(task.place)
    except InputError:
        return None
    return record if record.key == task.key(data) else None


# One after the other, or in processes

Result = tuple[int, Record | SortalError]


def _in_turn(
    todo: Sequence[tuple[int, Task]],
    data: Mapping[str, Data],
    total: int,
    on_progress: Progress,
    on_note: Callable[[str], None],
) -> Iterator[Result]:
    for number, (at, task) in enumerate(todo, start=total - len(todo) + 1):
        on = _headed(f"Run {number} of {total}, {task.title}", on_progress)
        yield at, _tried(task, data.__getitem__, on_progress=on, on_note=on_note)


def _tried(task: Task, data: Callable[[str], Data], **told: Any) -> Record | SortalError:
    """A run, or why it failed; whatever that was, others may do better."""
    try:
        return run(task, data(task.preset.dataset), **told)
    except SortalError as error:
        return error
    except Exception as error:
        logger.exception("%s failed", task.title)
        return SortalError(f"{type(error).__name__}: {error}")


def _headed(head: str, on_progress: Progress) -> Progress:
    return lambda what, done, total: on_progress(f"{head}: {what}", done, total)


def _at_once(todo: Sequence[tuple[int, Task]], n: int, gpus: int, on_progress: Progress) -> Iterator[Result]:
    """Each process has a GPU, where there are any; tasks that learn the same go to one process."""
    groups: dict[tuple[Any, ...], list[tuple[int, Task]]] = {}
    for at, task in todo:
        groups.setdefault(task.lesson, []).append((at, task))
    context = get_context("spawn")
    numbers: Queue[int] = context.Queue()
    for number in range(n):
        numbers.put(number)
    what, done = f"{len(todo):,} runs in {n} processes", 0
    on_progress(what, done, len(todo))
    others = set(active_children())
    with ProcessPoolExecutor(n, mp_context=context, initializer=_begin, initargs=(numbers, n, gpus)) as pool:
        waiting = {pool.submit(_group, group): group for group in groups.values()}
        try:
            for future in as_completed(waiting):
                try:
                    results = future.result()
                except BrokenProcessPool:
                    _end(set(active_children()) - others)  # the pool waits for them
                    died = SortalError("a process died, perhaps for lack of memory; run again, with fewer processes")
                    results = [(at, died) for at, _ in waiting[future]]
                for result in results:
                    done += 1
                    on_progress(what, done, len(todo))
                    yield result
        except BaseException:
            _end(set(active_children()) - others)
            pool.shutdown(cancel_futures=True)
            raise


def _end(processes: Collection[BaseProcess]) -> None:
    """Interrupt each once, so that it keeps what it has, and wait for it; but not for ever."""
    for process in processes:
        if process.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGINT)
    for process in processes:
        process.join(PATIENCE)
        process.kill()


def _begin(numbers: Queue[int], n: int, gpus: int) -> None:
    """Take a GPU, before torch looks for any, and a share of the memory; end when told, and when the parent is gone."""
    number, visible = numbers.get(), os.environ.get("CUDA_VISIBLE_DEVICES")
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[number % gpus] if visible else str(number % gpus)
    os.environ["LOCAL_WORLD_SIZE"] = str(n)  # tokens.room_for: processes on this machine, each with its own tokens
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # a terminal's Ctrl-C reaches the parent alone, which passes it on once
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # by which a pool ends the others when one has died
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # else a GPU and a lock would be held for nobody


def _group(group: Sequence[tuple[int, Task]]) -> list[Result]:
    @cache
    def data(name: str) -> Data:
        return read(name, group[0][1].root)

    try:
        return [(at, _tried(task, data)) for at, task in group]
    except KeyboardInterrupt:
        os._exit(130)  # the pool would send this back, and begin with the next group
