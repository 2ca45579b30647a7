"""Methods by name: what may be registered, and what is refused rather than guessed."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest

from sortal.config import (
    BUILT_IN,
    METHODS,
    REFERENCES,
    Contrast,
    Distillation,
    Recipe,
    SettingsGroup,
    Training,
    option,
    reference_to,
    register,
    registered,
    registration_of,
)
from sortal.errors import InputError
from sortal.system.json_records import read_record


@dataclass(frozen=True)
class Plain:
    """An ordinary frozen dataclass."""

    share: float = 0.5
    mode: Literal["a", "b"] = "a"


@dataclass(frozen=True, kw_only=True)
class Sharper(Distillation):
    margin: float = option(0.4, "Of the margin.", least=0)


@dataclass
class Thawed:
    share: float = 0.5


@dataclass(frozen=True)
class Incomplete:
    share: float


@dataclass(frozen=True)
class Unsettable:
    rows: tuple[int, ...] = ()


class Mine:
    pass


class Other:
    pass


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    methods, references = dict(METHODS), dict(REFERENCES)
    yield
    for table, before in ((METHODS, methods), (REFERENCES, references)):
        table.clear()
        table.update(before)  # type: ignore[arg-type]


def of_clusters(*_: Any) -> None:
    pass


def test_a_method_is_found_by_its_name_and_by_its_class() -> None:
    found = register("mine", Mine, losses=Plain, title="My own", needs_k=True)
    assert registered("mine") is registered(reference_to(Mine)) is found
    assert (found.is_own, BUILT_IN["gcd"].is_own, found.usual_losses()) == (False, True, Plain())
    again = register("mine", Mine, losses=Plain)
    assert registered("mine") is again, "the cell of a notebook was run again"
    assert registered("another") is None
    recipe = Recipe(method="mine", training=Training(), losses=Plain(), clustering="kmeans", estimate_on="raw")
    assert recipe.learns


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "gcd"}, "The name of a method must be new, got 'gcd', a method of Sortal. Choose another."),
        ({"name": "taken"}, f"must be new, got 'taken', a method of {__name__}:Other. Choose another."),
        ({"name": "a/b"}, "The name of a method must be a word of letters, digits, - and _, got 'a/b'."),
        ({"name": ""}, "The name of a method must be a word of letters, digits, - and _, got ''."),
        ({"losses": Thawed}, "must be a frozen dataclass with a default for every field, got"),
        ({"losses": Incomplete}, "must be a frozen dataclass with a default for every field, got"),
        ({"losses": Mine}, "must be a frozen dataclass with a default for every field, got"),
        ({"losses": None}, "The losses of mine must be a frozen dataclass, got None."),
        ({"losses": Unsettable}, "rows of Unsettable must be a number, text, True or False, or a Literal."),
        ({"clustering": "k-means"}, "clustering must be 'semi-supervised', 'kmeans', 'head' or 'own', got 'k-means'."),
        ({"clustering": "own"}, "mine must have a function `cluster` if its clustering is 'own', and only then."),
        ({"cluster": of_clusters}, "mine must have a function `cluster` if its clustering is 'own', and only then."),
        ({"finds_k": True}, "mine must have a function `cluster` to find k."),
        ({"clustering": "head"}, "mine must need k, as it predicts by a classifier."),
    ],
)
def test_what_cannot_work_is_not_registered(given: dict[str, Any], said: str) -> None:
    register("taken", Other, losses=Plain)
    before = dict(METHODS)
    with pytest.raises(InputError) as caught:
        register(**{"name": "mine", "learner": Mine, "losses": Plain, **given})
    assert said in str(caught.value)
    assert before == METHODS


def test_settings_of_a_subclass_are_not_those_of_its_parent() -> None:
    """Trained as SimGCD, a method of this name would be recorded with settings that had no effect."""
    of = {"training": Training(), "clustering": "head", "estimate_on": "raw"}
    with pytest.raises(InputError, match=r"^The losses of simgcd must be Distillation, got Sharper\("):
        Recipe(method="simgcd", losses=Sharper(), **of)  # type: ignore[arg-type]
    register("sharper", Mine, losses=Sharper, clustering="head", needs_k=True)
    assert Recipe(method="sharper", losses=Sharper(), **of).losses == Sharper()  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^The losses of sharper must be Sharper, got Distillation\("):
        Recipe(method="sharper", losses=Distillation(), **of)  # type: ignore[arg-type]
    assert issubclass(Sharper, SettingsGroup)
    with pytest.raises(InputError, match=r"^margin must be a number of at least 0, got -1\.$"):
        replace(Sharper(), margin=-1)


def test_a_name_that_is_not_known_is_refused_and_one_that_is_not_loaded_is_named() -> None:
    with pytest.raises(InputError, match=r"^method must be .*gcd, .*, got 'smgcd'\. Did you mean 'simgcd'\?$"):
        registration_of("smgcd")
    for reference in ("lego.py:Lego", "papers.lego:Lego"):
        with pytest.raises(InputError, match=rf"^The method '{reference}' is not loaded.* Name it \(method="):
            registration_of(reference)


def test_a_saved_recipe_is_read_with_the_losses_of_its_method_and_loads_none() -> None:
    saved: dict[str, Any] = {"method": "gcd", "training": {}, "losses": {"temperature": 0.5}, "clustering": "kmeans"}
    saved["estimate_on"] = "raw"
    assert read_record(Recipe, saved).losses == Contrast(temperature=0.5)
    foreign = {**saved, "method": "elsewhere", "losses": {"unknown": [1], "temperature": "x"}, "clustering": "head"}
    found = read_record(Recipe, foreign)
    assert (found.method, found.losses, found.clustering) == ("elsewhere", foreign["losses"], "head")
    with pytest.raises(ValueError, match=r"losses has an unknown key 'margin'"):
        read_record(Recipe, {**saved, "losses": {"margin": 1}})
    with pytest.raises(ValueError, match=r"losses must be NoneType"):
        read_record(Recipe, {**saved, "method": "kmeans"})
