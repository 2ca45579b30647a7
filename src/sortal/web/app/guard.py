"""Access to the web server of a review: only for a browser that has followed a one-time link."""

import asyncio
import hmac
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from sortal.web.app.listening import host_headers, spelled

LONGEST_ADDRESS = 200  # characters
LONGEST_TOKEN = 512  # bytes of a request that gives one
REQUEST_PATIENCE = 10.0  # seconds that an idle connection stays open, and that a token may take to arrive
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
ANSWER_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
ENTER = "/api/enter"
PUBLIC = re.compile(r"/|/favicon\.ico|/static/[a-z]+/[^/]+")  # what needs no key: the bare page
SPENT = "This link has been used, or a newer one has replaced it. Press Enter in the terminal to get another."


class Guard:
    """Admits only those who got a link, each of the people once: by a one-time token, then by a key in a header.

    The key says who asks, so that nobody can sign for another. Without names, the one person who is admitted is "".
    The token of the link is in its fragment, which browsers never send. The page exchanges it for the key, and sends
    that with every request. There is no cookie: it would go to every port of the host, where any service could read
    and replace it. Pages of other sites can make a browser send requests here, but they do not have the key, and such
    requests name the other site. Host names that resolve to this computer but are not ours are refused (DNS rebinding).
    """

    def __init__(
        self, app: ASGIApp, hosts: frozenset[str], entered: Callable[[], None], people: Sequence[str] = ()
    ) -> None:
        self.app, self.hosts, self.entered = app, hosts, entered
        self._tokens: dict[str, str] = {}  # of the last link of each person, until it is used
        self._keys = {person: secrets.token_urlsafe(24) for person in people or ("",)}

    def token(self, person: str = "") -> str:
        """Return a token that admits one browser of a person, the same until it is used.

        Where only one person reviews, it is always another, and the earlier ones become invalid.
        """
        assert person in self._keys
        if not person or person not in self._tokens:
            self._tokens[person] = secrets.token_urlsafe(24)
        return self._tokens[person]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(ANSWER_HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        request = Request(scope, receive)
        answer = self._refuse(request)
        with suppress(ClientDisconnect):  # there is nobody to answer
            if answer is None and scope["path"] == ENTER:
                answer = await self._enter(request)
            await (answer or self.app)(scope, receive, with_headers)

    def _refuse(self, request: Request) -> Response | None:
        """Return the refusal of a request that is not allowed; None lets it pass."""
        path, headers = request.scope["path"], request.headers
        hosts = self.hosts | _reached(request.scope)
        if headers.get("host", "").lower() not in hosts:
            return _refusal("This address does not belong to the review.")
        if len(path) > LONGEST_ADDRESS:
            return _refusal("Not found.", 404)
        # The page itself holds nothing of the run, so links to it may be followed from anywhere.
        followed = path == "/" and headers.get("sec-fetch-mode") == "navigate"
        if not followed and headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return _refusal("Other sites cannot request this.")
        if request.method not in ("GET", "HEAD") and headers.get("origin", "").partition("://")[2] not in hosts:
            return _refusal("Other sites cannot change anything.")
        keys = {person: f"Bearer {key}" for person, key in self._keys.items()}
        person = _owner(keys, headers.get("authorization", "").encode())
        request.state.person = person
        if path == ENTER or PUBLIC.fullmatch(path) or person is not None:
            return None
        return _refusal("Open the link that Sortal printed in the terminal.")

    async def _enter(self, request: Request) -> Response:
        """Exchange the token of a link for the key. Failed attempts do not invalidate the link."""
        if request.method != "POST":
            return _refusal("This address accepts only POST.", 405)
        given = b""
        try:
            async with asyncio.timeout(REQUEST_PATIENCE):
                async for part in request.stream():
                    given += part
                    if len(given) > LONGEST_TOKEN:
                        return _refusal(SPENT)
        except TimeoutError:
            return _refusal("The token did not arrive in time.", 408)
        person = _owner(self._tokens, given)
        if person is None:
            return _refusal(SPENT)
        del self._tokens[person]
        self.entered()
        return JSONResponse({"key": self._keys[person]})


def _owner(secrets: Mapping[str, str], given: bytes) -> str | None:
    """Return whose secret was given, or None; every one is compared, in a time that tells nothing about it."""
    found = [person for person, secret in secrets.items() if hmac.compare_digest(given, secret.encode())]
    return found[0] if found else None


def _reached(scope: Scope) -> frozenset[str]:
    """Return the Host headers that name the address at which a request arrived; no DNS name looks like one."""
    address, port = scope.get("server") or ("", None)
    return host_headers([spelled(address)], port) if address and port else frozenset()


def _refusal(message: str, code: int = 403) -> Response:
    return JSONResponse({"message": message}, code)


class Connection(H11Protocol):
    """A connection that is closed when it stays idle.

    Otherwise, anyone who can reach the port could use up all connections of the process, and lock out the person with
    the link.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(REQUEST_PATIENCE, self._look, None)

    def _look(self, last: RequestResponseCycle | None) -> None:
        """Close the connection if no request has come since the last look, and none is being answered."""
        if self.transport.is_closing():
            return
        if self.cycle is last and (last is None or last.response_complete):
            self.transport.close()
        else:
            self.loop.call_later(REQUEST_PATIENCE, self._look, self.cycle)
