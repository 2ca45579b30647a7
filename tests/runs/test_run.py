"""A run: its parts agree, and it is shown as a data frame, as HTML and as JSON."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from support.sample_run import sample_run
from support.saved_runs import HALF, HOSTILE, a_run, hostile_run

from sortal.errors import InputError
from sortal.images.columns import Columns
from sortal.images.image_set import image_set
from sortal.reviews.actions import Bin
from sortal.reviews.history import Review
from sortal.reviews.loading import load_run, save_run
from sortal.runs import storage
from sortal.runs.facts import ImageSource


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip syncing, which does not affect what a killed process leaves."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def test_the_sizes_ids_and_arrays_of_a_run_must_agree() -> None:
    sound = a_run(Path("x"), ["a", "b", "c"], head=True)
    first, second = sound.categories
    assert sound.head is not None
    for broken in (
        {"categories": (replace(first, size=first.size + 1), second)},
        {"categories": (first, replace(second, id=first.id))},
        {"categories": (first, replace(second, id=9))},
        {"confidence": replace(sound.confidence, usual=np.zeros(3))},
        {"categories": (first,)},
        {"features": sound.features[:2]},
        {"centres": sound.centres[:1]},
        {"assignments": sound.assignments.select(np.array([True, True, False]))},
        {"head": sound.head[:1]},
        {"head": sound.head[:, :-1]},
        {"head": sound.head.ravel()},
        {"head": sound.head[0, 0]},
    ):
        with pytest.raises(ValueError, match="must"):
            replace(sound, **broken)


def test_the_data_frame_equals_what_pandas_reads_from_the_table(tmp_path: Path) -> None:
    plain = ["a", "NA", "0012", 'a,b;"c"', " spaces ", "two\nlines", "a\r\nb", "\u2028", "\ufeffmark"]
    wrote = a_run(tmp_path, plain, labels=[None, *plain[1:]], truth=plain)
    save_run(wrote)
    frame = wrote.to_pandas()
    options: dict[str, Any] = {
        "keep_default_na": False,
        "na_values": {"label": [""], "next_distance": [""], "suggested": [""]},
    }
    read = pandas.read_csv(tmp_path / storage.ASSIGNMENTS, dtype={"content": str}, **options)
    assert list(frame.columns) == list(read.columns)
    for name in frame.columns:
        assert frame[name].isna().tolist() == read[name].isna().tolist(), name
        assert frame[name].dropna().tolist() == read[name].dropna().tolist(), name
    assert [frame[name].dtype for name in ("category_id", "confidence", "folder")] == [np.int64, np.float64, np.int64]
    assert load_run(tmp_path).to_pandas().equals(frame)


def test_hostile_names_are_unchanged_in_a_data_frame_and_escaped_in_html() -> None:
    frame = hostile_run(Path("x")).to_pandas()
    assert frame["file_name"].tolist() == list(HOSTILE)
    assert frame["category"].tolist() == list(HOSTILE)
    assert frame["label"].tolist() == [*HALF]
    assert "truth" not in a_run(Path("x"), ["a"]).to_pandas()
    html = hostile_run(Path("<b>&"))._repr_html_()
    html.encode("utf-8")
    assert "<script>" not in html
    assert "&lt;script&gt;window.hit = 1&lt;/script&gt;" in html
    assert "<b>" not in html
    assert "\\udcff" in html
    assert html.count("<tr>") == len(HOSTILE)
    assert html.startswith(f"<p><i>Run: {len(HOSTILE)} images (")
    files = [str(row) for row in range(1300)]
    shown = repr(a_run(Path("photos-run"), files, labels=["x"] + [None] * 1299, of_categories="abc"))
    assert shown == (
        "<Run: 1,300 images (1 labelled, 433 known, 433 new, 433 unsure, 0 other) in 3 categories, 1 of them new; "
        f"{str(Path('photos-run/report.html'))!r}>"
    )
    found = sample_run()
    assert repr(found.assignments) == "<Assignments: 72 images in 6 categories>"
    for each in (found, found.assignments, found.facts, found.k, found.metrics):
        assert len(repr(each)) < 600, "a line or two, however many images there are"


def test_the_summary_of_a_run_is_json() -> None:
    found = hostile_run(Path("x"))
    short = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert short["images"] == len(HOSTILE)
    assert short["status"] == found.counts()
    assert sum(short["status"].values()) == len(HOSTILE)
    assert [each["name"] for each in short["categories"]] == list(HOSTILE)
    review = Review(found)
    review.take(Bin(images=found.assignments.contents[:2]))
    later = review.run().to_json()
    assert (later["binned"], sum(later["status"].values())) == (2, len(HOSTILE) - 2)
    assert ", 2 in the bin)" in repr(review.run())
    folders = [1] * len(HOSTILE)
    assert short["candidates"][0] == {"id": 1, "files": list(HOSTILE), "folders": folders, "nearest_id": 2}
    assert short["quarantine"] == [asdict(bad) for bad in found.quarantine]
    assert (short["report"], short["notes"]) == (str(Path("x/report.html")), list(HOSTILE))
    assert found.names == dict(enumerate(HOSTILE))
    assert (found.report, found.cache) == (Path("x/report.html"), Path("x/cache"))


def test_paths_lie_in_the_folder_of_the_images_unless_recorded_otherwise() -> None:
    photos = ImageSource(folder="/photos", images=2, paths={"sub/b.jpg": "/photos/SUB/b.jpg"})
    more = ImageSource(folder="/more", images=2, paths={"c.jpg": "/elsewhere/d.jpg"})
    files = ["a.jpg", "sub/b.jpg", "a.jpg", "c.jpg"]
    found = a_run(Path("x"), files, folders=[0, 0, 1, 1], facts={"images": (photos, more)})
    first, third = os.path.join("/photos", "a.jpg"), os.path.join("/more", "a.jpg")
    assert found.paths() == [first, "/photos/SUB/b.jpg", third, "/elsewhere/d.jpg"]
    found = a_run(Path("x"), ["0"], facts={"images": (ImageSource(folder=None, images=1, paths={}),)})
    for ask in (found.paths, found.images):
        with pytest.raises(InputError, match="were given as an array, so they have no files"):
            ask()


def test_the_images_of_a_loaded_run_have_their_labels_and_truth(tmp_path: Path) -> None:
    files, labels, truth = ["a", "b", "c", "d"], ["2", None, "10", None], ["2", "10", "10", "fox"]
    given = image_set(files, paths=[f"/photos/{file}" for file in files], labels=labels, truth=truth)
    save_run(a_run(tmp_path, files, labels=labels, truth=truth))
    again = load_run(tmp_path).images()
    assert (again.files, again.paths) == (given.files, given.paths)
    assert (again.classes, again.new_classes) == (("2", "10"), ("fox",)) == (given.classes, given.new_classes)
    np.testing.assert_array_equal(again.labels, given.labels)
    np.testing.assert_array_equal(again.truth, given.truth)
    assert not again.validation.any()


def test_selecting_and_joining_rows_preserves_their_order_and_all_columns() -> None:
    a = hostile_run(Path("x")).assignments
    a = replace(a, columns=Columns.infer(["number"], [[*range(len(a))]]))
    mask = np.arange(len(a)) % 3 == 1
    some, both = a.select(mask), a.select(mask).joined(a.select(~mask))
    rows, others = np.flatnonzero(mask).tolist(), np.flatnonzero(~mask).tolist()
    assert (len(some), len(both)) == (len(rows), len(a))
    assert [each.cells for each in both.columns.each] == [tuple(map(str, [*rows, *others]))]
    for name, column in vars(a).items():
        if name == "columns":
            continue
        picked = getattr(some, name)
        assert type(picked) is type(column)
        assert list(picked) == [column[row] for row in rows]
        expected = [column[row] for row in [*rows, *others]]
        if name == "group":  # those of the others are numbered on
            expected[len(rows) :] = [each + max(rows) + 1 for each in others]
        assert list(getattr(both, name)) == expected, name
    none = a.select(np.zeros(len(a), dtype=bool))
    assert (len(none), none.files, none.category_id.shape) == (0, (), (0,))
    short, long = (replace(some, status=np.full(len(some), word)) for word in ("new", "labelled"))
    assert {*short.joined(long).status} == {"new", "labelled"}, "even if one has longer words"
