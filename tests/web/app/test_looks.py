"""What fits on a screen: pictures and tools, on a desk and on a phone; the map and its legend."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from support.browsing import Open, press
from support.reviews import Client, saved_run, serving, session_of

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.thorough

PHONE = (390, 844)
SCALED = "least => Number(document.querySelector('canvas').dataset.scale) > least"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A review of ten categories of 12 images, about which nothing is decided here."""
    with serving(session_of(saved_run(tmp_path_factory.mktemp("run") / "run", images=120, categories=10))) as client:
        yield client


def box(page: Page, selector: str) -> dict[str, float]:
    found = page.locator(selector).first.bounding_box()
    assert found is not None
    sides = {"x": found["x"], "y": found["y"], "width": found["width"], "height": found["height"]}
    return {**sides, "bottom": found["y"] + found["height"]}


def test_images_come_before_tools_on_a_phone_and_what_tools_cover_is_not_in_view(client: Client, opened: Open) -> None:
    page = opened(client, "/category/4", size=PHONE)
    page.wait_for_selector(".cell img[src]")
    assert box(page, ".cell")["bottom"] < box(page, ".sticky button")["y"]
    assert sum(page.locator(".sticky button").nth(at).is_visible() for at in range(11)) <= 5
    press(page, "e")
    covered = "() => document.querySelector('.sticky').getBoundingClientRect().top"
    bottoms = "cells => cells.map((cell) => cell.getBoundingClientRect().bottom)"
    end = page.evaluate(covered)
    chosen = page.locator(".cell.chosen").evaluate_all(bottoms)
    others = page.locator(".cell:not(.chosen)").evaluate_all(bottoms)
    assert max(chosen) <= end < min(others)


def test_pictures_fill_the_window_and_a_chosen_size_is_remembered(client: Client, opened: Open) -> None:
    page = opened(client, "/category/4")
    page.wait_for_selector(".cell img[src]")
    page.wait_for_function("() => document.querySelector('.cell').offsetWidth > 200")  # 12 images
    assert page.evaluate("() => document.documentElement.scrollHeight <= innerHeight")
    before = box(page, ".cell")["width"]
    press(page, "-", "-")
    page.wait_for_function("before => document.querySelector('.cell').offsetWidth < before - 20", arg=before)
    small = box(page, ".cell")["width"]
    page.reload()
    page.wait_for_selector(".cell img[src]")
    page.wait_for_function("small => Math.abs(document.querySelector('.cell').offsetWidth - small) < 1", arg=small)
    page.locator("#size").fill("9")  # the largest
    page.wait_for_function("() => document.querySelector('.cell').offsetWidth > 320")
    page.wait_for_selector(".cell img[data-path^='/image/']")
    assert page.evaluate("() => document.activeElement.id") != "size", "keys work on"


def test_an_image_is_whole_in_the_window_and_its_name_is_small(client: Client, opened: Open) -> None:
    page = opened(client, "/image/3")
    page.wait_for_selector("img.main[src]")
    picture = box(page, "img.main")
    assert picture["height"] > 900 * 0.8
    assert picture["bottom"] <= 900
    size = "element => parseFloat(getComputedStyle(element).fontSize)"
    assert page.locator(".large .file").evaluate(size) < page.locator(".large dd").first.evaluate(size)
    press(page, "l")
    page.wait_for_url("**/like/3")


def test_the_map_has_names_and_a_legend_and_is_zoomed_by_wheel_and_pinch(client: Client, opened: Open) -> None:
    page = opened(client, "/map")
    page.wait_for_selector("#legend button")
    legend = page.locator("#legend .name").all_inner_texts()
    assert sorted(legend) == sorted(client.session.run.names.values())
    page.wait_for_function("() => document.querySelector('canvas').dataset.labels")
    names = page.evaluate("() => document.querySelector('canvas').dataset.labels").split("\n")
    assert {*names} <= {*legend}
    page.locator("#legend button").first.click()
    page.wait_for_function(SCALED, arg=1)
    page.locator("#legend button").first.click()
    page.wait_for_function("() => document.querySelector('canvas').dataset.scale === '1.000'")
    canvas = box(page, "canvas")
    x, y = canvas["x"] + canvas["width"] / 2, canvas["y"] + canvas["height"] / 2
    page.mouse.move(x, y)
    page.mouse.wheel(0, -200)
    page.wait_for_function(SCALED, arg=1)
    by_wheel = float(page.locator("canvas").get_attribute("data-scale") or 0)
    touch = page.context.new_cdp_session(page)
    for kind, far in (("touchStart", 20), ("touchMove", 60), ("touchMove", 80)):
        points = [{"x": x - far, "y": y, "id": 0}, {"x": x + far, "y": y, "id": 1}]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    page.wait_for_function(SCALED, arg=2 * by_wheel)
    assert page.inner_text(".chosen").startswith("Draw around"), "nothing was chosen"
    page.locator("select").select_option("status")
    page.wait_for_function("() => document.querySelector('#legend').textContent.includes('known')")
