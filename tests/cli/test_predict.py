"""predict: new images, the table of them, and what is printed."""

import csv
import io
import json
import os
import re
import shutil
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import tiny_folder
from support.command_line import (
    Real,
    Stub,
    Terminal,
    invoke,
    refused,
)
from support.printed import BAD, a_prediction, predicted
from support.sample_run import sample_run

from sortal.cli import app, predict
from sortal.discovery import prediction
from sortal.discovery.forecast import PredictionForecast
from sortal.discovery.prediction import Prediction
from sortal.reviews.loading import load_run
from sortal.runs.reference import REFERENCE
from sortal.runs.run import Candidate

NASTY = '=1+1, "a"\n\x1b[31m.png'


@pytest.fixture(scope="module")
def further(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write images that the run has not seen, one of them with a name that is hostile to tables and terminals."""
    folder = tmp_path_factory.mktemp("further")
    for at, name in enumerate(("ash", "elm", "oak")):
        tiny_folder.save(folder / "some" / f"{name}.png", tiny_folder.picture(name, 50 + at))
    tiny_folder.save(folder / NASTY, tiny_folder.picture("fir", 60))
    return folder


def test_predict_prints_a_summary_and_writes_the_table_where_it_is_asked_to(
    real: Real, further: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [f"some/{name}.png" for name in ("ash", "elm", "oak")]
    tokens = ("predict", real.run, further, "--workers", "1")
    summary = invoke(*tokens)
    assert (summary.code, summary.err) == (0, "")
    counts = r"4 images: \d known, \d new, \d unsure(, \d other)?\."
    assert re.match(rf"{counts}\n\nCategory +Kind +Images +Unsure( +Other)?\n", summary.out)
    assert f"--csv FILE\nTo add these images to the run: sortal predict {real.run} {further} --update\n" in summary.out
    printed = invoke(*tokens, "--csv", "-")
    assert (printed.code, printed.err) == (0, "")
    header, *rows = csv.reader(io.StringIO(printed.out, newline=""), strict=True)
    assert header == list(prediction.PREDICTED_COLUMNS)
    assert sorted(row[0] for row in rows) == sorted([f"'{NASTY}", *files])
    with redirect_stdout(Terminal()) as terminal, redirect_stderr(io.StringIO()):
        assert app.main([*map(str, tokens), "--csv", "-"]) == 0
    assert all(line.isprintable() for line in terminal.getvalue().splitlines())
    assert r"\x1b[31m.png" in terminal.getvalue()

    table = tmp_path / "table.csv"
    assert f"\nTable: {table}\n" in invoke(*tokens, "--csv", table).out
    assert table.read_bytes().decode() == printed.out
    found = json.loads(invoke(*tokens, "--csv", table, "--force", "--json").out)
    assert table.read_bytes().decode() == printed.out
    assert "takes the table or JSON, not both" in refused(*tokens, "--csv", "-", "--json")
    assert "--csv needs a value: " in refused(*tokens, "--csv", "--update")
    assert sorted(row["file_name"] for row in found["images"]) == sorted([NASTY, *files])
    assert (found["quarantine"], found["added"], found["candidates"]) == ([], 0, [])
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]

    monkeypatch.setattr("sortal.discovery.prediction.predict", lambda *_, **__: pytest.fail("checked too late"))
    (tmp_path / "folder").mkdir()
    before = tiny_folder.contents(tmp_path)
    complaint = refused(*tokens, "--csv", table)
    assert "must be a new file" in complaint
    assert "--force" in complaint
    for place in ("nowhere/table.csv", "table.csv/table.csv", "folder", real.run / "table.csv"):
        complaint = refused(*tokens, "--csv", tmp_path / place, "--force")
        assert complaint.startswith("sortal: error: The table must ")
        assert str(tmp_path / place) in complaint
    assert tiny_folder.contents(tmp_path) == before


@pytest.mark.parametrize("force", [False, True])
def test_a_table_that_appears_meanwhile_is_not_replaced(
    real: Real, further: Path, tmp_path: Path, force: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, predict = tmp_path / "table.csv", prediction.predict

    def late(*values: Any, **named: Any) -> Any:
        table.write_text("mine")
        return predict(*values, **named)

    monkeypatch.setattr("sortal.discovery.prediction.predict", late)
    complaint = refused("predict", real.run, further, "--workers", "1", "--csv", table, *["--force"] * force)
    assert "something else has been written there meanwhile, and stays" in complaint
    assert table.read_text() == "mine"
    assert os.listdir(tmp_path) == ["table.csv"]


def test_predict_skips_unreadable_files_and_adds_the_rest_to_the_run(real: Real, further: Path, tmp_path: Path) -> None:
    run, images = shutil.copytree(real.run, tmp_path / "run"), shutil.copytree(further, tmp_path / "new")
    (images / "bro\nken.png").write_text("no image")
    with tiny_folder.quickly():
        done = invoke("predict", run, images, "--workers", "1", "--update")
    assert done.code == 3
    assert "\nUnreadable, left out of every run (exit code 3): 1\n  not an image: " in done.out
    assert "\n    bro\\nken.png\n" in done.out
    assert f"\n4 images added to the run. Report: {run / 'report.html'}\n" in done.out
    assert len(load_run(run).assignments) == 40
    done = invoke("predict", run, images, "--workers", "1", "--update")
    assert done.err.startswith("sortal: The run already contains all of these images, so it is unchanged.\n")
    with tiny_folder.quickly():
        done = invoke("discover", real.images, "--out", run, "--k", "5")
    assert (load_run(run).k.k, len(load_run(run).assignments)) == (5, 40)
    assert "4 images that were added to that run take part, unlabelled." in done.err


def test_predict_options_reach_the_library(stub: Stub) -> None:
    one = Prediction(run=sample_run(), assignments=sample_run().assignments, quarantine=(), added=0)
    asked = stub("sortal.discovery.prediction.predict", one)
    assert invoke("predict", "r", "i").out.startswith("72 images: ")
    invoke("predict", "r", "i", "--update", "--device", "cpu", "--workers", "3", "--max-pixels", "9")
    invoke("predict", "r", "--features", "x.npz")
    start = {"run": Path("r"), "images": Path("i"), "features": None}
    assert asked == [
        {**start, "update": False, "max_pixels": None},
        {**start, "update": True, "max_pixels": 9, "device": "cpu", "workers": 3},
        {**start, "images": None, "features": Path("x.npz"), "update": False, "max_pixels": None},
    ]


def test_a_dry_prediction_only_plans(stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        predict, "print_forecast", lambda plan: sys.stdout.write(f"{plan.to_json()['images']} images\n")
    )
    predicted = stub("sortal.discovery.prediction.predict", None)
    planned = stub("sortal.discovery.forecast.forecast_prediction", SimpleNamespace(to_json=lambda: {"images": 36}))
    assert invoke("predict", "run", "photos", "--dry-run").out == "36 images\n"
    assert json.loads(invoke("predict", "run", "photos", "--update", "--dry-run", "--json").out) == {"images": 36}
    assert [(each["run"], each["images"], each["update"]) for each in planned] == [
        (Path("run"), Path("photos"), False),
        (Path("run"), Path("photos"), True),
    ]
    assert (predicted, [*tmp_path.iterdir()]) == ([], [])


def test_a_prediction_is_printed_by_category_with_the_next_steps(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = a_prediction(sample_run(candidates=3))
    first, empty, heading, rule, *rows = predicted(found, capsys)
    assert (first, empty, {*rule}) == ("8 images: 2 known, 2 new, 3 unsure.", "", {"─"})
    assert heading.split() == ["Category", "Kind", "Images", "Unsure"]
    numbers = [row.rsplit(maxsplit=2)[1:] for row in rows[: rows.index("")]]
    sizes = [int(size) for size, _ in numbers]
    assert sizes == sorted(sizes, reverse=True), "the largest first"
    assert (sum(sizes), sum(int(unsure) for _, unsure in numbers)) == (8, 3)
    a = found.assignments
    odd = replace(found, assignments=replace(a, status=np.where(a.status == "unsure", "other", a.status)))
    first, _, heading, _, *rows = predicted(odd, capsys)
    assert (first, heading.split()[-1]) == ("8 images: 2 known, 2 new, 0 unsure, 3 other.", "Other")
    assert sum(int(row.split()[-1]) for row in rows[: rows.index("")]) == 3
    again = "sortal predict 'a run' 'new photos'"
    todo = [
        f"To get the category of each image: {again} --csv FILE",
        f"To add these images to the run: {again} --update",
    ]
    assert rows[rows.index("") :] == ["", *todo]
    assert predicted(found, capsys, Path("t.csv"))[-2:] == ["Table: t.csv", todo[1]]
    np.save(tmp_path / REFERENCE, np.zeros((1, 2)))
    handed_over = replace(found, run=replace(found.run, folder=tmp_path))
    assert not any("--update" in line for line in predicted(handed_over, capsys)), "to a model without images"
    lines = predicted(replace(found, quarantine=BAD), capsys)
    assert "Unreadable, left out of every run (exit code 3): 12" in lines
    assert "    9.jpg" in lines
    assert "  … and 2 more; --json lists all" in lines


def test_a_prediction_is_printed_with_candidates_only_if_images_were_added(capsys: pytest.CaptureFixture[str]) -> None:
    found = a_prediction(sample_run(candidates=3))
    assert not any("candidate" in line for line in predicted(found, capsys))
    files = tuple(f"{number}.jpg" for number in range(1200))
    large = Candidate(id=1, files=files, folders=(1,) * len(files), nearest_id=0)
    candidates = (large, replace(large, id=2, files=files[:2], folders=(1, 1)))
    found = replace(found, run=replace(sample_run(), candidates=candidates), added=1300)
    lines = predicted(found, capsys)
    assert lines[-5:-1] == [
        f"1,300 images added to the run. Report: {Path('a run', 'report.html')}",
        "  candidate 1 for a new category: 1,200 images far from all others, such as 0.jpg, 1.jpg, 2.jpg",
        "  candidate 2 for a new category: 2 images far from all others, such as 0.jpg, 1.jpg",
        "To make categories of candidates: sortal review 'a run'",
    ]
    assert not any("--update" in line for line in lines)
    many = tuple(replace(candidates[1], id=number) for number in range(30))
    lines = predicted(replace(found, run=replace(sample_run(), candidates=many)), capsys)
    assert sum(line.startswith("  candidate ") for line in lines) == 10


def test_a_dry_prediction_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    plan = PredictionForecast(
        images=1_200,
        in_run=34_000,
        update=True,
        backbone="vit",
        device="cpu",
        disk=45_600_000,
        free_disk=78_900_000_000,
        seconds={"start": 5.2, "pixels": 0.1, "features": 60.0},
        unreadable_sample=("a\nb.jpg",),
    )
    predict.print_forecast(plan)
    assert [re.sub(r"(?<=\S) {2,}", " | ", line.rstrip()) for line in capsys.readouterr().out.splitlines()] == [
        "images | 1,200; those that the run does not have yet are added to its 34,000",
        "backbone | vit",
        "device | cpu",
        "disk | about 45.6 MB; 78.9 GB free",
        "time | about 65 s: start 5 s, features 60 s",
        "",
        "Unreadable files in the sample, which would be left out: 1",
        "  a\\nb.jpg",
    ]
    predict.print_forecast(replace(plan, update=False, unreadable_sample=()))
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.split() == ["images", "1,200"]
    assert last.startswith("time")
