"""What people can decide about a run: the actions, as records, as JSON and in words."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from sortal.system.json_records import read_record
from sortal.system.text import plural

Contents: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Rename:
    """Give a category a name."""

    category: int
    name: str


@dataclass(frozen=True, kw_only=True)
class Merge:
    """Merge categories into the first of them, which keeps its id and name."""

    categories: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Split:
    """Put images of one category into a new one. This says nothing about a single image."""

    images: Contents
    category: int  # the new one; an id never used before
    name: str


@dataclass(frozen=True, kw_only=True)
class Create:
    """Put images that a person has chosen one by one into a new category."""

    images: Contents
    category: int
    name: str


@dataclass(frozen=True, kw_only=True)
class Move:
    """Put images into a category."""

    images: Contents
    category: int


@dataclass(frozen=True, kw_only=True)
class Accept:
    """Confirm that images are in the right category."""

    images: Contents


@dataclass(frozen=True, kw_only=True)
class AcceptCategory:
    """Confirm that all images of a category, as it is then, belong there."""

    category: int


@dataclass(frozen=True, kw_only=True)
class Reject:
    """Say that images do not belong to their category; they go to the most similar of the others."""

    images: Contents
    category: int


@dataclass(frozen=True, kw_only=True)
class Undo:
    """Take back the last decision that has not been taken back."""


@dataclass(frozen=True, kw_only=True)
class Redo:
    """Make the decision again that was taken back last."""


Change: TypeAlias = Rename | Merge | Split | Create | Move | Accept | AcceptCategory | Reject
Action: TypeAlias = Change | Undo | Redo
ACTIONS: dict[str, type[Action]] = {
    "rename": Rename,
    "merge": Merge,
    "split": Split,
    "create": Create,
    "move": Move,
    "accept": Accept,
    "accept category": AcceptCategory,
    "reject": Reject,
    "undo": Undo,
    "redo": Redo,
}
VERBS = {kind: verb for verb, kind in ACTIONS.items()}


def to_json(action: Action) -> dict[str, Any]:
    """Return an action as JSON: its verb under "do", and its fields."""
    return {"do": VERBS[type(action)], **{each.name: getattr(action, each.name) for each in fields(action)}}


def from_json(value: Mapping[str, Any]) -> Action:
    """Read an action; raises a ValueError that names what is wrong."""
    verb = value.get("do")
    if not isinstance(verb, str) or verb not in ACTIONS:
        raise ValueError(f"do must be one of {', '.join(ACTIONS)}, got {str(verb)[:60]!r}")
    return read_record(ACTIONS[verb], {key: each for key, each in value.items() if key != "do"}, verb)


def describe(action: Action, names: Mapping[int, str]) -> str:
    """Say in words what an action does; `names` are those of the categories then, by id."""

    def name(category: int) -> str:
        return repr(names.get(category, f"category {category}"))

    if isinstance(action, Rename):
        return f"Renamed {name(action.category)} to {action.name!r}"
    if isinstance(action, Merge):
        first, *others = map(name, action.categories)
        return f"Merged {', '.join(others)} into {first}"
    if isinstance(action, AcceptCategory):
        return f"Confirmed all of {name(action.category)}"
    if isinstance(action, Undo | Redo):
        return "Undid" if isinstance(action, Undo) else "Redid"
    images = plural(len(action.images), "image")
    if isinstance(action, Split):
        return f"Split {images} off as {action.name!r}"
    if isinstance(action, Create):
        return f"Put {images} into the new category {action.name!r}"
    if isinstance(action, Move):
        return f"Moved {images} to {name(action.category)}"
    if isinstance(action, Reject):
        return f"Rejected {images} from {name(action.category)}"
    return f"Confirmed {images}"
