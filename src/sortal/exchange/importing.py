"""Annotations made elsewhere as decisions about a run: what they confirm, move, rename, merge or create."""

import os
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from sortal.errors import InputError, listing
from sortal.exchange.annotations import Annotation, Subject, read_annotations
from sortal.exchange.format import paths_of, utf8
from sortal.exchange.labelstudio import choices_of
from sortal.exchange.naming import shared_names
from sortal.images.label_tables import as_name
from sortal.images.review_states import SEEN
from sortal.review.actions import Accept, Change, Contents, Create, Merge, Move, Rename
from sortal.review.history import Decision, Review
from sortal.review.joining import ELSEWHERE
from sortal.review.journal import append, decide, read, replay
from sortal.review.loading import locked_run
from sortal.runs.confidence import Ints
from sortal.runs.run import DECISIONS, KNOWN, LABELLED, Run
from sortal.runs.storage import check_run

Placed: TypeAlias = set[tuple[str, int | str]]  # contents, and categories by id or name
PREFIX = "import-"  # of the keys of imported decisions


@dataclass(frozen=True, kw_only=True)
class ImportResult:
    """What an import has added to a run; the images add up to those that the file says something of."""

    file: Path
    format: str
    images: int  # that the file says something of
    decided: int  # images that a decision was added for, disputed ones included
    unchanged: int  # images of which nothing new was said
    missing: tuple[str, ...]  # images that are not in the run
    disagreeing: tuple[str, ...]  # images with annotations that differ
    respelt: Mapping[str, str]  # names that differ from those of categories only in case and spaces, and the latter
    decisions: tuple[Decision, ...]
    words: tuple[str, ...]  # what each decision does

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "file": str(self.file),
            "decisions": [each.to_json() for each in self.decisions],
        }


def import_annotations(
    run: Run | str | os.PathLike[str], file: str | os.PathLike[str], *, by: str | None = None
) -> ImportResult:
    """Turn annotations made in another tool into decisions about a run; load the run again to have them.

    Importing a file again adds nothing. What contradicts a decision that was made since the export is disputed, as in
    `sortal decisions merge`.

    `run`: the run, or its folder.
    `file`: an export of Label Studio (JSON or JSON-MIN) or FiftyOne, or an edited table of `sortal.export`.
    `by`: who annotated; by default as the file says, or the current user.

    >>> sortal.import_annotations("photos-run", "project-1.json").words  # doctest: +SKIP
    ('Confirmed 12 images', "Moved 3 images to 'oak'")
    """
    folder = run.folder if isinstance(run, Run) else Path(run)
    if by is not None and not by.strip():
        raise InputError("The name of who annotated must not be empty.")
    check_run(folder)
    found = read_annotations(Path(file))
    with locked_run(folder, raw=True) as raw:
        mine = read(folder / DECISIONS, raw.facts)
        review = replay(raw, mine)
        matched, missing = _matched(raw, [each if by is None else replace(each, by=by) for each in found.annotations])
        if missing and not matched:
            raise InputError(
                f"The run {str(folder)!r} must contain the images in {str(found.path)!r}, but none of them is in it: "
                f"{listing(missing)}. Choose the run that they were exported from."
            )
        before, disputed = _imported(raw, mine)
        plan = _Plan(review, names=_Names(raw, review))
        plan.add(matched, before)
        plan.carry_out(disputed)
        lines = [
            replace(decide(change, who or None), key=f"{PREFIX}{secrets.token_hex(8)}", disputed=why)
            for who, change, why in plan.changes
        ]
        if lines:
            append(folder / DECISIONS, raw.facts, lines)
    return ImportResult(
        file=found.path,
        format=found.format,
        images=len(matched) + len(missing),
        decided=len(plan.wishes),
        unchanged=len(matched) - len(plan.wishes) - len(plan.disagreeing),
        missing=tuple(missing),
        disagreeing=tuple(plan.disagreeing),
        respelt=plan.names.respelt,
        decisions=tuple(lines),
        words=tuple(replay(raw, [*mine, *lines]).words[len(mine) :]),
    )


def _matched(run: Run, annotations: Iterable[Annotation]) -> tuple[dict[str, list[Annotation]], list[str]]:
    """Return the annotations of each content of the run, and the names of images that are not in it, each once."""
    a = run.assignments
    contents, rows_of, bases = {*a.contents}, dict[str, set[int]](), dict[str, set[int]]()
    paths = [path.replace(os.sep, "/") for path in paths_of(run)]
    for row, (file, shared) in enumerate(zip(a.files, shared_names(run), strict=True)):
        for name in {utf8(file), utf8(shared)}:
            rows_of.setdefault(name, set()).add(row)
        base = utf8(os.path.basename(file))
        for name in {base, os.path.splitext(base)[0]}:
            bases.setdefault(name, set()).add(row)

    def content_of(image: Subject) -> str | None:
        if image.content:
            return image.content if image.content in contents else None
        end = image.path.replace("\\", "/")
        own = utf8(end.rsplit("/", 1)[-1])
        rows = rows_of.get(utf8(image.file), set()) if image.file else bases.get(own, set())
        found = {a.contents[row] for row in rows}
        if len(found) > 1 or (not image.file and "/" in end):
            found = {a.contents[row] for row in rows if f"/{paths[row]}".endswith(f"/{end.lstrip('/')}")}
        return found.pop() if len(found) == 1 else None

    found: dict[str, list[Annotation]] = {}
    missing: dict[str, None] = {}
    for each in annotations:
        if (own := content_of(each.image)) is None:
            missing[each.image.file or each.image.path or each.image.content] = None
        else:
            found.setdefault(own, []).append(each)
    return found, [*missing]


