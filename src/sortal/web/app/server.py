"""The web server of a review: what may be asked, and how it starts and ends."""

import asyncio
import io
import json
import re
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack, suppress
from importlib.resources import files
from typing import Any, Self

import numpy as np
import uvicorn
from PIL import Image
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from sortal.errors import InputError, NoSpaceError
from sortal.images.originals import TOLD
from sortal.images.store.pixel_store import PixelStore, fit
from sortal.review import growing
from sortal.review.session import Session, StaleError
from sortal.review.viewable import LostError
from sortal.system.mapping import check_whole
from sortal.system.open_folder import ReplacedError
from sortal.web.app.connection import Connection
from sortal.web.app.doorway import Doorway
from sortal.web.app.guard import Guard
from sortal.web.app.listening import listen, place_of

LARGEST = 16 * 2**20  # bytes of a request: a decision about all of a million images is smaller
HEADERS = 2**20  # bytes of the headers of a request: cookies of other services on this host may come with it
ANSWERED = 200  # letters that stand for answers
THUMB, LARGE = 176, 1024  # pixels of the longer side
ROOM = 2**28  # bytes of pictures that are kept
STATIC = re.compile(r"[a-z]+/[a-z_]+(\.[a-z]+)")  # a page, style or script: its folder and name
KINDS = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}


class Answer(JSONResponse):
    """JSON in ASCII, whose escapes preserve even names that are not UTF-8."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


class Pictures:
    """Pictures of images as WebP, of which the first ones that were asked for are kept, up to ROOM bytes."""

    def __init__(self, store: PixelStore) -> None:
        self.store, self.room = store, ROOM
        self.kept: dict[tuple[int, int], bytes] = {}

    def draw(self, row: int, side: int) -> bytes:
        buffer = io.BytesIO()
        Image.fromarray(fit(self.store.image(row), side)).save(buffer, "WEBP", quality=80, method=2)
        content = buffer.getvalue()
        self.room -= len(content)
        if self.room >= 0:
            self.kept[row, side] = content
        return content


def application(session: Session) -> Starlette:
    """Return the application without its guard."""

    def page(request: Request) -> Response:
        return _static("review/review.html")

    def static(request: Request) -> Response:
        return _static(request.path_params["name"])

    def overview(request: Request) -> Response:
        return Answer(session.overview())

    def version(request: Request) -> Response:
        return Answer({"version": session.version})

    def category(request: Request) -> Response:
        order = request.query_params.get("order", "doubt")
        if order not in ("doubt", "typical"):
            return _bad("order must be doubt or typical.")
        return _found(session.category(request.path_params["number"], order))

    def words(request: Request) -> Response:
        return Answer(session.words())

    def queue(request: Request) -> Response:
        return Answer(session.queue())

    def grow(request: Request) -> Response:
        answers = request.query_params.get("answers", "")
        if {*answers} - growing.ANSWERS or len(answers) > ANSWERED:
            return _bad("answers must be letters y, m and n.")
        return _found(session.grow(request.path_params["number"], answers))

    def parts(request: Request) -> Response:
        count = request.query_params.get("parts", "2")
        if count not in ("2", "3", "4"):
            return _bad("parts must be 2, 3 or 4.")
        return _found(session.parts(request.path_params["number"], int(count)))

    def names(request: Request) -> Response:
        try:
            return _found(session.names(request.path_params["number"]))
        except (InputError, NoSpaceError) as error:
            return _bad(str(error))

    def refit(request: Request) -> Response:
        try:
            return Answer(session.refit())
        except (InputError, NoSpaceError) as error:
            return _bad(str(error))

    def images(request: Request) -> Response:
        try:
            rows = np.array([int(each) for each in request.query_params.get("rows", "").split(",")], dtype=np.int64)
        except (ValueError, OverflowError):
            return _bad("rows must be numbers, separated by commas.")
        if len(rows) > 1000 or not ((rows >= 0) & (rows < len(session.run.assignments))).all():
            return _bad(f"rows must be at most 1,000 numbers below {len(session.run.assignments)}.")
        return Answer(session.images(rows))

    def near(request: Request) -> Response:
        row = request.path_params["row"]
        return Answer(session.near(row)) if row < len(session.run.assignments) else _missing()

    def points(request: Request) -> Response:
        return Answer(session.map())

    pictures = Pictures(session.store)

    def picture(side: int) -> Callable[[Request], Awaitable[Response]]:
        async def draw(request: Request) -> Response:
            row = request.path_params["row"]
            if row >= len(session.store):
                return _missing()
            if lost := await run_in_threadpool(session.look, row):
                return _bad(f"The file {TOLD[lost][0]}", 410)
            if not session.store.heights[row]:
                return _missing()
            etag = f'"{session.run.assignments.contents[row]}-{side}"'
            headers = {"ETag": etag, "Cache-Control": "private, no-cache"}  # rows of another run are other images
            if request.headers.get("if-none-match") == etag:
                return Response(status_code=304, headers=headers)
            content = pictures.kept.get((row, side)) or await run_in_threadpool(pictures.draw, row, side)
            return Response(content, media_type="image/webp", headers=headers)

        return draw

    async def decide(request: Request) -> Response:
        body = await _body(request)
        if isinstance(body, Response):
            return body
        try:
            seen, action = body["seen"], body["action"]
            if type(seen) is not int or not isinstance(action, dict):
                raise ValueError("seen must be a number and action an object")
            return Answer(await run_in_threadpool(session.decide, seen, action))
        except StaleError as error:
            return Answer({"message": str(error), "missed": error.missed, "version": session.version}, 409)
        except LostError as error:
            return Answer({"message": str(error), "lost": error.rows}, 410)
        except ReplacedError as error:
            return _bad(str(error), 503)
        except (InputError, NoSpaceError) as error:
            return _bad(str(error))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return _bad(f"This is not a decision: {error}.")

    routes = [
        Route("/", page),
        Route("/favicon.ico", lambda request: Response(status_code=204)),
        Route("/static/{name:path}", static),
        Route("/api/overview", overview),
        Route("/api/version", version),
        Route("/api/category/{number:int}", category),
        Route("/api/queue", queue),
        Route("/api/words", words),
        Route("/api/grow/{number:int}", grow),
        Route("/api/parts/{number:int}", parts),
        Route("/api/names/{number:int}", names),
        Route("/api/refit", refit),
        Route("/api/images", images),
        Route("/api/near/{row:int}", near),
        Route("/api/map", points),
        Route("/api/decide", decide, methods=["POST"]),
        Route("/thumb/{row:int}", picture(THUMB)),
        Route("/image/{row:int}", picture(LARGE)),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(Intact, session=session)],
        exception_handlers=dict.fromkeys((InputError, NoSpaceError, OSError, ImportError, MemoryError), _unavailable),
    )


class Intact:
    """Refuses requests once the run is no longer the one that is reviewed.

    Its folder may have been replaced, or its features cut: reading beyond their end would kill the process.
    """

    def __init__(self, app: ASGIApp, session: Session) -> None:
        self.app, self.session = app, session

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self.session.check()
            check_whole(self.session.run.features, f"The run in {str(self.session.run.folder)!r}")
        except InputError as error:
            await _bad(str(error), 503)(scope, receive, send)
            return
        await self.app(scope, receive, send)


def _unavailable(request: Request, error: Exception) -> Response:
    return _bad("There is not enough memory." if isinstance(error, MemoryError) else str(error), 503)


async def _body(request: Request) -> Any:
    """Read a JSON object, or return the answer that refuses it."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        return _bad("A decision must be JSON.", 415)
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > LARGEST:
            return _bad("The decision is too large.", 413)
        parts.append(part)
    try:
        found = json.loads(b"".join(parts))
    except (ValueError, RecursionError):
        return _bad("A decision must be JSON.")
    return found if isinstance(found, dict) else _bad("A decision must be a JSON object.")


