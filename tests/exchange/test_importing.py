"""Annotations of other tools as decisions: what an export wrote, annotated as the tool writes it, read back."""

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.sample_run import as_sorted, sample_run

from sortal.errors import InputError
from sortal.exchange.export import export
from sortal.exchange.importing import ImportResult, import_annotations
from sortal.images.review_states import STATE_WORDS
from sortal.reviews import journal
from sortal.reviews.actions import Accept, Action, Create, Move, Rename, Undo
from sortal.reviews.loading import load_run, save_run
from sortal.runs.facts import ImageSource
from sortal.runs.run import DECISIONS, Run

Rows = list[dict[str, Any]]
CATEGORIES, IMAGES = 4, 16  # row i is in category i % 4: class 0, class 1, new 1, new 2; rows 0, 1, 12, 13 are labelled


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = sample_run(categories=CATEGORIES, known=2, images=IMAGES, truth=False, file="{:02d}.png".format)
    (tmp_path / "photos").mkdir()
    for row, file in enumerate(made.assignments.files):
        Image.new("RGB", (3, 3), (row, 0, 0)).save(tmp_path / "photos" / file)
    source = ImageSource(folder=str(tmp_path / "photos"), images=IMAGES, paths={})
    made = as_sorted(replace(made, folder=tmp_path / "run", facts=replace(made.facts, images=(source,))))
    save_run(made)
    return load_run(made.folder, raw=True)


def choose(name: str, **about: Any) -> dict[str, Any]:
    """Return an annotation as Label Studio writes it."""
    result = {"from_name": "category", "to_name": "image", "type": "choices", "value": {"choices": [name]}}
    return {"id": 7, "was_cancelled": False, "completed_by": 1, "result": [result], **about}


def tasks_of(run: Run, tmp_path: Path) -> Rows:
    export(run, "labelstudio", tmp_path / "tasks", force=True)
    tasks: Rows = json.loads((tmp_path / "tasks/tasks.json").read_text())
    return tasks


def labels_of(run: Run, tmp_path: Path) -> dict[str, Any]:
    export(run, "fiftyone", tmp_path / "fiftyone", how="copy", force=True)
    found: dict[str, Any] = json.loads((tmp_path / "fiftyone/labels.json").read_text())
    return found


def rows_of(run: Run, tmp_path: Path) -> Rows:
    export(run, "csv", tmp_path / "table.csv", force=True)
    return [*csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text(encoding="utf-8")))]


def put(tmp_path: Path, content: Any, name: str = "annotated.json") -> Path:
    path = tmp_path / name
    if path.suffix == ".json":
        path.write_text(json.dumps(content))
    else:
        with path.open("w", newline="", encoding="utf-8-sig") as file:  # as Excel writes it
            writer = csv.DictWriter(file, content[0], delimiter=";")
            writer.writeheader()
            writer.writerows(content)
    return path


def actions(found: ImportResult) -> list[Any]:
    return [each.action for each in found.decisions]


def contents(run: Run, *rows: int) -> tuple[str, ...]:
    return tuple(run.assignments.contents[row] for row in rows)


def states(run: Run, *rows: int) -> list[tuple[str, str]]:
    """Return the category and the state of rows of the reviewed run."""
    found = load_run(run.folder)
    a = found.assignments
    return [(found.names[int(a.category_id[row])], STATE_WORDS[a.reviewed[row]]) for row in rows]


def test_choices_of_label_studio_confirm_move_and_create(run: Run, tmp_path: Path) -> None:
    tasks = tasks_of(run, tmp_path)
    assert [row for row, task in enumerate(tasks) if "annotations" in task] == [0, 1, 12, 13], "the labelled ones"
    who = {"id": 2, "email": "ann@example.org", "first_name": "Ann", "last_name": ""}
    for row, made in {
        2: [choose("new 1")],
        3: [choose("class 1", completed_by=who)],
        4: [choose("class 1"), choose("new 1", was_cancelled=True)],
        6: [choose("maple")],
        8: [choose("maple", completed_by=who)],
        9: [{"id": 8, "result": []}],
        10: [choose("class 0"), choose("class 1")],
        14: [choose("maple"), choose("Maple")],
    }.items():
        tasks[row]["annotations"] = made
    file = put(tmp_path, tasks)
    found = import_annotations(run.folder, file)
    assert actions(found) == [
        Move(images=contents(run, 3), category=1),
        Move(images=contents(run, 4), category=1),
        Create(images=contents(run, 6), category=CATEGORIES, name="maple"),
        Move(images=contents(run, 8), category=CATEGORIES),
        Accept(images=contents(run, 2)),
    ]
    people = ["ann@example.org", "Label Studio user 1", "Label Studio user 1", "ann@example.org", "Label Studio user 1"]
    assert [each.by for each in found.decisions] == people
    assert (found.format, found.images, found.decided, found.unchanged) == ("Label Studio", 11, 5, 4)
    assert (found.missing, found.disagreeing) == ((), ("10.png", "14.png"))
    assert states(run, 2, 3, 6) == [("new 1", "confirmed"), ("class 1", "moved"), ("maple", "moved")]
    assert states(run, 9) == [("class 1", "no")]

    before = (run.folder / DECISIONS).read_bytes()
    again = import_annotations(run, file)
    assert (again.decisions, again.unchanged) == ((), 9)
    assert (run.folder / DECISIONS).read_bytes() == before
    exported = put(tmp_path, tasks_of(load_run(run.folder), tmp_path))
    assert import_annotations(run, exported).decisions == (), "what an export wrote itself is no annotation"


