"""The command line, called as a process would call it."""

import io
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, fields
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from sortal.cli import app, benchmark, decisions, discover, images, predict, runs, start
from sortal.config import SettingsGroup

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "app": start.start_page,
    "check": images.check,
    "demo": discover.demo,
    "features": images.features,
    "discover": discover.discover,
    "export": runs.export,
    "figures": runs.figures,
    "predict": predict.predict,
    "report": runs.report,
    "review": runs.review,
    "sample": images.sample,
    "decisions": decisions.list_decisions,
    "decisions merge": decisions.merge,
    "import": decisions.import_annotations,
    "benchmark": benchmark.run_benchmark,
    "benchmark compare": benchmark.compare,
    "benchmark presets": benchmark.list_presets,
    "benchmark table": benchmark.table,
}
QUICK = ("--backbone", "convnet", "--epochs", "1", "--k", "6", "--workers", "1")
STOPPING = "sortal: stopping… (press Ctrl-C again to stop at once)\n"
INTERRUPTED = "sortal: interrupted; run the same command to resume\n"
NOTE = "sortal: A note.\n"
Asked = list[dict[str, Any]]  # the arguments of each call
Stub = Callable[[str, object], Asked]


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def invoke(*tokens: object, encoding: str = "utf-8") -> Done:
    """Call the command line with streams like those of a process."""
    out, err = io.BytesIO(), io.BytesIO()
    with (
        io.TextIOWrapper(out, encoding=encoding, newline="\n") as stdout,
        io.TextIOWrapper(err, encoding=encoding, newline="\n") as stderr,
    ):
        with redirect_stdout(stdout), redirect_stderr(stderr):
            code = app.main([str(token) for token in tokens])
        stdout.flush()
        stderr.flush()
        return Done(code, out.getvalue().decode(encoding), err.getvalue().decode(encoding))


def refused(*tokens: object) -> str:
    """Call the command line with something it must reject, and return its one-line error."""
    done = invoke(*tokens)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("sortal: error: ")
    assert done.err.count("\n") == 1
    return done.err


def options_of(command: Callable[..., Any]) -> dict[str, Parameter]:
    """Return the options of a command by name, with the fields of records as options of their own."""
    found: dict[str, Parameter] = {}
    for each in signature(command).parameters.values():
        if isinstance(each.default, SettingsGroup):
            for own in fields(each.default):
                found[own.name] = Parameter(own.name, Parameter.KEYWORD_ONLY, default=own.default, annotation=own.type)
        else:
            found[each.name] = each
    return found


@dataclass(frozen=True)
class Real:
    """A folder of images, one of them unreadable, and the outcome of sorting it."""

    images: Path
    run: Path
    done: Done


@dataclass(frozen=True)
class Benchmarked:
    """A benchmark of two methods on a folder of classes, run from the command line."""

    words: tuple[object, ...]
    out: Path
    done: Done
