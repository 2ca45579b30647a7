"""The report: its content, its size, and the escaping of names."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from support.sample_run import HOSTILE, QUICK, place, sample_run, with_others
from support.stores import small_store

from sortal.errors import Reason
from sortal.images.decoding import Quarantined
from sortal.reviews.actions import Bin
from sortal.reviews.history import Review
from sortal.runs import projection
from sortal.runs.facts import ImageSource
from sortal.runs.projection import Mapper
from sortal.runs.run import LABELLED, STATUSES, Run
from sortal.system import text
from sortal.system.progress import Runtime
from sortal.web.report import charts, report, summary
from sortal.web.report.report import make_report


def data_of(html: bytes) -> dict[str, Any]:
    """Return the data of the page's script."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html.decode(), re.DOTALL)
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_a_page_shows_all_images_categories_candidates_and_unreadable_files() -> None:
    """The last category has no images."""
    lost = Quarantined("gone/lost.jpg", "truncated", "only half of it")
    at = np.arange(75) % 6
    run = sample_run(categories=7, images=75, category=at, candidates=2, quarantine=[lost])
    steps: list[tuple[str, int, int]] = []
    html = make_report(run, small_store(75, 12), QUICK, runtime=Runtime(progress=lambda *each: steps.append(each)))
    assert html == make_report(run, small_store(75, 12), QUICK), "the same bytes each time"
    assert [each for each in steps if each[0] == report.MAP] == [(report.MAP, 0, 75), (report.MAP, 75, 75)]
    assert steps[-1] == (report.THUMBNAILS, 75, 75)
    words = (b"<h1>75 images in 7 categories</h1>", b"4 known classes and 3 new", b"gone/lost.jpg", b"only half of it")
    assert all(each in html for each in words)
    data = data_of(html)
    assert sum(category["size"] for category in data["categories"]) == 75
    assert sorted(data["map"]["image"]) == [*range(75)]
    rows = [int(data["images"]["file"][at][7:12]) for at in data["map"]["image"]]
    places = projection.coordinates(run.features, place, seed=0)[rows]
    np.testing.assert_array_equal(np.stack([data["map"]["x"], data["map"]["y"]], axis=1), places)
    shown = re.search(r'<h3>Candidate 1</h3>.*?data-images="([0-9 ]+)"', html.decode(), re.DOTALL)
    assert shown
    files = [data["images"]["file"][int(at)] for at in shown[1].split()]
    assert files == [f"photos/{row:05d}.jpg" for row in (1, 21, 41, 61)]
    for number, category in enumerate(data["categories"]):
        assert {*category["members"]} == {at for at, own in enumerate(data["images"]["category"]) if own == number}
        assert category["members"][:10] == category["typical"], "the most typical first"
    card = summary.cards(run, typical=5, doubtful=5)[6]
    assert (card.category.size, card.typical, card.doubtful, card.confidence) == (0, [], [], None)
    assert data["categories"][6]["cohesion"] is None


def test_the_bin_is_on_no_card_and_not_on_the_map() -> None:
    run = with_others(sample_run(), {12: 3.0})
    review = Review(run)
    review.take(Bin(images=run.assignments.contents[7:12]))
    html = make_report(review.run(), small_store(72, 12), QUICK)
    data = data_of(html)
    assert sum(category["size"] for category in data["categories"]) == 67
    assert (len(data["map"]["x"]), min(data["images"]["category"])) == (67, 0)
    page = " ".join(html.decode().split())
    assert "<h1>67 images in 6 categories</h1>" in page
    assert "5 more images are in the bin: they belong to no category" in page
    assert "All 67 images are shown." in page
    assert re.search(r"</i>in the bin</dt> <dd>5</dd>", page)
    assert "1 image fits nowhere" in page, "the bin is not among what fits nowhere"
    unlabelled = int((run.assignments.status[np.r_[:7, 12:72]] != LABELLED).sum())
    assert f"Histogram of the confidence of {unlabelled} unlabelled images." in page


def test_a_wish_for_other_categories_is_mentioned() -> None:
    run = sample_run()
    wished = replace(run, k=replace(run.k, usual=9, interval=(8, 11)))
    pages = [" ".join(make_report(each, small_store(72, 12), QUICK).decode().split()) for each in (run, wished)]
    assert ["6 categories</b> (9 without the wish for coarser ones, likely 8 to 11)." in page for page in pages] == [
        False,
        True,
    ]
    assert "was chosen among clearly smaller numbers than 9" in pages[1]
    assert "6 categories</b>: estimated" in pages[0]


def test_accuracy_is_shown_only_if_the_truth_is_known() -> None:
    for truth in (True, False):
        html = make_report(sample_run(truth=truth), small_store(72, 12), QUICK).decode()
        assert ("93.1%" in html) == truth
        assert ("Accuracy" in html) == truth
    script = html.rpartition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in html, "only this script is allowed"
    assert "default-src 'none'; img-src data: blob: file: 'self';" in html, "nothing is loaded from the network"
    assert not re.search(r"https?://|innerHTML|\beval\b", html)


