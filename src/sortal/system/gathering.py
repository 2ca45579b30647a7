"""Values gathered by their keys."""

from collections.abc import Iterable
from typing import TypeVar

KeyType = TypeVar("KeyType")
ValueType = TypeVar("ValueType")


def gathered(pairs: Iterable[tuple[KeyType, ValueType]]) -> dict[KeyType, list[ValueType]]:
    """Return the values of each key, both in the order in which they come."""
    found: dict[KeyType, list[ValueType]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found
