"""Settings: the rule mechanism, every default and rule in one table, and the checks across fields."""

import json
import math
from dataclasses import FrozenInstanceError, asdict, fields, replace
from typing import Any, get_args

import numpy as np
import pytest

from sortal import config
from sortal.config import CLASSIFIERS, LOSSES, TRAININGS, Contrast, Discovery, MethodName, Recipe, Rule, Training
from sortal.errors import InputError

KINDS: tuple[Any, ...] = (Training, Contrast, config.Ranks, config.Swaps, config.Distillation, Discovery)
METHODS: tuple[MethodName, ...] = get_args(MethodName)
LEAST, MOST, ABOVE_1 = math.ulp(0.0), 1.7976931348623157e308, math.nextafter(1.0, 2.0)
NO_NUMBERS: list[Any] = [math.nan, math.inf, -math.inf, 10**400, True, np.True_, None, "1", 1j, [1], np.array([1, 2])]

# Every rule, and the settings it is for with their defaults
RULES = {
    "a whole number of at least 0": "Training.epochs=200 Swaps.overclustering=0",
    "a whole number of at least 0 and at most 4294967295": "Training.seed=0",
    "a whole number of at least 0 and at most 2147483647": "Discovery.seed=0",
    "a whole number of at least 0 or 'auto'": "Swaps.queue='auto' Discovery.epochs='auto'",
    "a whole number of at least 1": """Training.batch_size=128 Training.validate_every=1 Training.chunks=1
        Contrast.hidden=2048 Contrast.bottleneck=256 Contrast.prototypes=65536 Ranks.top=5 Swaps.iterations=3
        Swaps.heads=1 Distillation.hidden=2048 Distillation.bottleneck=256 Discovery.n_init=20""",
    "a whole number of at least 1 or 'auto'": "Discovery.k='auto'",
    "a whole number of at least 2": "Discovery.k_max=1000",
    "a whole number of at least 2 or 'auto' or None": "Training.views='auto' Discovery.views='auto'",
    "a number above 0": "Training.lr=0.1",
    "a number above 0 or 'auto'": "Discovery.lr='auto'",
    "a number above 0 and at most 1": "Ranks.ramp=0.75 Distillation.sharpening=0.15",
    "a number of at least 0": "Training.weight_decay=5e-05 Ranks.consistency=50.0 Distillation.entropy_weight=2.0",
    "a number of at least 0 and at most 0.5": "Discovery.held_out=0.2",
    "a number of at least 0 and at most 1": """Training.final_lr=0.001 Training.warmup=0.0 Training.drop_at=0.85
        Training.momentum=0.9 Contrast.supervised_weight=0.35 Distillation.supervised_weight=0.35
        Discovery.unsure_below=0.5""",
    "a number of at least 0.001": """Contrast.temperature=1.0 Contrast.supervised_temperature=0.07
        Swaps.temperature=0.1 Swaps.epsilon=0.05 Distillation.student_temperature=0.1
        Distillation.first_teacher_temperature=0.07 Distillation.teacher_temperature=0.04
        Distillation.temperature=1.0 Distillation.supervised_temperature=0.07""",
    "text": "Discovery.backbone='vit_base_patch16_224.dino'",
    "text or None": "Discovery.weights=None",
    "True or False": "Training.flip=True Training.balanced=True",
    "'auto' or True or False": "Training.compile='auto'",
    "'auto' or 'bf16' or 'float32'": "Training.precision='auto'",
    "'bottleneck' or 'prototypes'": "Contrast.output='bottleneck'",
    "'cosine' or 'step'": "Training.schedule='cosine'",
    "'gcd' or 'kmeans' or 'rankstats' or 'simgcd' or 'uno'": "Discovery.method='gcd'",
}
DIFFERENT = {  # from the defaults above
    "gcd": {},
    "kmeans": {},
    "rankstats": {"schedule": "step", "final_lr": 0.1, "weight_decay": 1e-4},
    "simgcd": {},
    "uno": {"warmup": 0.05, "final_lr": 2.5e-3, "weight_decay": 1.5e-4},
    "TINY_TRAINING": {"epochs": 40, "lr": 0.05, "flip": False, "precision": "float32"},
    "TINY_CONTRAST": {"temperature": 0.3, "hidden": 256},
    "TINY_DISTILLATION": {"temperature": 0.3, "hidden": 256},
}


