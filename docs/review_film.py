"""Take the pictures of a review, and film it: python docs/review_film.py digits-run docs"""

import shutil
import sys
from collections import Counter
from pathlib import Path

from picture import check_size, opened, save, served, shot
from PIL import Image
from playwright.sync_api import Locator, Page, ViewportSize

import sortal

PICTURE: ViewportSize = {"width": 1400, "height": 860}  # CSS pixels
VIEWPORT: ViewportSize = {"width": 1000, "height": 760}  # of the film
WIDTH, QUALITY, LIMIT = 800, 70, 2_000_000  # of the picture: pixels, of WebP, bytes
CHOSEN, ANSWERS = 3, 9  # images chosen in the picture of a category; answers in the film
SHOW_KEY = """text => {
  document.getElementById("pressed")?.remove();
  const key = document.createElement("div");
  key.id = "pressed";
  key.textContent = text;
  key.style.cssText = "position:fixed;left:50%;bottom:14px;transform:translateX(-50%);padding:.4em 1em;z-index:99;"
    + "border-radius:.5em;background:#263238;color:#fff;font:600 22px system-ui";
  key.hidden = !text;
  document.body.append(key);
}"""
LEFT = """() => document.querySelector(".state")?.textContent.startsWith("Nothing is left")"""
ASKED = """text => document.querySelector("#names[open]")
  || document.querySelector(".state")?.textContent.startsWith("Nothing is left")
  || (document.querySelector(".answers") && document.querySelector(".question").innerText !== text)"""

OTHER_HEADING = """text => document.querySelector(".state")?.textContent.startsWith("Nothing is left")
  || (document.querySelector(".answers") && document.querySelector(".question h1")?.innerText !== text)"""

DRAWN = """() => [...document.querySelectorAll(".cell")]
  .filter((cell) => cell.getBoundingClientRect().top < innerHeight && cell.getBoundingClientRect().bottom > 0)
  .every((cell) => cell.querySelector("img")?.complete)"""


class Film:
    def __init__(self, page: Page) -> None:
        self.page, self.frames, self.durations = page, list[Image.Image](), list[int]()

    def take(self, milliseconds: int, key: str = "") -> None:
        """Add a frame, with the key that is about to be pressed."""
        self.page.wait_for_function(DRAWN)
        self.page.evaluate(SHOW_KEY, key)
        picture = shot(self.page)
        height = round(WIDTH * picture.height / picture.width)
        self.frames.append(picture.resize((WIDTH, height), Image.Resampling.LANCZOS))
        self.durations.append(milliseconds)

    def save(self, out: Path) -> None:
        first, *rest = self.frames
        first.save(out, save_all=True, append_images=rest, duration=self.durations, loop=0, quality=QUALITY, method=4)
        check_size(out, LIMIT)


def record(film: Film, names: dict[str, str], truth: list[str]) -> None:
    """Answer the first questions of a review with the keys of a person who sees what is true."""
    page = film.page
    film.take(2500, "q: one question after another")
    page.keyboard.press("q")
    for _ in range(ANSWERS):
        page.wait_for_function(ASKED, arg="")
        page.wait_for_load_state("networkidle")
        if page.evaluate(LEFT):
            break
        page.evaluate("scrollTo(0, 0)")
        film.take(1400)
        heading = page.locator(".question h1").inner_text()
        key, word = answer(page, names, truth)
        film.take(1000, f"{key}: {word}")
        asked = page.locator(".question").inner_text()  # once buttons say what they do with the chosen
        page.keyboard.press(key)
        page.wait_for_function(ASKED, arg=asked)
        if page.locator("#names[open]").count():
            name = next(right for old, right in names.items() if old in asked)
            film.take(900)
            page.keyboard.type(name)
            film.take(1100, f"its name: {name}")
            page.keyboard.press("Enter")
            page.wait_for_selector("#names", state="hidden")
            page.wait_for_function(OTHER_HEADING, arg=heading)
    looked_at(page, "", ".queue a, .queue .state")
    film.take(3000)


def answer(page: Page, names: dict[str, str], truth: list[str]) -> tuple[str, str]:
    """The key for the question that is shown, after choosing what is wrong where that is one image or two."""
    heading = page.locator(".question h1").inner_text()
    if "two" in heading or "same" in heading:
        return "n", "no"
    cells, shown = cells_of(page, truth)
    right = next((name for old, name in names.items() if old in heading), Counter(shown).most_common(1)[0][0])
    wrong = [cell for cell, each in zip(cells, shown, strict=True) if each != right]
    if len(wrong) > 2:
        return ("m", "most are right") if 4 * len(wrong) <= len(cells) else ("n", "no")
    for cell in wrong:
        cell.click()
    return "y", "yes, but for what is chosen" if wrong else "yes"


def cells_of(page: Page, truth: list[str]) -> tuple[list[Locator], list[str]]:
    """The images that are shown, and what each of them truly is."""
    cells = page.locator(".cell[data-row]").all()
    return cells, [truth[int(cell.get_attribute("data-row") or 0)] for cell in cells]


def main(folder: Path, out: Path) -> None:
    """Review a copy of a run whose truth is known; write the pictures and the film."""
    run = sortal.load_run(folder)
    table = run.to_pandas()
    truth = [str(each) for each in table.truth]
    names = {
        category.name: Counter(table.truth[table.category_id == category.id]).most_common(1)[0][0]
        for category in run.categories
        if category.kind == "new"
    }
    copy = Path("build") / folder.name
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    with served("review", str(copy)) as link, opened(link, PICTURE) as page:
        page.wait_for_selector(".queue a")
        doubtful = max(run.categories, key=lambda each: (each.kind == "new", each.unsure))
        looked_at(page, f"category/{doubtful.id}", ".cell img")
        wrong = [cell for cell, each in zip(*cells_of(page, truth), strict=True) if each != names[doubtful.name]]
        for cell in wrong[:CHOSEN]:
            cell.click()
        save(shot(page), out / "review.png")
        looked_at(page, "", ".queue a")
        page.keyboard.press("q")
        page.wait_for_function(ASKED, arg="")
        page.wait_for_load_state("networkidle")
        answer(page, names, truth)  # chooses what is wrong, and presses nothing
        save(shot(page), out / "question.png")
        page.set_viewport_size(VIEWPORT)
        looked_at(page, "", ".queue a")
        film = Film(page)
        record(film, names, truth)
        film.save(out / "review.webp")


def looked_at(page: Page, place: str, there: str) -> None:
    """Go to a place of the review, and wait until it is drawn."""
    page.goto(f"{page.url.partition('#')[0]}#/{place}")
    page.wait_for_selector(there)
    page.wait_for_load_state("networkidle")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
