"""What all tests share.

Tests run on the CPU, also where there is a GPU; CUDA_VISIBLE_DEVICES=0 make test adds those that need one.
"""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import socket
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import Mock

import hypothesis
import pytest
from support.browsing import CHROMIUM, browsing

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from support.fork_server import ForkServer

    from sortal.runs.run import Run

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads wait for each other longer than they compute on tiny tensors
# Under nohup, in the background of a script and under many job runners SIGINT is ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.fsync = lambda fd: None  # nobody cuts the power; tests of when files are synced replace it themselves
# Each of the hundreds of Python processes that tests start would compile all modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# The same examples everywhere, however slow the machine. To look for new ones: pytest --hypothesis-profile=default
hypothesis.settings.register_profile("sortal", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.load_profile("sortal")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("attacks", "attacks on the program: pytest -m attack")
    group.addoption("--attack-trials", type=int, default=1, metavar="N", help="trials of each attack (1)")
    group.addoption("--attack-seed", type=int, default=0, metavar="SEED", help="seed of their random choices (0)")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
    """Print which tests were skipped, and why, after everything else: nobody reads the middle of a long log."""
    yield
    reasons = Counter(str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", []))
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason.removeprefix('Skipped: ')}", yellow=True)


def pytest_collection_finish() -> None:
    """Let no later collection of garbage look at what all tests have imported, which takes most of a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _report_leaks() -> Iterator[None]:
    """Collect garbage after each module, so that what it left open is reported there and not in some later test.

    What the modules before it have left for good, such as libraries that they were the first to import, is not looked
    at again: that takes most of a second, now and whenever Python collects everything.
    """
    gc.collect()
    gc.freeze()
    yield
    gc.collect()


@pytest.fixture(autouse=True, scope="module")
def _read_here() -> Iterator[None]:
    """Start no worker processes for the few images of a test; tests of files that may crash one override this."""
    from support.reading_here import reading_here

    with reading_here():
        yield


@dataclass(frozen=True)
class SortedRun:
    """A folder of images, their true classes, and the run that sorted them."""

    images: Path
    truth: dict[str, str]
    run: Run

    @property
    def out(self) -> Path:
        return self.run.folder

    def copy(self, folder: Path) -> SortedRun:
        """Copy the run, with its cache; the images stay where they are."""
        from sortal.reviews.loading import load_run

        shutil.copytree(self.out, folder)
        return replace(self, run=load_run(folder))


@pytest.fixture(scope="module")
def quickly() -> Iterator[None]:
    """Leave out what takes longer than all the rest."""
    from support import tiny_folder

    with tiny_folder.quickly():
        yield


@pytest.fixture(scope="session")
def sorted_run(tmp_path_factory: pytest.TempPathFactory) -> SortedRun:
    """The planted images of tiny_folder, sorted once by `discover`. For all tests: do not change it, copy it."""
    from support import tiny_folder

    folder = tmp_path_factory.mktemp("sorted_run")
    truth = tiny_folder.write(folder / "images")
    with tiny_folder.quickly():
        return SortedRun(folder / "images", truth, tiny_folder.sort(folder / "images", folder / "run"))


@pytest.fixture
def copied_run(sorted_run: SortedRun, tmp_path: Path) -> SortedRun:
    """A copy of `sorted_run` that a test may change."""
    return sorted_run.copy(tmp_path / "run")


@pytest.fixture(scope="session")
def _chromium() -> Iterator[tuple[Browser, asyncio.AbstractEventLoop]]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium")
    with browsing() as browser:
        loop = asyncio.get_running_loop()  # which playwright marks as running while it lives: others could run none
        asyncio._set_running_loop(None)
        yield browser, loop
        asyncio._set_running_loop(loop)


@pytest.fixture(scope="module")
def browser(_chromium: tuple[Browser, asyncio.AbstractEventLoop]) -> Iterator[Browser]:
    """Chromium, which all tests share."""
    browser, loop = _chromium
    asyncio._set_running_loop(loop)
    yield browser
    asyncio._set_running_loop(None)


@pytest.fixture(scope="session")
def fork_server() -> ForkServer:
    """Start children that can be killed."""
    from support.fork_server import shared

    return shared()


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail tests that use the network."""
    refuse = Mock(side_effect=OSError("a test used the network"))
    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    yield
    refuse.assert_not_called()
