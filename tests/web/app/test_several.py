"""Several people at one review: a link each, signed decisions, different questions, and disputes to settle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.browsing import press, says
from support.reviews import Client, saved_run, serving, session_of, token_of

from sortal.reviews import journal
from sortal.reviews.loading import load_run
from sortal.runs.run import DECISIONS, Run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

PEOPLE = ("ada", "bob")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return saved_run(tmp_path / "run")


@pytest.fixture
def client(run: Run) -> Iterator[Client]:
    with serving(session_of(run, PEOPLE)) as client:
        yield client


def test_each_person_has_a_link_for_one_use_and_signs_by_the_key(run: Run, client: Client) -> None:
    links = {person: token_of(client.server.link(person)) for person in PEOPLE}
    assert token_of(client.server.link("bob")) == links["bob"], "until he uses it"
    keys = {}
    for person, token in links.items():
        assert client.ask("POST", "/api/enter", token + b"x").code == 403
        answer = client.ask("POST", "/api/enter", token)
        assert answer.code == 200
        keys[person] = answer.json()["key"]
        assert client.ask("POST", "/api/enter", token).code == 403, "for one use"
    assert len({*keys.values()}) == 2
    ada, bob = (replace(client, key=keys[person]) for person in PEOPLE)
    again = client.server.link("ada")
    assert token_of(again) != links["ada"]
    assert ada.get("/api/version")["version"] == 0, "another link of hers does not end what she has begun"
    assert client.ask("POST", "/api/enter", token_of(again)).code == 200
    assert (ada.get("/api/overview")["person"], bob.get("/api/overview")["person"]) == PEOPLE
    assert ada.decide(0, do="rename", category=4, name="fern").code == 200
    assert bob.decide(1, do="rename", category=5, name="moss", by="ada").code == 400, "nobody signs for another"
    assert bob.decide(1, do="rename", category=5, name="moss").code == 200
    assert client.ask("GET", "/api/overview").code == 403
    lines = journal.read(run.folder / DECISIONS, run.facts)
    assert [line.by for line in lines] == [*PEOPLE]
    assert (ada.get("/api/overview")["undo"], bob.get("/api/overview")["undo"]) == (None, "renamed 'new 2' to 'moss'")
    refused = ada.decide(2, do="undo")
    assert (refused.code, refused.json()["message"][:32]) == (400, "The last decision is by bob, so ")


def test_what_contradicts_another_person_becomes_a_question_for_the_others_first(run: Run, client: Client) -> None:
    ada, bob = (replace(client).enter(person) for person in PEOPLE)
    rows = np.flatnonzero(run.assignments.category_id == 4)[-2:].tolist()
    assert ada.decide(0, do="move", rows=rows[:1], category=0).code == 200
    told = bob.decide(1, do="bin", rows=rows).json()
    assert told["version"] == 3
    assert told["words"].endswith("ada decided otherwise, so it becomes a question")
    kinds = {who.key: [each["kind"] for each in who.get("/api/queue")["items"]] for who in (ada, bob)}
    assert kinds[ada.key].count("disputed") == 1
    assert "disputed" not in kinds[bob.key], "as long as she is there"
    assert bob.decide(3, do="bin", rows=rows[:1], settles=True).json()["words"].startswith("Disputed: ")
    assert bob.decide(4, do="undo").code == 200
    assert load_run(run.folder).assignments.category_id[rows].tolist() == [0, -1]
    assert bob.get("/api/overview")["undo"].startswith("disputed: put 1 image into the bin")
    assert bob.decide(5, do="undo").json()["words"].endswith("Undid: put 1 image into the bin: in no category")
    assert load_run(run.folder).assignments.category_id[rows].tolist() == [0, 4]
    assert "disputed" not in [each["kind"] for each in ada.get("/api/queue")["items"]], "his wish is withdrawn"
    assert bob.decide(7, do="bin", rows=rows[:1]).code == 200
    assert ada.decide(8, do="bin", rows=rows[:1], settles=True).code == 200
    assert "disputed" not in [each["kind"] for each in ada.get("/api/queue")["items"]]


def test_people_do_not_stand_in_each_others_way(run: Run, client: Client) -> None:
    ada, bob = (replace(client).enter(person) for person in PEOPLE)
    page = ada.get("/api/grow/4?answers=")
    shown = [*page["typical"], *page["page"]]
    assert bob.decide(0, do="accept category", category=5).code == 200
    assert bob.decide(1, do="rename", category=0, name="oak").code == 200
    assert ada.decide(0, do="grow", category=4, answers="n", shown=shown, wrong=[]).code == 200, "he decided elsewhere"
    assert ada.decide(0, do="rename", category=0, name="ash").code == 409
    assert [line.by for line in journal.read(run.folder / DECISIONS, run.facts)] == ["bob", "bob", "ada"]


def test_pages_learn_what_others_are_asked(client: Client) -> None:
    ada, bob = (replace(client).enter(person) for person in PEOPLE)
    assert ada.get("/api/version?asked=first")["taken"] == []
    assert bob.get("/api/queue?asked=second")["taken"] == ["first"]
    assert ada.get("/api/version?asked=")["taken"] == ["second"]
    assert bob.get("/api/queue?asked=second")["taken"] == []
    assert ada.ask("GET", f"/api/version?asked={'x' * 201}").code == 400


@pytest.fixture
def pages(browser: Browser, client: Client) -> Iterator[tuple[Page, Page]]:
    """A window of each person, with the first question."""
    contexts = [browser.new_context(viewport={"width": 1400, "height": 900}) for _ in PEOPLE]
    found = []
    for person, context in zip(PEOPLE, contexts, strict=True):
        page = context.new_page()
        page.goto(client.server.link(person))
        page.wait_for_selector(".tiles-of a")
        assert person in page.inner_text("#run")
        found.append(page)
    yield found[0], found[1]
    for context in contexts:
        context.close()


def open_dispute(page: Page, client: Client, answer: str) -> None:
    """Open the dispute in the list; it is asked even if the page learns of other decisions while it is drawn.

    Then it is drawn twice, and what the first drawing needs comes last.
    """
    page.goto(f"{client.origin}/#/")
    page.reload()  # whatever followed from the answer before is over, and the list is as of now
    page.wait_for_selector(".queue a:has-text('Settle a disagreement')")
    held: list[Route] = []
    page.route("**/api/images*", lambda route: held.append(route) if len(held) < 2 else route.continue_())
    page.click(".queue a:has-text('Settle a disagreement')")
    while not held:
        page.wait_for_timeout(10)
    page.evaluate("import('/static/review/state.js').then((state) => { state.refresh(); })")
    while len(held) < 2:
        page.wait_for_timeout(10)
    held[1].continue_()
    page.wait_for_selector(f".answers button:has-text('{answer}')")
    with page.expect_response("**/api/images*"):
        held[0].continue_()
    page.evaluate("() => new Promise((drawn) => { requestAnimationFrame(() => requestAnimationFrame(drawn)); })")
    page.wait_for_selector(f".answers button:has-text('{answer}')")
    page.unroute("**/api/images*")


@pytest.mark.thorough
def test_two_people_are_asked_different_questions_and_settle_a_dispute(
    run: Run, client: Client, pages: tuple[Page, Page]
) -> None:
    ada, bob = pages
    held: list[Route] = []
    for page in pages:
        page.route("**/api/queue*", lambda route: held.append(route))
        page.goto(f"{client.origin}/#/next")
    while len(held) < len(pages):
        ada.wait_for_timeout(10)
    answers = [route.fetch() for route in held]  # nobody is asked anything yet
    for page, route, answer in zip(pages, held, answers, strict=True):
        route.fulfill(response=answer)
        page.unroute("**/api/queue*")
    titles = []
    for page in pages:
        page.wait_for_selector(".answers button")
        titles.append(page.inner_text("h1"))
    assert titles[0] != titles[1]
    row = int(np.flatnonzero(run.assignments.category_id == 4)[-1])
    ada.goto(f"{client.origin}/#/image/{row}")
    ada.wait_for_selector(".large dt")
    press(ada, "c")
    says(ada, "Confirmed 1 image")
    bob.goto(f"{client.origin}/#/image/{row}")
    bob.reload()  # so that he knows of it
    bob.wait_for_selector(".large dt")
    press(bob, "x")
    says(bob, "ada decided otherwise")
    open_dispute(ada, client, "The other is right")
    assert "bob" in ada.inner_text(".head")
    press(ada, "n")
    says(ada, "into the bin")
    assert load_run(run.folder).assignments.binned.nonzero()[0].tolist() == [row]
    again = replace(client).enter("bob")
    again.decide(again.get("/api/version")["version"], do="put back", rows=[row])
    open_dispute(ada, client, "Leave it")
    press(ada, "o")
    ada.wait_for_url("**/#/bin")
    version = again.get("/api/version")["version"]
    for action in ({"do": "rename", "category": 5, "name": "moss"}, {"do": "keep", "categories": [0, 5]}):
        assert again.decide(version, **action).code == 200
        version += 1
    other = replace(client).enter("ada")
    for action in ({"do": "rename", "category": 5, "name": "fern"}, {"do": "merge", "categories": [0, 5]}):
        assert other.decide(version, **action).json()["words"].startswith("Disputed: ")
        version += 1
    bob.goto(f"{client.origin}/#/")
    bob.click(".queue a:has-text('Settle the name of moss')")
    bob.wait_for_selector(".answers button")
    assert (bob.inner_text("h1"), "ada wants fern" in bob.inner_text(".head")) == ("Is this moss or fern?", True)
    assert "Call it fern" in bob.inner_text(".answers")
    press(bob, "n")
    says(bob, "Renamed 'moss' to 'fern'")
    bob.goto(f"{client.origin}/#/")
    bob.click(".queue a:has-text('the same, or different?')")
    bob.wait_for_selector(".answers button")
    press(bob, "n")
    says(bob, "Kept 'class 0' and 'fern' apart")
