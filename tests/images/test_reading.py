"""Reading images from folders, tables and lists; errors give the first offenders and their count."""

import json
import os
import sys
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pandas as pd
import pytest
from support.layouts import plant

from sortal.errors import InputError
from sortal.images.image_set import ImageSet
from sortal.images.reading import read_images

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse or change such names")
NFC, NFD = normalize("NFC", "é"), normalize("NFD", "é")
NO_LABELS = "At least one image must be labelled; none of {} is"


def put(path: Path, *rows: str, header: str = "file_name,label") -> Path:
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def labels_of(images: ImageSet) -> dict[str, str | None]:
    """Map each file to the name of its label."""
    names = (*images.classes, None)
    return {file: names[number] for file, number in zip(images.files, images.labels, strict=True)}


def truth_of(images: ImageSet) -> dict[str, str | None]:
    names = (*images.classes, *images.new_classes, None)
    return {file: names[number] for file, number in zip(images.files, images.truth, strict=True)}


def refused(pattern: str, source: Any, **options: Any) -> str:
    with pytest.raises(InputError, match=pattern) as error:
        read_images(source, **options)
    return str(error.value)


# A folder of folders


@pytest.mark.parametrize("kind", [str, Path])
def test_folders_are_classes(tmp_path: Path, kind: Any) -> None:
    plant(tmp_path, "dog/2.jpg", "dog/1.JPG", "cat/a/b/3.png", "unlabelled/x/4.jpg", "5.jpg", "notes.txt", "cat/.z.jpg")
    plant(tmp_path, "owl/.hidden.jpg", "__MACOSX/cat/._1.jpg")
    (tmp_path / "fox").mkdir()
    images = read_images(kind(tmp_path))
    assert images.files == ("5.jpg", "cat/a/b/3.png", "dog/1.JPG", "dog/2.jpg", "unlabelled/x/4.jpg")
    assert images.paths == tuple(os.path.join(tmp_path, file) for file in images.files)
    assert images.classes == ("cat", "dog")
    assert images.labels.tolist() == [-1, 0, 1, 1, -1]
    assert images.truth.tolist() == [-1, 0, 1, 1, -1]
    assert images.new_classes == ()
    assert not images.validation.any()
    assert images.ignored == ("notes.txt",)


def test_a_relative_folder_gives_paths_that_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path / "here" / "root", "cat/1.jpg")
    monkeypatch.chdir(tmp_path / "here")
    images = read_images("../here/root/")
    assert images.files == ("cat/1.jpg",)
    assert os.path.samefile(images.paths[0], tmp_path / "here" / "root" / "cat" / "1.jpg")
    assert not os.path.isabs(images.paths[0])


def test_the_unlabelled_folder_can_be_chosen(tmp_path: Path) -> None:
    """By default only explicit names mean no label; spaces around a name are part of it."""
    unlabelled = {"unlabelled/1.jpg", "UNLABELED/2.jpg"}
    classes = {"cat/unlabelled/4.jpg": "cat", "nan/5.jpg": "nan", " oak/7.jpg": " oak", "-1/3.jpg": None}
    plant(tmp_path, *unlabelled, *classes)
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")

    def found(**options: Any) -> dict[str, str | None]:
        return labels_of(read_images(tmp_path, placeholders="classes", **options))

    assert found() == {**dict.fromkeys(unlabelled), **classes}
    classes |= {"unlabelled/1.jpg": "unlabelled", "UNLABELED/2.jpg": "UNLABELED"}
    for name in ("cat", "cat/"):
        assert found(unlabelled=name) == {**classes, "cat/unlabelled/4.jpg": None}
    assert found(unlabelled="empty") == classes


def test_the_chosen_unlabelled_folder_must_be_next_to_the_classes(tmp_path: Path) -> None:
    """Otherwise no image would be unlabelled, silently."""
    plant(tmp_path, "a/b/1.jpg", "b/1.jpg", "c/1.jpg", "d/1.jpg", "e.jpg")
    for name in ("rest", "e.jpg", "..", "./a", "a/b", "x" * 300, "nul\0"):
        message = refused("must be in .*; found: 'a', 'b', 'c' and 1 more", tmp_path, unlabelled=name)
        assert repr(str(tmp_path)) in message
        assert repr(name) in message


