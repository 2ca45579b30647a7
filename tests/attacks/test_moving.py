"""Files that vanish, change, grow, or become pipes, sockets, devices, folders and links while they are read."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from support import tiny_folder
from support.moving_images import MOMENTS, MovingImages, kinds_at, own_run
from support.swapping import make, remove
from support.world import OPTIONS, Trial, Words

pytestmark = pytest.mark.thorough

FORMATS = ("folders", "coco", "imagefolder", "fiftyone", "labelstudio", "csv", "parquet")


@pytest.mark.attack(most=100)
def test_check(trial: Trial) -> None:
    """Replace images while `check` reads them."""
    moment = trial.case(MOMENTS)
    folder = MovingImages(trial, kinds_at(moment))
    done = folder.attack(moment, "check", folder.place, "--json", "--workers", "1").check(0, 1, 3)
    found = json.loads(done.out)
    assert found["images"] == len(folder.files)
    folder.check(moment, {each["file"]: f"{each['reason']}: {each['detail']}" for each in found["unreadable"]})


@pytest.mark.attack(most=100)
def test_discover(trial: Trial) -> None:
    """Replace images while `discover` reads them, then learns: every file ends up either sorted or in quarantine."""
    moment = trial.case(MOMENTS)
    folder, out = MovingImages(trial, kinds_at(moment), each=8), trial.folder / "run"
    folder.attack(moment, "discover", folder.place, "--out", out, *OPTIONS).check(0, 3)
    bad = {row["file_name"]: f"{row['reason']}: {row['detail']}" for row in tiny_folder.rows_of(out / "quarantine.csv")}
    files = [row["file_name"] for row in tiny_folder.rows_of(out / "assignments.csv")]
    assert sorted([*files, *bad]) == sorted(folder.files)
    folder.check(moment, bad)


@pytest.mark.attack(most=100)
def test_predict(trial: Trial) -> None:
    """Replace images while `predict` reads them: all others are sorted as if nothing had happened."""
    moment = trial.case(MOMENTS)
    folder, table = MovingImages(trial, kinds_at(moment)), trial.folder / "table.csv"
    before, after = (trial.world.copy_run(trial.folder / name) for name in ("run", "same run"))  # each with a cache
    options = (folder.place, "--workers", "1", "--csv")
    trial.world.sortal("predict", before, *options, trial.folder / "before.csv").check(0)
    folder.attack(moment, "predict", after, *options, table).check(0, 3)
    expected, found = (
        {row["file_name"]: (row["category"], float(row["confidence"] or "nan")) for row in tiny_folder.rows_of(path)}
        for path in (trial.folder / "before.csv", table)
    )
    folder.check(moment, dict.fromkeys(expected.keys() - found.keys(), "not in the table"))
    for file in expected.keys() - folder.kind_of.keys():
        # Which images share a batch may change the last bits.
        assert found[file][0] == expected[file][0], file
        assert abs(found[file][1] - expected[file][1]) < 1e-3, file


@pytest.mark.attack(most=100)
def test_export(trial: Trial) -> None:
    """Replace images of a run while they are exported: what is exported is a file, and only files are left out."""
    moment = trial.case(("open", "before", "stat", "fstat"))
    format_ = FORMATS[trial.number // 4 % len(FORMATS)] if trial.number else "folders"
    how = trial.random.choice(("hardlink", "copy")) if trial.number else "hardlink"
    run, folder = own_run(trial)
    out = trial.folder / f"exported.{format_}"
    done = folder.attack(moment, "export", run, "--format", format_, "--out", out, "--how", how).check(0, 3)
    for place, folders, files in os.walk(out):
        for name in (*folders, *files):
            mode = os.lstat(os.path.join(place, name)).st_mode
            assert stat.S_ISDIR(mode) if name in folders else stat.S_ISREG(mode), f"{name} was exported"
    left_out = sum(line.strip().startswith(("missing", "…")) for line in done.out.splitlines())
    assert (done.code == 3) == bool(left_out), done.out


# Everything else that a command reads or writes


def _inputs(trial: Trial, place: Path) -> tuple[Words, ...]:
    """Return commands in which `place` is something to read, or to write."""
    images, out = trial.world.images, trial.folder / "out"
    run = trial.world.copy_run(trial.folder / "run")
    return (
        ("check", images, "--labels", place.with_suffix(".csv")),
        ("check", images, "--labels", place.with_suffix(".jsonl")),
        ("check", images, "--labels", place.with_suffix(".parquet")),
        ("check", place),
        ("check", images, place),
        ("discover", place, "--out", out, *OPTIONS),
        ("discover", images, "--labels", place.with_suffix(".tsv"), "--out", out, *OPTIONS),
        ("discover", images, "--out", out, *OPTIONS[2:], "--backbone", place.with_suffix(".json")),
        ("discover", images, "--out", out, *OPTIONS[2:], "--backbone", "resnet18", "--weights", place),
        ("discover", images, "--out", place, *OPTIONS),
        ("predict", place, images),
        ("predict", run, place),
        ("predict", run, images, "--csv", place),
        ("export", place, "--format", "csv", "--out", out),
        ("export", run, "--format", "csv", "--out", place),
        ("export", run, "--format", "folders", "--out", place),
        ("export", run, "--format", "folders", "--out", place, "--force"),
        ("import", run, place.with_suffix(".json")),
        ("import", run, place.with_suffix(".csv")),
        ("import", run, place),
        ("import", place, images),
        ("decisions", place),
        ("decisions", "merge", run, place),
        ("report", place),
        ("figures", place),
        ("figures", run, "--which", "k-curve", "--out", place),
        ("review", place, "--no-browser"),
        ("review", run, "--no-browser", "--words", place),
        ("review", run, "--no-browser", "--words", place, "--text-model", place),
    )  # fmt: skip


@pytest.mark.attack(most=9)
def test_inputs(trial: Trial) -> None:
    """Give every command pipes, sockets, devices, folders and links where it expects a file or a folder."""
    kind = trial.case(("pipe", "device", "socket", "loop", "folder", "full", "dangling", "stdin", "null"))
    place = trial.folder / "place"
    commands = _inputs(trial, place)
    if trial.number == 0:
        commands = tuple(commands[at] for at in sorted(trial.random.sample(range(len(commands)), 12)))
    for words in commands:
        (thing,) = {word for word in words if isinstance(word, Path) and word.stem == place.stem}
        make(str(thing), kind, "")
        before = os.lstat(thing)
        done = trial.world.sortal(*words).check(0, 2)
        named = any(repr(each) in done.err for each in (str(thing), os.path.realpath(thing)))
        assert done.code == 0 or named, f"{words}\n{done.err}"
        if done.code == 2:
            assert os.path.samestat(os.lstat(thing), before), words
        remove(str(thing))
        for written in ("out", "no-such-file"):  # where a dangling link leads
            remove(str(trial.folder / written))
