"""Files that change, vanish and come back under a review: the wrong picture is never shown, nor decided about."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image
from support.reviews import Client, serving
from support.runtimes import CPU
from support.sample_run import sample_run

from sortal.discovery.prediction import redraw
from sortal.discovery.reviewing.open import open_session
from sortal.images import decoding
from sortal.images.review_states import ReviewState
from sortal.images.store.pixel_store import PixelStore
from sortal.reviews.loading import load_run, save_run
from sortal.runs.facts import ImageSource
from sortal.runs.run import DECISIONS, Run
from sortal.system.progress import Runtime

if TYPE_CHECKING:
    from playwright.sync_api import Browser

COLOURS = {0: (200, 40, 40), 1: (40, 160, 60), 2: (50, 70, 220), 3: (230, 200, 50)}  # by category
OTHER = (255, 0, 255)
CHANGED, GONE, COPY, COPIED = 6, 10, 14, 18  # rows of category 2; the last two have the same content


def picture(row: int, colour: tuple[int, int, int] | None = None) -> bytes:
    """A picture of a row in one colour, with a few pixels of its own."""
    pixels = np.full((24, 24, 3), colour or COLOURS[row % 4], np.uint8)
    pixels[0, :2] = (row, 0, 0)
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Forty images in four categories, as files; their pixels are stored in the cache."""
    photos, files = tmp_path / "photos", [f"{row:02}.png" for row in range(40)]
    photos.mkdir()
    data = [picture(COPY if row == COPIED else row) for row in range(40)]
    for file, content in zip(files, data, strict=True):
        (photos / file).write_bytes(content)
    made = sample_run(categories=4, known=2, images=40, file=lambda row: files[row])
    made = replace(
        made,
        folder=tmp_path / "run",
        facts=replace(made.facts, images=(ImageSource(folder=str(photos), images=40, paths={}),)),
        assignments=replace(made.assignments, contents=tuple(map(decoding.digest, data))),
    )
    save_run(made)
    open_session(load_run(made.folder, raw=True), runtime=replace(CPU, workers=1))
    return load_run(made.folder, raw=True)


def replace_file(run: Run, row: int) -> bytes:
    """Put another picture of another colour in the place of one, and return what it was."""
    path = Path(run.paths()[row])
    old = path.read_bytes()
    path.write_bytes(picture(row, OTHER))
    return old


@pytest.fixture
def noted() -> list[str]:
    return []


@pytest.fixture
def client(run: Run, noted: list[str]) -> Iterator[Client]:
    with serving(open_session(load_run(run.folder, raw=True), runtime=Runtime(workers=1, note=noted.append))) as client:
        yield client.enter()


