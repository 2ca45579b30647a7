"""Folders of runs: no link is followed among their files and in their cache, and nothing there blocks a reader."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sortal.errors import InputError
from sortal.system import cache
from sortal.system.files import write_atomically
from sortal.system.mapped_arrays import scratch
from sortal.system.open_folder import make_folder, open_folder, own_folder, run_around
from sortal.system.regular_files import open_regular, read_regular, regular
from sortal.system.temporary import temporary_folder

Use = Callable[[Path], object]


def append(path: Path) -> None:
    with open(path, "ab", opener=regular) as file:
        file.write(b"more")


def make_temporary(path: Path) -> None:
    with temporary_folder(path):
        pass


FILE_USES: tuple[Use, ...] = (open_regular, append, lambda path: write_atomically(path, b"new"))
FOLDER_USES: tuple[Use, ...] = (
    make_folder,
    make_temporary,
    lambda path: scratch((2**27, 1), path),
    lambda path: cache.save(path / "a.json", 1),
    *(lambda path, use=use: use(path / "file.json") for use in FILE_USES),
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return the folder of a run, beside a folder that must stay as it is."""
    (tmp_path / "victim" / "inner").mkdir(parents=True)
    (tmp_path / "victim" / "file.json").write_text("secret")
    (tmp_path / "run" / "cache" / "k").mkdir(parents=True)
    return own_folder(tmp_path / "run")


def left_alone(victim: Path) -> bool:
    names = sorted(os.listdir(victim)), os.listdir(victim / "inner")
    return names == (["file.json", "inner"], []) and (victim / "file.json").read_text() == "secret"


@pytest.mark.parametrize("name", ["cache", "cache/k", "cache/k/deeper", ".sortal-next", "figures"])
def test_a_link_in_the_place_of_a_folder_of_a_run_leads_nowhere(run: Path, name: str) -> None:
    victim, link = run.parent / "victim", run / name
    if link.exists():
        link.rename(run / "former")
    link.symlink_to(victim)
    for use in FOLDER_USES:
        for place in (link, link / "inner"):
            with pytest.raises(InputError, match=rf"{link.name}' is a link to '.*victim', but Sortal keeps only"):
                use(place)
    assert left_alone(victim)


@pytest.mark.parametrize("folder", ["", "cache", "cache/k"])
def test_a_link_in_the_place_of_a_file_of_a_run_leads_nowhere(run: Path, folder: str) -> None:
    victim, path = run.parent / "victim", run / folder / "file.json"
    path.symlink_to(victim / "file.json")
    for use in FILE_USES:
        with pytest.raises(InputError, match=r"file\.json' is a link to '.*victim/file\.json', but"):
            use(path)
    path.unlink()
    path.symlink_to(victim / "new")
    for use in FILE_USES:
        with pytest.raises(InputError, match=r"file\.json' is a link to"):
            use(path)
    assert left_alone(victim)


def test_a_pipe_a_folder_and_a_file_are_refused_where_they_do_not_belong(run: Path) -> None:
    os.mkfifo(run / "pipe.json")
    (run / "folder.json").mkdir()
    for name, what in (("pipe.json", "a pipe"), ("folder.json", "a folder")):
        for use in FILE_USES:
            with pytest.raises(InputError, match=rf"{name}' is {what}, but"):
                use(run / name)
    (run / "cache" / "file").touch()
    for use in FOLDER_USES:
        with pytest.raises(InputError, match=r"cache/file' is a file in the place of a folder"):
            use(run / "cache" / "file")


def test_links_that_people_made_are_followed(run: Path) -> None:
    """To the folder of a run, around it, and to files that are not those of a run."""
    around = run.parent / "around"
    around.symlink_to(run.parent)
    (run.parent / "link").symlink_to("run")
    (run / "photos").symlink_to(run.parent / "victim")
    for place in (own_folder(around / "run"), own_folder(run.parent / "link")):
        write_atomically(place / "cache" / "k" / "file.json", b"mine")
        assert read_regular(place / "cache" / "k" / "file.json") == b"mine"
        assert read_regular(place / "photos" / "file.json") == b"secret"


def test_a_folder_belongs_to_a_run_by_its_name_there(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = own_folder(run / "photos" / "cache")  # another run, wherever it is
    expected = {
        run: (run, ()),
        run / "cache" / "k": (run, ("cache", "k")),
        run / "figures": (run, ("figures",)),
        run / "photos": None,
        run.parent: None,
        run.parent / "runs" / "cache": None,
        inner: (inner, ()),
        inner / "cache": (inner, ("cache",)),
    }
    for folder, wanted in expected.items():
        assert run_around(folder) == (None if wanted is None else (str(wanted[0]), wanted[1])), folder
    monkeypatch.chdir(run)
    assert run_around("cache") == (str(run), ("cache",))


def test_folders_are_closed_whatever_happens(run: Path) -> None:
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("open files are not listed here")
    (run / "cache" / "k" / "link").symlink_to("..")
    before = len(os.listdir("/proc/self/fd"))
    for place in (run / "cache" / "k", run / "cache" / "k" / "link", run / "cache" / "gone"):
        try:
            with open_folder(place):
                pass
        except (InputError, FileNotFoundError):
            pass
    assert len(os.listdir("/proc/self/fd")) == before
