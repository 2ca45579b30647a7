"""What people can decide about a run: the actions, as records and as JSON."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias, get_args

from sortal.system.json_records import read_record

Contents: TypeAlias = tuple[str, ...]
LONGEST_CATEGORY_NAME = 200  # characters of the name of a category


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
    """Put images of one category into a new one. This does not confirm any image."""

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
    """Confirm that all images of a category, as it is then, belong there; those that nobody saw are accepted unseen."""

    category: int
    unseen: Contents = ()


@dataclass(frozen=True, kw_only=True)
class Reject:
    """Say that images do not belong to their category; they go to the most similar of the others."""

    images: Contents
    category: int


@dataclass(frozen=True, kw_only=True)
class Bin:
    """Say that images belong to no category; nobody is asked about them again, and nothing is learned from them."""

    images: Contents


@dataclass(frozen=True, kw_only=True)
class PutBack:
    """Take images out of the bin: to the class of their label, or else to the most similar category."""

    images: Contents


@dataclass(frozen=True, kw_only=True)
class Grow:
    """Put images into a category: confirmed where a person has seen them, accepted unseen otherwise.

    Those that are wrong do not belong to it.
    """

    category: int
    seen: Contents
    unseen: Contents
    wrong: Contents


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Say which images of a random sample of those accepted unseen are right; what fails is open again."""

    right: Contents
    wrong: Contents


@dataclass(frozen=True, kw_only=True)
class Keep:
    """Leave categories as they are: one is not to be split, two are not to be merged."""

    categories: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Leave:
    """Say that images added later are no class of their own: they stay where they are, and are no candidate again."""

    images: Contents


@dataclass(frozen=True, kw_only=True)
class Refit:
    """Put images into the categories that clustering again has found. This does not confirm any image."""

    images: Contents
    to: tuple[int, ...]  # category of each image
    names: tuple[str, ...]  # of new categories, whose ids follow the last one that was used
    categories: tuple[int, ...]  # all that were found, with the share of each that stays together
    stability: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Undo:
    """Take back the last decision that has not been taken back."""


@dataclass(frozen=True, kw_only=True)
class Redo:
    """Make the decision again that was taken back last."""


@dataclass(frozen=True, kw_only=True)
class Withdraw:
    """Take back a decision of one's own that is disputed, so that nobody is asked about it."""

    wish: str  # the key of the disputed line


ImageChange: TypeAlias = Split | Create | Move | Accept | Reject | Bin | PutBack | Leave  # which name `images`
Change: TypeAlias = Rename | Merge | ImageChange | AcceptCategory | Grow | Audit | Keep | Refit
Action: TypeAlias = Change | Undo | Redo | Withdraw
# By their verbs, which are their names in words.
ACTIONS: dict[str, type[Action]] = {
    re.sub("(?<!^)(?=[A-Z])", " ", kind.__name__).lower(): kind for kind in get_args(Action)
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
