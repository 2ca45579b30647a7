"""Signals, real ones: the first is noted and what is done is kept, the second is not waited for."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import run_two
from safetensors.numpy import load_file
from stores import small_store
from tiny_run import Job, a_convnet, a_set, perform, same, settings, weights
from torch import Tensor

from sortal import checkpoint, tokens
from sortal.backbone import load_backbone
from sortal.batches import Batch
from sortal.features import extract
from sortal.interrupt import deferred
from sortal.run import LOG
from sortal.segments import write_atomically
from sortal.selection import Validation
from sortal.step import Step
from sortal.train import Trained, train
from sortal.trunk import Frozen

BOTH = (signal.SIGINT, signal.SIGTERM)
LEARNING, TOKENS, FEATURES = "Learning", "Computing tokens", "Computing features"
EPOCHS, STEPS = 3, 4
Progress = Callable[[str, int, int], None]


@pytest.fixture(autouse=True)
def _as_the_command_line_has_it(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Either signal would raise KeyboardInterrupt, and does so again after each test; nobody waits for the disk."""
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


def send_from_a_thread(number: int = signal.SIGINT) -> None:
    thread = threading.Thread(target=send, args=(number,))
    thread.start()
    thread.join()


class CrashError(Exception):
    pass


# The context


def inside(*acts: Callable[[], object], when: bool = True) -> list[bool]:
    """What was told after each of some acts; one that interrupts is the last."""
    told: list[bool] = []

    def run() -> None:
        with deferred(when) as stopped:
            for act in acts:
                act()
                told.append(stopped())

    with pytest.raises(KeyboardInterrupt):
        run()
    return told


@pytest.mark.parametrize("number", BOTH)
@pytest.mark.parametrize("sent", [send, send_from_a_thread])
def test_a_signal_is_noted_and_interrupts_on_leaving(sent: Callable[[int], None], number: int) -> None:
    assert inside(lambda: None, lambda: sent(number), lambda: None) == [False, True, True]


@pytest.mark.parametrize("first", BOTH)
@pytest.mark.parametrize("second", BOTH)
def test_a_second_signal_interrupts_at_once(first: int, second: int) -> None:
    assert inside(lambda: send(first), lambda: send(second), lambda: None) == [True]


def test_without_a_signal_nothing_happens() -> None:
    with deferred() as stopped:
        assert handlers() != [signal.default_int_handler] * 2
        assert not stopped()


def test_each_time_begins_without_a_signal() -> None:
    assert inside(send) == [True]
    with deferred() as stopped:
        assert not stopped()


def test_another_error_is_not_hidden() -> None:
    def crash() -> None:
        with deferred():
            send()
            raise CrashError

    with pytest.raises(CrashError):
        crash()
    assert handlers() == [signal.default_int_handler] * 2


def test_a_signal_while_handlers_are_put_back_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    install = signal.signal

    def interfered(number: int, handler: Any) -> Any:
        before = install(number, handler)
        if handler is signal.default_int_handler and number == BOTH[0]:
            send(BOTH[1])  # whose handler is next
        return before

    with monkeypatch.context() as patch:
        patch.setattr(signal, "signal", interfered)
        assert inside(send) == [True]
    assert handlers() == [signal.default_int_handler] * 2


@pytest.mark.parametrize("number", BOTH)
@pytest.mark.parametrize("handler", [signal.SIG_DFL, signal.SIG_IGN, lambda *_: None])
def test_a_handler_that_would_not_interrupt_is_left_alone(number: int, handler: Any) -> None:
    signal.signal(number, handler)
    try:
        with deferred() as stopped:
            assert signal.getsignal(number) is handler
            if handler is not signal.SIG_DFL:  # by which the tests would end
                send(number)
            assert not stopped()
        assert signal.getsignal(number) is handler
        other = BOTH[1 - BOTH.index(signal.Signals(number))]
        assert inside(lambda: send(other)) == [True]
    finally:
        signal.signal(number, signal.default_int_handler)


