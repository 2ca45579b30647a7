"""Records: what is saved comes back, and what is not whole is refused with a word about what and where."""

import json
import os
import re
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest

from sortal.benchmark.presets import PRESETS
from sortal.benchmark.records import NAME, Record, find, load, save
from sortal.errors import InputError

WEIGHTS = "model.safetensors (sha256 " + "0123456789abcdef" * 4 + ")"


def scores(all_: float | None, old: float | None, new: float | None, **others: Any) -> dict[str, Any]:
    """In %, as tables have it; of all else something that is always the same."""
    parts = zip(("all", "old", "new"), (all_, old, new), strict=True)
    three = {name: None if percent is None else percent / 100 for name, percent in parts}
    return {"images": 100, "accuracy": three, "legacy": three, "nmi": 0.5, "ari": 0.25, "known_accuracy": 0.75} | others


def example(of: str = "table3/cub/gcd", seed: int = 0, **changes: Any) -> Record:
    """A run of a preset, as it would be recorded."""
    preset = PRESETS[of]
    settings = preset.settings()
    whole: dict[str, Any] = {
        "key": "0" * 16,
        "name": of,
        "version": preset.version,
        "dataset": preset.dataset,
        "method": preset.recipe.method,
        "clustering": preset.recipe.clustering,
        "backbone": preset.backbone,
        "weights": WEIGHTS,
        "seed": seed,
        "k": {"asked": preset.k, "k": 200, "true": 200, "error": 0.0, "interval": None, "curve": []},
        "transductive": scores(50, 60, 40),
        "inductive": None,
        "recipe": {**settings, "training": {**settings["training"], "seed": seed}},
        "training": {"epoch": 199},
        "timings": {"learn": 90.0, "clusters": 30.0},
        "machine": "Linux x86_64, 2 cores",
        "versions": {"sortal": "0.1", "torch": "2.6"},
        "command": f"sortal benchmark --preset {of} --seeds {seed}",
        "finished": "2026-01-01T10:00:00+00:00",
    }
    return Record(**{**whole, **changes})


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    texts: Any = {"machine": "ü\u202e\n\x00", "weights": "", "command": "\udc80"}
    k = {**example().k, "asked": 40, "interval": [1, 2]}
    record = example(seed=2**32 - 1, inductive=scores(None, 2, 3), version=None, k=k, **texts)
    path = save(record, tmp_path / "new" / "run")
    assert path == tmp_path / "new" / "run" / "benchmark.json"
    assert load(path) == load(path.parent) == record
    assert json.loads(path.read_text())["format"] == "sortal benchmark 1"
    assert os.listdir(path.parent) == [NAME]
    assert example().minutes == 2
    moments = [example(finished=f"2026-01-01T{time}").moment for time in ("12:00:00+03:00", "09:30:00")]
    assert moments[0] < moments[1]  # 9:00 and 9:30 in UTC
    save(example(training={"loss": float("nan"), "each": (1.0, float("inf"))}), tmp_path)
    assert load(tmp_path).training == {"loss": None, "each": [1.0, None]}, "what is no number is nothing"
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot be written: .*\. Choose another folder, or make room"):
        save(record, tmp_path / "file")


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("name", 3, "name of a benchmark run must be text, got 3"),
        ("finished", "yesterday", "finished of a benchmark run must be a time in ISO 8601, got 'yesterday'"),
        ("version", "1", "version of a benchmark run must be a whole number or nothing, got '1'"),
        ("seed", True, "seed of a benchmark run must be a whole number, got True"),
        ("seed", -1, "seed of a benchmark run must be a whole number, got -1"),
        ("seed", 2**63, "seed of a benchmark run must be a whole number"),
        ("k", [], "k of a benchmark run must be a table, got []"),
        ("k.asked", "many", "k.asked of a benchmark run must be 'true', 'auto' or a whole number, got 'many'"),
        ("k.true", ..., "k.true of a benchmark run must be a whole number, got None"),
        ("k.error", None, "k.error of a benchmark run must be a number, got None"),
        ("transductive.images", 1.5, "transductive.images of a benchmark run must be a whole number, got 1.5"),
        ("transductive.accuracy.new", ..., "transductive.accuracy of a benchmark run must be a table of all"),
        ("transductive.legacy.all", "1", "transductive.legacy of a benchmark run must be a table of all"),
        ("transductive.nmi", ..., "transductive.nmi of a benchmark run must be a number or nothing"),
        ("inductive", 3, "inductive of a benchmark run must be a table, got 3"),
        ("inductive.ari", 10**400, "inductive.ari of a benchmark run must be a number or nothing"),
        ("timings.learn", "long", "timings.learn of a benchmark run must be a number of seconds, got 'long'"),
        ("seed", ..., "what must be there is not, or what must not be there is: 'seed'"),
        ("colour", "red", "what must be there is not, or what must not be there is: 'colour'"),
    ],
)
def test_damage_is_reported(tmp_path: Path, path: str, value: Any, told: str) -> None:
    file, content = tmp_path / NAME, example(inductive=scores(1, 2, 3)).to_json()
    *above, name = path.split(".")
    table = reduce(getitem, above, content)
    table[name] = value
    if value is ...:
        del table[name]
    file.write_text(json.dumps(content))
    rule = rf"The benchmark run {re.escape(repr(str(file)))} is damaged: {re.escape(told)}.*\. Run it again\.\Z"
    with pytest.raises(InputError, match=rule):
        load(tmp_path)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is damaged: Expecting value"),
        (b'{"format": NaN}', "is damaged: NaN is no number"),
        (b"[" * 100_000, "is damaged: "),
        (b"\xff\xfe", "is damaged: "),
        (b"[]", "which is something else."),
        (b'{"name": "a"}', "which is something else."),
        (b'{"format": 2}', "must have the format 'sortal benchmark 1', got 2. Use the version of Sortal that wrote it"),
    ],
)
def test_a_file_that_is_no_record_is_reported(tmp_path: Path, content: bytes, told: str) -> None:
    save(example(), tmp_path / "1")
    path = save(example(), tmp_path / "2")
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"{re.escape(str(path))}.*{re.escape(told)}"):
        find([tmp_path])


