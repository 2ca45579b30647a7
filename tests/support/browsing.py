"""The browser that tests look at pages with, and what they do in it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
CHROMIUM = next((found for name in NAMES if (found := shutil.which(name))), None)
Open = Callable[..., "Page"]


@contextmanager
def browsing() -> Iterator[Browser]:
    """Start Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Containers have no sandbox, and the pages are our own.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def says(page: Page, text: str) -> None:
    """Wait for a message of the review."""
    page.wait_for_function("text => document.getElementById('toast').textContent.includes(text)", arg=text)


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)
