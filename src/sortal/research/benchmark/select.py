"""Selection of the presets to run, by names, methods and a few changed settings."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sortal.config import (
    AUTO,
    BACKBONE,
    LIVE,
    OWN_K,
    Contrast,
    Discovery,
    Overrides,
    changed,
    combinations,
    from_keywords,
    load_method,
    load_named_backbone,
    registration_of,
)
from sortal.errors import InputError, Remedy
from sortal.images import datasets
from sortal.research.benchmark.presets import Preset, ad_hoc, select


def choose(
    dataset: str | None,
    root: Path,
    *,
    methods: Sequence[str] = (),
    names: Sequence[str] = (),
    fast: bool = False,
    **changes: Any,
) -> tuple[Preset, ...]:
    """Return the presets of some names, or those of methods on a data set, with the settings of `Overrides` changed.

    Weights go to the presets that require a file, if any of them does. `fast` trains in Sortal's way instead of the
    paper's: with cached views, and losses on the bottleneck. A modified preset loses its version; on another data set
    it is named after that.
    """
    (overrides,) = from_keywords(changes, Overrides)
    if overrides.backbone is not None:
        load_named_backbone(overrides.backbone)
    known = (*datasets.DATASET_NAMES, datasets.FOLDER)
    if dataset is not None and dataset not in known:
        own = Remedy("call it folder to run on a folder of your own", root=...)
        raise InputError(f"The data set must be one of {', '.join(known)}, got {dataset!r}.", own)
    if names:
        found = dict.fromkeys(preset for name in names for preset in select(name))  # each once
        chosen = [*found] if dataset is None else _on_dataset(list(found), dataset, datasets.label(dataset, root))
        if methods:
            raise InputError(f"A preset includes its method, so no other can be given, got {', '.join(methods)}.")
    elif dataset is None:
        raise InputError("Name a data set or a preset. List the presets with: sortal benchmark presets.")
    else:
        label, backbone = datasets.label(dataset, root), overrides.backbone or BACKBONE
        asked = methods or (Discovery().method,)
        each = dict.fromkeys(registration_of(load_method(reference)).name for reference in asked)
        chosen = [ad_hoc(dataset, method, name=f"{label}/{method}", backbone=backbone) for method in each]
    some = overrides.backbone is None and any(preset.needs for preset in chosen)  # only these take the weights
    without = replace(overrides, weights=None) if some else overrides
    return tuple(
        _override(preset, overrides if preset.needs else without, fast, changes)
        for preset in chosen
        for changes in combinations(overrides.set)
    )


def numbers(parts: Sequence[str]) -> tuple[int, ...]:
    """Parse seeds."""
    if not parts or not all(part.isascii() and part.isdigit() for part in parts):
        raise InputError(f"seeds must be whole numbers, like 0 1 2 or 0,1,2, got {' '.join(parts)!r}.")
    return tuple(int(part) for part in parts)


def _on_dataset(presets: Sequence[Preset], dataset: str, label: str) -> list[Preset]:
    """Move presets to another data set, under new names, and drop those that become equal there."""
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


def _override(preset: Preset, changes: Overrides, fast: bool, settings: tuple[str, ...]) -> Preset:
    training: dict[str, Any] = {"views": AUTO} if fast else {}
    training |= {name: value for name in ("epochs", "lr", "views") if (value := getattr(changes, name)) is not None}
    if training.get("views") == LIVE:
        training["views"] = None
    recipe = replace(preset.recipe, training=replace(preset.recipe.training, **training))
    if fast and isinstance(recipe.losses, Contrast):
        recipe = replace(recipe, losses=replace(recipe.losses, output="bottleneck"))
    name = " ".join((preset.name, *(each.replace("/", "-") for each in settings)))
    recipe = changed(recipe, settings)
    same = changes.backbone in (None, preset.backbone)
    other: Any = {} if same else {"backbone": changes.backbone, "needs": None}
    k, weights = changes.k or preset.k, changes.weights or preset.weights
    trained = changes.trained or preset.trained
    found = replace(preset, name=name, k=k, weights=weights, trained=trained, recipe=recipe, **other)
    if k == OWN_K and not registration_of(recipe.method).finds_k:
        raise InputError(
            f"k must be true, auto or a number for {recipe.method}, which does not find it itself, got own."
        )
    unmodified = replace(found, weights=preset.weights) == preset  # a file may hold the same weights as the hub
    return found if unmodified else replace(found, version=None)
