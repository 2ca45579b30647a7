"""Surroundings that are odd, poor or hostile: variables, streams, limits, signals, folders and clocks."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support import tiny_folder

from attacks.attack import OPTIONS, Attack, Done, Trial, case
from attacks.operations import EVENTS, watch
from sortal.review.loading import load_run

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


def lines(trial: Trial, run: Path) -> tuple[tuple[str | Path, ...], ...]:
    """Return a command line of every kind that reads or writes a run."""
    out = trial.folder / "out"
    return (
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


def commands(trial: Trial) -> None:
    """Every command withstands a lack of folders, open files, space and memory: the run is whole, and can be used."""
    name, before, values, codes = case(trial, FOLDERS)
    number = trial.number // len(FOLDERS)
    run = trial.world.copy_run(trial.folder / "run")
    every = lines(trial, run)
    words = every[number % len(every)]
    done = trial.world.sortal(*words, cwd=trial.folder, before=before, given=[trial.random.choice(values)])
    aborted = done.code < 0 or "bad alloc" in done.err.lower()  # by a library that lacks memory
    if name != "little memory" or not aborted:
        done.check(*codes)
    load_run(run)
    for path in (trial.folder / "out", trial.folder / "run.csv"):  # else it is not replaced
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    trial.world.sortal(*words, cwd=trial.folder).check(0)
    if words[0] != "discover":
        same(run, trial.world.run)
    elif done.code:
        fresh = trial.folder / "fresh"
        trial.world.sortal("discover", trial.world.images, "--out", fresh, *OPTIONS, "--seed", "1").check(0)
        same(run, fresh)


# Folders that cannot be written to


def deny(folder: str, code: int) -> None:
    """In a child: let nothing below a folder be written, by a mount where that is allowed, else by an audit hook."""
    if code == errno.EROFS and _mount_read_only(folder):
        return

    access = os.access

    def is_below(path: Any) -> bool:
        if not isinstance(path, str | bytes | os.PathLike):
            return False
        return os.path.commonpath([folder, os.path.abspath(os.fsdecode(path))]) == folder

    def audit(event: str, values: tuple[Any, ...]) -> None:
        if event == "open" and not (values[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return
        for path in values[: PATHS[event]] if event in PATHS else ():
            if is_below(path) and not (event == "os.mkdir" and os.path.exists(path)):
                raise OSError(code, os.strerror(code), os.fsdecode(path))

    def may(path: Any, mode: int, **named: Any) -> bool:
        return not (mode & os.W_OK and is_below(path)) and access(path, mode, **named)

    os.access = may
    watch(audit)


PATHS = {"open": 1, **EVENTS, "os.utime": 1, "os.chmod": 1}
NEW_MOUNTS, READ_ONLY, REMOUNT, BIND, RECURSIVE, PRIVATE = 0x20000, 0x1, 0x20, 0x1000, 0x4000, 0x40000


def _mount_read_only(folder: str) -> bool:
    """Mount a folder on itself, read-only, for this process alone; tell whether the system allows it."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return False
    system, place = ctypes.CDLL(None, use_errno=True), os.fsencode(folder)
    return bool(
        system.unshare(NEW_MOUNTS) == 0
        and system.mount(b"none", b"/", None, RECURSIVE | PRIVATE, None) == 0
        and system.mount(place, place, None, BIND, None) == 0
        and system.mount(place, place, None, BIND | REMOUNT | READ_ONLY, None) == 0
    )


def deny_and_end(folder: str, code: int) -> None:
    """In a child: deny, and let a review end as soon as it has begun."""
    from unittest.mock import patch

    patch("sortal.web.app.server.Server.run", lambda *_, **__: None).start()
    deny(folder, code)


