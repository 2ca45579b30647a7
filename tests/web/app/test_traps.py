"""What misled people in a review, each tried in a browser: choices, undoing, risky buttons, uncertainty, names."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.browsing import Open, press, says
from support.reviews import Client, saved_run, serving, session_of
from support.thorough import thorough_but

from sortal.images.review_states import ReviewState
from sortal.reviews.history import Review
from sortal.reviews.questions import Guide, Question
from sortal.runs.confidence import Floats

if TYPE_CHECKING:
    from playwright.sync_api import Page

HEADING = ".question h1"
TAP = """cell => {
  const { left, top } = cell.getBoundingClientRect();
  const at = { bubbles: true, clientX: left + 20, clientY: top + 20 };
  cell.dispatchEvent(new PointerEvent("pointerdown", { ...at, pointerType: "touch" }));
  cell.dispatchEvent(new MouseEvent("click", at));
}"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Six classes, far apart, of 40 images each: class 2 is in categories 2 and 4, classes 3 and 5 in category 3."""
    generator = np.random.default_rng(0)
    of = np.arange(240) % 6
    x = np.eye(6, 16)[of] + generator.normal(0, 0.12, (240, 16))
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    category = np.where(of == 5, 3, of)
    twins = np.flatnonzero(of == 2)
    category[twins[x[twins, 8] > np.median(x[twins, 8])]] = 4
    folder = tmp_path_factory.mktemp("traps") / "run"
    run = saved_run(folder, images=240, categories=5, known=2, features=x, category=category)
    with serving(session_of(run)) as client:
        yield client


@pytest.fixture
def client(served: Client) -> Iterator[Client]:
    """The review without any decision."""
    served.enter()
    yield served
    served.enter()
    while served.get("/api/overview")["undo"] is not None:
        assert served.decide(served.session.version, do="undo").code == 200


def names(client: Client) -> list[str]:
    return [each["name"] for each in client.get("/api/overview")["categories"]]


def rows_of(client: Client, category: int) -> list[int]:
    found: list[int] = client.get(f"/api/category/{category}?order=typical")["rows"]
    return found


def asked(page: Page, beginning: str) -> str:
    """Put questions off until one begins like this; return it."""
    page.wait_for_selector(".answers")
    while not (heading := page.inner_text(HEADING)).startswith(beginning):
        press(page, "u")
        page.wait_for_function("([at, text]) => document.querySelector(at)?.innerText !== text", arg=[HEADING, heading])
        page.wait_for_selector(".answers")
    return heading


def answer_of(page: Page, key: str) -> str:
    """Return what the button of a key says."""
    found = page.locator(".answers button").filter(has=page.locator("kbd", has_text=re.compile(f"^{key}$")))
    return found.inner_text().removesuffix(key).strip()


# What is chosen


@pytest.mark.parametrize("touch", thorough_but([False], [False, True]))
def test_clicks_and_taps_toggle_and_the_answer_says_what_it_will_do(client: Client, opened: Open, touch: bool) -> None:
    page = opened(client, "/next")
    name = asked(page, "Are these all ").removeprefix("Are these all ").partition(",")[0].rstrip("?")
    total = page.locator(".cell").count()
    assert answer_of(page, "y") == f"Confirm all {total}"
    cells = [page.locator(".grid").nth(grid).locator(".cell").nth(at) for grid, at in ((0, 0), (0, 2), (1, 1), (1, 3))]
    for cell in (*cells, cells[-1]):  # the last one twice
        if touch:
            cell.evaluate(TAP)
        else:
            cell.click()
    assert [cell.get_attribute("aria-selected") for cell in cells] == ["true", "true", "true", "false"]
    assert [cell.get_by_text(f"not {name}").is_visible() for cell in cells] == [True, True, True, False]
    assert "3 images chosen" in page.inner_text(".question [role=status]"), "in both grids"
    assert answer_of(page, "y") == f"Confirm {total - 3}, remove 3"
    rows = [int(cell.get_attribute("data-row") or -1) for cell in cells]
    press(page, "y")
    page.wait_for_function("() => /So far|Confirmed/.test(document.body.innerText)")
    if "So far" in page.inner_text(".question"):
        press(page, "t")
    says(page, "Confirmed")
    message, bar = (page.locator(each).bounding_box() for each in ("#toast", ".answers"))
    assert message is not None
    assert bar is not None
    assert message["y"] + message["height"] <= bar["y"], "it covers no answer"
    reviewed = client.session._review.reviewed[rows].tolist()
    assert reviewed == [ReviewState.REJECTED] * 3 + [ReviewState.CONFIRMED]