def test_where_there_is_nothing_to_keep_signals_interrupt_at_once() -> None:
    assert inside(lambda: None, send, lambda: None, when=False) == [False]


def test_in_another_thread_it_is_inert() -> None:
    """The main thread is interrupted as ever, the other goes on."""
    entered, sent, told = threading.Event(), threading.Event(), []

    def work() -> None:
        with deferred() as stopped:
            entered.set()
            sent.wait(60)
            told.append(stopped())

    thread = threading.Thread(target=work)
    thread.start()
    entered.wait(60)
    with pytest.raises(KeyboardInterrupt):
        send()
    sent.set()
    thread.join()
    assert told == [False]


# Training


def at(stage: str, done: int, act: Callable[[], None] = send, seen: list[int] | None = None) -> Progress:
    """Acts once so much of a stage is done; `seen` gets what was done of it by then, and after."""

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
    """The steps of the checkpoint in a folder."""
    found = checkpoint.load(folder)
    return None if found is None else found.progress.epoch * STEPS + found.progress.step


def ends_like(one: Path, other: Path) -> bool:
    """Whether two runs left the same bytes, but for what their logs say of time."""

    def left(folder: Path) -> list[Any]:
        log = [line.partition(b'"images_per_second"')[::2] for line in (folder / LOG).read_bytes().splitlines()]
        return [
            *((folder / f"model.{end}").read_bytes() for end in ("safetensors", "json")),
            *((before, after.partition(b",")[2]) for before, after in log),
        ]

    return left(one) == left(other)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Trained]]:
    """Runs that nothing happened to."""
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in ("live", "file", "memory")}
    return {kind: (folder, perform(job(folder, kind))) for kind, folder in folders.items()}


Whole = dict[str, tuple[Path, Trained]]


def goes_on(folder: Path, whole: Whole, kind: str = "live") -> list[int]:
    """Do the rest of a run, which must end as the one that was not stopped; the steps that were done."""
    seen: list[int] = []
    result = perform(job(folder, kind), at(LEARNING, 0, seen=seen))
    wanted, unbroken = whole[kind]
    assert ends_like(folder, wanted)
    assert (result.losses, result.selected, result.validation) == (
        unbroken.losses,
        unbroken.selected,
        unbroken.validation,
    )
    return seen


@pytest.mark.parametrize("kind", ["live", "file", "memory"])
@pytest.mark.parametrize("step", [1, STEPS - 1, STEPS, STEPS + 1, EPOCHS * STEPS - 1, EPOCHS * STEPS])
def test_a_run_stops_with_a_checkpoint_of_that_step_and_goes_on(
    tmp_path: Path, whole: Whole, kind: str, step: int
) -> None:
    seen: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        perform(job(tmp_path, kind), at(LEARNING, step, seen=seen))
    assert seen == list(range(1, step + 1))
    assert reached(tmp_path) == step
    assert goes_on(tmp_path, whole, kind) == list(range(step + 1, EPOCHS * STEPS + 1))


def test_a_run_stopped_after_every_step_ends_as_one_that_was_not(tmp_path: Path, whole: Whole) -> None:
    for step in range(1, EPOCHS * STEPS):
        with pytest.raises(KeyboardInterrupt):
            perform(job(tmp_path), at(LEARNING, step, lambda: send(signal.SIGTERM)))
        assert reached(tmp_path) == step
    assert goes_on(tmp_path, whole) == [EPOCHS * STEPS]


