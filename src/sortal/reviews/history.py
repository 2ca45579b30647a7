"""Decisions in their order: who made them, what they did in words, what stands, and what can be undone or redone."""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sortal.errors import InputError
from sortal.images.review_states import ReviewState
from sortal.reviews import actions
from sortal.reviews.actions import LONGEST_CATEGORY_NAME, Action, Change, Redo, Undo, Withdraw
from sortal.reviews.effects import check_name, outcome_of
from sortal.reviews.state import Outcome, ReviewedCategory, State
from sortal.runs.confidence import Floats, Ints
from sortal.runs.run import Run, sizes_of
from sortal.system.text import plural, shorten

MOST_WHEREABOUTS = 3  # categories that are named of those that removed images went to
LONGEST_DISPUTE = 300  # characters of why a decision is disputed, in words


@dataclass(frozen=True, kw_only=True)
class Decision:
    """An action, when it was taken and by whom: a line of the journal."""

    key: str  # random, so that it is recognised in any journal
    at: str  # ISO 8601
    by: str
    action: Action
    disputed: str = ""  # why it was not carried out, if it contradicts an earlier one

    def to_json(self) -> dict[str, Any]:
        about = {"key": self.key, "at": self.at, "by": self.by, **actions.to_json(self.action)}
        return {**about, "disputed": self.disputed} if self.disputed else about


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """A change that was made, or that was made and undone."""

    key: str  # of the decision
    change: Change
    words: str  # what it did
    number: int  # of the decision by which it was made, or made again
    former: Outcome  # the state before it was made or, once it is undone, before that


@dataclass(eq=False)
class Review(State):
    """A run under review, and the decisions about it.

    The state is a pure function of the run as it was sorted and of the decisions; undoing is a decision, too.
    """

    done: list[Step] = field(default_factory=list)  # what stands
    undone: list[Step] = field(default_factory=list)  # what can be redone
    undone_by: dict[str, str] = field(default_factory=dict)  # key of a decision that was undone to that of its undo
    words: list[str] = field(default_factory=list)  # what each decision did, disputed ones included
    makers: list[str] = field(default_factory=list)  # who made each decision; empty if that is not known
    disputed: list[tuple[int, Decision]] = field(default_factory=list)  # decisions that changed nothing, by number

    def follow(self, line: Decision) -> None:
        """Take a decision; one that is disputed changes nothing, and may be about what is not in this run."""
        if line.disputed:
            if isinstance(line.action, actions.Rename | actions.Create | actions.Split):
                check_name(line.action.name)
            text = lower(describe(line.action, self.categories))
            self.disputed.append((len(self.words), line))
            self.words.append(f"Disputed: {text}. {shorten(line.disputed, LONGEST_DISPUTE)}")
            self.makers.append(line.by)
        else:
            self.take(line.action, line.key, line.by)

    def take(self, action: Action, key: str = "", by: str = "") -> None:
        """Carry out an action; one that raises InputError changes nothing."""
        words = describe(action, self.categories)
        match action:
            case Undo():
                step = self._turn(self.done, self.undone, "undo")
                self.undone_by[step.key] = key
                words = f"{words}: {lower(step.words)}"
            case Redo():
                step = self._turn(self.undone, self.done, "redo")
                self.undone_by.pop(step.key, None)  # keys that were made up may be the same
                words = f"{words}: {lower(step.words)}"
            case Withdraw(wish=wish):
                words = f"{words}: {lower(self.words[self._withdraw(wish, by)])}"
            case _:
                former = self.put(outcome_of(self, action))
                words += self._whereabouts(former.rows[self.category[former.rows] != former.category], action)
                self.done.append(Step(key=key, change=action, words=words, number=len(self.words), former=former))
                self.undone.clear()
        self.words.append(words)
        self.makers.append(by)

    def _whereabouts(self, moved: Ints, change: Change) -> str:
        """Say where images went that do not belong to their category, as a person has said without saying where."""
        moved = moved[self.reviewed[moved] == ReviewState.REJECTED]
        if not len(moved) or not isinstance(change, actions.Reject | actions.Grow | actions.Audit):
            return ""
        counts = sorted(sizes_of(self.category[moved]).items(), key=lambda item: -item[1])
        went = [f"{count:,} to {quoted(self.categories[each].name)}" for each, count in counts[:MOST_WHEREABOUTS]]
        more = [f"{rest:,} elsewhere"] if (rest := sum(count for _, count in counts[MOST_WHEREABOUTS:])) else []
        return f"; removed, to the most similar of the others: {', '.join([*went, *more])}"

    def _turn(self, source: list[Step], target: list[Step], verb: str) -> Step:
        """Undo or redo the last step of the source, which goes to the target."""
        if not source:
            raise InputError(f"There is nothing to {verb}.")
        step = source.pop()
        target.append(replace(step, number=len(self.words), former=self.put(step.former)))
        return step

    def _withdraw(self, key: str, by: str) -> int:
        """Forget a disputed decision of this person; return its number."""
        found = [number for number, line in self.disputed if (line.key, line.by) == (key, by)]
        if not found:
            raise InputError("There is no disputed decision of this person to withdraw.")
        self.disputed = [each for each in self.disputed if each[0] != found[-1]]
        return found[-1]

    def wishes(self, by: str) -> list[tuple[int, Decision]]:
        """Return the disputed lines of a person's last decision, by number, if nobody has changed anything since."""
        last = self.done[-1].number if self.done else -1
        own = [(number, line) for number, line in self.disputed if number > last and line.by == by]
        return [each for each in own if origin_of(each[1].key) == origin_of(own[-1][1].key)]

    def decided_at(self) -> Ints:
        """Return the number (n,) of the last decision about each image that stands; −1 without one."""
        last = np.full(len(self.category), -1)
        for step in self.done:
            if not isinstance(step.change, actions.Merge | actions.Split | actions.Refit):
                last[step.former.rows] = step.number
        return last

    def disputes(self) -> dict[str, list[Decision]]:
        """Return the decisions about each content that contradict one that stands, if nobody has settled that."""
        last, found = self.decided_at(), dict[str, list[Decision]]()
        for number, line in self.disputed:
            if isinstance(line.action, actions.Refit):  # which no person has decided image by image
                continue
            for content in getattr(line.action, "images", ()):
                rows = np.array(self._rows.get(content, []), dtype=np.int64)
                if len(rows) and (last[rows] >= 0).any() and (last[rows] < number).all():
                    found.setdefault(content, []).append(line)
        return found

    def copy(self) -> "Review":
        """Return the same review, which later decisions do not change."""
        found = copy(self)
        found.category, found.reviewed, found.done = self.category.copy(), self.reviewed.copy(), [*self.done]
        found.makers, found.disputed = [*self.makers], [*self.disputed]
        return found

    def run(self) -> Run:
        """Return the reviewed run, or the run as sorted if no decision stands."""
        return super().run() if self.done else self.base

    def confidence(self) -> Floats:
        """Return the confidence (n,) that the reviewed run would have if nobody had settled any image."""
        return super().confidence() if self.done else self.base.assignments.confidence


