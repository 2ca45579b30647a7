"""A full disk at every write of every command: one error that names the place and the way out, and nothing lost."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
from pathlib import Path

from support import fork_server
from support.fork_server import say
from support.reviews import saved_run, serving, session_of

from attacks.attack import Attack, Done, Trial, case
from attacks.commands import COMMANDS, Command, contents
from attacks.kills import check_resumed, check_whole, undisturbed
from attacks.operations import FULL, disturb
from sortal.review import journal
from sortal.review.loading import load_run
from sortal.runs.run import DECISIONS

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


def review(trial: Trial) -> int:
    """Let no decision of a review be saved at some operations: it is refused, and the next one that fits is saved."""
    run, decisions = saved_run(trial.folder / "run"), 12
    refused = sorted(trial.random.sample(range(decisions), 4))
    ended = fork_server.shared().run(decide, str(run.folder), refused, decisions, trial.random.random(), codes=[0])
    (saved,) = ended.each("saved")
    assert saved == decisions - len(refused)
    assert len(journal.read(run.folder / DECISIONS, run.facts)) == load_run(run.folder).decisions == saved
    return decisions


def decide(folder: str, refused: list[int], decisions: int, part: float) -> None:
    """In a child: decide over HTTP, while some decisions find the disk full, halfway through their line or at once."""
    session = session_of(load_run(folder, raw=True))
    path, limit = Path(folder) / DECISIONS, resource.getrlimit(resource.RLIMIT_FSIZE)
    with serving(session) as client:
        client.enter()
        for number in range(decisions):
            before = path.read_bytes() if path.exists() else b""
            full = number in refused
            limit_files(len(before) + int(100 * part) if full else limit[0])
            answer = client.decide(session.version, do="move", rows=[number, 30 + number], category=number % 4)
            limit_files(limit[0])
            assert answer.code == (400 if full else 200), answer.body
            if full:
                assert DECISIONS in answer.json()["message"], answer.body
                assert "try again" in answer.json()["message"], answer.body
                assert (path.read_bytes() if path.exists() else b"") == before, "the journal stays as it was"
            assert client.get("/api/overview")["version"] == session.version
    say("saved", session.version)


def small(trial: Trial) -> None:
    """Discover on a disk of a few MiB: it says that there is no space, and resumes once the disk has grown."""
    place = trial.folder / "disk"
    place.mkdir()
    size = trial.random.randint(1, 40) * 2**16
    if not _mount(place, f"size={size}"):
        return
    try:
        command, world = COMMANDS[0], trial.world
        expected = undisturbed(command, world)
        (place / "images").symlink_to(world.images)
        done = world.sortal(*command.words, cwd=place)
        if done.code != 0 or "Traceback" in done.err:
            check_refusal(done, place)
        check_whole(place)
        assert _mount(place, f"remount,size={2**29}")
        world.sortal(*command.words, cwd=place).check(0)
        found = contents(command, place)
        changed = [name for name in {*found, *expected.contents} if found.get(name) != expected.contents.get(name)]
        assert not changed, f"discover ends with other {sorted(changed)}"
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def _mount(place: Path, options: str) -> bool:
    """Mount memory as a disk, or change its size; false where this is not allowed."""
    words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    return os.geteuid() == 0 and subprocess.run(words, check=False, capture_output=True).returncode == 0


ATTACKS = (
    Attack("disk", "full", full, quick=3, least=6 * len(COMMANDS)),
    Attack("disk", "limited", limited, quick=1, least=3 * len(COMMANDS)),
    Attack("disk", "full output", output, quick=0, least=2 * len(COMMANDS)),
    Attack("disk", "review", review, quick=0, least=10),
    Attack("disk", "small", small, quick=0, least=10),
)
