"""Wrong labels are found by the labels of similar images, and only so many are not learned from."""

import numpy as np
import pytest
from numpy.typing import NDArray

from sortal.discovery.grouping import label_doubt
from sortal.discovery.grouping.label_doubt import VERY_DOUBTFUL, Doubts, doubts, untrusted

Ints = NDArray[np.int64]


def blobs(sizes: list[int], noise: float = 0.15, d: int = 24) -> tuple[NDArray[np.float32], Ints]:
    """Unit rows around one axis for each class."""
    of = np.repeat(np.arange(len(sizes)), sizes)
    x = np.eye(d)[of] + np.random.default_rng(0).normal(0, noise, (len(of), d))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), of


def alone(n: int) -> Ints:
    return np.arange(n)


def test_wrong_labels_are_the_most_doubtful_and_their_true_class_is_suggested() -> None:
    x, of = blobs([60, 50, 20])
    labels, wrong = of.copy(), np.array([3, 4, 25, 61, 70, 100, 112])
    labels[wrong] = [1, 2, 1, 2, 0, 0, 0]
    labels[5] = -1
    found = doubts(x, labels, alone(len(x)))
    assert {*np.argsort(-found.doubt)[: len(wrong)].tolist()} == {*wrong.tolist()}
    assert found.suggested[wrong].tolist() == of[wrong].tolist()
    assert (found.doubt[wrong] > VERY_DOUBTFUL).all()
    assert (np.delete(found.doubt, wrong) < 0.1).all(), "not even those of the small class"
    assert (found.doubt[5], found.suggested[5]) == (0, -1)
    assert (found.suggested[labels >= 0] != labels[labels >= 0]).all()


def test_scores_are_those_of_a_regression_without_the_image() -> None:
    x, of = blobs([9, 7, 5], noise=0.5, d=6)
    others = label_doubt._Others.of(x.astype(np.float64), of)
    every = others.scores(np.arange(len(of)), 0.5)
    targets = np.eye(3)[of] * others.weight[:, None]
    for row in range(len(of)):
        rest = np.delete(np.arange(len(of)), row)
        gram = (others.x[rest] * others.weight[rest, None]).T @ others.x[rest] + 0.5 * np.eye(7)
        expected = others.x[row] @ np.linalg.solve(gram, others.x[rest].T @ targets[rest])
        np.testing.assert_allclose(every[row], expected, atol=1e-9)


def test_features_that_say_nothing_lead_to_little_doubt() -> None:
    x, of = blobs([60, 60, 60], noise=0.1)
    labels = np.random.default_rng(1).permutation(of)
    assert (doubts(x, labels, alone(len(x))).doubt < 2 * label_doubt.MOST_RATE).all()


def test_copies_do_not_speak_for_each_other() -> None:
    x, of = blobs([30, 30])
    x, labels = np.concatenate([x, x[[0] * 6]]), np.concatenate([of, [1] * 6])
    labels[0] = 1
    copies = np.concatenate([np.arange(60), [0] * 6])
    found = doubts(x, labels, copies)
    assert (found.doubt[copies == 0] > VERY_DOUBTFUL).all()
    assert len({*found.doubt[copies == 0].tolist()}) == 1
    assert doubts(x, labels, alone(66)).doubt[0] < 0.5, "as they would"


@pytest.mark.parametrize("labels", [[-1, -1, -1], [4, 4, 4], [4, -1, 4]])
def test_without_two_classes_nothing_is_doubted(labels: list[int]) -> None:
    found = doubts(np.eye(3, dtype=np.float32), np.array(labels), alone(3))
    assert not found.doubt.any()
    assert (found.suggested == -1).all()


def test_labels_of_a_class_with_no_others_are_not_doubted() -> None:
    x, of = blobs([30, 30, 2])
    assert (doubts(x, of, alone(62)).doubt[60:] == 0).all()


def test_images_are_scored_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    x, of = blobs([40, 30])
    labels, wrong = of.copy(), [1, 12, 44, 60]
    labels[wrong] = 1 - labels[wrong]
    whole = doubts(x, labels, alone(70))
    monkeypatch.setattr(label_doubt, "MOST_SCORES", 70)  # half of the images at once
    parts = doubts(x, labels, alone(70))
    assert (parts.suggested == whole.suggested).all()
    assert {*np.argsort(-parts.doubt)[:4].tolist()} == {*wrong}


def test_a_class_keeps_most_of_its_labels() -> None:
    labels = np.array([0] * 10 + [1] * 3 + [2] * 2 + [-1])
    doubt = np.full(16, 0.99)
    doubt[4] = 1.0
    assert np.flatnonzero(untrusted(labels, doubt)).tolist() == [0, 4], "a fifth of the first, the most doubtful"
    assert not untrusted(labels, np.full(16, VERY_DOUBTFUL)).any()
    assert Doubts.none(2).suggested.tolist() == [-1, -1]
