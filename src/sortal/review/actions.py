"""What people can decide about a run: the actions, as records, as JSON and in words."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from sortal.system.json_records import read_record
from sortal.system.text import plural, shorten

Contents: TypeAlias = tuple[str, ...]
LONGEST = 200  # characters of a name in words


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
class Refit:
    """Put images into the categories that clustering again has found. This says nothing about a single image."""

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


Change: TypeAlias = (
    Rename | Merge | Split | Create | Move | Accept | AcceptCategory | Reject | Grow | Audit | Keep | Refit
)
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
    "grow": Grow,
    "audit": Audit,
    "keep": Keep,
    "refit": Refit,
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
        return quoted(names.get(category, f"category {category}"))

    def quoted(text: str) -> str:
        return repr(shorten(text, LONGEST))

    if isinstance(action, Rename):
        return f"Renamed {name(action.category)} to {quoted(action.name)}"
    if isinstance(action, Merge):
        merged = [*map(name, action.categories)]
        return f"Merged {', '.join(merged[1:])} into {', '.join(merged[:1])}"
    if isinstance(action, AcceptCategory):
        return f"Confirmed all of {name(action.category)}"
    if isinstance(action, Undo | Redo):
        return "Undid" if isinstance(action, Undo) else "Redid"
    if isinstance(action, Keep):
        kept = [name(each) for each in action.categories]
        return f"Kept {' and '.join(kept)} {'apart' if len(kept) > 1 else 'whole'}"
    if isinstance(action, Grow):
        if not action.seen and not action.unseen:
            return f"Left all of {name(action.category)} open"
        unseen = f" and accepted {len(action.unseen):,} unseen" if action.unseen else ""
        return f"Confirmed {plural(len(action.seen), 'image')} of {name(action.category)}{unseen}"
    if isinstance(action, Audit):
        sampled = plural(len(action.right) + len(action.wrong), "image")
        return f"Audited {sampled} accepted unseen: {len(action.wrong):,} wrong"
    images = plural(len(action.images), "image")
    if isinstance(action, Refit):
        return f"Refitted the categories, which moved {images}"
    if isinstance(action, Split):
        return f"Split {images} off as {quoted(action.name)}"
    if isinstance(action, Create):
        return f"Put {images} into the new category {quoted(action.name)}"
    if isinstance(action, Move):
        return f"Moved {images} to {name(action.category)}"
    if isinstance(action, Reject):
        return f"Rejected {images} from {name(action.category)}"
    return f"Confirmed {images}"
