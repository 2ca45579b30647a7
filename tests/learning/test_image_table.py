"""Numbers of images, and their features."""

from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as nnf
from support.stores import small_store
from support.tiny_methods import convnet

from sortal.images.columns import NO_COLUMNS, Columns
from sortal.images.image_set import image_set
from sortal.learning.batches import ImageTable, Numbering, shared_groups
from sortal.learning.features import extract
from sortal.learning.frozen import FrozenEncoder, KeptTokens
from sortal.system.device import Compute
from sortal.system.progress import Runtime


def test_equal_values_share_a_number_and_a_label() -> None:
    values, labels = np.array([7, 5, 9, 5, 7]), np.array([-1, 2, 4, -1, 3])
    found = Numbering.of(values, np.array([4, 0, 1, 3]), labels)
    assert found.numbers.tolist() == [1, 0, -1, 0, 1]
    assert found.labels.tolist() == [2, 3]
    assert values[found.rows].tolist() == [5, 7]


def test_numbers_have_the_groups_of_their_images() -> None:
    numbering = Numbering.of(np.array([7, 5, 9, 5]), np.arange(4), np.full(4, -1))
    files, device = ["a", "b", "c", "d"], torch.device("cpu")
    images = image_set(files, paths=files, labels=[None] * 4, columns=Columns.infer(["group"], [["x", "", "x", ""]]))
    found = shared_groups(images, numbering, device)
    assert found is not None
    assert found.tolist() == images.groups[[1, 0, 2]].tolist()
    assert shared_groups(replace(images, columns=NO_COLUMNS), numbering, device) is None


def test_features_are_those_that_extract_computes_and_follow_the_weights() -> None:
    backbone, store = convnet(), small_store(9, 8)
    rows = np.array([4, 0, 8])
    trunk = FrozenEncoder(backbone, Compute(torch.device("cpu")))
    table = ImageTable(torch.zeros(3), rows, store, trunk, KeptTokens(10**9))
    for _ in range(2):
        expected = torch.from_numpy(extract(backbone, store, precision="float32", runtime=Runtime(device="cpu"))[rows])
        torch.testing.assert_close(table.features(), nnf.normalize(expected, dim=1))
        projected = nnf.normalize(expected[:, :8], dim=1)
        torch.testing.assert_close(table.features(lambda tokens: backbone.tail(tokens)[:, :8]), projected)
        with torch.no_grad():
            for value in backbone.parameters():
                value.add_(0.1 * value.requires_grad)
