"""A run that is killed at any moment, any number of times, ends like an uninterrupted one."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from support import tiny_run
from support.fork_server import KILLED, Ended, ForkServer
from support.runtimes import CPU
from support.stores import small_store
from support.thorough import thorough_but
from support.tiny_folder import contents
from support.tiny_methods import NAMES, TRANSFORMED, small
from support.tiny_run import (
    Job,
    a_convnet,
    a_set,
    a_transformer,
    left,
    named,
    perform,
    same,
    settings,
    timeless,
    weights,
)

from sortal.config import Swaps
from sortal.errors import InputError
from sortal.learning import checkpoint
from sortal.learning.backbones.registry import load_backbone
from sortal.learning.methods import Method
from sortal.learning.step import TrainingStep
from sortal.learning.token_cache import Budget
from sortal.learning.train import TrainingResult

train = tiny_run.train
STEPS = 4  # of an epoch
IN_MEMORY, NOWHERE = Budget(memory=10**9), Budget(memory=0)


# Kills


def reached(ended: Ended, stage: str) -> list[int]:
    return [done for what, done in ended.each("at") if what == stage]


def comes_to(stage: str, least: int) -> Callable[[list[Any]], bool]:
    """Make a condition that holds once a child reports so much of a stage, or a later stage."""
    return lambda words: words[2] >= least if words[1] == stage else words[1] == tiny_run.LEARNING


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "every"), [("live", 0.04), ("file", 0.0)])
def test_a_run_killed_at_random_moments_ends_like_an_uninterrupted_one(
    fork_server: ForkServer, tmp_path: Path, kind: str, every: float
) -> None:
    """If checkpoints are rarer than steps, those since the last one are repeated."""
    job = Job(str(tmp_path / "killed"), kind, every=every)
    whole = fork_server.run(tiny_run.perform_in_child, asdict(replace(job, folder=str(tmp_path / "whole"))))
    total = job.epochs * STEPS
    assert reached(whole, tiny_run.LEARNING) == list(range(1, total + 1))

    points = sorted(random.Random(kind).sample(range(1, total), 4))
    for stage, least in [(tiny_run.TOKENS, 1), (tiny_run.TOKENS, 33), *((tiny_run.LEARNING, step) for step in points)]:
        # The signal arrives a moment after the child has reported its progress.
        fork_server.run(tiny_run.perform_in_child, asdict(job), None, True, kill=comes_to(stage, least), codes=[KILLED])
    last = fork_server.run(tiny_run.perform_in_child, asdict(job), codes=[0])
    assert left(tmp_path / "killed") == left(tmp_path / "whole")
    assert list(map(timeless, last.each("result"))) == list(map(timeless, whole.each("result")))


@pytest.mark.parametrize(
    ("kind", "epochs", "batch_size", "each"), thorough_but([("live", 1, 6, 2)], [("live", 1, 6, 2), ("file", 1, 18, 3)])
)
def test_a_run_killed_before_any_file_operation_resumes(
    fork_server: ForkServer, tmp_path: Path, kind: str, epochs: int, batch_size: int, each: int
) -> None:
    """Every other operation of three checkpoints and the model, and every third with tokens in a file."""
    job = Job(str(tmp_path / "whole"), kind, epochs, batch_size=batch_size)
    whole = fork_server.run(tiny_run.perform_in_child, asdict(job), codes=[0])
    (operations,) = whole.each("operations")
    assert operations > 15
    for fatal in range(1, operations + 1, each):
        folder = tmp_path / str(fatal)
        mine = asdict(replace(job, folder=str(folder)))
        ended = fork_server.run(tiny_run.perform_in_child, mine, fatal, codes=[KILLED])
        again = fork_server.run(tiny_run.perform_in_child, mine, codes=[0])
        for stage, unmarked in ((tiny_run.TOKENS, 0), (tiny_run.LEARNING, 1)):
            if done := reached(ended, stage):  # only a step without a checkpoint is repeated
                assert min(reached(again, stage), default=99) > done[-1] - unmarked, fatal
        assert left(folder) == left(tmp_path / "whole"), fatal
        assert list(map(timeless, again.each("result"))) == list(map(timeless, whole.each("result"))), fatal


# Interrupts and errors


class CrashError(Exception):
    pass


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Do an uninterrupted run of three epochs; return its folder, what it left there and its result."""
    folder = tmp_path_factory.mktemp("whole")
    result = timeless(vars(resume(folder, every=30.0)))
    return SimpleNamespace(folder=folder, left=left(folder), result=result)


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unfinished")
    interrupt(folder, STEPS + 1)
    return folder


