"""Surroundings that are odd or hostile: variables, streams, limits, signals, clocks and folders of the system."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from support import tiny_folder
from support.own_processes import SECONDS, ended, usual_signals
from support.world import OPTIONS, Done, Trial, Words

from sortal.reviews.loading import load_run

pytestmark = pytest.mark.thorough

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


def start(place: Surroundings, words: Words, cwd: Path, **streams: Any) -> subprocess.Popen[bytes]:
    """Start a process of its own: what Python does before and after Sortal counts too."""
    return subprocess.Popen(
        [sys.executable, "-m", "sortal", *map(str, words)],
        cwd=cwd, env=place.environment(), preexec_fn=place.prepare, stdin=subprocess.DEVNULL, **streams,
    )  # fmt: skip


def run_in(place: Surroundings, words: Words, cwd: Path) -> Done:
    """Run a command in its surroundings, and check how it ends."""
    with contextlib.ExitStack() as opened:
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        for name, path in (("stdout", place.stdout), ("stderr", place.stderr)):
            if path is not None:
                streams[name] = opened.enter_context(open(path, "wb"))
        return ended(start(place, words, cwd, **streams)).check(*place.codes)


@pytest.mark.attack(most=2 * len(SURROUNDINGS))
def test_surroundings(trial: Trial) -> None:
    """Commands do their work in odd surroundings, or say in a sentence why not; the run stays as it is."""
    place: Surroundings = trial.case(SURROUNDINGS)
    run, out = trial.world.run, trial.folder / "table.csv"
    before = tiny_folder.contents(run)
    commands: tuple[Words, ...] = (
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


# Signals and pipes


@pytest.mark.attack(most=4)
def test_broken_pipe(trial: Trial) -> None:
    """Close the pipe that a command writes results or messages to: it ends quietly, and its files are whole."""
    reader, writer = os.pipe()
    os.close(reader)
    stream = ("stdout", "stderr")[trial.number % 2]
    out = trial.folder / "table.csv"
    try:
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: writer}
        words: Words = ["export", trial.world.run, "--format", "csv", "--out", out]
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
    """In a child: send itself a signal each time so many more files were replaced."""
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


@pytest.mark.attack
def test_signals(trial: Trial) -> None:
    """Ignored signals change nothing; others, once or again and again, end a run that can be resumed."""
    number = (signal.SIGINT, signal.SIGTERM)[trial.number % 2]
    ignored = trial.number % 4 < 2
    run = trial.folder / "run"
    every = trial.random.randint(1, 6)
    words: Words = ("discover", trial.world.images, "--out", run, *OPTIONS)
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
    """In a child: let the system clock jump whenever it is read, and give new files wrong times."""
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


@pytest.mark.attack(most=30)
def test_clocks(trial: Trial) -> None:
    """A clock that jumps between the stages of a run changes no result, and no duration is negative or absurd."""
    seconds = (3600.0, 1e6, 1.5e9)[trial.number % 3]
    run = trial.folder / "run"
    words: Words = ("discover", trial.world.images, "--out", run, *OPTIONS)
    trial.world.sortal(*words, before=jump, given=[seconds, trial.random.randrange(10**6)]).check(0)
    same(run, trial.world.run)
    facts = load_run(run).facts
    assert all(0 <= each < SECONDS for each in facts.timings.values()), facts.timings
    assert facts.training is not None
    assert 0 <= facts.training.seconds < SECONDS


# Two signals


@pytest.mark.attack
def test_two_signals(trial: Trial) -> None:
    """Two signals to a process, while it loads libraries or works: it ends with 130, and the run can be resumed."""
    run, err = trial.folder / "run", trial.folder / "err"
    first, second = trial.case([*product((signal.SIGINT, signal.SIGTERM), repeat=2)])
    loaded = trial.random.randint(1, 1500) if trial.random.random() < 0.5 else None  # modules, else files
    files, answered = trial.random.randint(1, 40), trial.random.random() < 0.5
    words: Words = ["discover", trial.world.images, "--out", run, *OPTIONS]

    def reached() -> bool:
        if loaded is None:
            return sum(1 for _ in run.rglob("*")) >= files
        _, command_line, rest = err.read_text(errors="replace").partition("| cyclopts")
        return bool(command_line) and rest.count("import time:") >= loaded

    with err.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-X", "importtime", "-m", "sortal", *map(str, words)],
            preexec_fn=usual_signals, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stream,
        )  # fmt: skip
        _signal_when(process, first, reached)
        _signal_when(process, second, lambda: not answered or "stopping" in err.read_text(errors="replace"))
        out, _ = process.communicate(timeout=SECONDS)
    printed = "".join(line for line in err.read_text(errors="replace").splitlines(True) if "import time:" not in line)
    done = Done(process.returncode, out.decode(errors="replace"), printed)
    finished = "Report:" in done.out
    done.check(*((0, 130, -first, -second) if finished else (130,)))  # the last where it is unloading libraries
    trial.world.sortal(*words).check(0)
    same(run, trial.world.run)


def _signal_when(process: subprocess.Popen[bytes], number: int, reached: Callable[[], bool]) -> None:
    """Send a signal as soon as something is reached, unless the process ends before."""
    while process.poll() is None:
        with contextlib.suppress(OSError):  # files come and go
            if reached():
                process.send_signal(number)
                return
        time.sleep(0.002)


# Folders of the system

LONG = "/" + "/".join(["long" * 50] * 30)
PLACES: tuple[dict[str, str], ...] = (
    {"TMPDIR": "/nonexistent", "HOME": "/nonexistent"},
    {"TMPDIR": "/proc", "HOME": "/proc"},  # where not even root can write
    {"TMPDIR": FULL, "HOME": FULL},
    {"TMPDIR": "", "HOME": ""},
    {"TMPDIR": "below", "HOME": "below"},
    {"TMPDIR": "\udcff\n\x1b[31m", "HOME": "\udcff\n\x1b[31m"},
    {"TMPDIR": LONG, "HOME": LONG},
    {"XDG_CACHE_HOME": "/proc", "HF_HOME": "/proc", "TORCH_HOME": "/proc", "MPLCONFIGDIR": "/proc"},
)


def forget_temporary(none: bool) -> None:
    """In a child: look for the folder of temporary files anew, or find none."""
    tempfile.tempdir = None
    if none:
        patch("tempfile._candidate_tempdir_list", lambda: ["/nonexistent"]).start()


@pytest.mark.attack(most=4 * len(PLACES))
def test_system_folders(trial: Trial) -> None:
    """Folders for temporary files and of the user that are missing, odd or read-only change no result."""
    place, run = PLACES[trial.number // 2 % len(PLACES)], trial.folder / "run"
    none = trial.number % (4 * len(PLACES)) >= 3 * len(PLACES)
    discovers = trial.number % 2 == 0
    words: Words = ["discover", trial.world.images, "--out", run, *OPTIONS]
    if not discovers:
        words = ["check", trial.world.images, "--workers", "1"]
    done = trial.world.sortal(*words, cwd=trial.folder, env=place, before=forget_temporary, given=[none])
    done.check(*((1, 2) if none else (0,)))
    if none:
        assert "TMPDIR" in done.err, done
    elif discovers:
        same(run, trial.world.run)
    left = {path.name for path in trial.folder.iterdir()} - {"run"}
    assert not left, f"nothing else is written, got {left}"
