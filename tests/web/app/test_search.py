"""Search, over HTTP and in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.browsing import Open, press, says
from support.reviews import Client, saved_run, serving, session_of

from sortal.images.columns import Columns
from sortal.images.store.pixel_store import PixelStore
from sortal.reviews import session as sessions
from sortal.reviews.loading import load_run, save_run
from sortal.runs.confidence import Ints
from sortal.web.app import routes

if TYPE_CHECKING:
    from playwright.sync_api import Route

COUNTED = "text => document.querySelector('.chosen').textContent === text"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Ten categories of 12 images, every third of which is from the north."""
    run = saved_run(tmp_path_factory.mktemp("run") / "run", images=120, categories=10)
    columns = Columns.infer(["site"], [["north", "south", "east"] * 40])
    save_run(replace(run, assignments=replace(run.assignments, columns=columns)))
    with serving(session_of(load_run(run.folder, raw=True))) as client:
        yield client.enter()


def test_a_search_has_pages_and_limits(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST_FOUND", 5)
    found = client.get("/api/search?text=photos")
    assert (found["total"], found["rows"], found["limit"]) == (120, [0, 1, 2, 3, 4], 5)
    assert len(client.get("/api/search?text=photos&most=50")["rows"]) == 50
    assert client.get("/api/search?text=new+1&most=12")["named"] == [4]
    near = client.get("/api/like/7")
    assert near["total"] == 119
    assert near["rows"] == client.get("/api/near/7")["rows"][:5]
    for path in ("search", "search?text=", f"search?text={'x' * 201}", "search?text=x&most=-1", "seen?text=red"):
        assert client.ask("GET", f"/api/{path}").code == 400
    assert client.ask("GET", "/api/like/120").code == 404


class Seeing:
    """An advisor that has looked at all pictures."""

    sees, words = True, ()

    def __init__(self, store: PixelStore) -> None:
        self.rows = np.flatnonzero(store.heights > 0)

    def seen(self, text: str) -> Ints:
        return self.rows


def test_looking_ends_when_all_that_have_pixels_were_looked_at(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    store = replace(client.session.store, heights=np.where(np.arange(120) < 5, 0, client.session.store.heights))
    monkeypatch.setattr(client.session, "store", store)
    monkeypatch.setattr(client.session, "advisor", Seeing(store))
    assert client.get("/api/seen?text=red")["looked"] == [115, 115]


def test_show_more_ends_at_the_most_that_a_search_describes(
    client: Client, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MOST_FOUND", 30)
    monkeypatch.setattr(routes, "MOST_SEARCHED", 50)
    monkeypatch.setitem(routes.CONSTANTS, "most_searched", 50)
    page = opened(client, "/search")
    page.keyboard.type("photos")
    page.wait_for_function(COUNTED, arg="30 of 120 images")
    page.get_by_text("Show more").click()
    page.wait_for_function(COUNTED, arg="50 of 120 images")
    assert not page.get_by_text("Show more").is_visible()


@pytest.mark.thorough
def test_a_search_that_was_left_asks_no_more(client: Client, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client.session, "advisor", Seeing(client.session.store))
    page = opened(client)
    page.evaluate("() => { const wait = setTimeout; setTimeout = (call, ms) => wait(call, ms === 1500 ? 0 : ms); }")
    asked: list[Route] = []
    body = {**client.get("/api/search?text=photos"), "looked": [1, 120]}
    page.route("**/api/seen?*", lambda route: asked.append(route))
    press(page, "/")
    page.wait_for_selector(".search input:focus")
    page.select_option(".search select", "seen")
    with page.expect_request("**/api/seen?*"):
        page.locator(".search input").fill("photos")
    page.evaluate("location.hash = '#/'")
    page.wait_for_selector(".tiles-of a")
    with page.expect_response("**/api/seen?*"):
        asked[0].fulfill(json=body)
    for _ in range(3):
        page.evaluate("async () => (await import('/static/review/state.js')).get('/api/bin')")
    assert len(asked) == 1


@pytest.mark.thorough
def test_what_is_found_is_decided_by_the_same_keys(client: Client, opened: Open) -> None:
    page = opened(client)
    press(page, "/")
    page.wait_for_selector(".search input:focus")
    page.keyboard.type("site:north /0003")
    page.wait_for_function(COUNTED, arg="4 images")  # 30, 33, 36 and 39
    press(page, "Enter", "e")
    page.wait_for_function(COUNTED, arg="4 chosen")
    press(page, "m")
    page.wait_for_selector("#names[open]")
    page.keyboard.type("northern")
    press(page, "Enter")
    says(page, "Put 4 images into the new category 'northern'")
    press(page, "/")
    page.wait_for_selector(".search input:focus")
    page.keyboard.type("northern")  # in place of what was there
    page.wait_for_selector(".found-names a")
    page.wait_for_function(COUNTED, arg="4 images")
    page.locator(".cell").first.click()
    press(page, "l")
    page.wait_for_selector(".alike img")
    page.wait_for_function(COUNTED, arg="119 images")
    page.locator(".cell").first.click()
    press(page, "c")
    says(page, "Confirmed 1 image")
    page.locator(".cell").nth(1).click()
    press(page, "x")
    says(page, "Put 1 image into the bin")
    page.locator(".cell").nth(1).click()
    press(page, "s")
    page.wait_for_selector("#names[open]")
    assert page.inner_text("#names-title") == "Take 1 image out of the bin as"
    page.keyboard.type("rescued")
    press(page, "Enter")
    says(page, "Put 1 image into the new category 'rescued'")


@pytest.mark.thorough
def test_a_search_after_the_end_of_the_review_says_so(client: Client, opened: Open) -> None:
    page = opened(client, "/search")
    page.route("**/api/**", lambda route: route.abort("connectionrefused"))
    page.fill(".search input", "photos")
    page.wait_for_function("() => document.querySelector('.grid').innerText.includes('Has the review ended?')")
    assert page.inner_text(".chosen") == ""
