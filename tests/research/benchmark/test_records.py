"""Records: saving and loading are inverse, and damage is located."""

import json
import os
import re
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
from support.sample_records import example, scores

from sortal.errors import InputError
from sortal.research.benchmark.records import RECORD_FILE, find, load, save


def test_a_saved_record_is_loaded_unchanged(tmp_path: Path) -> None:
    texts: Any = {"machine": "ü\u202e\n\x00", "weights": "", "command": "\udc80"}
    k = replace(example().k, asked=40, interval=(1, 2), curve=({"k": 2, "score": 0.5, "each": [0.5]},))
    record = example(seed=2**32 - 1, inductive=scores(None, 2, 3), version=None, k=k, **texts)
    path = save(record, tmp_path / "new" / "run")
    assert path == tmp_path / "new" / "run" / "benchmark.json"
    assert load(path) == load(path.parent) == record
    assert json.loads(path.read_text())["format"] == "sortal benchmark 2"
    assert os.listdir(path.parent) == [RECORD_FILE]
    assert example().minutes == 2
    moments = [example(finished=f"2026-01-01T{time}").moment for time in ("12:00:00+03:00", "09:30:00")]
    assert moments[0] < moments[1]  # 9:00 and 9:30 in UTC
    save(example(training={"loss": float("nan"), "each": (1.0, float("inf"))}), tmp_path)
    assert load(tmp_path).training == {"loss": None, "each": [1.0, None]}, "JSON has no NaN"


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("name", 3, "the record.name must be str, got '3'"),
        ("finished", "yesterday", "Invalid isoformat string: 'yesterday'"),
        ("version", "1", "the record.version must be int, got '1'"),
        ("seed", True, "the record.seed must be int, got 'True'"),
        ("k", [], "the record.k must be an object, got '[]'"),
        ("k.asked", "many", "the record.k.asked must be 'true' or 'auto' or 'own', got 'many'"),
        ("k.true", ..., "the record.k has no key 'true'"),
        ("transductive.images", 1.5, "the record.transductive.images must be int, got '1.5'"),
        ("transductive.accuracy.new", ..., "the record.transductive.accuracy has no key 'new'"),
        ("inductive", 3, "the record.inductive must be an object, got '3'"),
        ("inductive.ari", 10**400, "the record.inductive.ari must be float, got"),
        ("timings.learn", "long", "the record.timings.learn must be float, got 'long'"),
        ("colour", "red", "the record has an unknown key 'colour'"),
    ],
)
def test_damage_is_located(tmp_path: Path, path: str, value: Any, problem: str) -> None:
    file, content = tmp_path / RECORD_FILE, example(inductive=scores(1, 2, 3)).to_json()
    *above, name = path.split(".")
    table = reduce(getitem, above, content)
    table[name] = value
    if value is ...:
        del table[name]
    file.write_text(json.dumps(content))
    rule = rf"The benchmark run {re.escape(repr(str(file)))} is damaged: {re.escape(problem)}.*\. Run it again\.\Z"
    with pytest.raises(InputError, match=rule):
        load(tmp_path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is damaged: Expecting value"),
        (b'{"format": NaN}', "must have the format 'sortal benchmark 2', got nan."),
        (b"[" * 100_000, "is damaged: "),
        (b"\xff\xfe", "is damaged: "),
        (b"[]", "which is some other file."),
        (b'{"name": "a"}', "which is some other file."),
        (b'{"format": 2}', "must have the format 'sortal benchmark 2', got 2. Use the version of Sortal that wrote it"),
    ],
)
def test_files_other_than_records_are_reported(tmp_path: Path, content: bytes, problem: str) -> None:
    save(example(), tmp_path / "1")
    path = save(example(), tmp_path / "2")
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"{re.escape(str(path))}.*{re.escape(problem)}"):
        find([tmp_path])


def test_missing_records_are_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"got '.*nowhere', which does not exist"):
        find([tmp_path / "nowhere"])
    with pytest.raises(InputError, match=r"which has no benchmark\.json"):
        load(tmp_path)
    with pytest.raises(InputError, match=r"; '.*' contains none\. Run sortal benchmark first"):
        find([tmp_path])
    with pytest.raises(InputError, match=r"got no path\. Name at least one"):
        find([])


def test_each_run_is_found_once_at_any_depth(tmp_path: Path) -> None:
    places = [tmp_path / "a" / "b" / "1", tmp_path / "a" / "2", tmp_path / "c"]
    for seed, place in enumerate(places):
        save(example(seed=seed), place)
    save(example(seed=9), places[2] / "cache")  # inside a run folder
    (tmp_path / "a" / "other.json").write_text("{}")
    copy, link = tmp_path / "elsewhere.json", tmp_path / "link"
    copy.write_bytes((places[0] / RECORD_FILE).read_bytes())
    link.symlink_to(places[1])

    def seeds(*paths: Path) -> list[int]:
        return [record.seed for record in find(paths)]

    assert sorted(seeds(tmp_path)) == [0, 1, 2]
    assert seeds(tmp_path / "a") == [1, 0]  # by name
    assert seeds(places[2]) == seeds(places[2] / RECORD_FILE) == [2]
    assert seeds(places[1], link, places[1] / RECORD_FILE, tmp_path / "a" / "b" / ".." / "2") == [1]
    assert seeds(places[0], copy) == [0, 0]  # two files with the same content


@pytest.mark.skipif(os.name != "posix", reason="links need a right on Windows")
def test_a_link_to_itself_is_reported(tmp_path: Path) -> None:
    os.symlink(tmp_path / RECORD_FILE, tmp_path / RECORD_FILE)
    with pytest.raises(InputError, match=RECORD_FILE):
        find([tmp_path])
