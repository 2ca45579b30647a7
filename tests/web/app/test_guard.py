"""Who is let into a review, and for how long strangers may keep a connection."""

from __future__ import annotations

import json
import logging
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.reviews import Client, saved_run, serving, session_of, token_of, wait_for

from sortal.reviews.session import Session
from sortal.runs.run import DECISIONS, Run
from sortal.web.app.routes import application


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return saved_run(tmp_path / "a run")


@pytest.fixture
def client(run: Run) -> Iterator[Client]:
    with serving(session_of(run)) as client:
        yield client.enter()


PAGE = {"/", "/favicon.ico", "/static/{name:path}"}  # what holds nothing of the run


def addresses(session: Session) -> list[tuple[str, str]]:
    """Every method and path that a review answers and that is not of the bare page, with numbers filled in."""
    found = [(method, route.path) for route in application(session).routes for method in sorted(route.methods or ())]  # type: ignore[attr-defined]
    assert {path for _, path in found} >= {*PAGE, "/api/decide", "/thumb/{row:int}", "/image/{row:int}"}
    return [(method, re.sub(r"\{[^}]*\}", "0", path)) for method, path in found if path not in PAGE]


@pytest.mark.parametrize(
    "changes",
    [
        {"Authorization": None},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer "},
        {"Authorization": None, "Cookie": "key={key}; sortal-key={key}; Authorization=Bearer {key}"},
        {"Host": "evil.example"},
        {"Host": "127.0.0.1:1"},
        {"Host": ""},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"},
    ],
    ids=str,
)
def test_strangers_are_refused_whatever_they_ask(run: Run, client: Client, changes: dict[str, str | None]) -> None:
    """A new address cannot be forgotten: all that the application answers are tried."""
    body = json.dumps({"seen": 0, "action": {"do": "rename", "category": 4, "name": "mine"}}).encode()
    sent = {name: value and value.format(key=client.key) for name, value in changes.items()}
    tried = addresses(client.session)
    assert len(tried) > 20
    for method, path in tried:
        given = body if method == "POST" else None
        assert client.ask(method, path, given, Content_Type="application/json", **sent).code == 403, (method, path)
    assert not (run.folder / DECISIONS).exists()
    assert client.ask("GET", f"/api/overview?token={client.key}&key={client.key}", None, **sent).code == 403


def test_the_bare_page_is_for_whoever_comes_by_a_right_name(client: Client) -> None:
    """It holds nothing of the run, and must be found before there is a key, from a link in any program."""
    client.key = None
    for path in ("/", "/static/review/review.js", "/static/shared/style.css", "/favicon.ico"):
        assert client.ask("GET", path).code in (200, 204)
        assert client.ask("GET", path, Host="evil.example").code == 403
        assert client.ask("GET", path, Sec_Fetch_Site="cross-site").code == 403
    assert client.ask("GET", "/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate").code == 200
    for path in ("/static/../api/overview", "/static/%2e%2e/api/overview", "//api/overview", "/x/../api/overview"):
        assert client.ask("GET", path).code in (403, 404)


@pytest.mark.parametrize("origin", [None, "null", "http://evil.example", "http://127.0.0.1:1", "http://localhost"])
def test_other_sites_change_nothing(run: Run, client: Client, origin: str | None) -> None:
    body = json.dumps({"seen": 0, "action": {"do": "rename", "category": 4, "name": "mine"}}).encode()
    answer = client.ask("POST", "/api/decide", body, Content_Type="application/json", Origin=origin)
    assert answer.code == 403
    assert not (run.folder / DECISIONS).exists()
    assert client.ask("GET", "/api/overview", Origin=None).code == 200


def test_a_link_works_once_and_only_the_latest_does(run: Run) -> None:
    with serving(session_of(run)) as client:
        first, second = token_of(client.server.link()), token_of(client.server.link())
        for wrong in (
            b"",
            b"guess",
            first,
            second[:-1],
            second + b"x",
            b"\xff",
            b"x" * 10_000,
        ):  # as often as one likes
            answer = client.ask("POST", "/api/enter", wrong)
            assert (answer.code, "Press Enter" in answer.json()["message"]) == (403, True)
        assert client.ask("GET", "/api/enter", second).code == 405
        assert client.ask("POST", "/api/enter", second, Origin="http://127.0.0.1:1").code == 403
        assert client.ask("POST", "/api/enter", second, Sec_Fetch_Site="same-site").code == 403
        answer = client.ask("POST", "/api/enter", second)
        assert (answer.code, "set-cookie" in answer.headers) == (200, False)
        assert client.ask("POST", "/api/enter", second).code == 403
        client.key = answer.json()["key"]
        assert client.get("/api/version") == {"version": 0}
        assert client.enter().key == answer.json()["key"], "another link leads to the same review"


def test_cookies_of_other_services_lock_nobody_out(client: Client) -> None:
    """They are sent to all ports of a host: up to 180 of 4 KB, by Chromium."""
    assert client.ask("GET", "/", Cookie="; ".join(f"c{n}={'x' * 4000}" for n in range(180))).code == 200


def test_every_answer_forbids_what_a_page_does_not_need(client: Client) -> None:
    for path in ("/", "/api/overview", "/thumb/0", "/nothing"):
        headers = client.ask("GET", path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert not any(name.startswith("access-control") for name in headers)
        assert "set-cookie" not in headers
    assert client.ask("OPTIONS", "/api/decide").code in (403, 405)


@pytest.mark.parametrize("path", ["/api/enter", "/api/decide"])
def test_who_goes_away_in_the_middle_of_a_request_leaves_no_trace(
    run: Run, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    with serving(session_of(run)) as client:
        client.enter()
        logger = logging.getLogger("uvicorn.error")
        logger.addHandler(caplog.handler)
        try:
            for _ in range(3):
                with socket.create_connection(("127.0.0.1", client.server.port), timeout=60) as connection:
                    host, key = f"127.0.0.1:{client.server.port}", f"Authorization: Bearer {client.key}\r\n"
                    kind = "Content-Type: application/json\r\nContent-Length: 100\r\n"
                    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n{key}{kind}\r\n"
                    connection.sendall(head.encode() + b"{")
                    wait_for(lambda: client.ask("GET", "/api/version").code == 200)  # after which the first was begun
            wait_for(lambda: not client.server._server.server_state.tasks)
        finally:
            logger.removeHandler(caplog.handler)
    assert caplog.text == ""


ENTRY = "POST /api/enter HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\nContent-Length: 32\r\n\r\n"


@pytest.mark.parametrize(
    "said",
    ["", "GET / HTTP/1.1\r\nHost: ", "GET / HTTP/1.1\r\nHost: {host}\r\n\r\nGET / HTTP/1.1\r\nHo", ENTRY + "half"],
    ids=["nothing", "half a request", "one and a half requests", "half a token"],
)
def test_who_connects_and_waits_is_let_go(run: Run, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    """Another user could hold all connections that a process may have, and lock out whoever has the link."""
    monkeypatch.setattr("sortal.web.app.guard.REQUEST_PATIENCE", 0.2)
    with serving(session_of(run)) as client:
        with socket.create_connection(("127.0.0.1", client.server.port), timeout=60) as stranger:
            stranger.sendall(said.format(host=f"127.0.0.1:{client.server.port}").encode())
            while stranger.recv(65536):
                pass
        client.enter()
