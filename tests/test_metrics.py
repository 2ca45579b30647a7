"""Metrics: numbers computed by hand, brute force over all matches and pairs, invariants."""

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sortal.errors import InputError
from sortal.metrics import Accuracy, Scores, accuracy, ari, evaluate, known_accuracy, legacy_accuracy, match, nmi

Rows = list[tuple[int, int]]  # (class, cluster) of each image


@st.composite
def rows(draw: st.DrawFn, min_size: int = 1) -> Rows:
    """Up to 7 classes and up to 7 clusters, either side the larger."""
    classes, clusters = draw(st.integers(1, 7)), draw(st.integers(1, 7))
    pair = st.tuples(st.integers(0, classes - 1), st.integers(0, clusters - 1))
    return draw(st.lists(pair, min_size=min_size, max_size=40))


old_classes = st.sets(st.integers(0, 6))
untimed = settings(deadline=None, max_examples=60)


def columns(rows: Rows) -> tuple[list[int], list[int]]:
    return [truth for truth, _ in rows], [cluster for _, cluster in rows]


# Hand-computed


PAIRS = ["0 cat"] * 5 + ["0 dog"] + ["1 cat"] * 4 + ["1 fox"] * 3 + ["2 dog"] * 2 + ["2 fox"] * 2
THREE = [pair[2:] for pair in PAIRS], [pair[0] for pair in PAIRS]
# The six matches have 10, 7, 7, 6, 4 and 0 correct of 17; the first is 0 cat, 1 fox, 2 dog.


def test_a_match_by_hand() -> None:
    truth, clusters = THREE
    assert match(truth, clusters) == {"0": "cat", "1": "fox", "2": "dog"}
    assert accuracy(truth, clusters, old=["cat", "dog"]) == Accuracy(all=10 / 17, old=7 / 12, new=3 / 5)
    assert accuracy(np.array(truth, dtype=object), tuple(clusters), old=iter(["fox"])).old == 3 / 5
    assert match(["a", "a", "a", "b"], [0, 0, 1, 0]) == {0: "a"}  # 1 and b share no image


def test_known_accuracy_takes_names_literally() -> None:
    truth = ["cat", "cat", "cat", "dog", "fox", "fox"]
    categories = ["cat", "cat", "dog", "new 1", "fox", "cat"]
    assert known_accuracy(truth, categories, old=["cat", "dog"]) == 2 / 4
    assert known_accuracy(truth, categories, old=["wolf"]) is None
    assert known_accuracy([1, 2], ["1", 2], old=[1, 2]) == 1 / 2
    assert known_accuracy(np.array([1, 2]), [1.0, None], old=np.array([1, 2])) == 1 / 2


# Oracles


@cache
def all_matches(size: int) -> NDArray[np.intp]:
    return np.array(list(permutations(range(size))))


def best_match(table: NDArray[np.int64], old: list[int]) -> tuple[int, int]:
    """(correct, correct of old classes) of the best match among all, padded to a square with the null set."""
    size = max(table.shape)
    square = np.zeros((size, size), dtype=np.int64)
    square[: table.shape[0], : table.shape[1]] = table
    hits = square[np.arange(size), all_matches(size)]  # (matches, clusters)
    of_old = np.where(np.isin(all_matches(size), old), hits, 0)
    return max(zip(hits.sum(axis=1).tolist(), of_old.sum(axis=1).tolist(), strict=True))


@untimed
@given(rows(), old_classes)
def test_brute_force_over_all_matches(rows: Rows, old: set[int]) -> None:
    table = np.zeros((7, 7), dtype=np.int64)
    for label, cluster in rows:
        table[cluster, label] += 1
    table = table[: max(columns(rows)[1]) + 1, : max(columns(rows)[0]) + 1]
    old_here = [label for label in range(table.shape[1]) if label in old]
    correct, correct_old = best_match(table, old_here)
    n, n_old = len(rows), sum(label in old for label, _ in rows)

    found = accuracy(*columns(rows), old=old)
    assert found.all == correct / n
    assert found.old == (correct_old / n_old if n_old else None)
    assert found.new == ((correct - correct_old) / (n - n_old) if n > n_old else None)

    mapping = match(*columns(rows), old=old)
    assert len(set(mapping.values())) == len(mapping)
    assert {(label, cluster) for cluster, label in mapping.items()} <= set(rows), "they share an image"
    right = [label for label, cluster in rows if mapping.get(cluster, "nothing") == label]
    assert (len(right), sum(label in old for label in right)) == (correct, correct_old)

    legacy = legacy_accuracy(*columns(rows), old=old)
    new_here = [label for label in range(table.shape[1]) if label not in old]
    legacy_old, legacy_new = (best_match(table[:, part], [])[0] for part in (old_here, new_here))
    assert legacy.old == (legacy_old / n_old if n_old else None)
    assert legacy.new == (legacy_new / (n - n_old) if n > n_old else None)
    assert legacy.all == (legacy_old + legacy_new) / n