def _imported(run: Run, lines: Sequence[Decision]) -> tuple[Placed, Placed]:
    """Return where earlier imports have put images, unless that was undone, and where they were not allowed to.

    A category that was to be created is also there by its name.
    """
    standing, review = {step.key for step in replay(run, lines).done}, Review(run)
    contents = {*run.assignments.contents}  # a disputed line may be about others
    put, refused = Placed(), Placed()
    for each in lines:
        if not each.disputed:
            review.take(each.action)
        if each.key.startswith(PREFIX) and (each.disputed or each.key in standing):
            for content in contents.intersection(getattr(each.action, "images", ())):
                now = int(review.category[review.rows_of([content])[0]])
                found = {(content, getattr(each.action, name, now)) for name in ("category", "name")}
                (refused if each.disputed else put).update(found)
    return put, refused


@dataclass(eq=False)
class _Names:
    """Categories of a run by the names that files give them: their own, as exports write them, or former ones."""

    run: Run  # as sorted
    review: Review
    respelt: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        now = {each.id: each.name for each in self.review.categories.values()}
        self._ids: dict[str, int] = {}
        for each in self.run.categories:
            self._ids |= dict.fromkeys((*each.former, each.name), each.id)
        for step in self.review.done:
            change = step.change
            if isinstance(change, Rename | Merge):
                self._ids |= {each.name: each.id for each in step.former.categories.values()}
            if isinstance(change, Merge):
                into = dict.fromkeys(change.categories, change.categories[0])
                self._ids = {name: into.get(own, own) for name, own in self._ids.items()}
        self._ids = {name: own for name, own in self._ids.items() if own in now}
        exported = {own: utf8(name) for own, name in now.items()}
        read_back = {
            own: as_name(name) or name for own, name in exported.items()
        }  # without the spaces that folders may have
        for spelling in (read_back, choices_of(now), exported, now):
            self._ids |= {name: own for own, name in spelling.items()}
        self._loose: dict[str, set[int]] = {}
        for own, name in now.items():
            self._loose.setdefault(_loosely(name), set()).add(own)

    def settle(self, names: Iterable[str]) -> dict[str, int | str]:
        """Return what each name means: the id of a category, or the name of a new one."""
        counts, found = Counter(names), dict[str, int | str]()
        new: dict[str, str] = {}
        for name, _ in counts.most_common():
            loose = _loosely(name)
            if name in self._ids:
                found[name] = self._ids[name]
            elif len(alike := self._loose.get(loose, set())) > 1:
                names_ = listing(sorted(self.review.categories[each].name for each in alike))
                raise InputError(
                    f"{name!r} must be the name of one category, but {names_} differ only in case. Merge them."
                )
            elif alike:
                (own,) = alike
                found[name] = own
                self.respelt[name] = self.review.categories[own].name
            else:
                found[name] = new.setdefault(loose, name)
                if new[loose] != name:
                    self.respelt[name] = new[loose]
        return found


def _loosely(name: str) -> str:
    return " ".join(name.casefold().split())


@dataclass(frozen=True, kw_only=True)
class _Wish:
    """The category that an annotation gives an image: its id, or the name of a new one."""

    content: str
    to: int | str
    by: str
    edited: bool
    was_seen: bool  # when the run was exported


