"""The routes of a review: what its pages can request, and how the server answers."""

import io
import json
import re
import threading
from collections.abc import Callable, Sequence
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

from sortal.config import MAX_PIXELS
from sortal.errors import InputError, NoSpaceError, UnreadableError
from sortal.images.columns import ImageColumn
from sortal.images.decoding import MAX_BYTES, decode, size
from sortal.images.originals import FILE_STATES, STATE_PHRASES, ChangedError
from sortal.images.review_states import STATE_WORDS
from sortal.images.store.pixel_store import fit
from sortal.reviews import filtering, growing
from sortal.reviews.actions import LONGEST_CATEGORY_NAME
from sortal.reviews.people import LONGEST_ASKED
from sortal.reviews.searching import LONGEST_SEARCH, alike, find
from sortal.reviews.session import Session, StaleError
from sortal.reviews.viewable import LostError
from sortal.runs.run import NOWHERE
from sortal.system.mapped_arrays import check_whole
from sortal.system.open_folder import ReplacedError

LARGEST_BODY = 16 * 2**20  # bytes of a request: a decision about all of a million images is smaller
MOST_DESCRIBED = 1000  # images that one request describes
MOST_ANSWERS = 200  # letters
MOST_SEARCHED = 20_000  # images that a search describes
THUMB_SIDE, LARGE_SIDE, ORIGINAL_SIDE = 256, 1024, 2560  # pixels of the longer side
DECODING = threading.Lock()  # files may be large
STATIC_FILE = re.compile(r"[a-z]+/[a-z_]+(\.[a-z]+)")  # a page, style or script: its folder and name
MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}

ORDERS = ("doubt", "typical", "up", "down")  # of the images of a category; the last two by a column
PART_COUNTS = (2, 3, 4)  # that a category may be split into
CONSTANTS = {  # that pages need
    "reviewed_words": STATE_WORDS,
    "lost_words": ["", *(f"The file {STATE_PHRASES[state][0]}" for state in FILE_STATES[1:])],
    "answers": {"all": growing.ALL_RIGHT, "most": growing.MOSTLY_RIGHT, "bad": growing.TOO_MANY_WRONG},
    "part_counts": PART_COUNTS,
    "longest_name": LONGEST_CATEGORY_NAME,
    "most_searched": MOST_SEARCHED,
}

Read = Callable[[Session, Request], Any]  # returns what becomes JSON, or None if there is no such thing


