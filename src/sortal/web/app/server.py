"""The web server of a review: how it starts, serves and ends."""

import asyncio
import logging
import os
import shutil
import stat
import tempfile
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from html import escape
from pathlib import Path
from typing import Any, Self

import uvicorn
from starlette.types import ASGIApp

from sortal.errors import InputError
from sortal.reviews.session import Session
from sortal.system.signals import handling
from sortal.web.app.guard import Connection, Guard
from sortal.web.app.listening import check_certificate, listen, place_of
from sortal.web.app.routes import application

UVICORN_SETTINGS: dict[str, Any] = {
    "log_level": "error",
    "access_log": False,
    "lifespan": "off",
    "server_header": False,
    "http": Connection,
    "ws": "none",
    "workers": 1,  # or WEB_CONCURRENCY would be read
    "proxy_headers": False,
    "h11_max_incomplete_event_size": 2**20,  # bytes of headers, with cookies of other services on this host
    "timeout_graceful_shutdown": 2,  # seconds
}
LINK_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={link}">
<title>Sortal</title>
<p><a href="{link}">Open the review</a>
"""
BROWSER_AFTER = 0.3  # seconds, until the server answers


class Server:
    """The web server of a review, or of another application.

    As a context manager, it stops at the end and releases what it holds.
    """

    def __init__(
        self,
        served: Session | ASGIApp,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        certificate: Path | None = None,
        certificate_key: Path | None = None,
    ) -> None:
        tls: dict[str, Any] = {}
        if certificate is not None:
            check_certificate(certificate, certificate_key)
            tls = {"ssl_certfile": certificate, "ssl_keyfile": certificate_key}
        elif certificate_key is not None:
            raise InputError("A key needs its certificate.")
        self._held, self.people = ExitStack(), served.people if isinstance(served, Session) else ()
        self._socket = listen(host, port)
        self.port = self._socket.getsockname()[1]
        self._address, hosts = place_of(self._socket, host, tls=bool(tls))
        self._doorway: Doorway | None = None
        app = application(served) if isinstance(served, Session) else served
        self._guard = Guard(app, hosts, self._close_doorway, self.people)
        self._server = uvicorn.Server(uvicorn.Config(self._guard, **UVICORN_SETTINGS, **tls))

    def link(self, person: str = "") -> str:
        """Return a link that admits one browser, once, of one of the people.

        One of several people gets the same link until it is used; otherwise earlier links become invalid.
        The token is in the fragment, which browsers do not send, so it appears in no log and no header.
        """
        return f"{self._address}#token={self._guard.token(person)}"

    def hold(self, held: ExitStack) -> None:
        """Release these resources when the server ends."""
        self._held.push(held)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.stop()
        self._close_doorway()
        self._socket.close()
        self._held.close()

    def run(self, *, browser: str = "") -> None:
        """Serve until Ctrl-C or `stop`; open a link in the `browser`."""
        if browser:
            self._doorway = Doorway(browser)
            opening = threading.Timer(BROWSER_AFTER, self._doorway.open)
            opening.daemon = True  # webbrowser waits until some browsers exit
            opening.start()
        with self._quiet_at_end(), suppress(KeyboardInterrupt):  # which uvicorn raises again after it has ended
            if _in_event_loop():  # of a notebook, which has the main thread
                thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)
                thread.start()
                try:
                    thread.join()
                finally:
                    self.stop()
                    thread.join()
            else:
                # Also while it starts, when an interrupt within asyncio could be lost.
                with handling("SIGINT", lambda *_: self.stop(), always=True):
                    self._server.run([self._socket])

    def stop(self) -> None:
        self._server.should_exit = True

    @contextmanager
    def _quiet_at_end(self) -> Iterator[None]:
        """Let the log say nothing of answers that the end of the server cuts short."""

        def goes_on(_: logging.LogRecord) -> bool:
            return not self._server.should_exit

        log = logging.getLogger("uvicorn.error")
        log.addFilter(goes_on)
        try:
            yield
        finally:
            log.removeFilter(goes_on)

    @property
    def started(self) -> bool:
        """Whether the server answers requests yet."""
        return self._server.started

    def _close_doorway(self) -> None:
        if self._doorway is not None:
            self._doorway.close()


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Doorway:
    """A file with a link, by which a browser opens it: all users can read the process list, but only one this file.

    It is removed when it is closed, and not written where others could read it. It is in a folder of its own in the
    home directory, which is not hidden: browsers that are installed as a snap can read neither temporary files nor
    hidden folders.
    """

    def __init__(self, link: str) -> None:
        self.page: Path | None = None
        with suppress(OSError, RuntimeError):  # no home
            folder = Path(tempfile.mkdtemp(prefix="sortal-review-", dir=Path.home().absolute()))
            self.page = folder / "review.html"
            with open(os.open(self.page, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                if _is_private(folder) and _is_private(self.page):
                    file.write(LINK_PAGE.format(link=escape(link)))
                    return
        self.close()

    def open(self) -> bool:
        """Show the page in the browser; return whether that worked."""
        page = self.page
        with suppress(OSError, ValueError, webbrowser.Error):  # such as that BROWSER is no command
            if page is not None and webbrowser.open(page.as_uri()):
                return True
        self.close()
        return False

    def close(self) -> None:
        """Remove the page."""
        page, self.page = self.page, None
        if page is not None:
            shutil.rmtree(page.parent, ignore_errors=True)


def _is_private(path: Path) -> bool:
    """Tell whether nobody else may read a path; some file systems do not restrict access at all."""
    return os.name != "posix" or not stat.S_IMODE(path.stat().st_mode) & 0o077
