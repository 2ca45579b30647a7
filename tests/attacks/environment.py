"""Surroundings that are odd, poor or hostile: variables, streams, limits, signals, folders and clocks."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tiny_folder

from attacks.attack import OPTIONS, Attack, Done, Trial, case
from sortal.runs.storage import load_run

SECONDS = 300  # for a process to end, on a slow machine
KEPT = ("PYTHONPATH", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")


@dataclass(frozen=True)
class Surroundings:
    """What a process is started in, and the exit codes it may end with."""

    name: str
    variables: Mapping[str, str | None] = field(default_factory=dict)  # None removes one
    only: bool = False  # without all other variables
    closed: tuple[int, ...] = ()  # descriptors
    limits: tuple[tuple[int, int], ...] = ()
    umask: int | None = None
    stdout: str | None = None
    stderr: str | None = None
    codes: tuple[int, ...] = (0,)

    def prepare(self) -> None:
        """Set up the process that becomes Sortal."""
        for what, limit in self.limits:
            resource.setrlimit(what, (limit, limit))
        if self.umask is not None:
            os.umask(self.umask)
        for stream in self.closed:
            os.close(stream)

    def environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        every = {**(kept if self.only else os.environ), **self.variables}
        return {name: value for name, value in every.items() if value is not None}


FULL = "/dev/full"
SURROUNDINGS = (
    Surroundings("nothing is set", only=True),
    Surroundings("standard streams are closed", closed=(0, 1, 2)),
    Surroundings("little may be open", limits=((resource.RLIMIT_NOFILE, 9),), codes=(0, 1)),
    Surroundings("warnings are errors", {"PYTHONWARNINGS": "error", "PYTHONHASHSEED": "1"}),
    Surroundings("a column", {"COLUMNS": "1", "LINES": "0"}),
    Surroundings("C locale", {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "TERM": "dumb"}),
    Surroundings("no home, terminal or path", {"HOME": None, "TERM": None, "PATH": None, "USER": None, "LANG": None}),
    Surroundings("unknown locale and terminal", {"LC_ALL": "xx_YY.nope", "TERM": "nope", "PYTHONIOENCODING": "utf-16"}),
    Surroundings("an endless line", {"COLUMNS": "9" * 30, "LINES": "9" * 30}),
    Surroundings("widths that are none", {"COLUMNS": "²", "LINES": "-1"}),
    Surroundings("no width", {"COLUMNS": "0"}),
    Surroundings("no temporary folder", {"TMPDIR": "/nonexistent", "HOME": "/dev/null", "HF_HUB_OFFLINE": "1"}),
    Surroundings("the temporary folder is no folder", {"TMPDIR": FULL}),
    Surroundings("no standard input", closed=(0,)),
    Surroundings("no standard output", closed=(1,)),
    Surroundings("no standard error", closed=(2,)),
    Surroundings("files are private", umask=0o077),
    Surroundings("files belong to nobody", umask=0o777, codes=(0, 1, 2)),
    Surroundings("no more processes", limits=((resource.RLIMIT_NPROC, 0),), codes=(0, 1)),
    Surroundings("little memory", limits=((resource.RLIMIT_AS, 2**29),), codes=(0, 1)),
    Surroundings("a rank without torchrun", {"RANK": "7"}),
    Surroundings("no number of processes", {"WORLD_SIZE": "many"}, codes=(2,)),
    Surroundings("threads without number", {"OMP_NUM_THREADS": "x", "OPENBLAS_NUM_THREADS": "-3"}),
    Surroundings("standard output is full", stdout=FULL, codes=(1,)),
    Surroundings("standard error is full", stderr=FULL),
)


def start(place: Surroundings, words: list[str | Path], cwd: Path, **streams: Any) -> subprocess.Popen[bytes]:
    """Start a process of its own: what Python does before and after Sortal counts too."""
    return subprocess.Popen(
        [sys.executable, "-m", "sortal", *map(str, words)],
        cwd=cwd, env=place.environment(), preexec_fn=place.prepare, stdin=subprocess.DEVNULL, **streams,
    )  # fmt: skip


def ended(process: subprocess.Popen[bytes]) -> Done:
    out, err = process.communicate(timeout=SECONDS)
    return Done(process.returncode, (out or b"").decode(errors="replace"), (err or b"").decode(errors="replace"))


def run_in(place: Surroundings, words: list[str | Path], cwd: Path) -> Done:
    """Run a command in its surroundings, and check how it ends."""
    with contextlib.ExitStack() as opened:
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        for name, path in (("stdout", place.stdout), ("stderr", place.stderr)):
            if path is not None:
                streams[name] = opened.enter_context(open(path, "wb"))
        return ended(start(place, words, cwd, **streams)).check(*place.codes)


def surroundings(trial: Trial) -> int:
    """Commands do their work in odd surroundings, or say in a sentence why not; the run stays as it is."""
    place: Surroundings = case(trial, SURROUNDINGS)
    run, out = trial.world.run, trial.folder / "table.csv"
    before = tiny_folder.contents(run)
    commands: tuple[list[str | Path], ...] = (
        ["check", trial.world.images, "--workers", "1"],
        ["export", run, "--format", "csv", "--out", out],
        ["decisions", run],
        ["report", "--help"],
    )
    first = 2 * (trial.number // len(SURROUNDINGS))
    for words in (commands[first % 4], commands[(first + 1) % 4]):
        done = run_in(place, words, trial.folder)
        if done.code:
            assert not done.err or done.err.startswith("sortal: error: "), done
        elif 1 not in place.closed and place.stdout is None:
            assert done.out, "the result is printed"
    assert tiny_folder.contents(run) == before
    if out.exists() and place.umask != 0o777:
        assert len(tiny_folder.rows_of(out)) == 120, "the table is whole"
    return 2


# Signals and pipes


def broken_pipe(trial: Trial) -> None:
    """A reader that goes away, of results or of messages, ends the command quietly and undoes nothing."""
    reader, writer = os.pipe()
    os.close(reader)
    stream = ("stdout", "stderr")[trial.number % 2]
    out = trial.folder / "table.csv"
    try:
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: writer}
        words: list[str | Path] = ["export", trial.world.run, "--format", "csv", "--out", out]
        done = ended(start(Surroundings("a closed pipe"), words, trial.folder, **streams))
    finally:
        os.close(writer)
    done.check(1 if stream == "stdout" else 0)
    assert done.err == ""
    assert len(tiny_folder.rows_of(out)) == 120


def ignore(*numbers: int) -> None:
    """In a child: ignore signals, as under nohup and in the background of a script."""
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


def disturb(number: int, every: int, ignored: bool) -> None:
    """In a child: send itself a signal at every so many-th file that is replaced."""
    if ignored:
        ignore(number)
    replace, count = os.replace, 0

    def replaced(*values: Any, **named: Any) -> None:
        nonlocal count
        count += 1
        if count % every == 0:
            os.kill(os.getpid(), number)
        replace(*values, **named)

    os.replace = replaced


def signals(trial: Trial) -> None:
    """Ignored signals change nothing; others, once or again and again, end a run that can be resumed."""
    number = (signal.SIGINT, signal.SIGTERM)[trial.number % 2]
    ignored = trial.number % 4 < 2
    run = trial.folder / "run"
    every = trial.random.randint(1, 6)
    words: tuple[str | Path, ...] = ("discover", trial.world.images, "--out", run, *OPTIONS)
    done = trial.world.sortal(*words, before=disturb, given=[int(number), every, ignored])
    done.check(*((0,) if ignored else (0, 130)))
    if not ignored:
        trial.world.sortal(*words).check(0)
    same(run, trial.world.run)


def same(run: Path, other: Path) -> None:
    """Require the result of an undisturbed run."""
    assert tiny_folder.tables(run) == tiny_folder.tables(other)


# Clocks


def jump(seconds: float, seed: int) -> None:
    """In a child: let the clock on the wall jump at each look at it, and give new files times in the future."""
    import random
    import time
    from unittest.mock import patch

    clock, chance = time.time, random.Random(seed)
    patch("time.time", lambda: clock() + chance.uniform(-seconds, seconds)).start()
    patch("time.time_ns", lambda: int(1e9 * (clock() + chance.uniform(-seconds, seconds)))).start()
    replace = os.replace

    def replaced(source: Any, target: Any, **named: Any) -> None:
        at = clock() + chance.uniform(-seconds, seconds)
        if os.path.isfile(source):
            os.utime(source, (at, at))
        replace(source, target, **named)

    patch("os.replace", replaced).start()


def clocks(trial: Trial) -> None:
    """A clock that jumps between the stages of a run changes no result, and no duration is negative or absurd."""
    seconds = (3600.0, 1e6, 1.5e9)[trial.number % 3]
    run = trial.folder / "run"
    words: tuple[str | Path, ...] = ("discover", trial.world.images, "--out", run, *OPTIONS)
    trial.world.sortal(*words, before=jump, given=[seconds, trial.random.randrange(10**6)]).check(0)
    same(run, trial.world.run)
    facts = load_run(run).facts
    assert all(0 <= each < SECONDS for each in facts.timings.values()), facts.timings
    assert facts.training is not None
    assert 0 <= facts.training.seconds < SECONDS


# Folders


def leave_current(*_: Any) -> None:
    """In a child: remove the folder it is in."""
    os.makedirs("gone")
    os.chdir("gone")
    os.rmdir("../gone")


def few_files(limit: int) -> None:
    """In a child: limit the number of open files."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


