"""The whole way without a terminal: from an empty start to an exported folder, in Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from PIL import Image
from support.reviews import Client

from sortal.images.datasets import digits
from sortal.system import csv_tables

from .conftest import serving_start

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

NAME, IMAGES = "some <b>digits", 60
PATIENCE = 120_000  # milliseconds


@pytest.fixture(scope="module")
def top(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with some of the digits, in a folder within a folder."""
    top = tmp_path_factory.mktemp("home")
    folder = top / "pictures" / NAME
    folder.mkdir(parents=True)
    pixels, table = digits._digits(0.5, 0)
    for name, image in zip(table["file_name"][:IMAGES], pixels, strict=False):
        Image.fromarray(image).save(folder / name)
    rows = [(name, values[:IMAGES]) for name, values in table.items()]
    (folder / digits.TABLE).write_bytes(csv_tables.table(rows))
    return top


@pytest.fixture
def window(browser: Browser) -> Iterator[BrowserContext]:
    """A window; whatever is written to the console of a page in it is an error."""
    window = browser.new_context(viewport={"width": 1400, "height": 900}, reduced_motion="reduce")
    window.set_default_timeout(PATIENCE)
    events: list[str] = []
    window.on("console", lambda message: events.append(message.text))
    window.on("weberror", lambda error: events.append(str(error.error)))
    yield window
    window.close()
    assert events == []


def opened(window: BrowserContext, client: Client) -> Page:
    page = window.new_page()
    page.goto(client.server.link())
    return page


def test_a_folder_is_chosen_and_what_is_in_it_said(top: Path, window: BrowserContext) -> None:
    with serving_start(top) as client:
        page = opened(window, client)
        choose(page)
        page.wait_for_selector(f"text=/{IMAGES} images: .* labelled in 5 classes/")
        page.close()


@pytest.mark.thorough
def test_from_an_empty_start_to_an_exported_folder(top: Path, window: BrowserContext) -> None:
    with serving_start(top) as client:
        page = opened(window, client)
        choose(page)
        look_ahead(page)
        stop_and_resume(page)
        page.close()  # which stops nothing
        page = opened(window, client)
        page.click(".going a")
        page.wait_for_selector("h1:has-text('digits-run')")
        review(page, window)
        export(page, top / "pictures" / "sorted")
        look_again(page)
        page.close()


def choose(page: Page) -> None:
    page.click(".folders a:has-text('pictures')")
    page.click(".folders a:has-text('digits')")
    page.wait_for_selector(f"text={IMAGES} images here.")
    assert page.inner_text(".here .name") == NAME, "names are text"
    page.click("text=Sort this folder")


def look_ahead(page: Page) -> None:
    """See what a check finds, and what sorting will take with other settings."""
    page.click("summary:has-text('Settings')")  # before the check is done, so that there is one forecast
    page.fill("label:has-text('Number of categories') input", "6")
    page.fill("label:has-text('epochs') input", "0")
    page.press("label:has-text('epochs') input", "Tab")
    page.wait_for_selector(f"text=/{IMAGES} images: .* labelled in 5 classes/")
    assert page.is_checked("input[value=table]")
    page.wait_for_selector(".costs dd:has-text('convnet')")  # which suits images as tiny as these
    assert page.inner_text(".figure").startswith("about ")
    assert "undefined" not in page.inner_text("main")
    change_and_change_back(page)


def change_and_change_back(page: Page) -> None:
    """Have an estimate ended by another before it is there; nobody has stopped it."""
    for epochs in ("1", "2", "1"):
        page.fill("label:has-text('epochs') input", epochs)
        page.press("label:has-text('epochs') input", "Tab")
        page.wait_for_selector(".before progress")
    page.wait_for_selector(".costs, .before :text('Stopped.')")
    assert page.locator(".costs").count() == 1
    page.fill("label:has-text('epochs') input", "0")
    page.press("label:has-text('epochs') input", "Tab")
    page.wait_for_selector(".costs")


def stop_and_resume(page: Page) -> None:
    page.click("text=Start sorting")
    page.click(".during button:has-text('Stop')")  # long before PyTorch is loaded
    page.click("text=Resume")
    page.wait_for_selector(".during >> text=/^[1-9]\\d* s so far/")
    page.wait_for_selector("#now:has-text('Sorting')")


def review(page: Page, window: BrowserContext) -> None:
    with window.expect_page() as tab:
        page.click("button:has-text('Review')")
    tab.value.wait_for_selector(".tiles-of a")
    tab.value.close()
    page.click("text=End it")
    page.wait_for_selector("text=The review is open.", state="hidden")


def export(page: Page, out: Path) -> None:
    page.fill("label:has-text('Name') input", out.name)
    page.click("button:has-text('Export')")
    page.wait_for_selector(f"text={IMAGES} images written as folders")
    assert len([*out.rglob("*.png")]) == IMAGES
    page.click("button:has-text('Export')")
    page.wait_for_selector(".warning:has-text('must be new or empty')")


def look_again(page: Page) -> None:
    """See what sorting again would take: with the network of the run, which nobody has named this time."""
    page.click("text=Sort again")
    page.wait_for_selector("h1:has-text('again')")
    page.wait_for_selector(".costs dd:has-text('convnet')")
    assert page.locator("legend").count() == 0, "labels are those of the run"
