"""Formats that hold images: links and copies, safe names, and what other tools read."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.exports import HOSTILE, HOSTILE_NAMES, HOW, PLAIN, UNSURE, a_run, assert_rows, cells, content, files_below

from sortal.exchange.export import export
from sortal.exchange.image_formats import LONGEST_FILE_NAME, RESERVED, UniqueNames, safe
from sortal.images.exported import utf8
from sortal.runs.run import DOUBTFUL_STATUSES, Run


def test_folders_keep_images_apart_that_may_not_belong_to_their_category(tmp_path: Path) -> None:
    images = [*UNSURE, ("g.png", "cat", "other")]
    export(a_run(tmp_path, images, names=("cat", "none", "new 1")), "folders", tmp_path / "out")
    sure = {"cat/a.png", "cat/b.png", "cat/a (2).png", "new 1/test_1.png", "new 1/d.png"}
    aside = {"unsure/cat/e.png", "unsure/new 1/f.png", "other/cat/g.png"}
    assert files_below(tmp_path / "out") == {*sure, *aside, "index.csv"}
    assert not (tmp_path / "out/none").exists(), "a category without images has no folder"


def test_the_index_of_folders_maps_each_image_to_its_original(hostile: Run, tmp_path: Path) -> None:
    export(hostile, "folders", tmp_path / "out", how="copy")
    rows = cells(tmp_path / "out/index.csv")
    assert files_below(tmp_path / "out") == {"index.csv", *(row["file_name"] for row in rows)}
    assert_rows(rows, hostile, file="source")
    for row, path in zip(rows, hostile.paths(), strict=True):
        assert content(tmp_path / "out" / row["file_name"]) == content(path)
        for status in DOUBTFUL_STATUSES:
            assert row["file_name"].startswith(f"{status}/") == (row["status"] == status)
    sure = {row["category_id"]: row["file_name"].split("/")[0] for row in rows if row["status"] in ("known", "new")}
    assert len({folder.lower() for folder in sure.values()}) == len(
        sure
    )  # one folder per category, even if case is ignored


def test_images_are_linked_or_copied_as_requested(tmp_path: Path) -> None:
    """Even an image that is itself a relative link."""
    run = a_run(tmp_path, PLAIN[:1])
    (original,) = run.paths()
    os.rename(original, tmp_path / "real.png")
    os.symlink("../real.png", original)
    found = {how: tmp_path / how / "cat/a.png" for how in HOW}
    for how in HOW:
        export(run, "folders", tmp_path / how, how=how)
        assert content(found[how]) == content(original)
    assert [os.path.samefile(found[how], original) for how in HOW] == [True, True, False]
    assert [found[how].is_symlink() for how in HOW] == [False, True, False]
    assert os.readlink(found["symlink"]) == original


def test_names_are_safe_and_unique() -> None:
    made = "../../x→_.._x|..→_|→_|a/b\\c→a_b_c|.hidden→hidden|end. →end|CON→_CON|nul.txt→_nul.txt|console→console"
    made += "|Ünïcode 猫→Ünïcode 猫|two\nlines→two_lines|<script>→_script_|\u202egnp.exe→_gnp.exe|x\udce9→x_"
    for pair in made.split("|"):
        assert "→".join([pair.partition("→")[0], safe(pair.partition("→")[0])]) == pair
    names = UniqueNames("unsure")
    taken = [names.folder(text) for text in ("cat", "CAT", "cat (2)", "cat", "Unsure")]
    assert taken == ["cat", "CAT (2)", "cat (2) (2)", "cat (3)", "Unsure (2)"]
    assert [names.file(path) for path in ("x/b.png", "y/B.PNG", "b.jpg")] == ["b.png", "B (2).PNG", "b.jpg"]
    assert [names.file("image.png") for _ in range(20_000)][-1] == "image (20000).png", "without trying them all"


# Including surrogates, as in file names that are not UTF-8
TEXTS = st.lists(
    st.text(st.characters(exclude_categories=()), max_size=130)
    | st.sampled_from([*HOSTILE_NAMES, "a", "A", "a (2)", "a.png", "A.PNG", "ß", "SS", "ﬁ", "é", "é", "a" * 100]),
    max_size=20,
)


@given(texts=TEXTS, how=st.sampled_from(["folder", "file", "stem"]))
@settings(deadline=None)
@example(texts=["x.aaaaaaaaaaaaaaaaaaaaaaaaa", "x.png"], how="stem")
def test_any_names_become_safe_and_distinct(texts: list[str], how: str) -> None:
    names = UniqueNames("unsure", by_stem=how == "stem")
    given_out = [(names.folder if how == "folder" else names.file)(text) for text in texts]
    keys = [os.path.splitext(name)[0] if how == "stem" else name for name in given_out]
    assert len({key.casefold() for key in [*keys, "unsure"]}) == len(keys) + 1
    for name in given_out:
        assert 0 < len(name.encode("utf-8")) <= LONGEST_FILE_NAME
        assert not set(name) & set('/\\:*?"<>|\0\n\r')
        assert not name.startswith((".", " "))
        assert not name.endswith((".", " "))
        assert not RESERVED.match(name)


def test_the_metadata_of_an_imagefolder_lists_each_image_and_hugging_face_datasets_reads_it(
    hostile: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(hostile, "imagefolder", tmp_path / "out")
    rows = [json.loads(line) for line in (tmp_path / "out/train/metadata.jsonl").read_text("utf-8").splitlines()]
    assert files_below(tmp_path / "out/train") == {"metadata.jsonl", *(row["file_name"] for row in rows)}
    assert_rows(rows, hostile, file="source")
    for row, path in zip(rows, hostile.paths(), strict=True):
        assert content(tmp_path / "out/train" / row["file_name"]) == content(path)

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    read = datasets.load_dataset("imagefolder", data_dir=str(tmp_path / "out"), cache_dir=str(tmp_path / "hf"))
    assert list(read) == ["train"]  # despite images named test and val
    for number, row in enumerate(read["train"]):
        assert row["category"] == utf8(HOSTILE[number][1])
        assert row["image"].convert("RGB").getpixel((0, 0)) == (number, 2 * number % 256, 7)


def test_fiftyone_labels_are_keyed_by_file_name(hostile: Run, tmp_path: Path) -> None:
    export(hostile, "fiftyone", tmp_path / "out")
    read = json.loads(content(tmp_path / "out/labels.json"))
    assert read["classes"] == [*map(utf8, hostile.names.values())]
    by_stem = {path.stem: path for path in (tmp_path / "out/data").iterdir()}
    assert set(by_stem) == set(read["labels"])
    assert len(by_stem) == len(os.listdir(tmp_path / "out/data")) == len(HOSTILE)
    rows = [{**each.pop("attributes"), "category": each.pop("label"), **each} for each in read["labels"].values()]
    assert_rows(rows, hostile, file="source")
    for stem, path in zip(read["labels"], hostile.paths(), strict=True):
        assert content(by_stem[stem]) == content(path)
