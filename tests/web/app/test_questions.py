"""Questions of the review, over HTTP and in a browser: growing, merging, splitting, audits, names and refits."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.browsing import Open, press, says
from support.reviews import WORDS, Client, saved_run, serving, session_of
from support.sample_run import doubted, with_others

from sortal.discovery.reviewing.refitting import ANCHORS
from sortal.images.review_states import ReviewState
from sortal.reviews.loading import load_run, save_run
from sortal.runs.run import NOWHERE, Run

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHANGED = "text => document.querySelector('#names[open]') || document.querySelector('.question').innerText !== text"
OFFERED = "word => [...document.querySelectorAll('#found li')].some((line) => line.textContent.includes(word))"


def planted(folder: Path, *, cut: bool = False, mixed: bool = False) -> Run:
    """Four classes, far apart, of 60 images each; two are known.

    With `cut`, class 2 is in categories 2 and 4. If `mixed`, classes 2 and 3 are both in category 2.
    """
    generator = np.random.default_rng(0)
    middle = np.eye(4, 16)[np.arange(240) % 4]
    x = middle + generator.normal(0, 0.12, (240, 16))
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    category = np.arange(240) % 4
    if cut:
        rows = np.flatnonzero(category == 2)
        category[rows[x[rows, 8] > np.median(x[rows, 8])]] = 4
    if mixed:
        category[category == 3] = 2
    ids = int(category.max()) + 1
    return saved_run(folder, images=240, categories=ids, known=2, features=x, category=category)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return planted(tmp_path / "run")


@pytest.fixture
def client(run: Run) -> Iterator[Client]:
    with serving(session_of(run)) as client:
        yield client


def kinds(client: Client) -> list[tuple[str, tuple[int, ...]]]:
    return [(each["kind"], tuple(each["categories"])) for each in client.get("/api/queue")["items"]]


def shown_of(client: Client, category: int) -> tuple[list[int], str]:
    """Page through a category as if everything were right; return what was shown, and the answers."""
    shown, answers = list[int](), ""
    while (found := client.get(f"/api/grow/{category}?answers={answers}"))["number"] is not None:
        shown += [*found["typical"], *found["page"]]
        answers += "y"
    return shown, answers


def test_a_category_is_grown_by_a_few_pages_and_the_rest_is_accepted_unseen(run: Run, client: Client) -> None:
    client.enter()
    first = client.get("/api/grow/2")
    assert (first["open"], len(first["typical"]), first["unseen"]) == (60, 4, 0)
    assert client.get("/api/grow/2?answers=y")["unseen"] == first["skipped"], "what yes would accept unseen"
    shown, answers = shown_of(client, 2)
    wrong = [first["page"][-1]]
    assert client.decide(0, do="grow", category=2, answers=answers, shown=shown[:-1], wrong=wrong).code == 400
    assert client.decide(0, do="grow", category=2, answers=answers, shown=shown, wrong=wrong).code == 200
    a = load_run(run.folder).assignments
    own = np.flatnonzero(run.assignments.category_id == 2)
    confirmed, unseen = (
        np.flatnonzero(a.reviewed == state).tolist() for state in (ReviewState.CONFIRMED, ReviewState.UNSEEN)
    )
    assert {*confirmed} == {*shown} - {*wrong}
    assert {*unseen} == {*own.tolist()} - {*shown}
    assert a.reviewed[wrong[0]] == ReviewState.REJECTED
    assert a.category_id[wrong[0]] != 2
    assert (a.confidence[unseen] < 1).all()
    assert ("grow", (2,)) not in kinds(client), "what was asked is not asked again"
    assert client.decide(1, do="undo").code == 200
    assert load_run(run.folder).assignments.reviewed.tolist() == [ReviewState.OPEN] * 240


def test_an_audit_is_of_the_sample_that_was_drawn_and_a_bad_one_reopens(run: Run, client: Client) -> None:
    client.enter()
    shown, answers = shown_of(client, 2)
    assert client.decide(0, do="grow", category=2, answers=answers, shown=shown, wrong=[]).code == 200
    asked = next(each for each in client.get("/api/queue")["items"] if each["kind"] == "audit")
    rows = asked["rows"][0]
    unseen = client.get("/api/overview")["unseen"]
    assert (unseen["overall"]["sampled"], unseen["overall"]["images"]) == (0, unseen["categories"]["2"]["images"])
    for other in (rows[:-1], rows[::-1], [*rows, 0]):
        assert client.decide(1, do="audit", rows=other, wrong=[]).code == 400, "another sample would not be random"
    assert client.decide(1, do="audit", rows=rows, wrong=[]).code == 200
    overall = client.get("/api/overview")["unseen"]["overall"]
    assert (overall["sampled"], overall["estimate"], overall["high"]) == (len(rows), 1.0, 1.0)
    assert client.decide(2, do="undo").code == 200
    assert client.decide(3, do="audit", rows=rows, wrong=rows).code == 200
    reviewed = load_run(run.folder).assignments.reviewed
    assert ReviewState.UNSEEN not in reviewed.tolist()
    assert (reviewed[rows] == ReviewState.REJECTED).all()


def test_a_split_is_proposed_in_parts_and_by_one_key(tmp_path: Path) -> None:
    run = planted(tmp_path / "run", mixed=True)
    with serving(session_of(run)) as client:
        client.enter()
        assert ("split", (2,)) in kinds(client)
        parts = client.get("/api/parts/2?parts=2")["parts"]
        truth = np.arange(240) % 4
        assert [{*truth[part].tolist()} for part in parts] in ([{2}, {3}], [{3}, {2}])
        assert sorted(map(len, client.get("/api/parts/2?parts=3")["parts"]))[-1] == 60
        assert client.ask("GET", "/api/parts/2?parts=5").code == 400
        assert client.ask("GET", "/api/parts/99").code == 404
        assert client.decide(0, do="keep", categories=[2]).code == 200
        assert ("split", (2,)) not in kinds(client)


def test_no_is_never_asked_again_and_yes_merges(tmp_path: Path) -> None:
    run = planted(tmp_path / "run", cut=True)
    with serving(session_of(run)) as client:
        client.enter()
        assert kinds(client)[0] == ("merge", (2, 4)), "twins first"
        assert client.decide(0, do="keep", categories=[2, 4]).code == 200
        assert ("merge", (2, 4)) not in kinds(client)
        assert client.decide(1, do="undo").code == 200
        assert client.decide(2, do="merge", categories=[2, 4]).code == 200
        assert not any(kind == "merge" for kind, _ in kinds(client))
    with serving(session_of(load_run(run.folder, raw=True))) as client:
        assert not any(kind == "merge" for kind, _ in kinds(client.enter())), "nor after a restart"


def test_a_refit_is_a_proposal_and_one_step(tmp_path: Path) -> None:
    run = planted(tmp_path / "run", mixed=True)
    with serving(session_of(run)) as client:
        client.enter()
        own = np.flatnonzero(run.assignments.category_id == 2)
        fern = own[own % 4 == 3][:3].tolist()
        assert client.decide(0, do="refit").code == 400, "nothing was proposed"
        assert client.decide(0, do="create", rows=fern, name="fern").code == 200
        proposal = client.get("/api/refit")
        moved = sum(each["images"] for each in proposal["moves"] if (each["from"], each["to"]) == (2, 3))
        assert moved == 57, "the rest of its class follows"
        assert load_run(run.folder).decisions == 1, "a proposal changes nothing"
        assert client.decide(1, do="rename", category=2, name="moss").code == 200
        assert client.decide(2, do="refit").code == 400, "it is out of date"
        client.get("/api/refit")
        assert client.decide(2, do="refit").code == 200
        found = load_run(run.folder)
        found_now = int((found.assignments.category_id == 3).sum())
        assert 60 - ANCHORS <= found_now <= 60, "some may stand for the category that was named meanwhile"
        assert (found.assignments.reviewed == ReviewState.OPEN).sum() == 237, "it says nothing about single images"
        assert client.decide(3, do="undo").code == 200
        assert (load_run(run.folder).assignments.category_id == 3).sum() == 3


def test_names_come_from_similar_classes_and_given_words(run: Run, client: Client) -> None:
    client.enter()
    card = client.get("/api/overview")["categories"][2]
    known = {each.id for each in run.categories if each.kind == "known"}
    assert card["near"][0] in known
    found = client.get("/api/names/2")
    assert ({*found["near"]}, found["names"]) == (known, []), "without a model nothing is suggested"
    assert client.get("/api/words")["words"] == [*WORDS]
    assert [each.name for each in load_run(run.folder).categories] == [each.name for each in run.categories]


def test_a_local_model_suggests_names_without_a_network(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("open_clip")
    from support.tiny_image_text import tiny_model

    from sortal.discovery.reviewing.advice import advise
    from sortal.system.progress import Runtime

    def refuse(*_: object, **__: object) -> Any:
        raise OSError("there is no network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    model, words = tiny_model(tmp_path / "model"), tmp_path / "words.txt"
    words.write_text("oak\nash\nfern\nmoss\nlichen\nivy\n")
    session, told = session_of(run), list[str]()
    for _ in range(2):  # the second time from the cache
        runtime = Runtime(progress=lambda what, done, total: told.append(what))
        advisor = advise(run, session.store, words=words, text_model=model, runtime=runtime)
        found = replace(session, advisor=advisor).names(2)
        assert found is not None
        assert len({*found["names"]}) == 5
        assert {*found["names"]} < {*words.read_text().split()}
    assert told.count("Reading the names") == 1
    assert not (run.folder / "decisions.jsonl").exists(), "a suggestion is not applied by itself"


# In a browser


def test_every_question_is_answered_by_keys(tmp_path: Path, opened: Open) -> None:
    """Merge twins, confirm and name what is left, check the sample: nothing but keys, until nothing is left to ask."""
    run = planted(tmp_path / "run", cut=True)
    with serving(session_of(run)) as client:
        page = opened(client)
        press(page, "q")
        _asked(page, "Are these the same class?")
        press(page, "y")
        says(page, "Merged")
        for number in range(4):
            _asked(page, "Are these all")
            asked = page.inner_text(".question h1")
            while page.inner_text(".question h1") == asked and page.query_selector("#names[open]") is None:
                page.wait_for_selector(".answers")
                before = page.inner_text(".question")
                press(page, "y")
                page.wait_for_function(CHANGED, arg=before)
            if ", near" in asked:
                page.wait_for_selector("#names[open]")
                page.keyboard.type(f"kind {number}")
                press(page, "Enter")
                says(page, f"to 'kind {number}'")
            page.wait_for_function("text => document.querySelector('.question h1').innerText !== text", arg=asked)
        _asked(page, "Are these right?")
        press(page, "y")
        says(page, "Audited")
        page.wait_for_function("() => document.querySelector('.state')?.textContent.startsWith('Nothing is left')")
    a = load_run(run.folder).assignments
    free = a.status != "labelled"
    assert {*a.reviewed[free].tolist()} == {ReviewState.CONFIRMED, ReviewState.UNSEEN}


LABEL_ANSWERS = (
    ("n", "Moved 1 image to 'class 1'"),
    ("y", "Confirmed 1 image"),
    ("x", "Put 1 image into the bin"),
    ("u", ""),
)


@pytest.mark.thorough
def test_a_wrong_label_is_corrected_by_one_key(tmp_path: Path, opened: Open) -> None:
    run = planted(tmp_path / "run")
    rows = np.flatnonzero((run.assignments.status == "labelled") & (run.assignments.category_id == 0))[:5].tolist()
    save_run(doubted(run, rows, suggested=1))
    run = load_run(run.folder, raw=True)
    with serving(session_of(run)) as client:
        page = opened(client)
        page.click("text=Check labels that look wrong")
        for key, words in LABEL_ANSWERS:
            _asked(page, "Is this class 0 or class 1?")
            left = page.inner_text(".question .head p")
            assert len(page.query_selector_all(".two .grid")) == 2
            path = page.get_attribute(".question .one", "data-path")
            press(page, key)
            if words:
                says(page, words)
                page.wait_for_function("text => document.querySelector('.head p')?.innerText !== text", arg=left)
            else:
                page.wait_for_function("path => document.querySelector('.one')?.dataset.path !== path", arg=path)
        assert page.get_attribute(".question .one", "data-path") == f"/image/{rows[4]}"
    a = load_run(run.folder).assignments
    assert a.category_id[rows].tolist() == [1, 0, NOWHERE, 0, 0]
    assert a.reviewed[rows[:2]].tolist() == [ReviewState.MOVED, ReviewState.CONFIRMED]
    assert a.labels_to_check.tolist() == rows[3:]


def _asked(page: Page, question: str) -> None:
    page.wait_for_function("text => document.querySelector('.question h1')?.textContent.startsWith(text)", arg=question)
    page.wait_for_selector(".answers")


def _go_to_others(page: Page) -> None:
    """Go to the overview, and from there to the question about images that fit nowhere."""
    press(page, "h")
    page.wait_for_selector(".queue a")
    _go_to(page, "other")
    _asked(page, "Do any of these fit?")


def _go_to(page: Page, kind: str, *categories: int) -> None:
    """Go to the first question of a kind, about these categories if there are any."""
    page.evaluate(
        """async ([kind, categories]) => {
            const { get } = await import('/static/review/state.js');
            const { questionAddress } = await import('/static/review/queue.js');
            const fits = (each) => each.kind === kind && categories.every((id) => each.categories.includes(id));
            location.hash = questionAddress((await get('/api/queue')).items.find(fits));
        }""",
        [kind, categories],
    )


@pytest.mark.thorough
def test_images_that_fit_nowhere_are_confirmed_or_put_into_the_bin(tmp_path: Path, opened: Open) -> None:
    plain = planted(tmp_path / "plain")
    first, second, third = np.flatnonzero(plain.assignments.status != "labelled")[[0, 5, 9]].tolist()
    run = replace(with_others(plain, {first: 3.0, second: 5.0, third: 4.0}), folder=tmp_path / "run")
    save_run(run)
    with serving(session_of(load_run(run.folder, raw=True))) as client:
        page = opened(client)
        _go_to_others(page)
        page.wait_for_selector(".cell img")
        rows = page.eval_on_selector_all(".cell", "cells => cells.map((cell) => Number(cell.dataset.row))")
        assert rows == [second, third, first], "the farthest first"
        page.locator(".cell").nth(1).click()
        press(page, "c")
        says(page, "Confirmed")
        _go_to_others(page)
        assert "All 2 into the bin" in page.inner_text(".answers")
        page.locator(".cell").nth(1).click()
        assert "The 1 chosen into the bin" in page.inner_text(".answers")
        press(page, "x")
        says(page, "Put 1 image into the bin")
        assert client.session._review.binned.nonzero()[0].tolist() == [first]
        _go_to_others(page)
        press(page, "x")
        page.wait_for_function("() => !document.querySelector('h1')?.innerText.startsWith('Do any')")
    found = load_run(run.folder)
    assert np.flatnonzero(found.assignments.binned).tolist() == sorted([first, second])
    assert found.assignments.reviewed[third] == ReviewState.CONFIRMED


@pytest.mark.thorough
def test_a_mixed_category_is_split_in_three_gestures(tmp_path: Path, opened: Open) -> None:
    run = planted(tmp_path / "run", mixed=True)
    with serving(session_of(run)) as client:
        page = opened(client, "/category/2")
        page.wait_for_selector(".cell img")
        press(page, "S")
        _asked(page, "Split")
        press(page, "y")
        says(page, "Split 60 images off")
    a = load_run(run.folder).assignments
    truth = np.arange(240) % 4
    assert all(len({*truth[a.category_id == each].tolist()}) == 1 for each in (2, 3)), "both are pure"


def test_the_name_box_takes_nothing_that_was_not_typed(run: Run, client: Client, opened: Open) -> None:
    page = opened(client, "/category/2")
    page.wait_for_selector(".cell img")
    assert ", near class" in page.inner_text("h1")
    press(page, "r")
    page.wait_for_selector("#found li")
    assert page.query_selector('#found li[aria-selected="true"]') is None
    press(page, "Enter")
    assert page.query_selector("#names[open]"), "nothing was typed"
    page.keyboard.type("as")
    page.wait_for_function(OFFERED, arg="ash tree")
    press(page, "Enter")
    says(page, "to 'as'")


@pytest.mark.thorough
def test_a_question_is_put_off(run: Run, client: Client, opened: Open) -> None:
    page = opened(client, "/next")
    page.wait_for_selector(".answers")
    asked = page.inner_text(".question h1")
    press(page, "u")
    page.wait_for_function("text => document.querySelector('.question h1').innerText !== text", arg=asked)
    assert client.session.version == 0


@pytest.mark.thorough
def test_an_answer_is_taken_back(run: Run, client: Client, opened: Open) -> None:
    page = opened(client, "/next")
    page.wait_for_selector(".answers")
    before = page.inner_text(".question")
    press(page, "n")
    page.wait_for_function("() => document.querySelector('.question').innerText.includes('So far')")
    press(page, "Control+z")
    page.wait_for_function("() => !document.querySelector('.question').innerText.includes('So far')")
    assert page.inner_text(".question") == before, "with its answers"
    assert client.session.version == 0


@pytest.mark.thorough
def test_answers_take_two_rows_on_a_phone_and_the_others_are_a_touch_away(client: Client, opened: Open) -> None:
    page = opened(client, "/next", size=(390, 844))
    page.wait_for_selector(".cell img[src]")
    page.wait_for_selector(".answers")
    bar, button, cell = (page.locator(each).first.bounding_box() for each in (".answers", ".answers button", ".cell"))
    assert bar is not None
    assert button is not None
    assert cell is not None
    assert bar["height"] <= 2 * button["height"] + 30
    assert cell["y"] + cell["height"] < bar["y"], "a whole image"
    more = page.get_by_role("button", name="Propose a split")
    assert not more.is_visible()
    page.locator(".answers .fold").click()
    assert more.is_visible()


@pytest.mark.thorough
def test_pages_and_samples_show_groups_as_stacks(tmp_path: Path, opened: Open) -> None:
    run = planted(tmp_path / "run")
    rows, group = np.flatnonzero(run.assignments.category_id == 2), run.assignments.group.copy()
    group[rows] = rows[np.arange(len(rows)) // 3 * 3]  # three by three
    save_run(replace(run, assignments=replace(run.assignments, group=group)))
    with serving(session_of(load_run(run.folder, raw=True))) as client:
        client.enter()
        first = client.get("/api/grow/2")
        page = opened(client)
        _go_to(page, "grow", 2)
        page.wait_for_selector(".answers")
        shown = [*first["typical"], *first["page"]]
        stacks = [len({*map(int, group[part])}) for part in (first["typical"], first["page"])]
        page.wait_for_function("count => document.querySelectorAll('.cell').length === count", arg=sum(stacks))
        stack = page.locator(".cell:has(.stack)").last
        size = int(stack.locator(".stack").inner_text().removeprefix("×"))
        stack.click()
        page.get_by_role("button", name=f"Confirm {len(shown) - size}, remove {size}").wait_for()
        grown, answers = shown_of(client, 2)
        assert client.decide(0, do="grow", category=2, answers=answers, shown=grown, wrong=[]).code == 200
        _go_to(page, "audit")
        page.get_by_text("Are these right?").wait_for()
        page.wait_for_selector(".stack")
        assert {*page.locator(".cell .stack").all_inner_texts()} == {"×3"}
        page.locator(".cell").first.click()
        junk = int(page.locator(".cell").first.get_attribute("data-row") or -1)
        assert ", 1 into the bin" in page.inner_text(".answers")
        press(page, "x")
        says(page, "Put 1 image into the bin")
        review = client.session._review
        assert np.flatnonzero(review.binned).tolist() == [junk]
        tallies = [review.categories[2].tally, *review.categories[2].failed]
        assert sum(each.sampled - each.right for each in tallies) == 1, "it was wrong, too"


def test_answers_to_the_first_pages_are_still_there_after_a_reload(client: Client, opened: Open) -> None:
    client.enter()
    letter = next(each for each in "yn" if client.get(f"/api/grow/2?answers={each}")["number"] is not None)
    page = opened(client)
    _go_to(page, "grow", 2)
    page.wait_for_selector(".answers")
    press(page, letter)
    page.get_by_text("before the last answer").wait_for()
    asked = page.inner_text(".question .head p")
    page.reload()
    page.get_by_text("before the last answer").wait_for()
    assert page.inner_text(".question .head p") == asked
    press(page, "Control+z")
    page.get_by_text("before the last answer").wait_for(state="detached")
    assert page.get_by_role("button", name="Name it").count() == 1
    _go_to(page, "grow", 0)
    page.get_by_role("heading", name="class 0").wait_for()
    assert page.get_by_role("button", name="Name it").count() == 0, "it has the name of a known class"