def resume(folder: Path, method: Method | None = None, **options: Any) -> TrainingResult:
    """Do the tiny run in this process; `options` are settings, or other arguments of train."""
    others = {name: options.pop(name) for name in ("runtime", "budget") if name in options}
    method = method or a_convnet()
    images, store = a_set(method.backbone.spec.image_size)
    every = options.pop("every", 0.0)
    config = settings(**{"epochs": 3, **options})
    return train(method, images, store, config, folder=folder, checkpoint_every=every, **{"runtime": CPU, **others})


def interrupt(
    folder: Path, at: int, method: Method | None = None, error: BaseException | None = None, **options: Any
) -> None:
    """Interrupt the tiny run after a step, before its checkpoint; at 0 before the first step."""
    stop, last = Mock(side_effect=error or KeyboardInterrupt()), (tiny_run.LEARNING, at)
    with pytest.MonkeyPatch.context() as patch:
        if not at:
            patch.setattr("sortal.learning.train.Log.write", stop)
        runtime = replace(CPU, progress=lambda *report: stop() if report[:2] == last else None)
        with pytest.raises(type(stop.side_effect)):
            resume(folder, method, runtime=runtime, **options)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), CrashError("full")])
@pytest.mark.parametrize("at", thorough_but([0, STEPS + 1], [0, 1, STEPS, STEPS + 1, 3 * STEPS]))
def test_the_same_call_with_the_same_method_resumes(tmp_path: Path, whole: Any, at: int, error: BaseException) -> None:
    """As in a notebook; an interrupted method, even before the first step, has its initial weights."""
    method = a_convnet()
    for _ in range(2):
        interrupt(tmp_path, at, method, error)
        assert same(weights(method), weights(a_convnet()))
    result = resume(tmp_path, method)
    assert left(tmp_path) == whole.left
    assert timeless(vars(result)) == whole.result


