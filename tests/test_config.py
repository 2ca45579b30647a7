"""Settings: what each may be, to the bound; what a refusal says; and that a record survives being written down."""

import json
import math
from dataclasses import FrozenInstanceError, asdict, fields, replace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortal.config import (
    CLASSIFIERS,
    LOSSES,
    TINY_CONTRAST,
    TINY_DISTILLATION,
    TINY_TRAINING,
    TRAININGS,
    Auto,
    Contrast,
    Discovery,
    Distillation,
    MethodName,
    Ranks,
    Recipe,
    Rule,
    Swaps,
    Training,
)
from sortal.errors import InputError, SortalError

Settings = type[Training] | type[Contrast] | type[Ranks] | type[Swaps] | type[Distillation] | type[Discovery]
KINDS: tuple[Settings, ...] = (Training, Contrast, Ranks, Swaps, Distillation, Discovery)
METHODS: tuple[MethodName, ...] = get_args(MethodName)
LEAST, MOST = math.ulp(0.0), 1.7976931348623157e308  # of positive floats
BELOW_0, ABOVE_1 = -math.ulp(0.0), math.nextafter(1.0, 2.0)

WHOLE_FROM_0 = "a whole number of at least 0"
WHOLE_FROM_1 = "a whole number of at least 1"
ABOVE_0 = "a number above 0"
WARM = "a number of at least 0.001"
FRACTION = "a number of at least 0 and at most 1"
SHARE = "a number above 0 and at most 1"
METHOD = "'gcd' or 'kmeans' or 'rankstats' or 'simgcd' or 'uno'"
VIEWS = "a whole number of at least 2 or 'auto' or None"

