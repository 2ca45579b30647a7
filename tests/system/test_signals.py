"""Real signals: the first one stops a run after saving its work, the second one at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.processes import run_two
from support.runtimes import CPU
from support.stores import small_store
from support.tiny_run import LEARNING, TOKENS, Job, a_convnet, a_set, left, perform, settings, timeless
from torch import Tensor

from sortal.learning import checkpoint
from sortal.learning.backbones.registry import load_backbone
from sortal.learning.features import extract
from sortal.learning.frozen import FrozenEncoder
from sortal.learning.health import Validation
from sortal.learning.step import TrainingStep
from sortal.learning.train import train
from sortal.system.signals import defer_signals, handling

BOTH = (signal.SIGINT, signal.SIGTERM)
FEATURES = "Computing features"
EPOCHS, STEPS = 3, 4
Progress = Callable[[str, int, int], None]


@pytest.fixture(autouse=True)
def _handlers_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let both signals raise KeyboardInterrupt, check that they still do afterwards, and skip fsync."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    before = [signal.signal(number, signal.default_int_handler) for number in BOTH]
    try:
        yield
        assert handlers() == [signal.default_int_handler] * 2
    finally:
        for number, handler in zip(BOTH, before, strict=True):
            signal.signal(number, handler)


def handlers() -> list[Any]:
    return [signal.getsignal(number) for number in BOTH]


def send(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    ("before", "always", "answers"), [("SIG_DFL", False, 1), ("SIG_IGN", False, 0), ("SIG_IGN", True, 1)]
)
def test_a_handler_answers_where_nothing_else_does_or_always(before: str, always: bool, answers: int) -> None:
    seen: list[int] = []
    signal.signal(signal.SIGTERM, getattr(signal, before))
    try:
        with handling("SIGTERM", lambda number, _: seen.append(number), always=always):
            os.kill(os.getpid(), signal.SIGTERM)
        assert seen == [signal.SIGTERM] * answers
        assert signal.getsignal(signal.SIGTERM) is getattr(signal, before)
    finally:
        signal.signal(signal.SIGTERM, signal.default_int_handler)


def test_no_handler_is_set_for_a_signal_that_a_system_lacks_or_in_another_thread() -> None:
    def elsewhere() -> None:
        with handling("SIGTERM", lambda *_: None, always=True):
            found.extend(handlers())

    with handling("SIGNOSUCH", lambda *_: None, always=True):
        found = handlers()
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler] * 4


def send_from_a_thread(number: int = signal.SIGINT) -> None:
    thread = threading.Thread(target=send, args=(number,))
    thread.start()
    thread.join()


def send_twice() -> None:
    send()
    send()


class CrashError(Exception):
    pass


def crash() -> None:
    send()
    raise CrashError


# The context


def inside(*acts: Callable[[], object], when: bool = True) -> list[bool]:
    """Act within the context; return stopped() after each act, of which an interrupting one is the last."""
    seen: list[bool] = []

    def run() -> None:
        with defer_signals(when) as stopped:
            for act in acts:
                act()
                seen.append(stopped())

    with pytest.raises(KeyboardInterrupt):
        run()
    return seen


@pytest.mark.parametrize("number", BOTH)
@pytest.mark.parametrize("sent", [send, send_from_a_thread])
def test_a_signal_is_deferred_until_the_context_ends(sent: Callable[[int], None], number: int) -> None:
    assert inside(lambda: None, lambda: sent(number), lambda: None) == [False, True, True]


@pytest.mark.parametrize("first", BOTH)
@pytest.mark.parametrize("second", BOTH)
def test_a_second_signal_interrupts_at_once_as_does_the_first_if_not_deferred(first: int, second: int) -> None:
    assert inside(lambda: send(first), lambda: send(second), lambda: None) == [True]
    assert inside(lambda: None, lambda: send(first), lambda: None, when=False) == [False]


def test_without_a_signal_nothing_happens() -> None:
    assert inside(send) == [True]  # which the next context must not see
    with defer_signals() as stopped:
        assert signal.default_int_handler not in handlers()
        assert not stopped()


def test_another_error_is_not_hidden() -> None:
    with pytest.raises(CrashError), defer_signals():
        crash()


def test_a_signal_while_handlers_are_restored_leaves_none_behind() -> None:
    install = signal.signal

    def interfered(number: int, handler: Any) -> Any:
        before = install(number, handler)
        if handler is signal.default_int_handler and number == BOTH[0]:
            send(BOTH[1])  # whose handler is restored next
        return before

    with patch.object(signal, "signal", interfered):
        assert inside(send) == [True]
    assert handlers() == [signal.default_int_handler] * 2


@pytest.mark.parametrize("handler", [signal.SIG_DFL, signal.SIG_IGN, lambda *_: None])
def test_a_handler_that_does_not_interrupt_is_left_alone(handler: Any) -> None:
    number, other = BOTH
    signal.signal(number, handler)
    try:
        with defer_signals() as stopped:
            assert signal.getsignal(number) is handler
            if handler is not signal.SIG_DFL:  # which would end the tests
                send(number)
            assert not stopped()
        assert signal.getsignal(number) is handler
        assert inside(lambda: send(other)) == [True]
    finally:
        signal.signal(number, signal.default_int_handler)


def test_in_other_threads_the_context_does_nothing() -> None:
    """The main thread is interrupted as usual, the other one continues."""
    entered, sent, seen = threading.Event(), threading.Event(), []

    def work() -> None:
        with defer_signals() as stopped:
            entered.set()
            sent.wait(60)
            seen.append(stopped())

    thread = threading.Thread(target=work)
    thread.start()
    entered.wait(60)
    with pytest.raises(KeyboardInterrupt):
        send()
    sent.set()
    thread.join()
    assert seen == [False]


# Training


def at(stage: str, done: int, act: Callable[[], None] = send, seen: list[int] | None = None) -> Progress:
    """Act when a stage has done so much; `seen` lists its progress."""

    def on_progress(what: str, now: int, _: int) -> None:
        if what == stage:
            if now == done:
                act()
            if seen is not None:
                seen.append(now)

    return on_progress


def job(folder: Path, kind: str = "live", every: float = 1e9) -> Job:
    return Job(str(folder), kind, epochs=EPOCHS, every=every)


def reached(folder: Path) -> int | None:
    """Return the number of steps in the checkpoint of a folder."""
    found = checkpoint.load(folder)
    return None if found is None else found.progress.epoch * STEPS + found.progress.step


Whole = dict[str, tuple[list[Any], dict[str, Any]]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Return what uninterrupted runs leave behind, and their results."""
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in ("live", "file", "memory")}
    results = {kind: timeless(vars(perform(job(folder, kind)))) for kind, folder in folders.items()}
    return {kind: (left(folder), results[kind]) for kind, folder in folders.items()}


