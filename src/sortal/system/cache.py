"""A cache of stages' results, in files named by a digest of everything they depend on."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import sortal
from sortal.system.files import write_atomically
from sortal.system.open_folder import make_folder
from sortal.system.regular_files import openable, read_json

HASH = "sha256"
CODE_VERSION = 3  # incremented when a stage gives another result from the same input


def key(stage: str, *parts: Any) -> str:
    """Return the name of a stage's result from these inputs."""
    text = json.dumps([stage, CODE_VERSION, sortal.__version__, *parts], sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def hashed(*arrays: NDArray[Any]) -> str:
    """Return a digest of arrays, their types and shapes."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def load(path: Path) -> Any:
    """Return a cached value; None if there is none, or it is damaged."""
    try:
        held = read_json(path)
    except (OSError, ValueError):
        return None
    whole = isinstance(held, dict) and held.keys() == {"value", HASH} and held[HASH] == _digest(held["value"])
    return held["value"] if whole else None


def save(path: Path, value: Any) -> None:
    """Cache a value as JSON, with its digest."""
    make_folder(path.parent)
    write_atomically(path, json.dumps({"value": value, HASH: _digest(value)}).encode())


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def load_arrays(path: Path) -> dict[str, NDArray[Any]] | None:
    """Return cached arrays by name; None if there are none. Raises a ValueError if they are damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with openable(path) as name, safe_open(name, "numpy") as held:
            arrays = {name: held.get_tensor(name) for name in sorted(held.keys())}
            whole = (held.metadata() or {}).get(HASH) == hashed(*arrays.values())
    except FileNotFoundError:
        return None
    except (SafetensorError, OSError, AttributeError, TypeError, KeyError) as error:  # of types that NumPy lacks, too
        raise ValueError(str(error)) from error
    if not whole:
        raise ValueError("its content does not match its digest")
    return arrays


def save_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Cache arrays by name, with their digest."""
    from safetensors.numpy import save

    make_folder(path.parent)
    whole = {name: np.ascontiguousarray(arrays[name]) for name in sorted(arrays)}
    write_atomically(path, save(whole, metadata={HASH: hashed(*whole.values())}))
