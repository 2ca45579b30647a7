"""Folders: what is found, in which order, and what links, hidden files and odd names do."""

import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from unicodedata import normalize

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sortal.errors import InputError
from sortal.folders import EXTENSIONS, find

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse or change such names")
not_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")


def plant(root: Path, *names: str) -> Path:
    """Empty files, made in the order given."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


@pytest.mark.parametrize("extension", sorted(EXTENSIONS))
def test_every_extension_in_any_case(tmp_path: Path, extension: str) -> None:
    names = [f"a{extension}", f"b{extension.upper()}", f"c{extension.title()}"]
    assert find(plant(tmp_path, *names)) == (names, [])


@pytest.mark.parametrize(
    "name", ["jpg", "x.jpg.txt", "x.jpgx", "x", "x.", "x.heic", "labels.csv", "x.jpg~", "x.jpg ", "x.svg", "Thumbs.db"]
)
def test_other_files(tmp_path: Path, name: str) -> None:
    assert find(plant(tmp_path, name, "z.jpg")) == (["z.jpg"], [name])


def test_the_last_extension_decides(tmp_path: Path) -> None:
    assert find(plant(tmp_path, "a.csv.png", "b.png.csv", "c. .jpg")) == (["a.csv.png", "c. .jpg"], ["b.png.csv"])


def test_nested_and_sorted_by_code_point(tmp_path: Path) -> None:
    plant(
        tmp_path, "b/z.png", "b/c/y.png", "a.png", "B.png", "b.png", "10.png", "9.png", "é.png", "b/notes.txt", "a.md"
    )
    assert find(tmp_path) == (
        ["10.png", "9.png", "B.png", "a.png", "b.png", "b/c/y.png", "b/z.png", "é.png"],
        ["a.md", "b/notes.txt"],
    )


def test_a_folder_named_like_an_image_is_a_folder(tmp_path: Path) -> None:
    assert find(plant(tmp_path, "cat.jpg/x.jpg")) == (["cat.jpg/x.jpg"], [])


def test_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "cat" / "kitten").mkdir(parents=True)
    assert find(tmp_path) == ([], [])


NAMES = ["a.jpg", "B.jpg", "a/a.jpg", "a/b/c.jpg", "a-b.jpg", "a0.jpg", "é.jpg", "z/x.txt", "日本.jpg"]


@given(st.permutations(NAMES))
@settings(max_examples=20, deadline=None)
def test_order_does_not_depend_on_creation(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert find(plant(Path(folder), *names)) == (
            ["B.jpg", "a-b.jpg", "a.jpg", "a/a.jpg", "a/b/c.jpg", "a0.jpg", "é.jpg", "日本.jpg"],
            ["z/x.txt"],
        )


def scan(monkeypatch: pytest.MonkeyPatch, *, reverse: bool) -> None:
    """Folders list their entries in one order or its reverse, as file systems may."""
    scandir = os.scandir

    def ordered(path: Path) -> Iterable[os.DirEntry[str]]:
        return sorted(scandir(path), key=lambda entry: entry.name, reverse=reverse)

    monkeypatch.setattr(os, "scandir", ordered)


@pytest.mark.parametrize("reverse", [False, True])
def test_order_does_not_depend_on_the_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reverse: bool
) -> None:
    plant(tmp_path, "a.jpg", "b.jpg", "c/d.jpg")
    scan(monkeypatch, reverse=reverse)
    assert find(tmp_path)[0] == ["a.jpg", "b.jpg", "c/d.jpg"]


@linux_only
def test_order_does_not_depend_on_how_accents_are_stored(tmp_path: Path) -> None:
    """The same images, copied through a Mac that decomposes names: a benchmark's split must not change."""
    names = ["cafe.jpg", "café.jpg", "caff.jpg", "z.jpg"]
    found = []
    for form in ("NFC", "NFD"):
        folder = tmp_path / form
        folder.mkdir()
        found.append(find(plant(folder, *(normalize(form, name) for name in names)))[0])
    assert [normalize("NFC", name) for name in found[1]] == found[0]
    assert found[1] != found[0]  # names stay as they are stored


@linux_only
@pytest.mark.parametrize("reverse", [False, True])
def test_both_forms_of_an_accent_are_two_files_in_one_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reverse: bool
) -> None:
    composed, decomposed = normalize("NFC", "é.jpg"), normalize("NFD", "é.jpg")
    plant(tmp_path, composed, decomposed)
    scan(monkeypatch, reverse=reverse)
    assert find(tmp_path)[0] == [decomposed, composed]  # e comes before é