@linux_only
def test_both_forms_of_an_accent_in_a_folder_name_are_one_class(tmp_path: Path) -> None:
    files = {f"{NFC}/1.jpg", f"{NFD}/2.jpg", f"{NFD}/{NFD}.jpg"}
    images = read_images(plant(tmp_path, *files, "cat/1.jpg"))
    assert images.classes == ("cat", NFC)
    assert set(images.files) == {*files, "cat/1.jpg"}  # as stored
    assert all(os.path.exists(path) for path in images.paths)
    for asked in (NFC, NFD):
        assert labels_of(read_images(tmp_path, unlabelled=asked)) == {**dict.fromkeys(files), "cat/1.jpg": "cat"}


HOSTILE = ["#1", "50%", "חתול", "\u202etxt", "<script>", "=HYPERLINK(1)", "two\nlines", "a\\b", "-rf", "x" * 255]
HOSTILE.append(os.fsdecode(b"caf\xe9"))


@linux_only
def test_hostile_names_are_read_unchanged(tmp_path: Path) -> None:
    images = read_images(plant(tmp_path / "folders", *(f"{name}/1.jpg" for name in HOSTILE)))
    assert labels_of(images) == {f"{name}/1.jpg": name for name in HOSTILE}
    assert all(os.path.exists(path) for path in images.paths)
    root = plant(tmp_path / "root", *(f"{name[:200]}.jpg" for name in HOSTILE))
    lines = [json.dumps({"file_name": f"{name[:200]}.jpg", "label": f"../../{name}/<b>"}) for name in HOSTILE]
    (tmp_path / "t.jsonl").write_text("\n".join(lines), encoding="utf-8")
    listed = read_images(root, labels=tmp_path / "t.jsonl")
    assert labels_of(listed) == {f"{name[:200]}.jpg": f"../../{name}/<b>" for name in HOSTILE}
    assert all(os.path.exists(path) for path in listed.paths)
    assert read_images(listed.paths, labels=["a"] * len(HOSTILE)).files == listed.paths


def test_a_missing_folder_or_one_without_images_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sortal.images.folders.reads_heif", lambda: False)
    message = refused(r"must contain at least one image \(\.bmp, .*\.webp\), got none\.", tmp_path)
    assert repr(str(tmp_path)) in message
    plant(tmp_path, "cat/1.heic", "cat/2.txt", "readme.md")
    refused("got none, only 'cat/1.heic', 'cat/2.txt', 'readme.md'", tmp_path, need_labels=False)
    (tmp_path / "root").mkdir()
    table = put(tmp_path / "t.csv")
    for unlisted in ("error", "ignore"):
        refused("must contain at least one image", tmp_path / "root", labels=table, unlisted=unlisted)
    for labels in (None, table):
        refused(r"The image folder '.*nothing' does not exist", tmp_path / "nothing", labels=labels)
        refused(r"The image folder '.*readme\.md' is a file", tmp_path / "readme.md", labels=labels)
    refused("The image folder must not be empty, got ''", "")


def test_a_folder_without_labels_is_refused_unless_allowed(tmp_path: Path) -> None:
    plant(tmp_path, "1.jpg", "2.jpg", "unlabelled/3.jpg", "unlabelled/x.csv")
    refused(f"{NO_LABELS.format(3)}. Put the images of a class into", tmp_path)
    images = read_images(tmp_path, need_labels=False)
    assert labels_of(images) == {"1.jpg": None, "2.jpg": None, "unlabelled/3.jpg": None}
    assert images.classes == ()
    plant(tmp_path, "notes.txt", "metadata.csv", "labels.JSONL", "cat/5/4.jpg")
    images = read_images(tmp_path, folders="ignore", need_labels=False)
    assert labels_of(images) == dict.fromkeys(["1.jpg", "2.jpg", "cat/5/4.jpg", "unlabelled/3.jpg"])
    refused("Pass a table of labels; the folder contains 'labels.JSONL', 'metadata.csv'", tmp_path, folders="ignore")


