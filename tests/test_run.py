"""A run folder: what is written comes back, no cell is a formula, and a kill leaves the old run or the new one."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_run import HOSTILE as NAMES
from sample_run import sample_run

from sortal import cells, run, whole
from sortal.errors import InputError
from sortal.images import image_set
from sortal.lock import NAME as LOCK
from sortal.lock import alone
from sortal.pixels import Quarantined
from sortal.run import Candidate, Kind, Run, load, peek
from sortal.segments import write_atomically

HOSTILE = (
    *NAMES,
    '=HYPERLINK("x")',
    "-1",
    "\ttab",
    "'apostrophe",
    "''=1",
    'a,b;"c"',
    "lone\rreturn",
    "both\r\n",
    " spaces ",
    "\x85\x0b\x0c\x1c",
    "\ufeffmark",
    "NA",
    "nan",
    "0012",
)
TABLES = (run.ASSIGNMENTS, run.CATEGORIES, run.QUARANTINE, run.CANDIDATES)
SPREADSHEET = ("=", "+", "-", "@", "\t", "\r")  # what begins a formula
ABOUT: dict[str, Any] = {"images": [{"folder": "/photos", "images": 0, "paths": {}}], "notes": ["Ä\udcff"], "n": 1.5}

numbers = st.floats(0, 1e6).map(lambda value: round(value, 6))
names = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(min_size=1),
    st.binary(min_size=1).map(lambda name: name.decode("utf-8", "surrogateescape")),
    st.builds(str.__add__, st.sampled_from(cells.FORMULA), st.text()),
)


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed process leaves does not depend on it, and hundreds of runs are written here."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def a_run(
    folder: Path,
    files: Sequence[str],
    *,
    labels: Sequence[str | None] | None = None,
    truth: Sequence[str | None] | None = None,
    category: Sequence[int] | None = None,
    of_categories: Sequence[str] = ("one", "two"),
    folders: Sequence[int] | None = None,
    about: dict[str, Any] | None = None,
    head: bool = False,
    seed: int = 0,
    **others: Any,
) -> Run:
    """A run with numbers of six digits after the point, which is as many as are written."""
    n, k = len(files), len(of_categories)
    run_ = sample_run(
        categories=k,
        images=n,
        d=3,
        seed=seed,
        truth=False,
        name=lambda number: of_categories[number],
        file=lambda row: files[row],
        category=np.arange(n) % k if category is None else np.array(category, dtype=np.int64),
    )
    a, has = run_.assignments, np.array([label is not None for label in labels or [None] * n])
    a = replace(
        a,
        folders=a.folders if folders is None else np.array(folders, dtype=np.int64),
        contents=tuple(f"{seed + row:032x}" for row in range(n)),
        labels=(None,) * n if labels is None else tuple(labels),
        truth=(None,) * n if truth is None else tuple(truth),
        status=np.where(has, "labelled", np.array(["known", "new", "unsure"])[np.arange(n) % 3]),
        confidence=a.confidence.round(6),
        distance=a.distance.round(6),
        next_category=a.next_category if k > 1 else np.full(n, -1),
        next_distance=a.next_distance.round(6) if k > 1 else np.full(n, np.nan),
    )
    kinds: list[Kind] = ["known", "new"]
    made: dict[str, Any] = {
        "about": {**ABOUT, **(about or {})},
        "k": {"k": k, "estimated": False, "curve": [{"k": 2, "score": 0.1 + 0.2, "each": []}]},
        "confidence": {"temperature": 1 / 3, "usual_distance": [0.1, 2e-9]},
        "head": np.random.default_rng(seed).normal(size=(k, 4)).astype(np.float32) if head else None,
        "categories": tuple(
            replace(each, kind=kinds[each.id % 2], cohesion=each.cohesion and round(each.cohesion, 6))
            for each in run_.categories
        ),
    }
    for name, value in others.items():
        made[name] = tuple(value) if isinstance(value, list) else value
    return replace(run_, folder=folder, assignments=a, **made)


def assert_same(one: Run, other: Run) -> None:
    for name, column in vars(one.assignments).items():
        again = getattr(other.assignments, name)
        if isinstance(column, tuple):
            assert again == column, name
        else:
            assert again.dtype.kind == column.dtype.kind, name
            np.testing.assert_array_equal(again, column, err_msg=name)
    for name in ("about", "categories", "k", "confidence", "metrics", "quarantine", "candidates"):
        assert getattr(other, name) == getattr(one, name), name
    for name in ("features", "centres"):
        np.testing.assert_array_equal(getattr(other, name), getattr(one, name))
        assert getattr(other, name).dtype == np.float32
    assert (other.head is None) == (one.head is None)
    if one.head is not None and other.head is not None:
        np.testing.assert_array_equal(other.head, one.head)
        assert other.head.dtype == np.float32
    assert other.folder == one.folder


def raw_cells(path: Path) -> list[list[str | float]]:
    """Cells of a table below its header: text where there are quotes around it, else a number, or this fails."""
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    _, *rows = csv.reader(io.StringIO(text, newline=""), quoting=csv.QUOTE_NONNUMERIC, strict=True)
    return [list(row) for row in rows]


def snapshot(folder: Path) -> dict[str, bytes]:
    """Files and what is in them, but for the lock and what was broken off before all of it was there."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != LOCK]
    if not whole.is_pending(folder):
        files = [path for path in files if whole.NEXT not in path.parts]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def hostile_run(folder: Path) -> Run:
    n = len(HOSTILE)
    classes = [f"{name} as a class" for name in HOSTILE]
    return a_run(
        folder,
        HOSTILE,
        labels=[name if row % 2 else None for row, name in enumerate(HOSTILE)],
        truth=[None if row % 3 == 0 else name for row, name in enumerate(HOSTILE)],
        category=range(n),
        of_categories=HOSTILE,
        metrics={"accuracy": {"all": 0.1 + 0.2, "new": None}, "confusion": [[name, 0, 1] for name in classes]},
        quarantine=[Quarantined(name, "truncated", name) for name in HOSTILE],
        candidates=[
            Candidate(id=1, files=HOSTILE, folders=(1,) * len(HOSTILE), nearest=2),
            Candidate(id=2, files=HOSTILE[:1], folders=(2,), nearest=0),
        ],
        about={"notes": list(HOSTILE), "classes": list(HOSTILE)},
        head=True,
    )


