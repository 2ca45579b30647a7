"""Which labels learning does not see: those held out for calibration, and half of what a review confirmed."""

import numpy as np

from sortal.config import Discovery
from sortal.discovery import label_splits
from sortal.discovery.label_splits import few_held_out, held_out, set_aside, with_sample
from sortal.images.image_set import image_set


def test_the_number_of_held_out_images_is_limited() -> None:
    names = [f"class {number % 1200}" for number in range(12_000)]
    images = image_set([f"{i}.png" for i in range(12_001)], paths=["x"] * 12_001, labels=[*names, None])
    order = np.arange(len(images))
    held = held_out(images, order, Discovery(k=1300), np.ones(len(images), dtype=bool))
    assert held.sum() == label_splits.MOST_HELD_OUT
    assert images.labelled[held].all()
    assert len(np.unique(images.labels[~held & images.labelled])) == 1200  # each class keeps some
    assert held_out(images, order, Discovery(k=1300, held_out=0.0), np.ones(len(images), dtype=bool)).sum() == 0


def test_no_labelled_image_more_or_less_decides_whether_any_is_held_out() -> None:
    """A fifth is held out from 100 labelled images on, none of 50, and every number in between."""
    counts = []
    for n in range(2, 131):
        labels = [f"class {number % 10}" for number in range(n)]
        images = image_set([f"{i}.png" for i in range(n + 1)], paths=["x"] * (n + 1), labels=[*labels, None])
        held = held_out(images, np.arange(n + 1), Discovery(k=10), np.ones(n + 1, dtype=bool))
        counts.append(int(held.sum()))
        kept = np.unique(images.labels[~held & images.labelled])
        assert len(kept) == min(n, 10), "each class keeps a labelled image"
    assert (counts[50 - 2], counts[97 - 2], counts[100 - 2], counts[130 - 2]) == (0, 18, 20, 26)
    assert max(np.diff(counts)) == 1
    assert min(np.diff(counts)) >= 0


def test_half_of_what_a_review_confirmed_is_set_aside_whatever_the_files_are_called() -> None:
    files, labels = [f"{row}.png" for row in range(18)], ["a"] * 9 + ["b"] * 6 + [None] * 3
    images = image_set(files, labels=labels, paths=files)
    confirmed = np.isin(np.arange(18), [*range(2, 9), 14])
    order = np.random.default_rng(0).permutation(18)
    drawn = set_aside(images, confirmed, order, 7)
    assert drawn[2:9].sum() == 3, "half of the seven of class a, rounded down"
    assert drawn.sum() == 3, "the only one of class b stays"
    shuffled = np.random.default_rng(1).permutation(18)
    renamed = image_set(files, labels=[labels[row] for row in shuffled], paths=files)
    again = set_aside(renamed, confirmed[shuffled], np.argsort(shuffled)[order], 7)
    assert (again == drawn[shuffled]).all()


def test_groups_are_held_out_whole() -> None:
    labels = np.repeat([0, 1, -1], [100, 100, 20])
    files = [f"{row}.png" for row in range(220)]
    images = image_set(files, paths=files, labels=[None if label < 0 else str(label) for label in labels])
    groups = np.concatenate([np.arange(200) // 4, 1000 + np.arange(20)])
    groups[150:156] = 0  # of both classes
    held = held_out(images, np.arange(220), Discovery(), np.ones(220, dtype=bool), groups)
    assert {*groups[held]}.isdisjoint(groups[~held & (labels >= 0)])
    assert abs(int(held[labels == 0].sum()) - 20) <= 4
    assert abs(int(held[labels == 1].sum()) - 20) <= 4
    talked = np.ones(220, dtype=bool)
    talked[np.flatnonzero(held)[0]] = False  # a group of which people have seen an image is not a fair sample
    again = held_out(images, np.arange(220), Discovery(), talked, groups)
    assert groups[np.flatnonzero(held)[0]] not in groups[again]
    huge = held_out(images, np.arange(220), Discovery(), np.ones(220, dtype=bool), np.repeat([0, 1, 2], [100, 100, 20]))
    assert not huge.any()  # a class keeps an image


def test_large_groups_are_held_out_too() -> None:
    labels = np.repeat(np.arange(10), 20)
    files = [f"{row}.png" for row in range(200)]
    images, order = image_set(files, paths=files, labels=[*map(str, labels)]), np.arange(200)
    groups, among = order // 10, np.ones(200, dtype=bool)
    held = held_out(images, order, Discovery(), among, groups)
    assert held.sum() == 40
    assert {*groups[held]}.isdisjoint(groups[~held])
    assert {*labels[~held]} == {*range(10)}, "each class keeps a labelled image"
    singly = held_out(images, order, Discovery(), among)
    assert few_held_out(held, groups, singly) == (
        "Groups are held out whole, so confidence is calibrated on 4 groups of 40 labelled images only, and is rough."
    )
    assert few_held_out(singly, order, singly) is None


def test_a_random_sample_of_a_review_calibrates_and_leaves_each_class_half_of_its_labels() -> None:
    files, labels = [f"{row}.png" for row in range(10)], ["a"] * 6 + ["b"] * 2 + [None] * 2
    images = image_set(files, labels=labels, paths=files)
    held, sample = np.arange(10) == 0, np.isin(np.arange(10), [1, 2, 3, 6, 9])
    found = with_sample(images, held, sample, np.arange(10)[::-1])
    # Of "a" two more, the first in this order; the only image of "b"; and one that was found wrong and has no label.
    assert np.flatnonzero(found).tolist() == [0, 2, 3, 6, 9]
