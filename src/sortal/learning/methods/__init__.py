"""Training methods by name, and how each is made."""

from collections.abc import Sequence

from sortal.config import Contrast, Distillation, Ranks, Recipe, Swaps
from sortal.methods.contrastive import Contrastive
from sortal.methods.method import Method
from sortal.methods.rankstats import RankStats
from sortal.methods.simgcd import SimGcd
from sortal.methods.uno import Uno
from sortal.network import Backbone

METHODS: dict[str, type[Method]] = {"gcd": Contrastive, "rankstats": RankStats, "simgcd": SimGcd, "uno": Uno}

__all__ = ["METHODS", "Contrastive", "Method", "RankStats", "SimGcd", "Uno", "make"]


def make(recipe: Recipe, backbone: Backbone, *, k: int, known: Sequence[int]) -> Method:
    """The method of a recipe; k categories, of which the first are the `known` class numbers, are for classifiers."""
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
        case None:
            raise ValueError(f"{recipe.method} learns nothing")
