"""What a setting may be: rules derived from types and bounds, and records that check their values by them."""

import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from operator import ge, gt, le
from types import NoneType, UnionType
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints

from sortal.errors import InputError, quoted

Auto = Literal["auto"]
AUTO: Auto = "auto"
OWN_K: Literal["own"] = "own"  # the k that a method finds itself
BOUNDS = {"least": (ge, "of at least"), "above": (gt, "above"), "most": (le, "at most")}  # of numbers, also in words


@dataclass(frozen=True)
class Rule:
    """The values a setting may take: a number within bounds, one of some words, any text, or several texts."""

    number: type | None  # int or float
    text: bool
    words: tuple[Any, ...]
    bounds: Mapping[str, float]  # by name in BOUNDS
    several: bool = False

    @classmethod
    def of(cls, hint: Any, **bounds: float) -> Self:
        """Derive the rule from a type such as `int | Literal["auto"]`."""
        parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        words: list[Any] = []
        for part in parts:
            if part in (bool, NoneType) or get_origin(part) is Literal:
                words += (True, False) if part is bool else (None,) if part is NoneType else get_args(part)
        number = next((part for part in parts if part in (int, float)), None)
        return cls(number, str in parts, tuple(words), bounds, hint == tuple[str, ...])

    def holds(self, value: Any) -> bool:
        if any(type(value) is type(word) and value == word for word in self.words):
            return True
        if self.several:
            return isinstance(value, list | tuple) and all(isinstance(each, str) and each != "" for each in value)
        if self.text:
            return isinstance(value, str) and value != ""
        numbers = (int, float) if self.number is float else (int,)
        if self.number is None or isinstance(value, bool) or not isinstance(value, numbers):
            return False
        finite = bool(abs(value) <= sys.float_info.max)  # false for NaN, too
        return finite and all(BOUNDS[name][0](value, bound) for name, bound in self.bounds.items())

    def __str__(self) -> str:
        kinds = ["several texts"] if self.several else ["text"] if self.text else []
        if self.number is not None:
            limits = " and ".join(f"{BOUNDS[name][1]} {bound}" for name, bound in self.bounds.items())
            kinds.append(f"a {'whole ' if self.number is int else ''}number {limits}".rstrip())
        *others, last = [*kinds, *map(repr, self.words)]
        return f"{', '.join(others)} or {last}" if others else last


def rules_of(record: type) -> Mapping[str, Rule]:
    """Return the rule of each setting of a record, from its type and bounds."""
    hints = get_type_hints(record)
    return {each.name: Rule.of(hints[each.name], **each.metadata.get("bounds", {})) for each in fields(record)}


def option(default: Any, help: str = "", **bounds: float) -> Any:
    """Declare a setting: a field with a default, a sentence of help, and bounds by name (see `BOUNDS`)."""
    return field(default=default, metadata={"help": help, "bounds": bounds})


@dataclass(frozen=True, kw_only=True)
class SettingsGroup:
    """Base of every record: checks each value against its rule."""

    def __post_init__(self) -> None:
        for name, rule in rules_of(type(self)).items():
            value = getattr(self, name)
            if rule.text and isinstance(value, os.PathLike):
                value = os.fspath(value)
            if rule.several:
                value = as_texts(value)
            if not rule.holds(value):
                raise InputError(f"{name} must be {rule}, got {quoted(value)}.")
            if rule.several:
                value = tuple(value)
            if rule.number is float and not isinstance(value, str | NoneType):  # 1 and 1.0 are one setting
                value = float(value)
            object.__setattr__(self, name, value)


def as_texts(value: Any) -> Any:
    """Return a mapping as texts, name=value, and a single text as one of several; any other value as it is."""
    if isinstance(value, Mapping):
        return tuple(f"{name}={each}" for name, each in value.items())
    return (value,) if isinstance(value, str) else value


def from_keywords(
    given: Mapping[str, Any], *records: type[SettingsGroup], others: Collection[str] = ()
) -> tuple[Any, ...]:
    """Make one of each record from keyword arguments, and refuse a name that none of them declares.

    `others` are further names that may have been meant.
    """
    home = {each.name: record for record in records for each in fields(record)}
    for name in given:
        if name not in home:
            from difflib import get_close_matches

            near = get_close_matches(name, [*others, *home])
            hint = f"Did you mean {near[0]!r}? " if near else ""
            raise InputError(f"{quoted(name)} is not a setting. {hint}The settings are {', '.join([*others, *home])}.")
    return tuple(record(**{name: value for name, value in given.items() if home[name] is record}) for record in records)


def describe(*records: type[SettingsGroup]) -> str:
    """Return a line for each setting: its name, default and meaning."""
    return "\n".join(f"{each.name} = {each.default!r}: {each.metadata['help']}" for r in records for each in fields(r))
