"""What an attack is, what attacks share, and how one trial of an attack is carried out."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

from support import fork_server, tiny_folder

TRIAL_LIMIT = 600  # seconds after which a trial counts as hanging


@dataclass(frozen=True)
class Trial:
    """One attempt: its number, random choices that depend on seed, attack and number, and a new folder of its own."""

    number: int
    random: random.Random
    folder: Path
    world: World


Attempt: TypeAlias = Callable[
    [Trial], "int | None"
]  # raises where Sortal fails; returns the number of attempts if not 1


@dataclass(frozen=True)
class Attack:
    """A way to break Sortal. Trials walk through its cases by their number first, and are random beyond that."""

    area: str
    name: str
    attempt: Attempt
    quick: int = 1  # trials in `make test`
    least: int = 1  # trials in `make attack`, whatever its budget of time

    @property
    def id(self) -> str:
        return f"{self.area}/{self.name}"


def case(trial: Trial, cases: Sequence[Any]) -> Any:
    """Return the case of a trial: trials go round."""
    return cases[trial.number % len(cases)]


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str
    peak: int = field(default=0, kw_only=True)  # bytes of memory that it had at most

    def check(self, *codes: int) -> Done:
        """Fail unless the command ended with one of the codes and without a traceback."""
        shown = f"exit code {self.code}\n--- stdout\n{self.out[-3000:]}\n--- stderr\n{self.err[-3000:]}"
        assert self.code in codes, shown
        assert "Traceback" not in self.err, shown
        return self


class World:
    """What attacks share, made when it is first needed. Attacks never change it: they copy."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def images(self) -> Path:
        """The planted images of tiny_folder: three known classes and three new ones, 20 images each."""
        tiny_folder.write(self.folder / "images")
        return self.folder / "images"

    @cached_property
    def run(self) -> Path:
        """A run of `images` by the command line, with its report, cache and log."""
        out = self.folder / "run"
        self.sortal("discover", self.images, "--out", out, *OPTIONS, quickly=False).check(0)
        return out

    def copy_run(self, place: Path) -> Path:
        shutil.copytree(self.run, place, symlinks=True)
        return place

    def sortal(
        self,
        *words: str | Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        quickly: bool = True,
        before: Callable[..., None] | None = None,
        given: Sequence[Any] = (),
    ) -> Done:
        """Run a command in a child that has the heavy libraries already; `quickly` skips the report and fsync.

        `before`, a function of a module, is called first in the child, with the JSON values `given`: it may set limits,
        count file operations, or arrange for a kill. A killed child has the code -9.
        """
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            files = [str(Path(name) / stream) for stream in ("out", "err")]
            first = [before.__module__, before.__qualname__, *given] if before is not None else []
            ended = fork_server.shared().run(
                _command, [str(word) for word in words], files, str(cwd or name), dict(env or {}), quickly, first,
                codes=range(-64, 256),
            )  # fmt: skip
            out, err = (Path(file).read_text(errors="replace") if Path(file).exists() else "" for file in files)
            return Done(ended.code, out, err, peak=ended.peak)


# Settings with which a run of the planted images takes a second or two.
QUICKLY = "--backbone convnet --epochs 1 --k 6 --n-init 2 --held-out 0.5 --device cpu --workers 1 --yes"
OPTIONS = tuple(QUICKLY.split())


def _command(words: list[str], files: list[str], cwd: str, env: dict[str, str], quickly: bool, first: list[Any]) -> int:
    """In a child: run the command line, with its streams in files."""
    import importlib

    from sortal.cli import app

    for stream, file in enumerate(files, start=1):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(descriptor, stream)
        os.close(descriptor)
    os.chdir(cwd)
    os.environ.update(env)
    if first:
        module, name, *given = first
        getattr(importlib.import_module(module), name)(*given)
    with tiny_folder.quickly() if quickly else contextlib.nullcontext():
        return app.main(words)


class HangError(AssertionError):
    """A trial took too long."""


def perform(attack: Attack, number: int, seed: int, world: World) -> int:
    """Carry out one trial in a new folder, and return the number of attempts that Sortal withstood."""
    with tempfile.TemporaryDirectory(dir=world.folder) as name, _limited():
        trial = Trial(number, random.Random(f"{seed} {attack.id} {number}"), Path(name), world)
        count = attack.attempt(trial)
        return 1 if count is None else count


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    def hang(number: int, frame: FrameType | None) -> None:
        raise HangError(f"The trial did not end within {TRIAL_LIMIT} s.")

    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(TRIAL_LIMIT)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
