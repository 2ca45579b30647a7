"""A full disk at every write of every command: one error that names the place and the way out, and nothing lost."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
from pathlib import Path

import pytest
from support import fork_server
from support.commands import COMMANDS, Command, check_resumed, undisturbed
from support.fork_server import say
from support.limits import limit_file_size
from support.operations import FULL, disturb
from support.reviews import saved_run, serving, session_of
from support.world import Done, Trial

from sortal.reviews import journal
from sortal.reviews.loading import load_run
from sortal.runs.run import DECISIONS

pytestmark = pytest.mark.thorough

WAYS_OUT = ("free some space", "raise the limit")
SMALLEST = 2**13  # bytes; more than a command prints


def prepare(trial: Trial, command: Command) -> Path:
    """Return a folder in which a command can be run."""
    shutil.copytree(undisturbed(command, trial.world).prepared, trial.folder / "place", symlinks=True)
    return trial.folder / "place"


def check_refusal(done: Done, place: Path, *codes: int) -> None:
    """Check that a command that found the disk full said what it could not write, why, and the way out.

    A command that ended with one of `codes` needed no space, or did without.
    """
    if done.code in codes and "Traceback" not in done.err:
        return
    done.check(1)
    named = [place / text for text in re.findall(r"'([^']+)'", done.err)]
    assert any(path.is_relative_to(place) for path in named), done.err
    assert any(way in done.err.lower() for way in WAYS_OUT), done.err


@pytest.mark.attack
def test_full(trial: Trial) -> None:
    """Fill the disk at some operation, for good or only for that operation."""
    command: Command = trial.case(COMMANDS)
    place, noted = prepare(trial, command), trial.folder / "noted"
    number, later = trial.random.randint(1, undisturbed(command, trial.world).operations), trial.random.random() < 0.7
    given = [str(place), str(noted), FULL, number, later]
    done = trial.world.sortal(*command.words, cwd=place, before=disturb, given=given)
    check_refusal(done, place, *command.codes)
    check_resumed(command, trial.world, place)


@pytest.mark.attack
def test_limited(trial: Trial) -> None:
    """Let writes fail within a file, in worker processes too."""
    command: Command = trial.case(COMMANDS)
    place = prepare(trial, command)
    size = int(SMALLEST * 2 ** trial.random.uniform(0, 8))
    done = trial.world.sortal(*command.words, cwd=place, before=limit_file_size, given=[size])
    check_refusal(done, place, *command.codes)
    check_resumed(command, trial.world, place)


def fill_output(stream: int) -> None:
    """In a child: write standard output (1) or standard error (2) to a full disk."""
    os.dup2(os.open("/dev/full", os.O_WRONLY), stream)


@pytest.mark.attack(most=2 * len(COMMANDS))
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_full_output(trial: Trial) -> None:
    """Fill the disk that output goes to: the command fails, but what it has written is whole."""
    command: Command = trial.case(COMMANDS)
    place = prepare(trial, command)
    stream = 1 + trial.number // len(COMMANDS) % 2
    done = trial.world.sortal(*command.words, cwd=place, before=fill_output, given=[stream])
    done.check(0, 1 if stream == 1 else 0)
    assert done.code == 0 or "standard output" in done.err, done.err
    check_resumed(command, trial.world, place)


@pytest.mark.attack(most=50)
def test_review(trial: Trial) -> None:
    """Fill the disk for some decisions of a review: these are refused, and the next one that fits is saved."""
    run, decisions = saved_run(trial.folder / "run"), 12
    refused = sorted(trial.random.sample(range(decisions), 4))
    ended = fork_server.shared().run(decide, str(run.folder), refused, decisions, trial.random.random(), codes=[0])
    (saved,) = ended.each("saved")
    assert saved == decisions - len(refused)
    assert len(journal.read(run.folder / DECISIONS, run.facts)) == load_run(run.folder).decisions == saved


def decide(folder: str, refused: list[int], decisions: int, part: float) -> None:
    """In a child: decide over HTTP, while some decisions find the disk full, halfway through their line or at once."""
    session = session_of(load_run(folder, raw=True))
    path, limit = Path(folder) / DECISIONS, resource.getrlimit(resource.RLIMIT_FSIZE)
    with serving(session) as client:
        client.enter()
        for number in range(decisions):
            before = path.read_bytes() if path.exists() else b""
            full = number in refused
            limit_file_size(len(before) + int(100 * part) if full else limit[0])
            answer = client.decide(session.version, do="move", rows=[number, 30 + number], category=number % 4)
            limit_file_size(limit[0])
            assert answer.code == (400 if full else 200), answer.body
            if full:
                assert DECISIONS in answer.json()["message"], answer.body
                assert "try again" in answer.json()["message"], answer.body
                assert (path.read_bytes() if path.exists() else b"") == before, "the journal stays as it was"
            assert client.get("/api/overview")["version"] == session.version
    say("saved", session.version)


@pytest.mark.attack(most=50)
def test_small(trial: Trial) -> None:
    """Discover on a disk of a few MiB: it says that there is no space, and resumes once the disk has grown."""
    command, place = COMMANDS[0], trial.folder / "disk"
    place.mkdir()
    size = trial.random.randint(1, 40) * 2**16
    if not _mount(place, f"size={size}"):
        pytest.skip("needs the right to mount")
    try:
        (place / "images").symlink_to(trial.world.images)
        done = trial.world.sortal(*command.words, cwd=place)
        check_refusal(done, place, 0)
        assert _mount(place, f"remount,size={2**29}")
        check_resumed(command, trial.world, place)
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def _mount(place: Path, options: str) -> bool:
    """Mount memory as a disk, or change its size; false where this is not allowed."""
    words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    return os.geteuid() == 0 and subprocess.run(words, check=False, capture_output=True).returncode == 0
