"""What each decision does to a run under review.

Images are named by their content and categories by their ids, so that decisions hold whatever files are called. A
change is checked completely before anything is changed, so an InputError leaves everything as it was.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from sortal.errors import InputError
from sortal.images.review_states import ReviewState
from sortal.reviews import actions
from sortal.reviews.actions import LONGEST_CATEGORY_NAME, Change
from sortal.reviews.audit import NO_TALLY, Tally
from sortal.reviews.rejections import Rejections, nearest_allowed
from sortal.reviews.state import NO_ROWS, Outcome, ReviewedCategory, State
from sortal.runs.confidence import Ints
from sortal.runs.run import KNOWN, NOWHERE, sizes_of
from sortal.system.gathering import gathered
from sortal.system.text import plural


def outcome_of(state: State, change: Change) -> Outcome:
    """Return what a change makes of a state, which stays as it is; raise InputError if it is impossible."""
    match change:
        case actions.Rename():
            return _renamed(state, change)
        case actions.Merge():
            return _merged(state, change)
        case actions.Split():
            return _split(state, change)
        case actions.Create():
            return _created(state, change)
        case actions.Move():
            return _moved(state, change.images, _category(state, change.category).id)
        case actions.Accept():
            return _accepted(state, _rows(state, change.images))
        case actions.AcceptCategory():
            return _all_accepted(state, change)
        case actions.Reject():
            return _rejected(state, change)
        case actions.Bin():
            return _binned(state, _rows(state, change.images))
        case actions.PutBack():
            return _put_back(state, change)
        case actions.Grow():
            return _grown(state, change)
        case actions.Audit():
            return _audited(state, change)
        case actions.Keep():
            return state.outcome(categories=_kept(state, change))
        case actions.Leave():
            _rows(state, change.images)
            return state.outcome()
        case actions.Refit():
            return _refitted(state, change)


# Categories


def _renamed(state: State, change: actions.Rename) -> Outcome:
    own = _category(state, change.category)
    _check_name(state, change.name, own.id)
    former = (*own.former, own.name) if own.kind == KNOWN and own.name != change.name else own.former
    renamed = replace(own, name=change.name, former=former, made=True)
    return state.outcome(categories={**state.categories, own.id: renamed})


def _merged(state: State, change: actions.Merge) -> Outcome:
    if len({*change.categories}) < max(len(change.categories), 2):
        raise InputError(f"Merging needs two or more different categories, got {list(change.categories)}.")
    first, *others = (_category(state, each) for each in change.categories)
    if first.kind != KNOWN and any(each.kind == KNOWN for each in others):
        raise InputError(f"A known category must come first, so that it keeps its name, got {first.name!r}.")
    gone = {each.id for each in others}
    rows = np.flatnonzero(np.isin(state.category, [*gone]))
    categories = {
        each.id: replace(each, apart=(each.apart - gone) | {first.id}) if each.apart & gone else each
        for each in state.categories.values()
        if each.id not in gone
    }
    categories[first.id] = _joined(state, first, others)
    # Whoever merges the category of an image with one that it was rejected from means that it belongs there.
    into = {first.id, *gone}
    inside = {*state.contents_of(np.flatnonzero(np.isin(state.category, [*into])).tolist())}
    rejected = frozenset(
        (content, first.id if own in gone else own)
        for content, own in state.rejected
        if own not in into or content not in inside
    )
    return state.outcome(rows, category=first.id, categories=categories, rejected=rejected)


def _joined(state: State, first: ReviewedCategory, others: Sequence[ReviewedCategory]) -> ReviewedCategory:
    """Return the category that others are merged into."""
    every = (first, *others)
    names = [name for each in others if each.kind == KNOWN for name in (*each.former, each.name)]
    audited = all(each.tally.sampled or not state.unseen[state.members(each.id)].any() for each in every)
    tallies = [(each.tally.images, each.tally.sampled, each.tally.right) for each in every]
    images, sampled, right = (sum(column) for column in zip(*tallies, strict=True))
    left = [each.grown for each in every if each.grown is not None]
    return replace(
        first,
        by_hand=True,
        former=(*first.former, *names),
        apart=frozenset().union(*(each.apart for each in every)) - {each.id for each in every},
        tally=Tally(images=images, sampled=sampled, right=right) if audited else NO_TALLY,
        grown=sum(left) if len(left) == len(every) else None,
        failed=tuple(tally for each in every for tally in each.failed),
        whole=True,
        stability=None,
    )


def _split(state: State, change: actions.Split) -> Outcome:
    rows, new = _rows(state, change.images), change.category
    if len({*state.category[rows].tolist()}) > 1 or state.binned[rows].any():
        raise InputError("A category can be split off one other category, but the images are in several, or in none.")
    made = _created(state, actions.Create(images=change.images, category=new, name=change.name))
    own = state.categories[int(state.category[rows[0]])]
    parent = replace(
        own, by_hand=True, whole=False, grown=None, stability=None, tally=NO_TALLY, apart=own.apart | {new}
    )
    part = replace(made.categories[new], apart=frozenset({own.id}))
    categories = {**made.categories, own.id: parent, new: part}
    return replace(made, reviewed=state.reviewed[rows], categories=categories)


def _created(state: State, change: actions.Create) -> Outcome:
    if change.category != state.next_id:
        raise InputError(f"A new category must have the next id, {state.next_id}, got {change.category}.")
    _check_name(state, change.name, change.category)
    rows = _rows(state, change.images)
    own = state.category[rows]
    own[own == NOWHERE] = _elsewhere(state, rows[own == NOWHERE], frozenset())
    new = _new(state, change.category, change.name, own)
    return replace(_moved(state, change.images, new.id), categories={**state.categories, new.id: new})


def _new(state: State, number: int, name: str, sources: Ints, *, by_hand: bool = True) -> ReviewedCategory:
    """Return a new category of images that were in these categories (n,)."""
    sizes = sizes_of(sources)
    parent = max(sizes, key=sizes.__getitem__)
    origin = state.categories[parent].origin
    return ReviewedCategory(
        id=number, name=name, kind="new", by_hand=by_hand, origin=parent if origin is None else origin
    )


def _kept(state: State, change: actions.Keep) -> Mapping[int, ReviewedCategory]:
    own = [_category(state, each) for each in change.categories]
    if len({*change.categories}) < len(own) or len(own) not in (1, 2):
        raise InputError(f"One or two different categories can be kept, got {list(change.categories)}.")
    if len(own) == 1:
        return {**state.categories, own[0].id: replace(own[0], whole=True)}
    pairs = zip(own, reversed(own), strict=True)
    return {**state.categories, **{one.id: replace(one, apart=one.apart | {other.id}) for one, other in pairs}}


# Images


def _moved(state: State, contents: Sequence[str], category: int) -> Outcome:
    rejected = state.rejected - {(content, category) for content in contents}
    return state.outcome(_rows(state, contents), category=category, reviewed=ReviewState.MOVED, rejected=rejected)


def _accepted(state: State, rows: Ints) -> Outcome:
    if state.binned[rows].any():
        raise InputError("Images in the bin are in no category that could be confirmed. Move them into one.")
    return state.outcome(rows, reviewed=_confirmed(state, rows), rejected=state.rejected - _pairs(state, rows))


def _all_accepted(state: State, change: actions.AcceptCategory) -> Outcome:
    own = _category(state, change.category)
    rows = state.members(own.id)
    accepted = _accepted(state, rows)
    unseen = np.isin(rows, state.rows_of(change.unseen)) & ~(state.settled & ~state.unseen)[rows]
    grown = replace(own, tally=NO_TALLY) if (unseen & ~state.settled[rows]).any() else own
    return replace(
        accepted,
        reviewed=np.where(unseen, ReviewState.UNSEEN, accepted.reviewed),
        categories={**state.categories, own.id: grown},
    )


def _confirmed(state: State, rows: Ints) -> Ints:
    """Return the states of rows that are confirmed: what was moved stays so."""
    return np.where(state.reviewed[rows] == ReviewState.MOVED, ReviewState.MOVED, ReviewState.CONFIRMED)


def _rejected(state: State, change: actions.Reject) -> Outcome:
    own, rows = _category(state, change.category), _rows(state, change.images)
    rows = rows[state.category[rows] == own.id]  # not copies that are elsewhere
    if away := len({*change.images} - {*state.contents_of(rows.tolist())}):
        raise InputError(f"{plural(away, 'image')} to reject {'is' if away == 1 else 'are'} not in {own.name!r}.")
    rejected = state.rejected | {(content, own.id) for content in change.images}
    elsewhere = _elsewhere(state, rows, rejected)
    return state.outcome(rows, category=elsewhere, reviewed=ReviewState.REJECTED, rejected=rejected)


def _binned(state: State, rows: Ints) -> Outcome:
    left = ~state.binned
    left[rows] = False
    if not left.any():
        raise InputError("Not all images can be in the bin: a run needs one that is in a category.")
    return state.outcome(rows, category=NOWHERE, reviewed=ReviewState.BINNED)


def _put_back(state: State, change: actions.PutBack) -> Outcome:
    rows = _rows(state, change.images)
    if away := int((~state.binned[rows]).sum()):
        raise InputError(f"{plural(away, 'image')} to put back {'is' if away == 1 else 'are'} not in the bin.")
    classes = {name: each.id for each in state.categories.values() for name in (each.name, *each.former)}
    labels = [state.base.assignments.labels[row] or "" for row in rows.tolist()]
    own = np.array([classes.get(label, NOWHERE) for label in labels], dtype=np.int64)
    own[own == NOWHERE] = _elsewhere(state, rows[own == NOWHERE], state.rejected)
    return state.outcome(rows, category=own, reviewed=ReviewState.OPEN)


def _elsewhere(state: State, rows: Ints, rejected: Rejections) -> Ints:
    """Return the most similar category of each row that it is not rejected from."""
    if not len(rows):
        return rows
    ids = [each for each in state.categories if len(state.members(each))]  # nothing is like an empty one
    x, contents = np.asarray(state.base.features[rows]), state.contents_of(rows.tolist())
    found = nearest_allowed(x, contents, state.centres(ids), ids, rejected)
    if (found < 0).any():
        raise InputError("No category is left for an image that was rejected. Make a new one for it.")
    return found


def _grown(state: State, change: actions.Grow) -> Outcome:
    own = _category(state, change.category)
    state.rows_of((*change.seen, *change.unseen, *change.wrong))  # in one of them only
    seen, unseen, wrong = (state.rows_of(each) for each in (change.seen, change.unseen, change.wrong))
    unseen = unseen[~state.settled[unseen]]  # what was decided before stays so
    here = wrong[state.category[wrong] == own.id]
    rejected = state.rejected - {(content, own.id) for content in (*change.seen, *change.unseen)}
    rejected |= {(content, own.id) for content in change.wrong}
    rows = np.concatenate([seen, unseen, here])
    confirmed = np.where(state.category[seen] == own.id, _confirmed(state, seen), ReviewState.MOVED)
    others = _states((ReviewState.UNSEEN, unseen), (ReviewState.REJECTED, here))
    left = np.setdiff1d(state.members(own.id), rows)
    grown = replace(own, grown=int((~state.settled[left]).sum()), tally=NO_TALLY if len(unseen) else own.tally)
    return state.outcome(
        rows,
        category=np.concatenate([np.full(len(seen) + len(unseen), own.id), _elsewhere(state, here, rejected)]),
        reviewed=np.concatenate([confirmed, others]),
        categories={**state.categories, own.id: grown},
        rejected=rejected,
    )


def _audited(state: State, change: actions.Audit) -> Outcome:
    _rows(state, (*change.right, *change.wrong))
    right, wrong = (state.rows_of(each) for each in (change.right, change.wrong))
    right, wrong = right[state.unseen[right]], wrong[state.unseen[wrong]]  # not copies that are decided otherwise
    rows = np.concatenate([right, wrong])
    if {*change.right, *change.wrong} - {*state.contents_of(rows.tolist())}:
        raise InputError("Only images that were accepted unseen can be audited.")
    rejected = state.rejected | _pairs(state, wrong)
    categories, opened = dict(state.categories), [NO_ROWS]
    for each in dict.fromkeys(state.category[rows].tolist()):
        own, parts = categories[each], (part[state.category[part] == each] for part in (right, wrong))
        unseen = np.flatnonzero((state.category == each) & state.unseen)
        good, bad, all_ = (len({*state.contents_of(part.tolist())}) for part in (*parts, unseen))
        tally = Tally(
            images=own.tally.images or all_, sampled=own.tally.sampled + good + bad, right=own.tally.right + good
        )
        categories[each] = replace(own, tally=tally)
        if tally.failed():
            opened.append(np.setdiff1d(unseen, rows))
            left = int((~state.settled[state.members(each)]).sum()) + len(opened[-1])
            categories[each] = replace(own, tally=NO_TALLY, failed=(*own.failed, tally), grown=left)
    reopened = np.concatenate(opened)
    return state.outcome(
        np.concatenate([rows, reopened]),
        category=np.concatenate([state.category[right], _elsewhere(state, wrong, rejected), state.category[reopened]]),
        reviewed=_states((ReviewState.CONFIRMED, right), (ReviewState.REJECTED, wrong), (ReviewState.OPEN, reopened)),
        categories=categories,
        rejected=rejected,
    )


def _refitted(state: State, change: actions.Refit) -> Outcome:
    new = _check_refit(state, change)
    target = dict(zip(change.images, change.to, strict=True))
    rows = state.rows_of(change.images)
    rows = rows[~state.settled[rows]]  # not copies that are decided
    contents = state.contents_of(rows.tolist())
    to = np.array([target[content] for content in contents], dtype=np.int64)
    if {*change.images} - {*contents} or {*target.items()} & state.rejected:
        raise InputError("A refit must leave alone what people have decided.")
    categories = dict(state.categories)
    for number, name in zip(new, change.names, strict=True):
        _check_name(state, name, number)
        sources = state.category[rows[to == number]]
        if not len(sources):
            raise InputError(f"A new category must get images, but {name!r} does not.")
        categories[number] = _new(state, number, name, sources, by_hand=False)
    for each, share in zip(change.categories, change.stability, strict=True):
        categories[each] = replace(categories[each], stability=share, grown=None)
    return state.outcome(rows, category=to, categories=categories)


def _check_refit(state: State, change: actions.Refit) -> range:
    """Return the ids of new categories; raise InputError unless images, categories and stability fit together."""
    if len(change.to) != len(change.images) or len(change.categories) != len(change.stability):
        raise InputError("A refit must give every image a category, and every category a stability.")
    if not all(0 <= each <= 1 for each in change.stability):
        raise InputError("The stability of a category must be from 0 to 1.")
    new = range(state.next_id, state.next_id + len(change.names))
    if not {*new} <= {*change.categories}:
        raise InputError(f"A refit must give its new categories the next ids, from {state.next_id}, and a stability.")
    if {*change.to, *change.categories} - {*state.categories, *new}:
        raise InputError("A refit must put images into categories that exist or are new.")
    return new


# What they need


def _rows(state: State, contents: Sequence[str]) -> Ints:
    if not contents:
        raise InputError("A decision about images must name one or more.")
    return state.rows_of(contents)


def _pairs(state: State, rows: Ints) -> Rejections:
    """Return the contents of rows with their categories."""
    return frozenset(zip(state.contents_of(rows.tolist()), state.category[rows].tolist(), strict=True))


def _states(*parts: tuple[ReviewState, Ints]) -> Ints:
    """Return the state of each row, part by part."""
    return np.concatenate([np.full(len(rows), state) for state, rows in parts])


def _category(state: State, number: int) -> ReviewedCategory:
    if number not in state.categories:
        raise InputError(f"There is no category with the id {number} in this run.")
    return state.categories[number]


def check_name(name: str) -> None:
    """Raise InputError for what cannot be the name of any category."""
    if not name.strip() or len(name) > LONGEST_CATEGORY_NAME or not name.isprintable():
        shown = f"{name[:40]!r}{'…' if len(name) > 40 else ''}"
        raise InputError(f"A name must have 1 to {LONGEST_CATEGORY_NAME} printable characters, got {shown}.")


def _check_name(state: State, name: str, own: int) -> None:
    check_name(name)
    if any(each.name == name for each in state.categories.values() if each.id != own):
        raise InputError(f"A name must not be that of another category, got {name!r}. Merge them instead.")


def moves_of(state: State, refit: actions.Refit, shown: int) -> list[dict[str, int | list[int]]]:
    """Describe what a refit would move from which category to which, the most images first, with some of the rows."""
    target = dict(zip(refit.images, refit.to, strict=True))
    pairs = zip(state.category.tolist(), state.base.assignments.contents, strict=True)
    places = ((own, target.get(content, own)) for own, content in pairs)
    moves = gathered((place, row) for row, place in enumerate(places) if place[0] != place[1])
    largest_first = sorted(moves.items(), key=lambda item: -len(item[1]))
    return [
        {"from": start, "to": end, "rows": rows[:shown], "images": len(rows)} for (start, end), rows in largest_first
    ]
