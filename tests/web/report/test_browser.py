"""The report in a browser: its controls work, and hostile names do nothing."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from support.browsing import Open
from support.sample_run import HOSTILE, QUICK, sample_run, with_others
from support.stores import same_store, small_store

from sortal.images.columns import Columns
from sortal.images.decoding import Quarantined
from sortal.runs import projection
from sortal.runs.facts import ImageSource
from sortal.runs.projection import Mapper
from sortal.runs.run import Run
from sortal.web.report import report, summary
from sortal.web.report.report import make_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page
DESKTOP, PHONE = (1280, 900), (360, 740)


@pytest.fixture(scope="module")
def flowers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a report of 40 categories, the first 25 known; category 3 has 80 images, and category 39 has none."""
    category = np.concatenate([np.arange(390) % 39, np.full(70, 3)])
    run = sample_run(categories=40, known=25, images=460, category=category, candidates=1)
    run = with_others(run, {27: 3.0, 28: 5.0, 66: 4.0})  # of categories 27 and 28
    return _written(run, tmp_path_factory.mktemp("flowers"), 460)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a report of a run with hostile names, whose confidence is not calibrated."""
    run = sample_run(
        categories=8,
        known=5,
        name=lambda number: HOSTILE[number],
        file=lambda row: f"{HOSTILE[row % 8]}/{HOSTILE[row % 7]}",
        quarantine=[Quarantined(name, "damaged", name) for name in HOSTILE],
        candidates=2,
    )
    run = replace(run, confidence=replace(run.confidence, held_out=0))
    return _written(run, tmp_path_factory.mktemp("hostile"), 72)


def _written(run: Run, folder: Path, images: int) -> Path:
    path = folder / "report.html"
    path.write_bytes(make_report(run, small_store(images, 16), QUICK))
    return path


@pytest.fixture
def opened(browser: "Browser") -> Iterator[Open]:
    """Open a report; console messages, dialogs and requests are errors, except that originals of images are missing."""
    events: list[str] = []
    pages: list[Page] = []

    def open_page(path: Path, size: tuple[int, int] = DESKTOP, *, dark: bool = False, touch: bool = False) -> "Page":
        page = browser.new_page(
            viewport={"width": size[0], "height": size[1]},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            has_touch=touch,
        )
        page.set_default_timeout(120_000)
        pages.append(page)
        page.on("console", lambda m: None if m.text.startswith("Failed to load resource") else events.append(m.text))
        page.on("pageerror", lambda error: events.append(str(error)))
        page.on("dialog", lambda dialog: events.append(dialog.message))
        page.on("request", lambda request: events.append(request.url) if request.url.startswith("http") else None)
        page.goto(path.as_uri())
        return page

    yield open_page
    for page in pages:
        page.close()
    assert events == []


def titles(page: "Page") -> list[str]:
    return page.locator("#cards h3").all_inner_texts()


def canvas_bytes(page: "Page") -> str:
    """Return the picture on the map after the next frame."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    seen: str = page.evaluate("() => document.getElementById('canvas').toDataURL()")
    return seen


def to_the_map(page: "Page") -> tuple[float, float]:
    """Scroll to the map and return the position of the canvas."""
    page.evaluate("() => document.querySelector('.stage').scrollIntoView({ block: 'center' })")
    box = page.locator("#canvas").bounding_box()
    assert box is not None
    return box["x"], box["y"]