# of each setting: what it must be in words, values that just do, values that just do not
RULES: dict[tuple[Settings, str], tuple[str, list[Any], list[Any]]] = {
    (Training, "epochs"): (WHOLE_FROM_0, [0, 1, 10**6], [-1, 1.0, 200.5]),
    (Training, "batch_size"): (WHOLE_FROM_1, [1, 128], [0, -128, 128.0]),
    (Training, "lr"): (ABOVE_0, [LEAST, 0.1, 1, MOST], [0, 0.0, -0.0, BELOW_0, -1]),
    (Training, "schedule"): ("'cosine' or 'step'", ["cosine", "step"], ["Cosine", "", 0, True]),
    (Training, "final_lr"): (FRACTION, [0, 0.0, 1e-3, 1, 1.0], [BELOW_0, ABOVE_1, 2]),
    (Training, "warmup"): (FRACTION, [0, 0.05, 1], [BELOW_0, ABOVE_1]),
    (Training, "drop_at"): (FRACTION, [0, 0.85, 1], [BELOW_0, ABOVE_1]),
    (Training, "momentum"): (FRACTION, [0, 0.9, 1], [BELOW_0, ABOVE_1]),
    (Training, "weight_decay"): ("a number of at least 0", [0, 5e-5, 10], [BELOW_0, -1]),
    (Training, "views"): (VIEWS, [2, 8, "auto", None], [1, 0, 8.0, "AUTO", ""]),
    (Training, "flip"): ("True or False", [True, False], [1, 0, 1.0, "auto", "yes"]),
    (Training, "balanced"): ("True or False", [True, False], [1, 0, "auto"]),
    (Training, "validate_every"): (WHOLE_FROM_1, [1, 5], [0, -1, 1.0]),
    (Training, "chunks"): (WHOLE_FROM_1, [1, 5], [0, -1, 1.0]),
    (Training, "seed"): (f"{WHOLE_FROM_0} and at most 4294967295", [0, 2**32 - 1], [-1, 2**32, 0.0]),
    (Training, "precision"): ("'auto' or 'bf16' or 'float32'", ["auto", "bf16", "float32"], ["fp32", "bfloat16", 32]),
    (Training, "compile"): ("'auto' or True or False", ["auto", True, False], [1, 0, "no"]),
    (Contrast, "temperature"): (WARM, [1e-3, 0.07, 1, MOST], [0, 0.0, 0.00099, -0.07]),
    (Contrast, "supervised_temperature"): (WARM, [1e-3, 0.07, 1], [0, 0.0, 0.00099, -0.07]),
    (Contrast, "supervised_weight"): (FRACTION, [0, 0.35, 1, 1.0], [BELOW_0, ABOVE_1]),
    (Contrast, "hidden"): (WHOLE_FROM_1, [1, 2048], [0, -1, 2048.0]),
    (Contrast, "bottleneck"): (WHOLE_FROM_1, [1, 256], [0, -1, 256.0]),
    (Contrast, "output"): ("'bottleneck' or 'prototypes'", ["bottleneck", "prototypes"], ["prototype", True]),
    (Contrast, "prototypes"): (WHOLE_FROM_1, [1, 65_536], [0, -1, 65_536.0]),
    (Ranks, "top"): (WHOLE_FROM_1, [1, 5], [0, -1, 5.0]),
    (Ranks, "consistency"): ("a number of at least 0", [0, 5, 50.0], [BELOW_0, -1]),
    (Ranks, "ramp"): (SHARE, [LEAST, 0.75, 1], [0, 0.0, BELOW_0, ABOVE_1]),
    (Swaps, "temperature"): (WARM, [1e-3, 0.1, 1], [0, 0.0, 0.00099, -0.1]),
    (Swaps, "epsilon"): (WARM, [1e-3, 0.05, 1], [0, 0.0, 0.00099, -0.05]),
    (Swaps, "iterations"): (WHOLE_FROM_1, [1, 3], [0, -1, 3.0]),
    (Swaps, "queue"): (f"{WHOLE_FROM_0} or 'auto'", [0, 1, 2048, "auto"], [-1, 0.0, "AUTO"]),
    (Swaps, "heads"): (WHOLE_FROM_1, [1, 4], [0, -1, 4.0]),
    (Swaps, "overclustering"): (WHOLE_FROM_0, [0, 3], [-1, 3.0]),
    (Distillation, "student_temperature"): (WARM, [1e-3, 0.1, 1], [0, 0.00099]),
    (Distillation, "first_teacher_temperature"): (WARM, [1e-3, 0.07, 1], [0, 0.00099]),
    (Distillation, "teacher_temperature"): (WARM, [1e-3, 0.04, 1], [0, 0.00099]),
    (Distillation, "sharpening"): (SHARE, [LEAST, 0.15, 1], [0, 0.0, BELOW_0, ABOVE_1]),
    (Distillation, "entropy_weight"): ("a number of at least 0", [0, 1, 4.0], [BELOW_0, -1]),
    (Distillation, "supervised_weight"): (FRACTION, [0, 0.35, 1], [BELOW_0, ABOVE_1]),
    (Distillation, "temperature"): (WARM, [1e-3, 0.07, 1], [0, 0.00099]),
    (Distillation, "supervised_temperature"): (WARM, [1e-3, 0.07, 1], [0, 0.00099]),
    (Distillation, "hidden"): (WHOLE_FROM_1, [1, 2048], [0, -1, 2048.0]),
    (Distillation, "bottleneck"): (WHOLE_FROM_1, [1, 256], [0, -1, 256.0]),
    (Discovery, "k"): (f"{WHOLE_FROM_1} or 'auto'", [1, 10, "auto"], [0, -1, 10.0, "Auto", "10", ""]),
    (Discovery, "method"): (METHOD, [*METHODS], ["GCD", "k-means", "rankstats+", "", 0]),
    (Discovery, "backbone"): ("text", ["convnet", "a b/ü.json", "auto", " ", "\udcff"], ["", 0, 1.5, b"convnet", True]),
    (Discovery, "weights"): ("text or None", ["w.safetensors", "None", None], ["", 0, b"w", False]),
    (Discovery, "epochs"): (f"{WHOLE_FROM_0} or 'auto'", [0, 1, "auto"], [-1, 1.0, "AUTO"]),
    (Discovery, "lr"): (f"{ABOVE_0} or 'auto'", [LEAST, 0.1, 1, "auto"], [0, 0.0, BELOW_0, -1, "AUTO", ""]),
    (Discovery, "views"): (VIEWS, [2, 8, "auto", None], [1, 0, 8.0, "live", ""]),
    (Discovery, "seed"): (f"{WHOLE_FROM_0} and at most 2147483647", [0, 2**31 - 1], [-1, 2**31, 0.0]),
    (Discovery, "k_max"): ("a whole number of at least 2", [2, 10**6], [1, 0, 2.0, "auto"]),
    (Discovery, "n_init"): (WHOLE_FROM_1, [1, 20], [0, -1, 20.0, "auto"]),
    (Discovery, "held_out"): (
        "a number of at least 0 and at most 0.5",
        [0, 0.0, 0.2, 0.5],
        [BELOW_0, math.nextafter(0.5, 1.0), 1],
    ),
    (Discovery, "unsure_below"): (FRACTION, [0, 0.5, 1, 1.0], [BELOW_0, ABOVE_1]),
}
NEVER: list[Any] = [math.nan, math.inf, -math.inf, "0.5", [1], (1,), {}, 1j, b"auto", np.array([3, 4]), object]
NUMBERS = [of for of, (rule, _, _) in RULES.items() if "number" in rule]
WITHOUT_NONE = [of for of, (rule, _, _) in RULES.items() if "None" not in rule]