def entropy(labels: Sequence[Hashable]) -> float:
    return sum(count / len(labels) * math.log(len(labels) / count) for count in Counter(labels).values())


def adjusted_rand(rows: Rows) -> float:
    """Over all pairs of images: how often class and cluster agree on being the same, less what chance would give."""
    pairs = [(one[0] == other[0], one[1] == other[1]) for one, other in combinations(rows, 2)]
    both, of_class, of_cluster = (sum(map(which, pairs)) for which in (all, lambda p: p[0], lambda p: p[1]))
    expected, most = of_class * of_cluster / max(len(pairs), 1), (of_class + of_cluster) / 2
    return 1.0 if most == expected else (both - expected) / (most - expected)


@untimed
@given(rows(min_size=0), st.lists(st.integers(0, 9), min_size=40, max_size=40), old_classes)
def test_evaluate_is_the_sum_of_its_parts(rows: Rows, categories: list[int], old: set[int]) -> None:
    truth, clusters = columns(rows)
    scores = evaluate(truth, clusters, old=old, categories=categories[: len(rows)])
    assert scores.accuracy == accuracy(truth, clusters, old=old)
    assert scores.legacy == legacy_accuracy(truth, clusters, old=old)
    assert (scores.nmi, scores.ari) == (nmi(truth, clusters), ari(truth, clusters))
    if rows:
        matched = match(truth, clusters, old=old)
        by_class = {name: [matched.get(j) == t for t, j in rows if t == name] for name in truth}
        wanted = sum(sum(right) / len(right) for right in by_class.values()) / len(by_class)
        assert scores.class_mean == pytest.approx(wanted, abs=1e-12)
        apart = entropy(truth) + entropy(clusters)
        assert scores.nmi == pytest.approx(2 - 2 * entropy(rows) / apart if apart else 1.0, abs=1e-12)
        assert scores.ari == pytest.approx(adjusted_rand(rows), abs=1e-12)
    assert scores.known == known_accuracy(truth, categories[: len(rows)], old=old)
    of_old = [label == name for label, name in zip(truth, categories, strict=False) if label in old]
    assert scores.known == (sum(of_old) / len(of_old) if of_old else None)
    k, n = len(set(clusters)), len(set(truth))
    assert (scores.k, scores.classes, scores.k_error) == (k, n, abs(k - n) / n if n else None)
    assert evaluate(truth, clusters, old=old).known is None


# Invariants


@untimed
@given(rows(), old_classes, st.randoms(use_true_random=False))
def test_row_order_and_names_do_not_matter(rows: Rows, old: set[int], random: Any) -> None:
    before = evaluate(*columns(rows), old=old)
    names: list[Hashable] = [3, "3", None, (3,), 2.5, b"3", frozenset({3})]
    random.shuffle(names)
    shuffled = random.sample(rows, len(rows))
    truth, clusters = columns(shuffled)
    renamed = evaluate(truth, [names[cluster] for cluster in clusters], old=old)
    other = evaluate([names[label] for label in truth], clusters, old={names[label] for label in old})
    for found in (renamed, other):
        assert found.nmi == pytest.approx(before.nmi, abs=1e-12)  # a sum, whose order follows that of the names
        # Of matches that are equally good, one counts.
        assert (found.class_mean is None) == (before.class_mean is None)
        assert replace(found, nmi=before.nmi, class_mean=before.class_mean) == before
    assert match(truth, clusters) == match(*columns(rows))


# Labels of every kind


