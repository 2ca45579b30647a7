"""Segments: places that tile a file, marks that outlive a kill, and damage that is named."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from sortal.errors import InputError
from sortal.pixels import DIGEST
from sortal.segments import PENDING, PLAN, STORED, TURNED, Place, Segment, create, find, places, write_atomically

SIZES = [(2, 5), (4, 1), (3, 3)]


def names(n: int) -> list[str]:
    return [f"{i:0{DIGEST}x}" for i in range(n)]


@pytest.fixture
def segment(tmp_path: Path) -> Segment:
    return create(tmp_path, names(3), SIZES)


def plan_file(segment: Segment) -> Path:
    return segment.home / f"{segment.name}.plan.npy"


def test_places_worked_out_by_hand(segment: Segment) -> None:
    again = Segment(segment.home, segment.name)
    assert again.plan["digest"].tolist() == [name.encode() for name in names(3)]
    assert again.plan["offset"].tolist() == [0, 30, 42]
    assert list(zip(again.plan["height"].tolist(), again.plan["width"].tolist(), strict=True)) == SIZES
    assert again.size == again.pixels_file.stat().st_size == 69
    assert again.done().tolist() == [PENDING] * 3
    with segment.pixels_file.open("rb+") as file:
        file.write(bytes(range(69)))
    flat = segment.pixels()
    assert flat.tolist() == list(range(69))
    with pytest.raises(ValueError, match="read-only"):
        flat[0] = 1


def test_offsets_go_beyond_32_bits(tmp_path: Path) -> None:
    segment = create(tmp_path, names(2), [(30_000, 30_000), (1, 2)])  # a hole, which takes no room
    assert segment.plan["offset"].tolist() == [0, 2_700_000_000]
    assert segment.size == segment.pixels_file.stat().st_size == 2_700_000_006


def test_the_same_plan_made_twice_is_one_segment_with_what_it_has(segment: Segment) -> None:
    with segment.pixels_file.open("rb+") as file:
        file.write(b"x" * 30)
    segment.mark({2: TURNED})
    segment.mark({0: STORED})
    for plan_is_there in (True, False):  # another process may have marks before this one gets to write the plan
        if not plan_is_there:
            plan_file(segment).unlink()
        again = create(segment.home, names(3), SIZES)
        assert again == segment
        assert again.done().tolist() == [STORED, PENDING, TURNED]
        assert again.pixels_file.read_bytes() == b"x" * 30 + bytes(39)
        assert find(segment.home) == [segment]


def test_another_plan_is_another_segment(segment: Segment) -> None:
    home = segment.home
    others = {
        create(home, names(3), [(2, 5), (1, 4), (3, 3)]).name,  # turned
        create(home, names(3)[::-1], SIZES).name,  # other contents
        create(home, names(2), SIZES[:2]).name,
    }
    assert len(others | {segment.name}) == 4
    assert [found.name for found in find(home)] == sorted(others | {segment.name})


def test_marks_of_pixels_that_were_deleted_do_not_come_back(segment: Segment) -> None:
    segment.mark({0: STORED, 1: STORED, 2: STORED})
    segment.pixels_file.unlink()
    plan_file(segment).unlink()  # somebody deleted the large file and the one that names it
    assert create(segment.home, names(3), SIZES).done().tolist() == [PENDING] * 3


def test_of_two_places_the_one_with_pixels_counts(segment: Segment) -> None:
    """Two runs at once, of sets that overlap, may plan a place each for one content."""
    segment.mark(dict.fromkeys(range(3), STORED))
    for order in ([0], [1], [2], [1, 0], [2, 0], [0, 2], [2, 1]):
        create(segment.home, [names(3)[i] for i in order], [SIZES[i] for i in order])
    assert segment not in (find(segment.home)[0], find(segment.home)[-1])
    assert places(segment.home) == {name: Place(segment, slot, STORED) for slot, name in enumerate(names(3))}


# What is told to the disk


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is synced and renamed, in order, and how much of a file was there by then."""
    told: list[tuple[str, str]] = []
    rename = os.replace

    def fsync(number: int) -> None:
        found = os.fstat(number)
        told.append(("sync", "folder" if stat.S_ISDIR(found.st_mode) else f"{found.st_size} bytes"))

    def replace(old: Path, new: Path) -> None:
        told.append(("rename", new.name))
        rename(old, new)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    return told


def test_pixels_are_on_disk_before_their_marks(segment: Segment, told: list[tuple[str, str]]) -> None:
    segment.mark({1: STORED})
    assert told == [("sync", "69 bytes"), ("sync", "3 bytes")]


@pytest.mark.parametrize("opens_folders", [True, False])
def test_a_file_has_its_content_before_its_name_and_the_folder_knows_it_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: list[tuple[str, str]], opens_folders: bool
) -> None:
    opened = Mock(wraps=os.open) if opens_folders else Mock(side_effect=PermissionError)
    closed = Mock(wraps=os.close)
    (tmp_path / "mark").write_bytes(b"older")
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", opened)
        patch.setattr(os, "close", closed)
        write_atomically(tmp_path / "mark", b"new")
    assert told == [("sync", "3 bytes"), ("rename", "mark"), ("sync", "folder")][: 3 if opens_folders else 2]
    assert closed.call_count == opens_folders
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"mark": b"new"}


def test_a_write_that_is_cut_short_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mark").write_bytes(b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
        with pytest.raises(OSError, match="No space left"):
            write_atomically(tmp_path / "mark", b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"mark": b"old"}


# Damage


DAMAGES: dict[str, Callable[[Segment], object]] = {
    "no pixels": lambda segment: segment.pixels_file.unlink(),
    "short pixels": lambda segment: os.truncate(segment.pixels_file, 68),
    "no marks": lambda segment: segment.done_file.unlink(),
    "short marks": lambda segment: os.truncate(segment.done_file, 2),
    "text for a plan": lambda segment: plan_file(segment).write_text("no plan"),
    "plan cut in its first bytes": lambda segment: os.truncate(plan_file(segment), 4),
    "plan cut in its header": lambda segment: os.truncate(plan_file(segment), 60),
    "plan cut in its last entry": lambda segment: os.truncate(
        plan_file(segment), plan_file(segment).stat().st_size - 1
    ),
    "plan of another type": lambda segment: np.save(plan_file(segment), np.arange(3)),
    "plan of two dimensions": lambda segment: np.save(plan_file(segment), segment.plan[:, None]),
    "plan without images": lambda segment: np.save(plan_file(segment), np.zeros(0, dtype=PLAN)),
    "longer plan": lambda segment: np.save(plan_file(segment), np.concatenate([segment.plan, segment.plan])),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named_with_what_to_delete(segment: Segment, damage: str) -> None:
    DAMAGES[damage](segment)
    with pytest.raises(InputError, match="is damaged") as caught:
        Segment(segment.home, segment.name).done()
    told = str(caught.value)
    assert told.startswith(f"The segment {segment.name!r} of the pixel store in {str(segment.home)!r} is damaged: ")
    assert f"Delete its files ({segment.name}.*)" in told