def test_cards_are_shown_in_batches_filtered_searched_and_sorted(opened: Open, flowers: Path) -> None:
    page = opened(flowers)
    assert len(titles(page)) == 30
    assert all(title.startswith("new") for title in titles(page)[:15]), "new categories come first"
    assert "40 categories with 460 images" in page.locator("#count").inner_text()
    page.locator("#sort").select_option("size")
    assert titles(page)[0] == "class 3"
    for order, figure in (("tight", "cohesion"), ("loose", "cohesion"), ("doubt", "confidence")):
        page.locator("#sort").select_option(order)
        shown = page.evaluate(
            "(figure) => [...document.querySelectorAll('#cards article')]"
            ".map((card) => categories[Number(card.dataset.category)][figure])",
            figure,
        )
        assert shown == sorted(shown, reverse=order == "tight")  # the one without a figure comes last and is not drawn
    page.locator("#more").click()
    assert len(titles(page)) == 40
    assert page.locator("#more").is_hidden()
    card = page.locator('[data-category="30"]')
    assert "Nearest known class: class" in card.inner_text()
    assert card.locator(".thumb").count() == 10

    page.locator('[data-filter="new"]').click()
    assert len(titles(page)) == 15
    assert all(title.startswith("new") for title in titles(page))
    page.locator("#sort").select_option("id")
    assert titles(page) == [f"new {i}" for i in range(1, 16)]
    page.locator("#search").fill("NEW 1")
    assert titles(page) == ["new 1", *(f"new {i}" for i in range(10, 16))]
    page.locator("#search").fill("nothing like it")
    assert titles(page) == []
    assert page.locator("#count").inner_text() == "No category matches."
    page.locator("#search").fill("")
    page.locator('[data-filter="unsure"]').click()
    unsure = page.evaluate("() => categories.filter((each) => each.unsure > 0).length")
    assert 0 < unsure < 40
    assert page.locator("#count").inner_text().startswith(f"{unsure} categories")
    page.locator('[data-filter="other"]').click()
    assert {*titles(page)} == {"new 3", "new 4"}
    assert "2 fitting nowhere" in page.locator('[data-category="27"]').inner_text()


def test_sureness_is_said_in_words_unless_confidence_is_calibrated(opened: Open, flowers: Path, hostile: Path) -> None:
    page = opened(hostile)
    words = {*page.locator("#cards .thumb .line").all_inner_texts()}
    assert {word.rstrip("✕").strip() for word in words} == {"labelled", "known", "new", "unsure"}
    said = " ".join(page.locator(each).inner_text() for each in ("#look", "#doubt", "#confidence"))
    assert "%" not in said
    assert "unsure" in said
    assert "confidence" not in page.locator("#cards").inner_text()
    page.locator("#doubtful .thumb").first.click()
    assert "Confidence" not in page.locator("#viewer dl").inner_text(), "the status says it"
    page.keyboard.press("Escape")
    page.locator("#cards .thumb .line", has_text="known").first.click()
    assert page.locator("#viewer dl").inner_text().split("Confidence")[1].split()[:2] == ["not", "calibrated"]
    everything = page.locator("main").inner_text().lower()
    assert not re.search(r"\b(?<!least )(?<!none )sure\b", everything), "no image is called sure"
    page = opened(flowers)
    assert "below 50%" in page.locator("#doubt .intro").inner_text()
    assert page.locator("#doubtful .thumb .line").first.inner_text().strip("✕ \n").endswith("%")
    page.locator("#doubtful .thumb").first.click()
    assert "Confidence" in page.locator("#viewer dl").inner_text()


@pytest.mark.thorough
def test_a_thumbnail_opens_with_its_pixels_and_printing_shows_every_card(opened: Open, flowers: Path) -> None:
    page = opened(flowers)
    page.locator("#sort").select_option("size")
    thumb = page.locator('[data-category="3"] .thumb').first
    assert "blob:" in thumb.locator(".picture").evaluate("(element) => getComputedStyle(element).backgroundImage")
    thumb.click()
    viewer = page.locator("#viewer")
    assert viewer.is_visible()
    assert "photos/" in viewer.inner_text()
    assert "class 3" in viewer.inner_text()
    page.keyboard.press("Escape")
    assert viewer.is_hidden()
    page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    assert len(titles(page)) == 40


