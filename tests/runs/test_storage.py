"""Run folders: runs are saved and loaded unchanged, no cell is a formula, and no reader sees a half-written run."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.decisions import apply
from support.sample_run import doubted, sample_run
from support.saved_runs import CANDIDATE, REJECTED, SCORES, a_run, assert_same, hostile_run
from support.thorough import thorough_but

from sortal.config import Ranks, Recipe, Training
from sortal.errors import InputError
from sortal.images.columns import Columns
from sortal.images.decoding import Quarantined
from sortal.reviews.actions import Rename
from sortal.reviews.loading import load_run, save_run
from sortal.runs import arrays, storage
from sortal.runs.run import INITIAL, LOG, REPORT, Run
from sortal.runs.storage import check_features, peek
from sortal.system import cache
from sortal.system import csv_tables as tables
from sortal.system import files as system_files
from sortal.system.files import lock_folder, write_atomically

TABLES = (storage.ASSIGNMENTS, storage.CATEGORIES, storage.QUARANTINE, storage.CANDIDATES)
FORMULA = (*"=+-@\uff1d\uff0b\uff0d\uff20", "\t", "\r", "\n")  # characters that start one, for some program


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip syncing, which does not affect what a killed process leaves."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def raw_cells(path: Path) -> list[list[str | float]]:
    """Return the cells below the header: text if quoted, otherwise a number, or fail."""
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    _, *rows = csv.reader(io.StringIO(text, newline=""), quoting=csv.QUOTE_NONNUMERIC, strict=True)
    return [list(row) for row in rows]


def test_a_run_with_hostile_names_is_loaded_unchanged_and_no_cell_is_a_formula(tmp_path: Path) -> None:
    wrote = hostile_run(tmp_path / "a run")
    save_run(wrote, {"report.html": b"<p>"})
    assert_same(wrote, load_run(str(tmp_path / "a run")))
    assert (tmp_path / "a run/report.html").read_bytes() == b"<p>"
    for name in TABLES:
        text = [cell for row in raw_cells(wrote.folder / name) for cell in row if isinstance(cell, str)]
        assert text
        assert not [cell for cell in text if cell.startswith(FORMULA)], name
    header = (wrote.folder / storage.ASSIGNMENTS).read_text(errors="surrogateescape").partition("\n")[0]
    assert header == (
        '"file_name","label","truth","category","category_id","status","confidence","distance",'
        '"next_category","next_category_id","next_distance","apart","reviewed","group",'
        '"doubt","suggested","suggested_id","folder","content"'
    )
    for row in raw_cells(wrote.folder / storage.ASSIGNMENTS):
        kinds = [str, str, str, str, float, str, float, float, str, float, float, float, str]
        kinds += [float, float, str, float, float, str]
        assert [type(cell) for cell in row] == kinds


def test_images_of_a_run_from_before_there_were_groups_are_in_groups_of_their_own(tmp_path: Path) -> None:
    wrote = a_run(tmp_path, ["a", "b", "c"])
    grouped = replace(wrote, assignments=replace(wrote.assignments, group=np.array([0, 1, 0])))
    save_run(grouped)
    assert load_run(tmp_path).assignments.group.tolist() == [0, 1, 0]
    path = tmp_path / storage.ASSIGNMENTS
    table = list(csv.DictReader(path.read_text().splitlines()))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [each for each in table[0] if each != "group"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(table)
    assert load_run(tmp_path).assignments.group.tolist() == [0, 1, 2]


def test_a_single_category_an_empty_category_and_very_long_names_are_loaded_unchanged(tmp_path: Path) -> None:
    wrote = a_run(tmp_path, ["a", "b"], of_categories=["all"], metrics=replace(SCORES, nmi=None))
    save_run(wrote)
    assert b'"truth"' not in (tmp_path / storage.ASSIGNMENTS).read_bytes(), "no truth is known"
    assert [row[7:10] for row in raw_cells(tmp_path / storage.ASSIGNMENTS)] == [["", -1.0, ""], ["", -1.0, ""]]
    again = load_run(tmp_path)
    assert_same(wrote, again)
    assert np.isnan(again.assignments.next_distance).all()
    assert peek(tmp_path) == wrote.facts
    assert json.loads((tmp_path / "run.json").read_text())["format"] == "sortal run 2"

    wrote = a_run(tmp_path, ["a", "b"], category=[0, 0], of_categories=["full", "empty"])
    save_run(wrote)
    again = load_run(tmp_path)
    assert_same(wrote, again)
    assert (again.categories[1].cohesion, again.categories[1].typical) == (None, ())

    limit = csv.field_size_limit()  # of the csv module; a cell may hold twelve long paths
    wrote = a_run(tmp_path, ["ж" * 2000 + str(row) for row in range(24)], labels=["y" * 140_000] * 24)
    save_run(wrote)
    assert_same(wrote, load_run(tmp_path))
    assert csv.field_size_limit() == limit


def test_doubt_in_labels_is_loaded_and_a_run_from_before_has_none(tmp_path: Path) -> None:
    wrote = doubted(replace(sample_run(), folder=tmp_path), [18, 0], suggested=2)
    save_run(wrote)
    a = load_run(tmp_path).assignments
    np.testing.assert_allclose(a.doubt[[18, 0]], [0.9, 0.89], atol=1e-6)
    assert a.labels_to_check.tolist() == [18, 0]
    assert a.suggested_id[[0, 1]].tolist() == [2, -1]
    rows = tables.read(tmp_path / storage.ASSIGNMENTS)
    older = {name: cells for name, cells in rows.items() if name not in ("doubt", "suggested", "suggested_id")}
    (tmp_path / storage.ASSIGNMENTS).write_bytes(tables.table([*older.items()]))
    a = load_run(tmp_path).assignments
    assert not a.doubt.any()
    assert (a.suggested_id == -1).all()
    for column, cell in (("doubt", "1.5"), ("doubt", "nan"), ("suggested_id", "99")):
        (tmp_path / storage.ASSIGNMENTS).write_bytes(tables.table([*(rows | {column: [cell] * 72}).items()]))
        with pytest.raises(InputError, match="is damaged"):
            load_run(tmp_path)


def test_a_run_of_an_earlier_version_has_no_images_that_fit_nowhere(tmp_path: Path) -> None:
    wrote = a_run(tmp_path, ["a", "b", "c"])
    save_run(wrote)
    for name, later in ((storage.ASSIGNMENTS, "apart"), (storage.CATEGORIES, "other")):
        table = tables.read(tmp_path / name)
        del table[later]
        (tmp_path / name).write_bytes(tables.table([*table.items()]))
    path = tmp_path / storage.CONFIDENCE
    given = json.loads(path.read_text())
    for name in ("other_above", "usual_apart", "deviation_apart", "later_from"):
        del given[name]
    path.write_text(json.dumps(given))
    assert_same(wrote, load_run(tmp_path))
    found = load_run(tmp_path).confidence
    assert not found.fits_nowhere(np.array([1e9])).any()
    assert found.belonging(np.array([9.0])).tolist() == [1.0]


class Killed(BaseException):
    """Stand in for a kill, which no code handles."""


def test_a_killed_save_leaves_the_old_or_the_new_run_and_a_reader_waits_for_a_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing stops just before or just after the commit mark; test_files.py covers a kill at any other moment."""
    old = a_run(tmp_path, list("abc"), metrics=SCORES, candidates=(CANDIDATE,), head=True)
    new = a_run(tmp_path, list("uvwxyz"), seed=7, of_categories=list("pqr"), facts={"notes": ()})

    def kill_save(*, committed: bool) -> None:
        def write(path: Path, content: bytes) -> None:
            if committed or path.name != system_files.COMMIT_FILE:
                write_atomically(path, content)
            if path.name == system_files.COMMIT_FILE:
                raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(system_files, "write_atomically", write)
            with pytest.raises(Killed):
                save_run(new)
        assert system_files.is_pending(tmp_path) == committed

    kill_save(committed=False)
    assert peek(tmp_path) is None
    with pytest.raises(InputError, match="If sortal discover was interrupted, repeat it to resume"):
        load_run(tmp_path)
    save_run(old)
    kill_save(committed=False)
    assert_same(old, load_run(tmp_path))
    kill_save(committed=True)
    assert_same(new, load_run(tmp_path))
    assert not (tmp_path / storage.METRICS).exists()

    save_run(old)
    kill_save(committed=True)
    with lock_folder(tmp_path):
        assert peek(tmp_path) == old.facts
        assert system_files.is_pending(tmp_path), "it is left to the holder of the lock"
        with monkeypatch.context() as patch:
            patch.setattr(storage, "WAIT", 0.0)
            with pytest.raises(InputError, match="has been written to by another process for 0 s"):
                load_run(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(storage, "sleep", lambda _: system_files.finish(tmp_path))
            assert_same(new, load_run(tmp_path))

    read = tables.read

    def meanwhile(path: Path) -> dict[str, list[str]]:
        monkeypatch.setattr(tables, "read", read)
        save_run(old)
        return read(path)

    monkeypatch.setattr(tables, "read", meanwhile)
    assert_same(old, load_run(tmp_path))


def test_a_run_replaces_an_earlier_run_and_its_optional_files(tmp_path: Path) -> None:
    full = a_run(tmp_path, ["a", "b"], metrics=SCORES, candidates=(CANDIDATE,), head=True, rejected=REJECTED)
    own = Columns.infer(["n", "=1+1"], [["1,000"] * len(full.assignments), ["caf\udce9\x00"] * len(full.assignments)])
    full = replace(full, assignments=replace(full.assignments, columns=own))
    bare = a_run(tmp_path, ["a", "b"])
    (tmp_path / "notes.txt").write_text("mine")
    save_run(full, {LOG: b"{}", INITIAL: b"before", REPORT: b"<p>"})
    before = {path.name for path in tmp_path.iterdir()}
    assert before >= {*storage.OPTIONAL, LOG, INITIAL, "notes.txt", "report.html"}
    assert_same(full, load_run(tmp_path))
    save_run(bare)
    assert {path.name for path in tmp_path.iterdir()} == before - storage.OPTIONAL
    save_run(bare, {LOG: None, INITIAL: None})
    assert {path.name for path in tmp_path.iterdir()} == before - storage.OPTIONAL - {LOG, INITIAL}

    wrote = a_run(tmp_path, list("abcd"))  # once loaded, its features are mapped from the file that is replaced
    save_run(wrote)
    again = load_run(tmp_path)
    save_run(with_features(again, np.asarray(again.features)[::-1] * 2))
    np.testing.assert_array_equal(load_run(tmp_path).features, wrote.features[::-1] * 2)
    np.testing.assert_array_equal(again.features, wrote.features)


def with_features(found: Run, x: NDArray[np.float32]) -> Run:
    hashes = replace(found.facts.hashes, features=cache.hashed(x))
    return replace(found, features=x, facts=replace(found.facts, hashes=hashes))


def test_only_changed_files_are_written_and_features_are_appended(tmp_path: Path) -> None:
    def stamps() -> dict[str, tuple[int, int]]:
        return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in tmp_path.iterdir()}

    model = b"a model"
    wrote = a_run(tmp_path, list("abcd"), head=True, metrics=SCORES)
    save_run(wrote, {"model.safetensors": model, REPORT: b"<p>"})
    before = stamps()
    save_run(load_run(tmp_path), {"model.safetensors": model})
    assert {name for name, stamp in stamps().items() if stamp != before[name]} == {"run.json"}
    save_run(apply(load_run(tmp_path), [Rename(category=1, name="fern")]), {REPORT: b"<p>"})
    changed = {name for name, stamp in stamps().items() if stamp != before[name]}
    assert changed <= {"run.json", "assignments.csv", "categories.csv", "metrics.json"}
    assert load_run(tmp_path).names == {0: "one", 1: "fern"}

    # Added rows go to further files, until existing features change.
    for n in (5, 7):
        longer = with_features(a_run(tmp_path, "abcdefg"[:n]), np.resize(wrote.features, (n, 3)))
        before = stamps()
        save_run(longer)
        assert {each for each in before.items() if each[0].startswith("features")} <= {*stamps().items()}
        np.testing.assert_array_equal(load_run(tmp_path).features, longer.features)
    assert len(np.load(tmp_path / "features-3.npy")) == 2
    other = with_features(longer, longer.features[::-1].copy())
    save_run(other)
    np.testing.assert_array_equal(load_run(tmp_path).features, other.features)
    assert [name for name in stamps() if name.startswith("features")] == ["features.npy"]