def resume(folder: Path, whole: Whole, kind: str = "live", stage: str = LEARNING) -> list[int]:
    """Resume a run, which must end like an uninterrupted one; return the progress of a stage."""
    seen: list[int] = []
    result = perform(job(folder, kind), at(stage, 0, seen=seen))
    assert (left(folder), timeless(vars(result))) == whole[kind]
    return seen


@pytest.mark.parametrize(
    ("kind", "stops"),
    [
        ("live", range(1, EPOCHS * STEPS + 1)),
        pytest.param("file", (1, STEPS, STEPS + 2), marks=pytest.mark.thorough),
        ("memory", (STEPS - 1,)),
    ],
)
def test_a_run_stops_with_a_checkpoint_of_its_step_and_resumes(
    tmp_path: Path, whole: Whole, kind: str, stops: Sequence[int]
) -> None:
    before = 0
    for step in stops:
        seen: list[int] = []
        with pytest.raises(KeyboardInterrupt):
            perform(job(tmp_path, kind), at(LEARNING, step, partial(send, BOTH[step % 2]), seen))
        assert seen == list(range(before + 1, step + 1))
        assert reached(tmp_path) == step
        before = step
    assert resume(tmp_path, whole, kind) == list(range(before + 1, EPOCHS * STEPS + 1))


