"""Checkpoints load exactly what was saved, or nothing; and the keys that identify a run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from support.stores import small_store
from support.tiny_run import SMALL, a_convnet, named, reordered
from torch import Tensor

from sortal.config import BUILT_IN, Training
from sortal.learning import checkpoint
from sortal.learning.checkpoint import (
    CHECKPOINT,
    PREVIOUS_CHECKPOINT,
    Checkpoint,
    TrainingProgress,
    TrainingState,
    load,
    parse,
    run_key,
    save,
)

KEY = {"settings": '{"lr": 0.1}', "weights": "0123", "images": "Äpfel"}


def example(step: int = 3) -> Checkpoint:
    generator = torch.Generator().manual_seed(step)
    tensors = {
        "weight.a": torch.nn.Parameter(torch.randn(3, 2, generator=generator)),
        "momentum.a": torch.randn(3, 2, generator=generator).double(),
        "best.a": torch.randn(2, 3, generator=generator).T,  # not contiguous
        "weight.half": torch.randn(4, generator=generator).bfloat16(),
        "weight.number": torch.tensor(7.0),
        "weight.none": torch.zeros(0, 5),
        "weight.filled": torch.tensor(2**40 + step),
    }
    sums = {"supervised": 1 / 3, "unsupervised": 1e-300, "another": -0.0}
    last = {"supervised": 0.1 + 0.2}
    progress = TrainingProgress(
        2, step, sums, best=2 / 3, best_epoch=1, chunks=4, last=last, log_size=123, seconds=1e9 / 7
    )
    return Checkpoint(dict(KEY), progress, tensors)


def bits(tensors: dict[str, Tensor]) -> dict[str, tuple[Any, ...]]:
    return {
        name: (value.dtype, tuple(value.shape), value.detach().contiguous().flatten().view(torch.uint8).tolist())
        for name, value in tensors.items()
    }


def alike(one: Checkpoint | None, other: Checkpoint) -> bool:
    return (
        one is not None
        and (one.key, one.progress, list(one.progress.sums)) == (other.key, other.progress, list(other.progress.sums))
        and bits(one.tensors) == bits(other.tensors)
    )


def test_a_checkpoint_is_loaded_bit_for_bit(tmp_path: Path) -> None:
    save(example(), tmp_path)
    assert alike(load(tmp_path), example())
    empty = Checkpoint({}, TrainingProgress(), {"weight": torch.zeros(1)})  # without a best epoch
    save(empty, tmp_path)
    assert alike(load(tmp_path), empty)


def test_two_checkpoints_are_kept_and_the_newest_is_loaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load(tmp_path) is None
    for step in range(4):
        save(example(step), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([CHECKPOINT, PREVIOUS_CHECKPOINT])
    assert alike(parse((tmp_path / CHECKPOINT).read_bytes()), example(3))
    assert alike(parse((tmp_path / PREVIOUS_CHECKPOINT).read_bytes()), example(2))
    assert alike(load(tmp_path), example(3))
    (tmp_path / CHECKPOINT).unlink()  # as if not written yet
    assert alike(load(tmp_path), example(2))
    assert caplog.messages == []  # that is no damage


def test_of_a_complete_training_only_the_result_is_kept(tmp_path: Path) -> None:
    state = TrainingState(a_convnet(), replace(BUILT_IN["gcd"].training, epochs=2))
    state.optimiser.buffers = {name: torch.ones_like(value) for name, value in state.trainable().items()}
    sizes = []
    for state.progress.epoch in (1, 2):
        save(state.checkpoint(KEY), tmp_path)
        sizes.append(sum(path.stat().st_size for path in tmp_path.iterdir()))
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT]
    assert sizes[1] < sizes[0], "nor momentum"
    found = load(tmp_path)
    assert found is not None
    assert state.is_result_of(found)
    state.restore(found)


def test_every_changed_or_missing_byte_is_detected(tmp_path: Path) -> None:
    """Both in the tensors and in the metadata, such as the epoch."""
    save(example(), tmp_path)
    content = (tmp_path / CHECKPOINT).read_bytes()
    unnoticed = []
    for at in range(len(content)):
        for mask in (1, 0x10):
            changed = bytearray(content)
            changed[at] ^= mask
            try:
                found = parse(bytes(changed))
            except (ValueError, KeyError, TypeError):
                continue
            if not alike(found, example()):
                unnoticed.append((at, mask, bytes(changed[max(at - 10, 0) : at + 10])))
    assert unnoticed == []
    for part in (*(content[:end] for end in range(0, len(content), 7)), content[:-1], content + b"\0"):
        with pytest.raises(ValueError):  # noqa: PT011 - any reason will do
            parse(part)


def flip(content: bytes) -> bytes:
    return content[:-3] + bytes([content[-3] ^ 8]) + content[-2:]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a flipped bit": flip,
    "empty": lambda content: b"",
    "another format": lambda content: content.replace(b'"sortal"', b'"mortal"'),
    "a newer version": lambda content: with_a_field("wisdom"),
}


def with_a_field(name: str) -> bytes:
    """Save a checkpoint with an unknown field."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "asdict", lambda progress: {**vars(progress), name: 3})
        save(example(), Path(folder))
        return (Path(folder) / CHECKPOINT).read_bytes()


