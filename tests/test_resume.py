"""A run that was killed, at any moment and any number of times, ends as one that was not."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from stores import small_store
from tiny_methods import NAMES, small
from tiny_run import (
    HELD_OUT,
    IN_A_FILE,
    LABELS,
    LARGE,
    SMALL,
    Ended,
    Job,
    Server,
    a_convnet,
    a_set,
    a_transformer,
    named,
    perform,
    same,
    settings,
    weights,
)

from sortal import checkpoint, tokens
from sortal.backbone import load_backbone
from sortal.config import Swaps
from sortal.errors import InputError
from sortal.methods import Contrastive, Method
from sortal.step import Step
from sortal.tokens import Budget
from sortal.train import Trained, train

LEARNING, TOKENS = "Learning", "Computing tokens"
EPOCHS, STEPS = 6, 4
KILLS = 20
SPEEDS = ("seconds", "images_per_second")


def log(folder: Path) -> list[dict[str, Any]]:
    """The records of a run's log, less what no two runs have in common."""
    lines = (folder / "log.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name not in SPEEDS} for line in lines]


def timeless(result: dict[str, Any] | None) -> dict[str, Any]:
    assert result is not None
    return {name: value for name, value in result.items() if name not in SPEEDS}


def model(folder: Path) -> tuple[bytes, bytes]:
    return (folder / "model.safetensors").read_bytes(), (folder / "model.json").read_bytes()


@pytest.fixture(autouse=True)
def _no_wait_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests do not survive power cuts, and waiting would take longer than all the rest."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.close()


def unbroken(server: Server, folder: Path, kind: str, **job: Any) -> Ended:
    ended = server.run(Job(str(folder), kind, **job))
    assert ended.code == 0
    return ended


# Kills from outside


@pytest.mark.parametrize(("kind", "every"), [("live", 0.0), ("live", 0.04), ("file", 0.0)])
def test_a_run_killed_at_twenty_points_ends_as_one_that_was_not(
    server: Server, tmp_path: Path, kind: str, every: float
) -> None:
    """Where checkpoints are rarer than steps, what was done since the last one is done again."""
    whole = unbroken(server, tmp_path / "whole", kind, epochs=EPOCHS)
    total = whole.said[-1][2]
    assert whole.said[-1] == (LEARNING, total, total) == (LEARNING, EPOCHS * STEPS, EPOCHS * STEPS)

    generator = random.Random(f"{kind} {every}")
    n_of_tokens = 4 if kind == "file" else 0
    points = [(TOKENS, part, 0.0) for part in (4, 8, 20, 32)[:n_of_tokens]]
    steps = sorted(generator.choices(range(1, total), k=KILLS - n_of_tokens))
    points += [(LEARNING, step, generator.uniform(0, 0.02)) for step in steps]
    job = Job(str(tmp_path / "killed"), kind, epochs=EPOCHS, every=every)
    ends = [server.run(job, kill=(stage, done), after=after) for stage, done, after in points]
    killed = [ended for ended in ends if ended.code == -signal.SIGKILL]
    assert len(killed) >= KILLS - 3
    reached = [ended.reached(LEARNING) for ended in killed]
    assert sum(0 < at < total for at in reached) >= KILLS - n_of_tokens - 4
    assert len({at * 4 // total for at in reached if 0 < at < total}) == 4  # in each quarter of the run
    assert sum(0 < ended.reached(TOKENS) < 54 and not ended.reached(LEARNING) for ended in killed) >= n_of_tokens // 2

    last = server.run(job)
    assert last.code == 0
    assert model(tmp_path / "killed") == model(tmp_path / "whole")
    assert log(tmp_path / "killed") == log(tmp_path / "whole")
    assert timeless(last.result) == timeless(whole.result)
    assert not list((tmp_path / "killed").glob("*.tmp"))  # what the killed ones were writing is not left


def test_a_killed_run_goes_on_and_does_not_begin_anew(server: Server, tmp_path: Path) -> None:
    job = Job(str(tmp_path), "file", epochs=EPOCHS)
    ended = server.run(job, kill=(LEARNING, 10))
    assert ended.code == -signal.SIGKILL
    at = ended.reached(LEARNING)
    again = server.run(job)
    assert again.reached(TOKENS) == 0  # they are in their file
    first = again.said[0][1]
    assert at - 1 <= first <= at + 1  # at most the step that was not in a checkpoint yet is done twice
    assert [done for _, done, _ in again.said] == list(range(first, EPOCHS * STEPS + 1))


def test_tokens_that_were_marked_as_done_are_not_computed_again(server: Server, tmp_path: Path) -> None:
    job = Job(str(tmp_path), "file", epochs=1)
    ended = server.run(job, kill=(TOKENS, 32))
    assert ended.code == -signal.SIGKILL
    again = server.run(job)
    firsts = [done for what, done, _ in again.said if what == TOKENS]
    assert min(firsts, default=99) > ended.reached(TOKENS) >= 32


def test_a_killed_run_keeps_the_best_weights_of_before(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first epoch is the best here, so that its weights must come through every kill."""
    whole = unbroken(server, tmp_path / "whole", "live", epochs=EPOCHS)
    accuracies = [line["validation_accuracy"] for line in log(tmp_path / "whole")[1:]]
    best = max(accuracies)
    wanted = max(epoch for epoch, accuracy in enumerate(accuracies) if accuracy == best)
    assert whole.result is not None
    assert (whole.result["selected"], whole.result["validation"]) == (wanted, best)
    scores = iter([0.9, 0.5, 0.4])
    kept: list[dict[str, Any]] = []

    def accuracy(self: Any) -> float:
        kept.append(weights(self.trunk.backbone))
        return next(scores)

    monkeypatch.setattr("sortal.selection.Validation.accuracy", accuracy)
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path / "best", at=2 * STEPS + 1, epochs=3)
    method = a_convnet()
    result = go_on(tmp_path / "best", method, epochs=3)
    assert (result.selected, result.validation, len(kept)) == (0, 0.9, 3)
    assert same(weights(method.backbone), kept[0])
    assert not same(kept[0], kept[2])
    assert model(tmp_path / "best")[0] == saved_bytes(kept[0], tmp_path)


def saved_bytes(state: dict[str, Any], folder: Path) -> bytes:
    backbone = a_convnet().backbone
    backbone.load_state_dict(state)
    backbone.save(folder / "other")
    return (folder / "other.safetensors").read_bytes()


# Kills from inside, before each thing that is done to a file


def test_a_run_killed_before_any_operation_on_files_goes_on(server: Server, tmp_path: Path) -> None:
    small: dict[str, Any] = {"epochs": 2, "batch_size": 9, "sync": False}  # two epochs of two steps
    whole = unbroken(server, tmp_path / "whole", "live", **small)
    n = whole.operations
    assert n >= 4 * 4 + 4  # four checkpoints and the model
    for fatal in range(1, n + 1):
        folder = tmp_path / str(fatal)
        ended = server.run(Job(str(folder), "live", fatal=fatal, **small))
        assert ended.code == -signal.SIGKILL
        again = server.run(Job(str(folder), "live", **small))
        assert again.code == 0
        done = ended.reached(LEARNING)
        if done > 1:  # a checkpoint is never lost once there was one
            assert again.said == [] or again.said[0][1] >= done - 1
        assert model(folder) == model(tmp_path / "whole"), fatal
        assert log(folder) == log(tmp_path / "whole"), fatal
        assert timeless(again.result) == timeless(whole.result), fatal
        assert not list(folder.glob("*.tmp")), fatal


def test_tokens_in_a_file_survive_a_kill_before_any_operation_on_files(server: Server, tmp_path: Path) -> None:
    small: dict[str, Any] = {"epochs": 1, "batch_size": 18, "sync": False}
    whole = unbroken(server, tmp_path / "whole", "file", **small)
    for fatal in range(1, whole.operations + 1, 5):
        folder = tmp_path / str(fatal)
        assert server.run(Job(str(folder), "file", fatal=fatal, **small)).code == -signal.SIGKILL
        assert server.run(Job(str(folder), "file", **small)).code == 0
        assert model(folder) == model(tmp_path / "whole"), fatal
        assert not list(folder.glob("tokens*")), fatal  # a finished run has no use for them


# Interrupts and errors


class CrashError(Exception):
    pass


@dataclass(frozen=True)
class Whole:
    """A run of three epochs that nothing happened to."""

    model: tuple[bytes, bytes]
    log: list[dict[str, Any]]
    result: dict[str, Any]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Trained]:
    folder = tmp_path_factory.mktemp("finished")
    return folder, go_on(folder, every=30.0)


@pytest.fixture(scope="module")
def whole(finished: tuple[Path, Trained]) -> Whole:
    folder, result = finished
    return Whole(model(folder), log(folder), timeless(vars(result)))


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unfinished")
    with pytest.raises(KeyboardInterrupt):
        interrupted(folder, 5)
    return folder


def stop_at(step: int, error: BaseException) -> Callable[[str, int, int], None]:
    def on_progress(what: str, done: int, _: int) -> None:
        if what == LEARNING and done == step:
            raise error

    return on_progress


def go_on(folder: Path, method: Method | None = None, **options: Any) -> Trained:
    """The tiny run in this process; `options` are settings, or what train is given beside them."""
    beside = {name: options.pop(name) for name in ("on_progress", "budget", "on_note") if name in options}
    method = method or a_convnet()
    images, store = a_set(method.backbone.spec.image_size)
    every = options.pop("every", 0.0)
    config = settings(**{"epochs": 3, **options})
    return train(method, images, store, config, folder=folder, device="cpu", checkpoint_every=every, **beside)


def interrupted(folder: Path, at: int, error: BaseException | None = None, **options: Any) -> None:
    go_on(folder, on_progress=stop_at(at, KeyboardInterrupt() if error is None else error), **options)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), CrashError("full")])
@pytest.mark.parametrize("at", [1, STEPS - 1, STEPS, STEPS + 1, 3 * STEPS])
def test_an_interrupted_run_ends_as_one_that_was_not(
    tmp_path: Path, whole: Whole, at: int, error: BaseException
) -> None:
    with pytest.raises(type(error)):
        interrupted(tmp_path, at, error)
    result = go_on(tmp_path)
    assert model(tmp_path) == whole.model
    assert log(tmp_path) == whole.log
    assert timeless(vars(result)) == whole.result


@pytest.mark.parametrize("at", [0, 1, 6])
def test_the_same_call_with_the_same_method_goes_on(tmp_path: Path, whole: Whole, at: int) -> None:
    """As in a notebook; what was interrupted, even before the first step, is found as it was."""
    method = a_convnet()
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            interrupted(tmp_path, at, method=method) if at else interrupted_before(tmp_path, method)
        assert same(weights(method), weights(a_convnet()))
    result = go_on(tmp_path, method)
    assert model(tmp_path) == whole.model
    assert log(tmp_path) == whole.log
    assert timeless(vars(result)) == whole.result


def interrupted_before(folder: Path, method: Contrastive) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sortal.train.Journal.write", stop)
        go_on(folder, method)


@pytest.mark.parametrize("held_out", [HELD_OUT, ()])
def test_the_same_call_with_a_method_that_was_trained_returns_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_out: tuple[int, ...]
) -> None:
    method, data = a_convnet(), (named(LABELS, held_out), a_set()[1])
    first = train(method, *data, settings(epochs=3), folder=tmp_path, device="cpu")
    trained = weights(method)
    monkeypatch.setattr(Step, "__call__", None)
    assert train(method, *data, settings(epochs=3), folder=tmp_path, device="cpu") == first
    assert same(weights(method), trained)
    with torch.no_grad():
        next(iter(method.head.parameters())).add_(1e-3)
    with pytest.raises(InputError, match="holds one with other weights"):
        train(method, *data, settings(epochs=3), folder=tmp_path, device="cpu")


def test_a_method_that_was_trained_is_not_what_an_interrupted_run_began_with(tmp_path: Path) -> None:
    method = a_convnet()
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path, 6, method=method)
    go_on(tmp_path / "elsewhere", method)
    with pytest.raises(InputError, match="holds one with other weights"):
        go_on(tmp_path, method)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_tokens_in_memory_are_computed_again_to_the_same_end(tmp_path: Path, precision: str) -> None:
    whole = go_on(tmp_path / "whole", a_transformer(), views=3, precision=precision)
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path / "broken", 6, method=a_transformer(), views=3, precision=precision)
    result = go_on(tmp_path / "broken", a_transformer(), views=3, precision=precision)
    assert model(tmp_path / "broken") == model(tmp_path / "whole")
    assert timeless(vars(result)) == timeless(vars(whole))
    assert result.views == 3


def test_a_run_may_go_on_with_its_tokens_in_another_place(tmp_path: Path) -> None:
    go_on(tmp_path / "whole", a_transformer(), views=3, budget=Budget(memory=10**9))
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path / "broken", 6, method=a_transformer(), views=3, budget=Budget(memory=10**9))
    go_on(tmp_path / "broken", a_transformer(), views=3, budget=IN_A_FILE)
    assert model(tmp_path / "broken") == model(tmp_path / "whole")


def test_a_run_that_began_with_kept_views_does_not_go_on_with_others(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path, 6, method=a_transformer(), views="auto", budget=Budget(memory=10**9))
    before = (tmp_path / "log.jsonl").read_bytes()
    with pytest.raises(InputError, match=r"began with 8 views .* Raise it"):
        go_on(tmp_path, a_transformer(), views="auto", budget=Budget(memory=0))
    assert (tmp_path / "log.jsonl").read_bytes() == before
    assert go_on(tmp_path, a_transformer(), views="auto", budget=Budget(memory=10**9)).views == 8


def test_a_run_that_began_with_new_views_goes_on_with_new_views(tmp_path: Path) -> None:
    """Also where there is room to keep them by then."""
    go_on(tmp_path / "whole", a_transformer(), views="auto", budget=Budget(memory=0))
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path / "broken", 6, method=a_transformer(), views="auto", budget=Budget(memory=0))
    result = go_on(tmp_path / "broken", a_transformer(), views="auto", budget=Budget(memory=10**9))
    assert result.views is None
    assert model(tmp_path / "broken") == model(tmp_path / "whole")


def test_an_interrupt_while_tokens_are_computed_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "PIECE", 16)
    monkeypatch.setattr(tokens, "COMMIT", 0.0)
    go_on(tmp_path / "whole", a_transformer(), views=3, budget=IN_A_FILE)

    def stop(what: str, done: int, _: int) -> None:
        if what == TOKENS and done == 32:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go_on(tmp_path / "broken", a_transformer(), views=3, budget=IN_A_FILE, on_progress=stop)
    seen: list[tuple[str, int, int]] = []
    go_on(
        tmp_path / "broken",
        a_transformer(),
        views=3,
        budget=IN_A_FILE,
        on_progress=lambda *said: seen.append(said),
    )
    assert [done for what, done, _ in seen if what == TOKENS] == [48, 54]
    assert model(tmp_path / "broken") == model(tmp_path / "whole")


def test_tokens_of_another_run_are_not_taken_for_ones_own(tmp_path: Path) -> None:
    """They are computed again where the run began anew, with other weights."""
    go_on(tmp_path / "one", a_transformer(seed=1), views=3, budget=IN_A_FILE)
    go_on(tmp_path / "two", a_transformer(), views=3, budget=IN_A_FILE)
    for name in (checkpoint.NAME, checkpoint.PREVIOUS):
        (tmp_path / "one" / name).unlink()
    go_on(tmp_path / "one", a_transformer(), views=3, budget=IN_A_FILE)
    assert model(tmp_path / "one") == model(tmp_path / "two")


def test_chunks_may_change_when_a_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path, 6)
    seen: list[int] = []
    call = Step.__call__

    def spied(self: Step, *values: Any) -> Any:
        seen.append(self.chunks)
        return call(self, *values)

    monkeypatch.setattr(Step, "__call__", spied)
    go_on(tmp_path, chunks=2)
    assert set(seen) == {2}


def test_chunks_that_memory_asked_for_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    call = Step.__call__

    def doubled(self: Step, *values: Any) -> Any:
        self.chunks = max(self.chunks, 4)
        return call(self, *values)

    monkeypatch.setattr(Step, "__call__", doubled)
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path, 6)

    def spied(self: Step, *values: Any) -> Any:
        seen.append(self.chunks)
        return call(self, *values)

    monkeypatch.setattr(Step, "__call__", spied)
    go_on(tmp_path)
    assert set(seen) == {4}


# Every method, with what it keeps beside its weights


def of_kind(name: str) -> Any:
    """A method for the tiny set; UNO has two heads and a queue, which overflows in the second epoch."""
    losses = Swaps(heads=2) if name == "uno" else None
    return small(name, a_convnet().backbone, k=4, known=[0, 1], batch_size=4, losses=losses)


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[dict[str, Any], Path]]:
    """The weights and buffers of a run of each method that nothing happened to, and its folder."""
    found = {}
    for name in NAMES:
        method, folder = of_kind(name), tmp_path_factory.mktemp(name)
        go_on(folder, method, every=30.0)
        found[name] = weights(method), folder
    assert found["uno"][0]["filled"] == 16
    assert found["uno"][0]["mean_losses"].all()
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("at", [1, STEPS - 1, STEPS, STEPS + 1, 2 * STEPS + 1, 3 * STEPS])
def test_every_method_goes_on_to_the_same_weights_and_buffers(
    tmp_path: Path, ends: dict[str, tuple[dict[str, Any], Path]], name: str, at: int
) -> None:
    wanted, folder = ends[name]
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path, at, method=of_kind(name))
    method = of_kind(name)
    go_on(tmp_path, method)
    assert same(weights(method), wanted)
    assert model(tmp_path) == model(folder)
    assert log(tmp_path) == log(folder)


@pytest.mark.parametrize("name", NAMES)
def test_every_method_goes_on_again_and_again(
    tmp_path: Path, ends: dict[str, tuple[dict[str, Any], Path]], name: str
) -> None:
    """Interrupted before every step but the first, with the same method in one process."""
    method = of_kind(name)
    for at in range(1, 3 * STEPS):
        with pytest.raises(KeyboardInterrupt):
            interrupted(tmp_path, at + 1, method=method)
        assert same(weights(method), weights(of_kind(name)))
    go_on(tmp_path, method)
    assert same(weights(method), ends[name][0])


@pytest.mark.parametrize("name", NAMES)
def test_a_finished_run_gives_a_new_method_its_weights_and_buffers(
    ends: dict[str, tuple[dict[str, Any], Path]], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """So that the classifier of a run that was done before is the one that was trained."""
    wanted, folder = ends[name]
    monkeypatch.setattr(Step, "__call__", None)
    method = of_kind(name)
    for _ in range(2):  # the second time it already is what came of it
        go_on(folder, method, every=30.0)
        assert same(weights(method), wanted)


def test_a_finished_run_tells_another_queue_from_its_own(ends: dict[str, tuple[dict[str, Any], Path]]) -> None:
    method = of_kind("uno")
    go_on(ends["uno"][1], method, every=30.0)
    method.queue[3, 2] += 1
    with pytest.raises(InputError, match="holds one with other weights"):
        go_on(ends["uno"][1], method, every=30.0)


def test_checkpoints_hold_the_buffers_of_the_method_and_not_those_of_the_backbone(tmp_path: Path) -> None:
    method = of_kind("uno")
    method.backbone.register_buffer("constant", torch.arange(3.0))
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path, STEPS + 2, method=method)
    found = checkpoint.load(tmp_path)
    assert found is not None
    trained = [name for name, value in method.named_parameters() if value.requires_grad]
    buffers = ["known", "queue", "filled", "mean_losses"]
    assert set(found.tensors) == {
        *(f"weight.{name}" for name in [*trained, *buffers]),
        *(f"best.{name}" for name in [*trained, *buffers]),
        *(f"momentum.{name}" for name in trained),
    }
    assert found.tensors["weight.queue"].shape == (16, 8)
    assert found.tensors["weight.filled"].dtype == torch.int64


@pytest.mark.parametrize(
    ("name", "change", "what"),
    [
        ("uno", {"losses": Swaps(heads=2, epsilon=0.1)}, "settings (epsilon was 0.05, is 0.1)"),
        ("uno", {"losses": Swaps(heads=2, queue=16)}, "settings (queue was 'auto', is 16)"),
        ("uno", {"losses": Swaps(heads=2), "k": 5}, "weights"),
        ("uno", {"losses": Swaps(heads=2), "known": [0, 2]}, "weights"),
        ("simgcd", {"known": [0, 1, 2]}, "weights"),
    ],
)
def test_another_method_in_the_folder_is_refused(
    ends: dict[str, tuple[dict[str, Any], Path]], name: str, change: dict[str, Any], what: str
) -> None:
    other = small(name, a_convnet().backbone, **{"k": 4, "known": [0, 1], "batch_size": 4, **change})
    with pytest.raises(InputError, match=re.escape(f"holds one with other {what}")):
        go_on(ends[name][1], other, every=30.0)


KILLED = """
import os, signal, sys
from pathlib import Path
import timm, torch, torch.utils.tensorboard  # once for all
import test_resume as t

os.fsync = lambda fd: None
folder = Path(sys.argv[1])
for name in t.NAMES:
    for kill_at in (2, 7, 11, None):  # each goes on from what the one before had saved
        if not (child := os.fork()):
            method = t.of_kind(name)
            def die(what, done, total):
                if done == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
            t.go_on(folder / name, method, on_progress=die)
            torch.save(t.weights(method), folder / f"{name}.pt")
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code == (0 if kill_at is None else -signal.SIGKILL), (name, kill_at, code)
"""


def test_every_method_that_was_killed_ends_with_the_same_weights_and_buffers(
    tmp_path: Path, ends: dict[str, tuple[dict[str, Any], Path]]
) -> None:
    """In processes that are killed from one moment to the next, three times on the way."""
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", KILLED, tmp_path],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    for name, (wanted, folder) in ends.items():
        assert same(torch.load(tmp_path / f"{name}.pt", weights_only=True), wanted), name
        assert model(tmp_path / name) == model(folder), name
        assert log(tmp_path / name) == log(folder), name


# Damage


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    middle = len(content) // 2
    damaged = {
        "flipped": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
        "truncated": content[:middle],
        "empty": b"",
    }
    path.write_bytes(damaged[how])


@pytest.mark.parametrize("how", ["flipped", "truncated", "empty"])
def test_a_damaged_checkpoint_costs_a_step(
    tmp_path: Path, whole: Whole, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path, 7)
    damage(tmp_path / checkpoint.NAME, how)
    seen: list[int] = []
    go_on(tmp_path, on_progress=lambda _, done, __: seen.append(done))
    assert seen == list(range(6, 13))  # steps 1 to 6 are in the newest checkpoint, 1 to 5 in the one before
    (warning,) = caplog.messages
    assert f"{checkpoint.NAME} is damaged" in warning
    assert model(tmp_path) == whole.model
    assert log(tmp_path) == whole.log


def test_without_a_whole_checkpoint_a_run_starts_afresh(
    tmp_path: Path, whole: Whole, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path, 7)
    damage(tmp_path / checkpoint.NAME, "truncated")
    damage(tmp_path / checkpoint.PREVIOUS, "flipped")
    seen: list[int] = []
    go_on(tmp_path, on_progress=lambda _, done, __: seen.append(done))
    assert seen == list(range(1, 13))
    assert caplog.messages[2:] == ["No checkpoint is whole: the run starts afresh."]
    assert model(tmp_path) == whole.model
    assert log(tmp_path) == whole.log


def test_a_kill_after_damage_does_not_cost_the_checkpoint_that_was_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path, 7)
    damage(tmp_path / checkpoint.NAME, "flipped")

    def full(*_: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr("sortal.checkpoint.write_atomically", full)
        with pytest.raises(OSError, match="no space left"):
            go_on(tmp_path)
    seen: list[int] = []
    go_on(tmp_path, on_progress=lambda _, done, __: seen.append(done))
    assert seen[0] == 6


def test_a_log_that_was_deleted_is_no_reason_to_fail(tmp_path: Path, whole: Whole) -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path, 10)
    (tmp_path / "log.jsonl").unlink()
    go_on(tmp_path)
    assert model(tmp_path) == whole.model
    assert log(tmp_path) == whole.log[-1:]  # the epoch that ended since


# Other runs in the folder, and finished ones


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("settings (lr was 0.1, is 0.05)", {"lr": 0.05}),
        ("settings (epochs was 3, is 4)", {"epochs": 4}),
        ("settings (seed was 0, is 1)", {"seed": 1}),
        ("settings (validate_every was 1, is 2)", {"validate_every": 2}),
        ("weights", {"method": 1}),
        ("images", {"images": 1}),
        ("images", {"labels": 1}),
        ("images", {"validation": 1}),
        ("settings (lr was 0.1, is 0.05) and weights and images", {"lr": 0.05, "method": 1, "images": 1}),
    ],
)
def test_another_run_in_the_folder_is_refused(
    finished: tuple[Path, Trained], unfinished: Path, what: str, change: dict[str, Any]
) -> None:
    images, store = a_set()
    if "images" in change:
        store = a_set(SMALL + 1)[1]
    if "labels" in change:
        images = named([*LABELS[:2], "a", *LABELS[3:]], HELD_OUT)
    if "validation" in change:
        images = named(LABELS, (*HELD_OUT, 8))
    method = a_convnet(seed=change.get("method", 0))
    config = settings(**{"epochs": 3, **{name: change[name] for name in change.keys() & KNOWN}})
    for folder in (finished[0], unfinished):
        before = contents(folder)
        with pytest.raises(InputError, match=re.escape(f"holds one with other {what}. Choose another folder")):
            train(method, images, store, config, folder=folder, device="cpu")
        assert contents(folder) == before


def test_the_same_weights_with_another_view_of_the_images_are_another_run(unfinished: Path) -> None:
    """Weights of a convnet know nothing of the size of images, of their colours, or of which of them are trained."""
    images, store = a_set()
    resized, recoloured, frozen, frozen_head = (a_convnet() for _ in range(4))
    resized.backbone.spec = replace(resized.backbone.spec, image_size=SMALL - 1)
    recoloured.backbone.spec = replace(recoloured.backbone.spec, mean=(0.5, 0.5, 0.5))
    frozen.backbone.train_last(2)
    for value in list(frozen_head.head.parameters())[:2]:
        value.requires_grad_(False)
    for method in (resized, recoloured, frozen, frozen_head):
        assert same(weights(method), weights(a_convnet()))
        with pytest.raises(InputError, match=r"holds one with other (settings|weights)"):
            train(method, images, store, settings(epochs=3), folder=unfinished, device="cpu")


def test_the_same_files_packed_at_another_size_are_other_images(unfinished: Path) -> None:
    """A digest is that of a file, whatever it was resized to."""
    images, store = a_set()
    larger = small_store(len(LABELS), SMALL + 3)
    larger.digests, larger.made = store.digests, "11px"
    with pytest.raises(InputError, match="holds one with other images"):
        train(a_convnet(), images, larger, settings(epochs=3), folder=unfinished, device="cpu")


KNOWN = {"lr", "epochs", "seed", "validate_every"}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("kind", ["live", "memory", "file"])
def test_a_finished_run_returns_at_once_with_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    job = Job(str(tmp_path), kind, epochs=2, every=30.0)
    first = perform(job)
    before = contents(tmp_path)

    def none(*_: object, **__: object) -> None:
        raise AssertionError("it was trained again")

    monkeypatch.setattr(Step, "__call__", none)
    monkeypatch.setattr("sortal.trunk.Frozen.__call__", none)
    seen: list[object] = []
    assert perform(job, lambda *said: seen.append(said)) == first
    assert first.views == (None if kind == "live" else 3)
    assert seen == []
    assert contents(tmp_path) == before


def test_a_model_that_was_lost_is_saved_again_by_a_finished_run(tmp_path: Path) -> None:
    go_on(tmp_path)
    before = model(tmp_path)
    for name in ("model.json", "model.safetensors"):
        os.unlink(tmp_path / name)
    go_on(tmp_path)
    assert model(tmp_path) == before
    trained = load_backbone(str(tmp_path / "model.json"))
    method = a_convnet()
    go_on(tmp_path, method)
    assert same(weights(trained), weights(method.backbone))


def test_without_a_folder_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    images, store = a_set(LARGE)
    result = train(a_transformer(), images, store, settings(views=3), device="cpu", budget=IN_A_FILE)
    assert list(tmp_path.iterdir()) == []
    assert result.views is None  # a file of tokens has no place either
