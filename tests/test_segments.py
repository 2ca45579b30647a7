"""Segments: places that tile a file, marks that outlive a kill, and damage that is named."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sortal.errors import InputError
from sortal.pixels import DIGEST
from sortal.segments import PENDING, PLAN, STORED, TURNED, Segment, create, find, write_atomically


def names(n: int) -> list[str]:
    return [f"{i:0{DIGEST}x}" for i in range(n)]


@pytest.fixture
def segment(tmp_path: Path) -> Segment:
    return create(tmp_path, names(3), [(2, 5), (4, 1), (3, 3)])


def test_places_worked_out_by_hand(segment: Segment) -> None:
    again = Segment(segment.home, segment.name)
    assert again.plan["digest"].tolist() == [name.encode() for name in names(3)]
    assert again.plan["offset"].tolist() == [0, 30, 42]
    assert again.plan["height"].tolist() == [2, 4, 3]
    assert again.plan["width"].tolist() == [5, 1, 3]
    assert again.size == again.pixels_file.stat().st_size == 69
    assert again.done().tolist() == [PENDING] * 3


side = st.integers(1, 300)


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.tuples(side, side), min_size=1, max_size=30))
def test_places_tile_the_file_without_gap_or_overlap(sizes: list[tuple[int, int]]) -> None:
    with TemporaryDirectory() as home:
        segment = create(Path(home), names(len(sizes)), sizes)
        plan = segment.plan
        assert list(zip(plan["height"].tolist(), plan["width"].tolist(), strict=True)) == sizes
        ends = [offset + 3 * h * w for offset, (h, w) in zip(plan["offset"].tolist(), sizes, strict=True)]
        assert [0, *ends[:-1]] == plan["offset"].tolist()
        assert ends[-1] == segment.size == segment.pixels_file.stat().st_size
        assert len(segment.done()) == len(sizes)


def test_offsets_go_beyond_32_bits(tmp_path: Path) -> None:
    segment = create(tmp_path, names(3), [(30_000, 30_000)] * 3)  # a hole: takes no room on the disk
    assert segment.plan["offset"].tolist() == [0, 2_700_000_000, 5_400_000_000]
    assert segment.pixels_file.stat().st_size == segment.size == 8_100_000_000


def test_marks_stay_where_they_are_put(segment: Segment) -> None:
    segment.mark({2: TURNED})
    assert segment.done().tolist() == [PENDING, PENDING, TURNED]
    segment.mark({0: STORED})
    assert Segment(segment.home, segment.name).done().tolist() == [STORED, PENDING, TURNED]


def test_the_same_plan_made_twice_is_one_segment_with_what_it_has(segment: Segment) -> None:
    with segment.pixels_file.open("rb+") as file:
        file.write(b"x" * 30)
    segment.mark({0: STORED})
    again = create(segment.home, names(3), [(2, 5), (4, 1), (3, 3)])
    assert again == segment
    assert again.done().tolist() == [STORED, PENDING, PENDING]
    assert again.pixels_file.read_bytes() == b"x" * 30 + bytes(39)
    assert find(segment.home) == [segment]


def test_another_plan_is_another_segment(segment: Segment) -> None:
    home = segment.home
    others = {
        create(home, names(3), [(2, 5), (1, 4), (3, 3)]).name,  # turned
        create(home, names(3)[::-1], [(2, 5), (4, 1), (3, 3)]).name,  # other contents
        create(home, names(2), [(2, 5), (4, 1)]).name,
    }
    assert len(others | {segment.name}) == 4
    assert [found.name for found in find(home)] == sorted(others | {segment.name})


def test_a_segment_whose_plan_was_not_finished_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            create(tmp_path, names(1), [(2, 2)])
    assert len(list(tmp_path.iterdir())) == 2  # pixels and marks; no half-written plan
    assert find(tmp_path) == []
    assert create(tmp_path, names(1), [(2, 2)]).done().tolist() == [PENDING]


def test_marks_of_pixels_that_were_deleted_do_not_come_back(segment: Segment) -> None:
    segment.mark({0: STORED, 1: STORED, 2: STORED})
    segment.pixels_file.unlink()
    (segment.home / f"{segment.name}.plan.npy").unlink()  # somebody deleted the large file and the one that names it
    assert create(segment.home, names(3), [(2, 5), (4, 1), (3, 3)]).done().tolist() == [PENDING] * 3


def test_marks_made_meanwhile_by_another_process_stay(segment: Segment) -> None:
    """The other one has made the same plan, and has marks already, before this one gets to look."""
    segment.mark({1: TURNED})
    (segment.home / f"{segment.name}.plan.npy").unlink()
    assert create(segment.home, names(3), [(2, 5), (4, 1), (3, 3)]).done().tolist() == [PENDING, TURNED, PENDING]


def test_pixels_are_mapped_and_cannot_be_written(segment: Segment) -> None:
    with segment.pixels_file.open("rb+") as file:
        file.write(bytes(range(69)))
    flat = segment.pixels()
    assert flat.tolist() == list(range(69))
    with pytest.raises(ValueError, match="read-only"):
        flat[0] = 1


class Disk:
    """What is told to the disk, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[tuple[str, str]] = []
        self.open: set[int] = set()
        sync, rename, opened, close = os.fsync, os.replace, os.open, os.close

        def fsync(number: int) -> None:
            is_folder = stat.S_ISDIR(os.fstat(number).st_mode)
            self.told.append(("sync", "folder" if is_folder else "file"))
            sync(number)

        def replace(old: Path, new: Path) -> None:
            self.told.append(("rename", new.name))
            rename(old, new)

        def open_folder(path: Path, flags: int) -> int:
            self.open.add(number := opened(path, flags))
            return number

        def close_folder(number: int) -> None:
            self.open.discard(number)
            close(number)

        for name, spy in (("fsync", fsync), ("replace", replace), ("open", open_folder), ("close", close_folder)):
            monkeypatch.setattr(os, name, spy)


