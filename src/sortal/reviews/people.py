"""Several people in one review: their names, what each is asked, and decisions that contradict those of others."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic

import numpy as np

from sortal.errors import InputError
from sortal.images.review_states import SEEN, ReviewState
from sortal.reviews.actions import Accept, Action, Bin, Create, Grow, Move, PutBack, Redo, Reject, Split, Undo
from sortal.reviews.history import Decision, Review
from sortal.reviews.journal import decide
from sortal.reviews.state import NO_ROWS

MOST_PEOPLE = 50
LONGEST_PERSON = 60  # characters of a name
IMAGE_CHANGES = (Move, Create, Split, Accept, Reject, Bin, PutBack, Grow)
LONGEST_ASKED = 200  # characters that stand for a question
AWAY_AFTER = 30.0  # seconds without a sign of life, after which others may be asked the same


def check_people(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of people who review together; raise InputError unless they are different and printable."""
    found = tuple(name.strip() for name in names)
    for name in found:
        if not name or len(name) > LONGEST_PERSON or not name.isprintable():
            raise InputError(
                f"The name of a person must have 1 to {LONGEST_PERSON} printable characters, got {name!r}."
            )
    if len({name.casefold() for name in found}) < len(found):
        raise InputError(f"People must have different names, got {', '.join(found)}.")
    if len(found) > MOST_PEOPLE:
        raise InputError(f"At most {MOST_PEOPLE} people can review together, got {len(found)}.")
    return found


@dataclass
class Asked:
    """What each person is being asked, in the words of their pages, so that others are asked something else."""

    clock: Callable[[], float] = monotonic
    _now: dict[str, tuple[float, str]] = field(default_factory=dict)  # by person: when they were last there, and what

    def taken(self, person: str, asked: str) -> list[str]:
        """Note what a person is asked, and return what the others are."""
        now = self.clock()
        self._now[person] = now, asked
        return [each for who, (at, each) in self._now.items() if who != person and each and now - at < AWAY_AFTER]


def signed(review: Review, action: Action, by: str, *, settles: bool = False) -> list[Decision]:
    """Return the lines of one of several people: what contradicts a decision of another is disputed.

    Such a line changes nothing, as where journals are joined. Whoever answers the question `settles` it.
    """
    if isinstance(action, Undo | Redo):
        _check_own(review, action, by)
    against = {} if settles else _against(review, action, by)
    if not against:
        return [decide(action, by)]
    assert isinstance(action, Move | Create | Split | Bin | PutBack | Reject)
    free = tuple(each for each in action.images if each not in against)
    lines = [decide(replace(action, images=free), by)] if free else []
    wish: Action = replace(action, images=tuple(against))
    if free and isinstance(action, Create | Split):
        wish = Move(images=tuple(against), category=action.category)
    others = " and ".join(dict.fromkeys(against.values()))
    return [*lines, replace(decide(wish, by), disputed=f"{others} decided otherwise, so it becomes a question.")]


def independent(review: Review, version: int, action: Action) -> bool:
    """Tell whether an action by someone who knows the decisions up to a version means the same after the later ones.

    It does if these are about other images, and leave the categories that it names as they were.
    """
    missed = [step for step in review.done if step.number >= version]
    disputed = sum(number >= version for number, _ in review.disputed)
    if not version >= 0 or len(missed) + disputed < len(review.words) - version:  # something was undone
        return False
    rows = np.concatenate([NO_ROWS, *(step.former.rows for step in missed)])
    named = {each for step in missed if not isinstance(step.change, IMAGE_CHANGES) for each in _ids(step.change)}
    if isinstance(action, IMAGE_CHANGES):
        about = [getattr(action, name, ()) for name in ("images", "seen", "unseen", "wrong")]
        own = review.rows_of([content for part in about for content in part])
        return not np.isin(own, rows).any() and not {*_ids(action), *review.category[own].tolist()} & named
    changed = {*review.category[rows].tolist()}.union(*(step.former.category.tolist() for step in missed))
    return bool(_ids(action)) and not {*_ids(action)} & (changed | named)


def _ids(action: Action) -> tuple[int, ...]:
    """Return the categories that an action names, but for one that it makes."""
    if isinstance(action, Create | Split):
        return ()
    return (*getattr(action, "categories", ()), *([action.category] if hasattr(action, "category") else []))


def _check_own(review: Review, action: Undo | Redo, by: str) -> None:
    verb, steps = ("undo", review.done) if isinstance(action, Undo) else ("redo", review.undone)
    if steps and (maker := review.makers[steps[-1].number]) != by:
        raise InputError(
            f"The last decision is by {maker}, so only {maker} can {verb} it. Decide on the images instead."
        )


def _against(review: Review, action: Action, by: str) -> dict[str, str]:
    """Return the contents of an action that others have decided on otherwise, after seeing them, and who did."""
    if not isinstance(action, Move | Create | Split | Bin | PutBack | Reject):
        return {}
    last, decided = review.decided_at(), np.isin(review.reviewed, (*SEEN, ReviewState.BINNED))
    found: dict[str, str] = {}
    for content in action.images:
        rows = review.rows_of([content])
        rows = rows[decided[rows] & (last[rows] >= 0)]
        if isinstance(action, Move):
            rows = rows[review.category[rows] != action.category]
        elif isinstance(action, Bin):
            rows = rows[~review.binned[rows]]
        makers = [review.makers[number] for number in last[rows].tolist()]
        if others := [maker for maker in makers if maker != by]:
            found[content] = others[0]
    return found
