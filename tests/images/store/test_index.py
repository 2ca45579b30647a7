"""Index: written lines are read again, despite torn or foreign lines."""

import json
import os
from pathlib import Path
from zlib import crc32

import pytest

from sortal.errors import InputError
from sortal.images.decoding import DECODER
from sortal.images.near_duplicates import LENGTH
from sortal.images.store.index import SUM, Index, StoredImage, stamp_of
from sortal.system.regular_files import HOLLOW

STAMP = [7, 1, 2, 3]
IMAGE = StoredImage(10, 3, 4, [8, 6, 16, 1])
STORED = {name: value for name, value in IMAGE._asdict().items() if name != "part"}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "pixels.bin").write_bytes(bytes(10 + 3 * 3 * 4 + LENGTH))
    return tmp_path


@pytest.fixture
def path(home: Path) -> Path:
    return home / "index.jsonl"


A, B, C = ("a" * 32, "b" * 32, "c" * 32)  # digests


def noted(path: str, digest: str, stamp: list[int] = STAMP) -> dict[str, object]:
    return {"path": path, "stamp": stamp, "digest": digest, "stored": STORED}


def known(index: Index, file: str, stamp: list[int]) -> str | None:
    """Return the content of an unchanged file, if the index knows what became of it."""
    content = index.last_content(file, stamp)
    return content if content is not None and index.knows(content) else None


def test_flushed_lines_are_read_again_and_nothing_is_written_twice(home: Path, path: Path) -> None:
    name = os.fsdecode(b"/caf\xe9.jpg")  # not UTF-8
    index = Index(home)
    index.flush()
    index.add(noted(name, A))
    index.add({"path": "/b", "stamp": [1], "digest": B, "unreadable": ["truncated", "in the middle"]})
    assert not path.exists()
    index.flush()
    written = path.read_bytes()
    index.flush()
    assert path.read_bytes() == written
    other = Index(home)  # as in another process
    for one, file, digest in ((other, "/c", C), (index, "/d", A)):
        one.add(noted(file, digest))
        one.flush()
    index.refresh()
    both = Index(home)
    assert known(both, "/b", [1]) == known(index, "/b", [1]) == B
    assert known(index, "/c", STAMP) == C
    assert [known(both, file, STAMP) for file in ("/c", "/d")] == [C, A]
    for one in (index, both):
        assert (known(one, name, STAMP), known(one, "/b", [1])) == (A, B)
        assert one.stored[A] == IMAGE
        assert one.unreadable == {B: ("truncated", "in the middle")}