# What is written comes back


def assert_no_formula(folder: Path) -> None:
    for name in TABLES:
        text = [cell for row in raw_cells(folder / name) for cell in row if isinstance(cell, str)]
        assert text
        assert not [cell for cell in text if cell.startswith(SPREADSHEET)], name


def test_everything_comes_back_with_hostile_names(tmp_path: Path) -> None:
    wrote = hostile_run(tmp_path / "a run")
    wrote.save({"report.html": b"<p>"})
    assert_same(wrote, load(tmp_path / "a run"))
    assert_same(wrote, load(str(tmp_path / "a run")))
    assert (tmp_path / "a run/report.html").read_bytes() == b"<p>"
    assert_no_formula(wrote.folder)
    header = (wrote.folder / run.ASSIGNMENTS).read_text(errors="surrogateescape").partition("\n")[0]
    assert header == (
        '"file_name","label","truth","category","category_name","status","confidence","distance",'
        '"next_category","next_distance","folder","content"'
    )
    for row in raw_cells(wrote.folder / run.ASSIGNMENTS):
        assert [type(cell) for cell in row] == [str, str, str, float, str, str, float, float, float, float, float, str]


@given(st.lists(st.tuples(names, st.none() | names, st.none() | names, numbers), min_size=1, max_size=6), names)
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_names_come_back_and_none_is_a_formula(
    tmp_path: Path, rows: list[tuple[str, str | None, str | None, float]], category: str
) -> None:
    files, labels, truth, distance = zip(*rows, strict=True)
    wrote = a_run(
        tmp_path / "run",
        files,
        labels=labels,
        truth=truth,
        of_categories=(category, "new 1"),
        quarantine=[Quarantined(file, "missing", category) for file in files],
        candidates=[Candidate(id=1, files=files, folders=(1,) * len(files), nearest=0)],
    )
    wrote = replace(wrote, assignments=replace(wrote.assignments, distance=np.array(distance)))
    wrote.save({})
    assert_same(wrote, load(wrote.folder))
    assert_no_formula(wrote.folder)