def _static(name: str) -> Response:
    place = files("sortal.web").joinpath("static", name)
    if not (match := STATIC.fullmatch(name)) or match[1] not in KINDS or not place.is_file():
        return _missing()
    return Response(place.read_bytes(), media_type=KINDS[match[1]])


def _found(content: Any) -> Response:
    return _missing() if content is None else Answer(content)


def _bad(text: str, code: int = 400) -> Response:
    return Answer({"message": text}, status_code=code)


def _missing() -> Response:
    return Answer({"message": "Not found."}, status_code=404)


class Server:
    """A review that is served on a port until it is stopped; as a context, it gives back what it holds at the end."""

    def __init__(self, session: Session, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._held = ExitStack()
        self._thread: threading.Thread | None = None
        self._socket = listen(host, port)
        self.port = self._socket.getsockname()[1]
        self._address, hosts = place_of(self._socket, host)
        self._doorway = Doorway()
        self._guard = Guard(application(session), hosts, self._doorway.close)
        settings: Mapping[str, Any] = {
            "log_level": "error",
            "access_log": False,
            "lifespan": "off",
            "server_header": False,
            "http": Connection,
            "ws": "none",
            "workers": 1,  # or WEB_CONCURRENCY would be read
            "proxy_headers": False,
            "h11_max_incomplete_event_size": HEADERS,
        }
        self._server = uvicorn.Server(uvicorn.Config(self._guard, **settings, timeout_graceful_shutdown=2))

    def link(self) -> str:
        """Return a link that lets one browser in, once; those before are void.

        The token is in the fragment, which the browser keeps to itself, so that it is in no log and no header.
        """
        return f"{self._address}#token={self._guard.token()}"

    def hold(self, held: ExitStack) -> None:
        """Keep what is held until the end."""
        self._held.push(held)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.stop()
        self._doorway.end()
        if self._thread is not None:
            self._thread.join()
        self._socket.close()
        self._held.close()

    def run(self, *, browser: str = "") -> None:
        """Serve until Ctrl-C or `stop`; open a link in the `browser`."""
        if browser:
            opening = threading.Timer(0.3, self._doorway.open, (browser,))
            opening.daemon = True  # some browsers are waited for
            opening.start()
        with suppress(KeyboardInterrupt):  # which uvicorn raises again after it has ended
            if _in_event_loop():  # of a notebook, which has the main thread
                run, options = self._server.run, {"sockets": [self._socket]}
                self._thread = threading.Thread(target=run, kwargs=options, daemon=True)
                self._thread.start()
                self._thread.join()
            else:
                self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        self._server.should_exit = True

    @property
    def started(self) -> bool:
        """Whether pages are answered by now."""
        return self._server.started


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
