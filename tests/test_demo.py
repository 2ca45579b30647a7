import dataclasses
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from sortal import demo
from sortal.datasets import digits
from sortal.errors import InputError


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


def test_learned_features_find_more_digits_than_pixels() -> None:
    """On pixels labels hardly help: both land near 75 %, where chance is about 10 %. Learning for a while does."""
    result = demo.run(epochs=12)
    assert (result.n_labelled, result.n_unlabelled) == (450, 1347)
    assert (result.k, result.k_true, result.k_estimated) == (10, 10, False)
    for found in (result.plain, result.semi_supervised):
        assert found.all is not None
        assert 0.7 < found.all < 0.85
    assert result.learned is not None
    assert result.learned.all is not None
    assert result.learned.all > 0.85
    assert result.learned.old is not None
    assert result.learned.old > 0.9


def test_one_seed_one_result() -> None:
    def run(seed: int) -> demo.DemoResult:
        return dataclasses.replace(demo.run(epochs=1, n_init=1, seed=seed), seconds=0.0)

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_old_is_not_defined_when_every_old_image_is_labelled() -> None:
    result = demo.run(labelled=1.0, epochs=1, n_init=1)
    assert result.n_labelled == 901
    for accuracy in (result.plain, result.semi_supervised, result.learned):
        assert accuracy is not None
        assert accuracy.old is None
        assert accuracy.all == accuracy.new


def test_k_can_be_estimated() -> None:
    steps: list[str] = []
    result = demo.run(k="auto", epochs=0, n_init=1, on_progress=lambda what, done, total: steps.append(what))
    assert result.k_estimated
    assert result.learned is None
    assert 5 <= result.k <= demo.K_MAX
    assert steps[:2] == ["Writing and reading images", "Estimating the number of classes"]
    assert all(step.startswith("Estimating the number of classes: ") for step in steps[2:-2])
    assert steps[-2:] == ["Clustering without labels", "Clustering with labels"]


def test_k_below_the_labelled_classes_is_refused() -> None:
    with pytest.raises(InputError, match=r"k must be from 5 .* to 1797 .*, got 4\."):
        demo.run(k=4, epochs=0, n_init=1)


def test_epochs_below_0_are_refused() -> None:
    with pytest.raises(InputError, match=r"epochs must be at least 0, got -1\."):
        demo.run(epochs=-1)


def test_progress_of_learning_has_a_total() -> None:
    seen: list[tuple[str, int, int]] = []
    demo.run(epochs=1, n_init=1, on_progress=lambda *at: seen.append(at))
    learning = [(done, total) for what, done, total in seen if what == "Learning"]
    assert learning == [(i + 1, 14) for i in range(14)]  # 1,797 images in batches of 128
