"""What a report shows first, on points whose categories are wrong in known ways."""

from collections.abc import Sequence
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from support.sample_run import QUICK, doubted, sample_run
from support.stores import same_store, small_store

from sortal.reviews.actions import Refit
from sortal.reviews.history import Review
from sortal.runs.confidence import Ints
from sortal.runs.run import Run
from sortal.web.report import highlights, report, summary
from sortal.web.report.highlights import compare_categories, find_highlights
from sortal.web.report.report import make_report

CUT, MIXED, SINGLE = (1, 2), 3, 5  # one blob in two categories; two blobs in one; a single image


class Halves:
    """Divides a category at the middle of the axis along which it varies most."""

    words: Sequence[str] = ()

    def __init__(self, run: Run) -> None:
        self.run = run

    def parts(self, rows: Ints, anchored: Ints, count: int) -> list[Ints]:
        x = self.run.features[rows]
        along = x[:, x.var(axis=0).argmax()]
        above = along > along.mean()
        return [rows[above], rows[~above]]

    def refit(self, review: Review) -> Refit:
        raise NotImplementedError

    def names(self, rows: Ints, others: Sequence[Ints]) -> list[str]:
        return []

    sees = False

    def seen(self, text: str) -> Ints:
        raise NotImplementedError


def blobs(each: int = 40) -> Run:
    """A known category and five new ones around points on axes, as the constants say."""
    axis = np.repeat([0, 1, 1, 2, 3, 4], each)  # the second blob is cut in two, the next two are mixed
    category = np.repeat([0, 1, 2, 3, 3, 4], each)
    axis, category = np.append(axis, 5), np.append(category, SINGLE)
    x = np.eye(8)[axis] + np.random.default_rng(0).normal(0, 0.12, (len(axis), 8))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    run = sample_run(
        categories=6, known=1, images=len(x), features=x.astype(np.float32), category=category, truth=False
    )
    return replace(run, confidence=replace(run.confidence, temperature=0.1))


@pytest.fixture(scope="module")
def mixed_up() -> Run:
    return blobs()


def test_look_alikes_mixtures_and_single_images_are_found_and_a_sample_suffices(
    mixed_up: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    present = np.ones(len(mixed_up.assignments), dtype=bool)
    cards = summary.cards(mixed_up, typical=10, doubtful=5)
    for sample, each in ((8000, 24), (150, 1)):
        monkeypatch.setattr(highlights, "COMPARED_IMAGES", sample)
        monkeypatch.setattr(highlights, "COMPARED_EACH", each)
        compared = compare_categories(mixed_up, present, Halves, seed=0)
        merges, splits = compared
        assert {*merges[0].categories} == {*CUT}
        assert splits[0].categories == (MIXED,)
        for half in splits[0].rows:  # rows of the run, not of the sample
            assert {*mixed_up.assignments.category_id[[*half]].tolist()} == {MIXED}
        assert len({*mixed_up.features[[half[0] for half in splits[0].rows]].argmax(axis=1).tolist()}) == 2
        found = find_highlights(mixed_up, cards, compared)
        assert [{card.category.id for card in pair.cards} for pair in found.merges] == [{*CUT}]
        assert [[card.category.id for card in pair.cards] for pair in found.mixed] == [[MIXED]]
        assert found.smaller == found.merges[0]
        assert found.larger == found.mixed[0]
        assert [card.category.id for card in found.single] == [SINGLE]
    assert [card.category.id for card in found.leading] == sorted(
        range(1, 6), key=lambda each: sure(mixed_up, each), reverse=True
    )
    empty = [replace(card, category=replace(card.category, size=0)) if card is cards[-1] else card for card in cards]
    assert (found.found, find_highlights(mixed_up, empty, compared).found) == (5, 4), "an empty one was not found"
    only = np.flatnonzero(mixed_up.assignments.category_id != 4)
    merges, splits = compare_categories(mixed_up, np.isin(np.arange(len(present)), only), None, seed=0)
    assert splits == []
    assert not any(4 in each.categories for each in merges), "only images that are present are compared"


def sure(run: Run, category: int) -> tuple[int, float]:
    own = (run.assignments.category_id == category) & (run.assignments.status != "labelled")
    return int((own & (run.assignments.status != "unsure")).sum()), float(run.assignments.confidence[own].mean())


def test_a_page_leads_with_new_categories_and_what_to_look_at_and_folds_away_how_it_was_made(mixed_up: Run) -> None:
    notes = (
        "Counted 14 categories.",
        "Confidence rests on distances alone.",
        "Mind the gap.",
    )
    run = replace(mixed_up, folder=Path("/runs/of may"), facts=replace(mixed_up.facts, notes=notes))
    compared = compare_categories(run, np.ones(len(run.assignments), dtype=bool), Halves, seed=0)
    page = unescape(make_report(run, small_store(len(run.assignments), 12), QUICK, compared).decode())
    parts = (
        "5 new categories found",
        ">Look here first</h2>",
        "sortal review 'of may'",
        "look alike",
        "looks mixed",
        "1 category of a single image",
        "Confidence rests on distances alone.",
        "Mind the gap.",
        '<details class="small"><summary>How it was made</summary>',
        "Counted 14 categories",
        'id="categories"',
        'id="map"',
        "With 5:",
        "With 7:",
        "How confident?",
        "About this run",
    )
    places = [page.index(each) for each in parts]
    assert places == sorted(places)
    assert "stands out" not in page


def test_labels_to_check_come_first_with_what_they_look_like() -> None:
    run = doubted(sample_run(images=144), [18, 0], suggested=1)
    found = find_highlights(run, summary.cards(run, typical=1, doubtful=1), highlights.NOT_COMPARED)
    assert found.labels == [18, 0]
    assert summary.images(run, [0, 1, 18])["suggested"] == {0: 1, 2: 1}
    page = unescape(make_report(run, small_store(144, 12), QUICK).decode())
    assert "<h3>2 labels to check</h3>" in page
    assert "to check</h3>" not in make_report(sample_run(), small_store(72, 12), QUICK).decode()


def test_where_nothing_is_wrong_or_new_the_page_says_so() -> None:
    run = sample_run(categories=1, known=1, images=9)
    a = replace(run.assignments, status=np.where(run.assignments.status == "unsure", "known", run.assignments.status))
    (only,) = run.categories
    page = make_report(replace(run, assignments=a, categories=(replace(only, unsure=0),)), small_store(9, 12), QUICK)
    assert b"No new category was found" in page
    assert b"No category stands out as wrong." in page
    assert b'id="doubt"' not in page
    assert b'id="nowhere"' not in page
    assert b"would most likely" not in page


def test_images_of_a_large_run_are_about_equally_many_of_each_category(monkeypatch: pytest.MonkeyPatch) -> None:
    category = np.repeat([3, 1, 2], [500, 5, 300])
    present = np.arange(len(category)) % 2 == 0
    rows = report._of_each(category, present, 100, 0)
    counts = {each: int((category[rows] == each).sum()) for each in (1, 2, 3)}
    assert len({*rows.tolist()}) == 100
    assert present[rows].all()
    assert counts[1] == present[500:505].sum(), "a small category is complete"
    assert abs(counts[2] - counts[3]) <= 1
    assert sorted(report._of_each(category, present, 10**6, 0).tolist()) == np.flatnonzero(present).tolist()
    monkeypatch.setattr(report, "DETAILS", (report.Detail(typical=2, doubtful=0, points=10, images=60),))
    run = sample_run(categories=6, images=600)
    page = make_report(run, same_store(600), QUICK).decode()
    assert 60 <= page.count("photos/") <= 60 + 6 * 2 + 1
