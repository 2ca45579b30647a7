"""The process of the command line: what it imports, wherever it is started."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import hostile_folder, tiny_folder
from support.thorough import thorough_but

SECONDS = 300


def sortal(cwd: Path, *words: str | Path, python: tuple[str, ...] = ("-m", "sortal"), path: str | None = None) -> str:
    """Run the command line in a folder, and return what it printed."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    if path is not None:
        env["PYTHONPATH"] = path
    done = subprocess.run(
        [sys.executable, *python, *map(str, words)],
        cwd=cwd, env=env, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def images(tmp_path: Path) -> Path:
    tiny_folder.write(tmp_path / "images", {"a/1.png": "ash 1", "b/2.png": "oak 2"})
    return tmp_path / "images"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    return hostile_folder.write(tmp_path / "hostile", but=hostile_folder.before_us())


def test_a_module_imports_nothing_from_the_current_folder(hostile: Path, images: Path) -> None:
    assert "images" in sortal(hostile, "check", images, "--workers", "1")
    assert not hostile_folder.taken(hostile)


def test_the_command_imports_nothing_from_the_current_folder_whatever_is_in_it(tmp_path: Path, images: Path) -> None:
    hostile = hostile_folder.write(tmp_path / "hostile")
    (place := tmp_path / "bin").mkdir()
    sortal(hostile, "check", images, "--workers", "1", python=(hostile_folder.command(place)[1],))
    assert not hostile_folder.taken(hostile)


@pytest.mark.parametrize(
    "path", thorough_but([os.pathsep], [os.pathsep, f"{os.pathsep}/nonexistent", f"/nonexistent{os.pathsep}"])
)
def test_an_empty_entry_of_pythonpath_is_not_the_current_folder(hostile: Path, images: Path, path: str) -> None:
    """Such entries come from `PYTHONPATH=$PYTHONPATH:…` where it was not set."""
    sortal(hostile, python=("-c", ""), path=path)
    at_start = hostile_folder.taken(hostile)  # by Python itself: sitecustomize, and what installed packages start with
    sortal(hostile, "check", images, "--workers", "1", path=path)
    assert hostile_folder.taken(hostile) == at_start


@pytest.mark.parametrize("entry", thorough_but(["."], [".", "{here}", "{here}/sub"]))
def test_modules_on_pythonpath_are_found(tmp_path: Path, images: Path, entry: str) -> None:
    """Whoever names a folder means it: here with a module that Python imports if it exists."""
    path = entry.format(here=tmp_path)
    place = tmp_path / path
    place.mkdir(exist_ok=True)
    (place / "shapely.py").write_text("")
    code = "import sys; from sortal.__main__ import _leave_current_folder; _leave_current_folder(); import shapely"
    sortal(tmp_path, "check", images, "--workers", "1", path=path)
    sortal(tmp_path, python=("-c", code), path=f"{os.pathsep}{path}")
