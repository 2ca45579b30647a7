"""Names of images and classes that disturb terminals, file systems, spreadsheets and other tools."""

from __future__ import annotations

import csv
import json
import os
import shutil
import unicodedata
from contextlib import suppress
from pathlib import Path

import pytest
from support import fork_server, tiny_folder
from support.reviews import serving
from support.world import OPTIONS, Trial

from sortal.reviews.loading import load_run
from sortal.runs.run import DECISIONS

# Each is the name of a file, without its extension, and, but for the slash, could be that of a class.
NAMES = (
    "x" * 251,
    "é" * 125,
    os.fsdecode(b"not utf-8 \xff\xfe\x80"),
    "new\nline",
    "\r\n\tblank ",
    "\x1b[2J\x1b[31mred",
    "\x1b]52;c;aGk=\x07clipboard",
    "\x9b31mC1",
    "\u202egnp.exe",
    "\u2066isolated\u2069",
    "zero\u200bwidth\ufeff",
    "--help",
    "-rf",
    "-",
    "case",
    "CASE",
    "dots...",
    "space ",
    " leading",
    "CON",
    "nul.tar",
    "=1+1",
    "@SUM(A1)",
    "'quoted'",
    '"double"',
    "a,b;c",
    "back\\slash",
    "<script>alert(1)</script>",
    "%s %n {0} ${HOME}",
    "$(touch pwned)",
    "[bold]rich[/bold] :smile:",
    unicodedata.normalize("NFC", "café"),
    unicodedata.normalize("NFD", "café"),
    "\U0001f469\u200d\U0001f4bb",
    "\u2028line\u2029",
    "null",
    "true",
    "007",
    "unsure",
    "index.csv",
    "metadata",
)
FORMATS = {
    "csv": ".csv",
    "parquet": ".parquet",
    "coco": ".json",
    "folders": "",
    "imagefolder": "",
    "fiftyone": "",
    "labelstudio": "",
}
CLASSES = ("--placeholders", "classes", "--workers", "1")  # "null" is a class
IMPORTED = ("csv", "parquet", "folders/index.csv", "fiftyone", "labelstudio/tasks.json")


def write(trial: Trial, names: list[str]) -> tuple[Path, list[str]]:
    """Write an image for each name, in folders of odd names too; return the folder and the files in it."""
    folder, files = trial.folder / "images", []
    for number, name in enumerate(names):
        kind = tiny_folder.CLASSES[number % 3] if number % 2 else None
        folder_name = trial.random.choice(names).replace("/", "_") if number % 5 == 1 else kind or "unlabelled"
        for file in (f"{folder_name}/{name}.png",):
            with suppress(OSError):  # which this file system does not take
                tiny_folder.save(folder / file, tiny_folder.picture(tiny_folder.CLASSES[number % 6], number))
                files.append(file)
    return folder, sorted({*files})


@pytest.mark.thorough
@pytest.mark.attack(most=50)
def test_all_commands(trial: Trial) -> None:
    """Take images with odd names through every command, and find each of them again in every export."""
    names = [*NAMES] if trial.number == 0 else [*NAMES, *(_random(trial) for _ in range(40))]
    folder, files = write(trial, names)
    run, world = trial.folder / "run", trial.world
    found = world.sortal("check", folder, *CLASSES, "--json").answer(0)
    assert found["images"] == len(files)
    world.sortal("check", folder, *CLASSES).check_calm(0)
    options = [each for each in OPTIONS if each != "6"]
    k = str(2 + len({file.partition("/")[0] for file in files}))
    options.insert(options.index("--k") + 1, k)
    world.sortal("discover", folder, "--out", run, *CLASSES[:2], *options).check_calm(0)
    assert sorted(row["file_name"] for row in tiny_folder.rows_of(run / "assignments.csv")) == files or _escaped(run)
    csv_file = trial.folder / "-table.csv"
    world.sortal("predict", run, folder, "--csv", trial.folder / "table.csv").check_calm(0)
    assert len(tiny_folder.rows_of(trial.folder / "table.csv")) == len(files)
    world.sortal("predict", run, folder, "--json").answer(0)
    world.sortal("predict", run, folder, "--csv", csv_file.name, cwd=trial.folder).check_calm(2)
    formats = FORMATS if trial.number else {name: FORMATS[name] for name in ("csv", "folders", "labelstudio")}
    for name, extension in formats.items():
        out = trial.folder / f"out-{name}{extension}"
        world.sortal("export", run, "--format", name, "--out", out, "--how", "copy").check_calm(0)
        assert _exported(name, out) == len(files), name
    for name in IMPORTED:
        kind, _, inside = name.partition("/")
        if kind not in formats:
            continue
        source = trial.folder / f"out-{kind}{FORMATS[kind]}" / inside
        assert not world.sortal("import", run, source, "--json").answer(0)["missing"], name
    table = trial.folder / "out-csv.csv"
    world.sortal("check", folder, "--labels", table, *CLASSES).check_calm(0)
    reviewed = ("check", trial.folder / "out-folders", "--folders", "reviewed", *CLASSES, "--json")
    assert world.sortal(*reviewed).answer(0, 1)["images"] == len(files)
    world.sortal("decisions", run, "--json").answer(0)
    world.sortal("decisions", run).check_calm(0)
    if trial.number:
        world.sortal("report", run, quickly=False).check_calm(0)
        review(trial, run, len(files))


