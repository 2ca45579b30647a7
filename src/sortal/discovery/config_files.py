"""Settings from a file: the run.json of a run, which repeats it, or TOML."""

import os
import tomllib
from collections.abc import Collection
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from sortal.config import LIVE, Discovery, Reading, as_texts, differences, not_loaded, registered
from sortal.discovery.defaults import recipe_for
from sortal.discovery.earlier import as_asked
from sortal.errors import InputError, quoted
from sortal.runs.facts import RunFacts
from sortal.runs.storage import peek
from sortal.system.regular_files import read_regular

TABLES = ("losses", "training")  # of settings that `set` changes


def settings_in(path: str | os.PathLike[str], given: Collection[str] = ()) -> dict[str, Any]:
    """Return the settings in a file by name, also `labels`, without those that are `given` otherwise.

    A run.json gives all settings of its run: with the same images and labels, they repeat it on any machine. In TOML,
    settings have the names of the arguments of `discover`, and there may be tables [losses] and [training].
    """
    place = Path(path)
    found = _of_run(place) if place.suffix == ".json" or place.is_dir() else _of_toml(place)
    return {name: value for name, value in found.items() if name not in given}


def _of_run(path: Path) -> dict[str, Any]:
    facts = peek(path if path.is_dir() else path.parent)
    if facts is None or (path.is_file() and path.name != "run.json"):
        raise InputError(f"A configuration must be the run.json of a run, or TOML, got {str(path)!r}.")
    training = facts.recipe.training
    settings = asdict(as_asked(facts)) | {
        "epochs": training.epochs,
        "lr": training.lr,
        "views": LIVE if training.views is None else training.views,
        "set": _changes(facts),
    }
    return settings | asdict(facts.reading) | ({} if facts.labels is None else {"labels": facts.labels})


def _changes(facts: RunFacts) -> tuple[str, ...]:
    """Return how the recipe of a run differs from the usual one of its method, with a GPU or without."""
    if registered(facts.settings.method) is None:
        raise not_loaded(facts.settings.method, facts.method_source)
    plain = {each.name: getattr(facts.settings, each.name) for each in fields(Discovery) if each.name != "set"}
    usual = (recipe_for(Discovery(**plain), 1, on_gpu=on_gpu) for on_gpu in (False, True))
    return tuple(dict.fromkeys(text for each in usual for text in differences(facts.recipe, each)))


def _of_toml(path: Path) -> dict[str, Any]:
    try:
        found = tomllib.loads(read_regular(path).decode())
    except OSError as error:
        raise InputError(f"The configuration {str(path)!r} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise InputError(f"The configuration {str(path)!r} must be TOML, but it is not: {error}.") from error
    changes = list(as_texts(found.pop("set", ())))
    for table in TABLES:
        if isinstance(under := found.pop(table, {}), dict):
            changes += [f"{table}.{name}={value}" for name, value in under.items()]
    known = {"labels", *(each.name for record in (Discovery, Reading) for each in fields(record))}
    for name in found.keys() - known:
        raise InputError(
            f"{quoted(name)} in {str(path)!r} is not a setting. The settings are {', '.join(sorted(known))}, and those "
            "in the tables losses and training."
        )
    return found | ({"set": tuple(changes)} if changes else {})