@pytest.mark.thorough
def test_all_images_of_a_category_and_all_doubtful_ones_are_shown_in_pages(opened: Open, flowers: Path) -> None:
    page = opened(flowers)
    page.locator("#sort").select_option("size")
    page.locator('[data-category="3"] .whole').click()
    gallery = page.locator("#all-images")
    assert "80 images, the most typical first" in gallery.inner_text()
    first = gallery.locator(".thumb .file").all_inner_texts()
    gallery.get_by_text("Next").click()
    rest = gallery.locator(".thumb .file").all_inner_texts()
    assert (len(first), len({*first, *rest})) == (60, 80)
    gallery.locator(".thumb").first.click()
    viewer = page.locator("#viewer")
    assert "61 of 80" in viewer.inner_text()
    page.keyboard.press("ArrowRight")
    assert "62 of 80" in viewer.inner_text()
    assert page.locator("#viewer-title").inner_text() == rest[1]
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert page.locator("#viewer-title").inner_text() == first[-1]
    page.locator("#viewer-category").click()
    assert gallery.is_hidden()
    assert page.locator("#cards .sought h3").inner_text() == "class 3"

    doubtful = page.locator("#doubtful")
    unsure = page.evaluate("() => images.status.filter((status) => status === 3).length")
    assert f"of {unsure}" in doubtful.inner_text()
    sure = [int(text.partition("%")[0]) for text in doubtful.locator(".line").all_inner_texts()]
    assert sure == sorted(sure)
    assert " / " in doubtful.locator(".file").first.inner_text()
    for place in ("#look article:has(a[href='#nowhere'])", "#nowhere"):
        page.locator(place).locator(".thumb").first.click()
        assert "other" in viewer.inner_text()
        shown = [page.locator("#viewer-title").inner_text()]
        for _ in range(2):
            page.keyboard.press("ArrowRight")
            shown.append(page.locator("#viewer-title").inner_text())
        assert shown == ["00028.jpg", "00066.jpg", "00027.jpg"], "the farthest first"
        page.keyboard.press("Escape")
    assert "3 images fit nowhere" in page.locator("#look").inner_text()


@pytest.mark.thorough
def test_doubtful_images_of_one_moment_are_shown_once(opened: Open, tmp_path: Path) -> None:
    run = sample_run()
    unsure = np.flatnonzero(run.assignments.status == "unsure")
    assert len(unsure) > 3
    group = run.assignments.group.copy()
    group[unsure[:3]] = group[unsure[0]]
    page = opened(_written(replace(run, assignments=replace(run.assignments, group=group)), tmp_path, 72))
    assert page.locator("#doubtful .thumb").count() == len(unsure) - 2
    assert f"{len(unsure)} images" in page.locator("#doubt .intro").inner_text()
    assert "70 moments" in page.locator("header .lead").inner_text()


@pytest.mark.thorough
def test_the_viewer_has_columns_and_the_other_images_of_a_group(opened: Open, tmp_path: Path) -> None:
    run = sample_run()
    group, names = run.assignments.group.copy(), [""] * 72
    rows = np.flatnonzero(run.assignments.category_id == run.categories[0].id)[:3]
    group[rows] = group[rows[0]]
    for row in rows.tolist():
        names[row] = "<i>burst</i>"
    columns = Columns.infer(["group", "<b>site</b>"], [names, [f"site {row}" for row in range(72)]])
    page = opened(
        _written(replace(run, assignments=replace(run.assignments, group=group, columns=columns)), tmp_path, 72)
    )
    assert "70 groups" in page.locator("header .lead").inner_text()
    page.locator("#cards .thumb:has(.stack)").first.click()
    page.wait_for_selector("#viewer[open]")
    assert page.locator("#viewer-stack button").count() == 3
    told = page.locator("#viewer dl").inner_text()
    assert "<i>burst</i>" in told
    assert "<b>site</b>" in told
    page.locator("#viewer-stack button").nth(1).click()
    assert page.locator("#viewer-place").inner_text() == "2 of 3"


@pytest.mark.thorough
def test_pictures_links_and_the_legend_lead_to_categories(opened: Open, flowers: Path) -> None:
    page = opened(flowers)
    page.locator("#search").fill("nothing like it")
    tile = page.locator("#found .pictures a").last
    assert tile.locator(".picture").count() == 6
    name = tile.locator("b").inner_text()
    tile.click()
    page.locator("#cards .sought").wait_for()
    assert page.locator("#cards .sought h3").inner_text() == name
    assert page.locator("#search").input_value() == ""
    page.locator('#legend [data-value="24"]').click()
    assert float(page.locator("#canvas").get_attribute("data-scale") or 0) > 1
    page.locator("#lit a").click()
    page.locator("#category-24.sought").wait_for()  # which was not drawn before
    page.locator('#legend [data-value="24"]').click()
    assert page.locator("#canvas").get_attribute("data-scale") == "1.000"
    assert page.locator("#lit a").count() == 0


