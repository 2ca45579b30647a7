"""Questions about what people disagree on: a decision that contradicts another changes nothing until then."""

from collections.abc import Hashable

from sortal.reviews.actions import Action, Bin, Create, Keep, Merge, Move, Rename, Split
from sortal.reviews.history import Decision, Review, Step
from sortal.reviews.people import last_namings, partings
from sortal.reviews.questions import ANSWER, BESIDE, LOOK, OFFERED, TEACHES, Guide, Question, QuestionKind
from sortal.runs.run import KNOWN, NOWHERE

NOT_YET = NOWHERE - 1  # stands for a category that is wanted and does not exist


def questions_of(review: Review, guide: Guide) -> list[Question]:
    """Ask about all that is disputed."""
    return [*_about_images(review, guide), *_about_categories(review, guide)]


def may_settle(review: Review, action: Action, by: str, *, alone: bool) -> bool:
    """Tell whether an action answers what is disputed; not one's own dispute, as long as others can."""
    if (about := _subject(action)) is not None:
        found = [line for line, _ in _of_categories(review).get(about, ())]
    else:
        disputes, contents = review.disputes(), getattr(action, "images", ())
        if not disputes.keys() >= {*contents}:
            return False
        found = [line for each in contents for line in disputes[each]]
    return all(alone or line.by != by for line in found) and bool(found)


def _about_categories(review: Review, guide: Guide) -> list[Question]:
    """Ask about names, and about categories that one person merges and another keeps apart."""
    found, worth = list[Question](), (1 + TEACHES) / (2 * BESIDE * LOOK + ANSWER)
    for lines in [*_of_categories(review).values()][:OFFERED]:
        line, who = lines[-1]
        action = line.action
        assert isinstance(action, Rename | Merge)
        ids = (action.category,) if isinstance(action, Rename) else action.categories
        ids = tuple(sorted(ids, key=lambda each: review.categories[each].kind != KNOWN))  # which keeps its name
        rows = tuple(tuple(guide.typical(review, each, BESIDE)) for each in ids)
        images = sum(len(review.members(each)) for each in ids)
        said, name = (who, line.by), getattr(action, "name", "")
        kind: QuestionKind = "name" if isinstance(action, Rename) else "union"
        found.append(Question(kind=kind, categories=ids, rows=rows, images=images, worth=worth, by=said, name=name))
    return found


def _of_categories(review: Review) -> dict[Hashable, list[tuple[Decision, str]]]:
    """Return the disputed lines about each name or pair that nobody has settled, and who decided what stands."""
    found, taken = dict[Hashable, list[tuple[Decision, str]]](), {each.name for each in review.categories.values()}
    named, parted = last_namings(review), dict[Hashable, Step | None]()
    for number, line in review.disputed:
        about = _subject(line.action)
        match line.action:
            case Rename(category=category, name=name) if category in review.categories and name not in taken:
                last = named.get(category)
            case Merge(categories=ids) if {*ids} <= {*review.categories} and review.kept_apart(ids):
                if about not in parted:
                    parted[about] = next(partings(review, ids), None)
                last = parted[about]
            case _:
                continue
        if last is None or last.number < number:
            found.setdefault(about, []).append((line, "" if last is None else review.makers[last.number]))
    return found


def _subject(action: Action) -> Hashable:
    """Return which name, or which categories, an action is about; None if it is about images."""
    match action:
        case Rename(category=category):
            return category
        case Merge(categories=ids) | Keep(categories=ids):
            return frozenset(ids)
        case _:
            return None


def _about_images(review: Review, guide: Guide) -> list[Question]:
    """Ask about each image, beside the category that it is in and the one that is wanted."""
    found, last = list[Question](), review.decided_at()
    worth = (1 + TEACHES) / ((1 + 2 * BESIDE) * LOOK + ANSWER)
    for content, lines in [*review.disputes().items()][:OFFERED]:
        line = lines[-1]
        rows = guide.there(review.rows_of([content]))
        own, wanted = {*review.category[rows].tolist()}, _wanted(review, line.action)
        if len(own) != 1 or own == {wanted}:  # copies are in several, or they agree by now
            continue
        ids = (*own, *([] if wanted is None else [wanted]))
        beside = (tuple(guide.examples(review, each)) if each in review.categories else () for each in ids)
        said, name = (review.makers[int(last[rows].max())], line.by), getattr(line.action, "name", "")
        asked = (tuple(rows[:1].tolist()), *beside)
        found.append(Question(kind="disputed", categories=ids, rows=asked, images=1, worth=worth, by=said, name=name))
    return found


def _wanted(review: Review, action: Action) -> int | None:
    """Return the category that is wanted; NOWHERE for the bin, NOT_YET for a new one, None for any other."""
    match action:
        case Move(category=category) if category in review.categories:
            return category
        case Create(name=name) | Split(name=name):
            return next((each.id for each in review.categories.values() if each.name == name), NOT_YET)
        case Bin():
            return NOWHERE
        case _:
            return None
