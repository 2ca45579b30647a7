"""The review in a browser: everything by mouse and by keyboard, in several tabs, with any number of images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.browsing import Open, press, says
from support.reviews import Client, saved_run, serving, session_of
from support.thorough import thorough_but

from sortal.images.columns import Columns
from sortal.images.review_states import ReviewState
from sortal.reviews.loading import load_run, save_run
from sortal.reviews.questions import Guide
from sortal.runs.run import DECISIONS, Run

WINDOW, PHONE = (1400, 900), (390, 844)


@pytest.fixture
def run(tmp_path: Path, request: pytest.FixtureRequest) -> Run:
    """Ten categories of 12 images, or as many as asked for; the first four are known."""
    categories = getattr(request, "param", 10)
    return saved_run(tmp_path / "run", images=12 * categories, categories=categories, known=min(4, categories - 2))


@pytest.fixture
def client(run: Run) -> Iterator[Client]:
    with serving(session_of(run)) as client:
        yield client


def names(run: Run) -> list[str]:
    return [each.name for each in load_run(run.folder).categories]


@pytest.mark.parametrize("run", [4], indirect=True)
def test_categories_are_settled_by_keyboard_alone(run: Run, client: Client, opened: Open) -> None:
    """Every category is opened, named and confirmed as a whole."""
    page = opened(client)
    for number in range(4):
        press(page, "h")
        page.wait_for_selector(".queue a, .intro")
        link = page.locator(f'.tiles-of a[href="#/category/{number}"]')
        while not link.evaluate("link => link === document.activeElement"):
            press(page, "j")
        press(page, "Enter")
        page.wait_for_selector(".cell img")
        press(page, "r")
        page.wait_for_selector("#names[open]")
        page.keyboard.type(f"kind {number}")
        press(page, "Enter")
        says(page, f"to 'kind {number}'")
        press(page, "A")
        page.wait_for_selector("#ask[open]")
        press(page, "Enter")
        says(page, "Confirmed all")
    press(page, "h")
    page.wait_for_function("() => document.body.textContent.includes('Every image is settled')")
    found = load_run(run.folder)
    assert sorted(each.name for each in found.categories) == [f"kind {number}" for number in range(4)]
    assert (found.assignments.reviewed == ReviewState.CONFIRMED).all()


def test_merge_split_move_rename_undo_restart_and_redo(run: Run, opened: Open, tmp_path: Path) -> None:
    with serving(session_of(run)) as client:
        page = opened(client, "/category/4")
        page.wait_for_selector(".cell img")
        press(page, " ", "ArrowRight", " ", "s")  # the first two, off
        page.wait_for_selector("#names[open]")
        page.keyboard.type("fern")
        press(page, "Enter")
        says(page, "Put 2 images into the new category 'fern'")
        press(page, "Shift+ArrowRight", "Shift+ArrowRight", "m")
        page.wait_for_selector("#names[open]")
        page.keyboard.type("class 1")
        press(page, "Enter")
        says(page, "Moved 3 images to 'class 1'")
        press(page, "g")
        page.wait_for_selector("#names[open]")
        page.keyboard.type("new 2")
        press(page, "Enter")
        page.wait_for_selector("#ask[open]")
        press(page, "Enter")
        says(page, "Merged 'new 1' into 'new 2'")
        page.wait_for_url("**/category/5")
        press(page, "Control+z")
        says(page, "Undid: merged")
        press(page, "Control+z")
        says(page, "Undid: moved 3 images")
    assert names(run) == [*run.names.values(), "fern"]
    with serving(session_of(load_run(run.folder, raw=True))) as client:  # after a restart
        page = opened(client, "/category/4")
        assert page.get_attribute("#redo", "title") == "Redo: moved 3 images to 'class 1'"
        press(page, "Control+Shift+Z")
        says(page, "Redid: moved 3 images")
        press(page, "Control+Shift+Z")
        says(page, "Redid: merged")
    found = load_run(run.folder)
    assert "new 1" not in found.names.values()
    assert (found.assignments.reviewed == ReviewState.MOVED).sum() == 5


def test_an_exact_name_asks_before_merging_and_a_beginning_is_not_taken_for_it(
    run: Run, client: Client, opened: Open
) -> None:
    page = opened(client, "/category/4")
    page.wait_for_selector(".cell img")
    press(page, "r")
    page.wait_for_selector("#names[open]")
    page.keyboard.type("class")  # the beginning of four names
    press(page, "Enter")
    says(page, "Renamed 'new 1' to 'class'")
    press(page, "r")
    page.wait_for_selector("#names[open]")
    page.keyboard.type("class 2")
    press(page, "Enter")
    page.wait_for_selector("#ask[open]")
    assert "Merge class (12 images) into class 2" in page.inner_text("#ask")
    press(page, "Escape")
    page.wait_for_selector("#ask:not([open])", state="attached")
    assert "class 2" in names(run)
    assert len(names(run)) == 10


def test_keys_do_nothing_while_a_field_or_a_dialog_has_the_keyboard(run: Run, client: Client, opened: Open) -> None:
    page = opened(client, "/category/4")
    page.wait_for_selector(".cell img")
    press(page, "?")
    page.wait_for_selector("#help[open]")
    assert "confirm all in view but the chosen" in page.inner_text("#help")
    press(page, "a", "A", "x", "w", "Escape")
    page.focus("select")
    press(page, "c", "x", "w")
    assert not (run.folder / DECISIONS).exists()


@pytest.mark.thorough
def test_the_bin_takes_images_shows_them_and_gives_them_back(run: Run, client: Client, opened: Open) -> None:
    page = opened(client, "/category/4")
    page.wait_for_selector(".cell img")
    assert page.locator('a[href="#/bin"]').count() == 0, "there is no bin before anything is in it"
    shown = page.eval_on_selector_all(".cell", "cells => cells.slice(0, 3).map((cell) => Number(cell.dataset.row))")
    press(page, "Shift+ArrowRight", "Shift+ArrowRight", "x")
    says(page, "Put 3 images into the bin")
    assert [*np.flatnonzero(load_run(run.folder).assignments.binned)] == sorted(shown)
    press(page, "h")
    page.click('a[href="#/bin"]:has-text("3 images in no category")')
    page.wait_for_selector(".cell img")
    press(page, "x")
    says(page, "Choose images first")
    press(page, " ", "x")
    says(page, "Took 1 image out of the bin")
    page.wait_for_function("() => document.querySelectorAll('.cell').length === 2")
    press(page, "Enter")
    page.wait_for_selector(".large dl")
    assert "in the bin" in page.inner_text("dl")
    page.evaluate("() => document.getElementById('toast').replaceChildren()")
    press(page, "x")
    says(page, "Took 1 image out of the bin")
    press(page, "Control+z")
    says(page, "Undid: took 1 image out of the bin")
    press(page, "Escape")
    page.wait_for_selector("h1:has-text('Bin')")
    assert load_run(run.folder).assignments.binned.sum() == 2
    page.goto(f"{client.origin}/#/map")
    page.wait_for_function("() => document.querySelector('canvas')?.dataset.labels")
    assert page.inner_text(".chosen") == "Draw around images to choose them.", "all but the bin is shown"
    assert "No images here" not in page.inner_text("main")


@pytest.mark.thorough
def test_images_are_chosen_by_clicks_ranges_and_a_box(client: Client, opened: Open) -> None:
    page = opened(client, "/category/4")
    page.wait_for_selector(".cell img")
    cells = page.locator(".cell")
    cells.nth(2).click()
    cells.nth(5).click(modifiers=["Shift"])
    assert page.inner_text(".chosen") == "4 of 12 chosen"
    cells.nth(3).click(modifiers=["Control"])
    assert page.inner_text(".chosen") == "3 of 12 chosen"
    cells.nth(8).click()
    assert page.inner_text(".chosen") == "4 of 12 chosen", "a second click adds, as in questions"
    cells.nth(8).click()
    assert page.inner_text(".chosen") == "3 of 12 chosen"
    first, second = cells.nth(0).bounding_box(), cells.nth(1).bounding_box()
    assert first is not None
    assert second is not None
    page.mouse.move(first["x"] + 10, first["y"] + 10)
    page.mouse.down()
    page.mouse.move(second["x"] + 60, second["y"] + 60, steps=5)
    page.mouse.up()
    assert page.inner_text(".chosen") == "2 of 12 chosen"
    press(page, "Control+a")
    assert page.inner_text(".chosen") == "12 of 12 chosen"
    press(page, "Escape", "e")
    assert page.inner_text(".chosen") == "12 of 12 chosen"


@pytest.mark.thorough
def test_images_that_are_split_off_by_hand_are_settled(client: Client, opened: Open) -> None:
    page = opened(client, "/category/4")
    page.wait_for_selector(".cell img")
    cells = [page.locator(".cell").nth(at) for at in (1, 3)]
    rows = [int(cell.get_attribute("data-row") or -1) for cell in cells]
    for cell in cells:
        cell.click()
    press(page, "s")
    page.wait_for_selector("#names[open]")
    page.keyboard.type("rowan")
    press(page, "Enter")
    says(page, "Put 2 images into the new category 'rowan'")
    review = client.session._review
    assert {review.categories[int(each)].name for each in review.category[rows]} == {"rowan"}
    assert review.settled[rows].all()


def test_one_key_confirms_what_is_in_view_but_the_marked(run: Run, client: Client, opened: Open) -> None:
    page = opened(client, "/category/4")
    page.wait_for_selector(".cell img")
    page.locator(".cell").nth(1).click()
    press(page, "a")
    says(page, "Confirmed 11 images")
    press(page, "w")
    says(page, "Rejected 1 image from 'new 1'")
    states = load_run(run.folder).assignments.reviewed
    assert ((states == ReviewState.CONFIRMED).sum(), (states == ReviewState.REJECTED).sum()) == (11, 1)


@pytest.mark.thorough
def test_a_group_is_a_stack_and_columns_filter_and_colour(tmp_path: Path, opened: Open) -> None:
    run = saved_run(tmp_path / "run", images=120, categories=10)
    rows, group = np.flatnonzero(run.assignments.category_id == 4), run.assignments.group.copy()
    group[rows[:3]] = group[rows[0]]
    cells = ["" if row not in rows else str(row) for row in range(120)]
    columns = Columns.infer(["site", "<b>weight</b>"], [["north"] * 90 + ["south"] * 30, cells])
    save_run(replace(run, assignments=replace(run.assignments, group=group, columns=columns)))
    run = load_run(run.folder, raw=True)
    with serving(session_of(run)) as client:
        page = opened(client, "/category/4")
        page.wait_for_selector(".cell img")
        assert page.locator(".cell").count() == 10
        assert page.inner_text(".chosen") == "12 images"
        page.locator(".cell:has(.stack)").click()
        assert page.inner_text(".chosen") == "3 of 12 chosen"
        press(page, "c")
        says(page, "Confirmed 3 images")
        page.locator("button.toggle").click()
        page.wait_for_function("() => document.querySelectorAll('.cell').length === 12")
        page.locator("select[aria-label=Column]").select_option(label="<b>weight</b>")
        page.locator(".filter input").fill(f">={rows[-2]}")
        page.keyboard.press("Enter")
        page.wait_for_function("() => document.querySelectorAll('.cell').length === 2")
        page.locator("select[aria-label=Order]").select_option("down")
        page.wait_for_function(f"() => document.querySelector('.cell bdi').textContent === '{rows[-1]}'")
        page.goto(f"{client.origin}/#/image/{rows[0]}")
        page.wait_for_selector(".large dl")
        assert "<b>weight</b>" in page.inner_text(".large dl")
        assert page.locator(".large .strip").first.locator("a").count() == 2
        page.goto(f"{client.origin}/#/map")
        page.wait_for_selector("canvas")
        page.locator("select[aria-label='Colour by']").select_option(label="By site")
        told = "text => document.querySelector('#legend').innerText.split(/\\s+/).join(' ') === text"
        page.wait_for_function(told, arg="north 90 south 30")
        bin_first = "async () => (await import('/static/review/state.js')).decide({ do: 'bin', rows: [0] })"
        page.evaluate(bin_first)
        page.wait_for_function(told, arg="north 89 south 30")
    assert (load_run(run.folder).assignments.reviewed[rows[:3]] == ReviewState.CONFIRMED).all()


@pytest.mark.thorough
def test_a_page_is_confirmed_but_for_labelled_images_of_its_stacks(tmp_path: Path, opened: Open) -> None:
    run = saved_run(tmp_path / "run", images=120, categories=10)
    a = run.assignments
    rows, group = np.flatnonzero(a.category_id == 0), a.group.copy()
    labelled = np.array([a.labels[row] is not None for row in rows])
    group[rows] = group[rows[0]]
    save_run(replace(run, assignments=replace(a, group=group)))
    with serving(session_of(load_run(run.folder, raw=True))) as client:
        page = opened(client, "/category/0")
        page.wait_for_selector(".cell img")
        assert page.locator(".cell").count() == 1
        page.get_by_role("button", name="Confirm page").click()
        says(page, f"Confirmed {(~labelled).sum()} images")
    assert 0 < labelled.sum() < len(rows)


def test_tabs_see_each_other_and_a_late_decision_changes_nothing(run: Run, client: Client, opened: Open) -> None:
    one, two = opened(client, "/category/4"), opened(client, "/category/5")
    one.wait_for_selector(".cell img")
    two.wait_for_selector(".cell img")
    two.locator(".cell").nth(0).click()
    press(one, "r")
    one.wait_for_selector("#names[open]")
    one.keyboard.type("fern")
    with one.expect_response("**/api/decide"):
        press(one, "Enter")
    # The other tab decides before it has heard of it, or after; either way it catches up and keeps what it chose.
    with two.expect_response("**/api/decide") as answered:
        press(two, "c")
    if answered.value.status == 409:
        says(two, "someone else decided first: Renamed 'new 1' to 'fern'")
        assert two.inner_text(".chosen") == "1 of 12 chosen"
        press(two, "c")
    says(two, "Confirmed 1 image")
    one.wait_for_function("() => document.querySelector('.progress span').textContent.startsWith('17 of 120')")
    assert [each.decisions for each in [load_run(run.folder)]] == [2]


@pytest.mark.thorough
def test_a_lasso_on_the_map_chooses_images(run: Run, client: Client, opened: Open) -> None:
    page = opened(client, "/map")
    page.wait_for_selector("canvas")
    page.wait_for_function("() => document.querySelector('.chosen').textContent.startsWith('Draw around')")
    box = page.locator("canvas").bounding_box()
    assert box is not None
    corners = [(0.0, 0.0), (1.0, 0.0), (1.0, 0.5), (0.0, 0.5), (0.0, 0.01)]
    # Points keep 20 pixels from the edge, whose corners are round.
    places = [(box["x"] + 14 + (box["width"] - 28) * x, box["y"] + 14 + (box["height"] - 28) * y) for x, y in corners]
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=4)
    page.mouse.up()
    page.wait_for_selector(".cell img")
    count = int(page.inner_text(".chosen").split()[0])
    at = client_map(client)
    assert count == sum(y < 9999 / 2 for y in at["y"]), "those in the upper half"
    press(page, "m")
    page.wait_for_selector("#names[open]")
    page.keyboard.type("upper")
    press(page, "Enter")
    says(page, f"Put {count} images into the new category 'upper'")
    page.select_option("select", "confidence")
    assert (load_run(run.folder).assignments.reviewed == ReviewState.MOVED).sum() == count
    press(page, "s")  # what is in the lasso is now in one category
    page.wait_for_selector("#names[open]")
    page.keyboard.type("split")
    press(page, "Enter")
    says(page, f"Put {count} images into the new category 'split'")


def client_map(client: Client) -> Any:
    """Ask for the map as the page does, in this process."""
    return client.session.map()


@pytest.mark.thorough
def test_two_categories_side_by_side(run: Run, client: Client, opened: Open) -> None:
    page = opened(client, "/pair/4/5")
    page.wait_for_selector(".two .cell img")
    page.locator(".two > section").nth(1).locator(".cell").nth(0).click()
    press(page, "m")
    says(page, "Moved 1 image to 'new 1'")
    press(page, "g")
    page.wait_for_selector("#ask[open]")
    press(page, "Enter")
    says(page, "Merged 'new 2' into 'new 1'")
    assert "new 2" not in names(run)


@pytest.mark.thorough
def test_an_image_is_looked_at_and_moved(run: Run, client: Client, opened: Open) -> None:
    page = opened(client, "/category/4")
    page.wait_for_selector(".cell img")
    press(page, "Enter")
    page.wait_for_selector("img.main")
    first = page.url
    press(page, "ArrowRight")
    page.wait_for_function("before => location.href !== before", arg=first)
    page.wait_for_selector(".large button")
    page.locator(".large button").first.click()
    says(page, "Moved 1 image to")
    press(page, "Escape")
    page.wait_for_selector(".cell img")
    assert (load_run(run.folder).assignments.reviewed == ReviewState.MOVED).sum() == 1


@pytest.mark.parametrize(("dark", "size"), thorough_but([(False, PHONE)], product([False, True], [WINDOW, PHONE])))
def test_no_page_is_wider_than_the_window(client: Client, opened: Open, size: tuple[int, int], dark: bool) -> None:
    page = opened(client, size=size, dark=dark)
    for path in ("/", "/next", "/category/4", "/split/4", "/pair/4/5", "/map", "/image/3", "/refit", "/nothing"):
        page.goto(f"{client.origin}/#{path}")
        page.wait_for_function("path => location.hash === '#' + path", arg=path)
        page.wait_for_selector("main > *")
        assert page.evaluate("() => document.documentElement.scrollWidth") <= size[0]


@pytest.mark.thorough
def test_twenty_thousand_images_are_few_elements_and_a_range_is_exact(
    tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Guide, "questions", lambda *_: [])  # which take longer than all of this
    category = np.minimum(np.arange(20_000), 1)
    run = saved_run(tmp_path / "run", images=20_000, categories=2, known=1, category=category)
    with serving(session_of(run)) as client:
        page = opened(client, "/category/1")
        page.wait_for_selector(".cell img")
        page.locator(".cell").nth(3).click()
        target = 10_002  # the index of the last of 10,000 from the fourth
        page.evaluate("share => scrollTo(0, share * document.querySelector('.grid').offsetHeight)", target / 19_999)
        cell = page.locator(f"[aria-label^='Image {target + 1} of ']")
        cell.wait_for()
        assert page.locator(".cell img").count() < 500
        cell.click(modifiers=["Shift"])
        assert page.inner_text(".chosen") == "10,000 of 19,999 chosen"
        press(page, "c")
        says(page, "Confirmed 10,000 images")
    assert (load_run(run.folder).assignments.reviewed == ReviewState.CONFIRMED).sum() == 10_000
