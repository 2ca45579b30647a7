"""What 1.x keeps (docs/stability.md): a run of 1.0 loads, and every name, option and column of 1.0 is still there.

Files in stability/ are never changed, except that what a version adds may be added to promised-1.0.json.
"""

import csv
import inspect
import json
import re
import shutil
from collections import Counter
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.runtimes import CPU

import sortal
from sortal.cli import app
from sortal.images.review_states import STATE_WORDS
from sortal.reviews.loading import save_run
from sortal.runs.run import STATUSES, Run

HERE = Path(__file__).parent / "stability"
TABLES = ("assignments.csv", "categories.csv", "candidates.csv", "quarantine.csv")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """The run of 1.0: vectors, sorted and reviewed, with rows added later."""
    shutil.copytree(HERE / "run-1.0", tmp_path / "run")
    return sortal.load_run(tmp_path / "run")


def promised() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / "promised-1.0.json").read_text(encoding="utf-8"))
    return found


def names() -> dict[str, list[str]]:
    """Return what each public name takes, and what can be read from it."""
    found = {}
    for name in sortal.__all__:
        value = getattr(sortal, name)
        parts = set(inspect.signature(value).parameters) if callable(value) else set()
        if inspect.isclass(value):
            parts |= {*vars(value)} | ({each.name for each in fields(value)} if is_dataclass(value) else set())
        if inspect.ismodule(value):
            parts = {each for each, one in vars(value).items() if getattr(one, "__module__", "") == value.__name__}
        found[name] = sorted(each for each in parts if each[0] != "_")
    return found


def options() -> dict[str, list[str]]:
    """Return the options of each command, with those of the commands below it."""
    found = {}
    for name in app.app:
        if not name.startswith("-"):
            command = app.app[name]
            below = [command[each] for each in command if not each.startswith("-")]
            given = [each for one in (command, *below) for each in one.assemble_argument_collection()]
            found[name] = sorted({each for one in given for each in one.names if each.startswith("--")})
    return found


def columns(folder: Path) -> dict[str, list[str]]:
    return {name: next(csv.reader((folder / name).read_text(encoding="utf-8").splitlines())) for name in TABLES}


def test_a_run_of_1_0_loads_with_what_people_decided(run: Run) -> None:
    assert run.facts.versions["sortal"] == "1.0.0rc1"
    assert Counter(run.assignments.status.tolist()) == {"labelled": 10, "known": 14, "new": 22, "unsure": 1, "other": 7}
    assert [(each.id, each.name, each.kind) for each in run.categories] == [
        (0, "ash", "known"),
        (1, "beech", "known"),
        (2, "elm", "new"),  # which a person named
        (3, "new 2", "new"),
    ]
    words = Counter(STATE_WORDS[state] for state in run.assignments.reviewed.tolist())
    assert words == {"no": 48, "confirmed": 3, "moved": 1, "rejected": 1, "binned": 1}, "and a category, undone"
    assert [len(each.files) for each in run.candidates] == [5]
    assert run.features.shape == (54, 6)
    assert run.metrics is not None
    assert [each.name for each in run.assignments.columns.each] == ["site"]


def test_a_run_of_1_0_sorts_more(run: Run) -> None:
    found = sortal.predict(run, features=HERE / "more.csv", runtime=CPU).assignments
    assert np.min(found.next_distance - found.distance) > 0.1, "no distance is near enough to another for rounding"
    assert found.category_id.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 0, 0, 0, 0, 0, 0]


def test_a_run_of_1_0_is_exported_with_the_columns_of_1_0(run: Run, tmp_path: Path) -> None:
    sortal.export(run, "csv", tmp_path / "table.csv")
    rows = [*csv.DictReader((tmp_path / "table.csv").read_text(encoding="utf-8").splitlines())]
    assert {*promised()["tables"]["export"]} <= rows[0].keys()
    assert {row["category"] for row in rows} == {"ash", "beech", "elm", "new 2", ""}


def test_a_run_that_is_saved_today_has_the_columns_of_1_0(run: Run) -> None:
    save_run(run)
    for name, now in columns(run.folder).items():
        assert {*promised()["tables"][name]} <= {*now}


def test_nothing_that_1_0_promised_is_gone() -> None:
    before = promised()
    for kind, now in (("names", names()), ("options", options())):
        for name, parts in before[kind].items():
            assert {*parts} <= {*now[name]}, f"{name} lacks what it had in 1.0"
    assert {*before["status"]} <= {*STATUSES}
    assert {*before["reviewed"]} <= {*STATE_WORDS}


def test_exit_codes_are_those_of_1_0() -> None:
    page = (HERE.parents[1] / "docs/commands.md").read_text(encoding="utf-8")
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", page, flags=re.MULTILINE)} >= {*promised()["exit codes"]}
