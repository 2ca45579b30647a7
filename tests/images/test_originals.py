"""Originals: files that still have their content, others, and what is said of them."""

import os
from pathlib import Path

import pytest
from PIL import Image

from sortal.images.decoding import digest
from sortal.images.image_set import image_set
from sortal.images.originals import (
    CHANGED,
    MISSING_FILE,
    THERE,
    UNREADABLE_FILE,
    ChangedError,
    Originals,
    indexes_below,
)
from sortal.images.store.packing import pack
from sortal.system.progress import Runtime

NAMES = ("a", "b", "c", "d")


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Four files, of which the first two have the same content."""
    paths = [tmp_path / name for name in NAMES]
    for path, text in zip(paths, ("one", "one", "two", "three"), strict=True):
        path.write_text(text)
    return paths


def originals(paths: list[Path]) -> Originals:
    return Originals([*map(str, paths)], [digest(path.read_bytes()) for path in paths])


def test_the_state_of_each_file_is_what_it_is_now(paths: list[Path]) -> None:
    found = originals(paths)
    found.look_at_all()
    assert found.state.tolist() == [0, 0, 0, 0]
    paths[0].write_text("ONE")
    paths[2].unlink()
    paths[3].unlink()
    paths[3].mkdir()
    assert [found.look(row) for row in range(4)] == [CHANGED, THERE, MISSING_FILE, UNREADABLE_FILE]
    words = found.say([0, 2, 3], NAMES)
    assert words == (
        "1 file has changed since it was sorted: 'a'; 1 file no longer exists: 'c'; 1 file cannot be read: 'd'"
    )
    with pytest.raises(ChangedError):
        found.open(0)
    with found.open(1) as file:
        assert file.read() == b"one"


def test_a_content_is_lost_when_no_file_has_it(paths: list[Path]) -> None:
    found = originals(paths)
    paths[0].unlink()
    assert found.lost(found.contents) == []
    paths[1].unlink()
    assert sorted({*found.lost(found.contents)}) == [0, 1]


def test_a_file_is_read_only_if_its_stamp_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.png"
    Image.new("RGB", (4, 4)).save(path)
    store = pack(image_set(["a.png"], paths=[str(path)], labels=[None]), tmp_path / "c/p", runtime=Runtime(workers=1))
    contents: list[str] = [store.digests[0].decode()]
    indexes = indexes_below(tmp_path / "c")
    assert len(indexes) == 1
    found = Originals([str(path)], contents, indexes)
    reads: list[object] = []

    def digest_of(file: object) -> str:
        reads.append(file)
        return contents[0]

    monkeypatch.setattr("sortal.images.originals.digest_of", digest_of)
    assert (found.look(0), found.has_changed(0), reads) == (THERE, False, [])
    os.utime(path, ns=(1, 1))
    assert (found.look(0), len(reads)) == (THERE, 1)
    assert (found.look(0), len(reads)) == (THERE, 1), "its new stamp is known by now"
