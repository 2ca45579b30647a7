"""Hostile text wherever text comes in: class names, tables, decisions, files of a run, words of a command.

Whatever comes in, the terminal shows printable characters and not too many, JSON is JSON to everybody, no cell of a
table is a formula, no file is outside its folder, and names come back as they were.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import tiny_folder
from support.payloads import draw, is_file_name, is_name, is_utf8, no_formula
from support.reviews import saved_run, serving, session_of
from support.world import OPTIONS, Trial, Words

from sortal.images.class_names import as_name
from sortal.images.decoding import Quarantined
from sortal.reviews.loading import load_run, save_run
from sortal.runs.storage import ASSIGNMENTS, CATEGORIES, QUARANTINE

TABLES = (ASSIGNMENTS, CATEGORIES, QUARANTINE)


# A run whose texts are hostile


def spoilt(trial: Trial, names: Sequence[str], others: Sequence[str]) -> Path:
    """Copy the run, and give its categories these names and all its other texts `others`."""
    place = trial.world.copy_run(trial.folder / "run")
    run = load_run(place, raw=True)
    by = dict(zip(run.names.values(), names, strict=True))
    a = run.assignments
    labels, truth = (tuple(None if each is None else by.get(each, each) for each in old) for old in (a.labels, a.truth))
    facts = replace(
        run.facts,
        notes=tuple(others),
        command="\n".join(others),
        weights=others[0],
        machine=others[1],
        device=others[2],
        versions=dict(zip(others, reversed(others), strict=True)),
    )
    named = replace(
        run,
        categories=tuple(replace(each, name=by[each.name], former=tuple(others[:2])) for each in run.categories),
        assignments=replace(a, labels=labels, truth=truth),
        facts=facts,
        quarantine=tuple(Quarantined(text, "damaged", text) for text in others),
    )
    save_run(named)
    return place


@pytest.mark.attack(most=100)
def test_commands(trial: Trial) -> None:
    """Let every command read a run whose texts are all hostile."""
    at, random = trial.number, trial.random
    names, others = draw(random, 6, at=at, fits=is_name), draw(random, 6, at=at + 3, fits=is_name)
    run, sortal, images = spoilt(trial, names, others), trial.world.sortal, trial.world.images
    assert [*load_run(run).names.values()] == names
    for name in TABLES:
        no_formula(run / name)
    table = trial.folder / "table.csv"
    forms: tuple[tuple[Words, ...], ...] = (
        (("decisions", run), ("predict", run, images, "--csv", table), ("discover", run, "--k", "5")),
        (("export", run, "--format", "folders", "--out", trial.folder / "sorted"), ("report", run)),
        (("predict", run, images), ("predict", run, images, "--update"), ("predict", run, images, "--update")),
        (("figures", run, "--out", trial.folder / "figures"), ("discover", run, "--dry-run")),
    )
    for form in trial.case(forms):
        sortal(*form, quickly=form[0] != "report").check_calm(0)
    if table.exists():
        no_formula(table)
    assert sortal("predict", run, images, "--json").answer(0) is not None


# Labels


@pytest.mark.thorough
@pytest.mark.attack(most=100)
def test_labels(trial: Trial) -> None:
    """Sort images whose labels are hostile: folders, and tables of every format."""
    kind = trial.case(("folders", ".jsonl", ".csv", ".parquet", ".tsv"))
    fits: Callable[[str], bool] = is_file_name if kind == "folders" else is_utf8

    def is_label(text: str) -> bool:
        named = fits(text) and as_name(text) == text and text != "unlabelled"
        return named and not (kind == "folders" and text.startswith("."))  # a hidden folder is no class

    names = draw(trial.random, 6, at=trial.number // 5, fits=is_label)[trial.number % 2 :: 2]
    images, listed = trial.folder / "images", []
    for file, what in tiny_folder.planted(8, 5).items():
        own, _, number = what.partition(" ")
        label = tiny_folder.label_of(file)
        name = None if label is None else names[tiny_folder.OLD.index(label)]
        place = f"{name or 'unlabelled'}/{own}{number}.png" if kind == "folders" else f"{own}{number}.png"
        tiny_folder.save(images / place, tiny_folder.picture(own, int(number)))
        listed.append({"file_name": place, "label": name})
    source = (
        [images] if kind == "folders" else [images, "--labels", label_table(trial.folder / f"labels{kind}", listed)]
    )
    trial.world.sortal("check", *source).check_calm(0)
    assert trial.world.sortal("check", *source, "--json").answer(0)["labelled"] == 15
    run = trial.folder / "run"
    done = trial.world.sortal("discover", *source, "--out", run, *OPTIONS).check_calm(0, 2)
    if done.code == 0:
        assert {each.name for each in load_run(run).categories if each.kind == "known"} == {*names}
        for table in TABLES:
            no_formula(run / table)


def label_table(path: Path, rows: Sequence[Mapping[str, str | None]]) -> Path:
    """Write a table of labels in the format that its name says."""
    if path.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist([*rows]), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",", quoting=csv.QUOTE_ALL)
            writer.writerow(rows[0])
            writer.writerows([each or "" for each in row.values()] for row in rows)
    return path


# Files of a run


@pytest.mark.attack
def test_files_of_a_run(trial: Trial) -> None:
    """Put hostile text into single places of the files of a run: it is read, or the run is reported as damaged."""
    random, sortal = trial.random, trial.world.sortal
    run = trial.world.copy_run(trial.folder / "run")
    kept = {each.name: each.read_bytes() for each in run.iterdir() if each.suffix in (".json", ".csv", ".jsonl")}
    tried = 4
    for number in range(tried):
        name = sorted(kept)[(tried * trial.number + number) % len(kept)]
        text = draw(random, 6, at=trial.number)[random.randrange(6)]
        content = kept[name].decode()
        spoilt = _spoilt_table(content, text, random.randrange) if name.endswith(".csv") else None
        (run / name).write_bytes((spoilt or _spoilt_json(content, text, random.randrange)).encode("utf-8", "replace"))
        sortal("decisions", run).check_calm(0, 2)
        sortal("export", run, "--format", "coco", "--out", trial.folder / "x.json", "--force").check_calm(0, 2, 3)
        (run / name).write_bytes(kept[name])
    sortal("decisions", run).check_calm(0)


def _spoilt_table(content: str, text: str, choose: Callable[[int], int]) -> str:
    """Replace a cell of a table, perhaps a heading."""
    rows = [*csv.reader(io.StringIO(content, newline=""))]
    row = rows[choose(len(rows))]
    row[choose(len(row))] = text
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL).writerows(rows)
    return out.getvalue()


def _spoilt_json(content: str, text: str, choose: Callable[[int], int]) -> str:
    """Replace a value or a key of JSON, or of the first of several lines of it."""
    first, *rest = content.split("\n") if content.count("\n{") else (content,)
    value = json.loads(first)
    place: Any = value
    while True:
        keys: list[Any] = [*place] if isinstance(place, dict) else [*range(len(place))]
        if not keys:
            break
        key = keys[choose(len(keys))]
        if isinstance(place[key], dict | list) and place[key] and choose(4):
            place = place[key]
            continue
        if isinstance(place, dict) and not choose(4):
            place[text] = place.pop(key)
        else:
            place[key] = text
        break
    return "\n".join([json.dumps(value), *rest])


# Words of a command


def is_argument(text: str) -> bool:
    return is_utf8(text) and "\0" not in text


@pytest.mark.attack
def test_words(trial: Trial) -> None:
    """Give commands hostile words: names of folders and files, values of options, options."""
    run, images, sortal = trial.world.run, trial.world.images, trial.world.sortal
    texts = [each[:60_000] for each in draw(trial.random, 8, at=trial.number, fits=is_argument)]
    for text in texts:
        forms: tuple[Words, ...] = (
            (text,),
            ("check", text),
            ("discover", text),
            ("discover", images, "--k", text),
            ("discover", images, "--backbone", text, "--dry-run"),
            ("discover", images, "--labels", text),
            ("discover", images, f"--{text}"),
            ("decisions", text),
            ("decisions", "merge", run, text),
            ("import", run, text),
            ("export", run, "--format", text),
            ("figures", run, "--which", text, "--out", trial.folder / "figures"),
            ("predict", run, images, "--csv", f"{text}/x.csv"),
            ("review", run, "--words", text, "--no-browser", "--host", text),
        )
        form = trial.random.choice(forms)
        sortal(*form, cwd=trial.folder).check_calm(0, 2)
    assert not (trial.folder / "hit").exists()


@pytest.mark.thorough
@pytest.mark.attack(most=100)
def test_folders(trial: Trial) -> None:
    """Give the folder of a run, and those of images, hostile names."""
    names = draw(trial.random, 5, at=trial.number, fits=is_file_name)
    where = trial.folder / names[0]
    where.mkdir()
    run, sortal = trial.world.copy_run(where / names[-1]), trial.world.sortal
    images = where / names[1]
    names[2] = f"a{names[2]}" if names[2].startswith(".") else names[2]  # a hidden folder is no class
    shutil.copytree(trial.world.images / "ash", images / names[2])
    sortal("decisions", f"./{run.name}", cwd=where).check_calm(0)
    sortal("predict", f"./{run.name}", f"./{images.name}", "--update", cwd=where, quickly=False).check_calm(0)
    sortal("export", f"./{run.name}", "--format", "labelstudio", cwd=where).check_calm(0)
    sortal("report", run).check_calm(0)
    (images / names[2] / "0.png").unlink()
    (images / names[2] / f"{'a' if names[3].startswith('-') else ''}{names[3]}").write_bytes(b"no image")
    sortal("check", f"./{images.name}", cwd=where).check_calm(0, 3)
    sortal("export", run, "--format", "coco", "--out", trial.folder / "coco.json").check_calm(0, 3)


@pytest.mark.thorough
@pytest.mark.attack(most=2)
def test_ten_thousand_classes(trial: Trial) -> None:
    """Sort into ten thousand classes, with names as long as a hundred thousand characters."""
    count = 10_000 if trial.number else 500
    texts = dict(enumerate(draw(trial.random, 60, at=trial.number, fits=is_name)))
    run = saved_run(
        trial.folder / "run",
        images=2 * count,
        categories=count,
        known=count // 2,
        truth=False,
        name=lambda number: texts.get(number, f"class {number}"),
    )
    assert [*load_run(run.folder).names.values()][:60] == [*texts.values()]
    trial.world.sortal("decisions", run.folder).check_calm(0)
    trial.world.sortal("export", run.folder, "--format", "csv", "--out", trial.folder / "x.csv").check_calm(0)
    no_formula(trial.folder / "x.csv")
    with serving(session_of(run)) as client:
        client.enter()
        answer = client.ask("GET", "/api/overview")
        assert answer.code == 200
        assert len(answer.body) < 400 * count
        assert client.decide(0, do="merge", categories=[0, 1]).code == 200
        assert client.decide(1, do="undo").code == 200
