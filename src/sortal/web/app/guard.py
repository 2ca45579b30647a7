"""Who may ask the web server of a review: whoever has followed its one-time link, from the page that it served."""

import asyncio
import hmac
import re
import secrets
from collections.abc import Callable
from contextlib import suppress

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sortal.web.app.listening import names, spelled

LONGEST = 200  # characters of a path
PATIENCE = 10.0  # seconds for a token to come
TOKEN = 512  # bytes of a request that gives a token, at most
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
PAGE, ENTER = "/", "/api/enter"
PUBLIC = re.compile(
    r"/|/favicon\.ico|/static/[a-z]+/[^/]+"
)  # what anyone may read: the page without anything of the run
SPENT = "This link has been used, or another was made since. Press Enter where sortal review runs to get another."


class Guard:
    """Admits only the person who started the review: by a one-time link, then by a key in a header.

    The token of the link is in its fragment, which browsers send to nobody. The page exchanges it for the key, and
    gives that with every request. There is no cookie: it would go to every port of the host, where any service could
    read and replace it. A page elsewhere can make a browser ask for anything here, but knows no key, its requests say
    that they come from another site, and names that lead here but are not ours are refused (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str], entered: Callable[[], None] = lambda: None) -> None:
        self.app, self.hosts, self.entered = app, hosts, entered
        self._token = ""  # of the last link, until it is used
        self._key = secrets.token_urlsafe(24)

    def token(self) -> str:
        """Return a token for one entry; those before are void."""
        self._token = secrets.token_urlsafe(24)
        return self._token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        request = Request(scope, receive)
        answer = self._refusal(request)
        with suppress(ClientDisconnect):  # there is nobody to answer
            if answer is None and scope["path"] == ENTER:
                answer = await self._enter(request)
            await (answer or self.app)(scope, receive, with_headers)

    def _refusal(self, request: Request) -> Response | None:
        """Return the answer to whoever may not ask; None lets the request pass."""
        path, headers = request.scope["path"], request.headers
        hosts = self.hosts | _reached(request.scope)
        if headers.get("host", "").lower() not in hosts:
            return _no("This address does not belong to the review.")
        if len(path) > LONGEST:
            return JSONResponse({"message": "Not found."}, status_code=404)
        # The page itself holds nothing, so that a link to it may be followed from anywhere.
        followed = path == PAGE and headers.get("sec-fetch-mode") == "navigate"
        if not followed and headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return _no("Another site must not ask for this.")
        if request.method not in ("GET", "HEAD"):
            origin = headers.get("origin")
            if origin is None or origin.partition("://")[2] not in hosts:
                return _no("Another site must not change anything.")
        if path == ENTER or PUBLIC.fullmatch(path) or self._has_key(headers.get("authorization", "")):
            return None
        return JSONResponse({"message": "Open the link that sortal review has printed."}, status_code=403)

    def _has_key(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), f"Bearer {self._key}".encode())

    async def _enter(self, request: Request) -> Response:
        """Exchange the token of a link for the key. However often somebody fails, the link stays good."""
        if request.method != "POST":
            return JSONResponse({"message": "Only POST is answered here."}, status_code=405)
        given = b""
        try:
            async with asyncio.timeout(PATIENCE):
                async for part in request.stream():
                    given += part
                    if len(given) > TOKEN:
                        return _spent()
        except TimeoutError:
            return JSONResponse({"message": "The token did not come in time."}, status_code=408)
        if not self._token or not hmac.compare_digest(given, self._token.encode()):
            return _spent()
        self._token = ""
        self.entered()
        return JSONResponse({"key": self._key})


def _reached(scope: Scope) -> frozenset[str]:
    """Return the address that a request has come to, as its host says it: no name that leads here can be spelled so."""
    address, port = scope.get("server") or ("", None)
    return names([spelled(address)], port) if address and port else frozenset()


def _no(text: str) -> Response:
    return PlainTextResponse(text, status_code=403)


def _spent() -> Response:
    return JSONResponse({"message": SPENT}, status_code=403)