def cases(which: int) -> list[tuple[Settings, str, Any]]:
    return [(kind, name, value) for (kind, name), row in RULES.items() for value in row[which]]


def refusal(kind: Settings, name: str, value: Any) -> str:
    with pytest.raises(InputError) as caught:
        kind(**{name: value})
    return str(caught.value)


def test_every_setting_is_in_the_table() -> None:
    assert list(RULES) == [(kind, each.name) for kind in KINDS for each in fields(kind)]


def test_the_defaults_are_the_paper_s() -> None:
    assert asdict(Training()) == {
        "epochs": 200,
        "batch_size": 128,
        "lr": 0.1,
        "schedule": "cosine",
        "final_lr": 1e-3,
        "warmup": 0.0,
        "drop_at": 0.85,
        "momentum": 0.9,
        "weight_decay": 5e-5,
        "views": "auto",
        "flip": True,
        "balanced": True,
        "validate_every": 1,
        "chunks": 1,
        "seed": 0,
        "precision": "auto",
        "compile": "auto",
    }
    assert asdict(Contrast()) == {
        "temperature": 1.0,
        "supervised_temperature": 0.07,
        "supervised_weight": 0.35,
        "hidden": 2048,
        "bottleneck": 256,
        "output": "bottleneck",
        "prototypes": 65_536,
    }
    assert asdict(Ranks()) == {"top": 5, "consistency": 50.0, "ramp": 0.75}
    assert asdict(Swaps()) == {
        "temperature": 0.1,
        "epsilon": 0.05,
        "iterations": 3,
        "queue": "auto",
        "heads": 1,
        "overclustering": 0,
    }
    assert asdict(Distillation()) == {
        "student_temperature": 0.1,
        "first_teacher_temperature": 0.07,
        "teacher_temperature": 0.04,
        "sharpening": 0.15,
        "entropy_weight": 2.0,
        "supervised_weight": 0.35,
        "temperature": 1.0,
        "supervised_temperature": 0.07,
        "hidden": 2048,
        "bottleneck": 256,
    }


def test_what_each_method_is_trained_with() -> None:
    """What differs from the paper's own training; the drop at 0.85 is at epoch 170 of 200, 0.05 are 10 epochs."""
    assert TRAININGS.keys() == set(METHODS)
    usual = asdict(Training())
    different = {
        method: {name: value for name, value in asdict(training).items() if value != usual[name]}
        for method, training in TRAININGS.items()
    }
    assert different == {
        "gcd": {},
        "kmeans": {},
        "rankstats": {"schedule": "step", "final_lr": 0.1, "weight_decay": 1e-4},
        "simgcd": {},
        "uno": {"warmup": 0.05, "final_lr": 2.5e-3, "weight_decay": 1.5e-4},
    }


def test_what_tiny_images_are_learned_with() -> None:
    assert (TINY_TRAINING.epochs, TINY_TRAINING.lr, TINY_TRAINING.flip) == (40, 0.05, False)
    assert replace(TINY_CONTRAST, temperature=1.0, hidden=2048) == Contrast()
    assert replace(TINY_DISTILLATION, temperature=1.0, hidden=2048) == Distillation()
    assert TINY_CONTRAST.temperature == TINY_DISTILLATION.temperature == 0.3


@pytest.mark.parametrize(("kind", "name", "value"), cases(1))
def test_a_setting_may_be(kind: Settings, name: str, value: Any) -> None:
    kept = getattr(kind(**{name: value}), name)
    assert kept == value
    is_float = next(each for each in fields(kind) if each.name == name).type in (float, float | Auto)
    assert type(kept) is (
        float if is_float and value != "auto" else type(value)
    )  # 1 and 1.0 are one setting, also in a run's key


@pytest.mark.parametrize(("kind", "name", "value"), cases(2))
def test_a_setting_may_not_be(kind: Settings, name: str, value: Any) -> None:
    assert refusal(kind, name, value) == f"{name} must be {RULES[kind, name][0]}, got {value!r}."


@pytest.mark.parametrize(("kind", "name"), RULES)
def test_no_setting_may_be_anything_odd(kind: Settings, name: str) -> None:
    is_text = RULES[kind, name][0].startswith("text")
    for value in NEVER:
        if is_text and isinstance(value, str):
            continue
        assert refusal(kind, name, value) == f"{name} must be {RULES[kind, name][0]}, got {value!r}."


