"""Files of a run that are cut, deleted or replaced while a command or the review app uses them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import fork_server, tiny_folder
from support.fork_server import say
from support.moving_images import own_run
from support.reviews import Client, serving
from support.swapping import swap
from support.world import OPTIONS, Trial

from sortal.reviews import journal
from sortal.reviews.loading import load_run
from sortal.runs.run import DECISIONS

pytestmark = pytest.mark.thorough

# What is replaced, as patterns below the run and its images, each with all kinds of replacement.
TARGETS = ("cache/pixels/*/pixels.bin", "features.npy", DECISIONS, "cache", "*.*", "images/*/*", "cache/pixels/*/*")
KINDS = ("cut", "gone", "pipe", "loop", "folder", "empty", "longer", "other", "device")
SHORTER = ("cut", "empty")  # reading a mapped file at the very moment it is cut cannot be saved
PATHS = (
    "/api/overview",
    "/thumb/{row}",
    "/api/queue",
    "/image/{row}",
    "/api/category/{few}",
    "/api/map",
    "/api/near/{row}",
    "/api/images?rows=0,5,{row}",
    "/api/grow/{few}",
    "/api/parts/{few}",
    "/api/names/{few}",
    "/api/version",
    "/api/words",
    "/api/refit",
    "/",
)
READERS = 4


def ask(client: Client, number: int, *codes: int) -> int:
    """Ask for one of the paths; the answer must have one of the codes, and say why it is not what was asked for."""
    answer = client.ask("GET", PATHS[number % len(PATHS)].format(row=number % 120, few=number % 6))
    assert answer.code in codes, f"{PATHS[number % len(PATHS)]}: {answer.code} {answer.body[:500]!r}"
    assert answer.code == 200 or answer.json()["message"].strip()
    return answer.code


def serve(folder: str, targets: list[str], kind: str, outside: str) -> None:
    """In a child: serve a run, decide, replace files while others read, and decide again."""
    from sortal.discovery.reviewing.open import open_session

    problems, ended = list[str](), threading.Event()

    def read(client: Client, number: int) -> None:
        try:
            while not ended.is_set():
                ask(client, number, 200, 404, 410, 503)
                number += 1
        except BaseException as error:
            problems.append(repr(error))

    session = open_session(load_run(Path(folder), raw=True))
    with serving(session) as client, tiny_folder.quickly():
        client.enter()
        answer = client.decide(0, do="move", rows=[0, 1], category=1)
        assert answer.code == 200, answer.body
        for number in range(4):
            ask(client, number, 200)
        readers = [threading.Thread(target=read, args=[client, 7 * number]) for number in range(READERS)]
        for reader in readers if kind not in SHORTER else []:
            reader.start()
        for path in targets:
            if os.path.isfile(path) or kind not in (*SHORTER, "longer"):
                swap(path, kind, outside)
        say("asked", [ask(client, number, 200, 404, 410, 503) for number in range(2 * len(PATHS))])
        answers = [client.decide(1, do="move", rows=[5, 6], category=2) for _ in range(2)]
        say("decided", [each.code for each in answers], [each.body.decode() for each in answers])
        ended.set()
        for reader in readers if kind not in SHORTER else []:
            reader.join()
    assert not problems, problems


@pytest.mark.attack(most=2 * len(TARGETS) * len(KINDS))
def test_review(trial: Trial) -> None:
    """Replace files of a run under review: every request is answered, and decisions are saved or refused."""
    target, kind = trial.case(TARGETS), KINDS[(trial.number + trial.number // len(TARGETS)) % len(KINDS)]
    run, images = own_run(trial)
    base = images.place.parent if target.startswith("images") else run
    facts = load_run(run, raw=True).facts
    journal.append(run / DECISIONS, facts, [])  # exists from the start, without a decision
    found = sorted(str(path) for path in base.glob(target) if path.name not in ("run.json", ".lock"))
    assert found, target
    ended = fork_server.shared().run(serve, str(run), found, kind, str(images.outside), codes=[0])
    ((codes, bodies),) = ended.each("decided")
    assert codes[0] in (200, 400, 410, 503), bodies
    assert (codes[0] == 410) == target.startswith("images"), "what has changed is not decided about"
    assert codes[1] == (409 if codes[0] == 200 else codes[0]), bodies
    for body in bodies:
        assert "message" in body or "version" in body, body
    if codes[0] == 200:
        assert len(journal.read(run / DECISIONS, facts)) == 2, "what was saved before is still there"


# Mapped files


def cut_later(path: str, calls: int) -> None:
    """In a command: cut a file before the pixels of a store are read for the nth time.

    Reads take turns here. One that is under way in another thread at that moment cannot be saved.
    """
    from sortal.images.store.pixel_store import PixelStore

    left, turn = calls, threading.RLock()

    def cutting(read: Callable[..., Any]) -> Callable[..., Any]:
        def taking_turns(*values: Any, **named: Any) -> Any:
            nonlocal left
            with turn:
                left -= 1
                if not left:
                    os.truncate(path, 0)
                return read(*values, **named)

        return taking_turns

    for name in ("crops", "image", "thumbnails"):
        setattr(PixelStore, name, cutting(getattr(PixelStore, name)))


@pytest.mark.attack(most=40)
def test_pixel_store(trial: Trial) -> None:
    """Cut the pixels that a command has mapped into memory: it ends with a message, and the next one starts afresh."""
    run = trial.world.copy_run(trial.folder / "run")
    (pixels,) = run.glob("cache/pixels/*/pixels.bin")
    words: tuple[str | Path, ...] = ("discover", trial.world.images, "--out", run, *OPTIONS, "--seed", "1")
    calls = 2 + trial.number % 40
    done = trial.world.sortal(*words, before=cut_later, given=[str(pixels), calls]).check(0, 2)
    assert done.code == 0 or repr(str(pixels)) in done.err, done.err
    trial.world.sortal(*words).check(0)


def cut_tokens_later(folder: str, calls: int) -> None:
    """In a command: cut the file of cached tokens before it is used for the nth time."""
    from sortal.learning import token_cache
    from sortal.system import mapped_arrays

    left = calls

    def cut_once(*values: Any) -> None:
        nonlocal left
        left -= 1
        if not left:
            (path,) = Path(folder).rglob(token_cache.TOKENS)
            os.truncate(path, os.path.getsize(path) // 2)
        mapped_arrays.check_whole(*values)

    setattr(token_cache, "check_whole", cut_once)  # noqa: B010


@pytest.mark.attack(most=8)
def test_tokens(trial: Trial) -> None:
    """Cut the file of tokens while they are computed or learned from: a message says so, and the next run is whole."""
    out, calls = trial.folder / "run", 1 + trial.number % 8
    backbone = ("--backbone", "test_vit", "--weights", "random")
    words: tuple[str | Path, ...] = ("discover", trial.world.images, "--out", out, *backbone, *OPTIONS[2:])
    done = trial.world.sortal(*words, before=cut_tokens_later, given=[str(out), calls]).check(0, 2)
    assert calls > 1 or done.code == 2, "the tokens are in a file"
    assert done.code == 0 or "tokens.bf16" in done.err, done.err
    trial.world.sortal(*words).check(0)
