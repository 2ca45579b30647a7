"""Hostile text wherever text comes in: class names, tables, decisions, files of a run, words of a command.

Whatever comes in, the terminal shows printable characters and not too many, JSON is JSON to everybody, no cell of a
table is a formula, no file is outside its folder, and names come back as they were.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn
from xml.etree import ElementTree

from support import tiny_folder
from support.reviews import saved_run, serving, session_of
from support.sample_run import as_sorted

from attacks.attack import OPTIONS, Attack, Done, Trial, case
from attacks.payloads import ALL, draw, is_file_name, is_name, is_utf8
from sortal.exchange.export import FORMATS, export
from sortal.exchange.labelstudio import choices_of
from sortal.images.class_names import as_name
from sortal.images.decoding import Quarantined
from sortal.review.journal import FORMAT, run_key
from sortal.review.loading import load_run, save_run
from sortal.runs.run import DECISIONS, Run
from sortal.runs.storage import ASSIGNMENTS, CATEGORIES, QUARANTINE
from sortal.system import csv_tables as tables

SCREENFUL = 20_000  # characters that a command may print for people, whatever names it shows
FORMULA = (*"=+-@\uff1d\uff0b\uff0d\uff20", "\t", "\r", "\n")  # characters that begin one, for some program
TABLES = (ASSIGNMENTS, CATEGORIES, QUARANTINE)


# What must hold


def calm(done: Done, *codes: int) -> Done:
    """Fail unless a command ended well, and printed only what a terminal shows as it is, and not too much of it."""
    done.check(*codes)
    odd = {each for each in done.out + done.err if each != "\n" and not each.isprintable()}
    assert not odd, f"The terminal gets {odd} in {(done.out + done.err)[:2000]!r}"
    assert len(done.out) + len(done.err) <= SCREENFUL, f"The terminal gets {len(done.out)} + {len(done.err)} characters"
    return done


def strict(text: str) -> Any:
    """Return what JSON says, which must be JSON to everybody, and printable: in ASCII."""

    def refuse(word: str) -> NoReturn:
        raise AssertionError(f"JSON holds {word}")

    assert text.isascii()
    return json.loads(text, parse_constant=refuse)


def answered(done: Done, *codes: int) -> Any:
    """Return the JSON that a command printed; what it said besides is for people. None where it refused."""
    calm(replace(done, out=""), *codes)
    return strict(done.out) if done.code != 2 else None


def no_formula(path: Path) -> None:
    """Fail if a cell of a table is a formula to a spreadsheet; text is quoted, and what is not quoted is a number."""
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    limit = csv.field_size_limit(len(text) + 1)
    try:
        for row in csv.reader(io.StringIO(text, newline=""), quoting=csv.QUOTE_NONNUMERIC, strict=True):
            bad = [cell for cell in row if isinstance(cell, str) and cell.startswith(FORMULA)]
            assert not bad, f"{path.name} has the cells {[cell[:80] for cell in bad]}"
    finally:
        csv.field_size_limit(limit)


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


def commands(trial: Trial) -> int:
    """Let every command read a run whose texts are all hostile."""
    at, random = trial.number, trial.random
    names, others = draw(random, 6, at=at, fits=is_name), draw(random, 6, at=at + 3, fits=is_name)
    run, sortal, images = spoilt(trial, names, others), trial.world.sortal, trial.world.images
    assert [*load_run(run).names.values()] == names
    for name in TABLES:
        no_formula(run / name)
    table = trial.folder / "table.csv"
    forms: tuple[tuple[tuple[str | Path, ...], ...], ...] = (
        (("decisions", run), ("predict", run, images, "--csv", table), ("discover", run, "--k", "5")),
        (("export", run, "--format", "folders", "--out", trial.folder / "sorted"), ("report", run)),
        (("predict", run, images), ("predict", run, images, "--update"), ("predict", run, images, "--update")),
        (("figures", run, "--out", trial.folder / "figures"), ("discover", run, "--dry-run")),
    )
    for form in case(trial, forms):
        calm(sortal(*form, quickly=form[0] != "report"), 0)
    if table.exists():
        no_formula(table)
    assert answered(sortal("predict", run, images, "--json"), 0) is not None
    return 1 + len(case(trial, forms))


# Labels


def labels(trial: Trial) -> None:
    """Sort images whose labels are hostile: folders, and tables of every format."""
    kind = case(trial, ("folders", ".jsonl", ".csv", ".parquet", ".tsv"))
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
    calm(trial.world.sortal("check", *source), 0)
    assert answered(trial.world.sortal("check", *source, "--json"), 0)["labelled"] == 15
    run = trial.folder / "run"
    done = calm(trial.world.sortal("discover", *source, "--out", run, *OPTIONS), 0, 2)
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


# Exports


def exports(trial: Trial) -> int:
    """Export a run with hostile names in every format, and read each export as its own tool would."""
    names = [*filter(is_name, ALL)] if trial.number == 0 else draw(trial.random, 40, at=trial.number, fits=is_name)
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
    for name, format_ in FORMATS.items():
        out = place / f"{name}{format_.extension}"
        done = export(run, name, out, how="symlink")
        assert (done.missing, done.changed) == ((), ())
        READERS[name](out, run)
    assert {each.name for each in place.iterdir()} == {f"{name}{each.extension}" for name, each in FORMATS.items()}
    return count * len(FORMATS)


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
    rows = [strict(line) for line in (out / "train" / "metadata.jsonl").read_text().splitlines()]
    assert [row["category"] for row in rows] == [_utf8(run.names[i]) for i in run.assignments.category_id.tolist()]


def _read_fiftyone(out: Path, run: Run) -> None:
    stems = {each.stem for each in _inside(out, run)}
    found = strict((out / "labels.json").read_text())
    assert found["classes"] == [*map(_utf8, run.names.values())]
    assert {*found["labels"]} == stems


def _read_coco(out: Path, run: Run) -> None:
    found = strict(out.read_text())
    assert {each["id"]: each["name"] for each in found["categories"]} == {i: _utf8(n) for i, n in run.names.items()}
    assert [each["file_name"] for each in found["images"]] == [*run.assignments.files]


def _read_labelstudio(out: Path, run: Run) -> None:
    root = ElementTree.fromstring((out / "config.xml").read_bytes())
    choices = [*choices_of(run.names).values()]
    assert [each.get("value") for each in root.iter("Choice")] == choices
    assert {each.tag for each in root.iter()} == {"View", "Image", "Choices", "Choice"}
    assert len({*choices}) == len(choices)
    for task in strict((out / "tasks.json").read_text()):
        assert task["data"]["image"].startswith("/data/local-files/?d=")
        assert task["data"]["image"].isascii()
        assert task["predictions"][0]["result"][0]["value"]["choices"][0] in choices


READERS: dict[str, Callable[[Path, Run], None]] = {
    "csv": _read_csv,
    "parquet": _read_parquet,
    "folders": _read_folders,
    "imagefolder": _read_imagefolder,
    "fiftyone": _read_fiftyone,
    "coco": _read_coco,
    "labelstudio": _read_labelstudio,
}


# Decisions


def decisions(trial: Trial) -> int:
    """Give categories hostile names by the interface of a review; a name is refused, or it is taken as it is."""
    texts = ALL if trial.number == 0 else draw(trial.random, 60, at=trial.number)
    run = saved_run(trial.folder / "run")
    with serving(session_of(run)) as client:
        client.enter()
        version = 0
        for text in texts:
            answer = client.decide(version, do="rename", category=2, name=text)
            assert answer.code in (200, 400), answer.body
            said = strict(answer.body.decode())
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
                assert strict(refused.body.decode())
    calm(trial.world.sortal("decisions", run.folder), 0) if version < 20 else None
    assert len(answered(trial.world.sortal("decisions", run.folder, "--json"), 0)) == version
    assert load_run(run.folder).decisions == version
    return 4 * len(texts)


def journals(trial: Trial) -> None:
    """Join the journal of somebody hostile, or have it as one's own; then list, export and sort again."""
    run, random = trial.world.copy_run(trial.folder / "run"), trial.random
    facts, contents = (found := load_run(run)).facts, found.assignments.contents
    texts = draw(random, 12, at=trial.number)
    lines: list[dict[str, Any]] = [{"format": FORMAT, "run": run_key(facts)}]
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
    joined = calm(sortal("decisions", "merge", run, other), 0, 2)
    assert joined.code == 0 or trial.number % 2
    calm(sortal("decisions", run), 0)
    answered(sortal("decisions", run, "--json"), 0)
    shutil.copyfile(other, run / DECISIONS)
    calm(sortal("decisions", run), 0, 2)
    calm(sortal("export", run, "--format", "csv", "--out", trial.folder / "table.csv"), 0, 2)