@pytest.mark.parametrize(("kind", "name"), NUMBERS)
def test_yes_and_no_are_no_numbers(kind: Settings, name: str) -> None:
    for value in (True, False, np.True_):
        assert refusal(kind, name, value).endswith(f", got {value!r}.")


@pytest.mark.parametrize(("kind", "name"), WITHOUT_NONE)
def test_nothing_is_no_setting(kind: Settings, name: str) -> None:
    assert refusal(kind, name, None).endswith(", got None.")


@pytest.mark.parametrize(("kind", "name"), NUMBERS)
def test_a_number_beyond_all_floats_is_refused(kind: Settings, name: str) -> None:
    for value in (10**400, -(10**400)):
        assert refusal(kind, name, value) == f"{name} must be {RULES[kind, name][0]}, got {value}."


def test_a_refusal_is_a_sortal_error_and_a_value_error() -> None:
    with pytest.raises(SortalError):
        Training(epochs=-1)
    with pytest.raises(ValueError, match="epochs must be a whole number of at least 0, got -1"):
        Training(epochs=-1)


@pytest.mark.parametrize("kind", KINDS)
def test_settings_are_frozen_and_named(kind: Settings) -> None:
    settings: Any = kind()
    for each in fields(kind):
        with pytest.raises(FrozenInstanceError):
            setattr(settings, each.name, getattr(settings, each.name))
    call: Any = kind
    with pytest.raises(TypeError, match="positional"):
        call(1)
    with pytest.raises(TypeError, match="epoch_count"):
        call(epoch_count=1)


@pytest.mark.parametrize(("kind", "name", "value"), cases(2))
def test_a_changed_record_is_checked_too(kind: Settings, name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"^{name} must be "):
        replace(kind(), **{name: value})


@pytest.mark.parametrize(("kind", "name", "value"), cases(1))
def test_a_record_survives_json(kind: Settings, name: str, value: Any) -> None:
    settings: Any = kind(**{name: value})
    text = json.dumps(asdict(settings), allow_nan=False)
    again: Any = kind(**json.loads(text))
    assert again == settings
    assert json.dumps(asdict(again)) == text


@given(st.floats())
def test_any_float_is_either_kept_or_refused(value: float) -> None:
    if 0 <= value <= 1:
        assert Training(momentum=value).momentum == value
    else:
        assert refusal(Training, "momentum", value) == f"momentum must be {FRACTION}, got {value!r}."


def test_numpy_s_float_is_a_float() -> None:
    settings = Contrast(temperature=np.float64(0.07))
    assert settings == Contrast(temperature=0.07)
    assert json.loads(json.dumps(asdict(settings)))["temperature"] == 0.07


def test_the_defaults_of_discovery() -> None:
    assert asdict(Discovery()) == {
        "k": "auto",
        "method": "gcd",
        "backbone": "vit_base_patch16_224.dino",
        "weights": None,
        "epochs": "auto",
        "lr": "auto",
        "views": "auto",
        "seed": 0,
        "k_max": 1000,
        "n_init": 20,
        "held_out": 0.2,
        "unsure_below": 0.5,
    }


@given(st.text(), st.booleans())
def test_any_text_but_none_at_all_is_text(value: str, or_none: bool) -> None:
    rule = Rule(kind=str, text=True, words=(None,) if or_none else ())
    assert rule.holds(value) == (value != "")
    assert rule.holds(None) is or_none
    assert not rule.holds(value.encode("utf-8", "surrogatepass"))
    assert not rule.holds([value])
    assert str(rule) == ("text or None" if or_none else "text")


def test_a_refusal_shows_long_text_cut() -> None:
    said = refusal(Discovery, "method", "x" * 5000)
    assert said.startswith(f"method must be {METHOD}, got 'xxx")
    assert said.endswith("... (5,002 characters).")


def test_numpy_s_text_is_text() -> None:
    settings = Discovery(backbone=np.str_("convnet"))
    assert settings == Discovery(backbone="convnet")
    assert json.loads(json.dumps(asdict(settings)))["backbone"] == "convnet"


# Methods


