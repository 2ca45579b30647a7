"""Evaluation: bins computed by hand, a slow loop as oracle, and agreement with the metrics."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.sample_run import sample_run

from sortal import metrics
from sortal.runs import evaluation
from sortal.runs.evaluation import calibration_error, evaluate, reliability, risk_coverage
from sortal.runs.facts import ReliabilityBin
from sortal.runs.run import Assignments, Category

untimed = settings(deadline=None)
judged = st.lists(
    st.tuples(st.booleans(), st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.75, 1.0]) | st.floats(0, 1)), max_size=40
)


def assigned(
    truth: Sequence[str | None],
    category: Sequence[int],
    *,
    labelled: Sequence[int] = (),
    confidence: Sequence[float] | None = None,
) -> Assignments:
    n = len(truth)
    return replace(
        sample_run(images=n).assignments,
        labels=tuple(truth[row] if row in labelled else None for row in range(n)),
        truth=tuple(truth),
        category_id=np.array(category, dtype=np.int64),
        status=np.array(["labelled" if row in labelled else "unsure" if row % 2 else "known" for row in range(n)]),
        confidence=np.ones(n) if confidence is None else np.array(confidence),
    )


def named(names: Sequence[str], n_known: int) -> tuple[Category, ...]:
    """Make categories in reverse order of their ids; those with the first names are known."""
    made = [Category(id=j, name=name, kind="known" if j < n_known else "new") for j, name in enumerate(names)]
    return tuple(made[::-1])


def columns(rows: list[tuple[bool, float]]) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    return np.array([right for right, _ in rows], dtype=bool), np.array([sure for _, sure in rows], dtype=np.float64)


def test_a_long_curve_is_thinned_between_its_ends() -> None:
    n = 1001
    right = np.arange(n) < 500
    curve = risk_coverage(right, np.linspace(1, 0, n))
    assert len(curve) == evaluation.CURVE_POINTS == 200
    assert curve[0] == (round(1 / n, 6), 1.0, 1.0)
    assert curve[-1] == (1.0, round(500 / n, 6), 0.0)
    every = {round(count / n, 6): round(min(count, 500) / count, 6) for count in range(1, n + 1)}
    assert all(every[coverage] == accuracy for coverage, accuracy, _ in curve)
    gaps = np.diff([coverage for coverage, _, _ in curve])
    assert gaps.max() < 1.5 * gaps.min()  # five or six images
    for few in (200, 201):
        assert len(risk_coverage(np.ones(few, dtype=bool), np.linspace(0, 1, few))) == 200


@untimed
@given(judged)
def test_a_curve_matches_a_plain_loop(rows: list[tuple[bool, float]]) -> None:
    slow = []
    for threshold in sorted({sure for _, sure in rows}, reverse=True):
        among = [right for right, sure in rows if sure >= threshold]
        slow.append(tuple(round(v, 6) for v in (len(among) / len(rows), sum(among) / len(among), threshold)))
    assert risk_coverage(*columns(rows)) == tuple(slow)


def test_reliability_bins_match_those_computed_by_hand() -> None:
    confidence = np.array([0.0, 0.05, 0.1, 0.95, 1.0, 0.9])
    right = np.array([False, True, True, True, True, False])
    assert reliability(right, confidence) == (
        ReliabilityBin(low=0.0, high=0.1, images=2, confidence=0.025, accuracy=0.5),
        ReliabilityBin(low=0.1, high=0.2, images=1, confidence=0.1, accuracy=1.0),
        ReliabilityBin(low=0.9, high=1.0, images=3, confidence=0.95, accuracy=0.666667),
    )
    # (2 · 0.475 + 1 · 0.9 + 3 · 0.283333) / 6
    assert calibration_error(right, confidence) == pytest.approx(0.45, abs=1e-5)
    nothing = columns([])
    assert reliability(*nothing) == ()
    assert calibration_error(*nothing) is None


@untimed
@given(judged.filter(len))
def test_bins_contain_every_image_once(rows: list[tuple[bool, float]]) -> None:
    right, confidence = columns(rows)
    bins = reliability(right, confidence)
    assert sum(each.images for each in bins) == len(rows)
    assert sum(each.images * each.accuracy for each in bins) == pytest.approx(right.sum(), abs=1e-4)
    for each in bins:
        assert each.images > 0
        assert each.low - 1e-6 <= each.confidence <= each.high + 1e-6
    error = calibration_error(right, confidence)
    assert error is not None
    assert 0 <= error <= 1
    assert error >= abs(confidence.mean() - right.mean()) - 1e-4  # a bound, as errors of opposite sign cancel out


NAMES = ("cat", "dog", "new 1", "new 2")
TRUTH = ["cat", "cat", "cat", "dog", "dog", "fox", "fox", "owl", None, "cat", "dog"]
CATEGORY = [0, 0, 1, 1, 1, 2, 2, 2, 3, 0, 1]
SURE = [0.9, 0.8, 0.3, 0.9, 0.6, 0.7, 0.7, 0.4, 0.9, 1.0, 1.0]


def test_the_evaluation_of_a_run_matches_figures_computed_by_hand() -> None:
    found = evaluate(assigned(TRUTH, CATEGORY, labelled=[9, 10], confidence=SURE), named(NAMES, 2))
    assert found is not None
    # Matched: 0 cat, 1 dog, 2 fox. Wrong: the third image, a cat among the dogs, and the owl.
    assert found.images == 8
    assert found.k_true == 4
    assert found.accuracy == metrics.Accuracy(all=0.75, old=0.8, new=2 / 3)
    assert found.known_accuracy == 0.8
    assert found.confusion == (("cat", 0, 2), ("cat", 1, 1), ("dog", 1, 2))
    assert found.risk_coverage.all == (
        (0.25, 1.0, 0.9),
        (0.375, 1.0, 0.8),
        (0.625, 1.0, 0.7),
        (0.75, 1.0, 0.6),
        (0.875, 0.857143, 0.4),
        (1.0, 0.75, 0.3),
    )
    assert found.risk_coverage.old == ((0.4, 1.0, 0.9), (0.6, 1.0, 0.8), (0.8, 1.0, 0.6), (1.0, 0.8, 0.3))
    assert found.risk_coverage.new == ((0.666667, 1.0, 0.7), (1.0, 0.666667, 0.4))
    # old: |0.9 − 1| · 2, |0.8 − 1|, |0.6 − 1| and |0.3 − 0| over 5; new: |0.7 − 1| · 2 and |0.4 − 0| over 3
    assert found.calibration_error.old == pytest.approx(1.1 / 5, abs=1e-6)
    assert found.calibration_error.new == pytest.approx(1.0 / 3, abs=1e-6)
    assert found.calibration_error.all == calibration_error(
        np.array([True, True, False, True, True, True, True, False]), np.array(SURE[:8])
    )
    assert sum(each.images for each in found.reliability) == 8


def test_without_truth_there_is_no_evaluation() -> None:
    assert evaluate(assigned([None, None], [0, 1]), named(["a", "b"], 1)) is None
    assert evaluate(assigned([], []), named(["a"], 1)) is None
    assert evaluate(assigned(["a", None], [0, 1], labelled=[0]), named(["a", "b"], 1)) is None


def test_parts_without_images_have_no_figures() -> None:
    only_new = evaluate(assigned(["fox", "fox"], [0, 0]), named(["new 1"], 0))
    only_old = evaluate(assigned(["cat", "cat"], [0, 1]), named(["cat", "new 1"], 1))
    assert only_new is not None
    assert only_old is not None
    assert only_new.accuracy == metrics.Accuracy(all=1.0, old=None, new=1.0)
    assert only_new.known_accuracy is None
    assert only_new.confusion == ()
    assert only_old.accuracy == metrics.Accuracy(all=0.5, old=0.5, new=None)
    for found, part in ((only_new, "old"), (only_old, "new")):
        assert (getattr(found.risk_coverage, part), getattr(found.calibration_error, part)) == ((), None)
    labelled = evaluate(assigned(["cat", "fox"], [0, 1], labelled=[0]), named(["cat", "new 1"], 1))
    assert labelled is not None
    assert (labelled.images, labelled.k_true) == (1, 2)  # including classes with only labelled images


def test_ties_between_matches_go_to_the_old_class() -> None:
    found = evaluate(assigned(["ant", "cat"], [0, 0], confidence=[0.9, 0.6]), named(["cat"], 1))
    assert found is not None
    assert found.accuracy == metrics.Accuracy(all=0.5, old=1.0, new=0.0)
    curves = {"all": ((0.5, 0.0, 0.9), (1.0, 0.5, 0.6)), "old": ((1.0, 1.0, 0.6),), "new": ((1.0, 0.0, 0.9),)}
    assert vars(found.risk_coverage) == curves


def test_a_class_with_the_name_of_a_new_category_is_not_mistaken_for_it() -> None:
    found = evaluate(assigned(["new 1", "new 1", "cat"], [0, 0, 1]), named(["cat", "new 1"], 1))
    assert found is not None
    assert found.known_accuracy == 0.0
    assert found.accuracy == metrics.Accuracy(all=1.0, old=1.0, new=1.0)


@untimed
@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", "c", "d", "e", None]), st.integers(0, 5), st.booleans(), st.floats(0, 1)),
        min_size=1,
        max_size=40,
    ),
    st.integers(0, 4),
)
def test_figures_agree_with_the_metrics(rows: list[tuple[str | None, int, bool, float]], n_known: int) -> None:
    names = (*"edcb"[:n_known], *(f"new {number}" for number in range(1, 7)))
    old = names[:n_known]
    truths, categories, given_labels, sure = zip(*rows, strict=True)
    labelled = [row for row, truth in enumerate(truths) if given_labels[row] and truth is not None]
    scored = [(truth, j) for row, (truth, j, _, _) in enumerate(rows) if truth is not None and row not in labelled]
    found = evaluate(assigned(truths, categories, labelled=labelled, confidence=sure), named(names, n_known))
    if not scored:
        assert found is None
        return
    assert found is not None
    truth, category = [t for t, _ in scored], [j for _, j in scored]
    expected = metrics.accuracy(truth, category, old=old)
    assert found.accuracy == expected
    assert found.legacy == metrics.legacy_accuracy(truth, category, old=old)
    assert found.nmi == metrics.nmi(truth, category)
    assert found.ari == metrics.ari(truth, category)
    assert found.known_accuracy == metrics.known_accuracy(truth, [names[j] for j in category], old=old)
    for part, share in vars(expected).items():  # the curves end at these figures
        curve = getattr(found.risk_coverage, part)
        assert (curve == ()) == (share is None)
        if share is not None:
            assert curve[-1][:2] == (1.0, pytest.approx(share, abs=1e-6))
    assert {(t, j): count for t, j, count in found.confusion} == {
        (t, j): scored.count((t, j)) for t, j in scored if t in old
    }
