"""The addresses of a review: what pages may ask for, and what they are answered."""

import io
import json
import re
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from typing import Any

import numpy as np
from PIL import Image
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sortal.errors import InputError, NoSpaceError
from sortal.images.originals import STATES, TOLD
from sortal.images.review_states import STATE_WORDS
from sortal.images.store.pixel_store import fit
from sortal.reviews import growing
from sortal.reviews.actions import LONGEST_NAME
from sortal.reviews.session import Session, StaleError
from sortal.reviews.viewable import LostError
from sortal.system.mapped_arrays import check_whole
from sortal.system.open_folder import ReplacedError

LARGEST_BODY = 16 * 2**20  # bytes of a request: a decision about all of a million images is smaller
MOST_ROWS = 1000  # images that one request describes
MOST_ANSWERS = 200  # letters
THUMB_SIDE, LARGE_SIDE = 176, 1024  # pixels of the longer side
KEPT_BYTES = 2**28  # of pictures
STATIC_FILE = re.compile(r"[a-z]+/[a-z_]+(\.[a-z]+)")  # a page, style or script: its folder and name
MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}

PART_COUNTS = (2, 3, 4)  # that a category may be split into
CONSTANTS = {  # that pages need
    "reviewed_words": STATE_WORDS,
    "lost_words": ["", *(f"The file {TOLD[state][0]}" for state in STATES[1:])],
    "answers": {"all": growing.ALL, "most": growing.MOSTLY, "bad": growing.BAD},
    "part_counts": PART_COUNTS,
    "longest_name": LONGEST_NAME,
}

Read = Callable[[Session, Request], Any]  # returns what becomes JSON, or None if there is no such thing


