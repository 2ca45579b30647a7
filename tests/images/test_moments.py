"""Moments: numbers, labels, splits, means and orders, computed by hand."""

import numpy as np

from sortal.images.moments import Moments

OF = np.array([7, 3, 7, 9, 3, 7])


def test_moments_are_numbered_in_the_order_of_their_first_images() -> None:
    found = Moments.grouped(OF)
    assert found.of.tolist() == [0, 1, 0, 2, 1, 0]
    assert found.sizes.tolist() == [3, 2, 1]
    assert found.first.tolist() == [True, True, False, True, False, False]
    assert len(found) == 3
    assert found.any_burst
    assert not Moments.single(4).any_burst


def test_a_moment_has_the_label_of_any_of_its_images() -> None:
    assert Moments.grouped(OF).labels(np.array([-1, -1, 4, -1, 0, 4])).tolist() == [4, 0, -1]


def test_a_moment_is_in_a_mask_if_any_of_its_images_is() -> None:
    mask = np.array([False, False, True, False, False, True])
    assert Moments.grouped(OF).any(mask).tolist() == [True, False, False]


def test_each_image_has_the_row_of_its_moment() -> None:
    x = np.eye(3, dtype=np.float32)
    np.testing.assert_array_equal(Moments.grouped(OF).of_images(x), x[[0, 1, 0, 2, 1, 0]])
    assert Moments.single(3).of_images(x) is x


def test_images_with_different_labels_are_not_of_one_moment() -> None:
    found = Moments.grouped(OF).split_where(np.array([1, -1, 4, -1, 0, -1]))
    assert found.of.tolist() == [0, 1, 2, 3, 1, 4]
    same = Moments.grouped(OF)
    assert same.split_where(np.array([1, -1, 1, -1, 0, -1])) is same


def test_the_features_of_a_moment_are_the_mean_direction_of_its_images() -> None:
    x = np.array([[1, 0], [0, 1], [0, 1], [0.6, 0.8], [0, 1], [1, 0]], dtype=np.float32)
    means = Moments.grouped(OF).means(x)
    expected = np.array([[2 / 5**0.5, 1 / 5**0.5], [0, 1], [0.6, 0.8]])
    np.testing.assert_allclose(means, expected, atol=2 * float(np.finfo(np.float32).eps))
    assert means[2].tobytes() == x[3].tobytes()
    assert Moments.single(6).means(x) is x


def test_the_order_of_moments_follows_that_of_images() -> None:
    moments = Moments.grouped(OF)
    assert moments.in_order(np.array([3, 5, 4, 0, 1, 2])).tolist() == [2, 0, 1]
    order = np.array([4, 2, 0, 1, 3])
    assert Moments.single(5).in_order(order).tolist() == order.tolist()


def test_moments_of_two_kinds_are_joined() -> None:
    one, other = Moments.grouped(np.array([0, 0, 1, 2, 3, 4])), Moments.grouped(np.array([0, 1, 1, 2, 2, 3]))
    joined = one.joined(other)
    assert joined.of.tolist() == [0, 0, 0, 1, 1, 2]
    assert one.joined(Moments.single(6)) is one
    assert Moments.single(6).joined(one) is one
    # Images 0 and 2 have different labels, so the joined moment falls apart into those of `other`.
    assert joined.split_where(np.array([5, -1, 6, -1, -1, -1]), other).of.tolist() == [0, 1, 1, 2, 2, 3]
