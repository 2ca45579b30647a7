"""Regular files are opened without waiting; whatever else is there, or takes their place, is refused."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from sortal.system.regular_files import HOLLOW, NotAFileError, TooLargeError, open_regular, openable, read_regular


def test_what_is_no_file_is_refused_at_once_and_by_its_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as end:
        end.bind("socket")
    for name, kind in (("pipe", "a pipe"), ("socket", "a socket"), (".", "a folder"), ("/dev/null", "a device")):
        with pytest.raises(NotAFileError) as error:
            read_regular(name)
        assert error.value.strerror == f"it is {kind}, not a file"
    with pytest.raises(FileNotFoundError):
        open_regular("nothing")


def has_holes(path: Path) -> bool:
    with path.open("rb") as file:
        return os.lseek(file.fileno(), 0, os.SEEK_HOLE) < path.stat().st_size


@pytest.mark.skipif(not hasattr(os, "SEEK_HOLE"), reason="files have no holes here")
def test_a_table_that_claims_more_than_it_holds_is_refused_in_words(tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    table.write_bytes(b"file_name,label\n")
    os.truncate(table, 10**10)
    with pytest.raises(TooLargeError, match=r"^it has 10\.0 GB, and a file of this kind has at most 8\.6 GB$") as error:
        read_regular(table)
    assert error.value.strerror == str(error.value)
    os.truncate(table, HOLLOW + 1)
    if not has_holes(table):
        pytest.skip("this file system has none")
    with pytest.raises(TooLargeError, match=r"^it has 16\.8 MB, but nothing has been written to some of them$"):
        read_regular(table)
    table.write_bytes(b"1,2\n" * (HOLLOW // 4 + 1))
    assert len(read_regular(table)) == HOLLOW + 4
    os.truncate(tmp_path / "a.csv", 2**16)
    assert len(read_regular(table)) == 2**16


def test_a_pipe_that_takes_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    file, pipe = tmp_path / "file", tmp_path / "pipe"
    file.write_bytes(b"123")
    os.mkfifo(pipe)
    found, before = os.stat(file), len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    with patch("os.stat", return_value=found), pytest.raises(NotAFileError):
        open_regular(pipe)
    assert not before or len(os.listdir("/proc/self/fd")) == before


def test_a_file_is_read_as_far_as_it_reached_when_it_was_opened(tmp_path: Path) -> None:
    file, fstat = tmp_path / "file", os.fstat
    file.write_bytes(b"123")

    def growing(descriptor: int) -> os.stat_result:
        found = fstat(descriptor)
        with file.open("ab") as other:
            other.write(b"4")
        return found

    with patch("os.fstat", growing):
        assert read_regular(file) == b"1234"  # the second look is the one that counts


def test_a_shared_file_that_another_computer_holds_is_waited_for(tmp_path: Path) -> None:
    file, opened, flags = tmp_path / "file", os.open, []
    file.write_bytes(b"123")

    def held(path: str, how: int, mode: int) -> int:
        flags.append(how)
        if how & os.O_NONBLOCK:
            raise BlockingIOError
        return opened(path, how, mode)

    with patch("os.open", held), open_regular(file) as found:
        assert found.read() == b"123"
    assert len(flags) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="names that are not UTF-8 exist on Linux only")
def test_a_library_that_takes_utf_8_only_opens_any_file(tmp_path: Path) -> None:
    for name in ("plain", "caf\u00e9", os.fsdecode(b"byte \xff")):
        path = tmp_path / name
        path.write_text(name.encode("utf-8", "surrogateescape").hex())
        with openable(path) as by:
            by.encode()
            assert Path(by).read_text() == path.read_text()
    with pytest.raises(FileNotFoundError), openable(tmp_path / "missing"):
        pytest.fail("it was opened")