@pytest.mark.thorough
def test_the_viewer_shows_the_original_where_it_finds_it_and_otherwise_the_thumbnail(
    opened: Open, tmp_path: Path
) -> None:
    run = sample_run(categories=1, known=0, images=3, file=lambda row: f"50% off?/#{row} é.png")
    run = replace(run, folder=tmp_path / "a run", facts=replace(run.facts, images=(_source(tmp_path / "my photos"),)))
    run.folder.mkdir()
    (tmp_path / "my photos" / "50% off?").mkdir(parents=True)
    files = [run.assignments.files[row] for row in summary.cards(run, typical=3, doubtful=0)[0].typical]
    Image.new("RGB", (300, 200)).save(tmp_path / "my photos" / files[0])
    page = opened(_written(run, run.folder, 3))
    page.locator("#cards .thumb").first.click()
    page.locator("#viewer img").wait_for()
    assert page.locator("#viewer img").evaluate("(element) => element.naturalWidth") == 300
    shown = page.locator("#viewer").inner_text()
    assert f"my photos/{files[0]}" in shown
    assert str(tmp_path) not in shown, "whoever gets the report need not know where it was made"
    with page.expect_event("requestfailed"):
        page.keyboard.press("ArrowRight")
    assert page.locator("#viewer .picture").count() == 1
    assert page.locator("#viewer img").count() == 0


def _source(folder: Path) -> ImageSource:
    return ImageSource(folder=str(folder), images=3, paths={})


@pytest.mark.thorough
def test_the_map_reacts_to_the_pointer_and_to_keys(opened: Open, flowers: Path) -> None:
    page = opened(flowers)
    canvas = page.locator("#canvas")
    left, top = to_the_map(page)
    x, y = page.evaluate("() => theMap.places()[5]")
    before = canvas_bytes(page)
    page.mouse.move(left + x, top + y)
    tip = page.locator("#tip")
    tip.wait_for(state="visible")
    assert "Status:" in tip.inner_text()
    assert "photos/" in tip.inner_text()
    assert canvas_bytes(page) != before
    for _ in range(600):  # after scrolling, the browser keeps sending the wheel to the page for a while
        page.mouse.wheel(0, -400)
        page.wait_for_timeout(100)
        if canvas.get_attribute("data-scale") != "1.000":
            break
    assert float(canvas.get_attribute("data-scale") or 0) > 1
    corner = page.evaluate("() => theMap.places()[0]")
    page.mouse.down()
    page.mouse.move(left + x + 40, top + y + 30, steps=4)
    page.mouse.up()
    assert page.evaluate("() => theMap.places()[0]") != corner
    page.locator("#zoom-reset").click()
    assert canvas.get_attribute("data-scale") == "1.000"

    canvas.focus()
    page.keyboard.press("+")
    assert canvas.get_attribute("data-scale") == "1.400"
    before = page.evaluate("() => theMap.places()[0]")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("() => theMap.places()[0]")[0] > before[0]
    page.keyboard.press("0")
    assert canvas.get_attribute("data-scale") == "1.000"


@pytest.mark.thorough
def test_colours_highlights_and_the_dark_theme_change_what_is_drawn(opened: Open, flowers: Path) -> None:
    page = opened(flowers)
    by_category = canvas_bytes(page)
    assert page.locator("#legend button").count() == 39  # the empty category is not on the map
    page.locator('[data-colour="status"]').click()
    assert page.locator("#legend button").count() == 5
    assert canvas_bytes(page) != by_category
    page.locator("#sort").select_option("size")
    page.locator('[data-category="3"] .bottom button').last.click()
    assert page.locator("#canvas").get_attribute("data-lit") == "3"
    assert page.locator('#legend [aria-pressed="true"]').inner_text().startswith("class 3")
    lit = canvas_bytes(page)
    assert lit != by_category
    page.locator('#legend [data-value="3"]').click()
    assert canvas_bytes(page) != lit

    light, dark = (
        opened(flowers, dark=dark).evaluate("() => getComputedStyle(document.body).backgroundColor.match(/\\d+/g)")
        for dark in (False, True)
    )
    assert min(map(int, light)) > 200
    assert max(map(int, dark)) < 60


