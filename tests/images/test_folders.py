"""Folders: which files are found, in which order, with links, hidden files and odd names."""

import inspect
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from unicodedata import normalize

import pytest
from support.layouts import plant

from sortal.errors import InputError
from sortal.images import folders
from sortal.images.folders import EXTENSIONS, find

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse or change such names")
not_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")


def test_images_have_a_known_last_extension_in_any_case(tmp_path: Path) -> None:
    assert {".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp", ".gif"} <= EXTENSIONS
    images = sorted(f"{i}{form}" for i, e in enumerate(sorted(EXTENSIONS)) for form in (e, e.upper(), e.title()))
    images += ["a.csv.png", "b. .jpg"]
    others = ["Thumbs.db", "jpg", "x", "x.", "x.avif", "x.jpg ", "x.jpg.txt", "x.jpgx", "x.jpg~", "x.png.csv"]
    assert find(plant(tmp_path, *images, *others)) == (images, others)


def test_heic_is_an_image_where_it_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, "a.HEIC", "b.jpg", "c.avif")
    for reads, images in ((False, ["b.jpg"]), (True, ["a.HEIC", "b.jpg"])):
        monkeypatch.setattr(folders, "reads_heif", lambda reads=reads: reads)
        assert find(tmp_path)[0] == images
    (raw,) = folders.unread_pictures(["c.avif", "d.nef", "e.txt", "f"])
    assert raw.startswith("2 pictures are ignored, in a format that is not read here (.avif, .nef): 'c.avif', 'd.nef'.")
    assert folders.unread_pictures(["e.txt"]) == []


def scan(monkeypatch: pytest.MonkeyPatch, *, reverse: bool) -> None:
    """List folders in ascending or descending order, as file systems may."""
    scandir = os.scandir

    def ordered(path: Path) -> Iterable[os.DirEntry[str]]:
        return sorted(scandir(path), key=lambda entry: entry.name, reverse=reverse)

    monkeypatch.setattr(os, "scandir", ordered)


@linux_only
@pytest.mark.parametrize("reverse", [False, True])
def test_nested_files_are_sorted_by_code_point_on_any_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reverse: bool
) -> None:
    """The two forms of an accent are two files; a folder named like an image is a folder; folders may be empty."""
    composed, decomposed = normalize("NFC", "é.png"), normalize("NFD", "é.png")
    images = ["10.png", "9.png", "B.png", "a.png", "b-c.png", "b.png", "b/c/y.png", "b/z.png", "b0.png", "c.jpg/x.jpg"]
    plant(tmp_path, composed, decomposed, "b/notes.txt", "a.md", *reversed(images))
    (tmp_path / "cat" / "kitten").mkdir(parents=True)
    scan(monkeypatch, reverse=reverse)
    assert find(tmp_path) == ([*images, decomposed, composed], ["a.md", "b/notes.txt"])


@linux_only
def test_order_does_not_depend_on_how_accents_are_stored(tmp_path: Path) -> None:
    """A copy through a Mac, which decomposes names, must not change the split of a benchmark."""
    names = ["cafe.jpg", "café.jpg", "caff.jpg", "z.jpg"]
    found = [find(plant(tmp_path / form, *(normalize(form, name) for name in names)))[0] for form in ("NFC", "NFD")]
    assert [normalize("NFC", name) for name in found[1]] == found[0]
    assert found[1] != found[0]  # names are not normalised


def test_hidden_files_are_ignored(tmp_path: Path) -> None:
    plant(tmp_path, ".x.jpg", "._x.jpg", ".hidden/x.jpg", "cat/.thumbs/a/x.jpg", "__MACOSX/cat/._x.jpg", ".DS_Store")
    assert find(plant(tmp_path, "cat/y.jpg")) == (["cat/y.jpg"], [])
    assert find(tmp_path / ".hidden") == (["x.jpg"], [])  # a hidden folder may be given explicitly


@linux_only
def test_hostile_names_are_found_unchanged(tmp_path: Path) -> None:
    names = ["two words.jpg", " lead.jpg", "#1.jpg", "50%.jpg", "חתול.jpg", "gpj.\u202etxt.jpg", "😀.jpg", "-rf.jpg"]
    names += ["a\nb.jpg", "a\rb.jpg", "back\\slash.jpg", "quote'\".jpg", "\u2028.jpg", "x" * 251 + ".jpg"]
    names += [os.fsdecode(b"caf\xe9/\xff.JPG"), "/".join(["d" * 200] * 8) + "/x.jpg"]
    found, others = find(plant(tmp_path, *names))
    assert (set(found), others) == (set(names), [])
    assert all((tmp_path / name).is_file() for name in found)


