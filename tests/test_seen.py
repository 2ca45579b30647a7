"""Seen: what was written comes back, whatever a kill or a stranger did to the end of the file."""

import json
import os
from pathlib import Path

import pytest

from sortal.seen import Seen, stamp_of

STAMP = [7, 1, 2, 3]


def noted(path: str, digest: str, stamp: list[int] = STAMP) -> dict[str, object]:
    return {"path": path, "stamp": stamp, "digest": digest, "size": [4, 3]}


def test_what_was_flushed_comes_back(tmp_path: Path) -> None:
    seen = Seen(tmp_path / "seen.jsonl")
    seen.add(noted("/a", "aa"))
    seen.add({"path": "/b", "stamp": [1], "digest": "bb", "bad": ["truncated", "in the middle"]})
    seen.flush()
    again = Seen(tmp_path / "seen.jsonl")
    for one in (seen, again):
        assert (one.content("/a", STAMP), one.content("/b", [1])) == ("aa", "bb")
        assert one.sizes == {"aa": (4, 3)}
        assert one.bad == {"bb": ("truncated", "in the middle")}


def test_nothing_is_written_before_a_flush_and_nothing_twice(tmp_path: Path) -> None:
    path = tmp_path / "seen.jsonl"
    seen = Seen(path)
    seen.flush()
    assert not path.exists()
    seen.add(noted("/a", "aa"))
    assert not path.exists()
    seen.flush()
    written = path.read_bytes()
    seen.flush()
    assert path.read_bytes() == written
    assert written.count(b"digest") == 1


def test_a_file_is_known_only_as_it_was(tmp_path: Path) -> None:
    seen = Seen(tmp_path / "seen.jsonl")
    seen.add(noted("/a", "aa"))
    assert seen.content("/a", [7, 1, 2, 4]) is None
    assert seen.content("/other", STAMP) is None
    seen.add(noted("/a", "changed", [8, 1, 2, 3]))
    assert seen.content("/a", STAMP) is None
    assert seen.content("/a", [8, 1, 2, 3]) == "changed"


def test_a_file_is_known_by_any_way_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen(tmp_path / "seen.jsonl")
    seen.add(noted(str(tmp_path / "a.png"), "aa"))
    monkeypatch.chdir(tmp_path)
    assert seen.content("a.png", STAMP) == "aa"
    assert seen.content(str(tmp_path / "x" / ".." / "a.png"), STAMP) == "aa"


def test_a_line_torn_anywhere_costs_that_line_only(tmp_path: Path) -> None:
    path = tmp_path / "seen.jsonl"
    seen = Seen(path)
    seen.add(noted("/ä\n", "aa"))
    seen.flush()
    whole = len(path.read_bytes())
    seen.add(noted("/b", "bb"))
    seen.flush()
    text = path.read_bytes()
    for end in range(whole, len(text) - 1):
        path.write_bytes(text[:end])
        torn = Seen(path)
        if end < len(text) - 2:
            assert torn.content("/b", STAMP) is None
        assert torn.content("/ä\n", STAMP) == "aa"
        torn.add(noted("/c", "cc"))
        torn.flush()
        assert Seen(path).content("/c", STAMP) == "cc"


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe\x00",
        b"\0" * 64,  # what a power cut leaves where a file was longer than what reached the disk
        b"not json",
        b"{}",
        b"null",
        b"12",
        b'"digest"',
        b'["digest"]',
        b'{"digest": ["x"], "size": [1, 2]}',
        b'{"digest": "x", "path": "/x"}',
        b'{"digest": "x", "size": [1]}',
        b'{"digest": "x", "size": 1}',
        b'{"digest": "x", "bad": "truncated"}',
        b'{"digest": "x", "path": "/a", "stamp": [7, 1, 2, 3], "size": [1]}',
    ],
)
def test_lines_that_are_none_of_ours_are_passed_over(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "seen.jsonl"
    good = [json.dumps(noted(name, name)).encode() for name in ("/a", "/b")]
    path.write_bytes(good[0] + b"\n" + line + b"\n" + good[1])
    seen = Seen(path)
    assert (seen.content("/a", STAMP), seen.content("/b", STAMP)) == ("/a", "/b")
    assert seen.sizes == {"/a": (4, 3), "/b": (4, 3)}
    assert seen.bad == {}


def test_two_processes_append_to_one_log(tmp_path: Path) -> None:
    one, two = Seen(tmp_path / "seen.jsonl"), Seen(tmp_path / "seen.jsonl")
    for seen, name in ((one, "/a"), (two, "/b"), (one, "/c")):
        seen.add(noted(name, name))
        seen.flush()
    both = Seen(tmp_path / "seen.jsonl")
    assert [both.content(name, STAMP) for name in ("/a", "/b", "/c")] == ["/a", "/b", "/c"]


def test_names_that_are_no_utf8_are_kept(tmp_path: Path) -> None:
    name = os.fsdecode(b"/caf\xe9.jpg")
    seen = Seen(tmp_path / "seen.jsonl")
    seen.add(noted(name, "aa"))
    seen.flush()
    assert Seen(tmp_path / "seen.jsonl").content(name, STAMP) == "aa"


def test_a_stamp_stays_until_the_file_changes(tmp_path: Path) -> None:
    file, other = tmp_path / "a", tmp_path / "b"
    file.write_bytes(b"one")
    first = stamp_of(str(file))
    assert first is not None
    assert stamp_of(str(file)) == first
    os.utime(file, ns=(0, 12345))
    touched = stamp_of(str(file))
    file.write_bytes(b"longer")
    os.utime(file, ns=(0, 12345))
    longer = stamp_of(str(file))
    other.write_bytes(b"second")  # as long as the one it replaces, and as old
    os.utime(other, ns=(0, 12345))
    os.replace(other, file)
    assert len({str(stamp) for stamp in (first, touched, longer, stamp_of(str(file)))}) == 4


def test_what_is_not_there_has_no_stamp(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    for name in ("nothing", "link", "null\0character", "x" * 300):
        assert stamp_of(str(tmp_path / name)) is None
