"""Names in files that people share: as little as tells folders apart, and no absolute paths."""

from __future__ import annotations

from sortal.exchange.naming import folder_names, shared_command
from sortal.runs.facts import ImageSource


def test_folders_are_named_by_as_little_as_tells_them_apart() -> None:
    def named(*folders: str | None) -> list[str]:
        return folder_names([ImageSource(folder=each, images=1, paths={}) for each in folders])

    assert named("/home/ann/photos") == ["photos"]
    assert named("/home/ann/photos", "/data/more/") == ["photos", "more"]
    assert named("/home/ann/photos", "/data/photos") == ["ann/photos", "data/photos"]
    assert named("/a/photos", "/a/photos", "/b") == ["photos", "photos", "b"]
    assert named(None, "/a") == ["", "a"]


def test_commands_keep_the_last_parts_of_absolute_paths() -> None:
    line = "sortal discover /home/ann/photos '/x/my labels' --out runs/a --k 3"
    assert shared_command(f"{line}\nsortal predict runs/a more") == (
        "sortal discover photos 'my labels' --out runs/a --k 3\nsortal predict runs/a more"
    )
    assert shared_command("discover(...) with 'the settings") == "discover(...) with 'the settings"