def test_a_file_has_its_content_before_its_name_and_the_folder_knows_it_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mark").write_bytes(b"old")
    with monkeypatch.context() as patch:
        disk = Disk(patch)
        write_atomically(tmp_path / "mark", b"new")
    assert disk.told == [("sync", "file"), ("rename", "mark"), ("sync", "folder")]
    assert not disk.open
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"mark": b"new"}


def test_a_system_that_opens_no_folders_has_the_file_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError

    path = tmp_path / "mark"
    with monkeypatch.context() as patch:
        disk = Disk(patch)
        patch.setattr(os, "open", refuse)
        write_atomically(path, b"new")
    assert disk.told == [("sync", "file"), ("rename", "mark")]
    assert path.read_bytes() == b"new"


def test_a_write_that_is_cut_short_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    write_atomically(tmp_path / "mark", b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            write_atomically(tmp_path / "mark", b"new")
    assert (tmp_path / "mark").read_bytes() == b"old"


def no_pixels(segment: Segment) -> None:
    segment.pixels_file.unlink()


def short_pixels(segment: Segment) -> None:
    os.truncate(segment.pixels_file, 68)


def no_marks(segment: Segment) -> None:
    segment.done_file.unlink()


def short_marks(segment: Segment) -> None:
    os.truncate(segment.done_file, 2)


def plan_file(segment: Segment) -> Path:
    return segment.home / f"{segment.name}.plan.npy"


def empty_plan(segment: Segment) -> None:
    plan_file(segment).write_bytes(b"")


def text_plan(segment: Segment) -> None:
    plan_file(segment).write_text("no plan")


def zipped_plan(segment: Segment) -> None:
    with plan_file(segment).open("wb") as file:
        np.savez(file, plan=np.zeros(3, dtype=PLAN))


def plan_of_another_type(segment: Segment) -> None:
    np.save(plan_file(segment), np.arange(3))


def plan_without_images(segment: Segment) -> None:
    np.save(plan_file(segment), np.zeros(0, dtype=PLAN))


def longer_plan(segment: Segment) -> None:
    np.save(plan_file(segment), np.concatenate([segment.plan, segment.plan]))


def damaged_message(segment: Segment) -> str:
    with pytest.raises(InputError) as caught:
        Segment(segment.home, segment.name).done()
    return str(caught.value)


@pytest.mark.parametrize(
    "damage",
    [
        no_pixels,
        short_pixels,
        no_marks,
        short_marks,
        empty_plan,
        text_plan,
        zipped_plan,
        plan_of_another_type,
        plan_without_images,
        longer_plan,
    ],
)
def test_damage_is_named_with_what_to_delete(segment: Segment, damage: Callable[[Segment], None]) -> None:
    damage(segment)
    message = damaged_message(segment)
    assert f"The segment {segment.name!r} of the pixel store in {str(segment.home)!r} is damaged" in message
    assert f"Delete its files ({segment.name}.*)" in message


def test_a_plan_cut_anywhere_is_damage(segment: Segment) -> None:
    whole = plan_file(segment).read_bytes()
    for end in range(0, len(whole), 5):
        plan_file(segment).write_bytes(whole[:end])
        assert "is damaged" in damaged_message(segment)
