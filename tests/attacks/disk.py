"""A full disk at every write of every command: one error that names the place and the way out, and nothing lost."""

from __future__ import annotations

import os
import re
import resource
import shutil
from pathlib import Path

from attacks.attack import Attack, Done, Trial, case
from attacks.commands import COMMANDS, Command
from attacks.kills import check_resumed, check_whole, undisturbed
from attacks.operations import FULL, disturb

WAYS_OUT = ("free some space", "raise the limit")
SMALLEST = 2**13  # bytes; more than a command prints


def check_refusal(done: Done, place: Path) -> None:
    """Check that a command that found the disk full said what it could not write, why, and the way out."""
    done.check(1)
    named = [place / text for text in re.findall(r"'([^']+)'", done.err)]
    assert any(path.is_relative_to(place) for path in named), done.err
    assert any(way in done.err.lower() for way in WAYS_OUT), done.err


def full(trial: Trial) -> None:
    """Let no file be made and nothing be written from some operation on, or only once."""
    command: Command = case(trial, COMMANDS)
    expected = undisturbed(command, trial.world)
    place, noted = trial.folder / "place", trial.folder / "noted"
    shutil.copytree(expected.prepared, place, symlinks=True)
    number, later = trial.random.randint(1, expected.operations), trial.random.random() < 0.7
    given = [str(place), str(noted), FULL, number, later]
    done = trial.world.sortal(*command.words, cwd=place, before=disturb, given=given)
    if done.code not in command.codes or "Traceback" in done.err:  # else no space was needed, or it did without
        check_refusal(done, place)
    check_whole(place)
    check_resumed(command, trial.world, place)


def limit_files(size: int) -> None:
    """In a child: let no file grow beyond a size; this holds for the processes that it starts, too."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def limited(trial: Trial) -> None:
    """Let writes fail within a file, in worker processes too."""
    command: Command = case(trial, COMMANDS)
    expected = undisturbed(command, trial.world)
    place = trial.folder / "place"
    shutil.copytree(expected.prepared, place, symlinks=True)
    size = int(SMALLEST * 2 ** trial.random.uniform(0, 8))
    done = trial.world.sortal(*command.words, cwd=place, before=limit_files, given=[size])
    if done.code not in command.codes or "Traceback" in done.err:
        check_refusal(done, place)
    check_whole(place)
    check_resumed(command, trial.world, place)


def fill_output(stream: int) -> None:
    """In a child: write standard output (1) or standard error (2) to a full disk."""
    os.dup2(os.open("/dev/full", os.O_WRONLY), stream)


def output(trial: Trial) -> None:
    """Let nothing be printed: without its output a command fails, but what it has made is whole."""
    if not os.path.exists("/dev/full"):
        return
    command: Command = case(trial, COMMANDS)
    expected = undisturbed(command, trial.world)
    place = trial.folder / "place"
    shutil.copytree(expected.prepared, place, symlinks=True)
    stream = 1 + trial.number // len(COMMANDS) % 2
    done = trial.world.sortal(*command.words, cwd=place, before=fill_output, given=[stream])
    done.check(0, 1 if stream == 1 else 0)
    assert done.code == 0 or "standard output" in done.err, done.err
    check_resumed(command, trial.world, place)


ATTACKS = (
    Attack("disk", "full", full, quick=4, least=8 * len(COMMANDS)),
    Attack("disk", "limited", limited, quick=1, least=4 * len(COMMANDS)),
    Attack("disk", "full output", output, quick=0, least=2 * len(COMMANDS)),
)