@pytest.mark.thorough
def test_a_map_of_very_many_points_has_their_colours_and_names_only_some(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = 10_200
    monkeypatch.setattr(report, "DETAILS", (report.Detail(typical=1, doubtful=0, points=50, others=n),))
    run, side = sample_run(images=n), 101
    row = np.argsort(projection.sample(run.assignments.category_id, run.assignments.distance, n, seed=0))

    def in_a_square(features: NDArray[np.float32], seed: int) -> NDArray[np.float64]:
        return np.stack([row % side, row // side], axis=1).astype(np.float64)  # the point that a row is

    path = tmp_path / "report.html"
    path.write_bytes(make_report(run, same_store(n), Mapper(in_a_square, points=n)))
    page = opened(path)
    left, top = to_the_map(page)
    canvas_bytes(page)  # waits until it is drawn
    drawn, expected = page.evaluate(
        """(at) => {
            const colour = document.createElement("canvas").getContext("2d");
            colour.fillStyle = categoryColour(data.map.category[at]);
            colour.fillRect(0, 0, 1, 1);
            const [x, y] = theMap.places()[at].map(Math.round);
            const pixels = [byId("canvas").getContext("2d").getImageData(x, y, 1, 1), colour.getImageData(0, 0, 1, 1)];
            return pixels.map((each) => [...each.data]);
        }""",
        7000,
    )
    assert drawn[:3] == pytest.approx(expected[:3], abs=3)
    tip = page.locator("#tip")
    for at, named in ((20, True), (7000, False)):
        x, y = page.evaluate("(at) => theMap.places()[at]", at)
        page.mouse.move(left + x, top + y)
        tip.wait_for(state="visible")
        assert ("photos/" in tip.inner_text()) == named
        category = page.evaluate("(at) => categories[data.map.category[at]].name", at)
        assert f"Category: {category}" in tip.inner_text()
    page.mouse.down()
    page.mouse.up()
    assert page.locator("#viewer").is_hidden()
    page.locator("#cards .whole").first.click()
    shown = page.locator("#all-images .thumb").count()
    assert 0 < shown < 60
    assert f"{shown} of 1,700 images are shown" in page.locator("#all-images").inner_text()


def test_hostile_names_do_nothing(opened: Open, hostile: Path) -> None:
    page = opened(hostile)
    page.locator(".thumb").first.click()
    page.keyboard.press("Escape")
    left, top = to_the_map(page)
    for at in range(8):
        x, y = page.evaluate("(at) => theMap.places()[at]", at)
        page.mouse.move(left + x, top + y)
    page.locator("#search").fill("<script>")
    assert titles(page) == [HOSTILE[0]]
    assert page.evaluate("() => window.hit") is None
    assert page.locator("img").count() == 0
    assert page.locator("main script, dialog script, #cards b b").count() == 0
    assert page.locator("#unreadable tbody tr").count() == 8


@pytest.mark.thorough
def test_a_phone_shows_an_image_on_a_tap_and_does_not_scroll_sideways(
    opened: Open, flowers: Path, hostile: Path
) -> None:
    for path in (flowers, hostile):
        page = opened(path, PHONE, touch=True)
        assert page.evaluate("() => document.scrollingElement.scrollWidth <= innerWidth")
        fits = "(element) => element.scrollWidth <= element.clientWidth"
        assert page.locator("#filter").evaluate(fits), "none is cut"
        left, top = to_the_map(page)
        x, y = page.evaluate("() => theMap.places()[5]")
        page.touchscreen.tap(left + x, top + y)
        page.locator("#tip").wait_for(state="visible")
        page.locator('[data-colour="status"]').click()
        page.locator(".thumb").first.click()
        assert page.evaluate("() => document.scrollingElement.scrollWidth <= innerWidth")
