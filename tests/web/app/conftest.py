"""What tests of the review app share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from support.browsing import Open
from support.reviews import Client

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page


@pytest.fixture
def opened(browser: Browser) -> Iterator[Open]:
    """Open reviews in one window; console messages, and requests to anywhere else, are errors."""
    events: list[str] = []
    contexts: dict[int, BrowserContext] = {}

    def noted(text: str) -> None:  # a late decision, and a server that has ended, are part of a test
        if "409" not in text and "ERR_CONNECTION_REFUSED" not in text:
            events.append(text)

    def open_page(client: Client, path: str = "", *, size: tuple[int, int] = (1400, 900), dark: bool = False) -> Page:
        port = client.server.port
        if port not in contexts:
            contexts[port] = browser.new_context(
                viewport={"width": size[0], "height": size[1]},
                color_scheme="dark" if dark else "light",
                reduced_motion="reduce",
            )
            url = client.server.link()
        else:
            url = client.origin + "/"
        page = contexts[port].new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda message: noted(message.text))
        page.on("pageerror", lambda error: events.append(str(error)))
        own = (client.origin, f"blob:{client.origin}")
        page.on("request", lambda asked: events.append(asked.url) if not asked.url.startswith(own) else None)
        page.goto(url)
        page.wait_for_selector(".tiles-of a")
        if path:
            page.goto(f"{client.origin}/#{path}")
            page.wait_for_selector("main > :not(.state)")
        return page

    yield open_page
    for context in contexts.values():
        context.close()
    assert events == []