def test_drawing_boxes_in_a_question_adds_to_what_is_chosen(client: Client, opened: Open) -> None:
    page = opened(client, "/next")
    asked(page, "Are these all")
    page.locator(".cell").nth(0).click()
    box = page.locator(".grid").nth(1).locator(".cell").nth(1).bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 20, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 60, box["y"] + 60)
    page.mouse.up()
    page.locator(".grid").nth(1).locator(".cell").nth(4).click()
    assert page.locator(".cell.chosen").count() == 3
    press(page, "ArrowLeft", "ArrowLeft", "Shift+ArrowLeft")  # to the third, and of it and the second
    assert page.locator(".cell.chosen").count() == 4


def test_what_was_not_in_view_of_a_category_that_is_confirmed_is_accepted_unseen(client: Client, opened: Open) -> None:
    page = opened(client, "/category/3")
    page.wait_for_selector(".cell img")
    press(page, "A")
    page.wait_for_selector("#ask[open]")
    assert "have not scrolled to count as accepted unseen" in page.inner_text("#ask")
    press(page, "Enter")
    says(page, "of them unseen")
    reviewed = client.session._review.reviewed[client.get("/api/category/3?order=doubt")["rows"]]
    confirmed, unseen = (int((reviewed == each).sum()) for each in (ReviewState.CONFIRMED, ReviewState.UNSEEN))
    assert confirmed + unseen == len(reviewed) == 80
    assert 10 <= confirmed <= 70
    page.goto(f"{client.origin}/#/")
    page.wait_for_function(
        "text => document.body.innerText.includes(text)", arg=f"{unseen} images accepted unseen, not checked"
    )


# Undoing


def test_the_question_that_was_undone_comes_back(client: Client, opened: Open) -> None:
    page = opened(client, "/next")
    asked(page, "Are these the same")
    before = page.inner_text(".question")
    press(page, "n")
    says(page, "Kept")
    page.wait_for_function("at => !document.querySelector(at)?.innerText.startsWith('Are these the same')", arg=HEADING)
    page.wait_for_selector(".answers")
    press(page, "Control+z")
    says(page, "Undid")
    page.wait_for_function("at => document.querySelector(at)?.innerText.startsWith('Are these the same')", arg=HEADING)
    page.wait_for_selector(".answers")
    assert page.inner_text(".question") == before


# Risky answers


def test_a_merge_is_asked_with_equal_buttons_and_both_categories_can_be_opened(client: Client, opened: Open) -> None:
    page = opened(client, "/next")
    asked(page, "Are these the same")
    assert page.locator(".answers .primary").count() == 0
    links = page.eval_on_selector_all(".two h2 a", "links => links.map((link) => link.getAttribute('href'))")
    assert sorted(links) == ["#/category/2", "#/category/4"]
    page.locator(".cell").first.click()
    assert page.locator(".cell.chosen").count() == 0, "nothing would follow from it"
    press(page, "p")
    page.wait_for_url(re.compile("#/pair/(2/4|4/2)$"))


