"""Run folders: runs are saved and loaded unchanged, no cell is a formula, and no reader sees a half-written run."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from numpy.typing import NDArray
from support.decisions import apply
from support.sample_run import HOSTILE as NAMES
from support.sample_run import sample_metrics, sample_run

from sortal.config import Ranks, Recipe, Training
from sortal.errors import InputError
from sortal.images.decoding import Quarantined
from sortal.images.image_set import image_set
from sortal.reviews.actions import Rename
from sortal.reviews.loading import load_run, save_run
from sortal.runs import arrays, storage
from sortal.runs.facts import Confused, ImageSource, KChoice, TriedK
from sortal.runs.run import INITIAL, LOG, REPORT, Candidate, Kind, Run
from sortal.runs.storage import check_features, peek
from sortal.system import cache
from sortal.system import csv_tables as tables
from sortal.system import files as system_files
from sortal.system.files import lock_folder, write_atomically

TROUBLE = (
    """=HYPERLINK("x")|-1|\ttab|''=1|a,b;"c"|lone\rreturn|both\r\n| spaces |\x85\x0b\x0c\x1c|\ufeffmark|NA|nan|0012"""
)
HOSTILE = (*NAMES, *TROUBLE.split("|"))
REJECTED = frozenset({("00ff", 1)})
HALF = tuple(name if row % 2 else None for row, name in enumerate(HOSTILE))
TABLES = (storage.ASSIGNMENTS, storage.CATEGORIES, storage.QUARANTINE, storage.CANDIDATES)
FORMULA = (*"=+-@\uff1d\uff0b\uff0d\uff20", "\t", "\r", "\n")  # characters that start one, for some program
FACTS: dict[str, Any] = {"images": (ImageSource(folder="/photos", images=0, paths={}),), "notes": ("Ä\udcff",)}
SCORES = sample_metrics(np.arange(9), np.arange(9), 4, np.zeros(9, dtype=bool), "abcdefghi")
CANDIDATE = Candidate(id=1, files=("a",), folders=(1,), nearest_id=0)


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip syncing, which does not affect what a killed process leaves."""
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
    facts: dict[str, Any] | None = None,
    head: bool = False,
    seed: int = 0,
    **others: Any,
) -> Run:
    """Make a run with figures rounded to six decimals, as they are written."""
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
        labels=(None,) * n if labels is None else tuple(labels),
        truth=(None,) * n if truth is None else tuple(truth),
        status=np.where(has, "labelled", np.array(["known", "new", "unsure"])[np.arange(n) % 3]),
        confidence=a.confidence.round(6),
        distance=a.distance.round(6),
        next_category_id=a.next_category_id if k > 1 else np.full(n, -1),
        next_distance=a.next_distance.round(6) if k > 1 else np.full(n, np.nan),
    )
    kinds: list[Kind] = ["known", "new"]
    made: dict[str, Any] = {
        "facts": replace(run_.facts, **{**FACTS, **(facts or {})}),
        "k": KChoice(k=k, estimated=False, known=0, curve=(TriedK(k=2, score=0.1 + 0.2, each=()),)),
        "confidence": replace(
            run_.confidence,
            temperature=1 / 3,
            usual=np.full(k, 0.1),
            deviation=np.full(k, 2e-9),
            stability=np.full(k, 0.1 + 0.2) if head else None,
            exponent=np.full(k, 1.1 + 0.2) if head else None,
        ),
        "head": np.random.default_rng(seed).normal(size=(k, 4)).astype(np.float32) if head else None,
        "categories": tuple(
            replace(each, kind=kinds[each.id % 2], cohesion=each.cohesion and round(each.cohesion, 6))
            for each in run_.categories
        ),
    }
    return replace(run_, folder=folder, assignments=a, **made, **others)