def test_links_are_followed_under_their_own_names(tmp_path: Path) -> None:
    outside = plant(tmp_path / "outside", "x", "y.jpg", "more/y.jpg", "more/notes.txt")
    root = plant(tmp_path / "root", "a.jpg")
    for name, target in (("x.jpg", "x"), ("y", "y.jpg"), (".z.jpg", "y.jpg"), ("cat", "more"), ("lynx", "more")):
        (root / name).symlink_to(outside / target)
    (tmp_path / "link").symlink_to("root")
    for folder in (root, tmp_path / "link"):
        images = ["a.jpg", "cat/y.jpg", "lynx/y.jpg", "x.jpg"]
        assert find(folder) == (images, ["cat/notes.txt", "lynx/notes.txt", "y"])


@pytest.mark.parametrize(
    "target", ["nothing.jpg", "a.jpg/x.jpg", "b.jpg", pytest.param("n" * 300, id="long")]
)  # the third points to itself
def test_a_broken_link_is_listed(tmp_path: Path, target: str) -> None:
    plant(tmp_path, "a.jpg")
    (tmp_path / "b.jpg").symlink_to(target)
    assert find(tmp_path) == (["a.jpg", "b.jpg"], [])


@pytest.mark.parametrize("target", [".", "..", "../..", "../../../root"])
def test_links_to_a_parent_folder_do_not_loop(tmp_path: Path, target: str) -> None:
    root = plant(tmp_path / "root", "x.jpg", "cat/kitten/y.jpg")
    (root / "cat" / "kitten" / "loop").symlink_to(target)
    assert find(root) == (["cat/kitten/y.jpg", "x.jpg"], [])


def test_a_link_above_the_root_and_folders_that_link_to_each_other_are_followed_once(tmp_path: Path) -> None:
    root = plant(tmp_path / "top", "root/x.jpg", "y.jpg") / "root"
    (root / "up").symlink_to("..")
    assert find(root) == (["up/y.jpg", "x.jpg"], [])
    shutil.rmtree(tmp_path / "top")
    plant(tmp_path, "a/x.jpg", "b/y.jpg")
    (tmp_path / "a" / "b").symlink_to("../b")
    (tmp_path / "b" / "a").symlink_to("../a")
    assert find(tmp_path)[0] == ["a/b/y.jpg", "a/x.jpg", "b/a/x.jpg", "b/y.jpg"]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("nothing", "does not exist"),
        ("nul\0", "does not exist"),
        ("loop", "does not exist"),
        pytest.param("x" * 300, "does not exist", id="long"),
        ("a.jpg", "is a file, not a folder"),
        ("a.jpg/below", "does not exist"),
    ],
)
def test_a_missing_folder_or_a_file_is_refused(tmp_path: Path, name: str, what: str) -> None:
    plant(tmp_path, "a.jpg")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InputError, match=f"The image folder .* {what}") as error:
        find(tmp_path / name)
    assert repr(str(tmp_path / name)) in str(error.value)


def test_a_folder_that_cannot_be_listed_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_locked_folder_is_reported_and_a_link_into_it_is_listed(tmp_path: Path) -> None:
    plant(tmp_path, "locked/x.jpg", "locked/root/a.jpg", "root/a.jpg")
    (tmp_path / "root" / "b.jpg").symlink_to("../locked/x.jpg")
    (tmp_path / "locked").chmod(0)
    try:
        assert find(tmp_path / "root") == (["a.jpg", "b.jpg"], [])
        with pytest.raises(InputError, match=r"The folder '.*locked' cannot be read: Permission denied\."):
            find(tmp_path)
        with pytest.raises(InputError, match="The image folder"):
            find(tmp_path / "locked" / "root")
    finally:
        (tmp_path / "locked").chmod(0o700)


def test_folders_may_be_nested_deeper_than_functions(tmp_path: Path) -> None:
    plant(tmp_path, "a/" * 100 + "x.png")
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 50)
    try:
        found = find(tmp_path)
    finally:
        sys.setrecursionlimit(limit)
    assert found == (["a/" * 100 + "x.png"], [])
