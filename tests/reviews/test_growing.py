"""Growing a category: the search finds the boundary in few answers, and nothing is accepted that lies beyond it."""

from __future__ import annotations

from math import log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortal.reviews.growing import ALL_RIGHT, CLOSE_ENOUGH, MOSTLY_RIGHT, TOO_MANY_WRONG, outcome, rank, search


def test_a_search_finds_the_boundary_wherever_it_is_and_starts() -> None:
    """Follow all answers of people who say yes to every page before some boundary, and no from there on."""
    for pages in range(1, 81):
        short = max(1, pages // CLOSE_ENOUGH) - 1  # pages before the boundary that may be left
        for first in range(pages):
            waiting = [("", 0, pages)]  # answers, and the boundaries from which to which they would be given
            while waiting:
                answers, low, high = waiting.pop()
                found = search(pages, first, answers)
                assert len(found.answers) == len(answers), "no page is shown twice"
                if found.page is None:
                    assert found.good <= low <= high <= found.good + short
                    assert found.good > 0 or high == 0, "none is accepted only if the first is bad"
                    assert high < pages or low == pages, "the last is shown before all are accepted"
                    continue
                assert len(answers) + 1 <= 2 * log2(pages) + 2
                assert 0 <= found.page < pages
                assert found.good <= low, "also before the end nothing is accepted that is beyond it"
                if high > found.page:
                    waiting.append((answers + ALL_RIGHT, max(low, found.page + 1), high))
                if low <= found.page:
                    waiting.append((answers + TOO_MANY_WRONG, low, min(high, found.page)))


@pytest.mark.parametrize("pages", [1, 2, 3, 7, 20, 33])
def test_a_page_that_is_mostly_right_is_the_boundary(pages: int) -> None:
    for first in range(pages):
        for boundary in range(pages):
            answers = ""
            while (page := search(pages, first, answers).page) is not None:
                found = search(pages, first, answers + MOSTLY_RIGHT)
                assert (found.page, found.good) == (None, page)
                assert found.answers[page] == MOSTLY_RIGHT
                assert search(pages, first, answers + MOSTLY_RIGHT + ALL_RIGHT + TOO_MANY_WRONG) == found, (
                    "what comes after is ignored"
                )
                answers += ALL_RIGHT if page < boundary else TOO_MANY_WRONG


def test_a_search_by_hand() -> None:
    # The step doubles from page 2 to 3, 5 and 9; then 7 is between 5 and 9, and 16 // 8 pages are close enough.
    shown = [search(16, 2, answers).page for answers in ("", "y", "yy", "yyy", "yyyn", "yyyny")]
    assert shown == [2, 3, 5, 9, 7, None]
    assert search(16, 2, "yyyny").good == 8
    assert search(16, 2, "yyynn").good == 6
    # From a bad page down, as far as the first.
    assert [search(5, 3, answers).page for answers in ("n", "nn", "nnn")] == [1, 0, None]
    assert search(5, 3, "nnn").good == 0


@pytest.mark.parametrize(
    ("n", "typical", "sizes"), [(1, 1, [0]), (2, 2, [0]), (4, 4, [0]), (5, 4, [1]), (20, 4, [8, 8]), (100, 4, [16] * 6)]
)
def test_a_ranking_has_typical_images_and_pages(n: int, typical: int, sizes: list[int]) -> None:
    found = rank(np.arange(n) + 7, np.linspace(0, 1, n))
    assert found.rows.tolist() == [*range(n + 6, 6, -1)], "the surest first"
    assert len(found.typical) == typical
    assert [len(found.page(each)) for each in range(found.pages)] == sizes


def test_the_first_page_is_the_last_that_is_likely_to_be_right() -> None:
    rows = np.arange(100)
    pages = np.repeat([1, 0.9, 0.86, 0.86, 0.84, 0.2, 0], [4, *[16] * 6])  # the first are typical
    assert rank(rows, pages).first == 2
    assert rank(rows, np.ones(100)).first == 5
    assert rank(rows, np.zeros(100)).first == 0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=300))
def test_pages_divide_all_images(confidence: list[float]) -> None:
    sure, rows = np.array(confidence), np.arange(len(confidence))[::-1].copy()
    found = rank(rows, sure)
    parts = [found.typical, *(found.page(each) for each in range(found.pages))]
    np.testing.assert_array_equal(np.concatenate(parts), found.rows)
    assert sorted(found.rows.tolist()) == [*range(len(sure))]
    assert (np.diff(sure[::-1][found.rows]) <= 0).all()
    assert 0 <= found.first < found.pages
    assert max(len(part) for part in parts) <= 20, "fits a screen"


@given(st.integers(1, 400), st.text("ymn", max_size=20), st.data())
def test_what_follows_from_answers(n: int, answers: str, data: st.DataObject) -> None:
    ranking = rank(np.arange(n) + 1000, data.draw(st.sampled_from([np.linspace(1, 0, n), np.full(n, 0.9)])))
    shown = dict[int, str]()  # row and the answer to its page
    for at, answer in enumerate(answers):
        page = search(ranking.pages, ranking.first, answers[:at]).page
        if page is None:
            break
        typical = ranking.typical.tolist() if at == 0 else []
        shown.update(dict.fromkeys([*typical, *ranking.page(page).tolist()], answer))
    wrong = data.draw(st.lists(st.sampled_from(ranking.rows.tolist()), max_size=10, unique=True))
    seen, unseen, bad = outcome(ranking, answers, wrong)
    together = [*seen, *unseen, *bad]
    assert len({*together}) == len(together), "nothing twice"
    assert {*seen} == {row for row, answer in shown.items() if answer == ALL_RIGHT} - {*wrong}
    assert {*bad} == {*wrong} & {*shown}
    assert not {*unseen} & {*shown}
    before = ranking.edges[search(ranking.pages, ranking.first, answers).good]
    rest = {*ranking.rows[:before].tolist()} - {*shown}
    assert {*unseen} == (rest if before > ranking.edges[0] else set()), "all that lies before the boundary"


def test_a_small_category_is_seen_at_once() -> None:
    for n in (1, 2, 4, 5):
        ranking = rank(np.arange(n), np.full(n, 0.1))
        assert outcome(ranking, ALL_RIGHT, []) == ([*range(n)], [], [])
        assert outcome(ranking, MOSTLY_RIGHT, [0]) == ([], [], [0])
        assert outcome(ranking, "", []) == ([], [], [])