def test_the_step_that_a_signal_finds_is_done_first(
    tmp_path: Path, whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Halfway through a step the weights are no weights of any."""
    steps, compute = 0, Step._gradients

    def gradients(self: Step, *values: Tensor) -> tuple[Tensor, Batch]:
        nonlocal steps
        steps += 1
        if steps == 6:
            send_from_a_thread()
        return compute(self, *values)

    monkeypatch.setattr(Step, "_gradients", gradients)
    with pytest.raises(KeyboardInterrupt):
        perform(job(tmp_path))
    assert (steps, reached(tmp_path)) == (6, 6)
    assert goes_on(tmp_path, whole) == list(range(7, EPOCHS * STEPS + 1))


@pytest.mark.parametrize("epoch", range(EPOCHS))
def test_validation_that_a_signal_finds_is_done_first(
    tmp_path: Path, whole: Whole, monkeypatch: pytest.MonkeyPatch, epoch: int
) -> None:
    measured, measure = 0, Validation.accuracy

    def accuracy(self: Validation) -> float:
        nonlocal measured
        measured += 1
        if measured == epoch + 1:
            send()
        return measure(self)

    monkeypatch.setattr(Validation, "accuracy", accuracy)
    with pytest.raises(KeyboardInterrupt):
        perform(job(tmp_path))
    assert reached(tmp_path) == (epoch + 1) * STEPS
    goes_on(tmp_path, whole)
    assert measured == EPOCHS  # none was done twice


def test_a_checkpoint_that_is_being_written_is_finished(
    tmp_path: Path, whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = 0

    def signalled(path: Path, content: bytes) -> None:
        nonlocal written
        written += 1
        if written == 5:
            send()
        write_atomically(path, content)

    with monkeypatch.context() as patch:
        patch.setattr("sortal.checkpoint.write_atomically", signalled)
        with pytest.raises(KeyboardInterrupt):
            perform(job(tmp_path, every=0.0))
    assert (written, reached(tmp_path)) == (5, 5)
    assert goes_on(tmp_path, whole) == list(range(6, EPOCHS * STEPS + 1))


def test_a_second_signal_does_not_wait_for_a_checkpoint(tmp_path: Path, whole: Whole) -> None:
    seen: list[int] = []

    def twice() -> None:
        send()
        send()

    with pytest.raises(KeyboardInterrupt):
        perform(job(tmp_path), at(LEARNING, 6, twice, seen=seen))
    assert seen == [1, 2, 3, 4, 5]
    assert reached(tmp_path) is None
    assert goes_on(tmp_path, whole) == list(range(1, EPOCHS * STEPS + 1))


def test_the_method_is_found_as_it_was(tmp_path: Path) -> None:
    method = a_convnet()
    with pytest.raises(KeyboardInterrupt):
        train(method, *a_set(), settings(), folder=tmp_path, device="cpu", on_progress=at(LEARNING, 3))
    assert same(weights(method), weights(a_convnet()))


def test_without_a_folder_a_run_does_not_wait_for_its_step() -> None:
    seen: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        train(a_convnet(), *a_set(), settings(), device="cpu", on_progress=at(LEARNING, 3, seen=seen))
    assert seen == [1, 2]


def test_a_run_in_another_thread_is_not_stopped(tmp_path: Path, whole: Whole) -> None:
    """A signal is for the main thread, which here waits for the other."""
    interrupted = []

    def stop() -> None:
        done.set()
        told.wait(60)

    done, told = threading.Event(), threading.Event()
    thread = threading.Thread(target=perform, args=(job(tmp_path), at(LEARNING, 5, stop)))
    thread.start()
    done.wait(60)
    try:
        send()
    except KeyboardInterrupt:
        interrupted.append(True)
    told.set()
    thread.join()
    assert interrupted == [True]
    assert ends_like(tmp_path, whole["live"][0])


def together(rank: int, folder: Path) -> None:
    """One of two processes that train; writes whether it waits when it is interrupted."""
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", TORCHELASTIC_RUN_ID="test"
    )
    asked: list[bool] = []

    def recorded(when: bool) -> Any:
        asked.append(when)
        return deferred(when)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sortal.train.deferred", recorded)
        train(a_convnet(), *a_set(), settings(epochs=1), folder=folder / "run", device="cpu")
    (folder / f"{rank}.txt").write_text(str(asked))


def test_several_processes_do_not_wait(tmp_path: Path) -> None:
    """One that stopped alone would leave the others waiting for it."""
    run_two(together, tmp_path)
    assert [(tmp_path / f"{rank}.txt").read_text() for rank in range(2)] == ["[False]"] * 2


# Tokens


def test_tokens_in_a_file_are_marked_when_a_signal_comes(
    tmp_path: Path, whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "PIECE", 4)
    seen: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        perform(job(tmp_path, "file"), at(TOKENS, 20, seen=seen))
    assert seen == [4, 8, 12, 16, 20]
    seen.clear()
    perform(job(tmp_path, "file"), at(TOKENS, 0, seen=seen))
    assert seen == [*range(24, 54, 4), 54]
    assert ends_like(tmp_path, whole["file"][0])


def test_tokens_in_memory_are_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "PIECE", 4)
    seen: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        perform(job(tmp_path, "memory"), at(TOKENS, 20, seen=seen))
    assert seen == [4, 8, 12, 16]


# Features


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images each batch had that was computed."""
    sizes: list[int] = []
    run = Frozen.__call__

    def counted(self: Frozen, pixels: Tensor, flipped: Tensor) -> Tensor:
        rows = run(self, pixels, flipped)
        sizes.append(len(pixels))
        return rows

    monkeypatch.setattr(Frozen, "__call__", counted)
    return sizes


def features(folder: Path | None, on_progress: Progress = lambda *_: None) -> Any:
    backbone = load_backbone("convnet", weights="random", image_size=8)
    store = small_store(9, 8)
    options: Any = {"device": "cpu", "precision": "float32", "batch_size": 2}
    return extract(backbone, store, folder=folder, on_progress=on_progress, **options)


def kept(folder: Path) -> int:
    return sum(len(load_file(path)["features"]) for path in folder.rglob("*.safetensors"))


@pytest.mark.parametrize("number", BOTH)
@pytest.mark.parametrize(("done", "by_then"), [(2, 4), (4, 6), (6, 8), (8, 9), (9, 9)])
def test_features_that_were_computed_are_kept(
    tmp_path: Path, computed: list[int], number: int, done: int, by_then: int
) -> None:
    """A batch has been started when that before it is told of, and is not lost."""
    with pytest.raises(KeyboardInterrupt):
        features(tmp_path, at(FEATURES, done, lambda: send(number)))
    assert sum(computed) == kept(tmp_path) == by_then
    computed.clear()
    x = features(tmp_path)
    assert sum(computed) == 9 - by_then
    np.testing.assert_array_equal(x, features(None))


@pytest.mark.parametrize("batch", range(1, 6))
def test_a_batch_of_features_that_a_signal_finds_is_kept(
    tmp_path: Path, computed: list[int], monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    run = Frozen.__call__

    def signalled(self: Frozen, pixels: Tensor, flipped: Tensor) -> Tensor:
        if len(computed) == batch - 1:
            send_from_a_thread()
        return run(self, pixels, flipped)

    with monkeypatch.context() as patch:
        patch.setattr(Frozen, "__call__", signalled)
        with pytest.raises(KeyboardInterrupt):
            features(tmp_path)
    assert sum(computed) == kept(tmp_path) == min(2 * batch, 9)
    np.testing.assert_array_equal(features(tmp_path), features(None))


def test_a_second_signal_does_not_wait_for_features(tmp_path: Path) -> None:
    def twice() -> None:
        send()
        send()

    with pytest.raises(KeyboardInterrupt):
        features(tmp_path, at(FEATURES, 4, twice))
    assert kept(tmp_path) == 0


def test_without_a_folder_features_are_not_waited_for() -> None:
    seen: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        features(None, at(FEATURES, 4, seen=seen))
    assert seen == [2]


def test_features_in_another_thread_are_found_as_ever(tmp_path: Path) -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(features(tmp_path)))
    thread.start()
    thread.join()
    np.testing.assert_array_equal(found[0], features(None))