def test_labels_and_truth_of_a_folder_must_come_from_a_table(tmp_path: Path) -> None:
    plant(tmp_path, "cat/1.jpg")
    refused("labels must be the path of a table .* got list", tmp_path, labels=["cat"])
    for table in (None, put(tmp_path / "t.csv", "cat/1.jpg,cat")):
        refused("truth requires a list", tmp_path, labels=table, truth=["cat"])


def test_an_option_must_be_one_of_its_choices(tmp_path: Path) -> None:
    """A typo must not drop images."""
    plant(tmp_path, "1.jpg", "2.jpg")
    table = put(tmp_path / "t.csv", "1.jpg,cat,5", "2.jpg,dog,6", header="file_name,label,size")
    for option, value in (("unlisted", "unlabeled"), ("extra_columns", "ignored"), ("folders", "none")):
        refused(f"{option} must be .*, got {value!r}", tmp_path, labels=table, **{option: value})
    refused("got 1 more: 'size'", tmp_path, labels=table, extra_columns="error")
    [size] = read_images(tmp_path, labels=table).columns.each
    assert (size.name, size.cells) == ("size", ("5", "6"))
    assert labels_of(read_images(tmp_path, labels=table, extra_columns="ignore")) == {"1.jpg": "cat", "2.jpg": "dog"}


# A folder and a table


def test_a_table_overrides_the_folders(tmp_path: Path) -> None:
    plant(tmp_path, "a/1.jpg", "b/c/2.PNG", "3.jpg", "4.heic", "5", "notes.txt", "a/t.csv")
    (tmp_path / "broken").symlink_to("nowhere")
    table = put(tmp_path / "labels.csv", "3.jpg, dog ", "b/c/2.PNG,", "a/1.jpg,cat", "4.heic,cat", "5, -1 ")
    images = read_images(tmp_path, labels=str(table))
    assert images.files == ("3.jpg", "b/c/2.PNG", "a/1.jpg", "4.heic", "5")  # in the order of the table
    assert images.paths == tuple(os.path.join(tmp_path, file) for file in images.files)
    assert images.labels.tolist() == [1, -1, 0, 0, -1]
    assert images.classes == ("cat", "dog")
    assert images.ignored == ("a/t.csv", "broken", "notes.txt")  # the table itself is read, not ignored


def test_a_table_may_contain_the_truth(tmp_path: Path) -> None:
    root, table = plant(tmp_path / "root", "1.jpg", "2.jpg", "3.jpg", "4.jpg", "5.jpg"), tmp_path / "t.csv"
    put(table, "1.jpg,10,", "2.jpg,9,9", f"3.jpg,{NFC},{NFD}", "4.jpg,,fox", header="file_name,label,truth")
    images = read_images(root, labels=table, unlisted="unlabelled")
    assert (images.classes, images.labels.tolist()) == (("10", "9", NFC), [0, 1, 2, -1, -1])
    assert truth_of(images) == {"1.jpg": "10", "2.jpg": "9", "3.jpg": NFC, "4.jpg": "fox", "5.jpg": None}
    put(table, "1.jpg,cat,dog", "2.jpg,cat,cat", header="file_name,label,truth")
    refused("must be its label, unlike in 1 image: '1.jpg'", root, labels=table, unlisted="ignore")


def test_a_path_may_be_spelled_differently(tmp_path: Path) -> None:
    root = plant(tmp_path / "root", "a/1.jpg")
    names = ("./a/1.jpg", "a//1.jpg", "b/../a/1.jpg", ".\\a\\1.jpg", f"{root}/a/1.jpg", f"{tmp_path}/x/../root/a/1.jpg")
    for name in names:
        images = read_images(root, labels=put(tmp_path / "t.csv", f"{name},cat"))
        assert images.files == (name,)  # as in the table
        assert os.path.samefile(images.paths[0], root / "a" / "1.jpg")


