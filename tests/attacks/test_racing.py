"""Files and folders that another program replaces again and again, at moments of its own, while they are read."""

from __future__ import annotations

import json
import os
import random
import shutil
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from support import tiny_folder
from support.swapping import KINDS, SPECIAL, make, remove, swap
from support.world import OPTIONS, Trial

FILES = 8  # that are replaced


def race_later(files: Mapping[str, str], folders: list[str], outside: str, seed: int) -> None:
    """In a command: replace files, each of which has a copy elsewhere, and folders, until the command ends."""
    draw = random.Random(seed)

    def race() -> None:
        while True:
            with suppress(OSError):
                replace_file(draw.choice([*files])) if files else replace_folder(draw.choice(folders))

    def replace_file(path: str) -> None:
        remove(path)
        shutil.copyfile(files[path], path)
        swap(path, draw.choice(KINDS), outside)

    def replace_folder(path: str) -> None:
        aside = f"{outside}-{os.path.basename(path)}"
        os.rename(path, aside)
        try:
            kind = draw.choice(("gone", "up", *SPECIAL))
            os.symlink("..", path) if kind == "up" else make(path, kind, outside)
        finally:
            remove(path)
            os.rename(aside, path)

    threading.Thread(target=race, daemon=True).start()


def _planted(trial: Trial) -> tuple[Path, list[str], Path]:
    place = trial.folder / "images"
    files = sorted(tiny_folder.write(place, tiny_folder.planted(8, 4)))
    return place, files, tiny_folder.save(trial.folder / "outside.png", tiny_folder.picture("oak", 0))


@pytest.mark.attack(most=100)
def test_files(trial: Trial) -> None:
    """Let a thread replace files while `check` and `discover` read them: all others are read."""
    place, files, outside = _planted(trial)
    chosen, copies = trial.random.sample(files, FILES), trial.folder / "copies"
    shutil.copytree(place, copies)
    given = [{str(place / file): str(copies / file) for file in chosen}, [], str(outside), trial.number]
    if trial.number % 2 == 0:
        done = trial.world.sortal("check", place, "--json", "--workers", "1", before=race_later, given=given)
        bad = {each["file"] for each in json.loads(done.check(0, 1, 3).out)["unreadable"]}
    else:
        out = trial.folder / "run"
        trial.world.sortal("discover", place, "--out", out, *OPTIONS, before=race_later, given=given).check(0, 3)
        bad = {row["file_name"] for row in tiny_folder.rows_of(out / "quarantine.csv")}
        read = {row["file_name"] for row in tiny_folder.rows_of(out / "assignments.csv")}
        assert {*files} - {*chosen} <= read <= {*files}, {*files} ^ read
        assert not bad & read
    assert bad <= {*chosen}, bad - {*chosen}
    assert (
        outside.read_bytes() == (tiny_folder.save(trial.folder / "x.png", tiny_folder.picture("oak", 0))).read_bytes()
    )


@pytest.mark.attack(most=100)
def test_folders(trial: Trial) -> None:
    """Let a thread replace folders while they are walked: each is read, or named as unreadable."""
    place, files, outside = _planted(trial)
    folder = trial.random.choice(("unlabelled", "ash", "beech"))
    given = [{}, [str(place / folder)], str(outside), trial.number]
    done = trial.world.sortal("check", place, "--json", "--workers", "1", before=race_later, given=given).check(
        0, 1, 2, 3
    )
    if done.code == 2:
        assert repr(str(place))[:-1] in done.err, done.err
        return
    found = json.loads(done.out)
    steady = sum(not file.startswith(f"{folder}/") for file in files)
    assert found["images"] >= steady, found["images"]
    assert all(each["file"].startswith(folder) for each in found["unreadable"]), found["unreadable"]
