import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sortal.errors import InputError
from sortal.system.files import lock_folder


def test_a_folder_is_locked_by_one_process_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "run"
    with lock_folder(folder):
        with pytest.raises(InputError, match=r"Another process is using .*run"), lock_folder(folder):
            pytest.fail("two hold the lock")
        with lock_folder(tmp_path / "b"), lock_folder(None):
            assert folder.is_dir()
    with lock_folder(folder):
        pass


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
