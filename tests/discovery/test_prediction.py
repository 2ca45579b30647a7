"""Prediction: categories of unseen images, and updates that add them to a run."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import SortedRun
from numpy.typing import NDArray
from PIL import Image
from support import tiny_folder as tiny
from support.rounding import rounding
from support.runtimes import CPU
from support.thorough import thorough_but
from support.tiny_folder import CLASSES, EACH, OLD, scores_of, sort, spy

from sortal.discovery import prediction, results
from sortal.discovery.earlier import with_added
from sortal.discovery.prediction import PREDICTED_COLUMNS, Prediction, predict
from sortal.discovery.streaming import pixels_of
from sortal.errors import InputError
from sortal.images.exif import CAMERA_MODEL, EXIF_IFD, TAKEN
from sortal.images.reading import read_images
from sortal.images.store.pixel_store import PixelStore
from sortal.reviews import journal
from sortal.reviews.actions import Merge, Rename, Split
from sortal.reviews.loading import load_run, save_run
from sortal.runs.facts import ImageSource
from sortal.runs.run import DECISIONS, DOUBTFUL_STATUSES, INITIAL, LOG, OTHER, UNSURE, Run
from sortal.runs.storage import HEAD
from sortal.system import cache, csv_tables
from sortal.system.files import lock_folder

N = 6 * EACH
ADDED = 6 * 3
pytestmark = pytest.mark.usefixtures("quickly")


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a folder of further images of every planted class."""
    folder = tmp_path_factory.mktemp("more")
    some_of_each(folder, 500)
    return folder


def some_of_each(folder: Path, start: int) -> None:
    tiny.write(folder, {f"{name}/{start + n}.png": f"{name} {start + n}" for name in CLASSES for n in range(3)})


def oaks(folder: Path, n: int) -> set[str]:
    """Write images of an unseen class."""
    return set(tiny.write(folder, {f"oak {number}.png": f"oak {number}" for number in range(n)}))


def category_of(found: SortedRun, name: str) -> str:
    """Return the name of the category of a planted class."""
    a = found.run.assignments
    (category,) = {int(j) for j, file in zip(a.category_id.tolist(), a.files, strict=True) if found.truth[file] == name}
    return found.run.names[category]


def names_of(found: Prediction) -> list[str]:
    return [found.run.names[j] for j in found.assignments.category_id.tolist()]


def distances(found: Run) -> NDArray[np.float64]:
    """Compute distances to centres (n, k) the slow way."""
    x, centres = np.asarray(found.features, dtype=np.float64), found.centres.astype(np.float64)
    return np.array([[np.sqrt(((a - b) ** 2).sum()) for b in centres] for a in x])


def assert_means(found: Run, rows: NDArray[np.bool_], category: NDArray[np.int64]) -> None:
    """Check that each centre is the mean over some rows of its category."""
    for j, centre in enumerate(found.centres):
        mean = np.asarray(found.features[rows & (category == j)], dtype=np.float64).mean(axis=0)
        np.testing.assert_allclose(centre, mean, rtol=0, atol=1e-5)


def test_images_of_the_run_are_assigned_to_the_nearest_centre(copied_run: SortedRun) -> None:
    found, a = predict(copied_run.out, copied_run.images, runtime=CPU).assignments, copied_run.run.assignments
    assert found.files == a.files
    among = distances(copied_run.run)
    np.testing.assert_array_equal(found.category_id, among.argmin(axis=1))
    np.testing.assert_allclose(found.distance, among.min(axis=1), atol=1e-6)
    free = a.status != "labelled"
    np.testing.assert_array_equal(found.category_id[free], a.category_id[free])
    np.testing.assert_array_equal(found.status[free], a.status[free])
    np.testing.assert_allclose(found.confidence[free], a.confidence[free], atol=1e-5)
    assert "labelled" not in found.status