@dataclass(eq=False)
class _Plan:
    """Changes that carry out annotations, each of which is tried on the review before anything is written."""

    review: Review
    names: _Names
    wishes: list[_Wish] = field(default_factory=list)
    disagreeing: list[str] = field(default_factory=list)
    changes: list[tuple[str, Change, str]] = field(default_factory=list)  # by whom, what, and why it is disputed

    def add(self, matched: Mapping[str, Sequence[Annotation]], imported: Placed) -> None:
        """Take in annotations that say something new, and note the images whose annotations disagree."""
        meanings = self.names.settle(each.name for group in matched.values() for each in group)
        for content, group in matched.items():
            fresh = [each for each in group if not each.stale] or group
            targets, first = {meanings[each.name] for each in fresh}, fresh[0]
            if len(targets) > 1:
                self.disagreeing.append(self.review.base.assignments.files[self._rows(content)[0]])
                continue
            (to,), edited = targets, all(each.edited for each in fresh)
            is_there = self._is_in(content, to)
            says_nothing = (edited or self._is_settled(content)) if is_there else first.stale
            if not says_nothing and (content, to) not in imported:
                was_seen = any(each.image.was_seen for each in fresh)
                self.wishes.append(_Wish(content=content, to=to, by=first.by, edited=edited, was_seen=was_seen))

    def carry_out(self, refused: Placed) -> None:
        """Turn what was taken in into changes; those that were refused before are not disputed again."""
        left = self._merge(self._rename(self.wishes))
        there = [each for each in left if self._is_in(each.content, each.to)]
        others = [each for each in left if not self._is_in(each.content, each.to)]
        disputed = {each.content for each in others if self._is_disputed(each)}
        created: dict[str, int] = {}
        for (by, to), images in _grouped(each for each in others if each.content not in disputed).items():
            if isinstance(to, str) and to not in created:
                created[to] = self.review.next_id
                self._take(by, Create(images=images, category=created[to], name=to))
            else:
                self._take(by, Move(images=images, category=created[to] if isinstance(to, str) else to))
        for (by, _), images in _grouped(replace(each, to="") for each in there).items():
            self._take(by, Accept(images=images))
        again = (each for each in others if each.content in disputed and (each.content, each.to) not in refused)
        for (by, to), images in _grouped(again).items():
            own = created.get(to) if isinstance(to, str) else to
            create = Create(images=images, category=self.review.next_id, name=str(to))
            self.changes.append((by, create if own is None else Move(images=images, category=own), ELSEWHERE))

    def _take(self, by: str, change: Change) -> None:
        self.review.take(change)
        self.changes.append((by, change, ""))

    def _rename(self, wishes: list[_Wish]) -> list[_Wish]:
        """Rename categories all of whose images go to the same new one; return what is left to do."""
        for name in dict.fromkeys(each.to for each in wishes if isinstance(each.to, str)):
            group = {each.content: each for each in wishes if each.to == name}
            targets = {each.to for each in wishes}
            whole = [own for own in self._sources(group) if self._contents(own) <= group.keys() and own not in targets]
            if whole:
                own = max(whole, key=lambda each: len(self.review.members(each)))
                inside = self._contents(own)
                self._take(next(iter(group.values())).by, Rename(category=own, name=str(name)))
                done = {each for each in wishes if each.content in inside and each.edited}
                wishes = [replace(each, to=own) if each.to == name else each for each in wishes if each not in done]
        return wishes

    def _merge(self, wishes: list[_Wish]) -> list[_Wish]:
        """Merge new categories whose name was replaced by that of another one in every row; return what is left."""
        for to in dict.fromkeys(each.to for each in wishes if isinstance(each.to, int)):
            group = {each.content: each for each in wishes if each.to == to and each.edited}
            for own in self._sources(group):
                inside, is_new = self._contents(own), self.review.categories[own].kind != KNOWN
                # Where names were exchanged, a category that others go to must stay.
                is_last = own not in {each.to for each in wishes} and own != to
                if is_new and is_last and len(inside) > 1 and inside <= group.keys():
                    self._take(next(iter(group.values())).by, Merge(categories=(int(to), own)))
                    wishes = [each for each in wishes if each.content not in inside]
        return wishes

    def _is_disputed(self, wish: _Wish) -> bool:
        """Tell whether a person has put an image elsewhere since the export, which who annotated it cannot know."""
        seen = np.isin(self.review.reviewed[self._rows(wish.content)], SEEN).all()
        return bool(seen) and not wish.was_seen

    def _is_settled(self, content: str) -> bool:
        """Tell whether an image is labelled, or a person has decided on it after seeing it."""
        rows = self._rows(content)
        labelled = self.review.base.assignments.status[rows] == LABELLED
        return bool((labelled | np.isin(self.review.reviewed[rows], SEEN)).all())

    def _is_in(self, content: str, category: int | str) -> bool:
        return isinstance(category, int) and bool((self.review.category[self._rows(content)] == category).all())

    def _rows(self, content: str) -> Ints:
        return self.review.rows_of([content])

    def _contents(self, category: int) -> set[str]:
        return {self.review.base.assignments.contents[row] for row in self.review.members(category).tolist()}

    def _sources(self, contents: Iterable[str]) -> list[int]:
        return [*dict.fromkeys(int(self.review.category[self._rows(each)[0]]) for each in contents)]


def _grouped(wishes: Iterable[_Wish]) -> dict[tuple[str, int | str], Contents]:
    """Return the images of each person and category."""
    found: dict[tuple[str, int | str], list[str]] = {}
    for each in wishes:
        found.setdefault((each.by, each.to), []).append(each.content)
    return {key: tuple(contents) for key, contents in found.items()}