def test_the_order_of_the_table_of_categories_does_not_matter(tmp_path: Path) -> None:
    """Centres are found by a column, and known categories by their kind."""
    wrote = a_run(tmp_path, list("abcdef"), of_categories=list("pqr"), head=True)
    save_run(wrote)
    header, *lines = (tmp_path / storage.CATEGORIES).read_bytes().splitlines(keepends=True)
    (tmp_path / storage.CATEGORIES).write_bytes(b"".join([header, *lines[::-1]]))
    assert_same(wrote, load_run(tmp_path))
    (tmp_path / storage.CATEGORIES).write_bytes(b"".join([header, lines[0], lines[0], lines[1]]))
    with pytest.raises(InputError, match=r"the column centre of categories\.csv must number the centres"):
        load_run(tmp_path)


def test_a_folder_without_a_run_is_refused_and_left_alone(tmp_path: Path) -> None:
    foreign, damaged = "has a run.json of another format", "has a damaged run.json: "
    contents = {b"[]": foreign, b"null": foreign, b"{}": foreign, b'{"format": "sortal run 3"}': foreign}
    for content, why in {**contents, b"": damaged, b"{": damaged, b"\xff": damaged, b"[" * 10**5: damaged}.items():
        (tmp_path / "run.json").write_bytes(content)
        assert peek(tmp_path) is None
        with pytest.raises(InputError) as caught:
            load_run(tmp_path)
        text = str(caught.value)
        assert text.startswith(f"A run must be a folder that sortal discover wrote, got {str(tmp_path)!r}, which {why}")
        assert text.endswith(". If sortal discover was interrupted, repeat it to resume.")
        assert (tmp_path / "run.json").read_bytes() == content
    for name in ("run.json", "gone", "\0"):
        assert peek(tmp_path / name) is None
        with pytest.raises(InputError, match=r"got .*, which is not a folder\."):
            load_run(tmp_path / name)
    (tmp_path / "folder/run.json").mkdir(parents=True)
    assert peek(tmp_path / "folder") is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "run.json"]