def review(trial: Trial, run: Path, images: int) -> None:
    """Review a run with odd names over HTTP, and take its decisions to a copy of it, as a journal and as a table."""
    copies = [trial.folder / name for name in ("merged", "imported")]
    for copy in copies:
        shutil.copytree(run, copy)
    fork_server.shared().run(decide, str(run), images, codes=[0])
    trial.world.sortal("decisions", run, "--json").answer(0)
    trial.world.sortal("decisions", run).check_calm(0)
    trial.world.sortal("decisions", "merge", copies[0], run / DECISIONS).check_calm(0)
    table = trial.folder / "reviewed.csv"
    trial.world.sortal("export", run, "--format", "csv", "--out", table).check_calm(0)
    edited = edit(trial.folder / "out-csv.csv", table)
    trial.world.sortal("import", copies[1], edited, "--by", "ann").check_calm(0)
    expected = load_run(run)
    for copy in copies:
        found = load_run(copy)
        assert found.assignments.files == expected.assignments.files
        assert (found.assignments.category_id == expected.assignments.category_id).all(), copy.name


def edit(table: Path, like: Path) -> Path:
    """Give images in a table the categories that they have in another one, as a person would in a spreadsheet."""
    found, wanted = tiny_folder.rows_of(table), tiny_folder.rows_of(like)
    edited = table.with_name("edited.csv")
    with edited.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.DictWriter(file, [*found[0]])
        writer.writeheader()
        writer.writerows({**row, "category": other["category"]} for row, other in zip(found, wanted, strict=True))
    return edited


def decide(folder: str, images: int) -> None:
    """In a child: look at every category and image of a run, and decide about every seventh image."""
    from sortal.discovery.reviewing.open import open_session

    session = open_session(load_run(Path(folder), raw=True))
    with serving(session) as client, tiny_folder.quickly():
        client.enter()
        overview = client.get("/api/overview")
        assert overview["images"] == images
        rows = [row for each in overview["categories"] for row in client.get(f"/api/category/{each['id']}")["rows"]]
        assert sorted(rows) == [*range(images)]
        shown = client.get(f"/api/images?rows={','.join(map(str, rows))}")["file"]
        assert not {unicodedata.category(each) for name in shown for each in name} & {"Cc", "Cs"}, shown
        assert all(client.ask("GET", f"/thumb/{row}").code == 200 for row in rows[::9])
        moved, (first, *_, last) = rows[::7], overview["categories"]
        for seen, (do, category) in enumerate((("move", last["id"]), ("move", first["id"]))):
            answer = client.decide(seen, do=do, rows=moved[seen::2], category=category)
            assert answer.code == 200, answer.body
    contents = session.run.assignments.contents
    found = load_run(Path(folder))
    given = dict(zip(found.assignments.contents, found.assignments.category_id.tolist(), strict=True))
    assert all(given[contents[row]] == last["id"] for row in moved[::2])


def _escaped(run: Path) -> bool:
    """Tell whether only escapes against formulas make names differ, which reading the run undoes."""
    return sorted(load_run(run).assignments.files) == sorted(
        row["file_name"].removeprefix("'") if row["file_name"][:1] == "'" else row["file_name"]
        for row in tiny_folder.rows_of(run / "assignments.csv")
    )


def _exported(name: str, out: Path) -> int:
    """Return how many images an export lists, each of which must be there."""
    if name == "csv":
        return len(tiny_folder.rows_of(out))
    if name == "parquet":
        from pyarrow import parquet

        return int(parquet.ParquetFile(out).metadata.num_rows)
    if name == "coco":
        return len(json.loads(out.read_text())["images"])
    if name == "labelstudio":
        return len(json.loads((out / "tasks.json").read_text()))
    if name == "fiftyone":
        return len(json.loads((out / "labels.json").read_text())["labels"])
    if name == "imagefolder":
        lines = (out / "train" / "metadata.jsonl").read_text().splitlines()
        assert all((out / "train" / json.loads(line)["file_name"]).is_file() for line in lines)
        return len(lines)
    with (out / "index.csv").open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        rows = [*csv.DictReader(file)]
    assert all((out / row["file_name"].removeprefix("'")).is_file() for row in rows)
    return len(rows)


def _random(trial: Trial) -> str:
    """Return a random name of up to 60 characters from all over Unicode, or of random bytes."""
    draw = trial.random
    if draw.random() < 0.3:
        raw = bytes(draw.choice([each for each in range(1, 256) if each != 47]) for _ in range(draw.randint(1, 60)))
        text = os.fsdecode(raw)
    else:
        blocks = ((1, 0x20), (0x20, 0x7F), (0x80, 0x250), (0x2000, 0x2070), (0x1F300, 0x1F700), (0xE0000, 0xE0080))
        text = "".join(chr(draw.randrange(*draw.choice(blocks))) for _ in range(draw.randint(1, 60)))
    text = text.replace("/", "_").replace("\0", "_")
    return text if not text.startswith(".") else f"_{text}"