def test_what_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"got '.*nowhere', which is not there"):
        find([tmp_path / "nowhere"])
    with pytest.raises(InputError, match=r"which holds no benchmark\.json"):
        load(tmp_path)
    with pytest.raises(InputError, match=r"there is none in '.*' or below\. Run sortal benchmark first"):
        find([tmp_path])
    with pytest.raises(InputError, match=r"got none\. Name at least one"):
        find([])


def test_runs_are_found_wherever_they_lie_each_once(tmp_path: Path) -> None:
    places = [tmp_path / "a" / "b" / "1", tmp_path / "a" / "2", tmp_path / "c"]
    for seed, place in enumerate(places):
        save(example(seed=seed), place)
    save(example(seed=9), places[2] / "cache")  # what lies in a run folder is its own
    (tmp_path / "a" / "other.json").write_text("{}")
    copy, link = tmp_path / "elsewhere.json", tmp_path / "link"
    copy.write_bytes((places[0] / NAME).read_bytes())
    link.symlink_to(places[1])

    def seeds(*paths: Path) -> list[int]:
        return [record.seed for record in find(paths)]

    assert sorted(seeds(tmp_path)) == [0, 1, 2]
    assert seeds(tmp_path / "a") == [1, 0]  # by name
    assert seeds(places[2]) == seeds(places[2] / NAME) == [2]
    assert seeds(places[1], link, places[1] / NAME, tmp_path / "a" / "b" / ".." / "2") == [1]
    assert seeds(places[0], copy) == [0, 0]  # two files, if of one content
