"""What stages keep: another name for anything that differs, and files that are whole or not there."""

import os
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import sortal
from sortal import kept

PARTS: list[tuple[Any, ...]] = [
    (),
    (None,),
    (0,),
    (0.0,),
    (False,),
    ("0",),
    ("",),
    ([],),
    ({},),
    ("a", "b"),
    ("ab",),
    (["a", "b"],),
    (["a"], "b"),
    ({"a": "b"},),
    ({"b": "a"},),
    ("b", "a"),
    (1 / 3,),
    (0.3333333333333334,),
    ("\udcff",),
    ("\\udcff",),
    ("ÿ",),
]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def test_keys_differ_when_anything_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {kept.key("k", *parts) for parts in PARTS} | {kept.key("clusters", *parts) for parts in PARTS}
    assert len(keys) == 2 * len(PARTS)
    again = kept.key("k", "a", 1)
    monkeypatch.setattr(kept, "CODE", kept.CODE + 1)
    assert kept.key("k", "a", 1) != again
    monkeypatch.undo()
    assert kept.key("k", "a", 1) == again
    monkeypatch.setattr(sortal, "__version__", "0.0.0")
    assert kept.key("k", "a", 1) != again


def test_a_key_is_a_short_name_that_does_not_depend_on_the_order_of_settings() -> None:
    one, other = kept.key("k", {"a": 1, "b": {"c": 2, "d": 3}}), kept.key("k", {"b": {"d": 3, "c": 2}, "a": 1})
    assert one == other
    assert len(one) == 16
    assert set(one) <= set("0123456789abcdef")


@settings(deadline=None)
@given(json_values, json_values)
def test_keys_are_equal_only_where_values_are_written_alike(one: Any, other: Any) -> None:
    assert (kept.key("x", one) == kept.key("x", other)) == (canonical(one) == canonical(other))


def canonical(value: Any) -> Any:
    """A value in which 1, 1.0 and True differ, as do 0.0 and −0.0."""
    if isinstance(value, dict):
        return {name: canonical(each) for name, each in value.items()}
    if isinstance(value, list):
        return [canonical(each) for each in value]
    return type(value).__name__, repr(value)


ARRAYS: list[tuple[NDArray[Any], ...]] = [
    (np.zeros(4, dtype=np.float32),),
    (np.zeros(4, dtype=np.int32),),
    (np.zeros(2, dtype=np.int64),),
    (np.zeros((2, 2), dtype=np.float32),),
    (np.zeros((1, 4), dtype=np.float32),),
    (np.zeros(4, dtype=">f4"),),
    (np.zeros(2, dtype=np.float32), np.zeros(2, dtype=np.float32)),
    (np.zeros(1, dtype=np.float32), np.zeros(3, dtype=np.float32)),
    (np.zeros(4, dtype=np.float32), np.zeros(0, dtype=np.float32)),
    (np.zeros(0, dtype=np.float32), np.zeros(4, dtype=np.float32)),
    (np.zeros(0, dtype=np.float32),),
    (np.zeros((0, 3), dtype=np.float32),),
    (),
    (np.array([0, 0, 0, 1], dtype=np.float32),),
    (np.array([b"ab", b"c"]),),
    (np.array([b"a", b"bc"]),),
    (np.array(["ab", "c"]),),
]


def test_hashes_differ_in_type_shape_order_and_value() -> None:
    hashes = [kept.hashed(*arrays) for arrays in ARRAYS]
    for (i, one), (j, other) in combinations(enumerate(hashes), 2):
        assert one != other, (i, j)


def test_a_hash_is_of_the_values_not_of_how_they_lie_in_memory() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert kept.hashed(np.asfortranarray(x)) == kept.hashed(x)
    assert kept.hashed(np.repeat(x, 2, axis=0)[::2]) == kept.hashed(x)
    assert kept.hashed(x.T) != kept.hashed(x)


@pytest.mark.parametrize("value", [None, [], {"k": [1, 0.1 + 0.2, None, "Ä\udcff\n"]}, 3, ""])
def test_what_is_saved_is_loaded(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "some" / "folders" / "x.json"
    kept.save(path, value)
    assert kept.load(path) == value
    assert [each.name for each in path.parent.iterdir()] == ["x.json"]


@pytest.mark.parametrize("content", [b"", b"{", b'[{"k": 1}, {"k"', b"\xff", b"\x00" * 10, b"nothing"])
def test_a_damaged_file_is_nothing_and_is_written_anew(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    assert kept.load(path) is None
    kept.save(path, [1])
    assert kept.load(path) == [1]


def test_a_missing_file_and_a_folder_are_nothing(tmp_path: Path) -> None:
    assert kept.load(tmp_path / "gone" / "x.json") is None
    assert kept.load(tmp_path) is None


@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_a_kill_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    path = tmp_path / "x.json"
    kept.save(path, {"old": True})

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, name, kill)
        with pytest.raises(KeyboardInterrupt):
            kept.save(path, {"old": False, "more": list(range(1000))})
    assert kept.load(path) == {"old": True}
    kept.save(path, {"old": False})
    assert kept.load(path) == {"old": False}
