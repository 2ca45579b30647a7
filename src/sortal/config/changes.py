"""Single settings of a recipe, changed by name: losses.temperature=0.3, training.batch_size=256, clustering=kmeans."""

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import product
from typing import Any

from sortal.config.methods import Clustering
from sortal.config.rules import Rule, rules_of
from sortal.config.settings import EstimateOn, Recipe
from sortal.errors import InputError, quoted

OPTIONS = ("epochs", "lr", "views", "seed")  # of training, which have options of their own
OF_RECIPE = {
    "clustering": Rule.of(Clustering),
    "estimate_on": Rule.of(EstimateOn),
    "neighbours": Rule.of(int, least=0),
    "select": Rule.of(bool),
}


def changeable(recipe: Recipe) -> dict[str, Rule]:
    """Return the settings of a recipe that can be changed, by name."""
    found = {f"training.{name}": rule for name, rule in rules_of(type(recipe.training)).items() if name not in OPTIONS}
    if recipe.losses is not None:
        found |= {f"losses.{name}": rule for name, rule in rules_of(type(recipe.losses)).items()}
    return found | OF_RECIPE


def changed(recipe: Recipe, changes: Sequence[str]) -> Recipe:
    """Return the recipe with settings changed, each given as NAME=VALUE."""
    rules, values = changeable(recipe), dict[str, Any]()
    for each in changes:
        name, equals, text = each.partition("=")
        if not equals:
            raise InputError(f"A change must be NAME=VALUE, such as training.batch_size=64, got {quoted(each)}.")
        if name not in rules:
            raise InputError(_unknown(name, rules, recipe.method))
        if name in values:
            raise InputError(f"{name} is changed more than once. Change it once.")
        values[name] = _parsed(name, text, rules[name])
    own = {name: value for name, value in values.items() if "." not in name}
    for record in ("losses", "training"):
        under = {name.partition(".")[2]: value for name, value in values.items() if name.startswith(f"{record}.")}
        if under:
            own[record] = replace(getattr(recipe, record), **under)
    return replace(recipe, **own) if own else recipe


def combinations(changes: Sequence[str]) -> list[tuple[str, ...]]:
    """Return every combination of changes whose values may be several, separated by commas."""
    pairs = [change.partition("=") for change in changes]
    return list(product(*([f"{name}{equals}{value}" for value in values.split(",")] for name, equals, values in pairs)))


def differences(recipe: Recipe, usual: Recipe) -> tuple[str, ...]:
    """Return the changes that make another recipe of the same method equal to this one."""
    found = [f"{name}={_of(recipe, name)}" for name in changeable(usual) if _of(recipe, name) != _of(usual, name)]
    return tuple(found)


def _of(recipe: Recipe, name: str) -> Any:
    value: Any = recipe
    for part in name.split("."):
        value = value[part] if isinstance(value, dict) else getattr(value, part)
    return value


def _parsed(name: str, text: str, rule: Rule) -> Any:
    for word in rule.words:
        if text == str(word) or (not isinstance(word, str) and text.lower() == str(word).lower()):
            return word
    value: Any = text
    if rule.number is not None:
        try:
            value = rule.number(text)
        except ValueError:
            value = text
    if not rule.holds(value):
        raise InputError(f"{name} must be {rule}, got {quoted(text)}.")
    return value


def _unknown(name: str, rules: dict[str, Rule], method: str) -> str:
    from difflib import get_close_matches

    if (own := name.removeprefix("training.")) in OPTIONS:
        return f"{name} is a setting of its own, {own}."
    near = get_close_matches(name, rules, n=1) or [each for each in rules if each.endswith(f".{name}")]
    hint = f"Did you mean {near[0]!r}?" if near else f"The settings are {', '.join(rules)}."
    return f"{quoted(name)} is not a setting of {method}. {hint}"


def described(recipe: Recipe) -> list[str]:
    """Return a line for each setting that can be changed: its name, its value, and its meaning or what it may be."""
    losses = () if recipe.losses is None else fields(recipe.losses)
    meanings = {f"losses.{each.name}": each.metadata.get("help") for each in losses}
    return [f"{name} = {_of(recipe, name)}: {meanings.get(name) or rule}" for name, rule in changeable(recipe).items()]