def test_absolute_paths_match_any_spelling_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a link such as /tmp on a Mac, the table and the user may use different spellings."""
    plant(tmp_path, "root/a/b/1.jpg", "x/y")
    (tmp_path / "link").symlink_to("root")
    monkeypatch.chdir(tmp_path)
    for folder, written in (("link", "root"), ("root", "link"), ("x/../root", "link")):
        table = put(tmp_path / "t.csv", f"{tmp_path / written}/a/b/1.jpg,cat")
        assert list(labels_of(read_images(folder, labels=table)).values()) == ["cat"]


@pytest.mark.parametrize("path", ["/a\0b.jpg", "/\ud800.jpg"])
def test_a_path_that_no_file_can_have_leads_nowhere(tmp_path: Path, path: str) -> None:
    """The names count then, as in any other table."""
    root, table = plant(tmp_path / "root", "1.jpg"), tmp_path / "t.jsonl"
    exported = {"category": "cat", "category_id": 0, "status": "labelled", "reviewed": "no", "label": "cat"}
    table.write_text(json.dumps({"file_name": "1.jpg", "path": path, **exported}))
    assert labels_of(read_images(root, labels=table)) == {"1.jpg": "cat"}


@linux_only
@pytest.mark.parametrize(("stored", "written"), [(NFC, NFD), (NFD, NFC)])
def test_both_forms_of_an_accent_match_a_file(tmp_path: Path, stored: str, written: str) -> None:
    root, table = plant(tmp_path / "root", f"{stored}/{stored}.jpg"), tmp_path / "t.csv"
    for form in ("{0}/{0}.jpg", ".\\{0}\\{0}.jpg"):
        images = read_images(root, labels=put(table, f"{form.format(written)},cat"))
        assert images.files == (form.format(written),)
        assert os.path.exists(images.paths[0])
        put(table, f"{form.format(written)},cat", f"{form.format(stored)},dog")
        refused("must give an image one label; 1 has several", root, labels=table)


@linux_only
def test_files_that_differ_only_in_the_form_of_an_accent_are_distinguished(tmp_path: Path) -> None:
    names = [f"{NFC}{NFC}.jpg", f"{NFD}{NFD}.jpg", "a\\1.jpg", "a/1.jpg"]  # a backslash may be part of a name
    root, table = plant(tmp_path / "root", *names), tmp_path / "t.csv"
    for prefix in ("", "./"):
        distinct = names if prefix == "" else names[:2]
        put(table, *(f"{prefix}{name},cat" for name in distinct))
        images = read_images(root, labels=table, unlisted="ignore")
        assert images.paths == tuple(os.path.join(root, name) for name in distinct)
        either = put(table, f"{prefix}{NFC}{NFD}.jpg,cat")  # equal to neither, similar to both
        refused("1 of 1 does not", root, labels=either, unlisted="ignore")


def test_a_row_without_a_file_in_the_folder_is_refused(tmp_path: Path) -> None:
    root = plant(tmp_path / "root", "1.jpg", "a/2.jpg")
    plant(tmp_path, "outside.jpg", "root2/1.jpg")
    outside = ("../root2/1.jpg", f"{tmp_path}/outside.jpg", f"{root}2/1.jpg", "/")
    for name in (*outside, "nothing.jpg", "a", "1.JPG", "1.jpg ", "nul\0"):
        table = put(tmp_path / "t.csv", "a/2.jpg,dog", f"{name},cat")
        message = refused("must name a file in .* 1 of 2 does not: ", root, labels=table, unlisted="ignore")
        assert repr(name) in message
        assert repr(str(table)) in message


def test_rows_without_a_file_are_counted_with_a_suggestion(tmp_path: Path) -> None:
    root, table = plant(tmp_path / "root", "a/1.jpg", "a/2.jpg"), tmp_path / "t.csv"
    for name in ("1.jpg", "A\\1", "elsewhere/1.JPEG"):
        put(table, f"{name},cat", "a/2.jpg,")
        refused(r"1 of 2 does not: .*\. Did you mean 'a/1\.jpg'\?", root, labels=table)
    deep = "/" + "x/" * 5_000 + "1"
    put(table, "a/1.jpg,cat", *(f"x{i}.jpg,cat" for i in range(1500)), f"{deep},cat")
    pattern = "1,501 of 1,502 do not: 'x0.jpg', 'x1.jpg', 'x2.jpg' and 1,498 more. Correct the table or the folder"
    refused(pattern, root, labels=table)


def test_files_without_a_row_are_refused_ignored_or_unlabelled(tmp_path: Path) -> None:
    root = plant(tmp_path / "root", "e.jpg", "d.jpg", "c/x.jpg", "b.jpg", "a.jpg", "notes.txt", ".hidden.jpg")
    table = put(tmp_path / "t.csv", "d.jpg,cat")
    message = refused("4 have none: 'a.jpg', 'b.jpg', 'c/x.jpg' and 1 more", root, labels=table)
    assert "unlisted='unlabelled'" in message
    assert "unlisted='ignore'" in message
    assert labels_of(read_images(root, labels=table, unlisted="ignore")) == {"d.jpg": "cat"}
    images = read_images(root, labels=table, unlisted="unlabelled")
    assert images.files == ("d.jpg", "a.jpg", "b.jpg", "c/x.jpg", "e.jpg")
    assert images.paths == tuple(os.path.join(root, file) for file in images.files)
    assert images.labels.tolist() == [0, -1, -1, -1, -1]
    assert images.ignored == ("notes.txt",)


def test_repeated_rows_are_refused(tmp_path: Path) -> None:
    """Contradictions are reported before repetitions; a missing label contradicts a label."""
    root, table = plant(tmp_path / "root", *(f"{i}.jpg" for i in range(5))), tmp_path / "t.csv"
    rows = [f"{i}.jpg,cat" for i in range(5)]
    put(table, *rows, "./3.jpg,cat", *rows[:3], *rows[:3])
    message = refused("must list an image once; 4 are listed more than once: '.*and 1 more", root, labels=table)
    assert repr(str(table)) in message
    assert "'4.jpg'" not in message
    put(table, "0.jpg,cat", "0.jpg,cat", "1.jpg,dog", "1.jpg,cat", "2.jpg,dog", "2.jpg,", "3.jpg,dog", "4.jpg,dog")
    message = refused("must give an image one label; 2 have several: '1.jpg', '2.jpg'", root, labels=table)
    assert "The labels of the first are 'cat', 'dog'" in message


def test_a_table_without_labels_is_refused_unless_allowed(tmp_path: Path) -> None:
    root, table = plant(tmp_path / "root", "1.jpg", "2.jpg"), tmp_path / "t.csv"
    put(table, "1.jpg,,cat", "2.jpg,,dog", header="file_name,label,truth")
    refused(NO_LABELS.format(2), root, labels=table)
    images = read_images(root, labels=table, need_labels=False)
    assert (images.classes, images.new_classes) == ((), ("cat", "dog"))
    put(table)
    refused("2 have none: '1.jpg', '2.jpg'", root, labels=table)
    refused(NO_LABELS.format(2), root, labels=table, unlisted="unlabelled")
    # The table is empty, but the folder is not.
    assert repr(str(table)) in refused("must have at least one row", root, labels=table, unlisted="ignore")
    refused("The table .* does not exist", root, labels=tmp_path / "nothing.csv")


# A list


def some(folder: Path, n: int) -> list[str]:
    plant(folder, *(f"{i}.jpg" for i in range(n)))
    return [str(folder / f"{i}.jpg") for i in range(n)]


def test_labels_of_a_list_may_have_any_type(tmp_path: Path) -> None:
    files = some(tmp_path, 3)
    kinds: list[Any] = [
        ("1", "", " 0 "),
        ["1", float("nan"), "0"],
        np.array(["1", None, "0"], dtype=object),
        np.array([1, np.nan, 0], dtype=np.float32),
        np.ma.masked_equal([1, 5, 0], 5),
        pd.Series(["1", None, "0"], index=[7, 5, 3]),
        pd.Series([1, None, 0], dtype="Int64"),
    ]
    for labels in kinds:
        images = read_images(files, labels=labels)
        assert images.files == images.paths == tuple(files)
        assert images.classes == ("0", "1")
        assert images.labels.tolist() == [1, -1, 0]


def test_a_list_of_paths_may_have_any_type(tmp_path: Path) -> None:
    files = some(tmp_path, 2)
    forms: list[Any] = [tuple(files), np.array(files), pd.Series(files), iter(files), [Path(file) for file in files]]
    for form in forms:
        images = read_images(form, labels=["a", "b"])
        assert images.files == tuple(files)
        assert all(type(file) is str for file in images.files)


def test_paths_are_not_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor are links followed; broken ones are reported by the health check."""
    plant(tmp_path, "b.jpg", "a.jpg", "c/d.HEIC", "e.jpg")
    (tmp_path / "link.jpg").symlink_to("b.jpg")
    (tmp_path / "broken.jpg").symlink_to("nowhere.jpg")
    monkeypatch.chdir(tmp_path)
    files = ("b.jpg", "./a.jpg", "c/../c/d.HEIC", str(tmp_path / "e.jpg"), "link.jpg", "broken.jpg")
    images = read_images(files, labels=["x", "x", None, None, "y", "y"])
    assert images.files == images.paths == files  # not sorted, not made absolute