def unwritable(trial: Trial) -> None:
    """A run or a cache that cannot be written to: commands that only read do their work, others say why they cannot."""
    run, more = trial.world.copy_run(trial.folder / "run"), trial.folder / "more"
    denied = (run, run / "cache")[trial.number % 2]
    code = (errno.EROFS, errno.EACCES)[trial.number // 2 % 2]
    tiny_folder.write(more, {f"{at}.png": f"oak {at}" for at in range(3)})
    here = ("--device", "cpu", "--workers", "1")
    reading: tuple[tuple[str | Path, ...], ...] = (
        ("export", run, "--format", "csv", "--out", trial.folder / "table.csv"),
        ("decisions", run),
        ("figures", run, "--out", trial.folder / "figures", "--which", "tsne,k-curve", *here),
        ("predict", run, more, "--dry-run", *here),
        ("export", run, "--format", "folders", "--out", trial.folder / "sorted"),
    )
    writing = (
        ("predict", run, more, *here),
        ("review", run, "--no-browser", "--workers", "1"),
        ("report", run, *here),
        ("predict", run, more, "--update", *here),
        ("figures", run, *here),
        ("import", run, run / "assignments.csv"),
        ("discover", trial.world.images, "--out", run, *OPTIONS),
        ("discover", trial.world.images, "--out", run, *OPTIONS, "--seed", "3"),
    )
    every = reading + writing
    words = every[trial.number // 4 % len(every)]
    before = tiny_folder.contents(run, but=() if denied == run else (".lock",))
    done = trial.world.sortal(*words, before=deny_and_end, given=[str(denied), code])
    done.check(0, *(() if words in reading else (2,)))
    if done.code == 2:
        assert "sortal: error: " in done.err, done
        assert os.strerror(code) in done.err, done
    after = tiny_folder.contents(run, but=() if denied == run else (".lock",))
    held = [name for name in {**before, **after} if denied == run or name.startswith("cache/")]
    assert {name: before.get(name) for name in held} == {name: after.get(name) for name in held}, "nothing is written"
    load_run(run)


# Two signals


def doubled(trial: Trial) -> None:
    """Two signals to a process, while it loads libraries or works: it ends with 130, and the run can be resumed."""
    run, err = trial.folder / "run", trial.folder / "err"
    first, second = case(
        trial, [(a, b) for a in (signal.SIGINT, signal.SIGTERM) for b in (signal.SIGINT, signal.SIGTERM)]
    )
    loaded = trial.random.randint(1, 1500) if trial.random.random() < 0.5 else None  # modules, else files
    files, answered = trial.random.randint(1, 40), trial.random.random() < 0.5
    words: list[str | Path] = ["discover", trial.world.images, "--out", run, *OPTIONS]

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


def usual_signals() -> None:
    """Set signals as a shell does: what starts the tests may ignore some."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


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
    import tempfile
    from unittest.mock import patch

    tempfile.tempdir = None
    if none:
        patch("tempfile._candidate_tempdir_list", lambda: ["/nonexistent"]).start()


def system_folders(trial: Trial) -> None:
    """Folders for temporary files and of the user that are missing, odd or read-only change no result."""
    place, run = PLACES[trial.number // 2 % len(PLACES)], trial.folder / "run"
    none = trial.number % (4 * len(PLACES)) >= 3 * len(PLACES)
    discovers = trial.number % 2 == 0
    words: list[str | Path] = ["discover", trial.world.images, "--out", run, *OPTIONS]
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


ATTACKS = (
    Attack("environment", "surroundings", surroundings, quick=2, least=2 * len(SURROUNDINGS)),
    Attack("environment", "broken pipe", broken_pipe, quick=1, least=4),
    Attack("environment", "signals", signals, quick=1, least=24),
    Attack("environment", "clocks", clocks, quick=1, least=9),
    Attack("environment", "shortages", commands, quick=2, least=11 * len(FOLDERS)),
    Attack("environment", "read-only folders", unwritable, quick=0, least=52),
    Attack("environment", "two signals", doubled, quick=0, least=12),
    Attack("environment", "system folders", system_folders, quick=0, least=4 * len(PLACES)),
)
