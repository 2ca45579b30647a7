"""The figures of each epoch, sent to a tracker of experiments that is installed: Weights & Biases or MLflow."""

from collections.abc import Mapping
from itertools import count
from typing import Any, Literal

from sortal.errors import InputError, Remedy
from sortal.system.progress import OnEpoch

Tracker = Literal["wandb", "mlflow"]


def tracker(name: Tracker, run: str) -> OnEpoch:
    """Return what sends figures to a tracker, as those of a run of this name; the steps are epochs over all rounds."""
    steps = count()
    try:
        if name == "wandb":
            import wandb

            wandb.init(project="sortal", name=run)
        else:
            import mlflow

            mlflow.start_run(run_name=run)
    except ImportError:
        raise InputError(f"{name} is not installed.", Remedy(f"install it with pip install {name}")) from None

    def send(epoch: int, images: Any, figures: Mapping[str, float]) -> None:
        if name == "wandb":
            wandb.log(dict(figures), step=next(steps))
        else:
            mlflow.log_metrics(dict(figures), step=next(steps))

    return send