def test_the_best_weights_before_an_interruption_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first epoch is the best here."""
    scores = iter([0.9, 0.5, 0.4])
    seen: list[dict[str, Any]] = []

    def accuracy(self: Any) -> float:
        seen.append(weights(self.table.trunk.backbone))
        return next(scores)

    monkeypatch.setattr("sortal.learning.health.Validation.accuracy", accuracy)
    interrupt(tmp_path, 2 * STEPS + 1)
    method = a_convnet()
    result = resume(tmp_path, method)
    assert (result.selected, result.validation, len(seen)) == (0, 0.9, 3)
    assert same(weights(method.backbone), seen[0])
    assert not same(seen[0], seen[2])
    assert same(weights(load_backbone(str(tmp_path / "model.json"))), seen[0])
    assert resume(tmp_path, method) == result  # the selected weights, though not the last, identify the run


# Tokens and chunks


@pytest.mark.parametrize(
    ("precision", "budget"),
    [("bf16", IN_MEMORY), pytest.param("float32", tiny_run.IN_A_FILE, marks=pytest.mark.thorough)],
)
def test_tokens_in_memory_are_recomputed_even_in_another_place(tmp_path: Path, precision: str, budget: Budget) -> None:
    kind: dict[str, Any] = {"views": 3, "precision": precision}
    whole = resume(tmp_path / "whole", a_transformer(), budget=IN_MEMORY, **kind)
    interrupt(tmp_path / "broken", 6, a_transformer(), budget=IN_MEMORY, **kind)
    result = resume(tmp_path / "broken", a_transformer(), budget=budget, **kind)
    assert left(tmp_path / "broken") == left(tmp_path / "whole")
    assert timeless(vars(result)) == timeless(vars(whole))
    assert result.views == 3


def test_a_run_resumes_with_the_kind_of_views_it_started_with(tmp_path: Path) -> None:
    """Live views stay live even if there is room by then; cached views require the room again."""
    kept, new, whole = (tmp_path / name for name in ("kept", "new", "whole"))
    interrupt(kept, 6, a_transformer(), views="auto", budget=IN_MEMORY)
    before = contents(kept)
    with pytest.raises(InputError, match=r"started with 8 cached views .* Raise the budget"):
        resume(kept, a_transformer(), views="auto", budget=NOWHERE)
    assert contents(kept) == before
    assert resume(kept, a_transformer(), views="auto", budget=IN_MEMORY).views == 8
    resume(whole, a_transformer(), views="auto", budget=NOWHERE)
    interrupt(new, 6, a_transformer(), views="auto", budget=NOWHERE)
    assert resume(new, a_transformer(), views="auto", budget=IN_MEMORY).views is None
    assert left(new) == left(whole)


def test_tokens_of_another_run_are_not_reused(tmp_path: Path) -> None:
    """Tokens of other weights are left, without a checkpoint that would reveal it."""
    resume(tmp_path / "one", a_transformer(), views=3, budget=tiny_run.IN_A_FILE)
    interrupt(tmp_path / "two", 1, a_transformer(seed=1), views=3, budget=tiny_run.IN_A_FILE)
    assert (tmp_path / "two/tokens.bf16").exists()
    assert checkpoint.load(tmp_path / "two") is None
    resume(tmp_path / "two", a_transformer(), views=3, budget=tiny_run.IN_A_FILE)
    assert left(tmp_path / "two") == left(tmp_path / "one")


@pytest.mark.parametrize(("before", "asked", "wanted"), [(1, 2, 2), (4, 1, 4)])
def test_chunks_are_those_of_before_or_more_if_requested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, asked: int, wanted: int
) -> None:
    call, least, seen = TrainingStep.__call__, before, set()

    def spied(self: TrainingStep, *values: Any) -> Any:
        self.chunks = max(self.chunks, least)  # as if memory had run out
        seen.add(self.chunks)
        return call(self, *values)

    monkeypatch.setattr(TrainingStep, "__call__", spied)
    interrupt(tmp_path, 6)
    assert seen == {before}
    least = 1
    seen.clear()
    resume(tmp_path, chunks=asked)
    assert seen == {wanted}


# Every method, with its buffers

ALL = (*NAMES, *TRANSFORMED)
Ends = dict[str, tuple[dict[str, Any], Path]]


def of_kind(name: str) -> Any:
    """Make a method for the tiny set; UNO has two heads and a queue that overflows in the second epoch."""
    losses = Swaps(heads=2) if name == "uno" else None
    backbone = None if name in TRANSFORMED else a_convnet().backbone
    return small(name, backbone, k=4, known=[0, 1], batch_size=4, losses=losses)


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Ends:
    """Do an uninterrupted run of each method; return its final weights and buffers, and its folder."""
    found = {}
    for name in ALL:
        method, folder = of_kind(name), tmp_path_factory.mktemp(name)
        resume(folder, method, every=30.0)
        found[name] = weights(method), folder
    assert found["uno"][0]["filled"] == 16
    assert found["uno"][0]["mean_losses"].all()
    return found


@pytest.mark.parametrize("name", thorough_but(["gcd", "sortal", "uno"], ALL))
def test_every_method_resumes_from_any_step_to_the_same_weights_and_buffers(
    tmp_path: Path, ends: Ends, name: str
) -> None:
    """Interrupted after every step of two epochs, with the same method and with new ones in turn.

    Three of the methods are: one without state, one with a queue, and one that computes something in every epoch. The
    others are interrupted within an epoch, at its end, and after the first step of the next.
    """
    method = of_kind(name)
    every = name in ("gcd", "uno", "selex")
    for at in range(2, 2 * STEPS + 2) if every else (3, STEPS, STEPS + 1, STEPS + 2):
        method = method if at % 2 else of_kind(name)
        interrupt(tmp_path, at, method)
        assert same(weights(method), weights(of_kind(name)))
    resume(tmp_path, method)
    assert same(weights(method), ends[name][0])
    assert left(tmp_path) == left(ends[name][1])


def test_checkpoints_hold_the_buffers_of_the_method_and_not_those_of_the_backbone(tmp_path: Path) -> None:
    method = of_kind("uno")
    method.backbone.register_buffer("constant", torch.arange(3.0))
    interrupt(tmp_path, STEPS + 2, method)
    found = checkpoint.load(tmp_path)
    assert found is not None
    trained = [name for name, value in method.named_parameters() if value.requires_grad]
    buffers = ["known", "queue", "filled", "mean_losses"]
    state = {*(f"weight.{name}" for name in [*trained, *buffers]), *(f"momentum.{name}" for name in trained)}
    best = {f"best.{name}" for name in [*trained, *buffers]}
    assert set(found.tensors) == state | best | {f"good.{name}" for name in state}
    interrupt(tmp_path, 2 * STEPS + 1, method)
    found = checkpoint.load(tmp_path)
    assert found is not None
    assert set(found.tensors) == state | best  # at the end of an epoch, it is the good one


# Damage


@pytest.mark.parametrize("n_damaged", [1, 2])
def test_a_damaged_checkpoint_costs_a_step_and_two_cost_the_run(tmp_path: Path, whole: Any, n_damaged: int) -> None:
    """Steps 1 to 6 are in the newest checkpoint, 1 to 5 in the one before."""
    interrupt(tmp_path, STEPS + 3)
    for name in (checkpoint.CHECKPOINT, checkpoint.PREVIOUS_CHECKPOINT)[:n_damaged]:
        os.truncate(tmp_path / name, (tmp_path / name).stat().st_size // 2)
    seen: list[int] = []
    resume(tmp_path, runtime=replace(CPU, progress=lambda _, done, __: seen.append(done)))
    assert seen == list(range(STEPS + 2 if n_damaged == 1 else 1, 3 * STEPS + 1))
    assert left(tmp_path) == whole.left


# Other runs in the folder


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("settings (epochs was 3, is 4)", {"epochs": 4}),
        ("images", {"labels": [*tiny_run.LABELS[:2], "a", *tiny_run.LABELS[3:]]}),
        ("images", {"held_out": (*tiny_run.HELD_OUT, 8)}),
        ("settings (lr was 0.1, is 0.05) and weights and images", {"lr": 0.05, "weights": 1, "side": 9}),
    ],
)
def test_another_run_in_the_folder_is_refused(whole: Any, unfinished: Path, what: str, change: dict[str, Any]) -> None:
    images = named(change.get("labels", tiny_run.LABELS), change.get("held_out", tiny_run.HELD_OUT))
    store = small_store(len(tiny_run.LABELS), change.get("side", tiny_run.SMALL))
    method = a_convnet(seed=change.get("weights", 0))
    config = settings(epochs=change.get("epochs", 3), lr=change.get("lr", 0.1))
    for folder in (whole.folder, unfinished):
        before = contents(folder)
        with pytest.raises(InputError, match=re.escape(f"holds one with different {what}. Choose another folder")):
            train(method, images, store, config, folder=folder, runtime=CPU)
        assert contents(folder) == before


def test_the_same_weights_with_images_seen_differently_are_another_run(unfinished: Path) -> None:
    """The weights of a convnet do not determine the size of images, their normalisation, or what is trained.

    Nor does the digest of an image determine the size at which it was packed.
    """
    images, store = a_set()
    resized, recoloured, frozen, frozen_head = (a_convnet() for _ in range(4))
    resized.backbone.spec = replace(resized.backbone.spec, image_size=tiny_run.SMALL - 1)
    recoloured.backbone.spec = replace(recoloured.backbone.spec, mean=(0.5, 0.5, 0.5))
    frozen.backbone.train_last(2)
    for value in list(frozen_head.head.parameters())[:2]:
        value.requires_grad_(False)
    for method in (resized, recoloured, frozen, frozen_head):
        assert same(weights(method), weights(a_convnet()))
        with pytest.raises(InputError, match=r"holds one with different (settings|weights)"):
            train(method, images, store, settings(epochs=3), folder=unfinished, runtime=CPU)
    larger = small_store(len(tiny_run.LABELS), tiny_run.SMALL + 3)
    larger = replace(larger, digests=store.digests, made="11px")
    with pytest.raises(InputError, match="holds one with different images"):
        train(a_convnet(), images, larger, settings(epochs=3), folder=unfinished, runtime=CPU)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"losses": Swaps(heads=2, epsilon=0.1)}, "settings (epsilon was 0.05, is 0.1)"),
        ({"losses": Swaps(heads=2), "k": 5}, "weights"),
        ({"losses": Swaps(heads=2), "known": [0, 2]}, "weights"),
    ],
)
def test_another_method_in_the_folder_is_refused(ends: Ends, change: dict[str, Any], what: str) -> None:
    other = small("uno", a_convnet().backbone, **{"k": 4, "known": [0, 1], "batch_size": 4, **change})
    with pytest.raises(InputError, match=re.escape(f"holds one with different {what}")):
        resume(ends["uno"][1], other)


# Finished runs


@pytest.mark.parametrize("name", ALL)
def test_a_finished_run_restores_its_weights_and_buffers_and_refuses_others(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """So that the classifier of a finished run is the trained one."""
    wanted, folder = ends[name]
    monkeypatch.setattr(TrainingStep, "__call__", None)
    method = of_kind(name)
    for _ in range(2):  # the second time it already has the final weights
        resume(folder, method)
        assert same(weights(method), wanted)
    with torch.no_grad():
        (method.queue if name == "uno" else [each for each in method.parameters() if each.requires_grad][-1])[0] += 1
    with pytest.raises(InputError, match="holds one with different weights"):
        resume(folder, method)


def test_without_validation_a_finished_run_recognises_its_last_weights(
    unfinished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, data = a_convnet(), (named(tiny_run.LABELS), a_set()[1])
    first = train(method, *data, settings(), folder=tmp_path, runtime=CPU)
    trained = weights(method)
    monkeypatch.setattr(TrainingStep, "__call__", None)
    assert train(method, *data, settings(), folder=tmp_path, runtime=CPU) == first
    assert same(weights(method), trained)
    with pytest.raises(InputError, match="holds one with different weights"):
        resume(unfinished, method)  # which started from others


@pytest.mark.parametrize("kind", ["live", "file"])
def test_a_finished_run_returns_at_once_with_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    job = Job(str(tmp_path), kind, epochs=2, every=30.0)
    first = perform(job)
    before = contents(tmp_path)
    monkeypatch.setattr(TrainingStep, "__call__", None)
    monkeypatch.setattr("sortal.learning.frozen.FrozenEncoder.__call__", None)
    seen: list[object] = []
    assert perform(job, lambda *report: seen.append(report)) == first
    assert first.views == (None if kind == "live" else 3)
    assert seen == []
    assert contents(tmp_path) == before
    for name in ("model.json", "model.safetensors"):  # restored if lost
        (tmp_path / name).unlink()
    assert perform(job) == first
    assert contents(tmp_path) == before


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data, budget = a_set(tiny_run.LARGE), tiny_run.IN_A_FILE
    result = train(a_transformer(), *data, settings(views=3), runtime=CPU, budget=budget)
    assert list(tmp_path.iterdir()) == []
    assert result.views is None  # there is no place for a file of tokens either
