"""What makes a run the run it is: its settings, the weights it began with, and its images."""

import hashlib
import json
from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from sortal.config import Training
from sortal.images import ImageSet
from sortal.methods.method import Method
from sortal.network import digest
from sortal.store import PixelStore


def key_of(method: Method, images: ImageSet, store: PixelStore, config: Training) -> dict[str, str]:
    """What decides a run, as text and hashes; the same again is the same run."""
    settings = {name: value for name, value in asdict(config).items() if name not in ("chunks", "compile", "precision")}
    trained = [name for name, value in method.named_parameters() if value.requires_grad]
    order = by_content(images, store)
    data = hashlib.sha256()
    data.update(store.made.encode())
    for column in (store.digests, images.labels, images.validation):
        data.update(np.ascontiguousarray(column[order]).data)
    return {
        "settings": json.dumps({"method": method.settings(), "trained": trained, **settings}, sort_keys=True),
        "weights": digest(method.state_dict(), json.dumps(asdict(method.backbone.spec))),
        "images": data.hexdigest(),
    }


def differing(before: dict[str, str], now: dict[str, str]) -> str:
    """Which settings are others, and how."""
    old, new = ({**(all_ := json.loads(key["settings"])), **all_["method"]} for key in (before, now))
    changed = [
        f"{name} was {old.get(name)!r}, is {value!r}"
        for name, value in new.items()
        if old.get(name) != value and name not in ("method", "trained")
    ]
    return f"settings ({', '.join(changed)})" if changed else "settings"


def by_content(images: ImageSet, store: PixelStore) -> NDArray[np.int64]:
    """All rows in an order that is the same however they are shuffled; of equal images by what is known of them."""
    return np.lexsort((images.validation, images.labels, store.digests))
