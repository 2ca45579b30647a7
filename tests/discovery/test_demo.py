"""The demo: digits sorted like any other images, and compared with k-means on their pixels."""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import sklearn.datasets
from sklearn.datasets import load_digits
from support import tiny_folder
from support.runtimes import CPU

from sortal.clustering.kmeans import SemiSupervisedKMeans
from sortal.discovery import demo
from sortal.discovery.demo import DemoResult
from sortal.errors import InputError
from sortal.images.datasets import digits
from sortal.images.reading import read_images
from sortal.metrics import Accuracy, accuracy
from sortal.reviews.loading import load_run
from sortal.system import workers
from sortal.system.progress import Runtime

FEW = 300  # digits, for tests that ignore accuracy
HALF = 900  # of the 1797 digits, for those that do not
EPOCHS = 3


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use few digits, read them in one process, and skip the report."""
    grey, numbers = load_digits(return_X_y=True)
    monkeypatch.setattr(sklearn.datasets, "load_digits", lambda *, return_X_y: (grey[:FEW], numbers[:FEW]))  # noqa: N803
    monkeypatch.setattr(workers, "worker_count", lambda _: 1)
    with tiny_folder.quickly():
        yield


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> DemoResult:
    """Run the demo on half of the digits for a few epochs."""
    grey, numbers = load_digits(return_X_y=True)
    with tiny_folder.quickly(), patch("sklearn.datasets.load_digits", lambda **_: (grey[:HALF], numbers[:HALF])):
        return demo.run(tmp_path_factory.mktemp("demo") / "run", k=10, epochs=EPOCHS)


def run(out: Path, **changes: Any) -> DemoResult:
    return demo.run(out, **{"k": 8, "epochs": 0, "runtime": CPU, **changes})


def all_of(found: Accuracy) -> float:
    assert found.all is not None
    return found.all


def test_the_pixels_are_those_of_the_digits(tmp_path: Path) -> None:
    images = digits.write(tmp_path / "digits")
    x = demo.grey_pixels(images, tmp_path / "pixels")
    assert x.shape == (1797, 64)
    assert x.dtype == np.float32
    known, truth = load_digits(return_X_y=True)
    known = known / np.linalg.norm(known, axis=1, keepdims=True)
    nearest = (x @ known.T).argmax(axis=1)
    assert sorted(nearest) == list(range(1797))  # each digit once
    np.testing.assert_array_equal(images.truth, truth[nearest])
    np.testing.assert_allclose(x, known[nearest], atol=0.005)  # 0..16 became 0..255, rounded


def test_learning_beats_k_means_on_pixels_for_old_digits(learned: DemoResult) -> None:
    """Labels hardly help on pixels: both get about 80 %; chance is about 10 %."""
    assert 0.7 < all_of(learned.plain) < 0.85
    assert 0.7 < all_of(learned.semi_supervised) < 0.85
    assert all_of(learned.discovered) > 0.65  # new digits need more epochs
    assert learned.discovered.old is not None
    assert learned.semi_supervised.old is not None
    assert learned.discovered.old > max(learned.semi_supervised.old + 0.1, 0.9)


def test_all_methods_are_compared_on_the_same_unlabelled_images(learned: DemoResult) -> None:
    """And for the same k; k-means on pixels is recomputed here."""
    folder = learned.run.folder
    images = read_images(folder / "images", labels=folder / "images" / "labels.csv")
    assert (images.labelled.sum(), images.unlabelled.sum()) == (226, 674)
    grey = load_digits(return_X_y=True)[0][:HALF]
    x = np.rint(grey[np.random.RandomState(0).permutation(len(grey))] * 255 / 16).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)  # in the order of the files, which is fixed
    for labels, found in ((None, learned.plain), (np.asarray(images.labels), learned.semi_supervised)):
        clusters = SemiSupervisedKMeans(10, n_init=100, random_state=0).fit(x, labels).labels_
        hidden = images.unlabelled
        assert found == accuracy(images.truth[hidden], clusters[hidden], old=range(5))
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["images"] == 674
    assert asdict(learned.discovered) == metrics["accuracy"]
    assert (learned.k_true, learned.run.k.k, learned.run.k.estimated) == (10, 10, False)


def test_the_demo_saves_an_ordinary_run(learned: DemoResult) -> None:
    run = load_run(learned.run.folder)
    assert run.assignments.files == tuple(f"{number:04d}.png" for number in range(HALF))
    assert run.assignments.labels.count(None) == 674
    assert tuple(run.names.values())[:5] == ("0", "1", "2", "3", "4")
    assert [category.kind for category in run.categories] == ["known"] * 5 + ["new"] * 5
    asked = {"backbone": "convnet", "epochs": EPOCHS, "k": 10, "k_max": demo.K_MAX}
    assert vars(run.facts.settings) | asked == vars(run.facts.settings)
    assert all(Path(path).parent == run.folder / "images" for path in run.paths())
    assert learned.seconds > 0


@pytest.mark.usefixtures("quick")
def test_a_second_call_reuses_the_images_unless_other_labels_are_requested(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "images"
    first = run(tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert len(before) == FEW + 1
    again = run(tmp_path / "run")
    for name in ("plain", "semi_supervised", "discovered"):
        assert getattr(first, name) == getattr(again, name)
    other = run(tmp_path / "run", k="auto")
    assert other.run.k.estimated
    assert 5 <= other.run.k.k == len(other.run.categories) <= demo.K_MAX
    assert max(tried.k for tried in other.run.k.curve) <= demo.K_MAX
    contents = tiny_folder.contents(tmp_path)
    for changes in ({"labelled": 0.25}, {"seed": 1}):
        with pytest.raises(InputError, match=r"were labelled otherwise than .* another folder \(out="):
            run(tmp_path / "run", **changes)
    assert tiny_folder.contents(tmp_path) == contents
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


@pytest.mark.usefixtures("quick")
def test_a_folder_with_other_content_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").touch()
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match=r"must be a new or empty folder .* which contains 'letter\.txt'"):
        run(tmp_path / "mine")
    with pytest.raises(InputError, match=r"must be a folder, got .*file'"):
        run(tmp_path / "file")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.thorough
@pytest.mark.usefixtures("quick")
def test_the_same_seed_gives_the_same_result_and_progress_is_reported(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    notes: list[str] = []
    runtime = replace(CPU, progress=lambda *at: seen.append(at), note=notes.append)
    one = run(tmp_path / "one", epochs=1, seed=1, runtime=runtime)
    again = run(tmp_path / "again", epochs=1, seed=1)
    assert one.run.facts.hashes == again.run.facts.hashes
    first, second = (each.to_json() for each in (one, again))
    assert {name for name in first if first[name] != second[name]} <= {"folder", "report", "seconds"}
    steps = list(dict.fromkeys(what for what, _, _ in seen))
    assert (steps[0], steps[-1]) == ("Writing images", "Clustering pixels")
    numbers = [step.partition("]")[0] for step in steps if step.startswith("[")]
    assert numbers == sorted(numbers)
    learning = [(done, total) for what, done, total in seen if what.endswith(" Training") and total]
    assert learning == [(number + 1, 2) for number in range(2)]  # 300 images in batches of 128
    assert tuple(notes) == load_run(tmp_path / "one").facts.notes


@pytest.mark.usefixtures("quick")
def test_old_accuracy_is_undefined_if_every_old_image_is_labelled(tmp_path: Path) -> None:
    result = run(tmp_path / "run", labelled=1.0)
    for found in (result.plain, result.semi_supervised, result.discovered):
        assert found.old is None
        assert found.all == found.new


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k": 4}, r"k must be from 5 .the labelled classes. to \d+ .*, got 4\."),
        ({"epochs": -1}, r"epochs must be a whole number of at least 0 or 'auto', got -1\."),
        ({"labelled": 0}, r"labelled must be above 0 and at most 1, got 0\."),
        ({"runtime": Runtime(device="abacus")}, r"device must be 'auto', 'cpu', .*, got 'abacus'\."),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        run(tmp_path / "run", **changes)
    assert not (tmp_path / "run" / "report.html").exists()
