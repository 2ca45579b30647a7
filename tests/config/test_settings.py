"""Settings: rules derived from types, and checks across fields."""

import json
import math
from dataclasses import FrozenInstanceError, asdict, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from sortal.config import (
    BUILT_IN,
    Auto,
    Contrast,
    Discovery,
    Distillation,
    Overrides,
    Ranks,
    Reading,
    Recipe,
    Rule,
    Swaps,
    Training,
    from_keywords,
    registration_of,
    rules_of,
)
from sortal.errors import InputError
from sortal.system.json_records import read_record

KINDS: tuple[Any, ...] = (Training, Contrast, Ranks, Swaps, Distillation, Discovery, Reading, Overrides)
NAMES = tuple(sorted(BUILT_IN))
UNKNOWN = f"method must be {', '.join(NAMES)}, or your own as FILE.py:CLASS or MODULE:CLASS"
LEAST, MOST, ABOVE_1 = math.ulp(0.0), 1.7976931348623157e308, math.nextafter(1.0, 2.0)
NO_NUMBERS: list[Any] = [math.nan, math.inf, -math.inf, 10**400, True, np.True_, None, "1", 1j, [1], np.array([1, 2])]


@pytest.mark.parametrize(
    ("rule", "text", "good", "bad"),
    [
        (Rule.of(int, least=0, most=9), "a whole number of at least 0 and at most 9", [0, 9], [-1, 10, 1.0]),
        (
            Rule.of(float, least=0, most=1),
            "a number of at least 0 and at most 1",
            [0, np.float64(1)],
            [-LEAST, ABOVE_1],
        ),
        (Rule.of(float, above=0), "a number above 0", [LEAST, 1, MOST], [0, -0.0, -LEAST]),
        (Rule.of(int | Auto | None, least=2), "a whole number of at least 2, 'auto' or None", [2], ["", 1]),
        (Rule.of(bool | Auto), "True, False or 'auto'", [True], [1, 0, 1.0, "True"]),
        (Rule.of(Literal["a", "b"]), "'a' or 'b'", ["a", "b"], ["A", "ab", "", 0, np.array(["a", "b"])]),
        (Rule.of(str), "text", [" ", "\udcff", np.str_("x"), "None"], ["", 0, b"x", ["x"]]),
        (Rule.of(str | None), "text or None", ["x", None], ["", 0, b"x"]),
    ],
)
def test_a_rule_holds_up_to_its_bounds(rule: Rule, text: str, good: list[Any], bad: list[Any]) -> None:
    assert str(rule) == text
    others = [value for value in NO_NUMBERS if value is not True and not rule.text] + [(1,), {}, object]
    assert all(rule.holds(value) for value in [*good, *rule.words])
    assert not [value for value in bad if rule.holds(value)]
    assert not [value for value in others if rule.holds(value) and value not in rule.words]
    assert rule.holds(True) == (True in rule.words)
    assert rule.holds(None) == (None in rule.words)


@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_is_checked_frozen_and_survives_json(kind: Any) -> None:
    settings = kind()
    assert kind(**json.loads(json.dumps(asdict(settings), allow_nan=False))) == settings
    with pytest.raises(TypeError, match="positional"):
        kind(1)
    for each in fields(kind):
        for make in (kind, lambda **changes: replace(kind(), **changes)):
            with pytest.raises(InputError) as caught:
                make(**{each.name: (1,)})
            assert str(caught.value) == f"{each.name} must be {rules_of(kind)[each.name]}, got (1,)."
        with pytest.raises(FrozenInstanceError):
            setattr(settings, each.name, each.default)
        for word in rules_of(kind)[each.name].words:
            assert getattr(kind(**{each.name: word}), each.name) is word


def test_keywords_become_records_and_a_misspelt_one_is_refused() -> None:
    given = {"k": 3, "weights": Path("w.pth"), "views": "live", "unlisted": "ignore"}
    found = from_keywords(given, Discovery, Reading)
    assert found == (Discovery(k=3, weights="w.pth", views="live"), Reading(unlisted="ignore"))
    with pytest.raises(
        InputError, match=r"^'metod' is not a setting\. Did you mean 'method'\? The settings are k, gran"
    ):
        from_keywords({"metod": "gcd"}, Discovery, Reading)
    with pytest.raises(InputError, match=r"Did you mean 'out'\? The settings are out, k, "):
        from_keywords({"outt": "run"}, Discovery, Reading, others=["out"])


