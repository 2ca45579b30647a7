"""Classes that come later: from an update, over a candidate in the review, to a category that predict knows."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support import tiny_folder
from support.browsing import Open, press, says
from support.planted import planted
from support.reviews import Client, serving, session_of
from support.runtimes import CPU

from sortal.discovery.pipeline import discover
from sortal.discovery.prediction import Prediction, predict
from sortal.images.review_states import ReviewState
from sortal.reviews.loading import load_run
from sortal.runs.run import DOUBTFUL_STATUSES, Run
from sortal.web.app.routes import static_file

if TYPE_CHECKING:
    pass

X, OF = planted([90, 90, 90, 60])  # the last class comes later
LATER = np.flatnonzero(OF == 3)
PARTS = {"first": LATER[:20], "second": LATER[20:40], "third": LATER[40:]}


def names(rows: Any) -> list[str]:
    return [f"{row}.jpg" for row in rows]


def sorted_later(run: Path, part: str, *, update: bool = False) -> Prediction:
    """Sort a part of the later class, and with it ten more images of each other class."""
    start = 60 + 10 * [*PARTS].index(part)
    others = [np.flatnonzero(each == OF)[start : start + 10] for each in range(3)]
    rows = np.concatenate([PARTS[part], *others])
    with tiny_folder.quickly():
        return predict(run, features=X[rows], files=names(rows), update=update, progress=False, runtime=CPU)


@pytest.fixture(scope="module")
def updated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three classes, to which images of a fourth were added."""
    out = tmp_path_factory.mktemp("later") / "run"
    rows = np.concatenate([np.flatnonzero(each == OF)[:60] for each in range(3)])
    labels = [f"class {OF[row]}" if OF[row] < 2 and at % 2 else None for at, row in enumerate(rows.tolist())]
    given: Any = {"features": X[rows], "files": names(rows), "labels": labels}
    with tiny_folder.quickly():
        discover(**given, out=out, method="kmeans", k=3, n_init=2, progress=False, runtime=CPU)
    sorted_later(out, "first", update=True)
    return out


@pytest.fixture
def run(updated: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(updated, tmp_path / "run"))


@pytest.fixture
def client(run: Path) -> Iterator[Client]:
    with serving(session_of(load_run(run, raw=True))) as client:
        yield client


def rows_of_part(run: Run, part: str) -> list[int]:
    wanted = {*names(PARTS[part])}
    return [row for row, file in enumerate(run.assignments.files) if file in wanted]


def is_later(found: Prediction) -> NDArray[np.bool_]:
    return np.array([OF[int(file.partition(".")[0])] == 3 for file in found.assignments.files])


def test_a_class_stays_doubtful_however_much_of_it_was_added(run: Path) -> None:
    """What was added of it, in doubt, does not make more of it look familiar."""
    sorted_later(run, "second", update=True)
    found = sorted_later(run, "third")
    flagged = np.isin(found.assignments.status, DOUBTFUL_STATUSES)
    assert flagged[is_later(found)].all()
    assert flagged[~is_later(found)].mean() < 0.25
    assert max(found.assignments.confidence[is_later(found)]) < 0.5


def test_a_candidate_becomes_a_class_that_predict_knows(run: Path, client: Client, opened: Open) -> None:
    before = load_run(run)
    page = opened(client)
    small = bytes(static_file("review/candidates.js").body).decode().replace("const PAGE = 40;", "const PAGE = 12;")
    page.route("**/candidates.js", lambda route: route.fulfill(body=small, content_type="text/javascript"))
    page.reload()
    page.get_by_role("link", name="look like something new").click()
    page.wait_for_selector(".answers")
    assert page.locator("h1").inner_text() == "20 images look like something new"
    first = page.locator(".grid").first
    assert page.locator(".answers button").first.inner_text().startswith("A new class of 12: name it")
    page.click("text=Show more")
    page.locator(".answers button", has_text="A new class of 20: name it").wait_for()
    assert not page.locator("text=Show more").count()
    shown = first.locator(".cell").evaluate_all("cells => cells.map((cell) => Number(cell.dataset.row))")
    assert {*shown} == {*rows_of_part(before, "first")}
    first.locator(".cell").first.click()  # the most typical, which is left out
    assert page.locator(".answers button").first.inner_text().startswith("A new class of 19: name it")
    press(page, "y")
    page.locator("#name").fill("sunflower")
    press(page, "Enter")
    says(page, "sunflower")
    found = load_run(run)
    (made,) = [each for each in found.categories if each.name == "sunflower"]
    a = found.assignments
    assert {*np.flatnonzero(a.category_id == made.id).tolist()} == {*shown[1:]}
    assert {*a.reviewed[shown[1:]].tolist()} == {ReviewState.MOVED}
    assert a.reviewed[shown[0]] == ReviewState.OPEN
    later = sorted_later(run, "second")
    np.testing.assert_array_equal(later.assignments.category_id == made.id, is_later(later))
    assert (later.assignments.status[is_later(later)] == "new").mean() > 0.5
    assert "candidate" not in [each["kind"] for each in client.enter().get("/api/queue")["items"]], "one is left"


@pytest.mark.thorough
def test_a_candidate_that_is_nothing_new_stays_or_goes_to_a_category_or_the_bin(client: Client, opened: Open) -> None:
    page = opened(client)
    (item,) = [each for each in client.enter().get("/api/queue")["items"] if each["kind"] == "candidate"]
    page.get_by_role("link", name="look like something new").click()
    page.wait_for_selector(".answers")
    rows = item["rows"][0]
    press(page, "n")  # not one class
    says(page, "Left 20 images where they are: no new class")
    page.wait_for_function("() => !document.querySelector('h1')?.innerText.includes('something new')")
    again = session_of(client.session.run)
    assert "candidate" not in [each["kind"] for each in again.queue()["items"]], "nor after a restart"
    press(page, "Control+z")
    page.get_by_text("images look like something new").first.wait_for()
    page.wait_for_selector(".similar")
    page.wait_for_selector(".answers")
    answers = page.locator(".answers")
    assert f"All {len(rows)} into the bin" in answers.inner_text()
    for at in (0, 1):
        page.locator(".grid").first.locator(".cell").nth(at).click()
    assert "The 2 chosen into the bin" in answers.inner_text()
    press(page, "x")
    says(page, "Put 2 images into the bin")
    page.goto(f"{client.origin}/#/")
    page.get_by_role("link", name=f"{len(rows) - 2} images look like something new").click()
    page.wait_for_selector(".similar")
    page.wait_for_selector(".answers")
    (item,) = [each for each in client.get("/api/queue")["items"] if each["kind"] == "candidate"]
    press(page, "s")
    says(page, "Moved")
    review = client.session._review
    assert np.flatnonzero(review.binned).tolist() == sorted(rows[:2])
    assert {*review.category[rows[2:]].tolist()} == {*item["categories"]}