def test_a_list_may_have_truth(tmp_path: Path) -> None:
    files = some(tmp_path, 3)
    images = read_images(files, labels=["a", None, None], truth=[float("nan"), " b ", -1])
    assert list(truth_of(images).values()) == ["a", "b", None]
    alone = read_images(files, truth=["a", "b", "a"], need_labels=False)
    assert (alone.classes, alone.new_classes) == ((), ("a", "b"))
    refused("must be its label, unlike in 1 image", files, labels=["a", "b", None], truth=["a", "c", "c"])


def test_an_empty_list_and_one_without_labels_are_refused(tmp_path: Path) -> None:
    files = some(tmp_path, 2)
    nothing: list[Any] = [[], np.array([]), iter(())]
    refused(NO_LABELS.format(2), files)
    refused(NO_LABELS.format(2), files, labels=[-1, None])
    assert read_images(files, need_labels=False).labels.tolist() == [-1, -1]
    for source in nothing:
        refused("must contain at least one path, got none", source, labels=[], need_labels=False)


@pytest.mark.parametrize("name", ["labels", "truth"])
def test_invalid_lists_of_labels_are_refused(tmp_path: Path, name: str) -> None:
    """Each would give unintended classes: the keys, the columns, "[0]", "b'a'"."""
    files = some(tmp_path, 2)
    wrong: list[tuple[Any, str]] = [
        ([], r"must be as long as the list of images, 2, got 0\."),
        (["a"] * 3, r"must be as long as the list of images, 2, got 3\."),
        ({"0.jpg": "a", "1.jpg": "b"}, "must be a list with one entry per image, in order, got dict"),
        ({"a", "b"}, "must be a list with one entry per image, in order, got set"),
        (np.array([[0], [1]]), "must be a list .*, got ndarray"),
        (np.array([b"a", b"b"]), "must be class names. .* got bytes_"),
    ]
    for values, message in wrong:
        refused(f"{name} {message}", files, need_labels=False, **{name: values})


