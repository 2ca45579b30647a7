"""The report: what is shown, how large it is, and that names stay names."""

import base64
import hashlib
import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sample_run import HOSTILE, by_hand, quick_map, sample_run
from stores import small_store, store_of

from sortal import web
from sortal.images.decoding import Quarantined
from sortal.runs import projection
from sortal.runs.facts import Confused, ImageSource, KChoice, TriedK
from sortal.system import text as people
from sortal.system.progress import Runtime
from sortal.web import charts, thumbnails
from sortal.web import report as page
from sortal.web import summary as records


@pytest.fixture(autouse=True)
def no_tsne() -> Iterator[None]:
    """For whole pages; t-SNE has tests of its own."""
    with quick_map():
        yield


def data_of(html: bytes) -> dict[str, Any]:
    """What the script of a page knows."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html.decode(), re.DOTALL)
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_a_card_shows_the_nearest_images_then_the_least_sure_without_a_label() -> None:
    first, second = records.cards(by_hand(), typical=2, doubtful=1)
    assert first.typical == [6, 2]
    assert first.doubtful == [4]  # row 0 is labelled
    assert first.confidence == pytest.approx((0.6 + 0.3 + 0.7) / 3)
    assert second.typical == [1, 3]  # as near as each other: in their order
    assert second.doubtful == [5]
    first, second = records.cards(by_hand(), typical=3, doubtful=5)
    assert (first.typical, first.doubtful) == ([6, 2, 4], []), "no image is shown twice"
    assert (second.typical, second.doubtful) == ([1, 3, 7], [5])
    assert np.flatnonzero(records.wrong(by_hand())).tolist() == [1, 4], "of a known class, and in another category"


def test_a_page_tells_of_all_images_categories_candidates_and_unreadable_files() -> None:
    """The last of the categories has no images."""
    lost = Quarantined("gone/lost.jpg", "truncated", "only half of it")
    at = np.arange(75) % 6
    run = sample_run(categories=7, images=75, category=at, candidates=2, quarantine=[lost])
    told: list[tuple[str, int, int]] = []
    html = web.make_report(run, small_store(75, 12), runtime=Runtime(progress=lambda *each: told.append(each)))
    assert html == web.make_report(run, small_store(75, 12)), "the same bytes each time"
    assert [each for each in told if each[0] == page.MAP] == [(page.MAP, 0, 75), (page.MAP, 75, 75)]
    assert told[-1] == (page.THUMBNAILS, 75, 75)
    assert b"<h1>75 images in 7 categories</h1>" in html
    assert b"4 known classes and 3 new categories" in html
    assert b"gone/lost.jpg" in html
    assert b"only half of it" in html
    data = data_of(html)
    assert sum(category["size"] for category in data["categories"]) == 75
    assert sorted(data["map"]["image"]) == [*range(75)]
    rows = [int(data["images"]["file"][at][7:12]) for at in data["map"]["image"]]
    places = projection.place_cached(run.features, seed=0, folder=None)[rows]
    np.testing.assert_array_equal(np.stack([data["map"]["x"], data["map"]["y"]], axis=1), places)
    files = [data["images"]["file"][at] for at in data["groups"][1]]
    assert files == [f"photos/{row:05d}.jpg" for row in (1, 21, 41, 61)]
    card = records.cards(run, typical=5, doubtful=5)[6]
    assert (card.category.size, card.typical, card.doubtful, card.confidence) == (0, [], [], None)
    assert data["categories"][6]["cohesion"] is None


def test_accuracy_is_told_only_where_the_truth_is_known() -> None:
    for truth in (True, False):
        text = web.make_report(sample_run(truth=truth), small_store(72, 12)).decode()
        assert ("93.1%" in text) == truth
        assert ("so accuracy cannot be measured" in text) != truth
    script = text.rpartition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text, "this script is allowed, and no other"
    assert "default-src 'none'" in text
    assert not re.search(r"https?://|innerHTML|\beval\b", text)


def test_hostile_names_are_escaped_everywhere() -> None:
    lost = [Quarantined(name, "damaged", name) for name in HOSTILE]
    run = sample_run(
        categories=8,
        known=5,
        name=lambda number: HOSTILE[number],
        file=lambda row: f"{HOSTILE[row % 8]}{row}",
        quarantine=lost,
        candidates=1,
    )
    source = ImageSource(folder=HOSTILE[2], images=72, paths={})
    facts = replace(run.facts, notes=HOSTILE, command=HOSTILE[0], images=(source,), edits=HOSTILE)
    html = web.make_report(replace(run, facts=facts), small_store(72, 12))
    text = html.decode("utf-8")
    assert "<script>window" not in text
    assert "<img" not in text
    assert "<b>bold" not in text
    assert "\u2028" not in text.split('id="data"')[1]
    assert text.count("</script>") == 2
    names = [category["name"] for category in data_of(html)["categories"]]
    assert names[:4] == [*HOSTILE[:4]]
    assert names[5:] == [r"one\ntwo\x00" + "\u2028three", r"\xff bytes", HOSTILE[7]]
    assert len(names[4]) == people.LONGEST


def test_many_noisy_images_make_a_page_below_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "LIMIT", 400_000)
    monkeypatch.setattr(projection, "POINTS", 100)
    run = sample_run(categories=30, known=18, images=600, file=lambda row: f"{row:06d}/{'long ' * 20}.jpg")
    html = web.make_report(run, small_store(600, 56))
    assert page.LIMIT / 2 < len(html) <= page.LIMIT
    assert "100 of 600 images" in html.decode()
    assert "sampled" in html.decode()
    data = data_of(html)
    assert sum(category["size"] for category in data["categories"]) == 600
    assert all(len(category["typical"]) == 10 for category in data["categories"])
    assert all(0 < len(category["doubtful"]) <= 5 for category in data["categories"])
    shown = [data["images"]["category"][at] for at in data["map"]["image"]]
    assert (len(shown), set(shown)) == (100, {*range(30)})

    monkeypatch.setattr(page, "LIMIT", 250_000)
    monkeypatch.setattr(page, "MAP_ROOM", 8000)
    html = web.make_report(run, small_store(600, 56))
    assert len(html) <= page.LIMIT
    assert len(data_of(html)["sheets"]) == 2, "fewer pictures, but still some of both cards and map"
    assert len(data_of(html)["categories"][0]["typical"]) < 10
    monkeypatch.setattr(page, "CARD_ROOM", 10)
    data = data_of(web.make_report(run, small_store(600, 56)))
    assert (data["sheets"], len(data["categories"][0]["typical"])) == ([], 1)


def test_a_picture_is_the_whole_image_and_a_tiny_one_is_enlarged_dot_by_dot() -> None:
    assert thumbnails.fit(np.zeros((50, 200, 3), dtype=np.uint8), 100).shape == (25, 100, 3)
    assert thumbnails.fit(np.zeros((1, 900, 3), dtype=np.uint8), 30).shape == (1, 30, 3)
    dots = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    large = thumbnails.fit(dots, 5)
    assert large.shape == (4, 4, 3)
    assert (large[:2, 2:] == dots[0, 1]).all()


def test_sheets_show_what_the_store_holds_and_less_room_makes_smaller_pictures() -> None:
    """Tiny images come back dot for dot, each at its place; a row without pixels has none."""
    images = [np.full((3, 5, 3), value, dtype=np.uint8) for value in range(0, 250, 10)]
    store = store_of(images)
    store.heights[7] = store.widths[7] = 0
    made = thumbnails.make_sheets(store, [*range(25)], room=10**6, cells=(32, 192))
    assert made is not None
    assert made.crisp
    assert [at for at, size in enumerate(made.sizes) if size != (5, 3)] == [7]
    sheet = np.asarray(Image.open(io.BytesIO(made.images[0])))
    half = made.cell // 2
    for at in (0, 6, 8, 24):
        row, column = divmod(at, made.columns)
        assert sheet[row * made.cell + half, column * made.cell + half].tolist() == 3 * [10 * at]

    noise, rows = small_store(12, 100), [*range(12)]
    large, small = (thumbnails.make_sheets(noise, rows, room=room, cells=(32, 96)) for room in (10**7, 2 * 10**4))
    assert large is not None
    assert small is not None
    assert small.cell < large.cell == 96
    assert small.bytes <= 2 * 10**4
    assert thumbnails.make_sheets(noise, rows, room=1000, cells=(32, 96)) is None


def test_a_sample_has_every_category_and_its_most_typical_image() -> None:
    category = np.repeat([0, 1, 2], [500, 300, 1])
    distance = np.linspace(1, 0, 801)
    rows = projection.sample(category, distance, 50, seed=0)
    assert len(set(rows.tolist())) == 50
    assert rows[:3].tolist() == [499, 799, 800]
    assert (projection.sample(category, distance, 50, seed=1) != rows).any()
    assert sorted(projection.sample(category, distance, 5000, seed=0).tolist()) == [*range(801)]


def test_every_matrix_can_be_placed() -> None:
    same = [np.ones(shape) for shape in ((0, 4), (1, 4), (50, 4), (3, 1))]
    for features in (*same, np.arange(40.0).reshape(40, 1), np.repeat(np.eye(5), 20, axis=0), np.eye(10)):
        placed = projection.place(features.astype(np.float32), seed=0)
        assert placed.shape == (len(features), 2)
        assert ((placed >= 0) & (placed <= projection.SPAN)).all()


def test_few_images_lie_at_their_principal_components_and_clusters_stay_together() -> None:
    """Of a cross the components are its arms; on a line there is only one."""
    cross = projection.place(np.array([[-2, 0], [2, 0], [0, 1], [0, -1]], dtype=np.float32), seed=0)
    assert cross.tolist() == [[0, 5000], [9999, 5000], [5000, 9999], [5000, 0]]
    line = projection.place(np.array([[0, 0], [1, 1], [4, 4]], dtype=np.float32), seed=0)
    assert line.tolist() == [[0, 5000], [2500, 5000], [9999, 5000]]

    generator = np.random.default_rng(0)
    centres = np.repeat(np.eye(3) * 5, 30, axis=0)
    placed = projection.place((centres + generator.normal(0, 0.1, (90, 3))).astype(np.float32), seed=0)
    far = np.linalg.norm(placed[:, None] - placed[None], axis=2)
    same = np.repeat([0, 1, 2], 30)[:, None] == np.repeat([0, 1, 2], 30)
    assert far[same].max() < far[~same].min()


def test_the_k_curve_has_a_log_axis_and_the_histogram_counts_every_image() -> None:
    curve = tuple(TriedK(k=k, score=0.5, each=(0.4, 0.6)) for k in (10, 100, 1000))
    chart = charts.k_curve(KChoice(k=100, estimated=True, known=2, interval=(90, 120), curve=curve))
    assert chart is not None
    left, middle, right = (point.x for point in chart.points)
    assert middle - left == pytest.approx(right - middle, abs=0.11)
    assert chart.rules[0].x == middle
    assert chart.bars[0].x < middle < chart.bars[0].x + chart.bars[0].width
    assert charts.k_curve(KChoice(k=5, estimated=False, known=2)) is None
    chart = charts.k_curve(KChoice(k=7, estimated=True, known=2, curve=(TriedK(k=7, score=0.5, each=()),)))
    assert chart is not None
    assert [tick.text for tick in chart.x_ticks] == ["7"], "one point can be drawn"
    chart = charts.histogram(np.array([0.0, 0.1, 0.49, 0.5, 1.0, 1.0]), 0.5)
    assert chart is not None
    assert sum(int(bar.text.split()[0]) for bar in chart.bars) == 6
    assert [bar.style for bar in chart.bars].count("unsure") == 10


def test_confusion_is_a_table_and_of_many_classes_a_list() -> None:
    run = sample_run(categories=3, known=2, images=9)
    counts = [("class 0", 0, 6), ("class 0", 2, 2), ("class 1", 0, 1), ("class 1", 1, 3)]
    made = records.confusion([Confused(*each) for each in counts], run.categories)
    assert made is not None
    assert made.known == {"class 0": 0, "class 1": 1}
    assert [*made.rows.values()] == [[6, 0, 2], [1, 3, 0]]
    assert made.mistakes == [("class 0", 2, 2), ("class 1", 0, 1)]
    assert made.totals == {"class 0": 8, "class 1": 4}
    assert records.confusion([], run.categories) is None
    run = sample_run(categories=40, known=35, images=80)
    made = records.confusion([Confused(f"class {i}", (i + 1) % 35, i + 1) for i in range(35)], run.categories)
    assert made is not None
    assert made.rows == {}
    assert (made.mistakes[0].truth, made.mistakes[0].images) == ("class 34", 35)


def test_durations_and_names_as_text() -> None:
    times = {0.4: "0 s", 89.4: "89 s", 90: "2 min", 5399.0: "90 min", 5400.0: "1.5 h"}
    assert {value: people.duration(value) for value in times} == times
    assert people.readable("a\udce9\x1b[31m\u202eb\u200c é") == "a\\xe9\\x1b[31m\u202eb\u200c é", (
        "bdi isolates directions"
    )
    assert [people.shorten("abcdefgh", longest) for longest in (8, 7, 4)] == ["abcdefgh", "abc…fgh", "ab…h"]
