"""Images never seen before: their categories, and the run that takes them in."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_folder as tiny
from numpy.typing import NDArray
from tiny_folder import EACH, NEW, OLD, sort

from sortal import cli, kept, outcome, prediction, run
from sortal.config import CLASSIFIERS
from sortal.errors import InputError
from sortal.prediction import COLUMNS, Prediction, predict
from sortal.reading import read_images
from sortal.run import HEAD, INITIAL, LOG, UNSURE, Run
from sortal.store import PixelStore

N = 6 * EACH
OPTIONS: dict[str, Any] = {"device": "cpu", "workers": 1}
FLOATS = NDArray[np.float64]


@dataclass(frozen=True)
class Sorted:
    """Images, and the run that sorted them."""

    images: Path
    truth: dict[str, str]
    run: Run

    @property
    def out(self) -> Path:
        return self.run.folder

    def category_of(self, name: str) -> str:
        """What the category of a planted class is called."""
        a = self.run.assignments
        (category,) = {int(j) for j, file in zip(a.category.tolist(), a.files, strict=True) if self.truth[file] == name}
        return self.run.names[category]


@pytest.fixture(scope="module", autouse=True)
def _quickly() -> Iterator[None]:
    with tiny.quickly():
        yield


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, _quickly: None) -> Sorted:
    folder = tmp_path_factory.mktemp("base")
    truth = tiny.write(folder / "images")
    return Sorted(folder / "images", truth, sort(folder / "images", folder / "run"))


@pytest.fixture
def copied(base: Sorted, tmp_path: Path) -> Sorted:
    shutil.copytree(base.out, tmp_path / "run")
    return replace(base, run=run.load(tmp_path / "run"))


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Further images of every planted class, below a folder; the true class of each."""
    folder = tmp_path_factory.mktemp("more")
    truth = {}
    for name in (*OLD, *NEW):
        for number in range(500, 503):
            truth[str(tiny.save(folder / f"{name}/{number}.png", tiny.picture(name, number)))] = name
    return truth


def folder_of(more: dict[str, str]) -> Path:
    return Path(next(iter(more))).parent.parent


def names_of(found: Prediction) -> list[str]:
    return [found.run.names[j] for j in found.assignments.category.tolist()]


def distances(x: NDArray[Any], centres: NDArray[Any]) -> FLOATS:
    """(n, k), the slow way."""
    return np.array([[np.sqrt(((a - b) ** 2).sum()) for b in centres.astype(float)] for a in x.astype(float)])


# Without an update


def test_images_of_the_run_are_where_the_nearest_centre_is(base: Sorted) -> None:
    found = predict(base.out, base.images, **OPTIONS)
    a = base.run.assignments
    assert found.assignments.files == a.files
    among = distances(base.run.features, base.run.centres)
    np.testing.assert_array_equal(found.assignments.category, among.argmin(axis=1))
    np.testing.assert_allclose(found.assignments.distance, among.min(axis=1), atol=1e-6)
    free = a.status != "labelled"
    np.testing.assert_array_equal(found.assignments.category[free], a.category[free])
    np.testing.assert_array_equal(found.assignments.status[free], a.status[free])
    np.testing.assert_allclose(found.assignments.confidence[free], a.confidence[free], atol=1e-5)
    assert "labelled" not in found.assignments.status


def test_further_images_of_planted_classes_are_in_their_categories(base: Sorted, more: dict[str, str]) -> None:
    found = predict(base.out, folder_of(more), **OPTIONS)
    for file, category, status in zip(found.assignments.files, names_of(found), found.assignments.status, strict=True):
        name = file.partition("/")[0]
        assert category == base.category_of(name)
        assert status in ("known" if name in OLD else "new", UNSURE)
    assert (found.assignments.status != UNSURE).mean() > 0.8


def test_what_is_like_nothing_is_unsure(base: Sorted, tmp_path: Path) -> None:
    for number in range(6):
        tiny.save(tmp_path / f"{number}.png", tiny.noise(number))
    found = predict(base.out, tmp_path, **OPTIONS)
    assert list(found.assignments.status) == [UNSURE] * 6
    assert (found.assignments.confidence < base.run.confidence["unsure_below"]).all()