def test_further_images_are_assigned_to_the_category_of_their_class(
    copied_run: SortedRun, more: Path, tmp_path: Path
) -> None:
    """Nothing is written outside the cache."""
    before = tiny.contents(copied_run.out)
    found = predict(copied_run.out, more, runtime=CPU)
    assert tiny.contents(copied_run.out) == before
    a, named = found.assignments, names_of(found)
    assert a.files == tuple(sorted(f"{name}/{n}.png" for name in CLASSES for n in (500, 501, 502)))
    for file, category, status in zip(a.files, named, a.status, strict=True):
        name = file.partition("/")[0]
        assert category == category_of(copied_run, name)
        assert status in ("known" if name in OLD else "new", *DOUBTFUL_STATUSES)
    assert np.isin(a.status, ("known", "new")).mean() > 0.8
    (tmp_path / "table.csv").write_bytes(found.to_csv())
    rows = tiny.rows_of(tmp_path / "table.csv")
    assert tuple(rows[0]) == PREDICTED_COLUMNS
    written = [(row["file_name"], row["category"], int(row["category_id"])) for row in rows]
    assert written == [*zip(a.files, named, a.category_id.tolist(), strict=True)]
    frame = found.to_pandas()
    assert (tuple(frame.columns), frame["category"].tolist()) == (PREDICTED_COLUMNS, named)
    assert frame["category_id"].tolist() == a.category_id.tolist()
    summary = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert [image["file_name"] for image in summary["images"]] == [*a.files]
    assert tuple(summary["images"][0]) == PREDICTED_COLUMNS
    files = [str(more / file) for file in reversed(a.files)]
    again = predict(load_run(copied_run.out), files, runtime=CPU)
    assert again.assignments.files == tuple(files)
    assert names_of(again) == named[::-1]


def test_columns_of_new_images_stay_with_them(copied_run: SortedRun, tmp_path: Path) -> None:
    run = copied_run.run
    run = replace(run, facts=replace(run.facts, reading=replace(run.facts.reading, exif=True, group_by_time=5)))
    save_run(run)
    (tmp_path / "new").mkdir()
    for number in (1, 2):
        data = Image.Exif()
        data[CAMERA_MODEL], data.get_ifd(EXIF_IFD)[TAKEN] = "One", f"2024:05:01 10:00:0{number}"
        pixels = np.random.default_rng(number).integers(0, 255, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "new" / f"{number}.jpg", exif=data)
    found = predict(run.folder, tmp_path / "new", update=True, runtime=CPU)
    cells = [
        {"exif_camera": "One", "exif_time": f"2024-05-01T10:00:0{at}", "group": "2024-05-01T10:00:01"} for at in (1, 2)
    ]
    (tmp_path / "table.csv").write_bytes(found.to_csv())
    table = csv_tables.read(tmp_path / "table.csv")
    rows = json.loads(json.dumps(found.to_json()))["images"]
    for at, row in enumerate(rows):
        assert {name: row[name] for name in cells[at]} == cells[at]
        assert {name: table[name][at] for name in cells[at]} == cells[at]
    assert found.to_pandas()["exif_time"].dtype.kind == "M"
    again, _ = with_added(copied_run.run.images(), run.folder, found.run.facts)
    camera = again.columns.get("exif_camera")
    assert camera is not None
    assert camera.cells == ("",) * len(copied_run.run.assignments) + ("One", "One")
    assert again.columns.get("exif_latitude") is None  # nobody has one


def test_noise_is_less_sure_and_broken_files_are_listed(copied_run: SortedRun, tmp_path: Path) -> None:
    tiny.write(tmp_path, {f"{number}.png": f"elm {600 + number}" for number in range(4)})
    for number in range(4, 8):
        tiny.save(tmp_path / f"{number}.png", tiny.noise(number))
    tiny.break_some(tmp_path, ["1.png", "3.png", "5.png"])
    found = predict(copied_run.out, tmp_path, runtime=CPU)
    assert [bad.file for bad in found.quarantine] == ["1.png", "3.png", "5.png"]
    assert found.assignments.files == ("0.png", "2.png", "4.png", "6.png", "7.png")
    assert set(names_of(found)[:2]) == {category_of(copied_run, "elm")}
    unsure, confidence = np.isin(found.assignments.status, DOUBTFUL_STATUSES), found.assignments.confidence
    assert not unsure[:2].any()
    assert unsure[2:].sum() >= 2, "noise may look like something by chance"
    assert confidence[2:].max() < confidence[:2].min()
    np.testing.assert_array_equal(unsure, confidence < copied_run.run.confidence.unsure_below)
    assert b"1.png" not in found.to_csv()
    assert [bad["file"] for bad in found.to_json()["quarantine"]] == ["1.png", "3.png", "5.png"]
    tiny.break_some(tmp_path, [f"{number}.png" for number in range(8)])
    with pytest.raises(InputError, match="At least one image must be readable, but none of 8 is"):
        predict(copied_run.out, tmp_path, runtime=CPU)


