import dataclasses

import numpy as np
import pytest

from sortal import demo
from sortal.errors import InputError


def test_digits() -> None:
    x, truth = demo.digits()
    assert x.shape == (1797, 64)
    assert x.dtype == np.float32
    assert np.bincount(truth).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    np.testing.assert_allclose((x.astype(np.float64) ** 2).sum(axis=1), 1, rtol=1e-6)


def test_hide_keeps_labels_of_old_classes_only() -> None:
    _, truth = demo.digits()
    labels = demo.hide(truth, labelled=0.5, seed=0)
    kept = labels != -1
    assert kept.sum() == 450  # int(0.5 * 901)
    assert set(labels[kept].tolist()) == {0, 1, 2, 3, 4}
    np.testing.assert_array_equal(labels[kept], truth[kept])


def test_hide_draws_as_the_benchmarks_do() -> None:
    truth = np.tile(np.arange(10), 6)
    old_rows = np.flatnonzero(truth < 5)
    before = np.random.get_state()
    try:
        np.random.seed(3)
        kept = old_rows[np.random.choice(30, size=25, replace=False)]  # int(0.85 * 30)
    finally:
        np.random.set_state(before)
    expected = np.full(60, -1)
    expected[kept] = truth[kept]
    np.testing.assert_array_equal(demo.hide(truth, labelled=0.85, seed=3), expected)


@pytest.mark.parametrize("labelled", [0.0, -0.5, 1.01, float("nan"), float("inf")])
def test_hide_wants_a_fraction(labelled: float) -> None:
    with pytest.raises(InputError, match="labelled must be a fraction above 0 and at most 1, got"):
        demo.hide(demo.digits()[1], labelled=labelled, seed=0)


def test_hide_wants_a_label_for_every_old_class() -> None:
    with pytest.raises(InputError, match="leave every old class a labelled image"):
        demo.hide(demo.digits()[1], labelled=0.005, seed=0)  # 4 images cannot cover 5 classes


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_hide_wants_a_seed_numpy_takes(seed: int) -> None:
    with pytest.raises(InputError, match="seed must be between"):
        demo.hide(demo.digits()[1], labelled=0.5, seed=seed)


def test_both_find_most_digits() -> None:
    """On pixels labels hardly help: both land near 75 %, where chance is about 10 %."""
    result = demo.run(n_init=3)
    assert (result.n_labelled, result.n_unlabelled) == (450, 1347)
    assert (result.k, result.k_true, result.k_estimated) == (10, 10, False)
    for found in (result.plain, result.semi_supervised):
        assert found.all is not None
        assert 0.7 < found.all < 0.85


def test_one_seed_one_result() -> None:
    def run(seed: int) -> demo.DemoResult:
        return dataclasses.replace(demo.run(n_init=1, seed=seed), seconds=0.0)

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_old_is_not_defined_when_every_old_image_is_labelled() -> None:
    result = demo.run(labelled=1.0, n_init=1)
    assert result.n_labelled == 901
    for accuracy in (result.plain, result.semi_supervised):
        assert accuracy.old is None
        assert accuracy.all == accuracy.new


def test_k_can_be_estimated() -> None:
    steps: list[str] = []
    result = demo.run(k="auto", n_init=1, on_step=steps.append)
    assert result.k_estimated
    assert 5 <= result.k <= demo.K_MAX
    assert steps[0] == "Estimating the number of classes"
    assert all(step.startswith("Estimating the number of classes: ") for step in steps[1:-2])
    assert steps[-2:] == ["Clustering without labels", "Clustering with labels"]


def test_k_below_the_labelled_classes_is_refused() -> None:
    with pytest.raises(InputError, match=r"k must be from 5 .* to 1797 .*, got 4\."):
        demo.run(k=4, n_init=1)
