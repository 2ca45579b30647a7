"""Records of benchmark runs, made up by hand."""

from typing import Any

from sortal.metrics import Accuracy
from sortal.research.benchmark.presets import PRESETS
from sortal.research.benchmark.records import KRecord, Record
from sortal.runs.facts import SplitScores

WEIGHTS = "model.safetensors (sha256 " + "0123456789abcdef" * 4 + ")"


def scores(all_: float | None, old: float | None, new: float | None, **others: Any) -> SplitScores:
    """SplitScores with these accuracies in %; the other fields are the same every time."""
    shares = [None if percent is None else percent / 100 for percent in (all_, old, new)]
    three = Accuracy(all=shares[0], old=shares[1], new=shares[2])
    same = {"images": 100, "accuracy": three, "legacy": three, "nmi": 0.5, "ari": 0.25, "known_accuracy": 0.75}
    return SplitScores(**{**same, **others})


def example(of: str = "table3/cub/gcd", seed: int = 0, **changes: Any) -> Record:
    """The record of a run of a preset."""
    preset = PRESETS[of]
    settings = preset.settings()
    whole: dict[str, Any] = {
        "key": "0" * 16,
        "name": of,
        "version": preset.version,
        "dataset": preset.dataset,
        "method": preset.recipe.method,
        "clustering": preset.recipe.clustering,
        "backbone": preset.backbone,
        "weights": WEIGHTS,
        "seed": seed,
        "k": KRecord(asked=preset.k, k=200, true=200, error=0.0),
        "transductive": scores(50, 60, 40),
        "inductive": None,
        "recipe": {**settings, "training": {**settings["training"], "seed": seed}},
        "training": {"epoch": 199},
        "timings": {"learn": 90.0, "clusters": 30.0},
        "device": "cpu",
        "machine": "Linux x86_64, 2 cores",
        "versions": {"sortal": "0.1", "torch": "2.6"},
        "command": f"sortal benchmark --preset {of} --seeds {seed}",
        "finished": "2026-01-01T10:00:00+00:00",
    }
    return Record(**{**whole, **changes})
