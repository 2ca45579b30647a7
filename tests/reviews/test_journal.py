"""The journal: decisions are on disk or not at all; of damaged ones the file, the line and the fault are named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.decisions import note
from support.made_up_journals import IMPORTED, put, random_journal
from support.reviews import saved_run, session_of

from sortal.errors import InputError, NoSpaceError
from sortal.exchange.importing import import_annotations
from sortal.reviews import joining, journal
from sortal.reviews.actions import Action, Audit, Create, Grow, Rename, Undo
from sortal.reviews.history import Review
from sortal.reviews.loading import load_run, save_run
from sortal.runs.run import DECISIONS, Run

pytestmark = pytest.mark.usefixtures("quickly")

TABLE = "file_name,category,category_id,status,reviewed,label\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return saved_run(tmp_path_factory.mktemp("runs") / "run", images=36)


def in_words(run: Run) -> object:
    return journal.replay(run, journal.read(run.folder / DECISIONS, run.facts)).words


def ways(run: Run, other: Path) -> dict[str, tuple[Path, Callable[[], object]]]:
    """Return what reads a journal, and the file that it must name: the one of the run, or another person's."""
    own, table = run.folder / DECISIONS, run.folder.parent / "table.csv"
    table.write_text(f"{TABLE}{run.assignments.files[0]},oak,1,unlabelled,,oak\n")
    return {
        "load": (own, lambda: load_run(run.folder)),
        "decisions": (own, lambda: in_words(run)),
        "review": (own, lambda: session_of(run)),
        "import": (own, lambda: import_annotations(run.folder, table)),
        "merge": (other, lambda: joining.merge(run.folder, other)),
    }


CRAFTED: tuple[tuple[list[dict[str, Any]], int, str], ...] = (
    ([{"do": "undo"}], 2, "There is nothing to undo"),
    ([{"do": "redo"}], 2, "There is nothing to redo"),
    ([{"do": "keep", "categories": [1, 2]}, {"do": "undo"}, {"do": "undo"}], 4, "There is nothing to undo"),
    ([{"do": "rename", "category": 77, "name": "oak"}], 2, "There is no category with the id 77"),
    ([{"do": "accept category", "category": 10**30}], 2, "There is no category"),
    ([{"do": "reject", "images": ["?"], "category": 1}], 2, "Images must be in the run"),
    ([{"do": "merge", "categories": []}], 2, "Merging needs two or more"),
    (
        [{"do": "refit", "images": ["{0}"], "to": [10**30], "names": [], "categories": [], "stability": []}],
        2,
        "A refit",
    ),
)