class Series:
    """What pandas and torch have in common."""

    def __init__(self, values: list[Any]) -> None:
        self.values = np.asarray(values)

    def __len__(self) -> int:
        return len(self.values)

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        return self.values


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint64", "float32", "U5", "M8[ns]", "object"])
@pytest.mark.parametrize("scale", [1, 60])
def test_numpy_arrays(dtype: str, scale: int) -> None:
    values = np.array([0, 1, 2]) * scale
    if dtype in ("int8", "int64"):
        values = values * 2 - 120  # int8: offsets up to 240 overflow it
    names = values.astype(dtype)
    truth = names[[["cat", "dog", "fox"].index(name) for name in THREE[0]]]
    clusters = names[[int(cluster) for cluster in THREE[1]]]
    expected = Accuracy(all=10 / 17, old=7 / 12, new=3 / 5)
    assert accuracy(truth, clusters, old=names[:2]) == expected
    assert accuracy(truth, list(clusters), old=list(names[:2])) == expected
    assert accuracy(Series(truth), Series(clusters), old=Series(names[:2])) == expected  # type: ignore[arg-type]
    assert match(truth, clusters) == {names[0]: names[0], names[1]: names[2], names[2]: names[1]}


def test_integers_far_apart_and_at_the_edge_of_their_type() -> None:
    truth = np.array([-(2**63), 2**63 - 1, 2**63 - 1])
    assert accuracy(truth, np.array([5, 5, 7]), old=[2**63 - 1]) == Accuracy(all=2 / 3, old=0.5, new=1.0)
    every = np.arange(-128, 128).astype(np.int8)  # differences overflow int8
    assert match(every, every[::-1]) == {-1 - i: i for i in range(-128, 128)}
    top = np.array([2**64 - 1, 2**64 - 2], dtype=np.uint64)
    assert match(top, [0, 1]) == {0: 2**64 - 1, 1: 2**64 - 2}


def test_numpy_and_python_values_are_the_same_label() -> None:
    truth = [np.int64(3), 3, np.str_("a"), "a"]
    assert accuracy(truth, [0, 0, 1, 1], old=[np.int8(3)]) == Accuracy(all=1.0, old=1.0, new=1.0)
    assert [type(key) for key in match(np.array([3, 4]), np.array(["a", "b"]))] == [str, str]
    booleans = np.array([True, True, False])
    assert accuracy(booleans, [0, 0, 0], old=[True]) == Accuracy(all=2 / 3, old=1.0, new=0.0)
    assert all(isinstance(label, bool) for label in match(booleans, booleans).values())


# Nothing to measure


@pytest.mark.parametrize("empty", [[], np.array([], dtype=int), np.array([], dtype=str)])
def test_no_rows(empty: Any) -> None:
    scores = evaluate(empty, empty, old=[1], categories=empty)
    nothing = Accuracy(all=None, old=None, new=None)
    none = dict.fromkeys(("nmi", "ari", "known", "k_error", "class_mean"))
    assert scores == Scores(accuracy=nothing, legacy=nothing, k=0, classes=0, **none)
    assert match(empty, empty) == {}


# Errors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clusters": [0, 1, 2]}, "clusters must have one label for each row of truth, 2 in all, got 3"),
        ({"categories": [0]}, "categories must have one label for each row of truth, 2 in all, got 1"),
        ({"truth": np.zeros((2, 1))}, r"truth must be one-dimensional, .* got shape \(2, 1\)"),
        ({"truth": [[0], [1]]}, "truth must contain hashable labels .* 'list'"),
        ({"truth": "ab"}, "truth must be a list or array with one label per row, got str"),
        ({"clusters": {0: 1, 1: 0}}, "clusters must be a list or array .* got dict"),
        ({"clusters": iter([0, 1])}, "clusters must be a list or array .* got list_iterator"),
        ({"truth": [0, float("nan")]}, "truth must not contain nan"),
        ({"truth": np.array(["NaT", "2020-01-01"], dtype="M8[D]")}, "truth must not contain .*NaT"),
        ({"truth": [Series([0]), Series([1])]}, "truth must not contain arrays or tensors"),
        ({"old": "cat"}, r"old must be a collection of classes, got 'cat'. For one class, pass \['cat'\]"),
        ({"old": 3}, "old must be a one-dimensional collection of classes, got 3"),
        ({"old": np.array([[3]])}, "old must be a one-dimensional collection of classes, got array"),
        ({"old": [np.nan]}, "old must not contain nan"),
        ({"old": np.array([True, False])}, "old must name classes, not mask them"),
    ],
)
def test_errors_name_parameter_rule_and_value(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"truth": [0, 1], "clusters": [0, 1], "old": [0], "categories": [0, 1]}
    with pytest.raises(InputError, match=message):
        evaluate(**(good | change))
