"""The backbone of a run as it was trained, and as it was before."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from sortal.backbone import load_backbone
from sortal.errors import InputError
from sortal.figures.paper import LeftOutError
from sortal.network import Backbone
from sortal.run import INITIAL, MODEL, Run

UNLEARNED = "Nothing was learned in this run: its features are those of the backbone as it is."
FORGOTTEN = f"What the backbone was before training is not in the run's folder ({INITIAL})."


@dataclass(frozen=True, kw_only=True)
class Backbones:
    after: Backbone
    before: Backbone | None
    lacking: str  # why there is none from before


def why_no_before(run: Run) -> str:
    """Why there is nothing to compare with what was trained; empty where there is."""
    if (run.folder / INITIAL).is_file():
        return ""
    return UNLEARNED if run.about["training"] is None else FORGOTTEN


def backbones(run: Run) -> Backbones:
    """Both, on the CPU."""
    try:
        after = load_backbone(str(run.folder / f"{MODEL}.json"))
    except InputError as error:
        raise LeftOutError(str(error)) from error
    lacking = why_no_before(run)
    return Backbones(after=after, before=None if lacking else _untrained(run, after), lacking=lacking)


@torch.no_grad()
def _untrained(run: Run, after: Backbone) -> Backbone:
    path = run.folder / INITIAL
    before = copy.deepcopy(after)
    trained = {name: value for name, value in before.named_parameters() if value.requires_grad}
    try:
        initial = load_file(path)
        if initial.keys() != trained.keys():
            raise ValueError("it is of other parts than those that were trained")
        for name, value in trained.items():
            if value.shape != initial[name].shape:
                raise ValueError(f"{name} is of another shape")
            value.copy_(initial[name])
    except (OSError, ValueError, SafetensorError) as error:
        raise LeftOutError(
            f"{str(path)!r} is damaged: {error}. Give the command that made the run again, with --force."
        ) from error
    before.source = f"{after.source}, before training"
    return before