@pytest.mark.parametrize("how", DAMAGES)
def test_the_previous_checkpoint_replaces_a_damaged_one_and_none_is_loaded_if_both_are_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    for names in ((CHECKPOINT,), (CHECKPOINT, PREVIOUS_CHECKPOINT)):
        folder = tmp_path / str(len(names))
        folder.mkdir()
        save(example(1), folder)
        save(example(2), folder)
        for name in names:
            (folder / name).write_bytes(DAMAGES[how]((folder / name).read_bytes()))
        found = load(folder)
        assert alike(found, example(1)) if len(names) == 1 else found is None
        for name, record in zip(names, caplog.records, strict=False):
            assert record.levelname == "WARNING"
            assert f"the damaged checkpoint {folder / name}: " in record.getMessage()
        assert caplog.messages[len(names) :] == ["No checkpoint is intact; training starts over."][: len(names) - 1]
        caplog.clear()


class PowerCut(BaseException):
    pass


@pytest.mark.parametrize("damaged", [False, True])
def test_a_valid_checkpoint_exists_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    """Even while the next one is written after the newest was found damaged."""
    fatal, count, newest, replace, fsync = 0, 0, [False], os.replace, os.fsync

    def counted(*values: Any, **named: Any) -> None:
        nonlocal count
        count += 1
        if count == fatal:
            raise PowerCut
        (replace if len(values) == 2 else fsync)(*values, **named)

    while count >= fatal:  # until all operations succeed
        fatal, count = fatal + 1, 0
        folder = tmp_path / str(fatal)
        folder.mkdir()
        save(example(1), folder)
        save(example(2), folder)
        if damaged:
            (folder / CHECKPOINT).write_bytes(flip((folder / CHECKPOINT).read_bytes()))
        expected = example(1 if damaged else 2)
        assert alike(load(folder), expected)
        with monkeypatch.context() as patch, suppress(PowerCut):
            patch.setattr(os, "replace", counted)
            patch.setattr(os, "fsync", counted)
            save(example(3), folder)
        found = load(folder)
        assert alike(found, expected) or alike(found, example(3)), fatal
        newest.append(alike(found, example(3)))
    assert fatal > 3  # a rename, and syncs of the file and its folder
    assert newest == sorted(newest)  # the old one up to some operation, then the new one
    assert newest[-1]


def test_an_unreadable_checkpoint_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save(example(1), tmp_path)
    save(example(2), tmp_path)
    contents = [OSError(5, "Input/output error"), (tmp_path / PREVIOUS_CHECKPOINT).read_bytes()]
    monkeypatch.setattr(checkpoint, "read_regular", Mock(side_effect=contents))
    assert alike(load(tmp_path), example(1))
    assert "Input/output error" in caplog.text


# Keys of runs; test_resume.py tests that they tell runs apart


def test_keys_depend_on_all_that_determines_the_result() -> None:
    images, store = named(["a", "b", None, None], [1]), small_store(4, SMALL)
    key = run_key(a_convnet(), images, store, Training())
    assert key == run_key(a_convnet(), images, store, Training(chunks=2, compile=False, precision="float32"))
    assert checkpoint.changed_parts(key, run_key(a_convnet(seed=1), images, store, Training())) == ["weights"]
    for others in (named(["a", "a", None, None], [1]), named(["a", "b", None, None])):
        assert checkpoint.changed_parts(key, run_key(a_convnet(), others, store, Training())) == ["images"]
    assert store.digests[checkpoint.content_order(images, store)].tolist() == sorted(store.digests.tolist())
    assert key["images"] != run_key(a_convnet(), reordered(images, [1, 0, 2, 3]), store, Training())["images"]


def test_changed_settings_are_listed() -> None:
    images, store = named(["a", None]), small_store(2, SMALL)
    one, other = (run_key(a_convnet(), images, store, Training(lr=lr)) for lr in (0.1, 0.2))
    assert checkpoint.changed_parts(one, other) == ["settings (lr was 0.1, is 0.2)"]
    assert checkpoint.changed_parts(one, one) == []
    gcd, simgcd = (run_key(a_convnet(), images, store, BUILT_IN[name].training) for name in ("gcd", "simgcd"))
    assert checkpoint.changed_parts(gcd, simgcd) == ["settings (decay_biases was True, is False)"]
