"""A session: pages see what was decided, a late or failed decision changes nothing, and nothing is made twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.reviews import saved_run, session_of

from sortal.errors import NoSpaceError
from sortal.reviews import journal
from sortal.reviews.history import Review
from sortal.reviews.session import Session, StaleError
from sortal.runs.confidence import Ints
from sortal.runs.run import DECISIONS

pytestmark = pytest.mark.usefixtures("quickly")


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return session_of(saved_run(tmp_path / "run", images=36))


def test_a_decision_by_someone_who_missed_one_is_refused_with_what_was_missed(session: Session) -> None:
    assert session.decide(0, {"do": "rename", "category": 4, "name": "fern"}) == {
        "version": 1,
        "words": "Renamed 'new 1' to 'fern'",
    }
    with pytest.raises(StaleError) as caught:
        session.decide(0, {"do": "undo"})
    assert caught.value.missed == ["Renamed 'new 1' to 'fern'"]
    assert session.decide(1, {"do": "undo"})["words"] == "Undid: renamed 'new 1' to 'fern'"
    again = session_of(session.run)
    assert (again.version, again.overview()["redo"]) == (2, "renamed 'new 1' to 'fern'")


def test_a_decision_that_cannot_be_saved_changes_nothing(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    before = session.overview()

    def full(*_: Any, **__: Any) -> int:
        raise NoSpaceError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(journal, "append", full)
        with pytest.raises(NoSpaceError):
            session.decide(0, {"do": "merge", "categories": [0, 1]})
    assert session.overview() == before
    assert not (session.run.folder / DECISIONS).exists()
    assert session.decide(0, {"do": "merge", "categories": [0, 1]})["version"] == 1


def test_what_pages_show_is_made_again_only_after_something_has_changed(session: Session) -> None:
    overview, queue = session.overview(), session.queue()
    assert session.overview()["categories"] is overview["categories"]
    assert session.queue()["items"][0] is queue["items"][0]
    session.originals.state[0] = 1
    assert session.overview()["categories"] is not overview["categories"]
    assert session.overview()["lost"]["files"] == [session.run.assignments.files[0]]
    session.decide(0, {"do": "rename", "category": 4, "name": "fern"})
    assert (session.overview()["version"], session.queue()["version"]) == (1, 1)


def test_the_overview_adds_up(session: Session) -> None:
    session.decide(0, {"do": "accept category", "category": 2})
    found, a = session.overview(), session.run.assignments
    assert [card["size"] for card in found["categories"]] == np.bincount(a.category_id).tolist()
    assert sum(card["settled"] for card in found["categories"]) == found["settled"]
    assert found["states"]["confirmed"] == (a.category_id == 2).sum()
    assert sum(found["states"].values()) == found["images"] == 36
    assert [len(card["near"]) for card in found["categories"]] == [0, 0, 0, 0, 1, 1], "new ones are near a known one"


def test_images_that_fit_nowhere_are_counted_until_they_are_settled(session: Session) -> None:
    free = np.flatnonzero(session.run.assignments.status != "labelled")[:2]
    session.run.assignments.apart[free] = 9.0
    session.run = replace(session.run, confidence=replace(session.run.confidence, other_above=2.0))
    session = replace(session)
    assert sum(card["other"] for card in session.overview()["categories"]) == 2
    assert session.images(free)["other"] == [1, 1]
    session.decide(0, {"do": "accept", "rows": free[:1].tolist()})
    assert sum(card["other"] for card in session.overview()["categories"]) == 1
    assert session.images(free)["other"] == [0, 1]


def test_an_image_is_near_categories_of_each_kind_and_not_itself(session: Session) -> None:
    run, found = session.run, session.near(5)
    distance = np.linalg.norm(run.centres - run.features[5], axis=1)
    for kind in ("known", "new"):
        ids = [each.id for each in run.categories if each.kind == kind]
        assert found[kind] == sorted(ids, key=lambda each: float(distance[each]))[:4]
    others = np.linalg.norm(run.features - run.features[5], axis=1)
    assert found["rows"] == [row for row in np.argsort(others).tolist() if row != 5][:8]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"do": "move", "rows": [36], "category": 1}, "rows must be numbers from 0 to 35"),
        ({"do": "move", "rows": "all", "category": 1}, "rows must be numbers"),
        ({"do": "grow", "category": 77}, "there is no category '77'"),
        ({"do": "grow", "category": 1, "answers": "x"}, "answers must be letters y, m and n"),
        ({"do": "grow", "category": 4, "answers": "y", "shown": []}, "no longer those that were shown"),
        ({"do": "audit", "rows": [1], "wrong": []}, "must be the sample that was drawn"),
        ({"do": "refit"}, "the proposal is out of date"),
    ],
)
def test_requests_that_make_no_sense_are_refused(session: Session, request_: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        session.decide(0, request_)
    assert session.version == 0


def test_others_may_decide_during_a_search(session: Session) -> None:
    def search(review: Review) -> tuple[Ints, dict[str, Any]]:
        assert not session._lock.locked()
        session.decide(0, {"do": "rename", "category": 4, "name": "fern"})
        return np.array([3, 1]), {"named": [each.id for each in review.categories.values() if each.name == "fern"]}

    found = session.found(search, 0)
    assert (found["rows"], found["version"], found["named"]) == ([3, 1], 1, []), "it searched what was there before"
