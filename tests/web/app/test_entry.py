"""The way into a review, in a browser: by a link that nobody else gets to see, and nothing that others are sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.reviews import Client, answers, saved_run, serving, session_of, token_of, wait_for

from sortal.runs.run import DECISIONS, Run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return saved_run(tmp_path / "a run")


@pytest.fixture
def client(run: Run) -> Iterator[Client]:
    with serving(session_of(run)) as client:
        yield client


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page in which errors fail the test, but for requests that are refused on purpose."""
    context, errors = browser.new_context(), list[str]()
    page = context.new_page()
    page.set_default_timeout(60_000)
    expected = ("403", "ERR_CONNECTION_REFUSED", "ERR_BLOCKED_BY_RESPONSE.NotSameOrigin")
    page.on(
        "console", lambda message: None if any(e in message.text for e in expected) else errors.append(message.text)
    )
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    context.close()
    assert errors == []


@contextmanager
def another_service(*cookies: str) -> Iterator[tuple[str, list[str]]]:
    """Serve another site on another port, which sets cookies; yield its origin, and what it gets to see."""
    seen = list[str]()

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(f"{self.path}\n{self.headers}")
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            for each in cookies:
                self.send_header("Set-Cookie", each)
            self.end_headers()
            self.wfile.write(b"<p>another service")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", seen
        finally:
            server.shutdown()
            thread.join()


def test_another_service_of_the_host_learns_nothing_and_locks_nobody_out(client: Client, run: Run, page: Page) -> None:
    with another_service("sortal-key=evil", f"sortal-{client.server.port}=evil; Path=/") as (origin, seen):
        link = client.server.link()
        page.goto(link)
        page.wait_for_selector(".tiles-of a")
        key = page.evaluate("() => sessionStorage.getItem('sortal-key')")
        assert key
        page.goto(f"{origin}/first")
        page.goto(f"{origin}/second")  # with its own cookies
        assert "sortal-key=evil" in seen[-1]
        assert not any(secret in text for text in seen for secret in (key, token_of(link).decode()))
        assert page.evaluate("() => [sessionStorage.length, localStorage.length]") == [0, 0]
        # It knows where the review is, and asks for everything it can, as the browser of this person.
        ask = """async ([to, body]) => {
            const options = { method: body ? 'POST' : 'GET', body, mode: 'no-cors', credentials: 'include' };
            try { return (await fetch(to, options)).type } catch { return 'failed' }
        }"""
        decision = '{"seen": 0, "action": {"do": "rename", "category": 4, "name": "mine"}}'
        for path, body in (("/api/decide", decision), ("/api/overview", None), ("/thumb/0", None), ("/api/enter", "x")):
            assert page.evaluate(ask, [client.origin + path, body]) in ("failed", "opaque")
        assert not (run.folder / DECISIONS).exists()
        page.evaluate("() => { for (let n = 0; n < 150; n++) document.cookie = `c${n}=${'x'.repeat(4000)}; path=/` }")
    page.goto(client.origin + "/")
    page.wait_for_selector(".tiles-of a")
    page.wait_for_function("() => document.querySelector('.strip img').naturalWidth > 0")
    assert page.evaluate("() => document.cookie.length") > 500_000, "which the review got, and did not mind"


def test_a_link_leaves_no_token_and_a_page_can_be_reloaded_and_opened_again(client: Client, page: Page) -> None:
    asked = list[str]()
    page.on("request", lambda request: asked.append(request.url + str(request.headers)))
    link = client.server.link()
    page.goto(link)
    page.wait_for_selector(".tiles-of a")
    assert page.url == client.origin + "/"
    token = token_of(link).decode()
    assert not any(token in each for each in asked), "the token is in no address and no header"
    page.reload()
    page.wait_for_selector(".tiles-of a")
    other = page.context.new_page()  # which another tab lets in
    other.goto(f"{client.origin}/#/category/4")
    other.wait_for_selector(".cell img")
    page.close()
    other.reload()
    other.wait_for_selector(".cell img")
    assert other.evaluate("() => document.cookie") == ""


@pytest.mark.thorough
def test_a_link_that_was_used_says_how_to_get_another(client: Client, page: Page) -> None:
    used = client.server.link()
    client.ask("POST", "/api/enter", token_of(used))
    page.goto(used)
    page.wait_for_selector(".locked")
    assert "This link has been used" in page.inner_text("h1")
    assert "press Enter in the terminal" in page.inner_text("main")
    assert page.url == client.origin + "/"
    assert not page.locator(".tools").is_visible()
    page.goto(client.server.link())  # only the fragment changes, so nothing is loaded by itself
    page.wait_for_selector(".tiles-of a")


@pytest.mark.thorough
def test_a_page_without_a_link_and_one_of_an_earlier_review_say_so(run: Run, client: Client, page: Page) -> None:
    page.goto(client.origin + "/")
    page.wait_for_selector(".locked")
    assert "This page needs a link" in page.inner_text("h1")
    page.goto(client.server.link())
    page.wait_for_selector(".tiles-of a")
    port = client.server.port
    client.server.stop()
    wait_for(lambda: not answers(port))
    with serving(session_of(run), port=port) as again:
        page.reload()
        page.wait_for_selector(".locked")
        page.goto(again.server.link())
        page.wait_for_selector(".tiles-of a")
