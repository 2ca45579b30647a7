"""A cache of stages' results, in files named by a digest of everything they depend on."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import sortal
from sortal.system.files import write_atomically
from sortal.system.regular_files import read_regular

CODE = 3  # incremented when a stage gives another result from the same input


def key(stage: str, *parts: Any) -> str:
    """Return the name of a stage's result from these inputs."""
    text = json.dumps([stage, CODE, sortal.__version__, *parts], sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def hashed(*arrays: NDArray[Any]) -> str:
    """Return a digest of arrays, their types and shapes."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def load(path: Path) -> Any:
    """Return a cached value, or None."""
    try:
        return json.loads(read_regular(path))
    except (OSError, ValueError):
        return None


def save(path: Path, value: Any) -> None:
    """Cache a value as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(value).encode())
