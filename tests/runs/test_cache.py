"""What stages keep: another name for anything that differs, and files that are whole or not there."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import sortal
from sortal.runs import cache


def test_keys_differ_when_anything_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[tuple[Any, ...]] = [
        *((), ("a", "b"), ("ab",), (["a", "b"],), (["a"], "b"), ("b", "a")),
        *((0,), (0.0,), (-0.0,), (False,), (None,), ("0",)),
        *(("\udcff",), ("ÿ",)),
    ]
    keys = {cache.key(stage, *each) for each in parts for stage in ("k", "clusters")}
    assert len(keys) == 2 * len(parts)
    again = cache.key("k", "a", 1)
    monkeypatch.setattr(cache, "CODE", cache.CODE + 1)
    assert cache.key("k", "a", 1) != again
    monkeypatch.undo()
    assert cache.key("k", "a", 1) == again
    monkeypatch.setattr(sortal, "__version__", "0.0.0")
    assert cache.key("k", "a", 1) != again


def test_a_key_is_a_short_name_that_does_not_depend_on_the_order_of_settings() -> None:
    one, other = cache.key("k", {"a": 1, "b": {"c": 2, "d": 3}}), cache.key("k", {"b": {"d": 3, "c": 2}, "a": 1})
    assert one == other
    assert len(one) == 16
    assert set(one) <= set("0123456789abcdef")


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


def test_hashes_differ_in_type_shape_order_and_value() -> None:
    hashes = [cache.hashed(*arrays) for arrays in ARRAYS]
    assert len(set(hashes)) == len(ARRAYS)


def test_a_hash_is_of_the_values_not_of_how_they_lie_in_memory() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert cache.hashed(np.asfortranarray(x)) == cache.hashed(x)
    assert cache.hashed(np.repeat(x, 2, axis=0)[::2]) == cache.hashed(x)
    assert cache.hashed(x.T) != cache.hashed(x)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path, value = tmp_path / "some" / "folders" / "x.json", {"k": [1, 0.1 + 0.2, None, "Ä\udcff\n"]}
    assert cache.load(path) is None
    cache.save(path, value)
    assert cache.load(path) == value
    assert [each.name for each in path.parent.iterdir()] == ["x.json"]
    assert cache.load(path.parent) is None


@pytest.mark.parametrize("content", [b"", b'[{"k": 1}, {"k"', b"\xff"])
def test_a_damaged_file_is_nothing_and_is_written_anew(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    assert cache.load(path) is None
    cache.save(path, [1])
    assert cache.load(path) == [1]


def test_a_kill_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    cache.save(path, {"old": True})

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", kill)
    with pytest.raises(KeyboardInterrupt):
        cache.save(path, {"old": False, "more": list(range(1000))})
    assert cache.load(path) == {"old": True}