def test_a_table_has_a_row_for_each_image(base: Sorted, more: dict[str, str], tmp_path: Path) -> None:
    found = predict(base.out, folder_of(more), **OPTIONS)
    (tmp_path / "table.csv").write_bytes(found.to_csv())
    rows = tiny.rows_of(tmp_path / "table.csv")
    assert tuple(rows[0]) == COLUMNS
    assert [row["file_name"] for row in rows] == sorted(
        f"{name}/{n}.png" for name in OLD + NEW for n in (500, 501, 502)
    )
    assert [row["category_name"] for row in rows] == names_of(found)
    assert [int(row["category"]) for row in rows] == found.assignments.category.tolist()
    said = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert [image["file_name"] for image in said["images"]] == [row["file_name"] for row in rows]
    assert tuple(said["images"][0]) == COLUMNS
    assert (said["quarantine"], said["added"], said["candidates"]) == ([], 0, [])


def test_a_list_of_files_is_predicted(base: Sorted, more: dict[str, str]) -> None:
    files = [*more][::-1]
    found = predict(base.out, files, **OPTIONS)
    assert found.assignments.files == tuple(files)
    assert names_of(found) == [base.category_of(more[file]) for file in files]


def test_predicting_writes_nothing_but_what_it_keeps(copied: Sorted, more: dict[str, str]) -> None:
    before = tiny.contents(copied.out, but=("cache",))
    stamps = {path: path.stat().st_mtime_ns for path in copied.out.iterdir() if path.name != "cache"}
    predict(copied.out, folder_of(more), **OPTIONS)
    assert tiny.contents(copied.out, but=("cache",)) == before
    assert {path: path.stat().st_mtime_ns for path in copied.out.iterdir() if path.name != "cache"} == stamps


def test_broken_files_are_named_and_left_out(base: Sorted, tmp_path: Path) -> None:
    files = {f"{number}.png": f"elm {600 + number}" for number in range(8)}
    tiny.write(tmp_path, files)
    tiny.break_some(tmp_path, ["1.png", "3.png", "5.png"])
    found = predict(base.out, tmp_path, **OPTIONS)
    assert [bad.file for bad in found.quarantine] == ["1.png", "3.png", "5.png"]
    assert found.assignments.files == ("0.png", "2.png", "4.png", "6.png", "7.png")
    assert set(names_of(found)) == {base.category_of("elm")}
    assert b"1.png" not in found.to_csv()
    assert [bad["file"] for bad in found.to_json()["quarantine"]] == ["1.png", "3.png", "5.png"]


def test_where_nothing_can_be_read_that_is_said(base: Sorted, tmp_path: Path) -> None:
    tiny.write(tmp_path, {"0.png": "elm 0", "1.png": "elm 1"})
    tiny.break_some(tmp_path, ["0.png", "1.png"])
    with pytest.raises(InputError, match="There must be an image that can be read, got 2 that cannot"):
        predict(base.out, tmp_path, **OPTIONS)


def test_a_run_whose_images_and_cache_are_gone_still_predicts(copied: Sorted, more: dict[str, str]) -> None:
    about = json.loads((copied.out / "run.json").read_text())
    about["images"][0]["folder"] = "/gone"
    (copied.out / "run.json").write_text(json.dumps(about))
    shutil.rmtree(copied.out / "cache")
    found = predict(copied.out, folder_of(more), **OPTIONS)
    wanted = predict(copied.out, folder_of(more), **OPTIONS)
    assert names_of(found) == names_of(wanted)
    assert Counter(names_of(found)) == dict.fromkeys(copied.run.names, 3)


