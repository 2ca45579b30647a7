"""The linear probe against a naive one, and rows of bounds in tables."""

from typing import Any

import numpy as np
import pytest
from support.rounding import rounding
from support.sample_records import example, scores

from sortal.research.benchmark import bounds
from sortal.research.benchmark.bounds import FOLDS, PENALTIES, probe
from sortal.research.benchmark.comparison import tables
from sortal.research.benchmark.records import Bounds, KRecord, Record


def naive(x: Any, codes: Any, evaluated: Any, folds: Any, penalty: float) -> tuple[Any, float]:
    """Return predictions of a probe by the normal equations, row by row, and its least margin."""
    rows = np.array([[*row, 1.0] for row in x.astype(np.float64)])
    scale = np.mean([row @ row for row in rows]) * len(rows) / rows.shape[1]
    predicted, margin = [], np.inf
    for at in np.flatnonzero(evaluated):
        others = folds != folds[at]
        gram = rows[others].T @ rows[others] + penalty * scale * np.eye(rows.shape[1])
        targets = np.array([[float(code == c) for c in range(codes.max() + 1)] for code in codes[others]])
        outputs = rows[at] @ np.linalg.solve(gram, rows[others].T @ targets)
        predicted.append(int(outputs.argmax()))
        margin = min(margin, np.diff(np.sort(outputs)[-2:])[0])
    return np.array(predicted), margin


def sample(n: int = 60, classes: int = 4, seed: int = 0) -> tuple[Any, Any, Any]:
    random = np.random.default_rng(seed)
    codes = np.arange(n) % classes
    x = (random.normal(size=(n, 5)) + 1.2 * np.eye(classes, 5)[codes]).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True), codes, np.arange(n) % 3 > 0


def test_the_probe_predicts_each_fold_from_all_other_images() -> None:
    x, codes, evaluated = sample()
    folds = bounds._folds(codes, evaluated, 0)
    ways = [naive(x, codes, evaluated, folds, penalty) for penalty in PENALTIES]
    condition = (x.shape[1] + 1) / PENALTIES[0]  # eigenvalues are at most their sum, and at least the penalty
    assert min(margin for _, margin in ways) > condition * rounding(1000), "no tie"
    right = [int((predicted == codes[evaluated]).sum()) for predicted, _ in ways]
    assert len(set(right)) > 1, "the penalty matters"
    best = ways[int(np.argmax(right))][0]
    np.testing.assert_array_equal(probe(x, codes + 7, evaluated) - 7, best)


def test_folds_have_about_equally_many_of_each_class_and_only_evaluated_images() -> None:
    codes, evaluated = np.repeat([0, 1, 2], [50, 7, 3]), np.arange(60) != 4
    folds = bounds._folds(codes, evaluated, 1)
    assert np.flatnonzero(folds < 0).tolist() == [4], "which is always learned from"
    for code in range(3):
        counts = np.bincount(folds[(codes == code) & evaluated], minlength=FOLDS)
        assert counts.max() - counts.min() <= 1
    assert (bounds._folds(codes, evaluated, 2) != folds).any()


def test_the_probe_never_sees_the_truth_of_the_image_it_predicts() -> None:
    """With noise for features, it is right by chance: 1 in 5 of 400, ± 5 deviations, though it picks a penalty."""
    random = np.random.default_rng(3)
    x, codes = random.normal(size=(400, 30)).astype(np.float32), random.integers(5, size=400)
    right = (probe(x, codes, np.ones(400, dtype=bool)) == codes).mean()
    assert 0.2 - 0.1 < right < 0.2 + 0.1


def test_a_class_of_one_image_and_a_single_class_are_no_problem() -> None:
    x, codes, _ = sample(21)
    codes[0] = 9
    assert probe(x, codes, np.ones(21, dtype=bool))[0] != 9, "nothing tells what it is"
    assert probe(x, np.zeros(21, dtype=np.int64), np.ones(21, dtype=bool)).tolist() == [0] * 21


# In tables


BOTH = Bounds(floor=scores(20, 30, 10), ceiling=scores(90, 91, 89))


def column(records: list[Record], heading: str) -> dict[str, str]:
    (table,) = tables(records)
    at = table.header.index(heading)
    return {row[0]: row[at] for row in table.text}


def test_the_papers_tables_begin_with_the_floor_and_end_with_the_ceiling() -> None:
    runs = [example(f"table3/cub/{method}", seed, bounds=BOTH) for method in ("gcd", "simgcd") for seed in (0, 1)]
    found = column(runs, "CUB-200-2011 All")
    assert [*found] == [
        *("Floor: raw k-means", "k-means", "RankStats+", "UNO+", "GCD", "SimGCD", "Sortal"),
        "Ceiling: linear probe on the truth",
    ]
    assert found["Floor: raw k-means"] == "20.0 ± 0.0", "of two seeds, whatever the number of methods"
    assert found["Ceiling: linear probe on the truth"] == "90.0 ± 0.0"
    (table,) = tables(runs)
    assert any(note.startswith("Floor is k-means on the features of the network as it came") for note in table.notes)
    assert table.notes[-1].startswith("Recipe version 1, 2; ")
    assert tables([example()])[0].rows[0][0] == "k-means", "no bounds, no rows"


@pytest.mark.parametrize("asked", ["true", "auto"])
def test_every_other_table_has_them_too(asked: Any) -> None:
    k = KRecord(asked=asked, k=8, true=9, error=1 / 9)
    own: dict[str, Any] = {"version": None, "dataset": "pets", "bounds": BOTH, "k": k}
    runs = [example(name=f"pets/{row}", **own) for row in ("gcd", "a_row")]
    assert column(runs, "Old") == {
        "Floor: raw k-means": "30.0",
        "GCD": "60.0",
        "a_row": "60.0",
        "Ceiling: linear probe on the truth": "91.0",
    }
    assert column(runs, "k")["Floor: raw k-means"] == "9"
    assert column(runs, "Minutes")["Floor: raw k-means"] == "–"
