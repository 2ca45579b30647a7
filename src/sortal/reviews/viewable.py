"""Which images a decision is about, and whether their files still have the content that was sorted."""

from collections.abc import Iterable

from sortal.errors import InputError
from sortal.images.originals import Originals
from sortal.reviews.actions import Accept, AcceptCategory, Action, Audit, Grow, ImageChange
from sortal.reviews.history import Review
from sortal.system.text import readable


class LostError(InputError):
    """A decision about images whose files are gone or have changed."""

    def __init__(self, reason: str, rows: list[int]) -> None:
        way_out = "Put the earlier files back, or run sortal discover again to sort what is there now."
        super().__init__(f"Nothing was decided, because {reason}. {way_out}")
        self.rows = rows


def only_viewable(action: Action, review: Review, originals: Originals) -> Action:
    """Return an action if all images that it is about can be viewed now; raise LostError otherwise.

    An action about a whole category is limited to those that can. Copies are decided together, so a content is lost
    only with the last file that had it.
    """
    contents = _about(action, review)
    rows = originals.lost(contents)
    if not rows:
        return action
    lost = {originals.contents[row] for row in rows}
    rest = tuple(each for each in contents if each not in lost)
    if isinstance(action, AcceptCategory) and rest:
        unseen = tuple(each for each in rest if each in {*action.unseen})
        seen = tuple(each for each in rest if each not in {*unseen})
        return Grow(category=action.category, seen=seen, unseen=unseen, wrong=()) if unseen else Accept(images=rest)
    raise LostError(originals.say(rows, [readable(each) for each in review.base.assignments.files]), rows)


def _about(action: Action, review: Review) -> list[str]:
    """Return the contents of the images that an action says something about, each once."""
    found: Iterable[str] = ()
    match action:
        case AcceptCategory():
            found = review.contents_of(review.members(action.category).tolist())
        case Grow():
            found = (*action.seen, *action.unseen, *action.wrong)
        case Audit():
            found = (*action.right, *action.wrong)
        case _ if isinstance(action, ImageChange):
            found = action.images
    return list(dict.fromkeys(found))