def test_json_min_says_the_same_and_a_given_name_replaces_that_in_the_file(run: Run, tmp_path: Path) -> None:
    tasks = [{**task["data"], "id": row, "annotation_id": row} for row, task in enumerate(tasks_of(run, tmp_path))]
    tasks[2] |= {"category": "new 1", "annotator": 4}
    tasks[3] |= {"category": {"choices": ["class 0"]}, "annotator": "bob@example.org"}
    for without in ("content", "file_name"):  # other identities are taken then
        tasks = [{name: value for name, value in task.items() if name != without} for task in tasks]
        found = import_annotations(run.folder, put(tmp_path, tasks), by="cy")
        assert actions(found) == [Move(images=contents(run, 3), category=0), Accept(images=contents(run, 2))]
        assert {each.by for each in found.decisions} == {"cy"}
        (run.folder / DECISIONS).unlink()
    tasks = [{**task, "image": "/data/local-files/?d=photos/92.png"} for task in tasks]
    with pytest.raises(InputError, match=r"none of them is in it: '92\.png'\."):
        import_annotations(run.folder, put(tmp_path, tasks))
    with pytest.raises(InputError, match="must not be empty"):
        import_annotations(run.folder, put(tmp_path, tasks), by=" ")


def as_samples(labels: Mapping[str, Any]) -> dict[str, Any]:
    """Return the labels of an export as samples.json of FiftyOne, which has attributes next to the label."""
    samples = []
    for key, label in labels["labels"].items():
        classification = {"_cls": "Classification", "label": label["label"], "tags": [], **label["attributes"]}
        samples.append({"filepath": f"data/{key}.png", "tags": [], "ground_truth": classification, "other": {"x": 1}})
    return {"samples": samples}


def in_labels(labels: dict[str, Any], row: int, name: str) -> None:
    labels["labels"][f"{row:02d}"]["label"] = name


def test_labels_of_fiftyone_that_were_changed_are_decisions(run: Run, tmp_path: Path) -> None:
    labels = labels_of(run, tmp_path)
    assert import_annotations(run.folder, tmp_path / "fiftyone").images == 0, "a guess is no annotation"
    in_labels(labels, 3, "class 0")
    in_labels(labels, 5, "birch")
    for row in (2, 6, 10, 14):
        in_labels(labels, row, "elm")
    samples = as_samples(labels)
    samples["samples"][7]["ground_truth"]["tags"] = ["confirmed"]
    found = import_annotations(run.folder, put(tmp_path, samples, "samples.json"))
    assert actions(found) == [
        Create(images=contents(run, 2, 6, 10, 14), category=CATEGORIES, name="elm"),
        Move(images=contents(run, 3), category=0),
        Create(images=contents(run, 5), category=CATEGORIES + 1, name="birch"),
        Accept(images=contents(run, 7)),
    ]
    assert states(run, 2, 7) == [("elm", "moved"), ("new 2", "confirmed")]
    assert import_annotations(run.folder, put(tmp_path, labels)).decisions == ()
    # Without attributes, which FiftyOne leaves out by default, or with the numbers of classes and absolute paths
    named = {"09": 1, "11": "class 1", "/x/15.png": {"label": 1}, "99": "class 1", "08": None, "10": ["elm", "class 0"]}
    found = import_annotations(run.folder, put(tmp_path, {"classes": labels["classes"], "labels": named}))
    assert actions(found) == [Move(images=contents(run, 11, 15), category=1)]
    assert (found.unchanged, found.missing, found.disagreeing) == (1, ("99",), ("10.png",))
    samples["samples"][0] |= {"mine": {**samples["samples"][0]["ground_truth"]}}
    with pytest.raises(InputError, match="one field of classifications, got 'ground_truth', 'mine'"):
        import_annotations(run.folder, put(tmp_path, samples, "samples.json"))