@pytest.mark.parametrize(("lines", "number", "fault"), CRAFTED, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("way", ["load", "decisions", "review", "import", "merge"])
def test_a_journal_that_cannot_be_followed_is_refused_by_its_line(
    run: Run, tmp_path: Path, way: str, lines: list[dict[str, Any]], number: int, fault: str
) -> None:
    (run.folder / DECISIONS).unlink(missing_ok=True)
    content = run.assignments.contents[-1]
    lines = [json.loads(json.dumps(each).replace("{0}", content)) for each in lines]
    for each in ({}, {"key": "a"}):  # keys may be missing, or the same
        place, read = ways(run, tmp_path / "other.jsonl")[way]
        put(place, run, [{**line, **each} for line in lines])
        with pytest.raises(InputError, match=f"^Line {number} of {re.escape(repr(str(place)))}.*{fault}"):
            read()


def test_disputed_lines_may_be_about_anything(tmp_path: Path) -> None:
    """They were never carried out, so that they are only told."""
    run = saved_run(tmp_path / "run", images=36)
    lines: list[dict[str, Any]] = [line for lines, _, _ in CRAFTED for line in lines]
    put(run.folder / DECISIONS, run, [{**line, "key": IMPORTED, "disputed": "?"} for line in lines])
    put(tmp_path / "other.jsonl", run, [{**line, "disputed": "?"} for line in lines])
    for _, read in ways(run, tmp_path / "other.jsonl").values():
        read()


def test_a_category_made_after_another_was_undone_is_joined(tmp_path: Path) -> None:
    """Its id is not the next one of a run without what was undone."""
    run = saved_run(tmp_path / "run", images=36)
    there, images = Review(run), run.assignments.contents[-4:]
    made: list[Action] = [Create(images=images[:2], category=6, name="oak"), Undo()]
    made += [Create(images=images[2:], category=7, name="elm"), Rename(category=7, name="elms")]
    for each in made:
        there.take(each)
    other = tmp_path / "other.jsonl"
    journal.append(other, run.facts, [journal.decide(each, "ann") for each in made])
    added, _ = joining.merge(run.folder, other)
    assert not any(each.disputed for each in added)
    names = {each.name for each in load_run(run.folder).categories}
    assert "elms" in names
    assert "oak" not in names


@pytest.mark.thorough
@settings(max_examples=5)
@given(random=st.randoms(use_true_random=False))
def test_made_up_journals_are_followed_or_refused_by_their_line(run: Run, random: Random) -> None:
    own, other = run.folder / DECISIONS, run.folder.parent / "other.jsonl"
    for mine, theirs in ((True, False), (False, True), (True, True)):
        own.unlink(missing_ok=True)
        lines = [random_journal(run, random) if wanted else [] for wanted in (mine, theirs)]
        if mine:
            put(own, run, lines[0])
        put(other, run, [*lines[1], {"do": "keep", "categories": [0, 1]}])
        sound = not mine or followed([own], lambda: load_run(run.folder))
        for name, (place, read) in ways(run, other).items():
            done = followed([place] if sound else [own, place], read)
            assert done == sound or (name == "merge" and sound)
            if sound:
                load_run(run.folder)  # nothing has made it unreadable
    own.unlink(missing_ok=True)


def followed(places: Collection[Path], read: Callable[[], object]) -> bool:
    """Tell whether a journal can be followed; if not, the file and the line must be named."""
    try:
        read()
    except InputError as error:
        named = "|".join(re.escape(repr(str(each))) for each in places)
        if not re.match(rf"Line \d+ of ({named}) is damaged: ", str(error)):
            raise
        return False
    return True


def test_anybody_may_decide(saved: Run) -> None:
    note(saved, Rename(category=5, name="fern"), by="\udcff ada\n")
    (line,) = journal.read(saved.folder / DECISIONS, saved.facts)
    assert line.by == "\udcff ada\n"


def test_a_torn_last_line_is_dropped_and_then_replaced(saved: Run) -> None:
    note(saved, Rename(category=5, name="fern"), Rename(category=4, name="moss"))
    path = saved.folder / DECISIONS
    whole = path.read_bytes()
    for cut in range(len(whole.splitlines(keepends=True)[0]), len(whole)):
        path.write_bytes(whole[:cut])
        lasts = whole[:cut].count(b"\n") >= 2
        decided = [line.action for line in journal.read(path, saved.facts)]
        assert decided == [Rename(category=5, name="fern")] * lasts
        if cut % 20 == 0 or whole[cut - 1 : cut] == b"\n":
            names = load_run(saved.folder).names
            assert (names[5] == "fern") == lasts
            assert names[4] != "moss"
    note(saved, Rename(category=4, name="lichen"))
    assert load_run(saved.folder).names == {**saved.names, 5: "fern", 4: "lichen"}


def test_a_journal_that_somebody_else_has_changed_refuses_decisions(saved: Run) -> None:
    path, line = saved.folder / DECISIONS, journal.decide(Undo())
    after = journal.append(path, saved.facts, [line], after=0)
    assert after == journal.length(path) == path.stat().st_size
    for content in (None, b"", path.read_bytes() * 2):
        path.unlink() if content is None else path.write_bytes(content)
        with pytest.raises(InputError, match="must not be changed during a review"):
            journal.append(path, saved.facts, [line], after=after)
        assert (path.read_bytes() if path.exists() else None) == content


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [lines[0].replace(b"sortal decisions 1", b"something")], "must begin with 'sortal decisions 1'"),
        (lambda lines: [lines[0].replace(b'"run": "', b'"run": "f')], "are about another run"),
        (lambda lines: [lines[0], b"{]\n", lines[1]], "Line 2 of .* is damaged"),
        (lambda lines: [lines[0], b"3\n"], "Line 2 of .* is damaged: it is not an object"),
        (lambda lines: [lines[0], lines[1].replace(b"rename", b"dance")], "Line 2 .*do must be one of"),
        (lambda lines: [lines[0], lines[1].replace(b'"by": "ada"', b'"by": 3')], "Line 2 .*by must be text, got '3'"),
    ],
)
def test_damaged_journals_are_refused(saved: Run, change: Any, message: str) -> None:
    note(saved, Rename(category=5, name="fern"))
    path = saved.folder / DECISIONS
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(InputError, match=message):
        load_run(saved.folder)
    assert load_run(saved.folder, raw=True).names == saved.names


def test_a_decision_that_cannot_be_written_leaves_the_journal_as_it_was(
    saved: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    note(saved, Rename(category=5, name="fern"))
    before = (saved.folder / DECISIONS).read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(NoSpaceError, match="No space left on device"):
        note(saved, Rename(category=4, name="moss"))
    assert (saved.folder / DECISIONS).read_bytes() == before


def test_images_of_random_samples_are_known_in_every_later_run(tmp_path: Path) -> None:
    """Of audits that stand: undone ones do not count."""
    run = saved_run(tmp_path / "run", images=36)
    own = tuple(run.assignments.contents[row] for row in np.flatnonzero(run.assignments.category_id == 5).tolist())
    note(run, Grow(category=5, seen=own[:1], unseen=own[1:], wrong=()), Audit(right=own[1:2], wrong=own[2:3]))
    save_run(load_run(run.folder))
    later = load_run(run.folder)
    assert journal.audited(run.folder) == {*own[1:3]}
    note(later, Audit(right=own[3:4], wrong=()), Audit(right=own[4:5], wrong=()), Undo())
    assert journal.audited(run.folder) == {*own[1:4]}
