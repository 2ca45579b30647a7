"""Training methods by name."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch

from sortal.config import Recipe, registration_of
from sortal.errors import InputError
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.methods.contrastive import Contrastive
from sortal.learning.methods.debgcd import DebGcd
from sortal.learning.methods.legogcd import LegoGcd
from sortal.learning.methods.method import Method, Problem
from sortal.learning.methods.rankstats import RankStats
from sortal.learning.methods.rlcd import Rlcd
from sortal.learning.methods.simgcd import SimGcd
from sortal.learning.methods.sortal import Sortal
from sortal.learning.methods.uno import Uno


def make(recipe: Recipe, backbone: Backbone, *, k: int, known: Sequence[int]) -> Method:
    """Create the method of a recipe; classifiers get k categories, the first of which are the `known` class numbers.

    Its random weights depend on the seed of training alone. Of Sortal's rounds it is the classifier, with equal shares.
    """
    of, learner = registration_of(recipe.method), learner_of(recipe.method)
    if learner is None or type(recipe.losses) is not of.losses:
        raise ValueError(f"{recipe.method} is not trained with {recipe.losses!r}")
    problem = Problem(k=k, known=tuple(known), training=recipe.training)
    with torch.random.fork_rng(devices=[]):  # layers that a method makes start alike, or it could not be resumed
        torch.default_generator.manual_seed(recipe.training.seed)
        return learner.create(backbone, recipe.losses, problem)


def learner_of(name: str) -> type[Method] | None:
    """Return the class of a method; None if it trains nothing."""
    learner = loaded(registration_of(name).learner)
    if learner is not None and not (isinstance(learner, type) and issubclass(learner, Method)):
        raise InputError(f"The method {name} must be a subclass of sortal.learning.methods.Method, got {learner!r}.")
    return learner


def loaded(code: Any) -> Any:
    """Return a class or function of a registration, which may say where it is: "package.module:name"."""
    if not isinstance(code, str):
        return code
    module, _, name = code.partition(":")
    return getattr(import_module(module), name)