def test_cells_are_marked_only_where_they_must_be() -> None:
    for first in cells.FORMULA:
        assert cells.safe_cell(f"{first}1") == f"'{first}1"
    assert {*SPREADSHEET, "\uff1d", "\n", "'"} <= {*cells.FORMULA}
    values: list[Any] = ["a=1", " =", None, -1, np.int64(-1), -0.5, np.float64(1 / 3), np.nan, np.inf, np.str_("=")]
    found = [cells.safe_cell(value) for value in values]
    assert found == ["a=1", " =", "", -1, -1, -0.5, 0.333333, "", "", "'="]
    assert [type(value) for value in found[3:7]] == [int, int, float, float]


def test_a_run_of_one_category_and_one_with_an_empty_category_come_back(tmp_path: Path) -> None:
    wrote = a_run(tmp_path, ["a", "b"], of_categories=["all"])
    wrote.save({})
    assert b'"truth"' not in (tmp_path / run.ASSIGNMENTS).read_bytes(), "there is none"
    assert [row[7:9] for row in raw_cells(tmp_path / run.ASSIGNMENTS)] == [[-1.0, ""], [-1.0, ""]]
    again = load(tmp_path)
    assert_same(wrote, again)
    assert np.isnan(again.assignments.next_distance).all()
    wrote = a_run(tmp_path, ["a", "b"], category=[0, 0], of_categories=["full", "empty"])
    wrote.save({})
    again = load(tmp_path)
    assert_same(wrote, again)
    assert (again.categories[1].cohesion, again.categories[1].typical) == (None, ())


def test_a_name_longer_than_the_csv_module_s_limit_comes_back(tmp_path: Path) -> None:
    """Otherwise a run could be saved and never loaded: twelve long paths make one cell."""
    limit = csv.field_size_limit()
    wrote = a_run(tmp_path, ["ж" * 2000 + str(row) for row in range(24)], labels=["y" * 140_000] * 24)
    wrote.save({})
    assert_same(wrote, load(tmp_path))
    assert csv.field_size_limit() == limit


def test_json_files_hold_what_the_run_knows(tmp_path: Path) -> None:
    wrote = a_run(tmp_path, ["a"], metrics={"nmi": None})
    wrote.save({})
    about = json.loads((tmp_path / "run.json").read_text())
    assert about == {"format": "sortal run 1", **wrote.about} == peek(tmp_path)
    assert json.loads((tmp_path / "k.json").read_text()) == wrote.k
    assert json.loads((tmp_path / "metrics.json").read_text()) == {"nmi": None}
    assert json.loads((tmp_path / "confidence.json").read_text())["temperature"] == 1 / 3


# Invariants


def test_sizes_must_sum_to_the_images_and_ids_be_rows() -> None:
    sound = a_run(Path("x"), ["a", "b", "c"], head=True)
    first, second = sound.categories
    assert sound.head is not None
    for broken in (
        {"categories": (replace(first, size=first.size + 1), second)},
        {"categories": (second, first)},
        {"categories": (first,)},
        {"features": sound.features[:2]},
        {"centres": sound.centres[:1]},
        {"assignments": sound.assignments.select(np.array([True, True, False]))},
        {"head": sound.head[:1]},
        {"head": sound.head[:, :-1]},
        {"head": sound.head.ravel()},
        {"head": np.zeros((), np.float32)},
    ):
        with pytest.raises(ValueError, match="must"):
            replace(sound, **broken)


# Writing all of it or none


class Killed(BaseException):
    """Nothing is done after it."""