def colour_of(body: bytes) -> tuple[int, ...]:
    """The colour in the middle of a picture, in steps that compression does not change."""
    image = Image.open(BytesIO(body)).convert("RGB")
    return tuple(round(each / 64) for each in image.getpixel((image.width // 2, image.height // 2)))  # type: ignore[union-attr]


def refused(client: Client, version: int, **action: Any) -> str:
    answer = client.decide(version, **action)
    assert answer.code == 410, answer.body
    assert client.get("/api/version") == {"version": version}
    return str(answer.json()["message"])


def test_a_file_that_changed_before_the_review_is_named_and_cannot_be_decided_about(run: Run) -> None:
    replace_file(run, CHANGED)
    Path(run.paths()[GONE]).unlink()
    noted = list[str]()
    with serving(open_session(load_run(run.folder, raw=True), runtime=Runtime(workers=1, note=noted.append))) as client:
        client.enter()
        (note,) = noted
        assert "1 file has changed since it was sorted: '06.png'; 1 file no longer exists: '10.png'" in note
        lost = client.get("/api/overview")["lost"]
        assert lost == {"changed": 1, "missing": 1, "unreadable": 0, "files": ["06.png", "10.png"]}
        for path in ("thumb", "image"):
            assert (client.ask("GET", f"/{path}/{CHANGED}").code, client.ask("GET", f"/{path}/{GONE}").code) == (
                410,
                410,
            )
        found = client.get("/api/category/2")
        assert {row for row, lost in zip(found["rows"], found["lost"], strict=True) if lost} == {CHANGED, GONE}
        message = refused(client, 0, do="accept", rows=[2, CHANGED])
        assert "1 file has changed since it was sorted: '06.png'. Put the earlier files back" in message
        for verb in ("move", "reject"):
            refused(client, 0, do=verb, rows=[GONE], category=2 if verb == "reject" else 1)
        for verb in ("create", "split"):
            refused(client, 0, do=verb, rows=[CHANGED, GONE], name="fern")
        refused(client, 0, do="page", category=2, rows=[2, CHANGED], wrong=[])
        assert not (run.folder / DECISIONS).exists()


def test_no_question_is_about_what_cannot_be_seen(run: Run) -> None:
    gone = {row for row in range(40) if row % 4 == 2 and row != 2}
    for row in gone:
        replace_file(run, row)
    with serving(open_session(load_run(run.folder, raw=True), runtime=Runtime(workers=1))) as client:
        client.enter()
        asked = {row for item in client.get("/api/queue")["items"] for rows in item["rows"] for row in rows}
        found = client.get("/api/grow/2")
        assert not gone & {
            *asked,
            *found["typical"],
            *found["page"],
            *client.get("/api/overview")["categories"][2]["typical"],
        }
        assert not gone & {row for part in client.get("/api/parts/3?parts=2")["parts"] for row in part}
        # Confirming a category as a whole confirms what can be seen of it.
        assert client.decide(0, do="accept category", category=2).json()["words"] == "Confirmed 1 image"
        assert client.decide(1, do="undo").code == 200
        assert client.decide(2, do="accept category", category=2, shown=[]).json()["words"].endswith("1 unseen")
        assert client.decide(3, do="undo").code == 200
        assert client.decide(4, do="accept category", category=2, shown=[2]).json()["words"] == "Confirmed 1 image"
        assert client.decide(5, do="accept category", category=3).json()["words"] == "Confirmed all of 'new 2'"
    reviewed = load_run(run.folder).assignments.reviewed
    assert [row for row in range(40) if row % 4 == 2 and reviewed[row] == ReviewState.CONFIRMED] == [2]


def test_a_file_that_changes_during_a_review_is_noticed_and_so_is_one_that_comes_back(run: Run, client: Client) -> None:
    before = client.ask("GET", f"/thumb/{CHANGED}")
    assert (before.code, colour_of(before.body)) == (200, (1, 1, 3))
    old = replace_file(run, CHANGED)
    assert "'06.png'" in refused(client, 0, do="accept", rows=[CHANGED]), "between seeing and deciding"
    assert client.get("/api/overview")["lost"]["changed"] == 1
    again = client.ask("GET", f"/thumb/{CHANGED}", If_None_Match=before.headers["etag"])
    assert again.code == 410, "not even what the browser has kept"
    Path(run.paths()[CHANGED]).write_bytes(old)
    assert client.ask("GET", f"/thumb/{CHANGED}").body == before.body
    assert client.get("/api/overview")["lost"]["changed"] == 0
    os.utime(run.paths()[GONE])  # touched, not changed
    assert client.decide(0, do="accept", rows=[CHANGED, GONE]).code == 200


def test_copies_of_a_file_that_changed_are_decided_about(run: Run, client: Client) -> None:
    replace_file(run, COPY)
    assert client.ask("GET", f"/thumb/{COPY}").code == 410
    assert colour_of(client.ask("GET", f"/thumb/{COPIED}").body) == (1, 1, 3)
    assert client.decide(0, do="accept", rows=[COPIED]).code == 200
    replace_file(run, COPIED)
    assert "2 files have changed since they were sorted" in refused(client, 1, do="accept", rows=[COPIED])


def test_the_wrong_picture_is_shown_nowhere_even_if_the_right_one_is_not_stored(run: Run) -> None:
    old = replace_file(run, CHANGED)
    for index in run.folder.glob("cache/pixels/*/index.jsonl"):
        index.unlink()
    with serving(open_session(load_run(run.folder, raw=True), runtime=Runtime(workers=1))) as client:
        client.enter()
        assert client.ask("GET", f"/thumb/{CHANGED}").code == 410
        Path(run.paths()[CHANGED]).write_bytes(old)
        assert client.ask("GET", f"/thumb/{CHANGED}").code == 404, "its pixels are read when the review starts"


def test_the_report_shows_what_was_sorted_and_says_what_has_changed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = list[PixelStore]()

    def make(run: Run, store: PixelStore, *_: object, **__: object) -> bytes:
        drawn.append(store)
        return b"page"

    monkeypatch.setattr("sortal.web.report.report.make_report", make)
    replace_file(run, CHANGED)
    noted = list[str]()
    redraw(run.folder, runtime=replace(CPU, workers=1, note=noted.append))
    (store,) = drawn
    assert store.image(CHANGED)[-1, -1].tolist() == [*COLOURS[2]]
    (note,) = [each for each in noted if "changed" in each]
    assert note.startswith("1 file changed since the run was made, or cannot be read: '06.png'.")


def test_a_page_shows_which_files_have_changed(run: Run, browser: Browser) -> None:
    replace_file(run, CHANGED)
    with serving(open_session(load_run(run.folder, raw=True), runtime=Runtime(workers=1))) as client:
        page = browser.new_context().new_page()
        page.set_default_timeout(60_000)
        page.goto(client.server.link())
        page.wait_for_selector(".warning")
        assert "1 file is not what was sorted: 1 changed (06.png)." in page.inner_text(".warning")
        page.goto(f"{client.origin}/#/category/2")
        page.wait_for_selector(".cell .lost")
        assert page.inner_text(".cell .lost") == "The file has changed since it was sorted"
        page.keyboard.press("Control+a")
        page.wait_for_function("() => document.querySelector('.chosen').textContent === '9 of 10 chosen'")
        Path(run.paths()[GONE]).unlink()  # which this page does not know yet
        page.keyboard.press("c")
        page.wait_for_function("() => document.getElementById('toast').textContent.includes(\"10.png\")")
        page.wait_for_function("() => document.querySelectorAll('.cell .lost').length === 2")
        page.wait_for_function("() => document.querySelector('.chosen').textContent === '8 of 10 chosen'")
        page.keyboard.press("c")
        page.wait_for_function("() => document.getElementById('toast').textContent.includes('Confirmed 7 images')")
        page.context.close()