def assert_same(one: Run, other: Run) -> None:
    for name, column in vars(one.assignments).items():
        again = getattr(other.assignments, name)
        if isinstance(column, tuple):
            assert again == column, name
        else:
            assert again.dtype.kind == column.dtype.kind, name
            np.testing.assert_array_equal(again, column, err_msg=name)
    for name in ("folder", "facts", "categories", "k", "metrics", "quarantine", "candidates", "rejected"):
        assert getattr(other, name) == getattr(one, name), name
    for name, value in vars(one.confidence).items():
        np.testing.assert_array_equal(getattr(other.confidence, name), value, err_msg=name)
    assert (other.head is None) == (one.head is None)
    for name in ("features", "centres", *(["head"] if one.head is not None else [])):
        np.testing.assert_array_equal(getattr(other, name), getattr(one, name))
        assert getattr(other, name).dtype == np.float32


def raw_cells(path: Path) -> list[list[str | float]]:
    """Return the cells below the header: text if quoted, otherwise a number, or fail."""
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    _, *rows = csv.reader(io.StringIO(text, newline=""), quoting=csv.QUOTE_NONNUMERIC, strict=True)
    return [list(row) for row in rows]


def hostile_run(folder: Path) -> Run:
    classes = [f"{name} as a class" for name in HOSTILE]
    return a_run(
        folder,
        HOSTILE,
        labels=HALF,
        truth=[None if row % 3 == 0 else name for row, name in enumerate(HOSTILE)],
        category=range(len(HOSTILE)),
        of_categories=HOSTILE,
        metrics=replace(SCORES, nmi=0.1 + 0.2, confusion=tuple(Confused(name, 0, 1) for name in classes)),
        quarantine=tuple(Quarantined(name, "truncated", name) for name in HOSTILE),
        candidates=(
            Candidate(id=1, files=HOSTILE, folders=(1,) * len(HOSTILE), nearest_id=2),
            Candidate(id=2, files=HOSTILE[:1], folders=(2,), nearest_id=0),
        ),
        facts={"notes": HOSTILE},
        head=True,
        rejected=REJECTED,
    )


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
        '"next_category","next_category_id","next_distance","reviewed","folder","content"'
    )
    for row in raw_cells(wrote.folder / storage.ASSIGNMENTS):
        kinds = [str, str, str, str, float, str, float, float, str, float, float, str, float, str]
        assert [type(cell) for cell in row] == kinds


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


def test_the_sizes_ids_and_arrays_of_a_run_must_agree() -> None:
    sound = a_run(Path("x"), ["a", "b", "c"], head=True)
    first, second = sound.categories
    assert sound.head is not None
    for broken in (
        {"categories": (replace(first, size=first.size + 1), second)},
        {"categories": (first, replace(second, id=first.id))},
        {"categories": (first, replace(second, id=9))},
        {"confidence": replace(sound.confidence, usual=np.zeros(3))},
        {"categories": (first,)},
        {"features": sound.features[:2]},
        {"centres": sound.centres[:1]},
        {"assignments": sound.assignments.select(np.array([True, True, False]))},
        {"head": sound.head[:1]},
        {"head": sound.head[:, :-1]},
        {"head": sound.head.ravel()},
        {"head": sound.head[0, 0]},
    ):
        with pytest.raises(ValueError, match="must"):
            replace(sound, **broken)


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
            if committed or path.name != system_files.COMMIT:
                write_atomically(path, content)
            if path.name == system_files.COMMIT:
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
    bare = a_run(tmp_path, ["a", "b"])
    (tmp_path / "notes.txt").write_text("mine")
    save_run(full, {LOG: b"{}", INITIAL: b"before", REPORT: b"<p>"})
    before = {path.name for path in tmp_path.iterdir()}
    assert before >= {*storage.OPTIONAL, LOG, INITIAL, "notes.txt", "report.html"}
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


REQUIRED = (*TABLES[:3], storage.K, storage.CONFIDENCE, arrays.FEATURES, storage.CENTRES)
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


@pytest.mark.parametrize("name", [*REQUIRED, *OPTIONAL])
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
        (storage.K, b'"estimated"', b'"guessed"'),
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