class AsciiResponse(JSONResponse):
    """JSON in ASCII; its escapes preserve even names that are not UTF-8."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


def application(session: Session) -> Starlette:
    """Return the application without its guard."""

    def stale(request: Request, error: Any) -> Response:
        return AsciiResponse({"message": str(error), "missed": error.missed, "version": session.version}, 409)

    return Starlette(
        routes=[
            Route("/", lambda _: static_file("review/review.html")),
            Route("/favicon.ico", lambda _: Response(status_code=204)),
            Route("/static/{name:path}", lambda request: static_file(request.path_params["name"])),
            *(Route(path, partial(_answer, session, read)) for path, read in READS.items()),
            Route("/thumb/{row:int}", partial(_picture, session, THUMB_SIDE)),
            Route("/image/{row:int}", partial(_picture, session, LARGE_SIDE)),
            Route("/original/{row:int}", partial(_original, session)),
            Route("/api/decide", partial(_decide, session), methods=["POST"]),
        ],
        exception_handlers={
            **ERROR_ANSWERS,
            StaleError: stale,
            LostError: lambda _, error: refusal(410, str(error)),
        },
    )


def refusal(code: int, message: str) -> Response:
    return AsciiResponse({"message": message}, code)


ERROR_ANSWERS: dict[Any, Any] = {  # by the type of the error
    HTTPException: lambda _, error: refusal(error.status_code, error.detail),
    **dict.fromkeys((InputError, NoSpaceError), lambda _, error: refusal(400, str(error))),
    **dict.fromkeys((ReplacedError, OSError, ImportError), lambda _, error: refusal(503, str(error))),
    MemoryError: lambda _, error: refusal(503, "There is not enough memory."),
}


def static_file(name: str) -> Response:
    """Return a page, style or script of the package."""
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
    return AsciiResponse(content)


def _one_of(request: Request, name: str, allowed: Sequence[str]) -> str:
    """Return a parameter of a query; the default is the first value that is allowed."""
    value = request.query_params.get(name, allowed[0])
    if value not in allowed:
        raise HTTPException(400, f"{name} must be one of {', '.join(allowed)}.")
    return value


def _category(session: Session, request: Request) -> Any:
    column, fits = None, request.query_params.get("fits", "")
    if "column" in request.query_params:
        column = _column(session, request.query_params["column"])
    if len(fits) > filtering.LONGEST_FILTER:
        raise HTTPException(400, f"fits must have at most {filtering.LONGEST_FILTER} characters.")
    return session.category(request.path_params.get("number", NOWHERE), _one_of(request, "order", ORDERS), column, fits)


def _column(session: Session, number: str) -> ImageColumn:
    columns = session.run.assignments.columns.each
    if not (number.isascii() and number.isdecimal() and len(number) < 9 and int(number) < len(columns)):
        raise HTTPException(400, f"column must be a number below {len(columns)}.")
    return columns[int(number)]


def _colours(session: Session, request: Request) -> Any:
    column = _column(session, str(request.path_params["number"]))
    rows = session.map()["rows"]
    return {"rows": rows, **filtering.coloured(column, np.array(rows, dtype=np.int64))}


def _grow(session: Session, request: Request) -> Any:
    answers = request.query_params.get("answers", "")
    if {*answers} - growing.ANSWERS or len(answers) > MOST_ANSWERS:
        raise HTTPException(400, "answers must be letters y, m and n.")
    return session.grow(request.path_params["number"], answers)


def _parts(session: Session, request: Request) -> Any:
    count = _one_of(request, "parts", [str(each) for each in PART_COUNTS])
    return session.parts(request.path_params["number"], int(count))


def _images(session: Session, request: Request) -> Any:
    try:
        listed = request.query_params.get("rows", "")
        rows = np.array([int(each) for each in listed.split(",") if listed], dtype=np.int64)
    except (ValueError, OverflowError):
        raise HTTPException(400, "rows must be numbers, separated by commas.") from None
    n = len(session.run.assignments)
    if len(rows) > MOST_DESCRIBED or not ((rows >= 0) & (rows < n)).all():
        raise HTTPException(400, f"rows must be at most {MOST_DESCRIBED:,} numbers below {n}.")
    return session.images(rows)


def _asked(session: Session, request: Request) -> Any:
    """Note what a page asks its person, and return what the others are asked."""
    asked, page = (request.query_params.get(name, "") for name in ("asked", "page"))
    if len(asked) > LONGEST_ASKED or len(page) > LONGEST_ASKED:
        raise HTTPException(400, f"asked and page must have at most {LONGEST_ASKED} characters.")
    return session.asked(request.state.person, asked, page)


def _near(session: Session, request: Request) -> Any:
    row = request.path_params["row"]
    return session.near(row) if row < len(session.run.assignments) else None


def _most(request: Request) -> int:
    """Return how many images an answer is to describe."""
    most = request.query_params.get("most", "0")
    if not (most.isascii() and most.isdecimal() and int(most[:9]) <= MOST_SEARCHED and len(most) < 9):
        raise HTTPException(400, f"most must be a number up to {MOST_SEARCHED}.")
    return int(most)


def _text(request: Request) -> str:
    text = request.query_params.get("text", "").strip()
    if not 0 < len(text) <= LONGEST_SEARCH:
        raise HTTPException(400, f"text must have 1 to {LONGEST_SEARCH} characters.")
    return text


def _search(session: Session, request: Request) -> Any:
    text = _text(request)
    return session.found(lambda review: find(review, text), _most(request))


def _like(session: Session, request: Request) -> Any:
    row = request.path_params["row"]
    if row >= len(session.run.assignments):
        return None
    rows = alike(session.run.features, row)
    return session.found(lambda _: (rows, {}), _most(request))


def _seen(session: Session, request: Request) -> Any:
    if session.advisor is None or not session.advisor.sees:
        raise InputError("Finding what is seen needs an image-text model: sortal review --text-model.")
    rows = session.advisor.seen(_text(request))
    looked = {"looked": [len(rows), int((session.store.heights > 0).sum())]}  # of those that have pixels
    return session.found(lambda _: (rows, looked), _most(request))


READS: dict[str, Read] = {
    "/api/overview": lambda session, request: session.overview(request.state.person) | CONSTANTS,
    "/api/version": lambda session, request: _asked(session, request),
    "/api/category/{number:int}": _category,
    "/api/bin": _category,
    "/api/queue": lambda session, request: session.queue(request.state.person) | _asked(session, request),
    "/api/words": lambda session, _: session.words(),
    "/api/grow/{number:int}": _grow,
    "/api/parts/{number:int}": _parts,
    "/api/names/{number:int}": lambda session, request: session.names(request.path_params["number"]),
    "/api/refit": lambda session, _: session.refit(),
    "/api/images": _images,
    "/api/near/{row:int}": _near,
    "/api/search": _search,
    "/api/like/{row:int}": _like,
    "/api/seen": _seen,
    "/api/map": lambda session, _: session.map(),
    "/api/colours/{number:int}": _colours,
}


def _picture(session: Session, side: int, request: Request) -> Response:
    """Draw an image as WebP with at most this many pixels on a side, unless the browser has kept it."""
    row, store = request.path_params["row"], session.store
    _check(session)
    if row >= len(store):
        raise HTTPException(404)
    if lost := session.look(row):
        raise HTTPException(410, f"The file {STATE_PHRASES[lost][0]}")
    if not store.heights[row]:
        raise HTTPException(404)
    etag = f'"{session.run.assignments.contents[row]}-{side}"'
    headers = {"ETag": etag, "Cache-Control": "private, no-cache"}  # in another run, the same row is another image
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    try:
        pixels = store.image(row)
    except InputError as error:  # the pixels have been cut
        raise HTTPException(503, str(error)) from error
    buffer = io.BytesIO()
    Image.fromarray(fit(pixels, side)).save(buffer, "WEBP", quality=80, method=2)
    return Response(buffer.getvalue(), media_type="image/webp", headers=headers)


def _original(session: Session, request: Request) -> Response:
    """Draw the file of an image, of which fewer pixels are stored; no content if it cannot show more than those.

    Nothing of the file is sent but its pixels: what else is in it, such as the place, is for its owner.
    """
    row, store, nothing = request.path_params["row"], session.store, Response(status_code=204)
    _check(session)
    if row >= len(store):
        raise HTTPException(404)
    try:
        with session.originals.open(row) as file:
            data, most = file.read(MAX_BYTES), min(session.run.facts.settings.max_pixels, MAX_PIXELS)
        width, height = size(data, max_pixels=most)
        if width * height <= int(store.heights[row] * store.widths[row]):
            return nothing
        longer, shorter = max(width, height), min(width, height)
        side = shorter if longer <= ORIGINAL_SIDE else max(1, shorter * ORIGINAL_SIDE // longer)
        with DECODING:
            pixels = decode(data, shorter_side=side, max_pixels=most).rgb
        if max(pixels.shape) > ORIGINAL_SIDE:  # it is so thin that its shorter side has one pixel
            pixels = fit(pixels, ORIGINAL_SIDE)
    except (UnreadableError, ChangedError, OSError, ValueError):
        return nothing
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=90)
    return Response(buffer.getvalue(), media_type="image/jpeg", headers={"Cache-Control": "private, no-cache"})


# What people decide


async def _decide(session: Session, request: Request) -> Response:
    _check(session)
    body = await json_body(request)
    seen, action = body.get("seen"), body.get("action")
    if type(seen) is not int or not isinstance(action, dict):
        raise HTTPException(400, "This is not a decision: seen must be a number and action an object.")
    try:
        return AsciiResponse(await run_in_threadpool(session.decide, seen, action, request.state.person))
    except InputError:  # which says by itself what is wrong
        raise
    except ValueError as error:
        raise HTTPException(400, f"This is not a decision: {error}.") from error


async def json_body(request: Request) -> dict[str, Any]:
    """Return the JSON object that a request has as its body."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "A request must be JSON.")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > LARGEST_BODY:
            raise HTTPException(413, "The request is too large.")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise HTTPException(400, "A request must be JSON.") from None
    if not isinstance(value, dict):
        raise HTTPException(400, "A request must be a JSON object.")
    return value
