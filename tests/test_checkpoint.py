"""Checkpoints: what is loaded is what was saved, to the last bit, or nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sortal import checkpoint
from sortal.checkpoint import NAME, PREVIOUS, Checkpoint, Progress, load, parse, save

KEY = {"settings": '{"lr": 0.1}', "weights": "0123", "images": "Äpfel"}


def example(step: int = 3) -> Checkpoint:
    generator = torch.Generator().manual_seed(step)
    tensors = {
        "weight.a": torch.randn(3, 2, generator=generator),
        "momentum.a": torch.randn(3, 2, generator=generator).double(),
        "best.a": torch.randn(2, 3, generator=generator).T,  # not contiguous
        "weight.half": torch.randn(4, generator=generator).bfloat16(),
        "weight.number": torch.tensor(7.0),
        "weight.none": torch.zeros(0, 5),
        "weight.filled": torch.tensor(2**40 + step),
    }
    progress = Progress(
        epoch=2,
        step=step,
        sums={"supervised": 1 / 3, "unsupervised": 1e-300, "another": -0.0},
        best=2 / 3,
        best_epoch=1,
        chunks=4,
        last={"supervised": 0.1 + 0.2},
        log_size=123,
        seconds=1e9 / 7,
    )
    return Checkpoint(dict(KEY), progress, tensors)


def bits(tensors: dict[str, Tensor]) -> dict[str, tuple[Any, ...]]:
    return {
        name: (value.dtype, tuple(value.shape), value.contiguous().flatten().view(torch.uint8).tolist())
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


def test_a_new_run_has_no_best_yet(tmp_path: Path) -> None:
    save(Checkpoint({}, Progress(), {"weight": torch.zeros(1)}), tmp_path)
    found = load(tmp_path)
    assert found is not None
    assert found.progress == Progress()
    assert (found.progress.best, found.progress.best_epoch) == (None, None)


def test_weights_that_are_trained_on_do_not_change_what_was_saved(tmp_path: Path) -> None:
    held = example()
    weight = torch.nn.Parameter(torch.ones(2))
    held.tensors["weight.a"] = weight
    save(held, tmp_path)
    with torch.no_grad():
        weight.add_(1)
    found = load(tmp_path)
    assert found is not None
    assert found.tensors["weight.a"].tolist() == [1, 1]


def test_the_two_newest_are_kept_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for step in range(4):
        save(example(step), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([NAME, PREVIOUS])
    assert alike(parse((tmp_path / NAME).read_bytes()), example(3))
    assert alike(parse((tmp_path / PREVIOUS).read_bytes()), example(2))
    assert alike(load(tmp_path), example(3))
    assert caplog.messages == []


def test_an_empty_folder_has_no_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load(tmp_path) is None
    assert caplog.messages == []


def test_the_one_before_is_taken_where_the_newest_was_not_written_yet(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(example(1), tmp_path)
    os.replace(tmp_path / NAME, tmp_path / PREVIOUS)
    assert alike(load(tmp_path), example(1))
    assert caplog.messages == []  # nothing is wrong with it


def test_no_byte_can_change_unnoticed(tmp_path: Path) -> None:
    """Neither of the tensors nor of what is said about them, such as the epoch."""
    save(example(), tmp_path)
    content = (tmp_path / NAME).read_bytes()
    unnoticed = []
    for at in range(len(content)):
        for mask in (1, 2, 4, 0x10, 0x80, 0xFF):
            changed = bytearray(content)
            changed[at] ^= mask
            try:
                found = parse(bytes(changed))
            except (ValueError, KeyError, TypeError):
                continue
            if not alike(found, example()):
                unnoticed.append((at, mask, bytes(changed[max(at - 10, 0) : at + 10])))
    assert unnoticed == []


def test_a_part_of_a_checkpoint_is_none(tmp_path: Path) -> None:
    save(example(), tmp_path)
    content = (tmp_path / NAME).read_bytes()
    for end in range(len(content)):
        with pytest.raises(ValueError):  # noqa: PT011 - any reason will do
            parse(content[:end])
    with pytest.raises(ValueError):  # noqa: PT011
        parse(content + b"\0")


def flip(content: bytes) -> bytes:
    return content[:-3] + bytes([content[-3] ^ 8]) + content[-2:]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a flipped bit": flip,
    "cut short": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "zeros": lambda content: bytes(len(content)),
    "text": lambda content: b"not a checkpoint\n" * 9,
    "under another name": lambda content: content.replace(b'"sortal"', b'"mortal"'),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_the_one_before_is_taken_where_the_newest_is_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    save(example(1), tmp_path)
    save(example(2), tmp_path)
    path = tmp_path / NAME
    path.write_bytes(DAMAGES[how](path.read_bytes()))
    assert alike(load(tmp_path), example(1))
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"{path} is damaged" in record.getMessage()


@pytest.mark.parametrize("how", DAMAGES)
def test_where_both_are_damaged_there_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str) -> None:
    save(example(1), tmp_path)
    save(example(2), tmp_path)
    for name in (NAME, PREVIOUS):
        (tmp_path / name).write_bytes(DAMAGES[how]((tmp_path / name).read_bytes()))
    assert load(tmp_path) is None
    *damaged, last = caplog.messages
    assert [name in message for name, message in zip((NAME, PREVIOUS), damaged, strict=True)] == [True, True]
    assert last == "No checkpoint is whole: the run starts afresh."


class PowerCut(BaseException):
    pass


def cut_power_before(patch: pytest.MonkeyPatch, number: int) -> Callable[[], int]:
    """Die before an operation on files, by its number; how many there were."""
    count = 0

    def counted(operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*values: Any) -> Any:
            nonlocal count
            count += 1
            if count == number:
                raise PowerCut
            return operation(*values)

        return call

    for name in ("replace", "fsync"):
        patch.setattr(os, name, counted(getattr(os, name)))
    return lambda: count


@pytest.mark.parametrize("damaged", [False, True])
def test_a_whole_checkpoint_is_there_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    """Also while the next one is written after the newest was found to be damaged."""
    number, ended = 0, False
    newest = []
    while not ended:
        number += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        save(example(1), folder)
        save(example(2), folder)
        if damaged:
            (folder / NAME).write_bytes(flip((folder / NAME).read_bytes()))
        expected = example(1 if damaged else 2)
        assert alike(load(folder), expected)
        with monkeypatch.context() as patch:
            operations = cut_power_before(patch, number)
            try:
                save(example(3), folder)
                ended = True
                assert operations() == number - 1 >= 3  # a rename, and the file and its folder on the disk
            except PowerCut:
                pass
        found = load(folder)
        assert alike(found, expected) or alike(found, example(3)), number
        newest.append(alike(found, example(3)))
    assert newest == sorted(newest)  # from some moment on it is the new one
    assert (newest[0], newest[-1]) == (False, True)


def test_a_checkpoint_that_cannot_be_read_is_left_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save(example(1), tmp_path)
    save(example(2), tmp_path)
    read = Path.read_bytes

    def failing(self: Path) -> bytes:
        if self.name == NAME:
            raise OSError(5, "Input/output error")
        return read(self)

    monkeypatch.setattr(Path, "read_bytes", failing)
    assert alike(load(tmp_path), example(1))
    assert "Input/output error" in caplog.text


def test_a_checkpoint_of_another_version_is_left_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It says more of its progress than this one knows of."""
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "asdict", lambda progress: {**vars(progress), "wisdom": 3})
        save(example(), tmp_path)
    assert load(tmp_path) is None
    assert "wisdom" in caplog.text
