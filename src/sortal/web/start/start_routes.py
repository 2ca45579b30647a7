"""The routes of the start page: what it can request, which commands it can start, and how the server answers."""

import re
import threading
import webbrowser
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, fields
from typing import Any, TypeAlias

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sortal.config import AUTO, BUILT_IN, CONVNET, Discovery
from sortal.errors import InputError
from sortal.exchange.export import EXPORT_FORMATS
from sortal.reviews.loading import load_run
from sortal.runs.run import DECISIONS, REPORT
from sortal.web.app.routes import ERROR_ANSWERS, AsciiResponse, json_body, static_file
from sortal.web.start.children import Children
from sortal.web.start.home import Home

SAMPLE_FOLDER = "digits"
CHOSEN_SETTINGS = ("k", "granularity", "method", "backbone", "epochs")  # that the page offers
NETWORK_NAME = re.compile(r"\w+(\.\w+)?", re.ASCII)  # of timm; neither code nor a path, as those have other signs
ASKED = ("kind", "at", "labels", "table", "run", "settings", "weights", "format", "name", "images", "update")
LONGEST_TEXT = 4096  # characters, of which paths have no more
RequestBody: TypeAlias = Mapping[str, Any]


def start_application(home: Home, children: Children, *, shows: bool) -> Starlette:
    """Return the application without its guard. With `shows`, reports are opened in the browser of this computer."""

    def read(answer: Callable[[Request], Any]) -> Callable[[Request], Response]:
        return lambda request: AsciiResponse(answer(request))

    def write(act: Callable[[RequestBody], Any]) -> Any:
        async def respond(request: Request) -> Response:
            return AsciiResponse(await run_in_threadpool(act, await json_body(request)))

        return respond

    def started(asked: RequestBody) -> Any:
        asked = _kept(asked)
        kind, at = _text(asked, "kind"), _text(asked, "at")
        if kind not in COMMAND_WORDS:
            raise InputError(f"kind must be one of {', '.join(COMMAND_WORDS)}.")
        return children.start(kind, asked, COMMAND_WORDS[kind](home, at, asked)).to_json()

    def stopped(asked: RequestBody) -> Any:
        child = children.get(asked.get("number"))
        child.stop()
        return child.to_json()

    def resumed(asked: RequestBody) -> Any:
        return started(children.get(asked.get("number")).asked)  # which checks the paths again

    reads = {
        "/api/version": lambda _: {"version": 0},
        "/api/commands": lambda _: {"commands": [child.to_json() for child in children]},
        "/api/answer/{number:int}": lambda request: children.get(request.path_params["number"]).answer(),
        "/api/listing": lambda request: home.listing(request.query_params.get("at", "")),
        "/api/methods": lambda _: {name: each.title for name, each in BUILT_IN.items()},
        "/api/run": lambda request: _run(home, request.query_params.get("at", "")),
    }
    writes = {
        "/api/start": started,
        "/api/stop": stopped,
        "/api/again": resumed,
        "/api/link": lambda asked: {"link": children.get(asked.get("number")).link()},
        "/api/show": lambda asked: {"shown": shows and _show(home, _text(asked, "at"))},
    }
    return Starlette(
        routes=[
            Route("/", lambda _: static_file("start/start.html")),
            Route("/favicon.ico", lambda _: Response(status_code=204)),
            Route("/static/{name:path}", lambda request: static_file(request.path_params["name"])),
            *(Route(path, read(answer)) for path, answer in reads.items()),
            *(Route(path, write(act), methods=["POST"]) for path, act in writes.items()),
        ],
        exception_handlers=ERROR_ANSWERS,
    )


def _text(asked: RequestBody, name: str) -> str:
    value = asked.get(name, "")
    if not isinstance(value, str) or len(value) > LONGEST_TEXT:
        raise InputError(f"{name} must be text of up to {LONGEST_TEXT} characters.")
    return value


def _kept(asked: RequestBody) -> RequestBody:
    """Return what is known of a request, in the same order: it is kept, and every page gets it again and again."""
    _settings(asked)
    return {name: asked[name] if name == "settings" else _text(asked, name) for name in asked if name in ASKED}


def _labels(home: Home, asked: RequestBody) -> list[str]:
    """Return the options for labels: from folders, from a table, or none."""
    labels = _text(asked, "labels")
    unknown = ["--placeholders", "unlabelled"]
    if labels == "none":
        return ["--folders", "ignore"]
    if labels == "table":
        return ["--labels", str(home.file(_text(asked, "table"), "tables")), "--unlisted", "unlabelled", *unknown]
    return unknown


