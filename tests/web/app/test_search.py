"""Search, over HTTP and in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.browsing import Open, press, says
from support.reviews import Client, saved_run, serving, session_of

from sortal.images.columns import Columns
from sortal.reviews import session as sessions
from sortal.reviews.loading import load_run, save_run

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
