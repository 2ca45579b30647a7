"""The backbone of a run, before and after training."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from sortal.errors import InputError
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.backbones.loading import load_backbone
from sortal.research.figures.style import LeftOutError
from sortal.runs.run import INITIAL, MODEL, Run

UNTRAINED = "This run did not train its backbone."
FORGOTTEN = f"The run's folder does not have the weights from before training ({INITIAL})."


@dataclass(frozen=True, kw_only=True)
class Backbones:
    after: Backbone
    before: Backbone | None
    missing: str  # why `before` is None


def why_untrained_missing(run: Run) -> str:
    """Return why the backbone from before training is unavailable; empty if it is available."""
    if (run.folder / INITIAL).is_file():
        return ""
    return UNTRAINED if run.facts.training is None else FORGOTTEN


def backbones(run: Run) -> Backbones:
    """Load both, on the CPU."""
    try:
        after = load_backbone(str(run.folder / f"{MODEL}.json"))
    except InputError as error:
        raise LeftOutError(str(error)) from error
    missing = why_untrained_missing(run)
    return Backbones(after=after, before=None if missing else _untrained(run, after), missing=missing)


@torch.no_grad()
def _untrained(run: Run, after: Backbone) -> Backbone:
    path = run.folder / INITIAL
    before = copy.deepcopy(after)
    trained = {name: value for name, value in before.named_parameters() if value.requires_grad}
    try:
        initial = load_file(path)
        if initial.keys() != trained.keys():
            raise ValueError("it does not have the trained parameters")
        for name, value in trained.items():
            if value.shape != initial[name].shape:
                raise ValueError(f"{name} has another shape")
            value.copy_(initial[name])
    except (OSError, ValueError, SafetensorError) as error:
        raise LeftOutError(
            f"{str(path)!r} is damaged: {error}. Repeat the command that made the run, overwriting it."
        ) from error
    before.source = f"{after.source}, before training"
    return before