def _settings(asked: RequestBody) -> list[str]:
    """Return the options for settings, which are checked as those of a command line are."""
    given = asked.get("settings", {})
    if not isinstance(given, dict) or not {*given} <= {*CHOSEN_SETTINGS}:
        raise InputError(f"settings must be some of {', '.join(CHOSEN_SETTINGS)}.")
    backbone = given.get("backbone", AUTO)
    if not isinstance(backbone, str) or not NETWORK_NAME.fullmatch(backbone) or backbone.endswith(".json"):
        raise InputError(f"backbone must be {AUTO}, {CONVNET} or the name of a network of timm here.")
    if given.get("method") not in (None, *BUILT_IN):
        raise InputError(f"method must be one of {', '.join(BUILT_IN)} here.")
    chosen = asdict(Discovery(**given))
    names = [field.name for field in fields(Discovery) if field.name in given]
    return [word for name in names for word in (f"--{name.replace('_', '-')}", str(chosen[name]))]


def _check(home: Home, at: str, asked: RequestBody) -> list[str]:
    return ["check", str(home.path(at)), *_labels(home, asked), "--json"]


def _sort(home: Home, at: str, asked: RequestBody) -> list[str]:
    run = home.new(at, _text(asked, "run"))
    # A run that is sorted again knows its folders and labels. The page has told what it will take, so that training
    # again needs no further question.
    options = _settings(asked) if home.is_run(at) else [*_labels(home, asked), "--out", str(run), *_settings(asked)]
    if weights := _text(asked, "weights"):
        options += ["--weights", str(home.file(weights, "weights"))]
    return ["discover", str(home.path(at)), *options, "--json", "--yes"]


def _predict(home: Home, at: str, asked: RequestBody) -> list[str]:
    table = str(home.new(at, _text(asked, "name")))
    added = ["--update"] if _text(asked, "update") else []
    return ["predict", str(home.path(at)), str(home.path(_text(asked, "images"))), "--csv", table, *added]


def _export(home: Home, at: str, asked: RequestBody) -> list[str]:
    format = _text(asked, "format")
    if format not in EXPORT_FORMATS:
        raise InputError(f"format must be one of {', '.join(EXPORT_FORMATS)}.")
    return ["export", str(home.path(at)), "--format", format, "--out", str(home.new(at, _text(asked, "name")))]


COMMAND_WORDS: dict[str, Callable[[Home, str, RequestBody], list[str]]] = {
    "check": _check,
    "forecast": lambda home, at, asked: [*_sort(home, at, asked), "--dry-run"],
    "sort": _sort,
    "sample": lambda home, at, _: ["sample", "digits", str(home.inside(at, SAMPLE_FOLDER))],
    "review": lambda home, at, _: ["review", str(home.path(at)), "--no-browser"],
    "report": lambda home, at, _: ["report", str(home.path(at))],
    "export": _export,
    "predict": _predict,
}


def _run(home: Home, at: str) -> Any:
    """Describe a run: how many images it has, and of which categories."""
    run = load_run(home.path(at))
    kept = ("name", "kind", "size", "labelled", "unsure")
    return {
        "folder": str(run.folder),
        "report": str(run.report),
        "reviewed": (run.folder / DECISIONS).exists(),
        "images": len(run.assignments),
        "status": run.counts(),
        "binned": int(run.assignments.binned.sum()),
        **{name: getattr(run.k, name) for name in ("k", "estimated", "interval", "basis")},
        "calibrated": run.confidence.calibrated,
        "categories": [{name: getattr(each, name) for name in kept} for each in run.categories],
        "unreadable": len(run.quarantine),
        "notes": list(run.facts.notes),
        "formats": {name: each.extension for name, each in EXPORT_FORMATS.items()},
    }


def _show(home: Home, at: str) -> bool:
    """Open the report of a run in the browser; as a file, whose links to images beside it work."""
    report = home.path(at) / REPORT
    if not report.is_file() or report.is_symlink():
        raise InputError("The run has no report. Draw it again.")

    def show() -> None:
        with suppress(OSError, ValueError, webbrowser.Error):
            webbrowser.open(report.as_uri())

    threading.Thread(target=show, daemon=True).start()  # webbrowser waits until some browsers exit
    return True
