"""Hostile text in what other programs read and write: exports, imports, and the decisions of other people."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from support.exports import UNDEMANDING, rows_in_zip
from support.payloads import ALL, draw, is_file_name, is_name, no_formula
from support.reviews import saved_run, serving, session_of
from support.sample_run import as_sorted
from support.tiny_folder import parse_strictly
from support.world import Trial

from sortal.exchange.export import EXPORT_FORMATS, export
from sortal.exchange.labelstudio import choices_of
from sortal.reviews.journal import JOURNAL_FORMAT, run_key
from sortal.reviews.loading import load_run
from sortal.runs.run import DECISIONS, Run
from sortal.system import csv_tables as tables


def parse_ascii(text: str) -> Any:
    """Return what JSON says, which must be JSON to everybody, and printable: in ASCII."""
    assert text.isascii()
    return parse_strictly(text)


# Exports


@pytest.mark.attack(most=50)
def test_exports(trial: Trial) -> None:
    """Export a run with hostile names in every format, and read each export as its own tool would."""
    names = [*filter(is_name, ALL)] if trial.number == 1 else draw(trial.random, 40, at=trial.number, fits=is_name)
    count = len(names)
    folder = trial.folder / "images"
    folder.mkdir()
    files = [f"{number}{name.replace('/', '')}.png" for number, name in enumerate(names)]
    files = [file if is_file_name(file) else f"{number}.png" for number, file in enumerate(files)]
    for file in files:
        shutil.copyfile(trial.world.images / "ash" / "0.png", folder / file)
    run = saved_run(
        trial.folder / "run",
        images=count,
        categories=count,
        known=count // 2,
        name=lambda number: names[number],
        file=lambda row: files[row],
    )
    source = replace(run.facts.images[0], folder=str(folder), paths={})
    run = as_sorted(replace(run, facts=replace(run.facts, images=(source,))))
    place = trial.folder / "place"
    place.mkdir()
    for name in UNDEMANDING:
        out = place / f"{name}{EXPORT_FORMATS[name].extension}"
        done = export(run, name, out, how="symlink")
        assert (done.missing, done.changed) == ((), ())
        READERS[name](out, run)
    assert {each.name for each in place.iterdir()} == {
        f"{name}{EXPORT_FORMATS[name].extension}" for name in UNDEMANDING
    }


def _utf8(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _read_csv(out: Path, run: Run) -> None:
    no_formula(out)
    found = tables.read(out)
    assert found["category"] == [run.names[each] for each in run.assignments.category_id.tolist()]
    assert found["file_name"] == [*run.assignments.files]


def _read_parquet(out: Path, run: Run) -> None:
    from pyarrow import parquet

    found = parquet.read_table(out).to_pydict()
    assert found["category"] == [_utf8(run.names[each]) for each in run.assignments.category_id.tolist()]


def _inside(out: Path, run: Run) -> list[Path]:
    """Return the images of an export, which must be in its folder, and have names that any system can have."""
    images = [each for each in out.rglob("*") if each.is_symlink()]
    assert len(images) == len(run.assignments)
    for each in out.rglob("*"):
        assert each.parent.resolve().is_relative_to(out.resolve())
        assert each.name.isprintable() or not {*each.name} & {*map(chr, range(32)), "\x7f", "\u202e", "\u2028"}
        assert not {*each.name} & {*'<>:"/\\|?*'}
        assert len(os.fsencode(each.name)) <= 140
        assert not each.name.endswith((".", " "))
        assert each.name.partition(".")[0].upper() not in ("CON", "NUL", "COM1")
    assert len({str(each.relative_to(out)).casefold() for each in out.rglob("*")}) == len([*out.rglob("*")])
    return images


def _read_folders(out: Path, run: Run) -> None:
    _inside(out, run)
    no_formula(out / "index.csv")
    found = tables.read(out / "index.csv")
    assert [*map((out).joinpath, found["file_name"])]
    assert all((out / each).is_symlink() for each in found["file_name"])
    assert found["category"] == [run.names[each] for each in run.assignments.category_id.tolist()]


def _read_imagefolder(out: Path, run: Run) -> None:
    _inside(out, run)
    rows = [parse_ascii(line) for line in (out / "train" / "metadata.jsonl").read_text().splitlines()]
    assert [row["category"] for row in rows] == [_utf8(run.names[i]) for i in run.assignments.category_id.tolist()]


def _read_fiftyone(out: Path, run: Run) -> None:
    stems = {each.stem for each in _inside(out, run)}
    found = parse_ascii((out / "labels.json").read_text())
    assert found["classes"] == [*map(_utf8, run.names.values())]
    assert {*found["labels"]} == stems


def _read_coco(out: Path, run: Run) -> None:
    found = parse_ascii(out.read_text())
    assert {each["id"]: each["name"] for each in found["categories"]} == {i: _utf8(n) for i, n in run.names.items()}
    assert [each["file_name"] for each in found["images"]] == [*run.assignments.files]


def _read_labelstudio(out: Path, run: Run) -> None:
    root = ElementTree.fromstring((out / "config.xml").read_bytes())
    choices = [*choices_of(run.names).values()]
    assert [each.get("value") for each in root.iter("Choice")] == choices
    assert {each.tag for each in root.iter()} == {"View", "Image", "Choices", "Choice"}
    assert len({*choices}) == len(choices)
    for task in parse_ascii((out / "tasks.json").read_text()):
        assert task["data"]["image"].startswith("/data/local-files/?d=")
        assert task["data"]["image"].isascii()
        assert task["predictions"][0]["result"][0]["value"]["choices"][0] in choices


def _read_ecotaxa(out: Path, run: Run) -> None:
    rows = rows_in_zip(out)
    assert len({row["object_id"] for row in rows}) == len(rows) == len(run.assignments)


READERS: dict[str, Callable[[Path, Run], None]] = {
    "csv": _read_csv,
    "parquet": _read_parquet,
    "embeddings": _read_parquet,
    "folders": _read_folders,
    "imagefolder": _read_imagefolder,
    "fiftyone": _read_fiftyone,
    "coco": _read_coco,
    "labelstudio": _read_labelstudio,
    "ecotaxa": _read_ecotaxa,
}


# Decisions


@pytest.mark.attack(most=20)
def test_decisions(trial: Trial) -> None:
    """Give categories hostile names by the interface of a review; a name is refused, or it is taken as it is."""
    texts = ALL if trial.number == 1 else draw(trial.random, 60 if trial.number else 20, at=trial.number)
    run = saved_run(trial.folder / "run")
    with serving(session_of(run)) as client:
        client.enter()
        version = 0
        for text in texts:
            answer = client.decide(version, do="rename", category=2, name=text)
            assert answer.code in (200, 400), answer.body
            said = parse_ascii(answer.body.decode())
            assert len(answer.body) < 20_000
            if answer.code == 200:
                version += 1
                names = {each["id"]: each["name"] for each in client.get("/api/overview")["categories"]}
                assert names[2] == text
            else:
                assert "printable" in said["message"] or "another category" in said["message"]
            for wrong in ({"do": text}, {"do": "keep", "categories": [text]}, {"do": "move", "rows": [0], text: text}):
                refused = client.decide(version, **wrong)
                assert refused.code == 400
                assert len(refused.body) < 20_000
                assert parse_ascii(refused.body.decode())
    if version < 20:
        trial.world.sortal("decisions", run.folder).check_calm(0)
    assert len(trial.world.sortal("decisions", run.folder, "--json").answer(0)) == version
    assert load_run(run.folder).decisions == version


@pytest.mark.attack
def test_journals(trial: Trial) -> None:
    """Join the journal of somebody hostile, or have it as one's own; then list, export and sort again."""
    run, random = trial.world.copy_run(trial.folder / "run"), trial.random
    facts, contents = (found := load_run(run)).facts, found.assignments.contents
    texts = draw(random, 12, at=trial.number)
    lines: list[dict[str, Any]] = [{"format": JOURNAL_FORMAT, "run": run_key(facts)}]
    for at, text in enumerate(texts):
        by, when, key = (random.choice([text, texts[at - 1], "2025-01-01T00:00:00+00:00"]) for _ in range(3))
        action = random.choice(
            (
                {"do": "rename", "category": random.randrange(6), "name": text[:200]},
                {"do": "accept", "images": [random.choice(contents)]},
                {"do": "move", "images": [random.choice(contents)], "category": random.randrange(6)},
                {"do": "accept", "images": [random.choice((text, contents[0]))]},
                {"do": random.choice(("accept", text)), "images": [contents[1]]},
                {"do": "rename", "category": 99, "name": "x", "disputed": text},
            )
        )
        lines.append({"key": key + str(at), "at": when, "by": by, **action})
    if trial.number % 2 == 0:  # only lines that are carried out
        lines = [lines[0], *({**lines[1], "do": "accept", "by": text, "at": text} for text in texts)]
        lines[1:] = [
            {**each, "key": f"{at}{each['key']}", "images": [contents[at]]} for at, each in enumerate(lines[1:])
        ]
        lines[1:] = [{key: each[key] for key in ("key", "at", "by", "do", "images")} for each in lines[1:]]
    other = trial.folder / "other.jsonl"
    other.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    sortal = trial.world.sortal
    joined = sortal("decisions", "merge", run, other).check_calm(0, 2)
    assert joined.code == 0 or trial.number % 2
    sortal("decisions", run).check_calm(0)
    sortal("decisions", run, "--json").answer(0)
    shutil.copyfile(other, run / DECISIONS)
    sortal("decisions", run).check_calm(0, 2)
    sortal("export", run, "--format", "csv", "--out", trial.folder / "table.csv").check_calm(0, 2)


