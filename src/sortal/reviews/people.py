"""Several people in one review: their names, what each is asked, and decisions that contradict those of others."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import TypeAlias
from unicodedata import normalize

import numpy as np

from sortal.errors import InputError
from sortal.images.review_states import SEEN, ReviewState
from sortal.reviews.actions import (
    Action,
    Bin,
    Contents,
    Create,
    Grow,
    ImageChange,
    Keep,
    Merge,
    Move,
    PutBack,
    Redo,
    Reject,
    Rename,
    Split,
    Undo,
    Withdraw,
)
from sortal.reviews.effects import outcome_of
from sortal.reviews.history import Decision, Review, Step, origin_of
from sortal.reviews.journal import decide
from sortal.reviews.state import NO_ROWS
from sortal.runs.categories import is_generated
from sortal.runs.run import KNOWN

Wish: TypeAlias = Move | Create | Split | Bin | PutBack | Reject

MOST_PEOPLE = 50
LONGEST_PERSON = 60  # characters of a name
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
    if len({normalize("NFKC", normalize("NFKC", name).casefold()) for name in found}) < len(found):
        raise InputError(f"People must have different names, got {', '.join(found)}.")
    if len(found) > MOST_PEOPLE:
        raise InputError(f"At most {MOST_PEOPLE} people can review together, got {len(found)}.")
    return found


@dataclass
class Asked:
    """What each person is being asked on each page, in the words of the page, so that others are asked something else.

    These words are the key of a question and, after a space, the categories that it is about.
    """

    clock: Callable[[], float] = monotonic
    _now: dict[tuple[str, str], tuple[float, str]] = field(default_factory=dict)  # when they were there, and what

    def taken(self, person: str, asked: str, page: str = "") -> list[str]:
        """Note what a person is asked on a page, unless another is, and return what the others are.

        So whoever is the first to note a question has it.
        """
        now = self.clock()
        self._now = {at: found for at, found in self._now.items() if now - found[0] < AWAY_AFTER}
        others = [each for (who, _), (_, each) in self._now.items() if who != person and each]
        self._now[person, page] = now, "" if any(_clash(asked, each) for each in others) else asked
        return others

    def alone(self, person: str) -> bool:
        """Tell whether nobody else is there."""
        now = self.clock()
        return all(who == person or now - at >= AWAY_AFTER for (who, _), (at, _) in self._now.items())


def _clash(one: str, other: str) -> bool:
    """Tell whether what two pages ask is the same, or about the same category."""
    (key, _, about), (theirs, _, categories) = one.partition(" "), other.partition(" ")
    return key == theirs or bool({*about.split(",")} & {*categories.split(",")} - {""})


def signed(review: Review, action: Action, by: str, *, settles: bool = False) -> list[Decision]:
    """Return the lines of one of several people: what contradicts a decision of another is disputed.

    Such a line changes nothing, as where journals are joined. Whoever answers the question `settles` it. Undoing the
    decision withdraws it.
    """
    if isinstance(action, Undo) and (disputed := review.wishes(by)):
        key = origin_of(disputed[-1][1].key)
        lines = [decide(Withdraw(wish=line.key), by) for _, line in disputed]
        return [*lines, decide(action, by)] if review.done and review.done[-1].key == key else lines
    if isinstance(action, Undo | Redo):
        _check_own(review, action, by)
    if not settles and (reason := _objection(review, action, by)):
        _check_possible(review, action)
        return [replace(decide(action, by), disputed=reason)]
    wishes = [] if settles else _wishes(action)
    contrary = [(wish, others) for wish in wishes if (others := _against(review, wish, by))]
    if not contrary:
        return [decide(action, by)]
    assert isinstance(action, Wish | Grow)
    _check_possible(review, action)
    free = _without(action, {content for _, others in contrary for content in others})
    lines = [] if free is None else [decide(free, by)]
    for wish, others in contrary:
        kept: Action = replace(wish, images=tuple(others))
        if free is not None and isinstance(wish, Create | Split):
            kept = Move(images=tuple(others), category=wish.category)
        who = " and ".join(dict.fromkeys(others.values()))
        line = replace(decide(kept, by), disputed=f"{who} decided otherwise, so it becomes a question.")
        lines.append(replace(line, key=f"{lines[0].key}.{len(lines)}") if lines else line)
    return lines


def _check_possible(review: Review, action: Action) -> None:
    """Raise InputError for an action that is impossible, whatever others have decided: it is no dispute."""
    if isinstance(action, Merge):  # which the question offers with a known category first
        known = [
            each for each in action.categories if each in review.categories and review.categories[each].kind == KNOWN
        ]
        action = Merge(categories=(*known, *(each for each in action.categories if each not in known)))
    if not isinstance(action, Undo | Redo | Withdraw):
        outcome_of(review, action)


def independent(review: Review, version: int, action: Action) -> bool:
    """Tell whether an action by someone who knows the decisions up to a version means the same after the later ones.

    It does if these are about other images, and leave the categories that it names as they were.
    """
    missed, later = [step for step in review.done if step.number >= version], len(review.words) - version
    disputed = sum(number >= version for number, _ in review.disputed)
    if not 0 <= later <= len(review.words) or len(missed) + disputed < later:  # something was undone
        return False
    rows = np.concatenate([NO_ROWS, *(step.former.rows for step in missed)])
    named = {each for step in missed if not isinstance(step.change, ImageChange | Grow) for each in _ids(step.change)}
    if isinstance(action, ImageChange | Grow):
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


def _objection(review: Review, action: Action, by: str) -> str:
    """Say which name, or which pair to be kept apart, an action contradicts that another person decided on."""
    match action:
        case Rename(category=category, name=name) if category in review.categories:
            now, step = review.categories[category].name, last_namings(review).get(category)
            namer = "" if step is None else review.makers[step.number]
            agrees = now == name or is_generated(now) or namer in ("", by)
            return "" if agrees else f"{namer} named it {now!r}."
        case Merge(categories=ids) if review.kept_apart(ids):
            makers = (review.makers[step.number] for step in partings(review, ids))
            parter = next((each for each in makers if each not in ("", by)), "")
            return f"{parter} keeps them apart." if parter else ""
        case _:
            return ""


def last_namings(review: Review) -> dict[int, Step]:
    """Return the last step that named each category that people have named."""
    return {step.change.category: step for step in review.done if isinstance(step.change, Rename | Create | Split)}


def partings(review: Review, ids: Collection[int]) -> Iterator[Step]:
    """Yield the steps that say that some of these categories, or of those merged into them, differ, the last first."""
    every = {*ids}
    for step in reversed(review.done):
        match step.change:
            case Merge(categories=merged) if merged[0] in every:
                every |= {*merged}
            case Keep(categories=pair) if len(pair) > 1 and every.issuperset(pair):
                yield step
            case Split(category=new) if new in every and every.intersection(step.former.category.tolist()):
                yield step


def _wishes(action: Action) -> list[Wish]:
    """Return what an action wants of images that another may have decided on, as if each part were asked for alone."""
    match action:
        case Grow(category=category, seen=seen, wrong=wrong):
            return [Move(images=seen, category=category), Reject(images=wrong, category=category)]
        case Move() | Create() | Split() | Bin() | PutBack() | Reject():
            return [action]
        case _:
            return []


def _without(action: Wish | Grow, contents: Collection[str]) -> Wish | Grow | None:
    """Return an action without these contents; None if it is then about no image."""

    def left(images: Contents) -> Contents:
        return tuple(each for each in images if each not in contents)

    if not isinstance(action, Grow):
        return replace(action, images=left(action.images)) if left(action.images) else None
    found = replace(action, seen=left(action.seen), wrong=left(action.wrong))
    return found if (*found.seen, *found.unseen, *found.wrong) else None


def _against(review: Review, wish: Wish, by: str) -> dict[str, str]:
    """Return the contents of a wish that others have decided on otherwise, after seeing them, and who did."""
    last, decided = review.decided_at(), np.isin(review.reviewed, (*SEEN, ReviewState.BINNED))
    found: dict[str, str] = {}
    for content in wish.images:
        rows = review.rows_of([content])
        rows = rows[decided[rows] & (last[rows] >= 0)]
        match wish:
            case Move(category=category):
                rows = rows[review.category[rows] != category]
            case Reject(category=category):
                rows = rows[review.category[rows] == category]
            case Bin():
                rows = rows[~review.binned[rows]]
        makers = [review.makers[number] for number in last[rows].tolist()]
        if others := [maker for maker in makers if maker != by]:
            found[content] = others[0]
    return found