def test_an_unchanged_file_is_known_by_any_path_to_it(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, file = Index(home), str(tmp_path / "a.png")
    index.add(noted(file, A))
    assert known(index, file, [7, 1, 2, 4]) is None
    assert known(index, "/other", STAMP) is None
    monkeypatch.chdir(tmp_path)
    assert known(index, "a.png", STAMP) == A
    assert known(index, str(tmp_path / "x" / ".." / "a.png"), STAMP) == A
    index.add(noted(file, "changed", [8, 1, 2, 3]))
    assert known(index, file, STAMP) is None
    assert known(index, file, [8, 1, 2, 3]) == "changed"
    index.add({"path": file, "stamp": STAMP, "digest": "a copy that is not stored yet"})
    assert known(index, file, STAMP) is None


def test_a_torn_line_loses_only_that_line(home: Path, path: Path) -> None:
    index = Index(home)
    index.add(noted("/ä\n", A))
    index.flush()
    whole = len(path.read_bytes())
    index.add(noted("/b", B))
    index.flush()
    text = path.read_bytes()
    for end in range(whole, len(text) - 1):
        path.write_bytes(text[:end])
        torn = Index(home)
        if end < len(text) - 2:
            assert known(torn, "/b", STAMP) is None
        assert known(torn, "/ä\n", STAMP) == A
        torn.add(noted("/c", C))
        torn.flush()
        assert known(Index(home), "/c", STAMP) == C


def test_a_line_with_a_changed_byte_is_skipped(home: Path, path: Path) -> None:
    index = Index(home)
    index.add(noted("/a", A))
    index.flush()
    text = path.read_bytes()
    for at in range(1, len(text) - 1):
        for flipped in (1, 2, 4, 128):
            path.write_bytes(text[:at] + bytes([text[at] ^ flipped]) + text[at + 1 :])
            damaged = Index(home)
            assert not damaged.stored, path.read_bytes()
            assert damaged.last_content("/a", STAMP) is None


WRONG: list[object] = [
    3,
    {**STORED, "offset": 11},  # beyond the end of the file
    {**STORED, "offset": -1},
    {**STORED, "height": "3"},
    {**STORED, "facts": [1, 2, 3]},
    {**STORED, "more": 1},
    {"offset": 10},
]


@pytest.mark.skipif(not hasattr(os, "SEEK_HOLE"), reason="files have no holes here")
def test_an_index_that_claims_more_than_it_holds_is_refused(home: Path, path: Path) -> None:
    path.touch()
    os.truncate(path, HOLLOW + 1)
    with path.open("rb") as file:
        if os.lseek(file.fileno(), 0, os.SEEK_HOLE) > HOLLOW:
            pytest.skip("this file system has no holes")
    with pytest.raises(InputError, match=r"index\.jsonl' cannot be read: it has 16\.8 MB, but nothing"):
        Index(home)


def summed(line: bytes) -> bytes:
    """Return a line with its checksum."""
    return line[:-1] + SUM + b"%d}" % crc32(line)


def test_foreign_lines_are_skipped(home: Path, path: Path) -> None:
    foreign = [
        b"\xff\xfe\x00",
        b"\0" * 64,  # left by a power cut if the file was extended before its data was written
        b"{}",
        b'["digest"]',
        b'{"digest": ["x"], "path": "/x", "stamp": [1]}',
        b'{"digest": "DIGEST", "path": "/x"}',
        b'{"digest": "DIGEST", "path": 3, "stamp": [1]}',
        b'{"digest": "DIGEST", "path": "/x", "stamp": ["1"]}',
        b'{"digest": "DIGEST", "unreadable": ["truncated", ""]}',
        b'{"digest": "DIGEST", "unreadable": "no", "decoder": "1"}',
        b'{"digest": "DIGEST", "unreadable": ["no reason", ""], "decoder": "1"}',
        *(json.dumps(noted("/a", digest)).encode() for digest in ("", "x", A.upper(), A[1:], f"{A}0", f"{A}\n")),
        *(json.dumps({"path": "/a", "stamp": STAMP, "digest": C, "stored": wrong}).encode() for wrong in WRONG),
    ]
    good = [json.dumps(noted(name, digest)).encode() for name, digest in (("/a", A), ("/b", B))]
    lines = [line.replace(b"DIGEST", C.encode()) for line in (good[0], *foreign, good[1])]
    current = b'"decoder": ' + json.dumps(DECODER).encode()
    path.write_bytes(b"\n".join(summed(line.replace(b'"decoder": "1"', current)) for line in lines) + b"\n" + good[0])
    index = Index(home)
    assert (known(index, "/a", STAMP), known(index, "/b", STAMP)) == (A, B)
    assert index.stored == {A: IMAGE, B: IMAGE}
    assert index.unreadable == {}
    bad = {"path": "/a", "stamp": STAMP, "digest": A, "unreadable": ["truncated", ""]}
    for decoder, found in ((DECODER, A), ("an older one, which may differ", None)):
        path.write_bytes(summed(json.dumps({**bad, "decoder": decoder}).encode()))
        assert known(Index(home), "/a", STAMP) == found


def test_a_stamp_changes_with_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"one")
    os.utime(file, ns=(0, 12345))
    assert stamp_of(str(file)) == [3, 12345, file.stat().st_ctime_ns]
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    for name in ("nothing", "link", "null\0character", "x" * 300):
        assert stamp_of(str(tmp_path / name)) is None