def test_the_data_frame_equals_what_pandas_reads_from_the_table(tmp_path: Path) -> None:
    plain = ["a", "NA", "0012", 'a,b;"c"', " spaces ", "two\nlines", "a\r\nb", "\u2028", "\ufeffmark"]
    wrote = a_run(tmp_path, plain, labels=[None, *plain[1:]], truth=plain)
    save_run(wrote)
    frame = wrote.to_pandas()
    options: dict[str, Any] = {"keep_default_na": False, "na_values": {"label": [""], "next_distance": [""]}}
    read = pandas.read_csv(tmp_path / storage.ASSIGNMENTS, dtype={"content": str}, **options)
    assert list(frame.columns) == list(read.columns)
    for name in frame.columns:
        assert frame[name].isna().tolist() == read[name].isna().tolist(), name
        assert frame[name].dropna().tolist() == read[name].dropna().tolist(), name
    assert [frame[name].dtype for name in ("category_id", "confidence", "folder")] == [np.int64, np.float64, np.int64]
    assert load_run(tmp_path).to_pandas().equals(frame)


def test_hostile_names_are_unchanged_in_a_data_frame_and_escaped_in_html() -> None:
    frame = hostile_run(Path("x")).to_pandas()
    assert frame["file_name"].tolist() == list(HOSTILE)
    assert frame["category"].tolist() == list(HOSTILE)
    assert frame["label"].tolist() == [*HALF]
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


def test_the_summary_of_a_run_is_json() -> None:
    found = hostile_run(Path("x"))
    short = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert short["images"] == len(HOSTILE)
    assert short["status"] == found.counts()
    assert sum(short["status"].values()) == len(HOSTILE)
    assert [each["name"] for each in short["categories"]] == list(HOSTILE)
    folders = [1] * len(HOSTILE)
    assert short["candidates"][0] == {"id": 1, "files": list(HOSTILE), "folders": folders, "nearest_id": 2}
    assert short["quarantine"] == [asdict(bad) for bad in found.quarantine]
    assert (short["report"], short["notes"]) == (str(Path("x/report.html")), list(HOSTILE))
    assert found.names == dict(enumerate(HOSTILE))
    assert (found.report, found.cache) == (Path("x/report.html"), Path("x/cache"))


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


def test_paths_lie_in_the_folder_of_the_images_unless_recorded_otherwise() -> None:
    photos = ImageSource(folder="/photos", images=2, paths={"sub/b.jpg": "/photos/SUB/b.jpg"})
    more = ImageSource(folder="/more", images=2, paths={"c.jpg": "/elsewhere/d.jpg"})
    files = ["a.jpg", "sub/b.jpg", "a.jpg", "c.jpg"]
    found = a_run(Path("x"), files, folders=[0, 0, 1, 1], facts={"images": (photos, more)})
    first, third = os.path.join("/photos", "a.jpg"), os.path.join("/more", "a.jpg")
    assert found.paths() == [first, "/photos/SUB/b.jpg", third, "/elsewhere/d.jpg"]
    found = a_run(Path("x"), ["0"], facts={"images": (ImageSource(folder=None, images=1, paths={}),)})
    for ask in (found.paths, found.images):
        with pytest.raises(InputError, match="were given as an array, so they have no files"):
            ask()


def test_the_images_of_a_loaded_run_have_their_labels_and_truth(tmp_path: Path) -> None:
    files, labels, truth = ["a", "b", "c", "d"], ["2", None, "10", None], ["2", "10", "10", "fox"]
    given = image_set(files, paths=[f"/photos/{file}" for file in files], labels=labels, truth=truth)
    save_run(a_run(tmp_path, files, labels=labels, truth=truth))
    again = load_run(tmp_path).images()
    assert (again.files, again.paths) == (given.files, given.paths)
    assert (again.classes, again.new_classes) == (("2", "10"), ("fox",)) == (given.classes, given.new_classes)
    np.testing.assert_array_equal(again.labels, given.labels)
    np.testing.assert_array_equal(again.truth, given.truth)
    assert not again.validation.any()


def test_selecting_and_joining_rows_preserves_their_order_and_all_columns() -> None:
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
    assert (len(none), none.files, none.category_id.shape) == (0, (), (0,))
    short, long = (replace(some, status=np.full(len(some), word)) for word in ("new", "labelled"))
    assert {*short.joined(long).status} == {"new", "labelled"}, "even if one has longer words"


def test_changed_features_are_noticed(sound: Path) -> None:
    check_features(load_run(sound))
    path = sound / "features.npy"
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"damaged: features\.npy does not match its digest"):
        check_features(load_run(sound))
