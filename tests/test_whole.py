"""Files that are replaced together; that a kill at any moment leaves all or none is held by tests/test_run.py."""

import json
from pathlib import Path

import pytest

from sortal.errors import InputError
from sortal.whole import COMMIT, NEXT, finish, is_pending, replace_all


def names(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def pending(folder: Path, **word: object) -> Path:
    start = folder / NEXT
    start.mkdir(parents=True)
    (start / COMMIT).write_text(json.dumps(word))
    return start


def test_files_are_written_linked_and_removed(tmp_path: Path) -> None:
    run, source = tmp_path / "run", tmp_path / "source"
    source.write_bytes(b"linked")
    replace_all(run, {"a": b"1", "b": b"2"}, [])
    replace_all(run, {"a": b"3", "c": source}, ["b", "never there"])
    assert names(run) == {"a": b"3", "c": b"linked"}
    assert not (run / NEXT).exists()
    assert (run / "c").stat().st_ino == source.stat().st_ino


def test_what_has_the_word_is_put_into_place_and_what_has_not_is_left_alone(tmp_path: Path) -> None:
    start = pending(tmp_path, files=["a"], gone=["b"])
    (start / "a").write_bytes(b"new")
    (tmp_path / "a").write_bytes(b"old")
    (tmp_path / "b").write_bytes(b"gone")
    assert is_pending(tmp_path)
    finish(tmp_path)
    assert names(tmp_path) == {"a": b"new"}
    (tmp_path / NEXT).mkdir()
    (tmp_path / NEXT / "a").write_bytes(b"broken off")
    finish(tmp_path)
    assert not is_pending(tmp_path)
    assert (tmp_path / NEXT / "a").exists()  # a process may be at work on it
    replace_all(tmp_path, {"c": b"1"}, [])
    assert names(tmp_path) == {"a": b"new", "c": b"1"}


@pytest.mark.parametrize("name", ["../outside", "/etc/x", "a/b", "", ".", "..", 7])
def test_no_name_in_a_foreign_folder_leads_out_of_it(tmp_path: Path, name: object) -> None:
    (tmp_path / "outside").write_bytes(b"mine")
    for kind in ("files", "gone"):
        run = tmp_path / kind
        pending(run, **{"files": [], "gone": [], kind: [name]})
        with pytest.raises(InputError, match="was not written by Sortal"):
            finish(run)
    assert (tmp_path / "outside").read_bytes() == b"mine"


@pytest.mark.parametrize("word", ["[]", "{}", "nonsense", '{"files": 3, "gone": []}'])
def test_a_word_that_is_none_changes_nothing(tmp_path: Path, word: str) -> None:
    start = pending(tmp_path)
    (start / COMMIT).write_text(word)
    (tmp_path / "a").write_bytes(b"old")
    finish(tmp_path)
    assert names(tmp_path) == {"a": b"old"}
    replace_all(tmp_path, {"a": b"new"}, [])
    assert names(tmp_path) == {"a": b"new"}
