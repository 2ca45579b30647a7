"""What attacks share: a run to attack, a way to run commands in a child, and the trials of an attack."""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from support import fork_server, tiny_folder

Words: TypeAlias = Sequence[str | Path]  # of a command line
SCREENFUL = 20_000  # characters that a command may print for people, whatever names it shows
# Settings with which a run of the planted images takes a second or two
QUICKLY = "--backbone convnet --epochs 1 --k 6 --n-init 2 --held-out 0.5 --device cpu --workers 1 --yes"
OPTIONS = tuple(QUICKLY.split())
ON_CPU = ("--device", "cpu", "--workers", "1")


@dataclass(frozen=True)
class Trial:
    """One attempt of an attack: its number, random choices of its own, and a new folder.

    Trials go through the cases of an attack by their number, and are random beyond that. Number 0 is part of
    `make test` or `make thorough`, so an attack that takes long may take less of it then.
    """

    number: int
    random: random.Random
    folder: Path
    world: World

    def case(self, cases: Sequence[Any]) -> Any:
        """Return the case of this trial: trials go round."""
        return cases[self.number % len(cases)]


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str
    peak: int = field(default=0, kw_only=True)  # bytes of memory that it had at most

    def __str__(self) -> str:
        return f"exit code {self.code}\n--- stdout\n{self.out[-3000:]}\n--- stderr\n{self.err[-3000:]}"

    def check(self, *codes: int) -> Done:
        """Fail unless the command ended with one of the codes and without a traceback."""
        assert self.code in codes, str(self)
        assert "Traceback" not in self.err, str(self)
        return self

    def check_calm(self, *codes: int) -> Done:
        """Fail unless the command ended well, and printed only what a terminal shows as it is, and not too much."""
        self.check(*codes)
        printed = self.out + self.err
        odd = {each for each in printed if each != "\n" and not each.isprintable()}
        assert not odd, f"The terminal gets {odd} in {printed[:2000]!r}"
        assert len(printed) <= SCREENFUL, f"The terminal gets {len(printed)} characters"
        return self

    def answer(self, *codes: int) -> Any:
        """Return the JSON that the command printed for programs; what it said besides, to people, must be calm."""
        replace(self, out="").check_calm(*codes)
        assert self.out.isascii()
        return tiny_folder.parse_strictly(self.out)


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

    @cached_property
    def more(self) -> Path:
        """A few images that are not in any run."""
        tiny_folder.write(self.folder / "more", {f"{name}.png": f"{name} 40" for name in ("ash", "elm", "oak")})
        return self.folder / "more"

    @cached_property
    def table(self) -> Path:
        """The exported table of `run`, which can be imported."""
        self.sortal("export", self.run, "--format", "csv", "--out", self.folder / "table.csv").check(0)
        return self.folder / "table.csv"

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
        """Run a command in a child that has the heavy libraries already; `quickly` skips the report.

        `before`, a function of a module, is called first in the child, with the JSON values `given`: it may set limits,
        count file operations, or arrange for a kill. A killed child has the code -9.
        """
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            files = [str(Path(name) / stream) for stream in ("out", "err")]
            first = [before.__module__, before.__qualname__, *given] if before is not None else []
            ended = fork_server.shared().run(
                run_command, [str(word) for word in words], files, str(cwd or name), dict(env or {}), quickly, first,
                codes=range(-64, 256),
            )  # fmt: skip
            out, err = (Path(file).read_text(errors="replace") if Path(file).exists() else "" for file in files)
            return Done(ended.code, out, err, peak=ended.peak)


def run_command(
    words: list[str], files: list[str], cwd: str, env: dict[str, str], quickly: bool, first: list[Any]
) -> int:
    """In a child: run the command line, with its streams in files."""
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