def origin_of(key: str) -> str:
    """Return the key of the decision that a line comes from: one may become several lines."""
    return key.partition(".")[0]


def lower(text: str) -> str:
    """Return a sentence that begins in lower case."""
    return f"{text[:1].lower()}{text[1:]}"


def quoted(name: str) -> str:
    """Return the name of a category as sentences have it."""
    return repr(shorten(name, LONGEST_CATEGORY_NAME))


def describe(action: Action, categories: Mapping[int, ReviewedCategory]) -> str:
    """Say in words what an action does to these categories."""

    def name(category: int) -> str:
        return quoted(categories[category].name if category in categories else f"category {category}")

    def count(images: tuple[str, ...]) -> str:
        return plural(len(images), "image")

    match action:
        case actions.Rename(category=category, name=new) if category in categories and categories[category].name == new:
            return f"Kept the name {quoted(new)}"
        case actions.Rename(category=category, name=new):
            return f"Renamed {name(category)} to {quoted(new)}"
        case actions.Merge(categories=ids):
            into, *others = [*map(name, ids)] or [""]
            return f"Merged {', '.join(others)} into {into}"
        case actions.Split(images=images, name=new):
            return f"Split {count(images)} off as {quoted(new)}"
        case actions.Create(images=images, name=new):
            return f"Put {count(images)} into the new category {quoted(new)}"
        case actions.Move(images=images, category=category):
            return f"Moved {count(images)} to {name(category)}"
        case actions.Accept(images=images):
            return f"Confirmed {count(images)}"
        case actions.AcceptCategory(category=category, unseen=unseen):
            return f"Confirmed all of {name(category)}{f', {len(unseen):,} of them unseen' if unseen else ''}"
        case actions.Reject(images=images, category=category):
            return f"Rejected {count(images)} from {name(category)}"
        case actions.Bin(images=images):
            return f"Put {count(images)} into the bin: in no category"
        case actions.PutBack(images=images):
            return f"Took {count(images)} out of the bin"
        case actions.Grow(category=category, seen=(), unseen=()):
            return f"Left all of {name(category)} open"
        case actions.Grow(category=category, seen=seen, unseen=unseen):
            more = f" and accepted {len(unseen):,} unseen" if unseen else ""
            return f"Confirmed {count(seen)} of {name(category)}{more}"
        case actions.Audit(right=right, wrong=wrong):
            return f"Audited {count(right + wrong)} accepted unseen: {len(wrong):,} wrong"
        case actions.Keep(categories=ids):
            return f"Kept {' and '.join(map(name, ids))} {'apart' if len(ids) > 1 else 'whole'}"
        case actions.Leave(images=images):
            return f"Left {count(images)} where {'it is' if len(images) == 1 else 'they are'}: no new class"
        case actions.Refit(images=images):
            return f"Refitted the categories, which moved {count(images)}"
        case Undo():
            return "Undid"
        case Redo():
            return "Redid"
        case Withdraw():
            return "Withdrew"
