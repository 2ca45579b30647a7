"""The review of a run in a browser."""

import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sortal.discovery.reviewing.advice import advise
from sortal.images.decoding import DIGEST_SIZE
from sortal.images.originals import Originals
from sortal.images.store.index import Index
from sortal.images.store.packing import Settings, pack, store_pictures
from sortal.images.store.pixel_store import open_store
from sortal.reviews import journal
from sortal.reviews.loading import locked_run
from sortal.reviews.people import check_people
from sortal.reviews.session import Session
from sortal.runs.projection import Placer
from sortal.runs.reference import check_has_images
from sortal.runs.run import DECISIONS, Run
from sortal.system.progress import Runtime, shown
from sortal.system.terminal import on_enter
from sortal.web.app.server import Server

PREVIEW = 64  # pixels of images that a run did not learn on, whose pixels are not stored otherwise
Place = str | os.PathLike[str]


def review(
    folder: Place,
    *,
    words: Place | None = None,
    text_model: Place | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    people: Sequence[str] = (),
    certificate: Place | None = None,
    certificate_key: Place | None = None,
    browser: bool = True,
) -> None:
    """Review the run in `folder` in the browser, until Ctrl-C or the interrupt of a notebook.

    Every decision is in the folder before the page shows it. Load the run again to have them. `words` is a file with
    names to choose from, one per line; `text_model` a folder with an image-text model of open_clip, which then suggests
    some of them. The server listens on `host`, by default for this computer alone, and `port`, by default a free one;
    `browser=False` only prints the link. Several `people` get a link each: decisions are signed with their names, and
    they are asked different questions. With a `certificate` and its `certificate_key`, files in PEM, the
    server speaks HTTPS.

    >>> sortal.review("photos-run")  # doctest: +SKIP
    """
    with shown(Runtime(), "Reading the run") as runtime:
        server = open_review(
            folder,
            words=words,
            text_model=text_model,
            host=host,
            port=port,
            people=people,
            certificate=certificate,
            certificate_key=certificate_key,
            runtime=runtime,
        )
    with server:
        serve(server, browser=browser, say=_tell)


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def serve(server: Server, *, browser: bool, say: Callable[[str], None], what: str = "review") -> None:
    """Print the link to a review, and a new one whenever Enter is pressed; serve the review until Ctrl-C.

    Of several people, each has a link, which stays until it is used; it is for others, so no browser opens it.
    """

    def tell() -> str:
        links = [server.link(person) for person in server.people or ("",)]
        names = [f"{what.capitalize()} by {person}" for person in server.people] or [what.capitalize()]
        say("\n".join(map(": ".join, zip(names, links, strict=True))))
        return links[0]

    with on_enter(tell, server.stop) as listening:
        link = tell()
        others = "other links" if server.people else "another link"
        say(f"{f'Enter prints {others}, ' if listening else ''}Ctrl-C ends the {what}.")
        server.run(browser=link if browser and not server.people else "")


def open_review(
    folder: Place,
    *,
    words: Place | None = None,
    text_model: Place | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    people: Sequence[str] = (),
    certificate: Place | None = None,
    certificate_key: Place | None = None,
    runtime: Runtime = Runtime(),
) -> Server:
    """Lock a run, load it with its decisions and pixels, and return a server that is not running yet."""
    names = check_people(people)
    pem, key = (None if each is None else Path(each) for each in (certificate, certificate_key))
    check_has_images(Path(folder))
    with ExitStack() as held:
        run = held.enter_context(locked_run(folder, raw=True))
        session = open_session(run, words=words, text_model=text_model, people=names, runtime=runtime)
        server = Server(session, host=host, port=port, certificate=pem, certificate_key=key)
        server.hold(held.pop_all())
        return server


def open_session(
    run: Run,
    *,
    words: Place | None = None,
    text_model: Place | None = None,
    people: tuple[str, ...] = (),
    runtime: Runtime = Runtime(),
) -> Session:
    """Load the decisions about a run, as sorted, and its pixels, which come from its cache as far as they are there."""
    lines = journal.read(run.folder / DECISIONS, run.facts)
    side, sorted_by = run.facts.backbone.shorter_side, run.facts.settings
    side = side if sorted_by.learn_on is None else min(side, PREVIEW)
    settings = replace(Settings.of(run.facts.backbone, sorted_by.max_pixels), shorter_side=side)
    folder, compared = run.cache / "pixels", run.facts.features is None
    index = Index(folder / settings.key)
    if compared:
        pack(run.images(), folder, settings=settings, runtime=runtime)
        index.refresh()
        # By the content that was sorted, whatever the files are now.
        store = open_store(index, [each if each in index.stored else "" for each in run.assignments.contents])
    else:
        contents = np.array(run.assignments.contents, dtype=f"S{DIGEST_SIZE}")
        store = store_pictures(run.images(), contents, folder, settings=settings, runtime=runtime)
    originals = Originals(run.paths(), run.assignments.contents, [index], compared=compared)
    originals.look_at_all(lambda done, of: runtime.progress("Comparing files", done, of))
    if lost := np.flatnonzero(originals.state).tolist():
        changes = originals.say(lost, run.assignments.files)
        runtime.note(f"{changes}. The review leaves these images out; run sortal discover again to sort what is there.")
    names, model = (None if each is None else Path(each) for each in (words, text_model))
    advisor = advise(run, store, words=names, text_model=model, runtime=runtime)
    threading.Thread(target=_import_ahead).start()
    place = _placer(runtime.device)
    return Session(
        run=run, store=store, originals=originals, place=place, lines=list(lines), advisor=advisor, people=people
    )


def _import_ahead() -> None:
    """Import what pages will need while the first one loads; an import that fails is reported where it is needed.

    Python waits for it at the end: a thread that is inside a library in C++ when Python ends aborts the process.
    """
    with suppress(Exception):  # such as that the process ends, or may open no more files
        import_module("sortal.clustering.kmeans")


def _placer(device: str) -> Placer:
    """Return a function that places images on a map, and loads torch when it is called."""

    def place(features: NDArray[np.float32], seed: int) -> NDArray[np.float64]:
        from sortal.clustering import tsne

        return tsne.place(features, seed, device=device)

    return place
