"""Training methods by name."""

from collections.abc import Sequence

import numpy as np

from sortal.config import Contrast, Distillation, Ranks, Recipe, Rounds, Swaps
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.methods.contrastive import Contrastive
from sortal.learning.methods.method import Method
from sortal.learning.methods.rankstats import RankStats
from sortal.learning.methods.simgcd import SimGcd
from sortal.learning.methods.sortal import Sortal
from sortal.learning.methods.uno import Uno

METHOD_CLASSES: dict[str, type[Method]] = {
    "gcd": Contrastive,
    "rankstats": RankStats,
    "simgcd": SimGcd,
    "sortal": Sortal,
    "uno": Uno,
}

__all__ = ["METHODS", "Contrastive", "Method", "RankStats", "SimGcd", "Sortal", "Uno", "make"]


def make(recipe: Recipe, backbone: Backbone, *, k: int, known: Sequence[int]) -> Method:
    """Create the method of a recipe; classifiers get k categories, the first of which are the `known` class numbers.

    Of Sortal's rounds it is the classifier, with equal shares.
    """
    seed, losses = recipe.training.seed, recipe.losses
    match losses:
        case Contrast():
            return Contrastive(backbone, losses, seed=seed)
        case Ranks():
            return RankStats(backbone, k, known, losses, seed=seed)
        case Swaps():
            return Uno(backbone, k, known, losses, seed=seed, batch_size=recipe.training.batch_size)
        case Distillation():
            return SimGcd(backbone, k, known, losses, seed=seed)
        case Rounds():
            return Sortal(backbone, known, np.ones(max(k, len(known), 1)), losses, seed=seed)
        case None:
            raise ValueError(f"{recipe.method} is not trained")