REQUIRED = (*TABLES[:3], storage.K_CHOICE, storage.CONFIDENCE, arrays.FEATURES, storage.CENTRES)
OPTIONAL = (storage.METRICS, storage.CANDIDATES, storage.HEAD, storage.REJECTED)


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    """Save a run with all its files, to be damaged."""
    torn = Quarantined("bad", "truncated", "torn")
    extras: dict[str, Any] = {"metrics": SCORES, "quarantine": (torn,), "candidates": (CANDIDATE,), "head": True}
    save_run(a_run(tmp_path / "run", ["a", "b", "c"], **extras, rejected=REJECTED))
    return tmp_path / "run"


def damage_report(folder: Path, name: str, content: bytes | None) -> str:
    """Replace a file of a run or, for None, remove it; return the error of loading it, and restore the file."""
    before = (folder / name).read_bytes()
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        load_run(folder)
    text = str(caught.value)
    assert text.startswith(f"The run in {str(folder)!r} is damaged: ")
    assert text.endswith(". Repeat the command that made it (force=True).")
    (folder / name).write_bytes(before)
    return text


@pytest.mark.parametrize("name", thorough_but([*TABLES[:2], storage.METRICS, storage.CENTRES], [*REQUIRED, *OPTIONAL]))
def test_a_missing_truncated_or_foreign_file_is_damage(sound: Path, name: str) -> None:
    if name in REQUIRED:
        assert name in damage_report(sound, name, None)
    for content in (b"", b"\xff\xfe\x00", b'"', b"\x00" * 500):
        damage_report(sound, name, content)
    wrote, content = load_run(sound), (sound / name).read_bytes()
    for size in range(0, len(content) - 1, max(1, len(content) // 20)):
        (sound / name).write_bytes(content[:size])
        found = None
        with suppress(InputError):
            found = load_run(sound)
        if found is not None:  # cut after a line, or before a cell that is only informative
            assert name in (storage.QUARANTINE, storage.CANDIDATES, storage.REJECTED)
            assert [bad.file for bad in found.quarantine] in (["bad"], [])
            assert found.candidates in (wrote.candidates, ())


def test_invalid_cells_and_values_are_damage(sound: Path) -> None:
    for name, old, new in (
        (storage.ASSIGNMENTS, b'"file_name"', b'"file"'),
        (storage.ASSIGNMENTS, b'"a","","one",0,', b'"a","","one",0.5,'),
        (storage.ASSIGNMENTS, b'"a","","one",0,', b'"a","","one",99999999999999999999,'),
        (storage.ASSIGNMENTS, b'"a"', b'"a'),
        (storage.ASSIGNMENTS, b'"a","",', b'"a"\n"",'),
        (storage.CATEGORIES, b'"[""', b'"["'),
        (storage.CATEGORIES, b'"known",2,', b'"known",3,'),
        (storage.CATEGORIES, b'"known"', b'"old"'),
        (storage.RUN, b'"next_id": 2', b'"next_id": "2"'),
        (storage.RUN, b'"next_id": 2', b'"next": 2'),
        (storage.RUN, b'"next_id": 2', b'"next_id": 1'),  # a new category would replace one
        (storage.RUN, b'"next_id": 2', b'"next_id": 9223372036854775807'),
        (storage.K_CHOICE, b'"estimated"', b'"guessed"'),
        (storage.CONFIDENCE, b'"deviation_apart": [', b'"deviation_apart": [1,'),
        (storage.CANDIDATES, b'1,"a"', b'one,"a"'),
    ):
        content = (sound / name).read_bytes()
        assert old in content
        damage_report(sound, name, content.replace(old, new, 1))


def test_pickles_and_a_missing_head_are_damage(sound: Path) -> None:
    """Without its head, a classifier would silently assign images to the nearest centre."""
    buffer = io.BytesIO()
    np.save(buffer, np.array([print], dtype=object), allow_pickle=True)
    kinds = ((arrays.FEATURES, "Python objects in dtype"), (storage.CENTRES, "Python objects in dtype"))
    for name, why in (*kinds, (storage.HEAD, "Python objects in dtype")):
        message = damage_report(sound, name, buffer.getvalue())
        assert why in message
        assert ".." not in message.removeprefix(f"The run in {str(sound)!r}")
    # The type of the losses is inferred from their keys.
    recipe = Recipe(method="rankstats", training=Training(), losses=Ranks(), clustering="head", estimate_on="raw")
    save_run(a_run(sound, ["a", "b"], head=True, facts={"recipe": recipe}))
    assert load_run(sound).facts.recipe == recipe
    assert storage.HEAD in damage_report(sound, storage.HEAD, None)


@pytest.mark.parametrize("name", [storage.CENTRES, storage.HEAD])
def test_centres_that_are_no_numbers_are_damage(sound: Path, name: str) -> None:
    """Every distance from them would be one as well, and images would be sorted at random."""
    rows = np.load(sound / name)
    rows[0, 0] = np.nan
    buffer = io.BytesIO()
    np.save(buffer, rows)
    assert f"{name} must be finite" in damage_report(sound, name, buffer.getvalue())


@pytest.mark.parametrize("kind", ["folder", "nothing", "file"])
def test_a_cache_that_is_not_a_folder_of_the_run_is_refused(tmp_path: Path, kind: str) -> None:
    place, victim = tmp_path / "run", tmp_path / "victim"
    save_run(hostile_run(place))
    if kind == "folder":
        victim.mkdir()
    if kind == "file":
        (place / "cache").write_text("")
    else:
        os.symlink(victim, place / "cache")
    words = "cache' is a file in the place" if kind == "file" else "cache' is a link to '.*victim', but Sortal keeps"
    uses: tuple[Callable[[Path], object], ...] = (
        lambda path: cache.save(path, 1),
        lambda path: cache.load_arrays(path),
        lambda path: write_atomically(path, b"1"),
        lambda path: lock_folder(path).__enter__(),
    )
    for use in uses:
        with pytest.raises(InputError, match=words):
            use(load_run(place).cache / "k" / "1.json")
    with pytest.raises(InputError, match=words), lock_folder(place):
        pytest.fail("it was locked")
    assert not victim.exists() or not [*victim.iterdir()]


def test_changed_features_are_noticed(sound: Path) -> None:
    check_features(load_run(sound))
    path = sound / "features.npy"
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"damaged: features\.npy does not match its digest"):
        check_features(load_run(sound))