def test_a_run_without_its_images_predicts_and_one_of_an_array_refuses_an_update(
    copied_run: SortedRun, tmp_path: Path, more: Path
) -> None:
    about = json.loads((copied_run.out / "run.json").read_text())
    about["images"][0]["folder"] = "/gone"
    (copied_run.out / "run.json").write_text(json.dumps(about))
    shutil.rmtree(copied_run.out / "cache")
    sort(tiny.as_array(), tmp_path / "array", method="kmeans")
    for out in (copied_run.out, tmp_path / "array"):
        found = predict(out, more, runtime=CPU)
        assert Counter(names_of(found)) == dict.fromkeys(found.run.names.values(), 3)
    before = tiny.contents(tmp_path / "array")
    with pytest.raises(InputError, match="given as an array"):
        predict(tmp_path / "array", more, update=True, runtime=CPU)
    assert tiny.contents(tmp_path / "array") == before


def test_a_damaged_model_is_reported(copied_run: SortedRun, more: Path) -> None:
    for name in ("model.json", "model.safetensors"):
        path = copied_run.out / name
        content = path.read_bytes()
        for damage in (b"", content[: len(content) // 2], b"{}", None):
            path.unlink()
            if damage is not None:
                path.write_bytes(damage)
            with pytest.raises(InputError, match=r"model\.(json|safetensors)"):
                predict(copied_run.out, more, runtime=CPU)
        path.write_bytes(content)


def test_an_update_appends_rows_to_unchanged_categories_and_adds_no_image_twice(
    copied_run: SortedRun, more: Path, tmp_path: Path
) -> None:
    before, out = copied_run.run, copied_run.out
    assert predict(out, more, update=True, runtime=CPU).added == ADDED
    found = load_run(out)
    assert [(c.id, c.name, c.kind, c.labelled) for c in found.categories] == [
        (c.id, c.name, c.kind, c.labelled) for c in before.categories
    ]
    rows = tiny.rows_of(before.folder / "assignments.csv")
    sizes = Counter(int(row["category_id"]) for row in rows)
    assert [c.size for c in found.categories] == [sizes[j] for j in range(6)] == [c.size + 3 for c in before.categories]
    assert len(rows) == N + ADDED
    assert found.assignments.files[:N] == before.assignments.files
    assert found.assignments.labels[:N] == before.assignments.labels
    np.testing.assert_array_equal(found.assignments.category_id[:N], before.assignments.category_id)
    assert found.features.shape == (N + ADDED, before.features.shape[1])
    np.testing.assert_array_equal(found.features[:N], before.features)
    lengths = np.linalg.norm(found.features[N:].astype(np.float64), axis=1)
    np.testing.assert_allclose(lengths, 1, atol=rounding(512 + 3, np.float32))
    assert found.assignments.folders.tolist() == [0] * N + [1] * ADDED
    assert sorted(found.paths()[N:]) == sorted(map(str, more.rglob("*.png")))
    assert all(os.path.isfile(path) for path in found.paths())
    assert found.facts.images[0] == before.facts.images[0]
    assert found.facts.images[1:] == (ImageSource(folder=str(more), images=ADDED, paths={}),)
    (update,) = found.facts.updates
    assert (update.folder, update.images) == (str(more), ADDED)
    assert found.facts.command == f"{before.facts.command}\nsortal predict {found.folder} {more} --update"
    tiny.strict_json(found.folder / "run.json")
    assert found.report.read_bytes() == tiny.PAGE
    for name in ("model.json", "model.safetensors", "log.jsonl", "confidence.json", "k.json", "quarantine.csv"):
        assert (found.folder / name).exists()
    old, now = before.facts.hashes, found.facts.hashes
    assert now.model == old.model
    assert now.features == cache.hashed(np.asarray(found.features)) != old.features
    assert now.images != old.images
    contents = tiny.contents(out)
    notes: list[str] = []
    for images in (more, copied_run.images):
        assert predict(out, images, update=True, runtime=replace(CPU, note=notes.append)).added == 0
    assert tiny.contents(out) == contents
    assert len(notes) == 2
    # The same images under other names, and a new one twice
    tiny.write(tmp_path / "again", {"a.png": "elm 700", "b.png": "elm 700", "c.png": "ash 0", "d.png": "fir 500"})
    again = predict(out, tmp_path / "again", update=True, runtime=replace(CPU, note=notes.append))
    assert again.added == 1
    assert again.assignments.files == ("a.png", "b.png", "c.png", "d.png")
    assert load_run(out).assignments.files[N + ADDED :] == ("a.png",)
    assert "already contains 3 of these images" in notes[-1]


def test_larger_images_than_the_limit_are_left_out_of_a_run_and_of_predictions(
    sorted_run: SortedRun, tmp_path: Path
) -> None:
    """The limit of a run holds for what is added to it, unless another is given."""
    shutil.copytree(sorted_run.images, tmp_path / "images")
    tiny.write(tmp_path / "new", {"a.png": "elm 700"})
    for folder in ("new", "images"):
        tiny.save(tmp_path / folder / "large.png", np.zeros((100, 100, 3), dtype=np.uint8))
    run = sort(tmp_path / "images", tmp_path / "run", method="kmeans", epochs="auto", max_pixels=9_999)
    (bad,) = run.quarantine
    assert (bad.file, bad.reason, bad.detail) == ("large.png", "too large", "100 × 100 pixels; max_pixels is 9,999")
    assert "--max-pixels 9999" in run.facts.command
    limited = load_run(run.folder)
    assert [bad.file for bad in predict(limited, tmp_path / "new", runtime=CPU).quarantine] == ["large.png"]
    with pytest.raises(InputError, match="max_pixels must be a whole number of at least 1, got 0"):
        predict(limited, tmp_path / "new", max_pixels=0, runtime=CPU)
    assert predict(limited, tmp_path / "new", update=True, max_pixels=10_000, runtime=CPU).added == 2
    updated = load_run(run.folder)
    assert updated.facts.settings.max_pixels == 10_000, "or a report could not show what was added"
    assert updated.facts.command.endswith("--update --max-pixels 10000")
    assert pixels_of(updated, updated.images(), runtime=CPU).present.all()


def test_an_unseen_class_is_a_candidate_until_everything_is_sorted_again(copied_run: SortedRun, tmp_path: Path) -> None:
    unseen = oaks(tmp_path / "oaks", 8)
    tiny.write(tmp_path / "oaks", {f"elm {number}.png": f"elm {800 + number}" for number in range(4)})
    found = predict(copied_run.out, tmp_path / "oaks", update=True, runtime=CPU)
    status = dict(zip(found.assignments.files, found.assignments.status.tolist(), strict=True))
    assert {status[file] for file in unseen} <= {*DOUBTFUL_STATUSES}
    (candidate,) = found.run.candidates
    assert candidate.id == 1
    assert set(candidate.files) == unseen
    again = load_run(copied_run.out)
    assert again.candidates == (candidate,)
    rows = tiny.rows_of(copied_run.out / "candidates.csv")
    assert [row["file_name"] for row in rows] == list(candidate.files)
    assert {(row["nearest"], row["nearest_id"]) for row in rows} == {
        (again.names[candidate.nearest_id], str(candidate.nearest_id))
    }
    middle = again.features[N:][[file in unseen for file in again.assignments.files[N:]]].mean(axis=0)
    assert np.linalg.norm(again.centres - middle, axis=1).argmin() == candidate.nearest_id
    assert found.to_json()["candidates"] == [
        {"id": 1, "files": candidate.files, "folders": (1,) * 8, "nearest_id": candidate.nearest_id},
    ]
    doubtful = np.isin(again.assignments.status, DOUBTFUL_STATUSES).sum()
    assert sum(category.unsure + category.other for category in again.categories) == doubtful >= 8
    notes: list[str] = []
    sorted_again = sort(copied_run.images, copied_run.out, runtime=replace(CPU, note=notes.append))
    assert "12 images that were added to that run take part, unlabelled." in notes
    a = sorted_again.assignments
    assert (len(a), a.folders.tolist()) == (N + 12, [0] * N + [1] * 12)
    assert {*a.files[N:]} == {*found.assignments.files}
    assert sorted_again.facts.updates == found.run.facts.updates
    assert sorted_again.paths() == found.run.paths()
    assert sorted_again.facts.images == found.run.facts.images
    again = sort(copied_run.images, copied_run.out, force=True)
    assert (len(again.assignments), again.facts.updates) == (N, ())
    assert load_run(copied_run.out).candidates == ()
    assert not (copied_run.out / "candidates.csv").exists()


def test_updates_accumulate_and_doubtful_images_that_are_added_move_no_centre(
    copied_run: SortedRun, more: Path, tmp_path: Path
) -> None:
    """A centre is the mean of its original images and of those that were sure when added."""
    path = copied_run.out / "confidence.json"
    confidence = path.read_text()
    path.write_text(json.dumps({**json.loads(confidence), "unsure_below": 1.0, "temperature": 1.0}))
    new = predict(copied_run.out, more, update=True, runtime=CPU).assignments
    assert {UNSURE} <= {*new.status.tolist()} <= {*DOUBTFUL_STATUSES}
    path.write_text(confidence)
    came_sure = [np.ones(N, dtype=bool), np.zeros(ADDED, dtype=bool)]
    oaks(tmp_path / "300", 5)
    for start, n in ((200, ADDED), (300, ADDED + 5)):
        before = load_run(copied_run.out)
        some_of_each(tmp_path / str(start), start)
        added = predict(copied_run.out, tmp_path / str(start), update=True, runtime=CPU)
        assert added.added == n
        came_sure.append(~np.isin(added.assignments.status, DOUBTFUL_STATUSES))
        found = load_run(copied_run.out)
        np.testing.assert_array_equal(found.features[:-n], before.features)
        assert_means(found, np.concatenate(came_sure), found.assignments.category_id)
    a = found.assignments
    assert np.isin(a.status[N : N + ADDED], ("known", "new")).any()
    assert came_sure[2].any()
    # Distances and statuses refer to the moved centres.
    np.testing.assert_allclose(a.distance, distances(found)[np.arange(len(a)), a.category_id], atol=1e-5)
    kinds = np.array([found.categories[j].kind for j in a.category_id])
    sure = np.where(a.confidence >= found.confidence.unsure_below, kinds, UNSURE)
    sure = np.where(found.confidence.fits_nowhere(a.apart), OTHER, sure)
    np.testing.assert_array_equal(a.status, np.where([label is not None for label in a.labels], "labelled", sure))
    assert found.names == copied_run.run.names
    assert sum(category.size for category in found.categories) == len(found.features) == N + 3 * ADDED + 5
    assert a.folders.tolist() == [0] * N + [1] * ADDED + [2] * ADDED + [3] * (ADDED + 5)
    assert [update.images for update in found.facts.updates] == [ADDED, ADDED, ADDED + 5]
    assert [len(candidate.files) for candidate in found.candidates] == [5]


def test_centres_are_weighted_by_the_clusters_they_came_from(
    tmp_path: Path, more: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mislabelled image that was held out is in its class, but its cluster follows its appearance."""
    wrong = {f"ash/elm {number}.png": f"elm {100 + number}" for number in range(4)}
    tiny.write(tmp_path / "images", {**tiny.planted(), **wrong})
    gathered = spy(monkeypatch, results, "gather")
    before = sort(tmp_path / "images", tmp_path / "run", method="kmeans")
    *_, held, _, _, gathered_clusters, _ = gathered[0]
    clusters = gathered_clusters.of
    assert (clusters != before.assignments.category_id)[held].any()
    assert (clusters == before.assignments.category_id)[~held].all()
    assert [before.names[j] for j in before.assignments.category_id[held]] == [
        label for label, out in zip(before.assignments.labels, held, strict=True) if out
    ]
    everything = np.ones(N + 4, dtype=bool)
    assert_means(before, everything, clusters)
    update = predict(tmp_path / "run", more, update=True, runtime=CPU).assignments
    came_sure = np.concatenate([everything, ~np.isin(update.status, DOUBTFUL_STATUSES)])
    assert_means(load_run(tmp_path / "run"), came_sure, np.concatenate([clusters, update.category_id]))


def test_an_update_keeps_the_metrics_redraws_the_report_and_fails_if_the_run_is_locked(
    copied_run: SortedRun, more: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tiny.write_labels(tmp_path / "labels.csv", copied_run.truth, [*copied_run.truth.values()])
    before = sort(copied_run.images, copied_run.out, labels=table).metrics
    shown: list[tuple[int, int]] = []

    def make(found: Run, store: PixelStore, *_: Any, **__: Any) -> bytes:
        shown.append((len(found.assignments), int(store.present.sum())))
        return tiny.PAGE

    monkeypatch.setattr("sortal.web.report.report.make_report", make)
    with lock_folder(copied_run.out), pytest.raises(InputError, match="Another process is using"):
        predict(copied_run.out, more, update=True, runtime=CPU)
    predict(copied_run.out, more, runtime=CPU)
    assert shown == []
    predict(copied_run.out, more, update=True, runtime=CPU)
    assert shown == [(N + ADDED, N + ADDED)]
    after = load_run(copied_run.out)
    assert before
    assert after.metrics
    assert (after.metrics.images, after.metrics.accuracy) == (before.images, before.accuracy)
    assert after.assignments.truth[N:] == (None,) * ADDED


def test_an_update_needs_no_original_files_and_quarantines_unreadable_files_once(
    sorted_run: SortedRun, tmp_path: Path
) -> None:
    """Images that were moved away are no longer shown, but stay in the run."""
    shutil.copytree(sorted_run.images, tmp_path / "images")
    before = sort(tmp_path / "images", tmp_path / "run", method="kmeans")
    shutil.rmtree(tmp_path / "images")
    tiny.write(tmp_path / "more", {f"{number}.png": f"fir {600 + number}" for number in range(6)})
    tiny.break_some(tmp_path / "more", ["1.png", "4.png"])
    found = predict(tmp_path / "run", tmp_path / "more", update=True, runtime=CPU)
    assert (found.added, [bad.file for bad in found.quarantine]) == (4, ["1.png", "4.png"])
    tiny.write(tmp_path / "more", {"fir.png": "fir 900"})
    assert predict(tmp_path / "run", tmp_path / "more", update=True, runtime=CPU).added == 1
    after = load_run(tmp_path / "run")
    assert after.assignments.files[N:] == ("0.png", "2.png", "3.png", "5.png", "fir.png")
    assert [bad.file for bad in after.quarantine] == ["1.png", "4.png"]
    assert after.assignments.contents[:N] == before.assignments.contents
    assert sum(category.size for category in after.categories) == N + 5


@pytest.mark.thorough
def test_of_two_simultaneous_updates_neither_is_lost(
    copied_run: SortedRun, more: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process adds its images after this one read the run and before it writes."""
    tiny.write(tmp_path / "others", {f"{number}.png": f"ash {900 + number}" for number in range(4)})
    turns = [True]

    def meanwhile(*values: Any, **named: Any) -> Any:
        if turns and turns.pop():
            predict(copied_run.out, tmp_path / "others", update=True, runtime=CPU)
        return read_images(*values, **named)

    monkeypatch.setattr(prediction, "read_images", meanwhile)
    predict(copied_run.out, more, update=True, runtime=CPU)
    found = load_run(copied_run.out)
    assert [update.images for update in found.facts.updates] == [4, ADDED]
    assert len(found.assignments) == N + 4 + ADDED


# Prediction by the head of a classifier; test_stages.py checks that every such method writes one


def test_the_head_predicts_and_an_update_keeps_it(sorted_run: SortedRun, more: Path, tmp_path: Path) -> None:
    """Including a head with rotated categories, unlike the centres."""
    images, out = sorted_run.images, tmp_path / "run"
    before = sort(images, out, method="rankstats", epochs=3)
    a, found = before.assignments, predict(out, images, runtime=CPU).assignments
    free = a.status != "labelled"
    assert found.files == a.files
    for column in ("category_id", "status", "next_category_id"):
        np.testing.assert_array_equal(getattr(found, column)[free], getattr(a, column)[free])
    np.testing.assert_allclose(found.confidence[free], a.confidence[free], atol=1e-5)
    np.testing.assert_array_equal(found.category_id, scores_of(before).argmax(axis=1))
    unchanged = (HEAD, INITIAL, LOG, "model.safetensors", "confidence.json", "k.json")
    contents = {name: (out / name).read_bytes() for name in unchanged}
    seen = predict(out, more, runtime=CPU).assignments
    assert predict(out, more, update=True, runtime=CPU).added == ADDED
    assert {name: (out / name).read_bytes() for name in unchanged} == contents
    after = load_run(out)
    assert after.names == before.names
    np.testing.assert_array_equal(after.assignments.category_id, np.concatenate([a.category_id, seen.category_id]))
    np.testing.assert_array_equal(scores_of(after)[N:].argmax(axis=1), seen.category_id)
    assert before.head is not None
    moved = before.head[[*range(1, len(before.head)), 0]]
    save_run(replace(before, head=moved))
    again = predict(out, images, runtime=CPU).assignments
    np.testing.assert_array_equal(again.category_id, (found.category_id - 1) % len(moved))
    assert (again.category_id != distances(before).argmin(axis=1)).any()


# Reviewed categories; test_decisions.py checks each decision


@pytest.mark.parametrize("method", thorough_but(["kmeans"], ["kmeans", "rankstats"]))
def test_a_reviewed_run_predicts_and_is_updated_with_the_names_that_people_gave(
    sorted_run: SortedRun, more: Path, tmp_path: Path, method: str
) -> None:
    """By centres and by a head, after merging, renaming and splitting categories."""
    found = sort(sorted_run.images, tmp_path / "run", method=method, epochs=3)
    first, second, third = (category.id for category in found.categories if category.kind == "new")
    a = found.assignments
    apart = (a.category_id == 0) & (a.status != "labelled") & (np.arange(N) % 2 == 0)
    images = tuple(a.contents[row] for row in np.flatnonzero(apart).tolist())
    actions = (
        Merge(categories=(second, first)),
        Rename(category=1, name="birch"),
        Split(images=images, category=6, name="rowan"),
    )

    def heavy() -> list[tuple[int, int]]:
        found = [(tmp_path / "run" / name).stat() for name in ("features.npy", "model.safetensors")]
        return [(each.st_ino, each.st_mtime_ns) for each in found]

    before = heavy()
    journal.append(tmp_path / "run" / DECISIONS, found.facts, [journal.decide(each) for each in actions])
    edited = load_run(tmp_path / "run")
    names = {0: "ash", 1: "birch", 2: "cedar", second: found.names[second], third: found.names[third], 6: "rowan"}
    assert edited.names == names
    seen = predict(tmp_path / "run", more, runtime=CPU).assignments
    added = predict(tmp_path / "run", more, update=True, runtime=CPU)
    after = load_run(tmp_path / "run")
    assert heavy() == before, "neither is rewritten"
    assert added.run.names == after.names == names
    assert [(c.id, c.kind) for c in after.categories] == [(c.id, c.kind) for c in edited.categories]
    np.testing.assert_array_equal(added.assignments.category_id, seen.category_id)
    expected = np.concatenate([edited.assignments.category_id, seen.category_id])
    np.testing.assert_array_equal(after.assignments.category_id, expected)
    assert sum(c.size for c in after.categories) == len(after.features) == N + ADDED
    assert all(c.size == (expected == c.id).sum() for c in after.categories)
    own = np.argsort([c.id for c in after.categories])[np.searchsorted(sorted(names), after.assignments.category_id)]
    np.testing.assert_allclose(after.assignments.distance, distances(after)[np.arange(N + ADDED), own], atol=1e-5)
    # Images of a class go to its category, by either method.
    where: dict[str, set[str]] = {}
    for file, category in zip(seen.files, seen.category_id.tolist(), strict=True):
        where.setdefault(file.partition("/")[0], set()).add(names[category])
    assert where["beech"] == {"birch"}
    assert where["ash"] <= {"ash", "rowan"}
    assert not (tmp_path / "run" / DECISIONS).exists(), "the decisions are in the run now"
    assert (tmp_path / "run" / "decisions-1.jsonl").exists()
