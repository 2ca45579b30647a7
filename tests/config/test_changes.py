"""Settings changed by name."""

from dataclasses import replace
from typing import Any

import pytest

from sortal.config import Contrast, Discovery, Recipe, changed, combinations, described, differences
from sortal.config.changes import changeable
from sortal.discovery.defaults import recipe_for
from sortal.errors import InputError


def recipe(method: str = "gcd", **settings: Any) -> Recipe:
    return recipe_for(Discovery(method=method, **settings), 5000, on_gpu=True)


def test_any_setting_of_losses_training_and_recipe_changes() -> None:
    usual = recipe()
    changes = [
        "losses.temperature=0.3",
        "losses.output=prototypes",
        "training.batch_size=64",
        "training.clip=None",
        "training.flip=false",
        "training.repeats=2",
        "clustering=kmeans",
        "neighbours=4",
        "select=True",
    ]
    found = changed(usual, changes)
    assert found.losses == replace(Contrast(), temperature=0.3, output="prototypes")
    assert found.training == replace(usual.training, batch_size=64, clip=None, flip=False, repeats=2.0)
    assert (found.clustering, found.neighbours, found.select) == ("kmeans", 4, True)
    assert set(differences(found, usual)) == {*changes} - {"training.flip=false", "training.repeats=2"} | {
        "training.flip=False",
        "training.repeats=2.0",
    }
    assert changed(usual, differences(found, usual)) == found
    assert changed(usual, ()) is usual
    assert recipe(set=changes) == found
    assert recipe(set={"losses.temperature": 0.3}).losses == Contrast(temperature=0.3)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            "losses.temperature",
            "A change must be NAME=VALUE, such as training.batch_size=64, got 'losses.temperature'.",
        ),
        ("temperature=1", "'temperature' is not a setting of gcd. Did you mean 'losses.temperature'?"),
        ("losses.temprature=1", "'losses.temprature' is not a setting of gcd. Did you mean 'losses.temperature'?"),
        ("losses.temperature=0", "losses.temperature must be a number of at least 0.001, got '0'."),
        ("losses.hidden=1.5", "losses.hidden must be a whole number of at least 1, got '1.5'."),
        ("training.schedule=linear", "training.schedule must be 'cosine' or 'step', got 'linear'."),
        ("training.epochs=3", "training.epochs is a setting of its own, epochs."),
        ("clustering=head", "clustering must be 'semi-supervised' or 'kmeans' for gcd, got 'head'."),
        ("losses.temperature=nan", "losses.temperature must be a number of at least 0.001, got 'nan'."),
    ],
)
def test_a_change_that_cannot_be_is_refused(change: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        changed(recipe(), [change])
    assert str(caught.value) == said
    with pytest.raises(InputError, match="is not a setting of kmeans"):
        changed(recipe("kmeans"), ["losses.temperature=1"])
    with pytest.raises(InputError, match=r"^losses.hidden is changed more than once"):
        changed(recipe(), ["losses.hidden=1", "losses.hidden=2"])


def test_several_values_are_combined() -> None:
    assert combinations(()) == [()]
    assert combinations(("a=1,2", "b=x")) == [("a=1", "b=x"), ("a=2", "b=x")]
    assert combinations(("a=1,2", "b=x,y"))[-1] == ("a=2", "b=y")
    assert combinations(("wrong",)) == [("wrong",)]


def test_settings_are_described_by_their_help_or_their_rule() -> None:
    found = described(recipe())
    assert [line.partition(" = ")[0] for line in found] == [*changeable(recipe())], "all that can be changed"
    assert "losses.temperature = 1.0: a number of at least 0.001" in found
    assert "training.batch_size = 128: a whole number of at least 1" in found
    assert not any(line.startswith("losses") for line in described(recipe("kmeans")))
