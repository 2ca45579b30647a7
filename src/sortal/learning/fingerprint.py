"""The identity of a training run: its settings, its initial weights and its images."""

import hashlib
import json
from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from sortal.config import Training
from sortal.images.image_set import ImageSet
from sortal.images.store.pixel_store import PixelStore
from sortal.learning.backbones.backbone import digest
from sortal.learning.methods.method import Method


def run_key(method: Method, images: ImageSet, store: PixelStore, config: Training) -> dict[str, str]:
    """Return everything that decides a run, as text and digests; runs with equal keys are the same run."""
    settings = {name: value for name, value in asdict(config).items() if name not in ("chunks", "compile", "precision")}
    trained = [name for name, value in method.named_parameters() if value.requires_grad]
    order = content_order(images, store)
    data = hashlib.sha256()
    data.update(store.made.encode())
    for column in (store.digests, images.labels, images.validation):
        data.update(np.ascontiguousarray(column[order]).data)
    return {
        "settings": json.dumps({"method": method.settings(), "trained": trained, **settings}, sort_keys=True),
        "weights": digest(method.state_dict(), json.dumps(asdict(method.backbone.spec))),
        "images": data.hexdigest(),
    }


def changed_parts(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """List the parts of two keys that differ, with the old and new values of changed settings."""
    parts = [name for name, value in now.items() if before.get(name) != value]
    return [_describe_settings(before, now) if name == "settings" else name for name in parts]


def _describe_settings(before: dict[str, str], now: dict[str, str]) -> str:
    old, new = ({**(all_ := json.loads(key["settings"])), **all_["method"]} for key in (before, now))
    changed = [
        f"{name} was {old.get(name)!r}, is {value!r}"
        for name, value in new.items()
        if old.get(name) != value and name not in ("method", "trained")
    ]
    return f"settings ({', '.join(changed)})" if changed else "settings"


def content_order(images: ImageSet, store: PixelStore) -> NDArray[np.int64]:
    """Order rows by content, then by label and validation mark, however the images are shuffled."""
    return np.lexsort((images.validation, images.labels, store.digests))