@pytest.mark.parametrize("method", METHODS)
def test_a_classifier_must_be_trained(method: MethodName) -> None:
    """The others can sort without: by the features as they are."""
    if method not in CLASSIFIERS:
        assert Discovery(method=method, epochs=0).epochs == 0
        return
    said = f"epochs must be at least 1 for {method}, whose classifier must be trained, got 0."
    with pytest.raises(InputError) as caught:
        Discovery(method=method, epochs=0)
    assert str(caught.value) == said
    with pytest.raises(InputError) as caught:
        replace(Discovery(epochs=0), method=method)
    assert str(caught.value) == said
    assert Discovery(method=method, epochs=1).epochs == 1
    assert Discovery(method=method).epochs == "auto"


def test_methods_are_said_in_words() -> None:
    assert METHODS == ("gcd", "kmeans", "rankstats", "simgcd", "uno")
    assert CLASSIFIERS == ("rankstats", "simgcd", "uno")
    assert {"gcd": Contrast, "rankstats": Ranks, "simgcd": Distillation, "uno": Swaps} == LOSSES


def a_recipe(method: MethodName, **changes: Any) -> Recipe:
    classifies = method in CLASSIFIERS
    usual: dict[str, Any] = {
        "training": TRAININGS[method],
        "losses": LOSSES[method]() if method in LOSSES else None,
        "clustering": "head" if classifies else "semi-supervised",
        "estimate_on": "raw",
    }
    return Recipe(method=method, **{**usual, **changes})


@pytest.mark.parametrize("method", METHODS)
def test_a_recipe_has_the_losses_of_its_method(method: MethodName) -> None:
    assert a_recipe(method).method == method
    others = [None, *(losses() for losses in LOSSES.values())]
    names = {"gcd": "Contrast", "kmeans": "None", "rankstats": "Ranks", "simgcd": "Distillation", "uno": "Swaps"}
    for losses in others:
        if losses == a_recipe(method).losses:
            continue
        with pytest.raises(InputError) as caught:
            a_recipe(method, losses=losses)
        assert str(caught.value) == f"The losses of {method} must be {names[method]}, got {losses!r}."


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("clustering", ["semi-supervised", "kmeans", "head"])
def test_a_head_sorts_where_one_is_trained_and_only_there(method: MethodName, clustering: str) -> None:
    if (clustering == "head") == (method in CLASSIFIERS):
        assert a_recipe(method, clustering=clustering).clustering == clustering
        return
    with pytest.raises(InputError) as caught:
        a_recipe(method, clustering=clustering)
    assert str(caught.value) == f"clustering must be 'head' for rankstats, simgcd, uno alone, got {clustering!r}."


@pytest.mark.parametrize("method", METHODS)
def test_who_must_know_k_to_learn_cannot_estimate_it_on_what_was_learned(method: MethodName) -> None:
    if method not in CLASSIFIERS:
        assert a_recipe(method, estimate_on="learned").estimate_on == "learned"
        return
    with pytest.raises(InputError) as caught:
        a_recipe(method, estimate_on="learned")
    assert str(caught.value) == f"k must be known before {method} learns: estimate_on must be 'raw'."


@pytest.mark.parametrize("method", CLASSIFIERS)
def test_a_recipe_of_a_classifier_trains_it(method: MethodName) -> None:
    with pytest.raises(InputError) as caught:
        a_recipe(method, training=replace(TRAININGS[method], epochs=0))
    assert str(caught.value) == (f"epochs must be at least 1 for {method}, whose classifier must be trained, got 0.")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"clustering": "k-means"}, "clustering must be 'semi-supervised' or 'kmeans' or 'head', got 'k-means'."),
        ({"clustering": None}, "clustering must be 'semi-supervised' or 'kmeans' or 'head', got None."),
        ({"estimate_on": "Raw"}, "estimate_on must be 'raw' or 'learned', got 'Raw'."),
    ],
)
def test_a_recipe_says_what_is_no_word_of_it(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        a_recipe("gcd", **changes)
    assert str(caught.value) == said


def test_a_recipe_learns_where_there_are_losses_and_epochs() -> None:
    assert a_recipe("gcd").learns
    assert not a_recipe("gcd", training=Training(epochs=0)).learns
    assert not a_recipe("kmeans").learns
    assert all(a_recipe(method).learns for method in CLASSIFIERS)


@pytest.mark.parametrize("method", METHODS)
def test_a_recipe_is_frozen_named_and_can_be_written_down(method: MethodName) -> None:
    recipe: Any = a_recipe(method, select=True)
    with pytest.raises(FrozenInstanceError):
        recipe.select = False
    saved = json.loads(json.dumps(asdict(recipe), allow_nan=False))
    losses = None if saved["losses"] is None else LOSSES[method](**saved.pop("losses"))
    assert Recipe(**{**saved, "training": Training(**saved["training"]), "losses": losses}) == recipe
