"""Questions about images that people disagree about: a decision that contradicts another changes nothing until then."""

from sortal.reviews.actions import Action, Bin, Create, Move, Split
from sortal.reviews.history import Review
from sortal.reviews.questions import ANSWER, BESIDE, LOOK, OFFERED, TEACHES, Guide, Question
from sortal.runs.run import NOWHERE

NOT_YET = NOWHERE - 1  # stands for a category that is wanted and does not exist


def questions_of(review: Review, guide: Guide) -> list[Question]:
    """Ask about each image, beside the category that it is in and the one that is wanted."""
    found, last = list[Question](), review.decided_at()
    worth = (1 + TEACHES) / ((1 + 2 * BESIDE) * LOOK + ANSWER)
    for content, line in [*review.disputes().items()][:OFFERED]:
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