@pytest.mark.attack
def test_imports(trial: Trial) -> None:
    """Import annotations with hostile names, people and files, in every format."""
    run, random = trial.world.copy_run(trial.folder / "run"), trial.random
    a, texts = load_run(run).assignments, draw(random, 20, at=trial.number)
    kind = trial.case(("labelstudio", "min", "fiftyone", "samples", "table"))
    rows = range(0, 60, 3)
    short = trial.number < 5  # names that may be given; the others are refused
    names = [f"{'ok ' if short else ''}{text[:60]}" for text in texts]
    names = [each if not short or each.isprintable() else f"ok {number}" for number, each in enumerate(names)]
    file = trial.folder / ("annotations.csv" if kind == "table" else "annotations.json")
    if kind == "table":
        cells = [("content", "label", "sorted_as", "category", "category_id", "reviewed", "file_name", "status")]
        names, said = ([each.encode("utf-8", "replace").decode() for each in group] for group in (names, texts))
        cells += [
            (a.contents[row], name, "", "", "0", "no", text, "new")
            for row, name, text in zip(rows, names, said, strict=True)
        ]
        file.write_bytes(tables.table([(name, column) for name, *column in zip(*cells, strict=True)]))
    else:
        file.write_text(json.dumps(_annotations(kind, [a.contents[row] for row in rows], names, texts)))
    who = (
        []
        if trial.number % 3
        else [f"--by={random.choice([each for each in texts if is_file_name(each) and each.strip()])}"]
    )
    sortal = trial.world.sortal
    again = trial.world.copy_run(trial.folder / "again")
    done = sortal("import", run, file, *who).check_calm(0, 2, 3)
    assert done.code != 2 or not short, done.err
    repeated = sortal("import", again, file, *who, "--json").check(done.code)
    assert done.code == 2 or repeated.answer(done.code) is not None
    sortal("decisions", run).check_calm(0)


def _annotations(kind: str, contents: Sequence[str], names: Sequence[str], texts: Sequence[str]) -> Any:
    """Return annotations of the images of these contents as other tools write them."""
    about = [*zip(contents, names, texts, strict=True)]
    if kind == "labelstudio":
        value = [[{"type": "choices", "value": {"choices": [name]}}] for name in names]
        return [
            {
                "data": {"content": content, "image": text, "file_name": text},
                "annotations": [{"result": result, "completed_by": {"email": text}}],
            }
            for (content, _, text), result in zip(about, value, strict=True)
        ]
    if kind == "min":
        return [{"content": c, "category": name, "annotator": text, "image": text} for c, name, text in about]
    labels = [{"label": name, "attributes": {"content": content}} for content, name, _ in about]
    if kind == "fiftyone":
        return {"classes": names, "labels": {text: each for (_, _, text), each in zip(about, labels, strict=True)}}
    field = [{"_cls": "Classification", "sorted_as": "", **each} for each in labels]
    return {
        "samples": [{"filepath": text, "tags": [], "x": each} for (_, _, text), each in zip(about, field, strict=True)]
    }