def test_invalid_paths_and_missing_files_are_refused(tmp_path: Path) -> None:
    files = some(tmp_path, 1)
    for path in (3, None, ["a.jpg"]):
        refused("must contain paths, got .* as number 2", [*files, path], need_labels=False)
    for labels in ("t.csv", Path("t.csv")):
        refused("labels must be a list if the images are a list, got a path", files, labels=labels)
    names = ["no\nthing.jpg", str(tmp_path), "", "nul\0.jpg", "x" * 300]
    message = refused("5 of 6 are not: .* and 2 more", np.array([*files, *names]))
    assert "are not: 'no\\nthing.jpg', " in message  # not as np.str_('...')


def test_a_repeated_path_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some(tmp_path, 3)
    monkeypatch.chdir(tmp_path)
    files = ["0.jpg", "1.jpg", "2.jpg", "./0.jpg", str(tmp_path / "2.jpg")]
    refused("The list of images must list an image once; 2 are listed more than once: .*0.jpg.*2.jpg", files)
    message = refused("must give an image one label; 1 has several: .*0.jpg", files, labels=list("aabbb"))
    assert "The labels of the first are 'a', 'b'" in message


def test_several_folders_are_read_like_one(tmp_path: Path) -> None:
    for name in ("a/oak/1.png", "a/unlabelled/2.png", "b/oak/1.png", "b/elm/1.png", "b/3.png", "b/x.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    both = [tmp_path / "a", tmp_path / "b"]
    images = read_images(both)
    assert images.files == ("a/oak/1.png", "a/unlabelled/2.png", "b/3.png", "b/elm/1.png", "b/oak/1.png")
    assert [Path(path).relative_to(tmp_path).as_posix() for path in images.paths] == [*images.files]
    assert [(*images.classes, None)[i] for i in images.labels] == ["oak", None, None, "elm", "oak"]
    assert images.ignored == ("b/x.txt",)
    table = tmp_path / "labels.csv"
    # By name in one of the folders, from the folder that both are in, and absolute.
    rows = ["unlabelled/2.png,elm", "a/oak/1.png,oak", f"{tmp_path}/b/oak/1.png,oak", "3.png,", "elm/1.png,elm"]
    table.write_text("\n".join(["file_name,label", *rows]))
    images = read_images(both, labels=table)
    assert [(*images.classes, None)[i] for i in images.labels] == ["elm", "oak", "oak", None, "elm"]
    table.write_text("file_name,label\noak/1.png,oak\n")
    refused("not: 'oak/1.png'", both, labels=table, unlisted="ignore")  # in both folders
    refused("must not contain one another", [tmp_path, tmp_path / "a"])
    refused("must not contain one another", [tmp_path / "a", tmp_path / "a"])
    refused("The folder of unlabelled images, 'rest'", both, unlabelled="rest")
    assert read_images(both, unlabelled="elm", placeholders="classes").classes == ("oak", "unlabelled")


def test_windows_paths_are_found_and_paths_of_another_computer_are_refused(tmp_path: Path) -> None:
    plant(tmp_path, "oak/1.jpg", "oak/2.jpg", "2.jpg", "a b/3.jpg")
    names = {"oak/1.jpg": "1", "oak/2.jpg": "2", "2.jpg": "3", "a b/3.jpg": "4"}
    table = tmp_path.parent / f"{tmp_path.name}.csv"
    for prefix in ("", ".\\", f"{tmp_path}\\"):
        rows = [prefix + name.replace("/", "\\") + f",{label}" for name, label in names.items()]
        table.write_text("\n".join(["file_name,label", *rows]))
        images = read_images(tmp_path, labels=table)
        places = [os.path.relpath(path, tmp_path) for path in images.paths]
        assert dict(zip(places, [images.classes[y] for y in images.labels], strict=True)) == names, prefix
    for other in ("C:\\Users\\me\\", "D:/photos/", "/home/me/photos/", "\\\\server\\share\\"):
        table.write_text("\n".join(["file_name,label", *(f"{other}{name},{label}" for name, label in names.items())]))
        refused(r"4 of 4 do not", tmp_path, labels=table)
    elsewhere = plant(tmp_path.parent / f"{tmp_path.name}-2", "oak/1.jpg")
    table.write_text(f"file_name,label\n{elsewhere / 'oak/1.jpg'},1\n")
    refused(r"1 of 1 does not", tmp_path, labels=table, unlisted="ignore")


@pytest.mark.parametrize("name", ["unknown", "Unlabelled", "None", "?", "N/A", "nan"])
def test_a_label_that_may_mean_no_label_is_asked_about(tmp_path: Path, name: str) -> None:
    plant(tmp_path, "oak/1.jpg", "elm/2.jpg", "elm/3.jpg")
    table = tmp_path / "t.csv"
    table.write_text(f"file_name,label\noak/1.jpg,oak\nelm/2.jpg,{name}\nelm/3.jpg,{name}\n")
    message = refused(r"would be taken for a class with 2 images", tmp_path, labels=table)
    assert message.startswith(f"The label {name!r} ")
    assert "(placeholders='unlabelled'), or keep them as classes (placeholders='classes')." in message
    assert read_images(tmp_path, labels=table, placeholders="classes").classes == tuple(sorted(("oak", name)))
    images = read_images(tmp_path, labels=table, placeholders="unlabelled")
    assert (images.classes, images.unlabelled.tolist()) == (("oak",), [False, True, True])
    refused("would be taken", [tmp_path / "oak/1.jpg"], labels=[name])
    if "/" not in name and name != "Unlabelled":
        (tmp_path / "elm").rename(tmp_path / name)
        refused("would be taken for a class", tmp_path)
        assert read_images(tmp_path, unlabelled=name).classes == ("oak",)
        assert read_images(tmp_path, placeholders="unlabelled").classes == ("oak",)