def test_hostile_names_are_escaped_everywhere() -> None:
    lost = [Quarantined(name, cast(Reason, name), name) for name in HOSTILE]  # reasons that others have written
    run = sample_run(
        categories=8,
        known=5,
        name=lambda number: HOSTILE[number],
        file=lambda row: f"{HOSTILE[row % 8]}{row}",
        quarantine=lost,
        candidates=1,
    )
    source = ImageSource(folder=HOSTILE[2], images=72, paths={})
    facts = replace(run.facts, notes=HOSTILE, command=HOSTILE[0], images=(source,))
    html = make_report(replace(run, facts=facts), small_store(72, 12), QUICK)
    page = html.decode("utf-8")
    assert not [markup for markup in ("<script>window", "<img", "<b>bold") if markup in page]
    assert "\u2028" not in page.split('id="data"')[1]
    assert page.count("</script>") == 2
    names = [category["name"] for category in data_of(html)["categories"]]
    assert names[:4] == [*HOSTILE[:4]]
    assert names[5:] == [r"one\ntwo\x00" + "\u2028three", r"\xff bytes", HOSTILE[7]]
    assert len(names[4]) == text.LONGEST_READABLE


def many_images() -> Run:
    return sample_run(categories=30, known=18, images=600, file=lambda row: f"{row:06d}/{'long ' * 20}.jpg")


def test_a_page_of_many_noisy_images_stays_below_the_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "LARGEST_REPORT", 400_000)
    few, run = Mapper(place, points=100), many_images()
    html = make_report(run, small_store(600, 56), few)
    assert report.LARGEST_REPORT / 2 < len(html) <= report.LARGEST_REPORT
    assert "100 of 600 images" in html.decode()
    assert "sampled" in html.decode()
    data = data_of(html)
    assert sum(category["size"] for category in data["categories"]) == 600
    assert all(len(category["typical"]) == 10 for category in data["categories"])
    assert all(0 < len(category["doubtful"]) <= 5 for category in data["categories"])
    shown = [data["images"]["category"][at] for at in data["map"]["image"]]
    assert (len(shown), set(shown)) == (100, {*range(30)})


@pytest.mark.thorough
def test_a_page_of_even_more_images_has_fewer_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    few, run = Mapper(place, points=100), many_images()
    monkeypatch.setattr(report, "LARGEST_REPORT", 255_000)
    monkeypatch.setattr(report, "OTHER_ROOM", 8000)
    html = make_report(run, small_store(600, 56), few)
    assert len(html) <= report.LARGEST_REPORT
    assert len(data_of(html)["sheets"]) == 2, "fewer pictures, but still some of both cards and map"
    assert len(data_of(html)["categories"][0]["typical"]) < 10
    monkeypatch.setattr(report, "CARD_ROOM", 10)
    data = data_of(make_report(run, small_store(600, 56), few))
    assert (data["sheets"], len(data["categories"][0]["typical"])) == ([], 1)


def test_points_beyond_the_first_have_a_category_and_a_status_but_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "DETAILS", (report.Detail(typical=2, doubtful=0, points=30, others=40),))
    run = sample_run(images=100)
    html = make_report(run, small_store(100, 12), Mapper(place, points=80))
    data = data_of(html)
    points, a = data["map"], run.assignments
    rows = projection.sample(a.category_id, a.distance, 80, seed=0)[:70]
    assert points["category"] == a.category_id[rows].tolist()
    assert [STATUSES[each] for each in points["status"]] == a.status[rows].tolist()
    shown = [row for row, image in zip(rows.tolist(), points["image"], strict=True) if image >= 0]
    on_cards = {row for card in summary.cards(run, typical=2, doubtful=0) for row in card.typical}
    assert {*shown} == {*rows[:30].tolist()} | (on_cards & {*rows.tolist()})
    files = [data["images"]["file"][image] for image in points["image"] if image >= 0]
    assert files == [a.files[row] for row in shown]
    assert "<b>70 of 100 images</b>" in html.decode()
    assert f"only {len(shown)} of them come with a name" in html.decode()


def test_the_histogram_counts_every_image() -> None:
    chart = charts.histogram(np.array([0.0, 0.1, 0.49, 0.5, 1.0, 1.0]), 0.5)
    assert chart is not None
    assert sum(int(bar.text.split()[0]) for bar in chart.spans) == 6
    assert [bar.style for bar in chart.spans].count("unsure") == 10


def test_durations_and_names_are_formatted_for_people() -> None:
    times = {0.4: "0 s", 89.4: "89 s", 90: "2 min", 5399.0: "90 min", 5400.0: "1.5 h"}
    assert {value: text.duration(value) for value in times} == times
    # Marks of direction stay, as <bdi> isolates them.
    assert text.readable("a\udce9\x1b[31m\u202eb\u200c é") == "a\\xe9\\x1b[31m\u202eb\u200c é"
    assert [text.shorten("abcdefgh", longest) for longest in (8, 7, 4)] == ["abcdefgh", "abc…fgh", "ab…h"]
