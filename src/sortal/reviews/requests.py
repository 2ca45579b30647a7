"""Decisions as pages send them: images are given by their rows, and the server completes what only it knows."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sortal.reviews import growing
from sortal.reviews.actions import Action, Grow, from_json
from sortal.reviews.growing import Ranking
from sortal.reviews.history import Review
from sortal.reviews.questions import Guide
from sortal.reviews.state import NO_ROWS


def action_of(request: Mapping[str, Any], review: Review, guide: Guide, ranking_of: Callable[[int], Ranking]) -> Action:
    """Return the action that a page asks for; raise a ValueError that names what is wrong.

    `ranking_of` ranks the open images of a category, as pages have shown them.
    """
    found, verb = dict(request), request.get("do")
    if verb == "grow":
        return _growth(request, review, ranking_of)
    if verb in ("page", "audit"):
        rows, wrong = (_numbers(review, request.get(name)) for name in ("rows", "wrong"))
        bad = _contents(review, wrong)
        right = [each for each in _contents(review, rows) if each not in {*bad}]  # copies are decided together
        if verb == "page":
            made = {"category": request.get("category"), "seen": right, "unseen": []}
            return from_json({"do": "grow", **made, "wrong": bad})
        if rows != guide.sample(review) or {*wrong} - {*rows}:
            raise ValueError("rows must be the sample that was drawn")
        return from_json({"do": "audit", "right": right, "wrong": bad})
    if verb == "accept category" and "shown" in found:
        shown = {*_contents(review, _numbers(review, found.pop("shown")))}
        category = found.get("category")
        own = review.members(category) if type(category) is int else NO_ROWS
        unchecked = own[~review.settled[own] | review.unseen[own]].tolist()
        found["unseen"] = [each for each in _contents(review, unchecked) if each not in shown]
    if "rows" in found:
        found["images"] = _contents(review, _numbers(review, found.pop("rows")))
    if verb in ("split", "create"):
        found["category"] = review.next_id
        found["name"] = found.get("name") or review.free_name()
    return from_json(found)


def _growth(request: Mapping[str, Any], review: Review, ranking_of: Callable[[int], Ranking]) -> Grow:
    category, answers = request.get("category"), request.get("answers")
    if type(category) is not int or category not in review.categories:
        raise ValueError(f"there is no category {str(category)[:60]!r}")
    if not isinstance(answers, str) or {*answers} - growing.ANSWERS:
        raise ValueError("answers must be letters y, m and n")
    ranking = ranking_of(category)
    if {*_numbers(review, request.get("shown"))} != growing.shown(ranking, answers):
        raise ValueError("the pages are no longer those that were shown; look again")
    rows = growing.outcome(ranking, answers, _numbers(review, request.get("wrong", [])))
    seen, unseen, wrong = (dict.fromkeys(_contents(review, each)) for each in rows)  # copies are decided together
    return Grow(
        category=category,
        seen=tuple(each for each in seen if each not in wrong),
        unseen=tuple(each for each in unseen if each not in wrong and each not in seen),
        wrong=tuple(wrong),
    )


def _numbers(review: Review, rows: Any) -> list[int]:
    n = len(review.category)
    if not isinstance(rows, list) or not all(type(row) is int and 0 <= row < n for row in rows):
        raise ValueError(f"rows must be numbers from 0 to {n - 1}")
    return rows


def _contents(review: Review, rows: Iterable[int]) -> list[str]:
    return list(dict.fromkeys(review.contents_of(rows)))
