"""Sortal's classifier: where its categories start."""

import numpy as np
import torch

from sortal.config import Rounds
from sortal.learning.backbones.registry import load_backbone
from sortal.learning.methods import Sortal


def test_a_classifier_starts_at_random_where_a_cluster_is_empty() -> None:
    centres = np.zeros((3, 512), np.float32)
    centres[0, 0], centres[2, 1] = 5, 0.1
    made = [
        Sortal(load_backbone("convnet", seed=0), [0], np.ones(3), Rounds(hidden=16), centres=at, seed=1)
        for at in (centres, None)
    ]
    started, random = (method.categories.weight.detach() for method in made)
    assert torch.equal(started[1], random[1])
    assert torch.equal(started[0], torch.eye(512)[0])
    assert torch.equal(started[2], torch.eye(512)[1])
