"""read_images: the three ways in, every fault named with its first offenders and its count."""

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from pyarrow import parquet

import sortal
from sortal.errors import InputError
from sortal.images import ImageSet
from sortal.reading import read_images

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse or change such names")
NFC, NFD = normalize("NFC", "é"), normalize("NFD", "é")


def plant(root: Path, *names: str) -> Path:
    """Empty files: reading looks at names only."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def put(path: Path, *rows: str, header: str = "file_name,label") -> Path:
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def told(images: ImageSet) -> dict[str, str | None]:
    """File -> name of its label."""
    names = (*images.classes, None)
    return {file: names[number] for file, number in zip(images.files, images.labels, strict=True)}


def truths(images: ImageSet) -> dict[str, str | None]:
    names = (*images.classes, *images.new_classes, None)
    return {file: names[number] for file, number in zip(images.files, images.truth, strict=True)}


def refused(pattern: str, source: Any, **options: Any) -> str:
    with pytest.raises(InputError, match=pattern) as error:
        read_images(source, **options)
    return str(error.value)


def test_it_is_public() -> None:
    assert sortal.read_images is read_images
    assert sortal.ImageSet is ImageSet


# A folder of folders


def test_folders_are_classes(tmp_path: Path) -> None:
    plant(tmp_path, "dog/2.jpg", "dog/1.JPG", "cat/a/b/3.png", "unlabelled/x/4.jpg", "5.jpg", "notes.txt", "cat/.z.jpg")
    images = read_images(tmp_path)
    assert images.files == ("5.jpg", "cat/a/b/3.png", "dog/1.JPG", "dog/2.jpg", "unlabelled/x/4.jpg")
    assert images.paths == tuple(os.path.join(tmp_path, file) for file in images.files)
    assert images.classes == ("cat", "dog")
    assert images.labels.tolist() == [-1, 0, 1, 1, -1]
    assert images.truth.tolist() == [-1, 0, 1, 1, -1]
    assert images.new_classes == ()
    assert not images.validation.any()
    assert images.ignored == ("notes.txt",)


@pytest.mark.parametrize("kind", [str, Path])
def test_a_folder_as_text_or_path(tmp_path: Path, kind: Any) -> None:
    assert told(read_images(kind(plant(tmp_path, "cat/1.jpg")))) == {"cat/1.jpg": "cat"}


@pytest.mark.parametrize("name", ["root", "./root", "root/", "../here/root"])
def test_a_relative_folder_gives_paths_that_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    plant(tmp_path / "here" / "root", "cat/1.jpg")
    monkeypatch.chdir(tmp_path / "here")
    images = read_images(name)
    assert images.files == ("cat/1.jpg",)
    assert os.path.samefile(images.paths[0], tmp_path / "here" / "root" / "cat" / "1.jpg")
    assert not os.path.isabs(images.paths[0])


def test_empty_folders_are_no_classes(tmp_path: Path) -> None:
    plant(tmp_path, "cat/1.jpg", "dog/notes.txt", "owl/.hidden.jpg", "__MACOSX/cat/._1.jpg")
    (tmp_path / "fox").mkdir()
    assert read_images(tmp_path).classes == ("cat",)


@pytest.mark.parametrize(
    ("names", "classes"), [(["10", "9", "2"], ("2", "9", "10")), (["10", "9", "x"], ("10", "9", "x"))]
)
def test_order_of_classes(tmp_path: Path, names: list[str], classes: tuple[str, ...]) -> None:
    assert read_images(plant(tmp_path, *(f"{name}/1.jpg" for name in names))).classes == classes


def test_both_spellings_of_unlabelled(tmp_path: Path) -> None:
    images = read_images(plant(tmp_path, "unlabelled/1.jpg", "unlabeled/2.jpg", "cat/unlabelled/3.jpg"))
    assert told(images) == {"unlabelled/1.jpg": None, "unlabeled/2.jpg": None, "cat/unlabelled/3.jpg": "cat"}


def test_the_unlabelled_folder_can_be_named(tmp_path: Path) -> None:
    plant(tmp_path, "rest/1.jpg", "cat/2.jpg", "unlabelled/3.jpg")
    assert told(read_images(tmp_path)) == {"rest/1.jpg": "rest", "cat/2.jpg": "cat", "unlabelled/3.jpg": None}
    images = read_images(tmp_path, unlabelled="rest")
    assert told(images) == {"rest/1.jpg": None, "cat/2.jpg": "cat", "unlabelled/3.jpg": "unlabelled"}


def test_the_named_unlabelled_folder_may_be_empty(tmp_path: Path) -> None:
    plant(tmp_path, "cat/1.jpg")
    (tmp_path / "rest").mkdir()
    assert told(read_images(tmp_path, unlabelled="rest")) == {"cat/1.jpg": "cat"}


def test_the_named_unlabelled_folder_beside_broken_links(tmp_path: Path) -> None:
    plant(tmp_path, "cat/1.jpg", "rest/2.jpg")
    (tmp_path / "broken").symlink_to("nowhere")
    assert told(read_images(tmp_path, unlabelled="rest")) == {"cat/1.jpg": "cat", "rest/2.jpg": None}
    (tmp_path / "loop").symlink_to("loop")
    assert told(read_images(tmp_path, unlabelled="rest")) == {"cat/1.jpg": "cat", "rest/2.jpg": None}


def test_the_named_unlabelled_folder_must_be_there(tmp_path: Path) -> None:
    plant(tmp_path, "a/1.jpg", "b/1.jpg", "c/1.jpg", "d/1.jpg", "rest.jpg")
    message = refused("'rest', must lie in .*; there are: 'a', 'b', 'c' and 1 more", tmp_path, unlabelled="rest")
    assert repr(str(tmp_path)) in message
    refused("'rest.jpg', must lie in", tmp_path, unlabelled="rest.jpg")


@pytest.mark.parametrize("name", ["", ".", "..", "/", "a/..", "a/b", pytest.param("x" * 300, id="long"), "nul\0"])
def test_what_is_no_name_of_a_folder(tmp_path: Path, name: str) -> None:
    """None of these is a folder beside the classes; to go on would make no image unlabelled, without a word."""
    refused("must lie in", plant(tmp_path, "a/b/1.jpg", "rest/2.jpg"), unlabelled=name)


@pytest.mark.parametrize("name", ["rest/", "./rest", "{root}/rest", "{root}/rest/"])
def test_an_unlabelled_folder_written_otherwise_is_never_a_class(tmp_path: Path, name: str) -> None:
    """As the shell completes it, or as a path: understood or refused."""
    plant(tmp_path, "cat/1.jpg", "rest/2.jpg")
    with suppress(InputError):
        assert read_images(tmp_path, unlabelled=name.format(root=tmp_path)).classes == ("cat",)


@linux_only
@pytest.mark.parametrize(("stored", "asked"), [(NFC, NFD), (NFD, NFC), (NFD, NFD)])
def test_the_unlabelled_folder_in_either_form(tmp_path: Path, stored: str, asked: str) -> None:
    plant(tmp_path, f"{stored}/1.jpg", "cat/2.jpg")
    assert told(read_images(tmp_path, unlabelled=asked)) == {f"{stored}/1.jpg": None, "cat/2.jpg": "cat"}


@linux_only
def test_two_spellings_of_a_class_are_one(tmp_path: Path) -> None:
    images = read_images(plant(tmp_path, f"{NFC}/1.jpg", f"{NFD}/2.jpg", f"{NFD}/{NFD}.jpg"))
    assert images.classes == (NFC,)
    assert set(images.files) == {f"{NFC}/1.jpg", f"{NFD}/2.jpg", f"{NFD}/{NFD}.jpg"}  # as they are stored
    assert all(os.path.exists(path) for path in images.paths)


def test_folders_called_minus_one_and_nan(tmp_path: Path) -> None:
    images = read_images(plant(tmp_path, "-1/1.jpg", "nan/2.jpg", "None/3.jpg"))
    assert told(images) == {"-1/1.jpg": None, "nan/2.jpg": "nan", "None/3.jpg": "None"}


HOSTILE = [
    "two words",
    "#1",
    "50%",
    "a&b;c",
    "חתול",
    "\u202etxt",
    "😀",
    "<script>",
    "=HYPERLINK(1)",
    "two\nlines",
    "a\\b",
    "-rf",
    "x" * 255,
    os.fsdecode(b"caf\xe9"),
]


@linux_only
def test_hostile_classes(tmp_path: Path) -> None:
    plant(tmp_path, *(f"{name}/1.jpg" for name in HOSTILE))
    images = read_images(tmp_path)
    assert told(images) == {f"{name}/1.jpg": name for name in HOSTILE}
    assert all(os.path.exists(path) for path in images.paths)


def test_links(tmp_path: Path) -> None:
    plant(tmp_path, "outside/1.jpg", "outside/more/2.jpg", "root/cat/3.jpg")
    root = tmp_path / "root"
    (root / "dog").symlink_to(tmp_path / "outside" / "more")
    (root / "cat" / "4.jpg").symlink_to("../../outside/1.jpg")
    (root / "cat" / "5.jpg").symlink_to("nowhere.jpg")
    (root / "cat" / "loop").symlink_to("..")
    assert told(read_images(root)) == {"cat/3.jpg": "cat", "cat/4.jpg": "cat", "cat/5.jpg": "cat", "dog/2.jpg": "dog"}


@pytest.mark.parametrize("labels", [None, "table"])
def test_a_missing_folder(tmp_path: Path, labels: str | None) -> None:
    table = put(tmp_path / "t.csv", "1.jpg,cat") if labels else None
    refused(r"The image folder '.*nothing' does not exist", tmp_path / "nothing", labels=table)
    refused(r"The image folder '.*t\.jpg' is a file", plant(tmp_path, "t.jpg") / "t.jpg", labels=table)


def test_a_folder_without_images(tmp_path: Path) -> None:
    message = refused(r"must hold at least one image \(\.bmp, .*\.webp\), got none\.", tmp_path)
    assert repr(str(tmp_path)) in message
    plant(tmp_path, "cat/1.heic", "cat/2.txt", "readme.md")
    refused("got none, but 'cat/1.heic', 'cat/2.txt', 'readme.md'", tmp_path)
    refused("got none, but 'cat/1.heic', 'cat/2.txt', 'readme.md'", tmp_path, need_labels=False)


def test_no_labelled_class(tmp_path: Path) -> None:
    plant(tmp_path, "1.jpg", "2.jpg", "unlabelled/3.jpg")
    refused("At least one class must be labelled; none of 3 images is. Put the images of a class into", tmp_path)
    images = read_images(tmp_path, need_labels=False)
    assert told(images) == {"1.jpg": None, "2.jpg": None, "unlabelled/3.jpg": None}
    assert images.classes == ()


def test_a_table_that_lies_there_is_pointed_out(tmp_path: Path) -> None:
    plant(tmp_path, "1.jpg", "notes.txt", "metadata.csv", "labels.JSONL", "unlabelled/x.csv")
    refused("Pass a table of labels: 'labels.JSONL', 'metadata.csv' lies beside the images", tmp_path)


@pytest.mark.parametrize("labels", [["cat"], np.array(["cat"]), {"1.jpg": "cat"}, 3])
def test_labels_of_a_folder_are_a_table(tmp_path: Path, labels: Any) -> None:
    message = refused("labels must be the path of a table", plant(tmp_path, "1.jpg"), labels=labels)
    assert type(labels).__name__ in message


@pytest.mark.parametrize("with_table", [True, False])
def test_truth_of_a_folder_is_in_the_table(tmp_path: Path, with_table: bool) -> None:
    plant(tmp_path, "cat/1.jpg")
    labels = put(tmp_path / "t.csv", "cat/1.jpg,cat") if with_table else None
    refused("truth can be given only with a list", tmp_path, labels=labels, truth=["cat"])


def test_twenty_thousand_files(tmp_path: Path) -> None:
    names = [f"{i % 10:02}/{i:05}.jpg" for i in range(20_000)]
    for folder in range(10):
        (tmp_path / f"{folder:02}").mkdir()
    for name in names:
        os.close(os.open(tmp_path / name, os.O_CREAT | os.O_WRONLY))
    images = read_images(tmp_path)
    assert images.files == tuple(sorted(names))
    assert np.bincount(images.labels).tolist() == [2000] * 10
    table = put(tmp_path / "t.csv", *(f"{name},{'' if i % 2 else name[:2]}" for i, name in enumerate(names)))
    listed = read_images(tmp_path, labels=table)
    assert listed.files == tuple(names)
    assert np.bincount(listed.labels[listed.labelled]).tolist() == [2000] * 5  # the even ones
    assert int(listed.unlabelled.sum()) == 10_000


# A folder and a table


def test_a_table_says_what_the_folders_do_not(tmp_path: Path) -> None:
    plant(tmp_path, "a/1.jpg", "b/c/2.PNG", "3.jpg")
    table = put(tmp_path / "labels.csv", "3.jpg,dog", "b/c/2.PNG,", "a/1.jpg,cat")
    images = read_images(tmp_path, labels=table)
    assert images.files == ("3.jpg", "b/c/2.PNG", "a/1.jpg")  # in the order of the table
    assert images.paths == tuple(os.path.join(tmp_path, file) for file in images.files)
    assert images.labels.tolist() == [1, -1, 0]
    assert images.classes == ("cat", "dog")
    assert images.ignored == ()  # the table itself is read, not ignored


@pytest.mark.parametrize("kind", [str, Path])
def test_a_table_elsewhere_by_text_or_path(tmp_path: Path, kind: Any) -> None:
    plant(tmp_path / "root", "1.jpg")
    images = read_images(tmp_path / "root", labels=kind(put(tmp_path / "t.csv", "1.jpg,cat")))
    assert told(images) == {"1.jpg": "cat"}
    assert images.ignored == ()


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_every_kind_of_table(tmp_path: Path, kind: str) -> None:
    plant(tmp_path / "root", "1.jpg", "2.jpg", "3.jpg")
    path = tmp_path / f"t.{kind}"
    frame = pd.DataFrame({"file_name": ["2.jpg", "1.jpg", "3.jpg"], "label": [10, None, 9], "truth": [10, 2, None]})
    if kind == "parquet":
        parquet.write_table(pa.Table.from_pandas(frame, preserve_index=False), path)
    elif kind == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        frame = frame.assign(label=["10", "", "9"], truth=["10", "2", ""])
        frame.to_csv(path, sep="\t" if kind == "tsv" else ",", index=False)
    images = read_images(tmp_path / "root", labels=path)
    assert images.classes == ("9", "10")
    assert images.new_classes == ("2",)
    assert told(images) == {"2.jpg": "10", "1.jpg": None, "3.jpg": "9"}
    assert truths(images) == {"2.jpg": "10", "1.jpg": "2", "3.jpg": "9"}


def test_the_truth_is_for_evaluation_only(tmp_path: Path) -> None:
    plant(tmp_path / "root", "1.jpg", "2.jpg", "3.jpg")
    without = read_images(tmp_path / "root", labels=put(tmp_path / "t.csv", "1.jpg,10", "2.jpg,9", "3.jpg,"))
    rows = ("1.jpg,10,", "2.jpg,9,9", "3.jpg,,fox")
    with_truth = read_images(tmp_path / "root", labels=put(tmp_path / "t.csv", *rows, header="file_name,label,truth"))
    assert with_truth.classes == without.classes == ("9", "10")
    np.testing.assert_array_equal(with_truth.labels, without.labels)
    assert truths(with_truth) == {"1.jpg": "10", "2.jpg": "9", "3.jpg": "fox"}


def test_truth_may_not_contradict_a_label(tmp_path: Path) -> None:
    plant(tmp_path / "root", "1.jpg", "2.jpg")
    table = put(tmp_path / "t.csv", "1.jpg,cat,dog", "2.jpg,cat,cat", header="file_name,label,truth")
    refused("must have its label as truth; 1 have another: '1.jpg'", tmp_path / "root", labels=table)


@pytest.mark.parametrize("label", ["-1", " -1 ", "-1.0", "", " ", '"-1"', '""'])
def test_unlabelled_in_a_table(tmp_path: Path, label: str) -> None:
    plant(tmp_path / "root", "1.jpg", "2.jpg")
    table = put(tmp_path / "t.csv", f"1.jpg,{label}", "2.jpg, cat ")
    assert told(read_images(tmp_path / "root", labels=table)) == {"1.jpg": None, "2.jpg": "cat"}


@linux_only
def test_two_spellings_of_a_label_are_one_class(tmp_path: Path) -> None:
    plant(tmp_path / "root", "1.jpg", "2.jpg")
    table = put(tmp_path / "t.csv", f"1.jpg,{NFC}", f"2.jpg,{NFD}")
    assert read_images(tmp_path / "root", labels=table).classes == (NFC,)


def test_a_label_and_its_truth_in_two_spellings(tmp_path: Path) -> None:
    plant(tmp_path / "root", "1.jpg")
    table = put(tmp_path / "t.csv", f"1.jpg,{NFC},{NFD}", header="file_name,label,truth")
    assert truths(read_images(tmp_path / "root", labels=table)) == {"1.jpg": NFC}


@pytest.mark.parametrize(
    "name",
    [
        "a/1.jpg",
        "./a/1.jpg",
        "a//1.jpg",
        "a/./1.jpg",
        "b/../a/1.jpg",
        "a\\1.jpg",
        ".\\a\\1.jpg",
        "{root}/a/1.jpg",
        "{root}/./b/../a/1.jpg",
        "{top}/x/../root/a/1.jpg",
    ],
)
def test_a_path_written_otherwise(tmp_path: Path, name: str) -> None:
    root = plant(tmp_path / "root", "a/1.jpg")
    name = name.format(root=root, top=tmp_path)
    images = read_images(root, labels=put(tmp_path / "t.csv", f"{name},cat"))
    assert images.files == (name,)  # as the user wrote it
    assert os.path.samefile(images.paths[0], root / "a" / "1.jpg")


@pytest.mark.parametrize("folder", ["root", "./root", "x/../root", "link", "../here/root"])
@pytest.mark.parametrize("written", ["root", "link"])
def test_absolute_paths_however_the_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, written: str
) -> None:
    """A link such as /tmp on a Mac, or a mounted disk: the table has one spelling, the user types the other."""
    here = tmp_path / "here"
    plant(here, "root/1.jpg", "x/y")
    (here / "link").symlink_to("root")
    monkeypatch.chdir(here)
    table = put(tmp_path / "t.csv", f"{here / written}/1.jpg,cat")
    assert list(told(read_images(folder, labels=table)).values()) == ["cat"]


@linux_only
@pytest.mark.parametrize(("stored", "written"), [(NFC, NFD), (NFD, NFC)])
@pytest.mark.parametrize("form", ["{0}/{0}.jpg", "./{0}/{0}.jpg", "{0}\\{0}.jpg"])
def test_accents_in_either_form(tmp_path: Path, stored: str, written: str, form: str) -> None:
    plant(tmp_path / "root", f"{stored}/{stored}.jpg")
    images = read_images(tmp_path / "root", labels=put(tmp_path / "t.csv", f"{form.format(written)},cat"))
    assert images.files == (form.format(written),)
    assert os.path.exists(images.paths[0])


@linux_only
@pytest.mark.parametrize("prefix", ["", "./"])
def test_two_files_that_differ_in_form_only(tmp_path: Path, prefix: str) -> None:
    root = plant(tmp_path / "root", f"{NFC}.jpg", f"{NFD}.jpg")
    table = put(tmp_path / "t.csv", f"{prefix}{NFC}.jpg,cat", f"{prefix}{NFD}.jpg,dog")
    images = read_images(root, labels=table)
    assert images.paths == (os.path.join(root, f"{NFC}.jpg"), os.path.join(root, f"{NFD}.jpg"))


@linux_only
def test_a_name_that_could_be_either_of_two_files(tmp_path: Path) -> None:
    """One accent composed, the other not: neither file is written like that, and both read the same."""
    plant(tmp_path / "root", f"{NFC}{NFC}.jpg", f"{NFD}{NFD}.jpg")
    table = put(tmp_path / "t.csv", f"{NFC}{NFD}.jpg,cat")
    refused("1 of 1 do not", tmp_path / "root", labels=table, unlisted="ignore")


@linux_only
def test_two_rows_that_differ_in_form_only_are_one_file(tmp_path: Path) -> None:
    plant(tmp_path / "root", f"{NFC}.jpg")
    table = put(tmp_path / "t.csv", f"{NFC}.jpg,cat", f"{NFD}.jpg,dog")
    refused("must give an image one label; 1 have several", tmp_path / "root", labels=table)


@linux_only
def test_a_backslash_in_a_name_is_a_backslash(tmp_path: Path) -> None:
    root = plant(tmp_path / "root", "a\\1.jpg", "a/1.jpg")
    images = read_images(root, labels=put(tmp_path / "t.csv", "a\\1.jpg,cat", "a/1.jpg,dog"))
    assert images.paths == (os.path.join(root, "a\\1.jpg"), os.path.join(root, "a/1.jpg"))


@linux_only
def test_hostile_names_in_a_table(tmp_path: Path) -> None:
    root = plant(tmp_path / "root", *(f"{name[:200]}.jpg" for name in HOSTILE))
    lines = [json.dumps({"file_name": f"{name[:200]}.jpg", "label": f"../../{name}/<b>"}) for name in HOSTILE]
    (tmp_path / "t.jsonl").write_text("\n".join(lines), encoding="utf-8")
    images = read_images(root, labels=tmp_path / "t.jsonl")
    assert told(images) == {f"{name[:200]}.jpg": f"../../{name}/<b>" for name in HOSTILE}
    assert all(os.path.exists(path) for path in images.paths)


def test_very_long_numbers_as_labels(tmp_path: Path) -> None:
    plant(tmp_path / "root", "1.jpg", "2.jpg")
    table = put(tmp_path / "t.csv", "1.jpg," + "9" * 5000, "2.jpg,7")
    assert read_images(tmp_path / "root", labels=table).classes == ("7", "9" * 5000)


def test_a_table_may_list_files_of_any_extension(tmp_path: Path) -> None:
    plant(tmp_path, "1.jpg", "2.heic", "3", "notes.txt", "t.csv")
    images = read_images(tmp_path, labels=put(tmp_path / "t.csv", "1.jpg,cat", "2.heic,cat", "3,"))
    assert told(images) == {"1.jpg": "cat", "2.heic": "cat", "3": None}
    assert images.ignored == ("notes.txt",)


def test_files_beside_the_images_are_not_opened(tmp_path: Path) -> None:
    plant(tmp_path, "1.jpg", "a/t.csv", "notes.txt")
    (tmp_path / "broken").symlink_to("nowhere")
    table = put(tmp_path / "t.csv", "1.jpg,cat")
    assert read_images(tmp_path, labels=table).ignored == ("a/t.csv", "broken", "notes.txt")


@pytest.mark.parametrize(
    "name",
    [
        "nothing.jpg",
        "../outside.jpg",
        "../root2/1.jpg",
        "a/../../outside.jpg",
        "{top}/outside.jpg",
        "{root}2/1.jpg",
        "/etc/passwd",
        "..\\outside.jpg",
        "a",
        "a/",
        ".",
        "..",
        "/",
        "1.JPG",
        "1.jpg ",
        "nul\0",
        "C:\\1.jpg",
        "file://1.jpg",
    ],
)
def test_a_row_that_names_no_file_of_the_folder(tmp_path: Path, name: str) -> None:
    root = plant(tmp_path / "root", "1.jpg", "a/2.jpg")
    plant(tmp_path, "outside.jpg", "root2/1.jpg")
    name = name.format(root=root, top=tmp_path)
    table = put(tmp_path / "t.csv", "a/2.jpg,dog", f"{name},cat")
    message = refused("must name a file of .* 1 of 2 do not: ", root, labels=table, unlisted="ignore")
    assert repr(name) in message
    assert repr(str(table)) in message


def test_rows_without_a_file_are_counted(tmp_path: Path) -> None:
    plant(tmp_path / "root", "1.jpg")
    table = put(tmp_path / "t.csv", "1.jpg,cat", *(f"x{i}.jpg,cat" for i in range(1500)))
    pattern = "1,500 of 1,501 do not: 'x0.jpg', 'x1.jpg', 'x2.jpg' and 1,497 more"
    refused(pattern, tmp_path / "root", labels=table)


@pytest.mark.parametrize("name", ["x" * 100_000, "/" + "x/" * 50_000 + "1.jpg"], ids=["long", "deep"])
def test_a_row_of_endless_length_is_cut_in_the_error(tmp_path: Path, name: str) -> None:
    plant(tmp_path / "root", "1.jpg")
    table = put(tmp_path / "t.csv", f"{name},cat")
    assert len(refused("1 of 1 do not", tmp_path / "root", labels=table)) < 10_000


def test_files_without_a_row(tmp_path: Path) -> None:
    root = plant(tmp_path / "root", "e.jpg", "d.jpg", "c/x.jpg", "b.jpg", "a.jpg", "notes.txt", ".hidden.jpg")
    table = put(tmp_path / "t.csv", "d.jpg,cat")
    message = refused("4 have none: 'a.jpg', 'b.jpg', 'c/x.jpg' and 1 more", root, labels=table)
    assert "unlisted='unlabelled'" in message
    assert "unlisted='ignore'" in message
    assert told(read_images(root, labels=table, unlisted="ignore")) == {"d.jpg": "cat"}
    images = read_images(root, labels=table, unlisted="unlabelled")
    assert images.files == ("d.jpg", "a.jpg", "b.jpg", "c/x.jpg", "e.jpg")
    assert images.paths == tuple(os.path.join(root, file) for file in images.files)
    assert images.labels.tolist() == [0, -1, -1, -1, -1]
    assert images.ignored == ("notes.txt",)


def test_files_without_a_row_have_no_truth(tmp_path: Path) -> None:
    root = plant(tmp_path / "root", "1.jpg", "2.jpg", "3.jpg")
    table = put(tmp_path / "t.csv", "3.jpg,cat,cat", "2.jpg,,dog", header="file_name,label,truth")
    images = read_images(root, labels=table, unlisted="unlabelled")
    assert truths(images) == {"3.jpg": "cat", "2.jpg": "dog", "1.jpg": None}


@pytest.mark.parametrize("value", ["unlabeled", "ignored", "", None, False])
def test_unlisted_must_be_a_choice(tmp_path: Path, value: object) -> None:
    """A typing error must not drop images."""
    plant(tmp_path / "root", "1.jpg", "2.jpg")
    refused("unlisted must be", tmp_path / "root", labels=put(tmp_path / "t.csv", "1.jpg,cat"), unlisted=value)


def test_unknown_columns(tmp_path: Path) -> None:
    plant(tmp_path / "root", "1.jpg")
    table = put(tmp_path / "t.csv", "1.jpg,cat,5", header="file_name,label,size")
    refused("has unknown columns, 1: 'size'", tmp_path / "root", labels=table)
    assert told(read_images(tmp_path / "root", labels=table, extra_columns="ignore")) == {"1.jpg": "cat"}
    refused("extra_columns must be", tmp_path / "root", labels=table, extra_columns="ignored")


def test_duplicate_rows(tmp_path: Path) -> None:
    root = plant(tmp_path / "root", *(f"{i}.jpg" for i in range(5)))
    rows = [f"{i}.jpg,cat" for i in range(5)]
    table = put(tmp_path / "t.csv", *rows, "./3.jpg,cat", *rows[:3], *rows[:3])
    message = refused("must name an image once; 4 are named more often: '.*and 1 more", root, labels=table)
    assert repr(str(table)) in message
    assert "'4.jpg'" not in message


def test_conflicting_labels(tmp_path: Path) -> None:
    """They come before rows that merely repeat; a row without a label conflicts with one that has one."""
    root = plant(tmp_path / "root", *(f"{i}.jpg" for i in range(4)))
    rows = ["0.jpg,cat", "0.jpg,cat", "1.jpg,dog", "1.jpg,cat", "2.jpg,dog", "2.jpg,", "3.jpg,dog"]
    message = refused("must give an image one label; 2 have several: ", root, labels=put(tmp_path / "t.csv", *rows))
    assert "'1.jpg', '2.jpg'" in message
    assert "The first is under 'cat', 'dog'" in message


def test_a_table_without_labels(tmp_path: Path) -> None:
    plant(tmp_path / "root", "1.jpg", "2.jpg")
    table = put(tmp_path / "t.csv", "1.jpg,", "2.jpg,-1")
    refused("At least one class must be labelled; none of 2 images is", tmp_path / "root", labels=table)
    images = read_images(tmp_path / "root", labels=table, need_labels=False)
    assert told(images) == {"1.jpg": None, "2.jpg": None}


def test_truth_alone_makes_no_class_labelled(tmp_path: Path) -> None:
    plant(tmp_path / "root", "1.jpg", "2.jpg")
    table = put(tmp_path / "t.csv", "1.jpg,,cat", "2.jpg,,dog", header="file_name,label,truth")
    refused("At least one class must be labelled", tmp_path / "root", labels=table)
    images = read_images(tmp_path / "root", labels=table, need_labels=False)
    assert (images.classes, images.new_classes) == ((), ("cat", "dog"))
    assert told(images.hide_labels(old=1, fraction=1)) == {"1.jpg": "cat", "2.jpg": None}


def test_a_table_with_a_header_only(tmp_path: Path) -> None:
    root = plant(tmp_path / "root", "1.jpg", "2.jpg")
    table = put(tmp_path / "t.csv")
    refused("2 have none: '1.jpg', '2.jpg'", root, labels=table)
    refused("At least one class must be labelled; none of 2", root, labels=table, unlisted="unlabelled")
    message = refused(".", root, labels=table, unlisted="ignore")
    assert repr(str(table)) in message  # it is the table that holds nothing; the folder does hold images


def test_a_table_and_a_folder_without_images(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    refused("must hold at least one image", tmp_path / "root", labels=put(tmp_path / "t.csv"))


@pytest.mark.parametrize("name", ["nothing.csv", "root", "t.txt", pytest.param("x" * 300 + ".csv", id="long")])
def test_a_table_that_is_none(tmp_path: Path, name: str) -> None:
    plant(tmp_path, "root/1.jpg", "t.txt")
    refused("The table ", tmp_path / "root", labels=tmp_path / name)


# A list


def some(folder: Path, n: int) -> list[str]:
    plant(folder, *(f"{i}.jpg" for i in range(n)))
    return [str(folder / f"{i}.jpg") for i in range(n)]


@pytest.mark.parametrize(
    "labels",
    [
        ["b", None, "a"],
        ("b", "", " a "),
        ["b", -1, "a"],
        ["b", "-1", "a"],
        ["b", float("nan"), "a"],
        ["b", pd.NA, "a"],
        ["b", pd.NaT, "a"],
        np.array(["b", "", "a"]),
        np.array(["b", None, "a"], dtype=object),
        pd.Series(["b", None, "a"]),
        pd.Series(["b", None, "a"], index=[7, 5, 3]),
        pd.Series(["b", None, "a"], dtype="category"),
        pd.Series(["b", pd.NA, "a"], dtype="string"),
        pd.Index(["b", "-1", "a"]),
    ],
    ids=repr,
)
def test_labels_beside_a_list(tmp_path: Path, labels: Any) -> None:
    files = some(tmp_path, 3)
    images = read_images(files, labels=labels)
    assert images.files == images.paths == tuple(files)
    assert images.classes == ("a", "b")
    assert images.labels.tolist() == [1, -1, 0]


@pytest.mark.parametrize(
    "labels",
    [
        [10, -1, 9],
        (10, None, 9),
        [10.0, float("nan"), 9.0],
        np.array([10, -1, 9]),
        np.array([10, -1, 9], dtype=np.int8),
        np.array([10, -1, 9], dtype=np.float32),
        np.array([10, np.nan, 9], dtype=np.float32),
        np.array([10, np.nan, 9]),
        np.ma.masked_equal([10, 5, 9], 5),
        pd.Series([10, None, 9]),
        pd.Series([10, None, 9], dtype="Int64"),
        pd.Series([10, None, 9], dtype="float32"),
        pd.array([10, pd.NA, 9], dtype="Int8"),
    ],
    ids=repr,
)
def test_numbers_beside_a_list(tmp_path: Path, labels: Any) -> None:
    images = read_images(some(tmp_path, 3), labels=labels)
    assert images.classes == ("9", "10")
    assert images.labels.tolist() == [1, -1, 0]


def test_an_array_changed_later_changes_nothing(tmp_path: Path) -> None:
    labels: Any = np.array([1, -1, 0])
    images = read_images(some(tmp_path, 3), labels=labels)
    labels[:] = 0
    assert images.labels.tolist() == [1, -1, 0]


@pytest.mark.parametrize("form", [list, tuple, np.array, pd.Series, iter, lambda files: [Path(f) for f in files]])
def test_every_kind_of_list(tmp_path: Path, form: Any) -> None:
    files = some(tmp_path, 2)
    images = read_images(form(files), labels=["a", "b"])
    assert images.files == tuple(files)
    assert all(type(file) is str for file in images.files)


def test_paths_stay_as_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, "b.jpg", "a.jpg", "c/d.HEIC", "e.jpg")
    monkeypatch.chdir(tmp_path)
    files = ("b.jpg", "./a.jpg", "c/../c/d.HEIC", str(tmp_path / "e.jpg"))
    images = read_images(files, labels=["x", "x", None, None])
    assert images.files == images.paths == files  # not sorted, not made absolute


def test_truth_beside_a_list(tmp_path: Path) -> None:
    files = some(tmp_path, 3)
    images = read_images(files, labels=["a", None, None], truth=[float("nan"), " b ", -1])
    assert list(truths(images).values()) == ["a", "b", None]
    alone = read_images(files, truth=["a", "b", "a"], need_labels=False)
    assert (alone.classes, alone.new_classes) == ((), ("a", "b"))
    refused("must have its label as truth; 1 have another", files, labels=["a", "b", None], truth=["a", "c", "c"])


def test_a_list_without_labels(tmp_path: Path) -> None:
    files = some(tmp_path, 2)
    refused("At least one class must be labelled; none of 2 images is", files)
    refused("At least one class must be labelled; none of 2 images is", files, labels=[-1, None])
    assert read_images(files, need_labels=False).labels.tolist() == [-1, -1]


@pytest.mark.parametrize("source", [[], (), np.array([]), iter(())], ids=["list", "tuple", "array", "iterator"])
def test_an_empty_list(source: Any) -> None:
    refused("must hold at least one path, got none", source)
    refused("must hold at least one path, got none", source, labels=[], need_labels=False)


@pytest.mark.parametrize("name", ["labels", "truth"])
@pytest.mark.parametrize("n", [0, 1, 3])
def test_columns_of_another_length(tmp_path: Path, name: str, n: int) -> None:
    options: dict[str, Any] = {"labels": ["a", "b"]} | {name: ["a"] * n}
    refused(rf"{name} must be as long as the list of images, 2, got {n}\.", some(tmp_path, 2), **options)


def column(values: NDArray[np.int64]) -> NDArray[np.int64]:
    return values[:, None]


@pytest.mark.parametrize(
    "labels",
    [
        {"0.jpg": "a", "1.jpg": "b"},
        {"a", "b"},
        pd.DataFrame({"label": ["a", "b"]}),
        pd.DataFrame({"label": ["a", "b"], "note": ["c", "d"]}),
        column(np.array([0, 1])),
        [["a"], ["b"]],
        [("a",), None],
        [b"a", b"b"],
        np.array([b"a", b"b"]),
        [object, "b"],
    ],
    ids=["dict", "set", "frame", "square frame", "2-d", "lists", "tuple", "bytes", "S1", "type"],
)
@pytest.mark.parametrize("name", ["labels", "truth"])
def test_what_is_no_list_of_labels(tmp_path: Path, labels: Any, name: str) -> None:
    """Each would become classes nobody meant: the keys, the columns, "[0]", "b'a'"."""
    options: dict[str, Any] = {"need_labels": False, name: labels}
    refused(name, some(tmp_path, 2), **options)


def test_a_path_as_labels_of_a_list(tmp_path: Path) -> None:
    for labels in ("t.csv", Path("t.csv")):
        refused("labels must be a list beside a list of images, got a path", some(tmp_path, 1), labels=labels)


@pytest.mark.parametrize("form", [list, np.array, pd.Series])
def test_paths_that_are_no_files(tmp_path: Path, form: Any) -> None:
    (tmp_path / "folder").mkdir()
    names = ["no\nthing.jpg", str(tmp_path / "folder"), "", "nul\0.jpg", "x" * 300]
    message = refused("5 of 6 are not: .* and 2 more", form([*some(tmp_path, 1), *names]))
    assert "are not: 'no\\nthing.jpg', " in message  # as text, and not as np.str_('...')


@pytest.mark.parametrize("path", [3, None, float("nan"), ["a.jpg"]], ids=repr)
def test_what_is_no_path(tmp_path: Path, path: object) -> None:
    refused("path", [*some(tmp_path, 1), path], need_labels=False)


def test_a_broken_link_in_a_list_is_kept(tmp_path: Path) -> None:
    """As in a folder: the health check reports it."""
    (tmp_path / "1.jpg").symlink_to("nowhere.jpg")
    assert len(read_images([tmp_path / "1.jpg"], labels=["a"])) == 1


@linux_only
def test_a_list_of_names_that_are_not_utf8(tmp_path: Path) -> None:
    file = str(tmp_path / os.fsdecode(b"caf\xe9.jpg"))
    plant(tmp_path, os.path.basename(file))
    assert read_images([file], labels=["a"]).files == (file,)


def test_a_path_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some(tmp_path, 3)
    monkeypatch.chdir(tmp_path)
    files = ["0.jpg", "1.jpg", "2.jpg", "./0.jpg", str(tmp_path / "2.jpg")]
    refused("The list of images must name an image once; 2 are named more often: .*0.jpg.*2.jpg", files)
    message = refused("must give an image one label; 1 have several: .*0.jpg", files, labels=list("aabbb"))
    assert "The first is under 'a', 'b'" in message


def test_links_to_one_file_are_two_images(tmp_path: Path) -> None:
    some(tmp_path, 1)
    (tmp_path / "link.jpg").symlink_to("0.jpg")
    assert len(read_images([tmp_path / "0.jpg", tmp_path / "link.jpg"], labels=["a", "b"])) == 2


def test_an_empty_name_is_no_folder() -> None:
    refused("The image folder must be named, got ''", "")


@pytest.mark.parametrize("name", ["Unlabelled", "UNLABELED"])
def test_the_unlabelled_folder_in_capitals(name: str, tmp_path: Path) -> None:
    plant(tmp_path, "cat/1.jpg", f"{name}/2.jpg")
    assert told(read_images(tmp_path)) == {"cat/1.jpg": "cat", f"{name}/2.jpg": None}


def test_folders_that_mean_nothing(tmp_path: Path) -> None:
    plant(tmp_path, "2024/05/1.jpg", "cat/2.jpg", "3.jpg")
    images = read_images(tmp_path, folders="ignore", need_labels=False)
    assert told(images) == {"2024/05/1.jpg": None, "3.jpg": None, "cat/2.jpg": None}
    refused("At least one class must be labelled", tmp_path, folders="ignore")
    refused("folders must be 'classes' or 'ignore', got 'none'", tmp_path, folders="none")


def test_spaces_around_the_name_of_a_folder_are_part_of_it(tmp_path: Path) -> None:
    images = read_images(plant(tmp_path, "oak/1.jpg", " oak/2.jpg"))
    assert images.classes == (" oak", "oak")


@pytest.mark.parametrize("name", ["1.jpg", "a/1.png", "A\\\\1", "elsewhere/1.JPEG"])
def test_what_may_have_been_meant_is_told(name: str, tmp_path: Path) -> None:
    plant(tmp_path / "root", "a/1.jpg", "a/2.jpg")
    table = tmp_path / "t.csv"
    table.write_text(f"file_name,label\n{name},cat\na/2.jpg,\n")
    refused(r"1 of 2 do not: .*\. There is 'a/1\.jpg'\.", tmp_path / "root", labels=table)