class Answer(JSONResponse):
    """JSON in ASCII, whose escapes preserve even names that are not UTF-8."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


def application(session: Session) -> Starlette:
    """Return the application without its guard."""

    def stale(request: Request, error: Any) -> Response:
        return Answer({"message": str(error), "missed": error.missed, "version": session.version}, 409)

    pictures = Pictures(session)
    return Starlette(
        routes=[
            Route("/", lambda _: _static("review/review.html")),
            Route("/favicon.ico", lambda _: Response(status_code=204)),
            Route("/static/{name:path}", lambda request: _static(request.path_params["name"])),
            *(Route(path, partial(_answer, session, read)) for path, read in READS.items()),
            Route("/thumb/{row:int}", partial(pictures.answer, THUMB_SIDE)),
            Route("/image/{row:int}", partial(pictures.answer, LARGE_SIDE)),
            Route("/api/decide", partial(_decide, session), methods=["POST"]),
        ],
        exception_handlers={
            HTTPException: lambda _, error: _refusal(error.status_code, error.detail),
            StaleError: stale,
            LostError: lambda _, error: _refusal(410, str(error)),
            **dict.fromkeys((InputError, NoSpaceError), lambda _, error: _refusal(400, str(error))),
            **dict.fromkeys((ReplacedError, OSError, ImportError), lambda _, error: _refusal(503, str(error))),
            MemoryError: lambda _, error: _refusal(503, "There is not enough memory."),
        },
    )


def _refusal(code: int, message: str) -> Response:
    return Answer({"message": message}, code)


def _static(name: str) -> Response:
    place = files("sortal.web").joinpath("static", name)
    if not (match := STATIC_FILE.fullmatch(name)) or match[1] not in MEDIA_TYPES or not place.is_file():
        raise HTTPException(404)
    return Response(place.read_bytes(), media_type=MEDIA_TYPES[match[1]])


def _check(session: Session) -> None:
    """Refuse a request if the run is no longer the one under review.

    Its folder may have been replaced, or its features cut: reading beyond their end would kill the process.
    """
    session.check()
    try:
        check_whole(session.run.features, f"The run in {str(session.run.folder)!r}")
    except InputError as error:
        raise HTTPException(503, str(error)) from error


# What pages read


def _answer(session: Session, read: Read, request: Request) -> Response:
    _check(session)
    content = read(session, request)
    if content is None:
        raise HTTPException(404)
    return Answer(content)


def _category(session: Session, request: Request) -> Any:
    order = request.query_params.get("order", "doubt")
    if order not in ("doubt", "typical"):
        raise HTTPException(400, "order must be doubt or typical.")
    return session.category(request.path_params["number"], order)


def _grow(session: Session, request: Request) -> Any:
    answers = request.query_params.get("answers", "")
    if {*answers} - growing.ANSWERS or len(answers) > MOST_ANSWERS:
        raise HTTPException(400, "answers must be letters y, m and n.")
    return session.grow(request.path_params["number"], answers)


def _parts(session: Session, request: Request) -> Any:
    count = request.query_params.get("parts", "2")
    if count not in map(str, PART_COUNTS):
        raise HTTPException(400, "parts must be 2, 3 or 4.")
    return session.parts(request.path_params["number"], int(count))


def _images(session: Session, request: Request) -> Any:
    try:
        rows = np.array([int(each) for each in request.query_params.get("rows", "").split(",")], dtype=np.int64)
    except (ValueError, OverflowError):
        raise HTTPException(400, "rows must be numbers, separated by commas.") from None
    n = len(session.run.assignments)
    if len(rows) > MOST_ROWS or not ((rows >= 0) & (rows < n)).all():
        raise HTTPException(400, f"rows must be at most {MOST_ROWS:,} numbers below {n}.")
    return session.images(rows)


def _near(session: Session, request: Request) -> Any:
    row = request.path_params["row"]
    return session.near(row) if row < len(session.run.assignments) else None


READS: dict[str, Read] = {
    "/api/overview": lambda session, _: session.overview() | CONSTANTS,
    "/api/version": lambda session, _: {"version": session.version},
    "/api/category/{number:int}": _category,
    "/api/queue": lambda session, _: session.queue(),
    "/api/words": lambda session, _: session.words(),
    "/api/grow/{number:int}": _grow,
    "/api/parts/{number:int}": _parts,
    "/api/names/{number:int}": lambda session, request: session.names(request.path_params["number"]),
    "/api/refit": lambda session, _: session.refit(),
    "/api/images": _images,
    "/api/near/{row:int}": _near,
    "/api/map": lambda session, _: session.map(),
}


class Pictures:
    """Pictures of images as WebP. The first ones that are asked for are kept, up to KEPT_BYTES."""

    def __init__(self, session: Session) -> None:
        self.session, self.room = session, KEPT_BYTES
        self.kept: dict[tuple[int, int], bytes] = {}

    def answer(self, side: int, request: Request) -> Response:
        row, session = request.path_params["row"], self.session
        _check(session)
        if row >= len(session.store):
            raise HTTPException(404)
        if lost := session.look(row):
            raise HTTPException(410, f"The file {TOLD[lost][0]}")
        if not session.store.heights[row]:
            raise HTTPException(404)
        etag = f'"{session.run.assignments.contents[row]}-{side}"'
        headers = {"ETag": etag, "Cache-Control": "private, no-cache"}  # rows of another run are other images
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        try:
            content = self.kept.get((row, side)) or self._draw(row, side)
        except InputError as error:  # the pixels have been cut
            raise HTTPException(503, str(error)) from error
        return Response(content, media_type="image/webp", headers=headers)

    def _draw(self, row: int, side: int) -> bytes:
        buffer = io.BytesIO()
        Image.fromarray(fit(self.session.store.image(row), side)).save(buffer, "WEBP", quality=80, method=2)
        content = buffer.getvalue()
        self.room -= len(content)
        if self.room >= 0:
            self.kept[row, side] = content
        return content


# What people decide


async def _decide(session: Session, request: Request) -> Response:
    _check(session)
    body = await _json_body(request)
    seen, action = body.get("seen"), body.get("action")
    if type(seen) is not int or not isinstance(action, dict):
        raise HTTPException(400, "This is not a decision: seen must be a number and action an object.")
    try:
        return Answer(await run_in_threadpool(session.decide, seen, action))
    except InputError:  # which says by itself what is wrong
        raise
    except ValueError as error:
        raise HTTPException(400, f"This is not a decision: {error}.") from error


async def _json_body(request: Request) -> dict[str, Any]:
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "A decision must be JSON.")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > LARGEST_BODY:
            raise HTTPException(413, "The decision is too large.")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise HTTPException(400, "A decision must be JSON.") from None
    if not isinstance(value, dict):
        raise HTTPException(400, "A decision must be a JSON object.")
    return value
