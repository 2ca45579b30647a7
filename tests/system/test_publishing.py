"""Output that replaces only what was agreed, whatever appears at its place meanwhile."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.fork_server import KILLED, ForkServer, die

from sortal.system.open_folder import OpenFolder
from sortal.system.publishing import OccupiedError, holding, publishing
from sortal.system.temporary import sweep

Make = Callable[[Path, str], None]
Meanwhile = Callable[[], object]


def make_file(path: Path, text: str) -> None:
    path.write_text(text)


def make_folder(path: Path, text: str) -> None:
    path.mkdir()
    (path / "content").write_text(text)


def text_of(path: Path) -> str:
    return (path / "content" if path.is_dir() else path).read_text()


def nothing() -> None:
    """Do nothing meanwhile."""


def publish(out: Path, make: Make, text: str, meanwhile: Meanwhile = nothing, *, force: bool = False) -> None:
    """Publish a file or folder that contains a text, and do something when it has been made."""
    with holding(out) as there, publishing(out, there if force else None) as made:
        make(made, text)
        meanwhile()


KINDS = pytest.mark.parametrize("make", [make_file, make_folder])


@KINDS
def test_output_appears_where_nothing_is(tmp_path: Path, make: Make) -> None:
    seen: list[bool] = []
    publish(tmp_path / "out", make, "new", lambda: seen.append((tmp_path / "out").exists()))
    assert seen == [False], "it appears when it is complete"
    assert text_of(tmp_path / "out") == "new"
    assert os.listdir(tmp_path) == ["out"]


def test_a_folder_takes_the_place_of_an_empty_one_but_a_file_does_not(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(OccupiedError):
        publish(tmp_path / "out", make_file, "new")
    publish(tmp_path / "out", make_folder, "new")
    assert text_of(tmp_path / "out") == "new"
    assert os.listdir(tmp_path) == ["out"]


@KINDS
@pytest.mark.parametrize("theirs", [make_file, make_folder])
def test_what_appears_meanwhile_is_not_replaced(tmp_path: Path, make: Make, theirs: Make) -> None:
    out = tmp_path / "out"
    for force in (False, True):  # with which nothing was agreed either, as nothing was there
        with pytest.raises(OccupiedError, match="has been written there meanwhile"):
            publish(out, make, "new", lambda: theirs(out, "theirs"), force=force)
        out.rename(tmp_path / f"kept {force}")
    (tmp_path / "kept True").rename(out)
    shutil.rmtree(tmp_path / "kept False", ignore_errors=True)
    (tmp_path / "kept False").unlink(missing_ok=True)
    assert text_of(out) == "theirs"
    assert os.listdir(tmp_path) == ["out"]


@KINDS
def test_what_was_agreed_is_replaced_and_nothing_else(tmp_path: Path, make: Make) -> None:
    out, seen = tmp_path / "out", list[str]()

    def exchange() -> None:
        out.rename(tmp_path / "moved")
        make(out, "theirs")

    make(out, "old")
    publish(out, make, "new", lambda: seen.append(text_of(out)), force=True)
    assert (seen, text_of(out)) == (["old"], "new")
    with pytest.raises(OccupiedError):
        publish(out, make, "newer", exchange, force=True)
    assert text_of(out) == "theirs"
    assert sorted(os.listdir(tmp_path)) == ["moved", "out"]
    publish(out, make, "newest", lambda: out.rename(tmp_path / "gone"), force=True)
    assert text_of(out) == "newest", "what was agreed need not be there any more"


@KINDS
def test_an_inode_that_is_used_again_is_not_mistaken(tmp_path: Path, make: Make) -> None:
    """A file system may give the inode of what was deleted to what is made next."""
    out = tmp_path / "out"

    def exchange() -> None:
        shutil.rmtree(out) if out.is_dir() else out.unlink()
        make(out, "theirs")

    make(out, "old")
    with pytest.raises(OccupiedError):
        publish(out, make, "new", exchange, force=True)
    assert text_of(out) == "theirs"


@KINDS
@pytest.mark.parametrize("force", [False, True])
def test_of_two_only_the_first_is_published(tmp_path: Path, make: Make, force: bool) -> None:
    out = tmp_path / "out"
    if force:
        make(out, "old")
    with pytest.raises(OccupiedError):
        publish(out, make, "late", lambda: publish(out, make, "early", force=force), force=force)
    assert text_of(out) == "early"
    assert os.listdir(tmp_path) == ["out"]


@KINDS
def test_what_was_moved_aside_is_kept_if_its_place_is_taken(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, move = tmp_path / "out", OpenFolder.move
    make(out, "old")

    def late(here: OpenFolder, name: str, to: str) -> None:
        if not out.exists():
            make(out, "theirs")
        move(here, name, to)

    monkeypatch.setattr(OpenFolder, "move", late)
    with pytest.raises(OccupiedError, match=r"what was there before is now '.*out\.before-"):
        publish(out, make, "new", force=True)
    (kept,) = tmp_path.glob("out.before-*")
    assert (text_of(out), text_of(kept)) == ("theirs", "old")
    assert len(os.listdir(tmp_path)) == 2


@KINDS
def test_what_cannot_be_put_into_place_or_back_is_not_lost(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*values: Any) -> None:
        raise PermissionError("denied")

    make(tmp_path / "out", "old")
    monkeypatch.setattr(OpenFolder, "move", refuse)
    with pytest.raises(PermissionError):
        publish(tmp_path / "out", make, "new", force=True)
    monkeypatch.undo()
    assert not (tmp_path / "out").exists()
    sweep(tmp_path)
    assert text_of(tmp_path / "out") == "old"
    assert os.listdir(tmp_path) == ["out"]


def replace_and_die(folder: str, kind: str, moment: str) -> None:
    """In a child: die while something is replaced, before or after the new is in place."""
    out, make = Path(folder) / "out", make_folder if kind == "folder" else make_file
    setattr(OpenFolder, "move" if moment == "before" else "remove", lambda *_: die())
    publish(out, make, "new", force=True)


@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize(("moment", "after"), [("before", "old"), ("after", "new")])
def test_a_replacement_that_a_kill_broke_off_is_undone_or_completed(
    fork_server: ForkServer, tmp_path: Path, kind: str, moment: str, after: str
) -> None:
    (make_folder if kind == "folder" else make_file)(tmp_path / "out", "old")
    fork_server.run(replace_and_die, str(tmp_path), kind, moment, codes=[KILLED])
    assert (tmp_path / "out").exists() == (moment == "after")
    assert len(os.listdir(tmp_path)) > 1
    sweep(tmp_path)
    assert text_of(tmp_path / "out") == after
    assert os.listdir(tmp_path) == ["out"]


def test_files_are_published_where_there_are_no_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*values: Any, **named: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    out = tmp_path / "out"
    publish(out, make_file, "new")
    with pytest.raises(OccupiedError, match=re.escape(str(out))):
        publish(out, make_file, "newer")
    assert text_of(out) == "new"
    assert os.listdir(tmp_path) == ["out"]
