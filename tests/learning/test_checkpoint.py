"""Checkpoints: what is loaded is what was saved, to the last bit, or nothing."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from sortal.learning import checkpoint
from sortal.learning.checkpoint import NAME, PREVIOUS, Checkpoint, TrainingProgress, load, parse, save

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


def test_what_was_saved_is_loaded_to_the_last_bit(tmp_path: Path) -> None:
    save(example(), tmp_path)
    assert alike(load(tmp_path), example())
    assert not alike(load(tmp_path), example(step=4))
    save(Checkpoint({}, TrainingProgress(), {"weight": torch.zeros(1)}), tmp_path)
    found = load(tmp_path)
    assert found is not None
    assert found.progress == TrainingProgress()  # which has no best yet


def test_the_two_newest_are_kept_and_the_newest_there_is_is_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert load(tmp_path) is None
    for step in range(4):
        save(example(step), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([NAME, PREVIOUS])
    assert alike(parse((tmp_path / NAME).read_bytes()), example(3))
    assert alike(parse((tmp_path / PREVIOUS).read_bytes()), example(2))
    assert alike(load(tmp_path), example(3))
    (tmp_path / NAME).unlink()  # as where it was not written yet
    assert alike(load(tmp_path), example(2))
    assert caplog.messages == []  # nothing is wrong with that


def test_no_byte_can_change_or_be_missing_unnoticed(tmp_path: Path) -> None:
    """Neither of the tensors nor of what is said about them, such as the epoch."""
    save(example(), tmp_path)
    content = (tmp_path / NAME).read_bytes()
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
    "under another name": lambda content: content.replace(b'"sortal"', b'"mortal"'),
    "of a version that knows more": lambda content: with_a_field("wisdom"),
}


def with_a_field(name: str) -> bytes:
    """A checkpoint that says something else of its progress."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "asdict", lambda progress: {**vars(progress), name: 3})
        save(example(), Path(folder))
        return (Path(folder) / NAME).read_bytes()


@pytest.mark.parametrize("how", DAMAGES)
def test_the_one_before_is_taken_where_the_newest_is_damaged_and_none_where_both_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    for names in ((NAME,), (NAME, PREVIOUS)):
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
def test_a_whole_checkpoint_is_there_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    """Also while the next one is written after the newest was found to be damaged."""
    fatal, count, newest, replace, fsync = 0, 0, [False], os.replace, os.fsync

    def counted(*values: Any) -> None:
        nonlocal count
        count += 1
        if count == fatal:
            raise PowerCut
        (replace if len(values) == 2 else fsync)(*values)

    while count >= fatal:  # until there was no operation of that number
        fatal, count = fatal + 1, 0
        folder = tmp_path / str(fatal)
        folder.mkdir()
        save(example(1), folder)
        save(example(2), folder)
        if damaged:
            (folder / NAME).write_bytes(flip((folder / NAME).read_bytes()))
        expected = example(1 if damaged else 2)
        assert alike(load(folder), expected)
        with monkeypatch.context() as patch, suppress(PowerCut):
            patch.setattr(os, "replace", counted)
            patch.setattr(os, "fsync", counted)
            save(example(3), folder)
        found = load(folder)
        assert alike(found, expected) or alike(found, example(3)), fatal
        newest.append(alike(found, example(3)))
    assert fatal > 3  # a rename, and the file and its folder on the disk
    assert newest == sorted(newest)  # from some moment on it is the new one
    assert newest[-1]


def test_a_checkpoint_that_cannot_be_read_is_left_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save(example(1), tmp_path)
    save(example(2), tmp_path)
    contents = [OSError(5, "Input/output error"), (tmp_path / PREVIOUS).read_bytes()]
    monkeypatch.setattr(Path, "read_bytes", Mock(side_effect=contents))
    assert alike(load(tmp_path), example(1))
    assert "Input/output error" in caplog.text
