"""The cache of stages: a key for all that decides a result, and files that are either complete or absent."""

import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from numpy.typing import NDArray

import sortal
from sortal.system import cache


def test_keys_are_short_and_differ_when_anything_but_the_order_of_settings_differs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts: list[tuple[Any, ...]] = [
        *((), ("a", "b"), ("ab",), (["a", "b"],), (["a"], "b"), ("b", "a")),
        *((0,), (0.0,), (-0.0,), (False,), (None,), ("0",)),
        *(("\udcff",), ("ÿ",)),
    ]
    keys = {cache.key(stage, *each) for each in parts for stage in ("k", "clusters")}
    assert len(keys) == 2 * len(parts)
    assert all(len(each) == 16 and set(each) <= set("0123456789abcdef") for each in keys)
    assert cache.key("k", {"a": 1, "b": {"c": 2, "d": 3}}) == cache.key("k", {"b": {"d": 3, "c": 2}, "a": 1})
    again = cache.key("k", "a", 1)
    monkeypatch.setattr(cache, "CODE_VERSION", cache.CODE_VERSION + 1)
    assert cache.key("k", "a", 1) != again
    monkeypatch.undo()
    assert cache.key("k", "a", 1) == again
    monkeypatch.setattr(sortal, "__version__", "0.0.0")
    assert cache.key("k", "a", 1) != again


ZEROS = np.zeros(4, dtype=np.float32)
ARRAYS: list[tuple[NDArray[Any], ...]] = [
    (ZEROS,),
    (ZEROS.astype(np.int32),),
    (ZEROS.astype(">f4"),),
    (ZEROS.reshape(2, 2),),
    (ZEROS[:2], ZEROS[:2]),
    (ZEROS, ZEROS[:0]),
    (ZEROS[:0], ZEROS),
    (),
    (np.array([0, 0, 0, 1], dtype=np.float32),),
]


def test_a_hash_depends_on_types_shapes_order_and_values_but_not_on_the_memory_layout() -> None:
    assert len({cache.hashed(*arrays) for arrays in ARRAYS}) == len(ARRAYS)
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert cache.hashed(np.asfortranarray(x)) == cache.hashed(x)
    assert cache.hashed(np.repeat(x, 2, axis=0)[::2]) == cache.hashed(x)
    assert cache.hashed(x.T) != cache.hashed(x)


def test_a_saved_value_is_loaded(tmp_path: Path) -> None:
    path, value = tmp_path / "some" / "folders" / "x.json", {"k": [1, 0.1 + 0.2, None, "Ä\udcff\n"]}
    assert cache.load(path) is None
    cache.save(path, value)
    assert cache.load(path) == value
    assert [each.name for each in path.parent.iterdir()] == ["x.json"]
    assert cache.load(path.parent) is None


@pytest.mark.parametrize("content", [b"", b'[{"k": 1}, {"k"', b"\xff"])
def test_a_damaged_file_counts_as_absent_and_is_overwritten(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    assert cache.load(path) is None
    cache.save(path, [1])
    assert cache.load(path) == [1]


def test_a_kill_while_saving_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    cache.save(path, {"old": True})
    monkeypatch.setattr(os, "replace", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        cache.save(path, {"old": False, "more": list(range(1000))})
    assert cache.load(path) == {"old": True}
