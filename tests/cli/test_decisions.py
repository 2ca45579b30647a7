"""decisions and import."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.command_line import invoke, refused
from support.sample_run import sample_run

from sortal.cli import app
from sortal.reviews import journal
from sortal.reviews.actions import Action, Move, Rename, Undo
from sortal.reviews.loading import load_run, save_run
from sortal.runs.run import DECISIONS


def test_annotations_are_imported(tmp_path: Path) -> None:
    run = replace(sample_run(images=12), folder=tmp_path / "run")
    save_run(run)
    names, file = run.names, tmp_path / "tasks.json"

    def task(row: int, *choices: str) -> dict[str, Any]:
        result = [{"type": "choices", "value": {"choices": [*choices]}}]
        return {"data": {"file_name": f"photos/{row:05d}.jpg"}, "annotations": [{"result": result, "completed_by": 3}]}

    tasks = [task(7, names[1]), task(8, names[0], names[1]), task(9, names[0]), task(99, "x")]
    file.write_text(json.dumps(tasks))
    done = invoke("import", run.folder, file, "--by", "ann")
    assert done.code == 3
    for line in (
        f"4 images in {file} (Label Studio): 2 decisions added.",
        f"  ann: Moved 1 image to {names[0]!r}",
        "  ann: Confirmed 1 image",
        "Left out, not in the run: 1",
        "  photos/00099.jpg",
        "Left out, with several categories: 1",
        "  photos/00008.jpg",
    ):
        assert line in done.out.splitlines()
    again = json.loads(invoke("import", run.folder, file, "--json").out)
    assert (again["decisions"], again["unchanged"], again["missing"]) == ([], 2, ["photos/00099.jpg"])
    file.write_text("[]")
    assert invoke("import", run.folder, file).code == 0
    assert "must be a JSON or JSON-MIN export" in refused("import", run.folder, tmp_path / "run/run.json")


def test_decisions_are_listed_and_joined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    every: tuple[tuple[str, list[Action]], ...] = (
        ("mine", [Rename(category=5, name="=fern"), Move(images=(f"{5:032x}",), category=0), Undo()]),
        ("theirs", [Rename(category=5, name="moss"), Rename(category=4, name="oak")]),
    )
    for name, actions in every:
        run = replace(sample_run(), folder=tmp_path / name)
        save_run(run)
        journal.append(run.folder / DECISIONS, run.facts, [journal.decide(each, name) for each in actions])
    mine = str(tmp_path / "mine")
    assert app.main(["decisions", mine]) == 0
    out = capsys.readouterr().out
    assert "Renamed 'new 2' to '=fern'" in out
    assert "Undid: moved 1 image to 'class 0'" in out
    assert app.main(["decisions", "merge", mine, str(tmp_path / "theirs" / DECISIONS)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("1 decision added, 1 disputed.")
    assert "theirs: Disputed: renamed '=fern' to 'moss'. Here it was renamed to '=fern'." in out
    assert app.main(["decisions", mine, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["do"] for row in rows] == ["rename", "move", "undo", "rename", "rename"]
    assert rows[3]["disputed"]
    assert app.main(["decisions", "merge", mine, mine]) == 2
    assert "must be a file" in capsys.readouterr().err
    for command in (["decisions", str(tmp_path)], ["report", str(tmp_path / "no")]):
        assert app.main(command) == 2
    assert app.main(["decisions", "merge", str(tmp_path / "no"), str(tmp_path / "theirs" / DECISIONS)]) == 2
    assert not (tmp_path / "no").exists()


def test_decisions_of_earlier_runs_stay_listed(tmp_path: Path) -> None:
    """In the words of their time, though a category has another name by now; journals without words are read, too."""
    run = replace(sample_run(), folder=tmp_path / "run")
    save_run(run)
    for number, name in enumerate(("fern", "moss")):
        journal.append(run.folder / DECISIONS, run.facts, [journal.decide(Rename(category=5, name=name), "ann")])
        save_run(load_run(run.folder))
        run = load_run(run.folder)
        path = run.folder / f"decisions-{number + 1}.jsonl"
        assert "words" in path.read_text()
    rows = json.loads(invoke("decisions", run.folder, "--json").out)
    assert [row["words"] for row in rows] == ["Renamed 'new 2' to 'fern'", "Renamed 'fern' to 'moss'"]
    assert [row["earlier"] for row in rows] == [True, True]
    path = run.folder / "decisions-1.jsonl"
    header, line = path.read_text().splitlines()
    path.write_text(
        f"{header}\n{json.dumps({key: each for key, each in json.loads(line).items() if key != 'words'})}\n"
    )
    journal.append(run.folder / DECISIONS, run.facts, [journal.decide(Rename(category=5, name="oak"), "ann")])
    rows = json.loads(invoke("decisions", run.folder, "--json").out)
    assert [row["words"] for row in rows] == [
        "Renamed 'moss' to 'fern'",
        "Renamed 'fern' to 'moss'",
        "Renamed 'moss' to 'oak'",
    ]
    assert [row["earlier"] for row in rows] == [True, True, False]