def test_defaults_and_rules_are_those_of_the_table() -> None:
    """The type of a default is asserted too: 1 and 1.0 are one setting, also in the key of a run."""
    rules: dict[str, list[str]] = {}
    for kind in KINDS:
        for each in fields(kind):
            setting = f"{kind.__name__}.{each.name}={getattr(kind(), each.name)!r}"
            rules.setdefault(str(each.metadata["rule"]), []).append(setting)
    assert rules == {rule: settings.split() for rule, settings in RULES.items()}
    tiny = {name: getattr(config, name) for name in ("TINY_TRAINING", "TINY_CONTRAST", "TINY_DISTILLATION")}
    found = {
        name: {each.name: value for each in fields(one) if (value := getattr(one, each.name)) != each.default}
        for name, one in (TRAININGS | tiny).items()
    }
    assert found == DIFFERENT
    assert CLASSIFIERS == ("rankstats", "simgcd", "uno")


@pytest.mark.parametrize(
    ("rule", "text", "good", "bad"),
    [
        (Rule(kind=int, least=0, most=9), "a whole number of at least 0 and at most 9", [0, 9], [-1, 10, 1.0]),
        (Rule(least=0, most=1), "a number of at least 0 and at most 1", [0, 1, np.float64(0.5)], [-LEAST, ABOVE_1]),
        (Rule(above=0), "a number above 0", [LEAST, 1, MOST], [0, -0.0, -LEAST]),
        (Rule(kind=int, least=2, words=("auto", None)), "a whole number of at least 2 or 'auto' or None", [2], ["", 1]),
        (Rule(kind=bool, words=("auto", True, False)), "'auto' or True or False", [True], [1, 0, 1.0, "True"]),
        (Rule(kind=str, words=("a", "b")), "'a' or 'b'", ["a", "b"], ["A", "ab", "", 0, np.array(["a", "b"])]),
        (Rule(kind=str, text=True), "text", [" ", "\udcff", np.str_("x"), "None"], ["", 0, b"x", ["x"]]),
        (Rule(kind=str, text=True, words=(None,)), "text or None", ["x", None], ["", 0, b"x"]),
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
            assert str(caught.value) == f"{each.name} must be {each.metadata['rule']}, got (1,)."
        with pytest.raises(FrozenInstanceError):
            setattr(settings, each.name, each.default)
        for word in each.metadata["rule"].words:
            assert getattr(kind(**{each.name: word}), each.name) is word


def test_numbers_become_floats_and_refusals_are_cut_short() -> None:
    for lr in (1, np.float64(1)):
        assert type(Discovery(lr=lr).lr) is float
    assert type(Training(epochs=1).epochs) is int
    with pytest.raises(InputError, match=r"^method must be 'gcd' or .*, got 'xxx.*\.\.\. \(5,002 characters\)\.$"):
        Discovery(method="x" * 5000)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", METHODS)
def test_a_recipe_fits_its_method(method: MethodName) -> None:
    classifies = method in CLASSIFIERS
    recipe = Recipe(
        method=method,
        training=TRAININGS[method],
        losses=LOSSES[method]() if method in LOSSES else None,
        clustering="head" if classifies else "semi-supervised",
        estimate_on="raw",
    )
    assert recipe.learns == (method != "kmeans")
    losses_of = {"gcd": "Contrast", "kmeans": "None", "rankstats": "Ranks", "simgcd": "Distillation", "uno": "Swaps"}
    refused: list[tuple[dict[str, Any], str]] = [
        ({"clustering": "k-means"}, "clustering must be 'semi-supervised' or 'kmeans' or 'head', got 'k-means'."),
        ({"estimate_on": "Raw"}, "estimate_on must be 'raw' or 'learned', got 'Raw'."),
        ({"method": "GCD"}, "method must be 'gcd' or 'kmeans' or 'rankstats' or 'simgcd' or 'uno', got 'GCD'."),
    ]
    for losses in (None, *(make() for make in LOSSES.values())):
        if losses != recipe.losses:
            said = f"The losses of {method} must be {losses_of[method]}, got {losses!r}."
            refused.append(({"losses": losses}, said))
    for clustering in ("semi-supervised", "kmeans", "head"):
        if (clustering == "head") == classifies:
            assert replace(recipe, clustering=clustering).clustering == clustering
        else:
            said = f"clustering must be 'head' for rankstats, simgcd, uno alone, got {clustering!r}."
            refused.append(({"clustering": clustering}, said))
    untrained = replace(recipe.training, epochs=0)
    if classifies:
        said = f"k must be known before {method} learns: estimate_on must be 'raw'."
        refused.append(({"estimate_on": "learned"}, said))
        said = f"epochs must be at least 1 for {method}, whose classifier must be trained, got 0."
        refused.append(({"training": untrained}, said))
        with pytest.raises(InputError, match=f"^{said}$"):
            Discovery(method=method, epochs=0)
    else:
        assert replace(recipe, estimate_on="learned").estimate_on == "learned"
        assert not replace(recipe, training=untrained).learns
        assert Discovery(method=method, epochs=0).epochs == 0
    for changes, said in refused:
        with pytest.raises(InputError) as caught:
            replace(recipe, **changes)
        assert str(caught.value) == said
