"""Annotations made elsewhere as decisions about a run: they move and confirm images, and create categories."""

import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from sortal.errors import InputError, listing
from sortal.exchange.annotations import Annotation, read_annotations
from sortal.exchange.labelstudio import choices_of
from sortal.exchange.naming import shared_names
from sortal.images.class_names import as_name
from sortal.images.exported import Statement, utf8
from sortal.images.review_states import SEEN, ReviewState
from sortal.reviews.actions import Accept, Change, Create, Move
from sortal.reviews.history import Decision, Review
from sortal.reviews.joining import PUT_ELSEWHERE
from sortal.reviews.journal import append, decide, read, replay
from sortal.reviews.loading import locked_run
from sortal.runs.run import DECISIONS, LABELLED, Run
from sortal.runs.storage import check_run
from sortal.system.gathering import gathered

Target: TypeAlias = int | str  # the id of a category, or the name of a new one
WishKind: TypeAlias = Literal["put", "confirm", "dispute"]  # in the order in which decisions are written
IMPORT_KEY = "import-"  # at the start of the keys of imported decisions


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
        raise InputError("The name of the annotator must not be empty.")
    check_run(folder)
    found = read_annotations(Path(file))
    with locked_run(folder, raw=True) as raw:
        mine = read(folder / DECISIONS, raw.facts)
        review = replay(raw, mine)
        matched, missing = _match(raw, [each if by is None else replace(each, by=by) for each in found.annotations])
        if missing and not matched:
            raise InputError(
                f"The run {str(folder)!r} must contain the images in {str(found.path)!r}, but none of them is in it: "
                f"{listing(missing)}. Choose the run that they were exported from."
            )
        wishes, disagreeing = _wishes(review, matched, _earlier_imports(raw, mine))
        lines = [
            replace(decide(change, who or None), key=f"{IMPORT_KEY}{secrets.token_hex(8)}", disputed=why)
            for who, change, why in _changes(review, wishes)
        ]
        if lines:
            append(folder / DECISIONS, raw.facts, lines)
    return ImportResult(
        file=found.path,
        format=found.format,
        images=len(matched) + len(missing),
        decided=len(wishes),
        unchanged=len(matched) - len(wishes) - len(disagreeing),
        missing=tuple(missing),
        disagreeing=tuple(disagreeing),
        decisions=tuple(lines),
        words=tuple(replay(raw, [*mine, *lines]).words[len(mine) :]),
    )


def _match(run: Run, annotations: Iterable[Annotation]) -> tuple[dict[str, list[Annotation]], list[str]]:
    """Return the annotations of each content of the run, and the names of images that are not in it, each once."""
    a = run.assignments
    whole, ends = dict[str, set[str]](), dict[str, set[str]]()  # contents by name, and by its last part
    for file, shared, content in zip(a.files, shared_names(run), a.contents, strict=True):
        end = utf8(os.path.basename(file))
        for names, known in (({utf8(file), utf8(shared)}, whole), ({end, os.path.splitext(end)[0]}, ends)):
            for name in names:
                known.setdefault(name, set()).add(content)
    contents = {*a.contents}

    def content_of(image: Statement) -> str | None:
        if image.content:
            return image.content if image.content in contents else None
        named = whole.get(utf8(image.file)) or ends.get(utf8(image.file)) or ()
        return next(iter(named)) if len(named) == 1 else None

    found: dict[str, list[Annotation]] = {}
    missing: dict[str, None] = {}
    for each in annotations:
        if (own := content_of(each.image)) is None:
            missing[each.image.file or each.image.content] = None
        else:
            found.setdefault(own, []).append(each)
    return found, [*missing]


def _earlier_imports(run: Run, lines: Sequence[Decision]) -> dict[tuple[str, Target], bool]:
    """Return which categories earlier imports gave to contents, unless that was undone, and whether it was disputed.

    A category that was to be created is also there by its name.
    """
    standing, review = {step.key for step in replay(run, lines).done}, Review(run)
    contents = {*run.assignments.contents}  # a disputed line may be about others
    found: dict[tuple[str, Target], bool] = {}
    for each in lines:
        if not each.disputed:
            review.take(each.action)
        if each.key.startswith(IMPORT_KEY) and (each.disputed or each.key in standing):
            for content in contents.intersection(getattr(each.action, "images", ())):
                now = int(review.category[review.rows_of([content])[0]])
                for name in ("category", "name"):
                    found[content, getattr(each.action, name, now)] = bool(each.disputed)
    return found


class _Wish(NamedTuple):
    """The category that annotations give an image: put it there, confirm that it is there, or list it as disputed."""

    kind: WishKind
    content: str
    to: Target
    by: str


def _wishes(
    review: Review, matched: Mapping[str, Sequence[Annotation]], earlier: Mapping[tuple[str, Target], bool]
) -> tuple[list[_Wish], list[str]]:
    """Return what annotations say that is new, and the images whose annotations disagree."""
    wishes, disagreeing = list[_Wish](), list[str]()
    ids = _ids_by_name({each.id: each.name for each in review.categories.values()})
    assignments = review.base.assignments
    for content, group in matched.items():
        rows = review.rows_of([content])
        fresh = [each for each in group if not each.stale] or group
        to, *others = {ids.get(each.name, each.name) for each in fresh}
        if others:
            disagreeing.append(assignments.files[rows[0]])
            continue
        seen = np.isin(review.reviewed[rows], (*SEEN, ReviewState.BINNED))
        if isinstance(to, int) and (review.category[rows] == to).all():
            kind: WishKind = "confirm"
            settled = (seen | (assignments.status[rows] == LABELLED)).all()
            says_nothing = settled or all(each.edited for each in fresh)
        else:  # disputed where a person has put it elsewhere since the export, unknown to the annotator
            kind = "dispute" if seen.all() and not any(each.image.was_seen for each in fresh) else "put"
            says_nothing = fresh[0].stale
        was_disputed = earlier.get((content, to))
        if not says_nothing and (was_disputed is None or (was_disputed and kind != "dispute")):
            wishes.append(_Wish(kind, content, to, fresh[0].by))
    return wishes, disagreeing


def _ids_by_name(names: Mapping[int, str]) -> dict[str, int]:
    """Return the ids of categories by their names, as they are and as exports write them."""
    found: dict[str, int] = {}
    for written in (choices_of(names), {own: utf8(name) for own, name in names.items()}, names):
        found |= {as_name(name) or name: own for own, name in written.items()}
    return found


def _changes(review: Review, wishes: Sequence[_Wish]) -> list[tuple[str, Change, str]]:
    """Carry out wishes that are not disputed; return who changes what, and why it is disputed."""
    ordered = sorted(wishes, key=lambda each: get_args(WishKind).index(each.kind))
    targets = ("" if each.kind == "confirm" else each.to for each in ordered)
    groups = gathered(((each.kind, each.by, to), each.content) for each, to in zip(ordered, targets, strict=True))
    found: list[tuple[str, Change, str]] = []
    created: dict[Target, int] = {}
    for (kind, by, to), contents in groups.items():
        change: Change
        if kind == "confirm":
            change = Accept(images=tuple(contents))
        elif isinstance(to, str) and to not in created:
            change = Create(images=tuple(contents), category=review.next_id, name=to)
        else:
            change = Move(images=tuple(contents), category=int(created.get(to, to)))
        if kind != "dispute":
            review.take(change)
            if isinstance(change, Create):
                created[to] = change.category
        found.append((by, change, PUT_ELSEWHERE if kind == "dispute" else ""))
    return found