def watched(do: Callable[[], object], before_each: Callable[[int], None] = lambda _: None) -> int:
    """Call a function before each call that changes files, with its number, and return how many there were."""
    count, busy, real_open = 0, False, io.open

    def told() -> None:
        nonlocal busy, count
        if not busy:
            busy = True
            try:
                before_each(count)
            finally:
                busy = False
            count += 1

    def wrapped(real: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            told()
            return real(*args, **options)

        return call

    def opened(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        if "w" in mode or "a" in mode:
            told()
        return real_open(file, mode, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("replace", "link", "unlink", "rmdir", "mkdir", "fsync"):
            patch.setattr(os, name, wrapped(getattr(os, name)))
        patch.setattr(io, "open", opened)
        do()
    return count


def killed(do: Callable[[], object], number: int) -> None:
    """Do something up to a change of files, or all of it where there are fewer changes."""

    def kill(at: int) -> None:
        if at >= number:
            raise Killed

    with suppress(Killed):
        watched(do, kill)


Files = dict[str, bytes | Path]
Two = tuple[Run, Run, Files, Files]


@pytest.fixture
def two_runs(tmp_path: Path) -> Two:
    """An old run and a new one for the same folder, which differ in all files; the new one has fewer of them."""
    models = tmp_path / "models"
    models.mkdir()
    for name in ("old", "new"):
        (models / name).write_bytes(name.encode())
    place = tmp_path / "run"
    candidate = Candidate(id=1, files=("a",), folders=(1,), nearest=0)
    old = a_run(place, list("abc"), metrics={"nmi": 0.5}, candidates=[candidate], head=True)
    new = a_run(
        place,
        list("uvwxyz"),
        seed=7,
        labels=list("pqpqpq"),
        of_categories=list("pqr"),
        quarantine=[Quarantined("bad", "truncated", "")],
        about={"notes": []},
    )
    new = replace(new, confidence={"temperature": 2.0})
    return (
        old,
        new,
        {"report.html": b"old", "model.safetensors": models / "old", "log.jsonl": b"{}", run.INITIAL: b"before"},
        {"report.html": b"new", "model.safetensors": models / "new"},
    )


def restored(folder: Path, content: dict[str, bytes]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for name, data in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def test_a_kill_at_any_moment_leaves_the_old_run_or_the_new_one(two_runs: Two) -> None:
    old, new, old_files, new_files = two_runs
    place = old.folder
    old.save(old_files)
    was = snapshot(place)
    changes = watched(lambda: new.save(new_files))
    becomes = snapshot(place)
    assert {name for name in was if name not in becomes} == run.OPTIONAL
    assert all(becomes[name] != was[name] for name in becomes)
    draw = np.random.default_rng(0)

    def found_whole(at: object) -> bool:
        """Whether it is the new run that is there; a part of one must not be."""
        found, after = load(place), snapshot(place)
        assert after in (was, becomes), at
        assert_same(new if after == becomes else old, found)
        assert not whole.is_pending(place)
        return after == becomes

    outcomes = []
    for first in range(changes):
        restored(place, was)
        killed(lambda: new.save(new_files), first)
        for _ in range(2):  # a kill of ending what was broken off
            killed(lambda: load(place), int(draw.integers(changes)))
        outcomes.append(found_whole(first))
        if first % 2:
            restored(place, was)
            killed(lambda: new.save(new_files), first)
            second = int(draw.integers(changes))  # what the first left may be whole: its word is not the second's
            killed(lambda: old.save(old_files), second)
            found_whole((first, second))
            killed(lambda: new.save(new_files), first)
            old.save(old_files)
            assert snapshot(place) == was, "nothing of what was broken off gets into the next save"
    assert outcomes == sorted(outcomes)  # the old one up to a moment, then the new one
    assert set(outcomes) == {False, True}


def test_a_first_run_is_there_whole_or_not_at_all(two_runs: Two) -> None:
    first, _, files, _ = two_runs
    place = first.folder
    changes = watched(lambda: first.save(files))
    all_of_it = snapshot(place)
    there = []
    for number in range(changes):
        shutil.rmtree(place)
        killed(lambda: first.save(files), number)
        there.append(peek(place) is not None)
        if not there[-1]:
            with pytest.raises(InputError, match="give the same command again"):
                load(place)
            first.save(files)  # the way out
        assert snapshot(place) == all_of_it
    assert there == sorted(there)
    assert set(there) == {False, True}


def test_a_reader_in_the_midst_of_writing_breaks_nothing(two_runs: Two) -> None:
    """Whoever writes holds the folder's lock; a process that reads takes nothing away from under its hands."""
    old, new, old_files, new_files = two_runs
    place = old.folder
    new.save(new_files)
    becomes = snapshot(place)
    shutil.rmtree(place)
    old.save(old_files)
    reads = 0

    def read(_: int) -> None:
        nonlocal reads
        if whole.is_pending(place):
            peek(place)
            assert whole.is_pending(place), "whoever has the lock ends it"
        else:
            assert load(place).assignments.files in (old.assignments.files, new.assignments.files)
            reads += 1

    with alone(place):
        watched(lambda: new.save(new_files), read)
    assert reads > len(becomes)
    assert snapshot(place) == becomes


@pytest.mark.parametrize("name", [run.ASSIGNMENTS, whole.COMMIT])
def test_a_full_disk_is_reported_and_the_old_run_stays(
    two_runs: Two, monkeypatch: pytest.MonkeyPatch, name: str, tmp_path: Path
) -> None:
    old, new, old_files, new_files = two_runs
    old.save(old_files)
    was = snapshot(old.folder)

    def full(path: Path, content: bytes) -> None:
        if path.name == name:
            raise OSError(28, "No space left on device")
        write_atomically(path, content)

    monkeypatch.setattr(whole, "write_atomically", full)
    with pytest.raises(InputError) as caught:
        new.save(new_files)
    assert str(caught.value) == (
        f"The folder {str(old.folder)!r} cannot be written: No space left on device. Choose another, or make room."
    )
    assert snapshot(old.folder) == was
    assert_same(old, load(old.folder))
    (tmp_path / "file").write_bytes(b"mine")
    with pytest.raises(InputError, match=r"cannot be written: (Not a directory|File exists)"):
        a_run(tmp_path / "file", ["a"]).save({})
    assert (tmp_path / "file").read_bytes() == b"mine"


def test_files_that_cannot_be_linked_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    model, kept = tmp_path / "model", tmp_path / "run/model.safetensors"
    model.write_bytes(b"weights")
    for linked in (True, True, False, False):  # the second time each, the name is there already
        if not linked:
            monkeypatch.setattr(os, "link", refuse)
        a_run(tmp_path / "run", ["a"]).save({"model.safetensors": model})
        assert kept.samefile(model) == linked
        assert kept.read_bytes() == model.read_bytes() == b"weights"


def test_files_of_an_earlier_run_vanish_unless_they_are_kept(tmp_path: Path) -> None:
    candidate = Candidate(id=1, files=("a",), folders=(1,), nearest=0)
    full = a_run(tmp_path, ["a", "b"], metrics={}, candidates=[candidate], head=True)
    bare = a_run(tmp_path, ["a", "b"])
    (tmp_path / "notes.txt").write_text("mine")
    for keep in (set(), {run.LOG, run.INITIAL}, run.OPTIONAL):
        full.save({run.LOG: b"{}", run.INITIAL: b"before", run.REPORT: b"<p>"})
        before = {path.name for path in tmp_path.iterdir()}
        assert before >= {*run.OPTIONAL, "notes.txt", "report.html"}
        bare.save({}, keep=keep)
        assert {path.name for path in tmp_path.iterdir()} == before - run.OPTIONAL | keep
    assert (tmp_path / run.INITIAL).read_bytes() == b"before"
    full.save({run.LOG: b"{}"}, keep={run.METRICS})
    assert json.loads((tmp_path / run.METRICS).read_text()) == {}


def test_a_loaded_run_can_be_saved_where_it_came_from(tmp_path: Path) -> None:
    """Its features are mapped from the file that is replaced."""
    wrote = a_run(tmp_path, list("abcd"))
    wrote.save({})
    again = load(tmp_path)
    replace(again, features=np.asarray(again.features)[::-1] * 2).save({})
    np.testing.assert_array_equal(load(tmp_path).features, wrote.features[::-1] * 2)
    np.testing.assert_array_equal(again.features, wrote.features)


# What is no run, or a damaged one


def test_what_is_no_run_is_refused_and_left_alone(tmp_path: Path) -> None:
    for content in (b"", b"{", b"[]", b"null", b"{}", b'{"format": "sortal run 2"}', b"\xff"):
        (tmp_path / "run.json").write_bytes(content)
        assert peek(tmp_path) is None
        with pytest.raises(InputError) as caught:
            load(tmp_path)
        assert str(caught.value) == (
            f"A run must be the folder that sortal discover wrote, got {str(tmp_path)!r}, which holds none. "
            "If the run was interrupted, give the same command again."
        )
        assert (tmp_path / "run.json").read_bytes() == content
    for name in ("run.json", "gone", "\0"):
        assert peek(tmp_path / name) is None
        with pytest.raises(InputError, match=r"got .*, which is no folder\."):
            load(tmp_path / name)
    (tmp_path / "folder/run.json").mkdir(parents=True)
    assert peek(tmp_path / "folder") is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "run.json"]


WHOLE = (run.K, run.CONFIDENCE, run.ASSIGNMENTS, run.CATEGORIES, run.QUARANTINE, run.FEATURES, run.CENTRES)
OPTIONAL = (run.METRICS, run.CANDIDATES, run.HEAD)


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    """A run with all its files, to be damaged."""
    a_run(
        tmp_path / "run",
        ["a", "b", "c"],
        metrics={"nmi": 0.5},
        quarantine=[Quarantined("bad", "truncated", "torn")],
        candidates=[Candidate(id=1, files=("a",), folders=(1,), nearest=0)],
        head=True,
    ).save({})
    return tmp_path / "run"


def said_of_damage(folder: Path, name: str, content: bytes | None) -> str:
    """What is said of a run with a file replaced or, for None, removed; the file is put back."""
    before = (folder / name).read_bytes()
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        load(folder)
    text = str(caught.value)
    assert text.startswith(f"The run in {str(folder)!r} is damaged: ")
    assert text.endswith(". Give the command that made it again, with --force.")
    (folder / name).write_bytes(before)
    return text


@pytest.mark.parametrize("name", [*WHOLE, *OPTIONAL])
def test_a_file_that_is_missing_or_cut_off_or_something_else_is_damage(sound: Path, name: str) -> None:
    if name in WHOLE:
        assert name in said_of_damage(sound, name, None)
    for content in (b"", b"\xff\xfe\x00", b'"', b"\x00" * 500):
        said_of_damage(sound, name, content)
    wrote, all_of_it = load(sound), (sound / name).read_bytes()
    for size in range(0, len(all_of_it) - 1, max(1, len(all_of_it) // 20)):
        (sound / name).write_bytes(all_of_it[:size])
        found = None
        with suppress(InputError):
            found = load(sound)
        if found is not None:  # cut off behind a line, or before a cell that is there for people
            assert name in (run.QUARANTINE, run.CANDIDATES)
            assert [bad.file for bad in found.quarantine] in (["bad"], [])
            assert found.candidates in (wrote.candidates, ())


def test_cells_that_make_no_sense_are_damage(sound: Path) -> None:
    for name, old, new in (
        (run.ASSIGNMENTS, b'"file_name"', b'"file"'),
        (run.ASSIGNMENTS, b'"category"', b'"categories"'),
        (run.ASSIGNMENTS, b'"a","",0,', b'"a","",0.5,'),
        (run.ASSIGNMENTS, b'"a","",0,', b'"a","",99999999999999999999,'),
        (run.ASSIGNMENTS, b'"a"', b'"a'),
        (run.ASSIGNMENTS, b'"a","",', b'"a"\n"",'),
        (run.CATEGORIES, b'"[""', b'"["'),
        (run.CATEGORIES, b'0,"one"', b'1,"one"'),
        (run.CATEGORIES, b'"known",2,', b'"known",3,'),
        (run.CANDIDATES, b'1,"a"', b'one,"a"'),
        (run.CANDIDATES, b'"candidate"', b'"number"'),
    ):
        content = (sound / name).read_bytes()
        assert old in content
        said_of_damage(sound, name, content.replace(old, new, 1))


def test_pickles_are_not_loaded(sound: Path) -> None:
    pickled = as_npy(np.array([print], dtype=object), allow_pickle=True)
    kinds = ((run.FEATURES, "Python objects in dtype"), (run.CENTRES, "allow_pickle=False"))
    for name, why in (*kinds, (run.HEAD, "allow_pickle=False")):
        said = said_of_damage(sound, name, pickled)
        assert why in said
        assert ".." not in said.removeprefix(f"The run in {str(sound)!r}")


def test_a_head_of_another_shape_is_damage(sound: Path) -> None:
    """Two categories by three features: weights and biases of (2, 4)."""
    for shape in ((3, 4), (2, 3), (8,), ()):
        said = said_of_damage(sound, run.HEAD, as_npy(np.zeros(shape, dtype=np.float32)))
        assert "a classifier must tell all categories by features" in said


def as_npy(array: Any, *, allow_pickle: bool = False) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=allow_pickle)
    return buffer.getvalue()


def test_a_head_that_is_gone_is_damage(tmp_path: Path) -> None:
    """Without it images would go to the nearest centre, and nobody would know."""
    wrote = a_run(tmp_path, ["a", "b"], head=True, about={"recipe": {"clustering": "head"}})
    wrote.save({})
    assert wrote.head is not None
    np.testing.assert_array_equal(np.load(tmp_path / "head.npy"), wrote.head)
    (tmp_path / run.HEAD).unlink()
    with pytest.raises(InputError, match=r"is damaged: .*head\.npy"):
        load(tmp_path)
    a_run(tmp_path, ["a", "b"]).save({})
    assert load(tmp_path).head is None


# To look at


def test_a_data_frame_is_what_pandas_reads_from_the_table(tmp_path: Path) -> None:
    plain = [name for name in HOSTILE if not name.startswith(cells.FORMULA) and name.isprintable()]
    plain += ["two\nlines", "a\r\nb", "\u2028", "\ufeffmark"]
    assert len(plain) > 8
    wrote = a_run(
        tmp_path,
        plain,
        labels=[name if row % 2 else None for row, name in enumerate(plain)],
        truth=plain,
        of_categories=["eins", "zwei"],
    )
    wrote.save({})
    frame = wrote.to_pandas()
    read = pandas.read_csv(
        tmp_path / run.ASSIGNMENTS, keep_default_na=False, na_values={"label": [""], "next_distance": [""]}
    )
    assert list(frame.columns) == list(read.columns)
    for name in frame.columns:
        assert frame[name].isna().tolist() == read[name].isna().tolist(), name
        assert frame[name].dropna().tolist() == read[name].dropna().tolist(), name
    assert [frame[name].dtype for name in ("category", "confidence", "folder")] == [np.int64, np.float64, np.int64]
    assert load(tmp_path).to_pandas().equals(frame)


def test_hostile_names_are_kept_in_a_data_frame_and_escaped_in_html() -> None:
    frame = hostile_run(Path("x")).to_pandas()
    assert frame["file_name"].tolist() == list(HOSTILE)
    assert frame["category_name"].tolist() == list(HOSTILE)
    assert frame["label"].tolist() == [name if row % 2 else None for row, name in enumerate(HOSTILE)]
    assert "truth" not in a_run(Path("x"), ["a"]).to_pandas()
    html = hostile_run(Path("<b>&"))._repr_html_()
    html.encode("utf-8")
    assert "<script>" not in html
    assert "&lt;script&gt;window.hit = 1&lt;/script&gt;" in html
    assert "<b>" not in html
    assert "\\udcff" in html
    assert html.count("<tr>") == len(HOSTILE)
    assert html.startswith(f"<p><i>Run: {len(HOSTILE)} images (")
    files = [str(row) for row in range(1300)]
    shown = repr(a_run(Path("photos-run"), files, labels=["x"] + [None] * 1299, of_categories="abc"))
    assert shown == (
        "<Run: 1,300 images (1 labelled, 433 known, 433 new, 433 unsure) in 3 categories, 1 of them new; "
        f"{str(Path('photos-run/report.html'))!r}>"
    )


def test_the_result_in_short_is_json() -> None:
    found = hostile_run(Path("x"))
    short = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert short["images"] == len(HOSTILE)
    assert short["status"] == found.counts()
    assert sum(short["status"].values()) == len(HOSTILE)
    assert [each["name"] for each in short["categories"]] == list(HOSTILE)
    folders = [1] * len(HOSTILE)
    assert short["candidates"][0] == {"id": 1, "files": list(HOSTILE), "folders": folders, "nearest": 2}
    assert short["quarantine"] == [asdict(bad) for bad in found.quarantine]
    assert (short["report"], short["notes"]) == (str(Path("x/report.html")), list(HOSTILE))
    assert found.names == HOSTILE
    assert (found.report, found.cache) == (Path("x/report.html"), Path("x/cache"))


# Images


def test_images_open_in_their_folder_but_for_those_that_lie_elsewhere() -> None:
    photos = {"folder": "/photos", "images": 2, "paths": {"sub/b.jpg": "/photos/SUB/b.jpg"}}
    more = {"folder": "/more", "images": 2, "paths": {"c.jpg": "/elsewhere/d.jpg"}}
    files = ["a.jpg", "sub/b.jpg", "a.jpg", "c.jpg"]
    found = a_run(Path("x"), files, folders=[0, 0, 1, 1], about={"images": [photos, more]})
    first, third = os.path.join("/photos", "a.jpg"), os.path.join("/more", "a.jpg")
    assert found.paths() == [first, "/photos/SUB/b.jpg", third, "/elsewhere/d.jpg"]
    found = a_run(Path("x"), ["0"], about={"images": [{"folder": None, "images": 1, "paths": {}}]})
    for ask in (found.paths, found.images):
        with pytest.raises(InputError, match="were given as an array: there are no files of them"):
            ask()


def test_images_come_back_with_their_labels_and_truth(tmp_path: Path) -> None:
    files, labels, truth = ["a", "b", "c", "d"], ["2", None, "10", None], ["2", "10", "10", "fox"]
    given = image_set(files, paths=[f"/photos/{file}" for file in files], labels=labels, truth=truth)
    a_run(tmp_path, files, labels=labels, truth=truth).save({})
    again = load(tmp_path).images()
    assert (again.files, again.paths) == (given.files, given.paths)
    assert (again.classes, again.new_classes) == (("2", "10"), ("fox",)) == (given.classes, given.new_classes)
    np.testing.assert_array_equal(again.labels, given.labels)
    np.testing.assert_array_equal(again.truth, given.truth)
    assert not again.validation.any()


# Rows


def test_selected_and_joined_rows_keep_their_order_and_all_columns() -> None:
    a = hostile_run(Path("x")).assignments
    mask = np.arange(len(a)) % 3 == 1
    some, both = a.select(mask), a.select(mask).joined(a.select(~mask))
    rows, others = np.flatnonzero(mask).tolist(), np.flatnonzero(~mask).tolist()
    assert (len(some), len(both)) == (len(rows), len(a))
    for name, column in vars(a).items():
        picked = getattr(some, name)
        assert type(picked) is type(column)
        assert list(picked) == [column[row] for row in rows]
        assert list(getattr(both, name)) == [column[row] for row in [*rows, *others]], name
    none = a.select(np.zeros(len(a), dtype=bool))
    assert (len(none), none.files, none.category.shape) == (0, (), (0,))


def test_joining_keeps_words_whole() -> None:
    """Arrays of text are as wide as their longest word."""
    a = a_run(Path("x"), ["a", "b"]).assignments
    short = replace(a, status=np.array(["new", "new"]))
    long = replace(a, status=np.array(["labelled", "unsure"]))
    assert short.joined(long).status.tolist() == ["new", "new", "labelled", "unsure"]
