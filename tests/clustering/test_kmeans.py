"""SemiSupervisedKMeans: scikit-learn's checks, the role of labels, edge cases, reproducibility, several processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks
from support.processes import run_two
from support.rounding import rounding

from sortal import SemiSupervisedKMeans, estimate_k
from sortal.clustering.points import BUDGET
from sortal.metrics import accuracy, ari

# Differences from centres are rounded to float32 and squared, and centres too: by 1 of 2²⁴ of their own size, which is
# that of a difference here. Five roundings on either side.
INERTIA = 2 * rounding(5, np.float32)
Data = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]


def planted(n: int = 600, d: int = 16, k: int = 12, old: int = 6, *, seed: int = 0, noise: float = 0.5) -> Data:
    """Make rows, their true classes, and labels for half of the rows of the first `old` classes."""
    rng = np.random.default_rng(seed)
    truth = np.concatenate([np.arange(k), rng.integers(k, size=n - k)])
    x = rng.normal(size=(k, d))[truth] + noise * rng.normal(size=(n, d))
    labels = np.where((truth < old) & (rng.random(n) < 0.5), truth, -1)
    labels[:old] = np.arange(old)
    return x.astype(np.float32), truth, labels


# --- scikit-learn's checks ---------------------------------------------------------------------------------------


class HalfLabelled(SemiSupervisedKMeans):
    """Label every other row as class 7, whatever labels the checks pass.

    The checks pass a class for every row, which leaves nothing to cluster and is an error by design.
    """

    def fit(self, X: Any, y: Any = None) -> HalfLabelled:  # type: ignore[override]
        rows = 0 if y is None else len(np.asarray(y))
        return super().fit(X, None if rows < 2 else np.where(np.arange(rows) % 2, -1, 7))


@parametrize_with_checks([HalfLabelled(3, n_init=2, random_state=0, device="cpu")])  # type: ignore[untyped-decorator]
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)


# --- labels ------------------------------------------------------------------------------------------------------


def test_six_points_by_hand() -> None:
    x = [[0.0, 0.0], [0.0, 1.0], [5.0, 5.0], [5.0, 6.0], [10.0, 0.0], [10.0, 1.0]]
    model = SemiSupervisedKMeans(3, random_state=0).fit(x, np.array(["pear", -1, "fig", -1, -1, -1]))
    assert model.classes_.tolist() == ["fig", "pear"]
    assert model.labels_.tolist() == [1, 1, 0, 0, 2, 2]
    assert model.cluster_centers_.tolist() == [[5.0, 5.5], [0.0, 0.5], [10.0, 0.5]]
    assert model.inertia_ == 6 * 0.25
    assert model.predict([[9.0, 0.0], [1.0, 1.0]]).tolist() == [2, 1]
    assert model.transform([[0.0, 0.5]])[0].tolist() == pytest.approx([50**0.5, 0.0, 10.0])
    assert model.score([[9.0, 0.5], [0.0, 1.5]]) == pytest.approx(-2.0)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10**6), old=st.integers(0, 8), extra=st.integers(0, 6), noise=st.sampled_from([0.3, 1.5]))
def test_invariants(seed: int, old: int, extra: int, noise: float) -> None:
    x, _, labels = planted(150, 5, 8, old, seed=seed, noise=noise)
    k = max(1, old + extra)
    before = (x.copy(), labels.copy())
    model = SemiSupervisedKMeans(k, n_init=2, random_state=seed).fit(x, labels)
    assert (x == before[0]).all(), "the input is not changed"
    assert (labels == before[1]).all()
    known = labels >= 0
    assert (model.labels_[known] == labels[known]).all(), "labelled rows never move"
    assert (model.labels_[~known] == model.predict(x)[~known]).all(), "labels agree with the centres"
    assert set(model.labels_.tolist()) == set(range(k)), "no cluster is empty"
    wide, largest = x.astype(np.float64), float(np.abs(x).max())
    for j in range(k):  # summed in float64; the mean is subtracted and added again in float32
        mean = wide[model.labels_ == j].mean(0)
        np.testing.assert_allclose(model.cluster_centers_[j], mean, rtol=0, atol=4 * 2**-23 * largest)
    inertia = np.square(wide - model.cluster_centers_[model.labels_]).sum()
    assert model.inertia_ == pytest.approx(inertia, rel=1e-5, abs=1e-10)


@pytest.mark.parametrize("offset", [0, 1000])
def test_planted_classes_are_found_and_labels_name_them(offset: float) -> None:
    """A large common offset costs no accuracy."""
    x, truth, labels = planted(noise=0.2)
    model = SemiSupervisedKMeans(12, n_init=10, random_state=0).fit(x + np.float32(offset), labels)
    unlabelled = labels < 0
    assert accuracy(truth[unlabelled], model.labels_[unlabelled], old=range(6)).all == 1.0
    old = unlabelled & (truth < 6)
    assert (model.labels_[old] == truth[old]).all(), "cluster j is the j-th labelled class"


def test_fit_without_labels_is_plain_k_means() -> None:
    x, _, _ = planted(noise=1.0)
    ours = SemiSupervisedKMeans(12, random_state=0).fit(x)
    unlabelled = SemiSupervisedKMeans(12, random_state=0).fit(x, np.full(len(x), -1))
    assert ours.labels_.tolist() == unlabelled.labels_.tolist()
    assert ours.classes_.tolist() == []
    assert ours.inertia_ < 1.02 * KMeans(12, n_init=10, random_state=0, tol=0).fit(x).inertia_
    # The result is a fixed point of Lloyd's iteration, except for rows equally near to two centres.
    again = KMeans(12, init=ours.cluster_centers_, n_init=1, tol=0).fit(x)
    assert again.inertia_ == pytest.approx(ours.inertia_, rel=1e-5)


# --- edge cases --------------------------------------------------------------------------------------------------


def test_k_is_the_number_of_rows() -> None:
    x = np.random.default_rng(0).normal(size=(9, 3))
    for n in (9, 1):
        model = SemiSupervisedKMeans(n, random_state=0).fit(x[:n])
        assert sorted(model.labels_.tolist()) == list(range(n))
        assert model.inertia_ == pytest.approx(0, abs=1e-20)
    model = SemiSupervisedKMeans(3, random_state=0).fit(x[:6], [0, 0, 0, 0, -1, -1])  # one class, two rows for new ones
    assert sorted(model.labels_.tolist()) == [0, 0, 0, 0, 1, 2]


@pytest.mark.parametrize("value", [0.125, 0.1])
@pytest.mark.parametrize("labels", [None, [5, 5, *[-1] * 8]])
def test_constant_data(labels: list[int] | None, value: float) -> None:
    """A tie goes to the first cluster; the mean of tenths is rounded, so that any of the three may be the nearest."""
    with pytest.warns(ConvergenceWarning, match="of 3 clusters are empty"):
        model = SemiSupervisedKMeans(3, random_state=0).fit(np.full((10, 4), value), labels)
    assert len({*model.labels_[2:].tolist()}) == 1
    assert value == 0.1 or set(model.labels_.tolist()) == {0}
    np.testing.assert_allclose(model.cluster_centers_, value)
    assert model.inertia_ == pytest.approx(0, abs=1e-25)


def test_duplicates() -> None:
    x = np.repeat(np.random.default_rng(1).normal(size=(5, 7)).astype(np.float32), 20, axis=0)
    with pytest.warns(ConvergenceWarning, match="3 of 8"):
        model = SemiSupervisedKMeans(8, n_init=3, random_state=0).fit(x)
    assert ari(np.repeat(np.arange(5), 20), model.labels_) == 1.0
    assert np.isfinite(model.cluster_centers_).all()


def test_layout_and_type_do_not_matter() -> None:
    x, _, labels = planted()
    expected = SemiSupervisedKMeans(12, n_init=3, random_state=0).fit(x, labels)
    assert expected.cluster_centers_.dtype == np.float32
    for form in (np.asfortranarray(x), torch.from_numpy(x).double().requires_grad_()):
        model = SemiSupervisedKMeans(12, n_init=3, random_state=0).fit(form, labels)
        assert ari(expected.labels_, model.labels_) == 1.0
        assert model.inertia_ == pytest.approx(expected.inertia_, rel=1e-5)
        assert isinstance(model.labels_, np.ndarray)
    assert model.cluster_centers_.dtype == np.float64


# --- reproducibility ---------------------------------------------------------------------------------------------


def test_seeds_and_n_init_are_honoured() -> None:
    x, _, labels = planted(noise=1.5)

    def fit(**parameters: Any) -> SemiSupervisedKMeans:
        return SemiSupervisedKMeans(25, **parameters).fit(x, labels)

    assert fit(random_state=3).labels_.tolist() == fit(random_state=3).labels_.tolist()
    assert len({fit(random_state=seed, n_init=1).inertia_ for seed in range(5)}) == 5
    assert fit(random_state=np.random.RandomState(3)).inertia_ == fit(random_state=3).inertia_
    falling = [fit(random_state=3, n_init=n).inertia_ for n in (1, 5, 25)]
    assert falling == sorted(falling, reverse=True)
    assert falling[0] > falling[-1]
    assert fit(random_state=3, max_iter=2).n_iter_ <= 2
    few, many = (np.mean([fit(random_state=s, n_init=1, n_candidates=c).inertia_ for s in range(9)]) for c in (1, None))
    assert many < few
    assert fit(random_state=3, n_candidates=5).inertia_ == fit(random_state=3).inertia_, "None is 2 + log(25)"


def test_row_order_and_threads_do_not_matter() -> None:
    x, _, labels = planted(1000, 24, 20, 10, noise=1.2)
    model = SemiSupervisedKMeans(30, n_init=3, random_state=0)
    first = clone(model).fit(x, labels)
    order = np.random.default_rng(1).permutation(len(x))
    shuffled = clone(model).fit(x[order], labels[order])
    assert shuffled.labels_.tolist() == first.labels_[order].tolist()
    assert shuffled.inertia_ == pytest.approx(first.inertia_, rel=INERTIA)
    threads = torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            assert clone(model).fit(x, labels).labels_.tolist() == first.labels_.tolist()
    finally:
        torch.set_num_threads(threads)


def test_rounding_does_not_choose_among_equal_restarts() -> None:
    """On easy data many restarts find the same clusters under other numbers: the first one wins, in any row order."""
    x, truth, labels = planted(400, 16, 12, 4, noise=0.1)
    model = SemiSupervisedKMeans(12, n_init=12, random_state=0)
    first = clone(model).fit(x, labels)
    assert ari(truth, first.labels_) == 1.0
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(len(x))
        assert clone(model).fit(x[order], labels[order]).labels_.tolist() == first.labels_[order].tolist()


def test_the_precision_of_the_caller_is_ignored_and_restored() -> None:
    x, _, labels = planted(noise=1.5)
    model = SemiSupervisedKMeans(20, n_init=2, random_state=0)
    expected = clone(model).fit(x, labels)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", torch.bfloat16):
            found = clone(model).fit(x, labels)
            assert found.labels_.tolist() == expected.labels_.tolist()
            assert found.predict(x).tolist() == expected.predict(x).tolist()
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("n", [600, 40_000])
def test_the_gpu_gives_the_clusters_of_the_cpu(n: int) -> None:
    x, _, labels = planted(n, 64, 30, 10, noise=1.0)
    cpu, gpu = (SemiSupervisedKMeans(40, n_init=5, random_state=0, device=d).fit(x, labels) for d in ("cpu", "cuda"))
    assert gpu.labels_.tolist() == cpu.labels_.tolist()
    assert gpu.inertia_ == pytest.approx(cpu.inertia_, rel=1e-6)


def test_auto_estimates_k() -> None:
    x, _, labels = planted(200, noise=0.2)
    model = SemiSupervisedKMeans("auto", random_state=0).fit(x, labels)
    assert model.k_estimate_ is not None
    assert model.n_clusters_ == model.k_estimate_.k == len(model.cluster_centers_)
    most, seed = 6 + int((labels < 0).sum()), np.random.RandomState(0).randint(2**31 - 1)
    assert model.k_estimate_ == estimate_k(x, labels, k_max=most, random_state=seed)
    assert SemiSupervisedKMeans(5).fit(x).k_estimate_ is None
    few = SemiSupervisedKMeans(random_state=0).fit([[0.0], [0.1], [5.0], [5.1], [2.0]], [0, 0, 1, 1, -1])
    assert few.n_clusters_ <= 3, "one unlabelled row makes one new class at most"


# --- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "y", "message"),
    [
        ({}, [0, 1, 2, -1, -1, -1], r"n_clusters must be at least 3 .* got 2"),
        ({"n_clusters": 7}, None, r"n_clusters must be at most 6 .* 6 of n_samples=6\), got 7"),
        ({"n_clusters": 4}, [0, 0, 0, 0, -1, -1], r"n_clusters must be at most 3 .* got 4"),
        ({}, [0, 1, 0, 1, 0, 1], r"y must leave some rows unlabelled .* 6 rows, all labelled"),
        ({}, [0, 1, -1], r"y must have one label for each of the 6 rows .* \(3,\)"),
        ({"n_clusters": 0}, None, "n_clusters must be a whole number of at least 1 or 'auto', got 0"),
        ({"n_clusters": "many"}, None, "n_clusters must be .* got 'many'"),
        ({"n_candidates": 0}, None, "n_candidates must be .* or None, got 0"),
        ({"n_init": 0}, None, "n_init must be .* got 0"),
        ({"max_iter": 0}, None, "max_iter must be .* got 0"),
        ({"tol": -0.1}, None, "tol must be a number of at least 0, got -0.1"),
        ({"device": "abacus"}, None, "device must be .* got 'abacus'"),
    ],
)
def test_bad_input_is_reported(parameters: dict[str, Any], y: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SemiSupervisedKMeans(**({"n_clusters": 2} | parameters)).fit(np.arange(12.0).reshape(6, 2), y)


# --- several processes -------------------------------------------------------------------------------------------


CUTS = (350, 7)  # rows of the first process: about half of them, and only a few
SEPARATION: Any = {"method": "separation", "n_init": 3, "k_max": 50, "random_state": 0, "device": "cpu"}


def _process(rank: int, folder: Path) -> None:
    group = dist.group.WORLD
    x, _, labels = planted(600, 12, 10, 5, noise=0.9)
    names = np.where(labels < 0, "-1", np.char.add("class ", labels.astype(str)))
    saved: dict[str, Any] = {}
    for cut in CUTS:
        part = slice(0, cut) if rank == 0 else slice(cut, None)
        model = SemiSupervisedKMeans(14, n_init=6, random_state=0, device="cpu").fit(x[part], names[part], group=group)
        saved |= {f"labels {cut}": model.labels_, f"centres {cut}": model.cluster_centers_}
        saved |= {f"inertia {cut}": model.inertia_, f"classes {cut}": model.classes_}
    BUDGET["cpu"] = 400  # too little for all restarts at once: processes with different shares must agree
    again = SemiSupervisedKMeans(14, n_init=6, random_state=0, device="cpu").fit(x[part], names[part], group=group)
    saved["same"] = (again.labels_ == model.labels_).all()
    BUDGET["cpu"] = 1 << 22
    saved["k"] = SemiSupervisedKMeans(random_state=0, device="cpu").fit(x[part], names[part], group=group).n_clusters_
    saved["curve"] = [(at.k, at.score) for at in estimate_k(x[part], names[part], **SEPARATION, group=group).curve]
    rows = [[[1.0], [1.0], [1.0]], [[1.0], [9.0], [5.0]]][rank]
    saved["few"] = SemiSupervisedKMeans(3, n_init=2, random_state=0, device="cpu").fit(rows, group=group).labels_
    try:
        SemiSupervisedKMeans(3, device="cpu").fit(np.full((4, 2), np.nan if rank else 0.0), group=group)
    except ValueError as error:
        saved["problem"] = str(error)
    np.savez(folder / f"{rank}.npz", **saved)


@pytest.mark.thorough
def test_two_processes_give_the_clusters_of_one(tmp_path: Path) -> None:
    run_two(_process, tmp_path)
    parts = [np.load(tmp_path / f"{rank}.npz") for rank in range(2)]
    x, _, labels = planted(600, 12, 10, 5, noise=0.9)
    one = SemiSupervisedKMeans(14, n_init=6, random_state=0, device="cpu").fit(x, labels)
    k = SemiSupervisedKMeans(random_state=0, device="cpu").fit(x, labels).n_clusters_
    for cut in CUTS:
        assert np.concatenate([part[f"labels {cut}"] for part in parts]).tolist() == one.labels_.tolist()
        for part in parts:
            np.testing.assert_allclose(part[f"centres {cut}"], one.cluster_centers_, atol=4 * 2**-23 * np.abs(x).max())
            assert float(part[f"inertia {cut}"]) == pytest.approx(one.inertia_, rel=INERTIA)
            assert part[f"classes {cut}"].tolist() == [f"class {j}" for j in range(5)]
    assert [int(part["k"]) for part in parts] == [k, k]
    curve = [(at.k, at.score) for at in estimate_k(x, labels, **SEPARATION).curve]
    assert parts[0]["curve"].tolist() == parts[1]["curve"].tolist() == [pytest.approx(at, rel=1e-6) for at in curve]
    assert all(part["same"] for part in parts)
    assert ari([1, 1, 1, 1, 9, 5], np.concatenate([part["few"] for part in parts])) == 1.0
    assert [str(part["problem"])[:20] for part in parts] == ["process 1: X must be", "X must be finite, go"]
