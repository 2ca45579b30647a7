"""Folders that can be chosen: nothing outside, nothing hidden, no links."""

import os
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from sortal.errors import InputError
from sortal.images.exported import EXPORT_MARKER
from sortal.system.files import lock_folder
from sortal.web.start import home as home_module
from sortal.web.start.home import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home with images, a run, hidden folders and links, and something beside it that nobody may see."""
    top, outside = tmp_path / "home", tmp_path / "outside"
    for folder in ("photos/ash", "photos/Birch 10", "photos/birch 9", "photos-run", ".ssh/keys", "photos/.cache"):
        (top / folder).mkdir(parents=True)
    (outside / "secret").mkdir(parents=True)
    (outside / "secret.csv").write_text("file_name,label\n")
    for file in ("photos/a.JPG", "photos/b.png", "photos/labels.csv", "photos/notes.txt", "photos-run/run.json"):
        (top / file).write_text("")
    (top / "away").symlink_to(outside)
    (top / "photos" / "inside").symlink_to(top / "photos" / "ash")
    (top / "photos" / "table.csv").symlink_to(outside / "secret.csv")
    return Home(top)


def test_folders_tables_and_images_are_listed_as_people_sort_them(home: Home) -> None:
    assert home.listing("") == {
        "at": "",
        "name": "home",
        "folders": [
            {"name": "photos", "is_run": False, "is_export": False, "is_busy": False},
            {"name": "photos-run", "is_run": True, "is_export": False, "is_busy": False},
        ],
        "tables": [],
        "weights": [],
        "images": 0,
        "more": False,
        "is_run": False,
    }
    found = home.listing("photos")
    assert [each["name"] for each in found["folders"]] == ["ash", "birch 9", "Birch 10"]
    assert (found["images"], found["tables"]) == (2, ["photos/labels.csv"])
    assert home.listing("photos-run")["is_run"]
    (home.top / "photos" / "ash" / EXPORT_MARKER).write_text("{}")
    assert [each["is_export"] for each in home.listing("photos")["folders"]] == [True, False, False]
    with lock_folder(home.top / "next-run"):
        assert home.listing("")["folders"][0] == {
            "name": "next-run",
            "is_run": False,
            "is_export": False,
            "is_busy": sys.platform != "win32",
        }
    assert not home.listing("")["folders"][0]["is_busy"]
    assert home.path("photos/ash") == home.top / "photos" / "ash"


@pytest.mark.parametrize(
    "at",
    [
        *("..", "../outside", "photos/../../outside", "photos/..", ".", "photos/."),
        *("/", "/etc", "photos//ash", "photos/", "//photos", "..\\outside"),
        *(".ssh", ".ssh/keys", "photos/.cache"),
        *("away", "away/secret", "photos/inside"),
        *("photos/a.JPG", "missing", "photos/\0", "photos/\ud800", "photos/\udcff", "a" * 300, "photos/\n"),
    ],
)
def test_nothing_else_is_a_folder(home: Home, at: str) -> None:
    for ask in (home.listing, home.path, lambda at: home.new(f"{at}/x", "y")):
        with pytest.raises(InputError):
            ask(at)


def test_a_table_is_a_file_below_the_home(home: Home) -> None:
    assert home.file("photos/labels.csv", "tables") == home.top / "photos" / "labels.csv"
    for at in ("photos/table.csv", "photos/notes.txt", "photos/ash", "../outside/secret.csv", "photos/no.csv", ""):
        with pytest.raises(InputError):
            home.file(at, "tables")
    with pytest.raises(InputError):
        home.file("photos/labels.csv", "weights")


def test_what_is_written_goes_beside_the_folder(home: Home) -> None:
    assert home.new("photos", "photos-run") == home.top / "photos-run"
    assert home.new("photos/ash", "ash") == home.top / "photos" / "ash"
    for name in ("../x", "x/y", "", ".hidden", "..", "a\\b"):
        with pytest.raises(InputError):
            home.new("photos", name)
    with pytest.raises(InputError):
        home.new("", "x")
    assert home.inside("", "digits") == home.top / "digits"
    with pytest.raises(InputError, match="is a link to elsewhere"):
        home.new("photos", "away")
    with pytest.raises(InputError, match="is a link to elsewhere"):
        home.inside("photos", "inside")


def test_a_folder_with_too_much_in_it_is_listed_in_part(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not home.listing("photos")["more"]
    monkeypatch.setattr(home_module, "MOST_FOLDERS", 2)
    found = home.listing("photos")
    assert (len(found["folders"]), found["more"]) == (2, True)
    monkeypatch.setattr(home_module, "MOST_ENTRIES", 3)
    found = home.listing("photos")
    assert found["more"]
    assert found["images"] + len(found["folders"]) + len(found["tables"]) <= 3


def test_a_folder_without_access_is_an_error_in_words(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "scandir", Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(InputError, match=r"The folder 'photos/ash' cannot be read: Permission denied\."):
        home.listing("photos/ash")