def test_further_settings_are_a_mapping_texts_or_one_text() -> None:
    ways: list[Any] = [{"training.batch_size": 64}, ["training.batch_size=64"], "training.batch_size=64"]
    for given in ways:
        assert Discovery(set=given).set == ("training.batch_size=64",)
    with pytest.raises(InputError, match=r"^'k' is not a setting\. The settings are folders, unlabelled, "):
        from_keywords({"k": 3}, Reading)


def test_numbers_become_floats_and_refusals_are_cut_short() -> None:
    for lr in (1, np.float64(1)):
        assert type(Discovery(lr=lr).lr) is float
    assert type(Training(epochs=1).epochs) is int
    with pytest.raises(InputError, match=r"^method must be .*gcd, .*, got 'xxx.*\.\.\. \(5,002 characters\)\.$"):
        registration_of("x" * 5000)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"patches": 0}, "patches must be a number above 0 and at most 1, got 0."),
        ({"patches": 1.5}, "patches must be a number above 0 and at most 1, got 1.5."),
        ({"repeats": 0.5}, "repeats must be a number of at least 1 or None, got 0.5."),
    ],
)
def test_shares_of_patches_and_repeats_of_labels_have_limits(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        Training(**changes)
    assert str(caught.value) == said
    assert Training(patches=1, repeats=1) == replace(Training(), repeats=1.0)


@pytest.mark.parametrize("method", [["gcd"], {"gcd": 1}, None, 1])
def test_a_method_that_is_no_text_is_refused_where_a_recipe_is_read(method: object) -> None:
    saved = asdict(Recipe(method="kmeans", training=Training(), losses=None, clustering="kmeans", estimate_on="raw"))
    with pytest.raises(ValueError, match=r"^Recipe.method must be str, got "):
        read_record(Recipe, {**saved, "method": method})


@pytest.mark.parametrize("method", NAMES)
def test_a_recipe_fits_its_method(method: str) -> None:
    of = BUILT_IN[method]
    classifies = of.classifies
    recipe = Recipe(
        method=method,
        training=BUILT_IN[method].training,
        losses=BUILT_IN[method].usual_losses(),
        clustering="head" if classifies else "semi-supervised",
        estimate_on="raw",
    )
    assert recipe.learns == (of.learner is not None)
    losses_of = {name: record.__name__ for name, of in BUILT_IN.items() if (record := of.losses)} | {"kmeans": "None"}
    refused: list[tuple[dict[str, Any], str]] = [
        ({"clustering": "k-means"}, "clustering must be 'semi-supervised', 'kmeans', 'head' or 'own', got 'k-means'."),
        ({"estimate_on": "Raw"}, "estimate_on must be 'raw' or 'learned', got 'Raw'."),
    ]
    if recipe.losses is None:
        assert replace(recipe, method="theirs").method == "theirs", "read from a run whose method is not loaded"
    else:
        refused.append(({"method": "GCD"}, f"{UNKNOWN}, got 'GCD'. Did you mean 'gcd'?"))
    for losses in (None, *(of.losses() for of in BUILT_IN.values() if of.losses)):
        if losses != recipe.losses:
            said = f"The losses of {method} must be {losses_of[method]}, got {losses!r}."
            refused.append(({"losses": losses}, said))
    for clustering in ("semi-supervised", "kmeans", "head"):
        if (clustering == "head") == classifies:
            assert replace(recipe, clustering=clustering).clustering == clustering
        else:
            own = "'own', " if of.cluster is not None else ""
            words = "'head'" if classifies else f"{own}'semi-supervised' or 'kmeans'"
            said = f"clustering must be {words} for {method}, got {clustering!r}."
            refused.append(({"clustering": clustering}, said))
    if method == "sortal":
        said = "select must be False for sortal, which keeps the last epoch of each round, got True."
        refused.append(({"select": True}, said))
    else:
        assert replace(recipe, select=True).select
    untrained = replace(recipe.training, epochs=0)
    if of.needs_k:
        said = f"estimate_on must be 'raw' for {method}, which needs k before training, got 'learned'."
        refused.append(({"estimate_on": "learned"}, said))
    else:
        assert replace(recipe, estimate_on="learned").estimate_on == "learned"
    if classifies:
        said = f"epochs must be at least 1 for {method}, which trains a classifier, got 0."
        refused.append(({"training": untrained}, said))
        with pytest.raises(InputError, match=f"^{said}$"):
            Discovery(method=method, epochs=0)
    else:
        assert not replace(recipe, training=untrained).learns
        assert Discovery(method=method, epochs=0).epochs == 0
    for changes, said in refused:
        with pytest.raises(InputError) as caught:
            replace(recipe, **changes)
        assert str(caught.value) == said
