"""Learning on a sample: the same categories as if only the sample were there, and all others by prediction."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support import tiny_folder as tiny
from support.rounding import rounding
from support.runtimes import CPU
from support.sample_run import sample_run
from support.tiny_folder import sort, spy

from sortal.discovery import prediction, streaming
from sortal.discovery.prediction import predict, redraw
from sortal.discovery.reviewing.open import open_session
from sortal.discovery.sampling import draw
from sortal.discovery.streaming import StreamedRows
from sortal.images.reading import read_images
from sortal.images.review_states import ReviewState
from sortal.images.store.crops import CropReader
from sortal.images.store.index import Index
from sortal.images.store.packing import Settings
from sortal.learning.frozen import FrozenEncoder
from sortal.reviews.loading import load_run
from sortal.runs.run import LABELLED, Run

N = 72
SQUARES = 2 * 4 * rounding(512 + 3)  # ‖a‖² − 2 a·b + ‖b‖² of 512 numbers each, if neither is longer than 1
pytestmark = pytest.mark.usefixtures("quickly")


@dataclass(frozen=True)
class Sampled:
    """A folder sorted with a sample, and the sample sorted alone."""

    images: Path
    truth: dict[str, str]
    run: Run
    alone: Run


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Sampled:
    folder = tmp_path_factory.mktemp("sampled")
    truth = tiny.write(folder / "images")
    read = read_images(folder / "images")
    mask = draw(read, N, seed=0)
    cut, text = (folder / "images" / read.files[row] for row in np.flatnonzero(~mask)[[3, 17]])
    cut.write_bytes(cut.read_bytes()[:60])
    text.write_text("this is no image")
    inside, copy = (next(f for f, m in zip(read.files, mask, strict=True) if m == one and f[:10] == "unlabelled")
                    for one in (True, False))  # fmt: skip
    shutil.copyfile(folder / "images" / inside, folder / "images" / copy)
    run = sort(folder / "images", folder / "run", learn_on=N, method="gcd")
    alone = sort(read_images(folder / "images").select(mask), folder / "alone", method="gcd")
    return Sampled(folder / "images", truth, run, alone)


def distances(run: Run) -> NDArray[np.float64]:
    """Return the distances (n, k) of the images from all centres."""
    found: NDArray[np.float64] = np.linalg.norm(run.features[:, None].astype(np.float64) - run.centres, axis=2)
    return found


def sureness(run: Run) -> float:
    """Bound how much two computations of a confidence differ: a softmax of −d²/T, less for images that are far off.

    A change of d²/T has at most twice that effect. Beyond z deviations s, exp(−z²/2) changes by z/s times that of d,
    or z/2ds times that of d².
    """
    given, a = run.confidence, run.assignments
    assert given.exponent is None
    penalty = np.abs(given.beyond(a.category_id, a.distance) / (2 * a.distance * given.deviation[a.category_id])).max()
    return float(SQUARES * (2 / given.temperature + penalty) + rounding(len(run.categories) + 20))


def test_sampled_images_are_sorted_as_if_they_were_alone(sampled: Sampled) -> None:
    a, alone = sampled.run.assignments, sampled.alone.assignments
    row = {file: at for at, file in enumerate(a.files)}
    rows = [row[file] for file in alone.files]
    assert len(rows) == N
    np.testing.assert_array_equal(sampled.run.features[rows], sampled.alone.features)  # the same batches
    np.testing.assert_array_equal(sampled.run.centres, sampled.alone.centres)
    squares = np.sort(distances(sampled.alone) ** 2, axis=1)
    assert np.diff(squares[:, :3], axis=1).min() > SQUARES, "rounding decides no category"
    assert np.abs(alone.confidence - sampled.alone.confidence.unsure_below).min() > sureness(sampled.alone)
    for name in ("category_id", "status", "next_category_id"):
        np.testing.assert_array_equal(getattr(a, name)[rows], getattr(alone, name))
    for name in ("distance", "next_distance"):
        np.testing.assert_allclose(getattr(a, name)[rows] ** 2, getattr(alone, name) ** 2, rtol=0, atol=SQUARES)
    np.testing.assert_allclose(a.confidence[rows], alone.confidence, rtol=0, atol=sureness(sampled.alone))
    assert [each.name for each in sampled.run.categories] == [each.name for each in sampled.alone.categories]


def test_the_others_are_sorted_as_by_prediction_and_keep_their_labels(sampled: Sampled, tmp_path: Path) -> None:
    a, learned = sampled.run.assignments, {*sampled.alone.assignments.files}
    assert [*a.files] == [f for f in sorted(sampled.truth) if f not in {bad.file for bad in sampled.run.quarantine}]
    others = [row for row, file in enumerate(a.files) if file not in learned]
    predicted = predict(sampled.alone, [sampled.images / a.files[row] for row in others], runtime=CPU).assignments
    where = dict(zip(sampled.alone.assignments.contents, sampled.alone.assignments.category_id.tolist(), strict=True))
    names = sampled.run.names
    for at, row in enumerate(others):
        label = tiny.label_of(a.files[row])
        if label is not None:
            assert (names[int(a.category_id[row])], a.status[row], a.confidence[row]) == (label, LABELLED, 1)
        else:
            content = a.contents[row]
            assert a.category_id[row] == where.get(content, int(predicted.category_id[at]))
            np.testing.assert_allclose(a.distance[row], predicted.distance[at], atol=1e-4)
    assert len({*a.contents}) == len(a) - 1, "one is a copy"
    assert len(sampled.run.quarantine) == 2
    assert {bad.file for bad in sampled.run.quarantine}.isdisjoint(a.files)


def test_labels_that_contradict_each_other_are_ignored_wherever_the_copies_are(tmp_path: Path) -> None:
    """Two copies that were learned on, one that was, or none."""
    files = tiny.planted()
    tiny.write(tmp_path / "images", {**files, **{f"ash/b{number}.png": f"beech {number}" for number in range(8)}})
    read = read_images(tmp_path / "images")
    mask = dict(zip(read.files, draw(read, 40, seed=0).tolist(), strict=True))
    assert {mask[f"ash/b{number}.png"] + mask[f"beech/{number}.png"] for number in range(8)} == {0, 1, 2}
    run = sort(tmp_path / "images", tmp_path / "run", learn_on=40, method="kmeans")
    a = run.assignments
    row = {file: at for at, file in enumerate(a.files)}
    for number in range(8):
        one, other = (row[f"{start}{number}.png"] for start in ("ash/b", "beech/"))
        assert (a.labels[one], a.labels[other], a.truth[one], a.truth[other]) == (None,) * 4
        assert LABELLED not in (a.status[one], a.status[other])
        assert a.category_id[one] == a.category_id[other]
    assert (a.labels[row["beech/9.png"]], a.labels[row["ash/0.png"]]) == ("beech", "ash")
    [note] = [each for each in run.facts.notes if "learned on with one of" in each]
    named = next(n for n in range(8) if mask[f"ash/b{n}.png"] + mask[f"beech/{n}.png"] < 2)
    assert f"ash/b{named}.png (also beech/{named}.png)" in note


def test_copies_are_of_one_moment_wherever_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    def apart(x: NDArray[np.float32], *_: object, reference: NDArray[np.float32]) -> NDArray[np.float64]:
        compared.append(len(reference))
        return np.zeros(len(x))

    monkeypatch.setattr(streaming, "apartness", apart)
    monkeypatch.setattr(prediction, "apartness", apart)
    files = tiny.planted()
    tiny.write(tmp_path / "images", {**files, **{f"unlabelled/{copy}.png": files["ash/0.png"] for copy in "abcdefgh"}})
    read = read_images(tmp_path / "images")
    alike = [row for row, file in enumerate(read.files) if file == "ash/0.png" or file[-5:-4] in "abcdefgh"]
    mask = draw(read, 40, seed=0)
    assert mask[alike[0]]
    assert 0 < mask[alike[1:]].sum() < 8
    run = sort(tmp_path / "images", tmp_path / "run", learn_on=40, method="sortal", epochs=1)
    a = run.assignments
    assert len({*a.group[alike].tolist()}) == 1
    assert a.confidence[alike].tolist() == [1, *[1 - a.doubt[alike[0]]] * 8], "as sure as the label of one of them"
    assert a.moments == len(a) - 8
    predict(run, tmp_path / "images" / "ash", runtime=CPU)
    assert compared == [40 - mask[alike[1:]].sum(), a.moments]


def test_images_of_a_group_are_sorted_together() -> None:
    run = sample_run(categories=3, images=9)
    x = np.eye(4, run.features.shape[1], dtype=np.float32)
    nothing = np.zeros(0, dtype=np.bytes_)
    read = StreamedRows(readable=np.ones(4, dtype=bool), contents=nothing, x=x.copy(), quarantine=())
    groups = np.array([*range(9), 20, 20, 21, 4])
    found = streaming._with_means(run, read, groups).x
    assert np.allclose(found[:2], (x[0] + x[1]) / np.sqrt(2), atol=1e-6)
    assert np.array_equal(found[2:], [x[2], run.features[4]])

    a = replace(run.assignments, category_id=np.arange(9), labels=(None,) * 6 + ("x",) + (None,) * 2)
    a = replace(a, reviewed=np.where(np.arange(9) == 8, ReviewState.MOVED, ReviewState.OPEN))
    together = streaming._together(a, 3, np.array([0, 1, 2, 1, 3, 2, 2, 3, 2]))
    assert together.category_id.tolist() == [0, 1, 6, 1, 4, 6, 6, 7, 8]  # of a label, or of one learned on


def test_the_result_is_one_run_whose_pixels_are_those_of_the_sample_and_the_report(sampled: Sampled) -> None:
    run = load_run(sampled.run.folder)
    assert run.facts.settings.learn_on == N
    assert "rest" in run.facts.timings
    assert len(run.assignments) == len(run.features) == 118
    assert any(
        "Learned on 72 images; the categories of the other 46 are predicted." in note for note in run.facts.notes
    )
    index = Index(run.cache / "pixels" / Settings(shorter_side=run.facts.backbone.shorter_side).key)
    shown = {file for each in run.categories for file in each.typical[:10]}
    rows = {file: at for at, file in enumerate(run.assignments.files)}
    stored = {*index.stored}
    assert {*sampled.alone.assignments.contents} <= stored
    assert {run.assignments.contents[rows[file]] for file in shown} <= stored
    assert redraw(run.folder, runtime=CPU) == run.report


def test_a_review_shows_every_image(sampled: Sampled, tmp_path: Path) -> None:
    shutil.copytree(sampled.run.folder, tmp_path / "run")
    assert open_session(load_run(tmp_path / "run", raw=True), runtime=CPU).store.present.all()


def test_what_was_read_before_a_kill_is_not_read_again(
    sampled: Sampled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "COMMIT_EVERY", 0.0)
    shutil.copytree(sampled.run.folder, tmp_path / "run")
    for part in ("streamed", "features"):
        shutil.rmtree(tmp_path / "run/cache" / part)

    def ends(after: int) -> Callable[..., Any]:
        commit, calls = streaming._Stream._commit, [0]

        def counted(self: Any, *given: Any) -> None:
            calls[0] += 1
            if calls[0] > after:
                raise KeyboardInterrupt
            commit(self, *given)

        return counted

    with monkeypatch.context() as patch:
        patch.setattr(streaming._Stream, "_commit", ends(20))
        with pytest.raises(KeyboardInterrupt):
            sort(sampled.images, tmp_path / "run", learn_on=N, method="gcd")
    encoded, read = spy(monkeypatch, FrozenEncoder, "__call__"), spy(monkeypatch, CropReader, "read")
    run = sort(sampled.images, tmp_path / "run", learn_on=N, method="gcd")
    ((_, items, _),) = read
    assert len(items) == 48 - 20
    assert 0 < len(encoded) <= 28 + 2
    np.testing.assert_array_equal(run.assignments.category_id, sampled.run.assignments.category_id)
    np.testing.assert_allclose(run.features, sampled.run.features, atol=1e-5)
    assert run.quarantine == sampled.run.quarantine
    read.clear()
    sort(sampled.images, tmp_path / "run", learn_on=N, method="gcd")
    assert read == [], "a finished run reads no file again"


def test_rows_of_an_array_can_be_predicted_too(tmp_path: Path) -> None:
    images = tiny.as_array()
    run = sort(images, tmp_path / "run", learn_on=N, method="kmeans")
    assert [*run.assignments.files] == [*images.files]
    assert not run.quarantine
