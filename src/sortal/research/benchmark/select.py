"""What a person asks for, in names and a few changes, as presets to run."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from sortal import datasets
from sortal.benchmark.presets import Preset, ad_hoc, select
from sortal.config import AUTO, Contrast, MethodName
from sortal.errors import InputError


def choose(
    dataset: str | None,
    root: Path,
    *,
    methods: Sequence[str] = (),
    names: Sequence[str] = (),
    k: str | None = None,
    backbone: str | None = None,
    weights: str | None = None,
    epochs: int | None = None,
    lr: float | None = None,
    views: int | str | None = None,
    fast: bool = False,
) -> tuple[Preset, ...]:
    """The presets of some names, or those of methods on a data set; what is given besides takes the place of theirs.

    A file of weights is for those presets that need one, where there are any. `fast` takes Sortal's way of learning
    instead of the paper's: kept views, and losses on the bottleneck. A preset that is changed is none any more: it has
    no version, and on another data set it is named after that.
    """
    if dataset is not None and dataset not in (*datasets.NAMES, datasets.FOLDER):
        known = ", ".join((*datasets.NAMES, datasets.FOLDER))
        raise InputError(f"The data set must be one of {known}, got {dataset!r}. A folder of yours: folder --root IT.")
    if names:
        found = dict.fromkeys(preset for name in names for preset in select(name))  # each once
        chosen = [*found] if dataset is None else _moved(list(found), dataset, datasets.label(dataset, root))
        if methods:
            raise InputError(f"A preset has its method; give none beside it, got {', '.join(methods)}.")
    elif dataset is None:
        raise InputError("A data set or a preset must be named: sortal benchmark presets lists them.")
    else:
        beside: Any = {} if backbone is None else {"backbone": backbone}
        chosen = [
            ad_hoc(dataset, _method(name), name=f"{datasets.label(dataset, root)}/{name}", **beside)
            for name in dict.fromkeys(methods or ("gcd",))
        ]
    training: dict[str, Any] = {"views": AUTO} if fast else {}
    if epochs is not None:
        training["epochs"] = epochs
    if lr is not None:
        training["lr"] = lr
    if views is not None:
        training["views"] = None if views == "live" else views
    needy = any(preset.needs and backbone is None for preset in chosen)  # a file of weights is for these alone
    given = {preset: weights if not needy or preset.needs else None for preset in chosen}
    return tuple(_changed(preset, _k(k), backbone, given[preset], training, fast) for preset in chosen)


def numbers(text: str) -> tuple[int, ...]:
    """Seeds, as they are typed: 0,1,2."""
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise InputError(f"seeds must be whole numbers with commas between, like 0,1,2, got {text!r}.")
    return tuple(int(part) for part in parts)


def _method(name: str) -> MethodName:
    for known in get_args(MethodName):
        if name == known:
            return known  # type: ignore[no-any-return]
    raise InputError(f"method must be one of {', '.join(get_args(MethodName))}, got {name!r}.")


def _k(text: str | None) -> Any:
    if text is None or text in ("true", AUTO):
        return text
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    raise InputError(f"k must be true, auto or a number of at least 1, got {text!r}.")


def _moved(presets: Sequence[Preset], dataset: str, label: str) -> list[Preset]:
    """Presets on another data set: what is the same there is run once, and what is not has a name of its own."""
    if all(preset.dataset == dataset for preset in presets):
        return list(presets)
    first: dict[Preset, Preset] = {}
    for preset in presets:
        title = f"{label}, {preset.title.partition(', ')[2]}"
        moved = replace(preset, dataset=dataset, title=title, version=None)
        first.setdefault(replace(moved, name=""), moved)
    short = [f"{name[0]}-{name[2] if len(name) > 2 else 'k'}" for name in (p.name.split("/") for p in first.values())]
    return [
        replace(preset, name=f"{label}/{own if short.count(own) == 1 else preset.name.replace('/', '-')}")
        for preset, own in zip(first.values(), short, strict=True)
    ]


def _changed(
    preset: Preset, k: Any, backbone: str | None, weights: str | None, training: dict[str, Any], fast: bool
) -> Preset:
    recipe = replace(preset.recipe, training=replace(preset.recipe.training, **training))
    if fast and isinstance(recipe.losses, Contrast):
        recipe = replace(recipe, losses=replace(recipe.losses, output="bottleneck"))
    other: Any = {} if backbone in (None, preset.backbone) else {"backbone": backbone, "needs": None}
    changed = replace(preset, k=k or preset.k, weights=weights or preset.weights, recipe=recipe, **other)
    same = replace(changed, weights=preset.weights) == preset  # a file may hold the same weights as the hub
    return changed if same else replace(changed, version=None)