def test_a_run_of_an_array_predicts_and_says_that_it_takes_nothing_in(tmp_path: Path, more: dict[str, str]) -> None:
    sort(tiny.as_array(), tmp_path / "run", method="kmeans")
    found = predict(tmp_path / "run", folder_of(more), **OPTIONS)
    assert Counter(names_of(found)) == dict.fromkeys(found.run.names, 3)
    before = tiny.contents(tmp_path / "run")
    with pytest.raises(InputError, match="given as an array"):
        predict(tmp_path / "run", folder_of(more), update=True, **OPTIONS)
    assert tiny.contents(tmp_path / "run") == before


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
@pytest.mark.parametrize("how", ["gone", "empty", "cut", "text"])
def test_a_damaged_model_is_said(
    copied: Sorted, more: dict[str, str], capsys: pytest.CaptureFixture[str], name: str, how: str
) -> None:
    path = copied.out / name
    content = path.read_bytes()
    path.unlink()
    if how != "gone":
        path.write_bytes({"empty": b"", "cut": content[: len(content) // 2], "text": b"{}"}[how])
    with pytest.raises(InputError, match=r"model\.(json|safetensors)"):
        predict(copied.out, folder_of(more), **OPTIONS)
    assert cli.main(["predict", str(copied.out), str(folder_of(more)), "--device", "cpu"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_no_run_is_said(tmp_path: Path, more: dict[str, str]) -> None:
    for update in (False, True):
        with pytest.raises(InputError, match="A run must be the folder that sortal discover wrote"):
            predict(tmp_path / "nothing", folder_of(more), update=update, **OPTIONS)
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_writes_the_table(
    base: Sorted, more: dict[str, str], tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    shutil.copytree(folder_of(more), tmp_path / "images")
    (tmp_path / "images/broken.png").write_bytes(b"")
    out = tmp_path / "table.csv"
    words = ["predict", str(base.out), str(tmp_path / "images"), "--device", "cpu", "--workers", "1"]
    assert cli.main([*words, "--out", str(out)]) == 3
    captured = capsysbinary.readouterr()
    assert captured.out == b""
    assert b"cannot be read, left out: broken.png" in captured.err
    assert cli.main(words) == 3
    assert capsysbinary.readouterr().out == out.read_bytes()
    assert cli.main([*words, "--out", str(out)]) == 2
    assert len(tiny.rows_of(out)) == 18


# Updates


@pytest.fixture
def updated(copied: Sorted, more: dict[str, str]) -> Prediction:
    return predict(copied.out, folder_of(more), update=True, **OPTIONS)


def test_an_update_keeps_ids_and_names_and_sums_up(copied: Sorted, updated: Prediction) -> None:
    assert updated.added == 18
    found = run.load(copied.out)
    assert found.names == copied.run.names
    assert [category.kind for category in found.categories] == [category.kind for category in copied.run.categories]
    assert [category.id for category in found.categories] == [*range(6)]
    rows = tiny.rows_of(copied.out / "assignments.csv")
    sizes = Counter(int(row["category"]) for row in rows)
    assert [category.size for category in found.categories] == [sizes[j] for j in range(6)]
    assert sum(sizes.values()) == len(rows) == N + 18
    assert [c.size for c in found.categories] == [c.size + 3 for c in copied.run.categories]
    before = copied.run.assignments
    assert found.assignments.files[:N] == before.files
    np.testing.assert_array_equal(found.assignments.category[:N], before.category)
    assert found.assignments.labels[:N] == before.labels
    assert [category.labelled for category in found.categories] == [c.labelled for c in copied.run.categories]


def test_an_update_appends_rows_of_features(copied: Sorted, updated: Prediction, more: dict[str, str]) -> None:
    found = run.load(copied.out)
    assert found.features.shape == (N + 18, copied.run.features.shape[1])
    np.testing.assert_array_equal(found.features[:N], copied.run.features)
    again = predict(copied.out, folder_of(more), **OPTIONS)
    np.testing.assert_allclose(again.assignments.distance, found.assignments.distance[N:], atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(found.features[N:], axis=1), 1, atol=1e-6)


def test_centres_move_to_the_means_over_old_and_new_images(copied: Sorted, updated: Prediction) -> None:
    """By hand: the mean over the images that made a centre, n times it, and what was sure among the new ones."""
    before, found = copied.run, run.load(copied.out)
    sure = updated.assignments.status != UNSURE
    assert sure.any()
    for j in range(6):
        n = int((before.assignments.category == j).sum())
        added = found.features[N:][sure & (updated.assignments.category == j)].astype(np.float64)
        wanted = (n * before.centres[j].astype(np.float64) + added.sum(axis=0)) / (n + len(added))
        np.testing.assert_allclose(found.centres[j], wanted, rtol=0, atol=1e-6)
        mean = np.concatenate([before.features[before.assignments.category == j], added]).mean(axis=0)
        np.testing.assert_allclose(found.centres[j], mean, rtol=0, atol=1e-5)
    assert not np.array_equal(found.centres, before.centres)


def test_what_is_said_of_images_is_said_of_the_moved_centres(copied: Sorted, updated: Prediction) -> None:
    found = run.load(copied.out)
    among = distances(found.features, found.centres)
    rows = np.arange(N + 18)
    np.testing.assert_allclose(found.assignments.distance, among[rows, found.assignments.category], atol=1e-5)
    labelled = found.assignments.status == "labelled"
    assert labelled.sum() == copied.run.counts()["labelled"]
    sure = found.assignments.confidence >= found.confidence["unsure_below"]
    kinds = np.array([found.categories[j].kind for j in found.assignments.category])
    np.testing.assert_array_equal(
        found.assignments.status, np.where(labelled, "labelled", np.where(sure, kinds, UNSURE))
    )


def test_an_update_says_where_images_came_from(copied: Sorted, updated: Prediction, more: dict[str, str]) -> None:
    found = run.load(copied.out)
    assert found.about["images"][0] == copied.run.about["images"][0]
    assert found.about["images"][1:] == [{"folder": str(folder_of(more)), "images": 18, "paths": {}}]
    ((update),) = found.about["updates"]
    assert (update["folder"], update["images"]) == (str(folder_of(more)), 18)
    assert found.assignments.folders.tolist() == [0] * N + [1] * 18
    assert sorted(found.paths()[N:]) == sorted(more)
    assert all(os.path.isfile(path) for path in found.paths())
    tiny.strict_json(copied.out / "run.json")
    assert found.report.read_bytes() == tiny.PAGE
    kept = ("model.json", "model.safetensors", "log.jsonl", "confidence.json", "k.json", "quarantine.csv")
    for name in kept:
        assert (copied.out / name).exists()


def test_images_that_are_there_already_are_not_added_again(
    copied: Sorted, updated: Prediction, more: dict[str, str], tmp_path: Path
) -> None:
    before = tiny.contents(copied.out)
    notes: list[str] = []
    for images in (folder_of(more), copied.images):
        again = predict(copied.out, images, update=True, on_note=notes.append, **OPTIONS)
        assert again.added == 0
    assert tiny.contents(copied.out) == before
    assert len(notes) == 2
    # Under other names, and one of them twice
    tiny.write(tmp_path / "again", {"a.png": "elm 700", "b.png": "elm 700", "c.png": "ash 0"})
    shutil.copy(next(iter(more)), tmp_path / "again/d.png")
    again = predict(copied.out, tmp_path / "again", update=True, on_note=notes.append, **OPTIONS)
    assert again.added == 1
    assert again.assignments.files == ("a.png", "b.png", "c.png", "d.png")
    assert run.load(copied.out).assignments.files[N + 18 :] == ("a.png",)
    assert "3 images are in the run already" in notes[-1]


def test_a_class_that_was_never_seen_is_a_candidate(copied: Sorted, tmp_path: Path) -> None:
    tiny.write(tmp_path / "oaks", {f"oak {number}.png": f"oak {number}" for number in range(8)})
    tiny.write(tmp_path / "oaks", {f"elm {number}.png": f"elm {800 + number}" for number in range(4)})
    found = predict(copied.out, tmp_path / "oaks", update=True, **OPTIONS)
    oaks = {f"oak {number}.png" for number in range(8)}
    status = dict(zip(found.assignments.files, found.assignments.status.tolist(), strict=True))
    assert {status[file] for file in oaks} == {UNSURE}
    (candidate,) = found.run.candidates
    assert candidate.id == 1
    assert set(candidate.files) == oaks
    again = run.load(copied.out)
    assert again.candidates == (candidate,)
    rows = tiny.rows_of(copied.out / "candidates.csv")
    assert [row["file_name"] for row in rows] == list(candidate.files)
    assert {row["nearest_name"] for row in rows} == {again.names[candidate.nearest]}
    middle = again.features[N:][[file in oaks for file in again.assignments.files[N:]]].mean(axis=0)
    assert np.linalg.norm(again.centres - middle, axis=1).argmin() == candidate.nearest
    assert found.to_json()["candidates"] == [
        {"id": 1, "files": candidate.files, "folders": (1,) * 8, "nearest": candidate.nearest},
    ]
    sizes = {category.name: category.unsure for category in again.categories}
    assert sum(sizes.values()) >= 8
    unsure_ones = again.assignments.status == UNSURE
    assert sum(sizes.values()) == unsure_ones.sum()


def test_unsure_images_do_not_move_centres(copied: Sorted, tmp_path: Path) -> None:
    tiny.write(tmp_path / "oaks", {f"oak {number}.png": f"oak {number}" for number in range(8)})
    predict(copied.out, tmp_path / "oaks", update=True, **OPTIONS)
    np.testing.assert_array_equal(run.load(copied.out).centres, copied.run.centres)


def test_a_second_update_goes_on_from_the_first(copied: Sorted, updated: Prediction, tmp_path: Path) -> None:
    first = run.load(copied.out)
    tiny.write(tmp_path / "second", {f"{name} {n}.png": f"{name} {900 + n}" for name in OLD + NEW for n in range(3)})
    tiny.write(tmp_path / "second", {f"oak {number}.png": f"oak {number}" for number in range(5)})
    found = predict(copied.out, tmp_path / "second", update=True, **OPTIONS)
    assert found.added == 23
    second = run.load(copied.out)
    assert second.names == copied.run.names
    assert sum(category.size for category in second.categories) == len(second.features) == N + 18 + 23
    assert second.assignments.folders.tolist() == [0] * N + [1] * 18 + [2] * 23
    np.testing.assert_array_equal(second.features[: N + 18], first.features)
    assert [update["images"] for update in second.about["updates"]] == [18, 23]
    assert [len(candidate.files) for candidate in second.candidates] == [5]
    came_sure = np.concatenate([updated.assignments.status != UNSURE, found.assignments.status != UNSURE])
    assert not came_sure.all()
    assert_means(second, np.concatenate([np.ones(N, dtype=bool), came_sure]), second.assignments.category)


def test_an_image_that_becomes_sure_later_is_in_no_centre(copied: Sorted, more: dict[str, str], tmp_path: Path) -> None:
    """Each centre is the mean over the images that made it and those that were sure when they came, whatever then."""
    path = copied.out / "confidence.json"
    confidence = path.read_text()
    path.write_text(json.dumps({**json.loads(confidence), "unsure_below": 1.0, "temperature": 1.0}))
    first = predict(copied.out, folder_of(more), update=True, **OPTIONS)
    assert set(first.assignments.status) == {UNSURE}
    path.write_text(confidence)
    came_sure = [np.ones(N, dtype=bool), np.zeros(18, dtype=bool)]
    for start in (200, 300):
        images = tmp_path / str(start)
        tiny.write(images, {f"{name} {n}.png": f"{name} {start + n}" for name in OLD + NEW for n in range(3)})
        came_sure.append(predict(copied.out, images, update=True, **OPTIONS).assignments.status != UNSURE)
    found = run.load(copied.out)
    assert (found.assignments.status[N : N + 18] != UNSURE).any()
    assert_means(found, np.concatenate(came_sure), found.assignments.category)


def test_centres_weigh_what_made_them_not_what_was_told(
    tmp_path: Path, more: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image that is labelled wrong and was held out is in its class, but made the centre of its looks."""
    wrong = {f"ash/elm {number}.png": f"elm {100 + number}" for number in range(4)}
    tiny.write(tmp_path / "images", {**tiny.planted(), **wrong})
    clusters: list[NDArray[np.int64]] = []

    def gather(job: Any, images: Any, held: Any, x: Any, found: Any, *values: Any) -> Run:
        clusters.append(found)
        return outcome_gather(job, images, held, x, found, *values)

    outcome_gather = outcome.gather
    monkeypatch.setattr(outcome, "gather", gather)
    before = sort(tmp_path / "images", tmp_path / "run", method="kmeans")
    assert (clusters[0] != before.assignments.category).any()
    assert_means(before, np.ones(N + 4, dtype=bool), clusters[0])
    update = predict(tmp_path / "run", folder_of(more), update=True, **OPTIONS).assignments
    came_sure = np.concatenate([np.ones(N + 4, dtype=bool), update.status != UNSURE])
    assert_means(run.load(tmp_path / "run"), came_sure, np.concatenate([clusters[0], update.category]))


def assert_means(found: Run, rows: NDArray[np.bool_], category: NDArray[np.int64]) -> None:
    for j, centre in enumerate(found.centres):
        mean = np.asarray(found.features[rows & (category == j)], dtype=np.float64).mean(axis=0)
        np.testing.assert_allclose(centre, mean, rtol=0, atol=1e-5)


def test_sorting_anew_would_drop_what_was_added(copied: Sorted, updated: Prediction) -> None:
    before = tiny.contents(copied.out)
    with pytest.raises(InputError, match=r"18 images were added to the run in .*, which sorting anew would drop"):
        sort(copied.images, copied.out)
    assert tiny.contents(copied.out) == before
    found = sort(copied.images, copied.out, force=True)
    assert len(found.assignments) == N
    assert found.about["updates"] == []
    assert run.load(copied.out).candidates == ()


def test_candidates_of_before_go_where_there_are_none(copied: Sorted, tmp_path: Path) -> None:
    tiny.write(tmp_path / "oaks", {f"oak {number}.png": f"oak {number}" for number in range(8)})
    predict(copied.out, tmp_path / "oaks", update=True, **OPTIONS)
    assert (copied.out / "candidates.csv").exists()
    sort(copied.images, copied.out, force=True)
    assert not (copied.out / "candidates.csv").exists()


def test_an_update_keeps_the_metrics_of_the_truth(copied: Sorted, more: dict[str, str], tmp_path: Path) -> None:
    files = [*copied.truth]
    labels = [tiny.label_of(file) for file in files]
    table = tiny.write_table(tmp_path / "labels.csv", files, labels, [*copied.truth.values()])
    before = sort(copied.images, copied.out, labels=table)
    predict(copied.out, folder_of(more), update=True, **OPTIONS)
    after = run.load(copied.out)
    assert before.metrics is not None
    assert after.metrics is not None
    assert after.metrics["images"] == before.metrics["images"]
    assert after.metrics["accuracy"] == before.metrics["accuracy"]
    assert after.assignments.truth[N:] == (None,) * 18


def test_broken_files_of_an_update_are_not_added(copied: Sorted, tmp_path: Path) -> None:
    tiny.write(tmp_path / "images", {f"{number}.png": f"fir {600 + number}" for number in range(6)})
    tiny.break_some(tmp_path / "images", ["1.png", "4.png"])
    found = predict(copied.out, tmp_path / "images", update=True, **OPTIONS)
    assert (found.added, [bad.file for bad in found.quarantine]) == (4, ["1.png", "4.png"])
    assert run.load(copied.out).assignments.files[N:] == ("0.png", "2.png", "3.png", "5.png")


def test_an_update_needs_no_original_files(base: Sorted, more: dict[str, str], tmp_path: Path) -> None:
    """They may have been moved away since: what is not there any more is not shown, but stays in the run."""
    shutil.copytree(base.images, tmp_path / "images")
    before = sort(tmp_path / "images", tmp_path / "run", method="kmeans")
    shutil.rmtree(tmp_path / "images")
    found = predict(tmp_path / "run", folder_of(more), update=True, **OPTIONS)
    assert found.added == 18
    after = run.load(tmp_path / "run")
    assert after.assignments.contents[:N] == before.assignments.contents
    assert sum(category.size for category in after.categories) == N + 18


def test_two_updates_at_once_are_both_kept(
    copied: Sorted, more: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may have added its images between what this one read and its turn to write."""
    tiny.write(tmp_path / "others", {f"{number}.png": f"ash {900 + number}" for number in range(4)})
    turns = [True]

    def meanwhile(*values: Any, **named: Any) -> Any:
        if turns and turns.pop():
            predict(copied.out, tmp_path / "others", update=True, **OPTIONS)
        return read_images(*values, **named)

    monkeypatch.setattr(prediction, "read_images", meanwhile)
    predict(copied.out, folder_of(more), update=True, **OPTIONS)
    found = run.load(copied.out)
    assert [update["images"] for update in found.about["updates"]] == [4, 18]
    assert len(found.assignments) == N + 22


def test_who_reads_while_files_are_put_into_their_places_gets_the_old_or_the_new_run(
    copied: Sorted, more: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never some files of one and some of the other."""
    replaced = os.replace
    readers: list[Future[Run]] = []

    def slowly(source: Any, target: Any) -> None:
        replaced(source, target)
        if Path(target).parent == copied.out:
            readers.append(pool.submit(run.load, copied.out))
            wait(readers, timeout=0.02)

    monkeypatch.setattr(os, "replace", slowly)
    with ThreadPoolExecutor(32) as pool:
        predict(copied.out, folder_of(more), update=True, **OPTIONS)
        found = [reader.result() for reader in readers]
    assert len(found) >= 8
    for each in found:
        updates = len(each.about["updates"])
        assert updates in (0, 1)
        assert len(each.assignments) == len(each.paths()) == len(each.features) == N + 18 * updates
        assert sum(category.size for category in each.categories) == N + 18 * updates


def test_an_update_is_refused_while_another_process_is_at_work(copied: Sorted, more: dict[str, str]) -> None:
    from sortal.lock import alone

    with alone(copied.out), pytest.raises(InputError, match="Another process is at work"):
        predict(copied.out, folder_of(more), update=True, **OPTIONS)
    assert predict(copied.out, folder_of(more), update=True, **OPTIONS).added == 18


def test_the_report_shows_what_was_added(copied: Sorted, more: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[int, int]] = []

    def make(found: Run, store: PixelStore, **_: Any) -> bytes:
        shown.append((len(found.assignments), int(store.present.sum())))
        return tiny.PAGE

    monkeypatch.setattr("sortal.report.make", make)
    predict(copied.out, folder_of(more), **OPTIONS)
    assert shown == []
    predict(copied.out, folder_of(more), update=True, **OPTIONS)
    assert shown == [(N + 18, N + 18)]


def test_files_that_an_update_cannot_read_are_in_the_runs_quarantine(copied: Sorted, tmp_path: Path) -> None:
    tiny.write(tmp_path / "more", {"elm.png": "elm 900", "broken.png": "elm 901"})
    tiny.break_some(tmp_path / "more", ["broken.png"])
    found = predict(copied.out, tmp_path / "more", update=True, **OPTIONS)
    assert [bad.file for bad in found.quarantine] == ["broken.png"]
    assert "broken.png" in [bad.file for bad in run.load(copied.out).quarantine]
    tiny.write(tmp_path / "more", {"fir.png": "fir 900"})
    predict(copied.out, tmp_path / "more", update=True, **OPTIONS)
    assert [bad.file for bad in run.load(copied.out).quarantine].count("broken.png") == 1


def test_an_update_hashes_what_is_there_now(copied: Sorted, updated: Prediction) -> None:
    before, now = copied.run.about["hashes"], run.load(copied.out).about["hashes"]
    assert now["model"] == before["model"]
    assert now["features"] == kept.hashed(np.asarray(updated.run.features)) != before["features"]
    assert now["images"] != before["images"]


# By the head of a classifier


@pytest.fixture(scope="module", params=CLASSIFIERS)
def classified(
    request: pytest.FixtureRequest, base: Sorted, tmp_path_factory: pytest.TempPathFactory, _quickly: None
) -> Sorted:
    out = tmp_path_factory.mktemp(request.param) / "run"
    return replace(base, run=sort(base.images, out, method=request.param, epochs=3))


@pytest.fixture
def with_head(classified: Sorted, tmp_path: Path) -> Sorted:
    shutil.copytree(classified.out, tmp_path / "run")
    return replace(classified, run=run.load(tmp_path / "run"))


def scores(found: Run) -> FLOATS:
    """(n, k), by hand."""
    assert found.head is not None
    head = found.head.astype(np.float64)
    return np.asarray(found.features, dtype=np.float64) @ head[:, :-1].T + head[:, -1]


def test_images_of_the_run_are_predicted_to_be_where_they_are(classified: Sorted) -> None:
    found, a = predict(classified.out, classified.images, **OPTIONS).assignments, classified.run.assignments
    free = a.status != "labelled"
    assert found.files == a.files
    np.testing.assert_array_equal(found.category[free], a.category[free])
    np.testing.assert_array_equal(found.status[free], a.status[free])
    np.testing.assert_allclose(found.confidence[free], a.confidence[free], atol=1e-5)
    np.testing.assert_array_equal(found.next_category[free], a.next_category[free])
    np.testing.assert_array_equal(found.category, scores(classified.run).argmax(axis=1))


def test_the_head_predicts_and_not_the_nearest_centre(with_head: Sorted) -> None:
    """Also by a head whose first and last category change their names, which no centre knows of."""
    found = with_head.run
    assert found.head is not None
    swapped = found.head[[*range(1, len(found.head)), 0]]
    replace(found, head=swapped).save({}, keep={LOG, INITIAL})
    again = predict(with_head.out, with_head.images, **OPTIONS).assignments
    wanted = (scores(found).argmax(axis=1) - 1) % len(found.head)
    np.testing.assert_array_equal(again.category, wanted)
    assert (again.category != distances(found.features, found.centres).argmin(axis=1)).any()


def test_an_update_keeps_ids_head_and_what_was_before_training(with_head: Sorted, tmp_path: Path) -> None:
    more = {f"{name} {number}.png": f"{name} {500 + number}" for name in tiny.CLASSES for number in range(2)}
    tiny.write(tmp_path / "more", more)
    kept_files = (HEAD, INITIAL, LOG, "model.safetensors", "confidence.json", "k.json")
    before = {name: (with_head.out / name).read_bytes() for name in kept_files}
    told = predict(with_head.out, tmp_path / "more", **OPTIONS).assignments
    updated = predict(with_head.out, tmp_path / "more", update=True, **OPTIONS)
    assert updated.added == 12
    assert {name: (with_head.out / name).read_bytes() for name in kept_files} == before
    found, old = run.load(with_head.out), with_head.run
    assert found.names == old.names
    np.testing.assert_array_equal(found.assignments.category[:N], old.assignments.category)
    np.testing.assert_array_equal(found.assignments.category[N:], told.category)
    np.testing.assert_array_equal(scores(found)[N:].argmax(axis=1), told.category)
    assert sum(category.size for category in found.categories) == N + 12
    sure = told.status != UNSURE
    sizes = np.array(old.about["centre_sizes"])
    for j, centre in enumerate(found.centres):
        rows = sure & (told.category == j)
        total = sizes[j] * old.centres[j].astype(np.float64) + found.features[N:][rows].sum(axis=0)
        wanted = total / (sizes[j] + rows.sum()) if sizes[j] + rows.sum() else old.centres[j]
        np.testing.assert_allclose(centre, wanted, atol=1e-6)


def test_a_damaged_head_is_said(with_head: Sorted) -> None:
    for content in (b"", b"{}", (with_head.out / HEAD).read_bytes()[:-1]):
        (with_head.out / HEAD).write_bytes(content)
        with pytest.raises(InputError, match=r"is damaged: .* --force"):
            predict(with_head.out, with_head.images, **OPTIONS)
