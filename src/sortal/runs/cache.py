"""What stages keep, under names made of all it depends on."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import sortal
from sortal.segments import write_atomically

CODE = 1  # raised when a stage comes to another result from the same


def key(stage: str, *parts: Any) -> str:
    """A name for what a stage makes of these."""
    text = json.dumps([stage, CODE, sortal.__version__, *parts], sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def hashed(*arrays: NDArray[Any]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def load(path: Path) -> Any:
    """What a stage wrote down, or nothing."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def save(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(value).encode())
