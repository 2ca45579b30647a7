"""A run with every kind of file that the folder of a run can have, and files about it that other programs wrote."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

from sortal.research.benchmark import records
from sortal.reviews.loading import load_run, save_run
from sortal.runs.run import Candidate
from sortal.runs.storage import CATEGORIES
from sortal.system.files import COMMIT_FILE
from sortal.system.open_folder import NEXT
from support import tiny_folder
from support.sample_records import example
from support.world import ON_CPU, OPTIONS, World

NEEDED = {
    "assignments.csv", "candidates.csv", "categories.csv", "centres.npy", "confidence.json", "decisions-1.jsonl",
    "decisions.jsonl", "features-2.npy", "features.npy", "head.npy", "initial.safetensors", "k.json", "log.jsonl",
    "metrics.json", "model.json", "model.safetensors", "quarantine.csv", "rejected.csv", "report.html", "run.json",
    "cache", "figures",
}  # fmt: skip


def complete_run(world: World) -> Path:
    """Return a run of a classifier that was reviewed, updated and reviewed again, made when it is first needed."""
    run = world.folder / "complete"
    if not run.exists():
        made = world.folder / "complete being made"
        _make(world, made)
        missing = NEEDED - {each.name for each in made.iterdir()}
        assert not missing, f"The run lacks {sorted(missing)}."
        made.rename(run)
    return run


def _make(world: World, run: Path) -> None:
    images = world.folder / "images of the complete run"
    truth = tiny_folder.write(images)
    (images / "unlabelled" / "no image.png").write_text("not an image\n")
    labels = tiny_folder.write_labels(world.folder / "labels.csv", truth, [*truth.values()])
    reading = ("--labels", labels, "--unlisted", "unlabelled")
    world.sortal("discover", images, *reading, "--out", run, *OPTIONS, "--method", "uno").check(3)
    _review(world, run, 0)
    world.sortal("predict", run, world.more, *ON_CPU, "--update").check(0)
    found = load_run(run)
    a, category = found.assignments, found.categories[0].id
    apart = Candidate(id=0, files=a.files[-2:], folders=tuple(a.folders[-2:].tolist()), nearest_id=category)
    save_run(replace(found, candidates=(apart,), rejected=frozenset({(a.contents[-1], category)})))
    _review(world, run, 1)
    world.sortal("figures", run, "--which", "tsne").check(0)


def _review(world: World, run: Path, start: int) -> None:
    """Import a few decisions: exported categories that were edited."""
    path = world.folder / f"edited {start}.csv"
    world.sortal("export", run, "--format", "csv", "--out", path).check(0)
    rows = tiny_folder.rows_of(path)
    for row in rows[start::25]:
        row["category"] = "ash" if row["category"] != "ash" else "beech"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0]], quoting=csv.QUOTE_ALL)
        writer.writeheader()
        writer.writerows(rows)
    world.sortal("import", run, path).check(0)


def stage(run: Path, *, committed: bool) -> None:
    """Add what a process leaves in a run that is killed while it writes, before or after it commits its files."""
    staging = run / NEXT
    staging.mkdir()
    for name in (CATEGORIES, "report.html"):
        shutil.copyfile(run / name, staging / name)
    if committed:
        (staging / COMMIT_FILE).write_text(json.dumps({"files": [CATEGORIES, "report.html"], "gone": ["rejected.csv"]}))


# Files about a run, which people name in a command


def annotation_files(world: World) -> dict[str, Path]:
    """Return files that `import` and `decisions merge` read, by name, made when they are first needed."""
    folder, run = world.folder / "annotations", complete_run(world)
    if not folder.exists():
        folder.mkdir()
        for name in ("labelstudio", "fiftyone"):
            world.sortal("export", run, "--format", name, "--out", folder / name).check(0, 3)
        shutil.copyfile(world.folder / "edited 1.csv", folder / "table.csv")
        shutil.copyfile(run / "decisions.jsonl", folder / "decisions.jsonl")
        _annotate(folder / "labelstudio" / "tasks.json")
    return {
        "Label Studio": folder / "labelstudio" / "tasks.json",
        "FiftyOne": folder / "fiftyone" / "labels.json",
        "table": folder / "table.csv",
        "decisions": folder / "decisions.jsonl",
    }


def _annotate(path: Path) -> None:
    """Turn the predictions of tasks into annotations, as a person who accepts them does."""
    tasks = json.loads(path.read_text())
    for task in tasks:
        task["annotations"] = [{"result": task["predictions"][0]["result"], "completed_by": {"email": "ann"}}]
    path.write_text(json.dumps(tasks))


def benchmark_record(world: World) -> Path:
    """Return the record of a benchmark run, in a folder of its own."""
    folder = world.folder / "benchmark"
    return (
        records.save(example(), folder) if not (folder / records.RECORD_FILE).exists() else folder / records.RECORD_FILE
    )
