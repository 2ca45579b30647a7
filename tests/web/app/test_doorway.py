"""The file that tells the browser a link, which nobody else can read."""

from __future__ import annotations

import os
import stat
import threading
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import url2pathname

import pytest
from support.reviews import saved_run, serving, session_of, token_of, wait_for

from sortal.discovery.reviewing.open import serve
from sortal.runs.run import Run
from sortal.web.app.server import Doorway, Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return saved_run(tmp_path / "a run")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "home").mkdir()
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    return tmp_path / "home"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The arguments of browsers that are started."""
    found = list[str]()

    def start(url: str, *_: object) -> bool:
        found.append(url)
        return True

    monkeypatch.setattr(webbrowser, "open", start)
    return found


def test_the_browser_is_told_a_file_that_only_its_owner_can_read(run: Run, home: Path, told: list[str]) -> None:
    said = list[str]()
    with Server(session_of(run)) as server:
        thread = threading.Thread(target=serve, args=[server], kwargs={"browser": True, "say": said.append})
        thread.start()
        wait_for(lambda: told)
        token = token_of(said[0].removeprefix("Review: "))
        (address,) = told
        assert token.decode() not in address, "other users can read the list of processes"
        file = Path(url2pathname(address.removeprefix("file://")))
        assert token in file.read_bytes()
        assert file.parent.parent == home
        assert not file.parent.name.startswith("."), "browsers that are snaps do not see hidden folders"
        if os.name == "posix":
            assert [stat.S_IMODE(path.stat().st_mode) for path in (file, file.parent)] == [0o600, 0o700]
        server.stop()
        thread.join(timeout=60)
    assert [*home.iterdir()] == []


def test_the_file_leads_to_the_review_and_is_gone_once_it_has(
    run: Run, browser: Browser, home: Path, told: list[str]
) -> None:
    with serving(session_of(run)) as client:
        doorway = client.server._doorway = Doorway(client.server.link())
        assert doorway.open()
        page = browser.new_page()
        page.goto(told[0])
        page.wait_for_selector(".tiles-of a", timeout=60_000)
        assert [*home.iterdir()] == []
        page.close()


def test_without_a_private_place_no_browser_is_told_anything(
    home: Path, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    doorway = Doorway("http://127.0.0.1:1/#token=x")
    doorway.close()
    assert not doorway.open(), "the review has ended"
    with monkeypatch.context() as patched:
        patched.setattr("sortal.web.app.server._is_private", lambda path: False)  # as on a file system without rights
        assert not Doorway("http://127.0.0.1:1/#token=x").open()
    monkeypatch.setattr(Path, "home", lambda: home / "missing")
    assert not Doorway("http://127.0.0.1:1/#token=x").open()
    assert (told, [*home.iterdir()]) == ([], [])


@pytest.mark.skipif(os.name != "posix", reason="the browser is a script")
@pytest.mark.parametrize("home", ["home", "."], ids=["relative", "here"])
def test_an_odd_home_or_browser_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", home)
    for command in ('"unclosed %s', "/nonexistent/browser %s", "true %s"):
        monkeypatch.setattr(webbrowser, "open", lambda url, command=command: webbrowser.get(command).open(url))
        opened, doorway = command == "true %s", Doorway("http://127.0.0.1:1/#token=x")
        assert doorway.open() == opened
        assert bool([*(tmp_path / home).glob("sortal-review-*")]) == opened, "what no browser was told of is not left"
        doorway.close()
    assert not [*tmp_path.rglob("sortal-review-*")]
