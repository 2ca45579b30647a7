"""A run under review, served to tests; and a client that says exactly what it is told to."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.parse import urlsplit

from sortal.discovery.reviewing.advice import Advice
from sortal.images.originals import Originals
from sortal.reviews import journal
from sortal.reviews.loading import load_run, save_run
from sortal.reviews.session import Session
from sortal.runs.run import DECISIONS, Run
from sortal.web.app.server import Server
from support.sample_run import place, sample_run
from support.stores import same_store

WORDS = ("oak", "ash tree", "maple")


def saved_run(folder: Path, *, images: int = 72, **options: Any) -> Run:
    run = replace(sample_run(images=images, **options), folder=folder)
    save_run(run)
    return load_run(folder, raw=True)


class Untouched(Originals):
    """The originals of images that have no files: as if all were as they were sorted."""

    def look(self, row: int) -> str:
        return ""


def session_of(run: Run, people: tuple[str, ...] = ()) -> Session:
    """Open the review of a saved run, with pixels of noise."""
    store = same_store(len(run.assignments))
    lines = journal.read(run.folder / DECISIONS, run.facts)
    advisor = Advice(run=run, store=store, device="cpu", words=WORDS)
    originals = Untouched([""] * len(run.assignments), run.assignments.contents)
    return Session(
        run=run, store=store, originals=originals, place=place, lines=list(lines), advisor=advisor, people=people
    )


@dataclass
class Answer:
    code: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Client:
    """Asks a server; there is no `key` before the link was followed."""

    server: Server
    session: Session
    key: str | None = None

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str | None) -> Answer:
        key = None if self.key is None else f"Bearer {self.key}"
        usual = {"Host": f"127.0.0.1:{self.server.port}", "Authorization": key, "Origin": self.origin}
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {name: value for name, value in {**usual, **given}.items() if value is not None}
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in sent.items():
                connection.putheader(name, value)
            if body is not None:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def enter(self, person: str = "") -> Client:
        """Follow a link, as the page does, and keep the key."""
        answer = self.ask("POST", "/api/enter", token_of(self.server.link(person)))
        assert answer.code == 200, answer.body
        self.key = answer.json()["key"]
        return self

    def get(self, path: str) -> Any:
        answer = self.ask("GET", path)
        assert answer.code == 200, answer.body
        return answer.json()

    def decide(self, seen: int, **action: Any) -> Answer:
        body = json.dumps({"seen": seen, "action": action}).encode()
        return self.ask("POST", "/api/decide", body, Content_Type="application/json")


def token_of(link: str) -> bytes:
    """Return the token of a link."""
    return urlsplit(link).fragment.removeprefix("token=").encode()


@contextmanager
def serving(session: Session, **where: Any) -> Iterator[Client]:
    """Serve a review in a thread of this process."""
    with Server(session, **where) as server:
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            sleep(0.01)
        try:
            yield Client(server, session)
        finally:
            server.stop()
            thread.join(timeout=60)
        assert not thread.is_alive()


def wait_for(condition: Callable[[], object]) -> None:
    until = monotonic() + 60
    while not condition():
        assert monotonic() < until
        sleep(0.01)


def answers(port: int) -> bool:
    """Tell whether anything listens on a port of this computer."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
