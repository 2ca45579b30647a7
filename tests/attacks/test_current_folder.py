"""A current folder that is a stranger's: its modules are not imported, and its settings are not read."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest
from support import hostile_folder, tiny_folder
from support.commands import BENCHMARK, ONE_SEED, on_run, split
from support.own_processes import SECONDS, ended, usual_signals
from support.world import Done, Trial, Words

pytestmark = pytest.mark.thorough


@pytest.mark.attack(most=13)
def test_modules_and_settings(trial: Trial) -> None:
    """Every command takes nothing from the folder it is run in: names of all modules, and settings that are pipes."""
    run, data = trial.world.copy_run(trial.folder / "run"), trial.folder / "data"
    for name in ("ash", "beech", "cedar", "elm"):
        for n in range(8):
            tiny_folder.save(data / name / f"{n}.png", tiny_folder.picture(name, n))
    benchmark = split(BENCHMARK.replace("--root data", f"--root {data}"), *ONE_SEED, "--processes", "2")
    (out := trial.folder / "out").mkdir()
    words: Words = trial.case([*on_run(trial.world, run, out).values(), benchmark])
    (bin_ := trial.folder / "bin").mkdir()
    hostile = hostile_folder.write(trial.folder / "hostile")
    process = subprocess.Popen(
        [*hostile_folder.command(bin_), *map(str, words)],
        cwd=hostile, preexec_fn=usual_signals, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    done = _interrupted(process) if words[0] == "review" else ended(process)
    assert not hostile_folder.taken(hostile), hostile_folder.taken(hostile)
    done.check(0, 130)


def _interrupted(process: subprocess.Popen[bytes]) -> Done:
    """End a review as soon as it says where it is."""
    assert process.stdout is not None
    first, until = b"", time.monotonic() + SECONDS
    while b"http" not in first and process.poll() is None and time.monotonic() < until:
        first += process.stdout.readline()
    process.send_signal(signal.SIGINT)
    return ended(process)