@pytest.mark.parametrize(
    ("place", "name", "call", "step"),
    [
        (TrainingStep, "_gradients", 6, 6),  # in the middle of a step
        (Validation, "accuracy", 1, STEPS),
        (Validation, "accuracy", EPOCHS, EPOCHS * STEPS),
        (checkpoint, "write_atomically", 5, 5),
    ],
)
def test_work_in_progress_is_finished_first(
    tmp_path: Path, whole: Whole, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, call: int, step: int
) -> None:
    calls, function = 0, getattr(place, name)

    def signalled(*values: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            send_from_a_thread()
        return function(*values)

    monkeypatch.setattr(place, name, signalled)
    with pytest.raises(KeyboardInterrupt):
        perform(job(tmp_path, every=0.0 if place is checkpoint else 1e9))
    assert reached(tmp_path) == step
    assert resume(tmp_path, whole) == list(range(step + 1, EPOCHS * STEPS + 1))
    if place is not checkpoint:
        assert calls == EPOCHS * (STEPS if place is TrainingStep else 1)  # nothing was repeated


def test_a_run_stops_at_once_after_a_second_signal_or_without_a_folder(tmp_path: Path, whole: Whole) -> None:
    seen: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        perform(job(tmp_path), at(LEARNING, 6, send_twice, seen))
    assert seen == [1, 2, 3, 4, 5]
    assert reached(tmp_path) is None
    assert resume(tmp_path, whole) == list(range(1, EPOCHS * STEPS + 1))
    seen.clear()
    with pytest.raises(KeyboardInterrupt):
        train(a_convnet(), *a_set(), settings(), runtime=replace(CPU, progress=at(LEARNING, 3, seen=seen)))
    assert seen == [1, 2]


def together(rank: int, folder: Path) -> None:
    """Train as one of two processes, and write down whether signals are deferred."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    with patch("sortal.learning.train.defer_signals", wraps=defer_signals) as asked:
        train(a_convnet(), *a_set(), settings(epochs=1), folder=folder / "run", runtime=CPU)
    (folder / f"{rank}.txt").write_text(str(asked.call_args_list))


def test_several_processes_do_not_defer_signals(tmp_path: Path) -> None:
    """A process that stopped alone would leave the others waiting."""
    run_two(together, tmp_path)
    assert [(tmp_path / f"{rank}.txt").read_text() for rank in range(2)] == ["[call(False)]"] * 2


# Tokens


@pytest.mark.parametrize(
    ("kind", "stopped", "again"),
    [("file", [8, 16, 24, 32], [40, 48, 54]), ("memory", [8, 16, 24], [*range(8, 54, 8), 54])],
)
def test_a_signal_saves_tokens_in_a_file_and_abandons_those_in_memory(
    tmp_path: Path, whole: Whole, kind: str, stopped: list[int], again: list[int]
) -> None:
    """A CPU computes eight views at once, so that a signal is answered soon."""
    seen: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        perform(job(tmp_path, kind), at(TOKENS, 32, seen=seen))
    assert seen == stopped
    assert resume(tmp_path, whole, kind, TOKENS) == again


# Features


def features(folder: Path | None, on_progress: Progress = lambda *_: None) -> Any:
    backbone = load_backbone("convnet", weights="random", image_size=8)
    store = small_store(9, 8)
    options: Any = {"precision": "float32", "batch_size": 2}
    return extract(backbone, store, folder=folder, runtime=replace(CPU, progress=on_progress), **options)


def saved(folder: Path) -> int:
    return sum(len(load_file(path)["features"]) for path in folder.rglob("*.safetensors"))


@pytest.mark.parametrize(("done", "by_then"), [(2, 4), (6, 8), (8, 9), (9, 9)])
def test_computed_features_are_saved(tmp_path: Path, done: int, by_then: int) -> None:
    """The next batch has been started when progress is reported, and is not lost."""
    with pytest.raises(KeyboardInterrupt):
        features(tmp_path, at(FEATURES, done))
    assert saved(tmp_path) == by_then
    np.testing.assert_array_equal(features(tmp_path), features(None))
    assert saved(tmp_path) == 9


@pytest.mark.parametrize("batch", [1, 3, 5])
def test_the_current_batch_of_features_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    run, calls = FrozenEncoder.__call__, count(1)

    def signalled(*values: Any) -> Tensor:
        if next(calls) == batch:
            send_from_a_thread()
        return run(*values)

    monkeypatch.setattr(FrozenEncoder, "__call__", signalled)
    with pytest.raises(KeyboardInterrupt):
        features(tmp_path)
    assert next(calls) == batch + 1  # no other batch was started
    assert saved(tmp_path) == min(2 * batch, 9)
    np.testing.assert_array_equal(features(tmp_path), features(None))


def test_features_are_abandoned_after_a_second_signal_or_without_a_folder(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        features(tmp_path, at(FEATURES, 4, send_twice))
    assert saved(tmp_path) == 0
    seen: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        features(None, at(FEATURES, 4, seen=seen))
    assert seen == [2]
