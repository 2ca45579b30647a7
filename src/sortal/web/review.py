"""The review of a run in a browser."""

import os
import sys
from contextlib import ExitStack
from pathlib import Path

from sortal.images.store.packing import Settings, pack
from sortal.runs import journal
from sortal.runs.run import DECISIONS
from sortal.runs.storage import load_run
from sortal.system.files import lock_folder
from sortal.system.progress import Runtime
from sortal.web.server import Server
from sortal.web.session import Session


def review(folder: str | os.PathLike[str], *, host: str = "127.0.0.1", port: int = 0, browser: bool = True) -> None:
    """Review the run in a folder in the browser, until Ctrl-C or the interrupt of a notebook.

    Every decision is in the folder before the page shows it. Load the run again to have them.

    >>> sortal.review("photos-run")  # doctest: +SKIP
    """
    with open_review(folder, host=host, port=port) as server:
        sys.stderr.write(f"Review: {server.url}\n")
        server.run(browser=browser)


def open_review(
    folder: str | os.PathLike[str], *, host: str = "127.0.0.1", port: int = 0, runtime: Runtime = Runtime()
) -> Server:
    """Lock a run, load it with its decisions and pixels, and return a server that is not running yet."""
    place = Path(folder)
    with ExitStack() as held:
        load_run(place, raw=True)  # refuses what is not a run before a lock is put there
        held.enter_context(lock_folder(place))
        server = Server(open_session(place, runtime=runtime), host=host, port=port)
        server.hold(held.pop_all())
        return server


def open_session(folder: Path, *, runtime: Runtime = Runtime()) -> Session:
    """Load a run, its decisions and its pixels, which come from its cache as far as they are there."""
    run = load_run(folder, raw=True)
    lines = journal.read(folder / DECISIONS, run.facts)
    settings = Settings(shorter_side=run.facts.backbone.shorter_side)
    store = pack(run.images(), run.cache / "pixels", settings=settings, runtime=runtime)
    return Session(run=run, store=store, lines=list(lines))
