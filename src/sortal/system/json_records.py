"""Frozen records from JSON: each value must fit the type of its field, and an error names the one that does not."""

import math
import sys
import types
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from sortal.system.text import shorten

LONGEST_SHOWN = 60  # characters of a key or a value in a message
T = TypeVar("T")
_hints = cache(get_type_hints)


def read_record(kind: type[T], value: object, name: str = "") -> T:
    """Return the dataclass or NamedTuple that JSON holds; a missing key takes the field's default.

    Raises a ValueError that names the first value that does not fit.
    """
    return _read(kind, value, name or kind.__name__)


def finite(value: Any) -> Any:
    """Return a value as JSON has it, with null in place of NaN and infinity, which it lacks."""
    if isinstance(value, dict):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _read(kind: Any, value: Any, name: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if hasattr(origin, "__value__"):  # an alias such as NDArray of newer NumPy: what it stands for
        origin = get_origin(origin.__value__)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        return _read_union(arguments, value, name)
    if origin is Literal:
        fits = any(type(value) is type(each) and value == each for each in arguments)
        _require(fits, name, " or ".join(map(repr, arguments)), value)
        return value
    if origin is np.ndarray:
        return np.array(_read(tuple[float, ...], value, name))
    if origin is tuple:
        _require(isinstance(value, list), name, "a list", value)
        return tuple(_read_all(arguments[:1] * len(value) if arguments[-1] is ... else arguments, value, name))
    if origin is dict:
        _require(isinstance(value, dict), name, "an object", value)
        if all(type(each) is arguments[1] for each in value.values()):  # a million paths, say
            return value
        return {key: _read(arguments[1], each, f"{name}.{shorten(key, LONGEST_SHOWN)}") for key, each in value.items()}
    if is_dataclass(kind):
        return _read_dataclass(kind, value, name)
    if issubclass(kind, tuple):
        _require(isinstance(value, list), name, "a list", value)
        return kind(*_read_all([*_hints(kind).values()], value, name))
    if kind is float and type(value) is int and abs(value) <= sys.float_info.max:
        return float(value)
    _require(type(value) is kind, name, kind.__name__, value)
    return value


def _read_union(kinds: tuple[Any, ...], value: Any, name: str) -> Any:
    problems = []
    for kind in kinds:
        try:
            return _read(kind, value, name)
        except ValueError as error:
            problems.append(error)
    raise problems[0]  # that of the first kind, which is never None


def _read_dataclass(kind: Any, value: Any, name: str) -> Any:
    _require(isinstance(value, dict), name, "an object", value)
    known = {field.name: field for field in fields(kind)}
    required = {key for key, field in known.items() if field.default is field.default_factory is MISSING}
    for problem, keys in (("an unknown", value.keys() - known.keys()), ("no", required - value.keys())):
        if keys:
            raise ValueError(f"{name} has {problem} key {shorten(min(keys), LONGEST_SHOWN)!r}")
    kinds = _hints(kind) | (kind.types_in(value) if hasattr(kind, "types_in") else {})  # which depend on other values
    return kind(**{key: _read(kinds[key], each, f"{name}.{key}") for key, each in value.items()})


def _read_all(kinds: Any, values: list[Any], name: str) -> list[Any]:
    _require(len(kinds) == len(values), name, f"a list of {len(kinds)}", values)
    return [_read(kind, each, f"{name}[{at}]") for at, (kind, each) in enumerate(zip(kinds, values, strict=True))]


def _require(holds: bool, name: str, rule: object, value: Any) -> None:
    if not holds:
        raise ValueError(f"{name} must be {rule}, got {str(value)[:LONGEST_SHOWN]!r}")