def test_an_edited_table_moves_and_confirms_images_and_its_guesses_are_left_alone(run: Run, tmp_path: Path) -> None:
    rows = rows_of(run, tmp_path)
    assert import_annotations(run.folder, tmp_path / "table.csv").images == 0
    for row in rows:
        row["category"] = {"new 1": "elm", "new 2": "class 1"}.get(row["category"], row["category"])
    rows[0]["category"] = "class 1"
    rows[4]["label"] = "birch"
    rows[5]["label"] = "class 1"
    rows[8]["reviewed"] = "Confirmed"
    file = put(tmp_path, rows, "table.csv")
    found = import_annotations(run.folder, file, by="dee")
    assert actions(found) == [
        Move(images=contents(run, 0, 3, 7, 11, 15), category=1),
        Create(images=contents(run, 2, 6, 10, 14), category=CATEGORIES, name="elm"),
        Create(images=contents(run, 4), category=CATEGORIES + 1, name="birch"),
        Accept(images=contents(run, 5, 8)),
    ]
    assert states(run, 2, 3, 8) == [("elm", "moved"), ("class 1", "moved"), ("class 0", "confirmed")]
    assert import_annotations(run.folder, file).decisions == ()


def test_names_that_were_exchanged_in_a_table_move_images(run: Run, tmp_path: Path) -> None:
    rows = rows_of(run, tmp_path)
    swap = {"new 1": "new 2", "new 2": "new 1"}
    swapped = [{**row, "category": swap.get(row["category"], row["category"])} for row in rows]
    found = import_annotations(run.folder, put(tmp_path, swapped, "table.csv"))
    moves = [Move(images=contents(run, 2, 6, 10, 14), category=3), Move(images=contents(run, 3, 7, 11, 15), category=2)]
    assert actions(found) == moves


def test_what_was_decided_since_the_export_is_disputed(run: Run, tmp_path: Path) -> None:
    tasks, rows = tasks_of(run, tmp_path), rows_of(run, tmp_path)
    since: list[Action] = [
        Rename(category=2, name="elm"),
        Move(images=contents(run, 4, 7), category=1),
        Accept(images=contents(run, 5)),
    ]
    journal.append(run.folder / DECISIONS, run.facts, [journal.decide(each, "eve") for each in since])
    assert import_annotations(run.folder, put(tmp_path, rows, "table.csv")).images == 0, "nothing was edited"
    for row, name in {2: "new 2", 3: "elm", 4: "class 0", 5: "oak", 6: "new 1", 7: "class 1"}.items():
        tasks[row]["annotations"] = [choose(name)]
    file = put(tmp_path, tasks)
    found = import_annotations(run.folder, file)
    made = [(each.action, bool(each.disputed)) for each in found.decisions]
    assert made == [
        (Move(images=contents(run, 2), category=3), False),
        (Move(images=contents(run, 3), category=2), False),
        (Create(images=contents(run, 6), category=CATEGORIES, name="new 1"), False),  # which is no category any more
        (Move(images=contents(run, 4), category=0), True),
        (Create(images=contents(run, 5), category=CATEGORIES + 1, name="oak"), True),
    ]
    assert states(run, 4, 5) == [("class 1", "moved"), ("class 1", "confirmed")]
    assert import_annotations(run.folder, file).decisions == ()
    seen = tasks_of(load_run(run.folder), tmp_path)
    seen[4]["annotations"] = [choose("class 0")]  # by someone who saw where it was
    assert actions(import_annotations(run.folder, put(tmp_path, seen))) == [Move(images=contents(run, 4), category=0)]


def test_an_import_that_was_undone_can_be_repeated(run: Run, tmp_path: Path) -> None:
    tasks = tasks_of(run, tmp_path)
    tasks[2]["annotations"] = [choose("new 1")]
    file = put(tmp_path, tasks)
    first = import_annotations(run.folder, file)
    journal.append(run.folder / DECISIONS, run.facts, [journal.decide(Undo())])
    assert actions(import_annotations(run.folder, file)) == actions(first) == [Accept(images=contents(run, 2))]


def test_a_name_that_cannot_be_one_stops_the_import_before_anything_is_written(run: Run, tmp_path: Path) -> None:
    tasks = tasks_of(run, tmp_path)
    tasks[2]["annotations"], tasks[3]["annotations"] = [choose("new 1")], [choose("x" * 300)]
    with pytest.raises(InputError, match="must have 1 to 200 printable characters"):
        import_annotations(run.folder, put(tmp_path, tasks))
    assert not (run.folder / DECISIONS).exists()


def test_images_of_two_folders_with_one_name_are_told_apart_by_content(run: Run, tmp_path: Path) -> None:
    files = tuple(f"{row % 8:02d}.png" for row in range(IMAGES))
    other = ImageSource(folder=str(tmp_path / "more"), images=8, paths={})
    a = replace(run.assignments, files=files, folders=np.arange(IMAGES) // 8)
    both = replace(run, assignments=a, facts=replace(run.facts, images=(*run.facts.images, other)))
    save_run(both)
    (content,) = contents(run, 11)
    tasks: Rows = [{"data": {"file_name": "03.png", "content": content}, "annotations": [choose("class 0")]}]
    found = import_annotations(run.folder, put(tmp_path, tasks))
    assert actions(found) == [Move(images=(content,), category=0)]
    tasks[0]["data"].pop("content")
    with pytest.raises(InputError, match="none of them is in it"):
        import_annotations(run.folder, put(tmp_path, tasks))