# Hidden files


@pytest.mark.parametrize(
    "name",
    [".x.jpg", "._x.jpg", ".hidden/x.jpg", "cat/.x.jpg", "cat/.thumbs/a/x.jpg", "__MACOSX/cat/._x.jpg", ".DS_Store"],
)
def test_hidden_files_are_left_out(tmp_path: Path, name: str) -> None:
    assert find(plant(tmp_path, name, "cat/y.jpg")) == (["cat/y.jpg"], [])


def test_a_hidden_folder_may_be_named_outright(tmp_path: Path) -> None:
    plant(tmp_path, ".cache/x.jpg")
    assert find(tmp_path / ".cache") == (["x.jpg"], [])


# Symbolic links


def test_links_to_files_and_folders_outside_are_followed(tmp_path: Path) -> None:
    outside = plant(tmp_path / "outside", "x.jpg", "more/y.jpg", "more/notes.txt")
    root = plant(tmp_path / "root", "a.jpg")
    (root / "link.jpg").symlink_to(outside / "x.jpg")
    (root / "cat").symlink_to(outside / "more")
    assert find(root) == (["a.jpg", "cat/y.jpg", "link.jpg"], ["cat/notes.txt"])


def test_the_name_of_a_link_decides(tmp_path: Path) -> None:
    plant(tmp_path / "outside", "x", "y.jpg")
    root = plant(tmp_path / "root")
    root.mkdir()
    (root / "x.jpg").symlink_to(tmp_path / "outside" / "x")
    (root / "y").symlink_to(tmp_path / "outside" / "y.jpg")
    (root / ".z.jpg").symlink_to(tmp_path / "outside" / "y.jpg")
    assert find(root) == (["x.jpg"], ["y"])


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    plant(tmp_path / "root", "x.jpg")
    (tmp_path / "link").symlink_to("root")
    assert find(tmp_path / "link") == (["x.jpg"], [])


@pytest.mark.parametrize(
    "target", ["nothing", "nothing.jpg", "/no/such/x.jpg", "a.jpg/x.jpg", pytest.param("n" * 300, id="long")]
)
def test_a_broken_link_is_listed(tmp_path: Path, target: str) -> None:
    plant(tmp_path, "a.jpg")
    (tmp_path / "b.jpg").symlink_to(target)
    assert find(tmp_path) == (["a.jpg", "b.jpg"], [])


def test_a_link_to_itself_is_listed_as_broken(tmp_path: Path) -> None:
    plant(tmp_path, "a.jpg")
    (tmp_path / "b.jpg").symlink_to("b.jpg")
    (tmp_path / "c.jpg").symlink_to("d.jpg")
    (tmp_path / "d.jpg").symlink_to("c.jpg")
    assert find(tmp_path) == (["a.jpg", "b.jpg", "c.jpg", "d.jpg"], [])


@pytest.mark.parametrize("target", [".", "..", "../..", "../../../root"])
def test_links_to_a_folder_above_end(tmp_path: Path, target: str) -> None:
    root = plant(tmp_path / "root", "x.jpg", "cat/kitten/y.jpg")
    (root / "cat" / "kitten" / "loop").symlink_to(target)
    assert find(root) == (["cat/kitten/y.jpg", "x.jpg"], [])


def test_a_link_above_the_root_is_followed_once(tmp_path: Path) -> None:
    """It leads out of the folder and back into it, where it ends."""
    root = plant(tmp_path / "top" / "root", "x.jpg")
    plant(tmp_path / "top", "y.jpg")
    (root / "up").symlink_to("..")
    assert find(root) == (["up/y.jpg", "x.jpg"], [])


def test_folders_that_link_to_each_other_end(tmp_path: Path) -> None:
    plant(tmp_path, "a/x.jpg", "b/y.jpg")
    (tmp_path / "a" / "b").symlink_to("../b")
    (tmp_path / "b" / "a").symlink_to("../a")
    assert find(tmp_path)[0] == ["a/b/y.jpg", "a/x.jpg", "b/a/x.jpg", "b/y.jpg"]