def test_a_mixed_category_is_asked_to_be_split_before_it_is_confirmed_and_named_at_once(
    client: Client, opened: Open
) -> None:
    mixed = names(client)[3]
    page = opened(client, "/next")
    while mixed not in (heading := asked(page, "")):
        press(page, "u")
        page.wait_for_function("([at, text]) => document.querySelector(at)?.innerText !== text", arg=[HEADING, heading])
    assert re.match(r"Is .* two classes\?", heading)
    assert page.locator(".answers .primary").count() == 0
    press(page, "y")
    says(page, "Split 40 images off")
    page.wait_for_selector("#names[open]")
    assert page.locator(".two .cell").count(), "what is named is still shown"
    page.keyboard.type("fern")
    press(page, "Enter")
    says(page, "to 'fern'")
    assert "fern" in names(client)
    assert any(each["kind"] == "grow" and each["categories"] == [3] for each in client.get("/api/queue")["items"])


# Words


def test_nothing_is_said_in_percent_of_sureness(client: Client, opened: Open) -> None:
    page = opened(client)
    page.wait_for_selector(".queue a")
    seen = page.inner_text("main")
    for kind in ("Are these the same", "Is ", "Are these all"):
        page.goto(f"{client.origin}/#/next")
        asked(page, kind)
        seen += page.inner_text("main")
    for path in ("category/2", "image/2"):
        page.goto(f"{client.origin}/#/{path}")
        page.wait_for_selector(".cell img, .large img")
        seen += page.inner_text("main")
    assert re.findall(r".*[\d ]%.*", seen) == []
    assert "80 images · 80 left to settle" in seen


def test_an_empty_category_is_not_counted(client: Client, opened: Open) -> None:
    assert client.decide(client.session.version, do="move", rows=rows_of(client, 4), category=2).code == 200
    page = opened(client)
    page.wait_for_selector('.tiles-of a[href="#/category/2"]')
    assert page.locator('.tiles-of a[href="#/category/4"]').count() == 0
    assert page.inner_text(".progress").endswith("of 4 categories")


def test_a_made_up_name_is_never_used_again(client: Client, opened: Open) -> None:
    page = opened(client, "/category/2")
    page.wait_for_selector(".cell img")
    used = names(client)
    for _ in range(2):
        press(page, " ", "s")
        page.wait_for_selector("#names[open]")
        press(page, "Enter")
        says(page, "Put 1 image into the new category")
        page.wait_for_function("() => document.getElementById('names').open === false")
        used.append(names(client)[-1])
        press(page, "Control+z")
        says(page, "Undid")
    assert len({*used}) == len(used)


# Questions


def test_categories_that_images_were_moved_between_are_not_asked_to_be_merged(client: Client, opened: Open) -> None:
    assert client.decide(client.session.version, do="move", rows=rows_of(client, 4)[:2], category=2).code == 200
    page = opened(client)
    page.wait_for_selector(".queue a")
    assert "the same?" not in page.inner_text(".queue")


def test_pages_open_while_questions_are_looked_for(
    client: Client, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, ask = threading.Event(), Guide.questions

    def slow(self: Guide, review: Review, sure: Floats, *rest: Any) -> list[Question]:
        assert go_on.wait(60)
        return ask(self, review, sure, *rest)

    monkeypatch.setattr(Guide, "questions", slow)
    assert client.decide(client.session.version, do="rename", category=2, name="moss").code == 200
    try:
        page = opened(client)
        assert "Looking for questions" in page.inner_text(".intro")
        page.goto(f"{client.origin}/#/category/2")
        page.wait_for_selector(".cell img")
        page.goto(f"{client.origin}/#/next")
        page.wait_for_function("() => document.querySelector('main').innerText.includes('Looking for')")
        page.goto(f"{client.origin}/#/category/2")
        page.wait_for_selector(".cell img")
    finally:
        with page.expect_response("**/api/queue*"):
            go_on.set()
    state = "import('/static/review/state.js')"
    page.evaluate(f"async () => (await {state}).get('/api/queue')")
    assert page.evaluate(f"async () => (await {state}).asked.now") == "", "a page that was left asks nothing"
    page.goto(f"{client.origin}/#/next")
    page.wait_for_selector(".answers")