def imports(trial: Trial) -> None:
    """Import annotations with hostile names, people and files, in every format."""
    run, random = trial.world.copy_run(trial.folder / "run"), trial.random
    a, texts = load_run(run).assignments, draw(random, 20, at=trial.number)
    kind = case(trial, ("labelstudio", "min", "fiftyone", "samples", "table"))
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
    done = calm(sortal("import", run, file, *who), 0, 2, 3)
    assert done.code != 2 or not short, done.err
    found = answered(sortal("import", again, file, *who, "--json"), done.code)
    assert (found is None) == (done.code == 2)
    calm(sortal("decisions", run), 0)


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


# Files of a run


def files(trial: Trial) -> int:
    """Put hostile text into single places of the files of a run; it is read, or the run is said to be damaged."""
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
        calm(sortal("decisions", run), 0, 2)
        calm(sortal("export", run, "--format", "coco", "--out", trial.folder / "x.json", "--force"), 0, 2, 3)
        (run / name).write_bytes(kept[name])
    calm(sortal("decisions", run), 0)
    return 2 * tried


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


def words(trial: Trial) -> int:
    """Give commands hostile words: names of folders and files, values of options, options."""
    run, images, sortal = trial.world.run, trial.world.images, trial.world.sortal
    texts = [each[:60_000] for each in draw(trial.random, 8, at=trial.number, fits=is_argument)]
    for text in texts:
        forms: tuple[tuple[str | Path, ...], ...] = (
            (text,),
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
        calm(sortal(*form, cwd=trial.folder), 0, 2)
    assert not (trial.folder / "hit").exists()
    return len(texts)


def folders(trial: Trial) -> None:
    """Give the folder of a run, and those of images, hostile names."""
    names = draw(trial.random, 5, at=trial.number, fits=is_file_name)
    where = trial.folder / names[0]
    where.mkdir()
    run, sortal = trial.world.copy_run(where / names[-1]), trial.world.sortal
    images = where / names[1]
    names[2] = f"a{names[2]}" if names[2].startswith(".") else names[2]  # a hidden folder is no class
    shutil.copytree(trial.world.images / "ash", images / names[2])
    calm(sortal("decisions", f"./{run.name}", cwd=where), 0)
    calm(sortal("predict", f"./{run.name}", f"./{images.name}", "--update", cwd=where, quickly=False), 0)
    calm(sortal("export", f"./{run.name}", "--format", "labelstudio", cwd=where), 0)
    calm(sortal("report", run), 0)
    (images / names[2] / "0.png").unlink()
    (images / names[2] / f"{'a' if names[3].startswith('-') else ''}{names[3]}").write_bytes(b"no image")
    calm(sortal("check", f"./{images.name}", cwd=where), 0, 3)
    calm(sortal("export", run, "--format", "coco", "--out", trial.folder / "coco.json"), 0, 3)


def many(trial: Trial) -> int:
    """Sort into ten thousand classes, with names as long as a hundred thousand characters."""
    count = 10_000
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
    calm(trial.world.sortal("decisions", run.folder), 0)
    calm(trial.world.sortal("export", run.folder, "--format", "csv", "--out", trial.folder / "x.csv"), 0)
    no_formula(trial.folder / "x.csv")
    with serving(session_of(run)) as client:
        client.enter()
        answer = client.ask("GET", "/api/overview")
        assert answer.code == 200
        assert len(answer.body) < 400 * count
        assert client.decide(0, do="merge", categories=[0, 1]).code == 200
        assert client.decide(1, do="undo").code == 200
    return count


ATTACKS = (
    Attack("text", "commands", commands, quick=1, least=16),
    Attack("text", "labels", labels, quick=1, least=20),
    Attack("text", "exports", exports, quick=1, least=10),
    Attack("text", "decisions", decisions, quick=1, least=5),
    Attack("text", "journals", journals, quick=1, least=20),
    Attack("text", "imports", imports, quick=1, least=20),
    Attack("text", "files of a run", files, quick=1, least=20),
    Attack("text", "words", words, quick=1, least=20),
    Attack("text", "folders", folders, quick=1, least=10),
    Attack("text", "ten thousand classes", many, quick=0, least=1),
)