def test_a_folder_linked_twice_is_found_under_both_names(tmp_path: Path) -> None:
    plant(tmp_path, "cat/x.jpg")
    (tmp_path / "lynx").symlink_to("cat")
    assert find(tmp_path)[0] == ["cat/x.jpg", "lynx/x.jpg"]


# Hostile names

HOSTILE = [
    "two words.jpg",
    " lead.jpg",
    "#1.jpg",
    "a&b;c.jpg",
    "50%.jpg",
    "é è.jpg",
    "חתול.jpg",
    "gpj.\u202etxt.jpg",
    "日本語.jpg",
    "😀.jpg",
    "<script>alert(1)<.jpg",
    "=HYPERLINK(1).jpg",
    "-rf.jpg",
    "a\nb.jpg",
    "a\rb.jpg",
    "a\tb.jpg",
    "back\\slash.jpg",
    "quote'\".jpg",
    "\u2028.jpg",
    "x" * 251 + ".jpg",
]


@linux_only
def test_hostile_names_are_kept(tmp_path: Path) -> None:
    assert set(find(plant(tmp_path, *HOSTILE))[0]) == set(HOSTILE)


@linux_only
def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9/\xff.JPG")
    assert find(plant(tmp_path, name, "a.jpg")) == (["a.jpg", name], [])
    assert (tmp_path / find(tmp_path)[0][1]).is_file()


@linux_only
def test_paths_longer_than_a_name(tmp_path: Path) -> None:
    name = "/".join(["d" * 200] * 8) + "/x.jpg"
    assert find(plant(tmp_path, name)) == ([name], [])


# Errors


@pytest.mark.parametrize("name", ["nothing", "nul\0", "é", "a.jpg/below"])
def test_a_missing_folder(tmp_path: Path, name: str) -> None:
    plant(tmp_path, "a.jpg")
    with pytest.raises(InputError, match=r"The image folder .* does not exist") as error:
        find(tmp_path / name)
    assert repr(str(tmp_path / name)) in str(error.value)


def test_a_folder_whose_name_is_too_long(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="The image folder"):
        find(tmp_path / ("x" * 300))


def test_a_link_to_itself_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InputError, match="The image folder"):
        find(tmp_path / "loop")


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    plant(tmp_path, "a.jpg")
    with pytest.raises(InputError, match=r"The image folder '.*a\.jpg' is a file, not a folder"):
        find(tmp_path / "a.jpg")


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, "cat/x.jpg", "dog/y.jpg")
    scandir = os.scandir

    def guarded(path: Path) -> Iterable[os.DirEntry[str]]:
        if Path(path).name == "dog":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)
    with pytest.raises(InputError, match=r"The folder '.*dog' cannot be read: Permission denied\."):
        find(tmp_path)


@not_root
def test_an_unreadable_folder_is_named(tmp_path: Path) -> None:
    plant(tmp_path, "cat/x.jpg", "dog/y.jpg")
    (tmp_path / "dog").chmod(0)
    try:
        with pytest.raises(InputError, match=r"The folder '.*dog' cannot be read: Permission denied\."):
            find(tmp_path)
    finally:
        (tmp_path / "dog").chmod(0o700)


@not_root
def test_a_link_into_an_unreadable_folder_is_listed(tmp_path: Path) -> None:
    plant(tmp_path, "locked/x.jpg", "root/a.jpg")
    (tmp_path / "root" / "b.jpg").symlink_to("../locked/x.jpg")
    (tmp_path / "locked").chmod(0)
    try:
        assert find(tmp_path / "root") == (["a.jpg", "b.jpg"], [])
    finally:
        (tmp_path / "locked").chmod(0o700)


@not_root
def test_a_folder_below_an_unreadable_one(tmp_path: Path) -> None:
    plant(tmp_path, "locked/root/a.jpg")
    (tmp_path / "locked").chmod(0)
    try:
        with pytest.raises(InputError, match="The image folder"):
            find(tmp_path / "locked" / "root")
    finally:
        (tmp_path / "locked").chmod(0o700)


def test_twenty_thousand_files(tmp_path: Path) -> None:
    for folder in range(20):
        (tmp_path / f"{folder:02}").mkdir()
    names = [f"{i % 20:02}/{i:05}.jpg" for i in range(20_000)]
    for name in names:
        os.close(os.open(tmp_path / name, os.O_CREAT | os.O_WRONLY))
    assert find(tmp_path) == (sorted(names), [])