def little_memory(extra: int) -> None:
    """In a child: limit the memory to a little more than it has."""
    with open("/proc/self/statm", encoding="ascii") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + extra, now + extra))


def small_files(limit: int) -> None:
    """In a child: limit the size of files, as on a disk that is full."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


FOLDERS: tuple[tuple[str, Callable[..., None], tuple[int, ...], tuple[int, ...]], ...] = (
    ("the current folder is gone", leave_current, (0,), (0, 2)),
    ("little may be open", few_files, (12, 16, 20, 32, 64), (0, 1, 2)),
    ("files stay small", small_files, (0, 100, 5000, 10**5), (0, 1, 2)),
    ("little memory", little_memory, (0, 2**20, 2**24, 2**26), (0, 1, 2)),
)


def commands(trial: Trial) -> None:
    """Every command that reads or writes a run withstands a lack of folders, open files, space and memory."""
    name, before, values, codes = case(trial, FOLDERS)
    number = trial.number // len(FOLDERS)
    run, out = trial.world.copy_run(trial.folder / "run"), trial.folder / "out"
    every: tuple[tuple[str | Path, ...], ...] = (
        ("export", run, "--format", "csv"),
        ("check", trial.world.images, "--workers", "1"),
        ("decisions", run),
        ("export", run, "--format", "folders", "--out", out),
        ("predict", run, trial.world.images, "--update", "--device", "cpu", "--workers", "1"),
        ("report", run, "--device", "cpu", "--workers", "1"),
        ("export", run, "--format", "coco", "--out", out),
        ("discover", trial.world.images, "--out", run, *OPTIONS, "--seed", "1"),
        ("import", run, run / "assignments.csv"),
        ("figures", run, "--device", "cpu"),
        ("export", run, "--format", "labelstudio", "--out", out),
    )
    words = every[number % len(every)]
    done = trial.world.sortal(*words, cwd=trial.folder, before=before, given=[trial.random.choice(values)])
    if name == "little memory" and (done.code < 0 or "bad alloc" in done.err.lower()):
        return  # libraries may abort; the run must be whole nevertheless
    done.check(*codes)
    load_run(run)


ATTACKS = (
    Attack("environment", "surroundings", surroundings, quick=3, least=2 * len(SURROUNDINGS)),
    Attack("environment", "broken pipe", broken_pipe, quick=1, least=4),
    Attack("environment", "signals", signals, quick=1, least=24),
    Attack("environment", "clocks", clocks, quick=1, least=9),
    Attack("environment", "shortages", commands, quick=4, least=8 * len(FOLDERS)),
)
