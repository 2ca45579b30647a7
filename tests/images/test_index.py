"""Seen: what was written comes back, whatever a kill or a stranger did to the end of the file."""

import json
import os
from pathlib import Path

import pytest

from sortal.pixels import DECODER
from sortal.seen import Seen, stamp_of

STAMP = [7, 1, 2, 3]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "seen.jsonl"


def noted(path: str, digest: str, stamp: list[int] = STAMP) -> dict[str, object]:
    return {"path": path, "stamp": stamp, "digest": digest, "size": [4, 3]}


def test_what_was_flushed_comes_back_and_nothing_is_written_twice(path: Path) -> None:
    name = os.fsdecode(b"/caf\xe9.jpg")  # no UTF-8
    seen = Seen(path)
    seen.flush()
    seen.add(noted(name, "aa"))
    seen.add({"path": "/b", "stamp": [1], "digest": "bb", "bad": ["truncated", "in the middle"]})
    assert not path.exists()
    seen.flush()
    written = path.read_bytes()
    seen.flush()
    assert path.read_bytes() == written
    other = Seen(path)  # of another process
    for one, file in ((other, "/c"), (seen, "/d")):
        one.add(noted(file, file))
        one.flush()
    both = Seen(path)
    assert [both.content(file, STAMP) for file in ("/c", "/d")] == ["/c", "/d"]
    for one in (seen, both):
        assert (one.content(name, STAMP), one.content("/b", [1])) == ("aa", "bb")
        assert one.sizes["aa"] == (4, 3)
        assert one.bad == {"bb": ("truncated", "in the middle")}


def test_a_file_is_known_only_as_it_was_by_any_way_to_it(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, file = Seen(path), str(tmp_path / "a.png")
    seen.add(noted(file, "aa"))
    assert seen.content(file, [7, 1, 2, 4]) is None
    assert seen.content("/other", STAMP) is None
    monkeypatch.chdir(tmp_path)
    assert seen.content("a.png", STAMP) == "aa"
    assert seen.content(str(tmp_path / "x" / ".." / "a.png"), STAMP) == "aa"
    seen.add(noted(file, "changed", [8, 1, 2, 3]))
    assert seen.content(file, STAMP) is None
    assert seen.content(file, [8, 1, 2, 3]) == "changed"
    seen.note({"path": file, "stamp": STAMP, "digest": "of unknown size"})
    assert seen.content(file, STAMP) is None


def test_a_line_torn_anywhere_costs_that_line_only(path: Path) -> None:
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


def test_lines_that_are_none_of_ours_are_passed_over(path: Path) -> None:
    foreign = [
        b"\xff\xfe\x00",
        b"\0" * 64,  # what a power cut leaves where a file was longer than what reached the disk
        b"{}",
        b'["digest"]',
        b'{"digest": ["x"], "size": [1, 2]}',
        b'{"digest": "x", "path": "/x"}',
        b'{"digest": "x", "path": 3, "stamp": [1]}',
        b'{"digest": "x", "path": "/x", "stamp": ["1"]}',
        b'{"digest": "x", "size": [1]}',
        b'{"digest": "x", "size": 1}',
        b'{"digest": "x", "bad": ["truncated", ""]}',
        b'{"digest": "x", "bad": "no", "by": "1"}',
        b'{"digest": "x", "bad": ["no reason", ""], "by": "1"}',
        b'{"digest": "x", "path": "/a", "stamp": [7, 1, 2, 3], "size": [1]}',
    ]
    good = [json.dumps(noted(name, name)).encode() for name in ("/a", "/b")]
    text = b"\n".join([good[0], *foreign, good[1]])
    path.write_bytes(text.replace(b'"by": "1"', b'"by": ' + json.dumps(DECODER).encode()))
    seen = Seen(path)
    assert (seen.content("/a", STAMP), seen.content("/b", STAMP)) == ("/a", "/b")
    assert seen.sizes == {"/a": (4, 3), "/b": (4, 3)}
    assert seen.bad == {}
    bad = {"path": "/a", "stamp": STAMP, "digest": "aa", "bad": ["truncated", ""]}
    for decoder, known in ((DECODER, "aa"), ("an older one, which may think otherwise", None)):
        path.write_text(json.dumps({**bad, "by": decoder}))
        assert Seen(path).content("/a", STAMP) == known


def test_a_stamp_is_what_changes_whenever_a_file_does(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"one")
    os.utime(file, ns=(0, 12345))
    assert stamp_of(str(file)) == [3, 12345, file.stat().st_ctime_ns]
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    for name in ("nothing", "link", "null\0character", "x" * 300):
        assert stamp_of(str(tmp_path / name)) is None
