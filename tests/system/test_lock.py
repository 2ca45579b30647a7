import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from sortal.errors import InputError
from sortal.system.files import LOCK_FILE, lock_folder, replace_all, write_atomically
from sortal.system.open_folder import ReplacedError, open_held


def test_a_folder_is_locked_by_one_process_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "run"
    with lock_folder(folder):
        with pytest.raises(InputError, match=r"Another process is using .*run"), lock_folder(folder):
            pytest.fail("two hold the lock")
        with lock_folder(tmp_path / "b"), lock_folder(None):
            assert folder.is_dir()
    with lock_folder(folder):
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="there, no lock is looked at")
def test_a_look_at_the_lock_refuses_nobody(tmp_path: Path) -> None:
    import fcntl

    with lock_folder(tmp_path):
        pass
    looks, real = [os.open(tmp_path / LOCK_FILE, os.O_RDONLY)], fcntl.flock
    real(looks[0], fcntl.LOCK_SH)

    def flock(file: int, how: int) -> None:
        try:
            real(file, how)
        except OSError:
            os.close(looks.pop())  # the look ends once it is in the way
            raise

    with patch("fcntl.flock", flock), lock_folder(tmp_path):
        assert not looks


def test_a_killed_process_releases_its_lock(tmp_path: Path) -> None:
    code = "import sys, time; from pathlib import Path; from sortal.system.files import lock_folder\n"
    code += "with lock_folder(Path(sys.argv[1])): print(1, flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"1\n"
        with pytest.raises(InputError, match="Another process"), lock_folder(tmp_path):
            pytest.fail("two hold the lock")
        os.kill(other.pid, signal.SIGKILL)
    with lock_folder(tmp_path):
        pass


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def test_a_folder_on_a_file_system_without_locks_is_rejected(code: int, tmp_path: Path) -> None:
    refusal = OSError(code, os.strerror(code))
    with (
        patch("fcntl.flock", side_effect=refusal),
        pytest.raises(InputError, match=rf"on a file system with file locks, got '{os.strerror(code)}'.*local disk"),
        lock_folder(tmp_path),
    ):
        pytest.fail("nothing is locked")
    with lock_folder(tmp_path):
        pass


def test_another_thread_may_release_the_lock(tmp_path: Path) -> None:
    held = lock_folder(tmp_path)
    held.__enter__()
    thread = threading.Thread(target=held.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    with lock_folder(tmp_path):
        pass


# In a process that takes itself for Windows: the lock is that of Windows, here a set of locked files in place of the
# operating system's, and nothing of POSIX is there to fall back to.
WINDOWS = """
import ctypes, os, sys
from pathlib import Path
from unittest.mock import MagicMock
from sortal.errors import InputError
from sortal.system.files import lock_folder

sys.platform, ctypes.WinDLL = "win32", MagicMock()
sys.modules.update({"fcntl": None, "msvcrt": MagicMock()})
from filelock import FileLock, WindowsFileLock
assert FileLock is WindowsFileLock

files = set()

def acquire(self):
    if self.lock_file not in files:
        files.add(self.lock_file)
        self._context.lock_file_fd = os.open(self.lock_file, os.O_CREAT)

def release(self):
    files.remove(self.lock_file)
    os.close(self._context.lock_file_fd)
    self._context.lock_file_fd = None

WindowsFileLock._acquire, WindowsFileLock._release = acquire, release
folder = Path(sys.argv[1])
with lock_folder(folder):
    assert files == {str(folder / ".lock")}
    try:
        with lock_folder(folder):
            print("two hold the lock")
    except InputError as error:
        print(error)
assert not files
"""


def test_folders_are_locked_on_windows_too(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", WINDOWS, tmp_path], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.startswith(f"Another process is using {str(tmp_path)!r}.")


def test_nothing_is_written_to_a_folder_that_takes_the_place_of_a_locked_one(tmp_path: Path) -> None:
    """Neither one file nor several, neither there nor below; what was locked can be put back."""
    place, away = tmp_path / "place", tmp_path / "away"
    (tmp_path / "link").symlink_to("place")
    with lock_folder(place):
        (place / "cache" / "k").mkdir(parents=True)
        write_atomically(place / "cache" / "k" / "file.json", b"first")
        place.rename(away)
        (place / "cache" / "k").mkdir(parents=True)
        writes: tuple[Callable[[], object], ...] = (
            lambda: write_atomically(place / "file", b"second"),
            lambda: write_atomically(place / "cache" / "k" / "file.json", b"second"),
            lambda: replace_all(place, {"file": b"second"}, []),
            lambda: open_held(place / "file", os.O_RDWR | os.O_CREAT),
        )
        for write in writes:
            with pytest.raises(ReplacedError, match="another one was put there"):
                write()
        assert [*place.rglob("*")] == [place / "cache", place / "cache" / "k"]
        write_atomically(tmp_path / "elsewhere", b"free")
        shutil.rmtree(place)
        with pytest.raises(ReplacedError):
            write_atomically(place / "file", b"second")
        away.rename(place)
        for write in writes[:-1]:
            write()
        os.close(open_held(place / "file", os.O_RDWR))
        assert (place / "cache" / "k" / "file.json").read_bytes() == b"second"
    with lock_folder(tmp_path / "link"):  # which is led elsewhere
        (tmp_path / "link").unlink()
        away.mkdir()
        (tmp_path / "link").symlink_to("away")
        with pytest.raises(ReplacedError):
            write_atomically(tmp_path / "link" / "file", b"third")
    place.rename(tmp_path / "gone")
    place.mkdir()
    write_atomically(place / "file", b"after the lock")
