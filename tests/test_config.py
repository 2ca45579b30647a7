"""Settings: what each may be, to the bound; what a refusal says; and that a record survives being written down."""

import json
import math
from dataclasses import FrozenInstanceError, asdict, fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortal.config import Contrast, Discovery, Rule, Training
from sortal.errors import InputError, SortalError

Settings = type[Training] | type[Contrast] | type[Discovery]
KINDS: tuple[Settings, ...] = (Training, Contrast, Discovery)
LEAST, MOST = math.ulp(0.0), 1.7976931348623157e308  # of positive floats
BELOW_0, ABOVE_1 = -math.ulp(0.0), math.nextafter(1.0, 2.0)

WHOLE_FROM_0 = "a whole number of at least 0"
WHOLE_FROM_1 = "a whole number of at least 1"
ABOVE_0 = "a number above 0"
WARM = "a number of at least 0.001"
FRACTION = "a number of at least 0 and at most 1"
VIEWS = "a whole number of at least 2 or 'auto' or None"

# of each setting: what it must be in words, values that just do, values that just do not
RULES: dict[tuple[Settings, str], tuple[str, list[Any], list[Any]]] = {
    (Training, "epochs"): (WHOLE_FROM_0, [0, 1, 10**6], [-1, 1.0, 200.5]),
    (Training, "batch_size"): (WHOLE_FROM_1, [1, 128], [0, -128, 128.0]),
    (Training, "lr"): (ABOVE_0, [LEAST, 0.1, 1, MOST], [0, 0.0, -0.0, BELOW_0, -1]),
    (Training, "final_lr"): (FRACTION, [0, 0.0, 1e-3, 1, 1.0], [BELOW_0, ABOVE_1, 2]),
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
    (Discovery, "k"): (f"{WHOLE_FROM_1} or 'auto'", [1, 10, "auto"], [0, -1, 10.0, "Auto", "10", ""]),
    (Discovery, "method"): ("'gcd' or 'kmeans'", ["gcd", "kmeans"], ["GCD", "k-means", "", 0]),
    (Discovery, "backbone"): ("text", ["convnet", "a b/ü.json", "auto", " ", "\udcff"], ["", 0, 1.5, b"convnet", True]),
    (Discovery, "weights"): ("text or None", ["w.safetensors", "None", None], ["", 0, b"w", False]),
    (Discovery, "epochs"): (f"{WHOLE_FROM_0} or 'auto'", [0, 1, "auto"], [-1, 1.0, "AUTO"]),
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
        "final_lr": 1e-3,
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


@pytest.mark.parametrize(("kind", "name", "value"), cases(1))
def test_a_setting_may_be(kind: Settings, name: str, value: Any) -> None:
    kept = getattr(kind(**{name: value}), name)
    assert kept == value
    is_float = next(each for each in fields(kind) if each.name == name).type is float
    assert type(kept) is (float if is_float else type(value))  # 1 and 1.0 are one setting, also in a run's key


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
    assert said.startswith("method must be 'gcd' or 'kmeans', got 'xxx")
    assert said.endswith("... (5,002 characters).")


def test_numpy_s_text_is_text() -> None:
    settings = Discovery(backbone=np.str_("convnet"))
    assert settings == Discovery(backbone="convnet")
    assert json.loads(json.dumps(asdict(settings)))["backbone"] == "convnet"
