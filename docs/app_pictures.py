"""Take the pictures of docs/app.md, from a folder of images to an export: python docs/app_pictures.py FOLDER docs

FOLDER is the one to choose from; it has the digits of `sortal sample` in pictures/digits.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from picture import REPLACE_TEXT, opened, save, served, shot
from playwright.sync_api import Page, ViewportSize

VIEWPORT: ViewportSize = {"width": 1000, "height": 640}  # CSS pixels
HIGHEST, LOWEST = 1100, 300  # pixels of a picture
COLOURS, LIMIT = 64, 150_000  # of the palette; bytes
SORTING = 600_000  # milliseconds that it may take


def walk(page: Page, take: Callable[[Page, str], None]) -> None:
    """Go the whole way, and take a picture at each step."""
    page.click(".folders a:has-text('pictures')")
    page.click(".folders a:has-text('digits')")
    page.wait_for_selector("text=images here.")
    take(page, "folder")
    page.click("text=Sort this folder")
    page.wait_for_selector(".costs dd:has-text('convnet')")
    take(page, "look")
    page.click("text=Start sorting")
    page.wait_for_selector(".during >> text=/Learning.*left in this step/", timeout=SORTING)
    take(page, "sorting")
    page.wait_for_selector("h1:has-text('digits-run')", timeout=SORTING)
    with page.context.expect_page() as tab:
        page.click("button:has-text('Review')")
    tab.value.wait_for_selector(".tiles-of img")
    tab.value.wait_for_load_state("networkidle")
    take(tab.value, "review")
    page.click("button:has-text('Export')")
    page.wait_for_selector("text=images written as folders")
    take(page, "export")


def main(folder: Path, out: Path) -> None:
    """Serve the start page of a folder, and write the pictures."""

    def take(page: Page, name: str) -> None:
        page.evaluate(REPLACE_TEXT, [str(folder.resolve()), "/home/you"])
        page.evaluate("scrollTo(0, 0)")
        height = page.evaluate("document.querySelector('main').scrollHeight") + 60
        part = max(min(height, HIGHEST), LOWEST)
        picture = shot(page, {"x": 0, "y": 0, "width": VIEWPORT["width"], "height": part})
        save(picture, out / f"app-{name}.png", COLOURS, LIMIT)

    with served("app", str(folder)) as link, opened(link, VIEWPORT) as page:
        walk(page, take)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
