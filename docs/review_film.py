"""Record the review of a run as an animated picture: python docs/review_film.py digits-run docs/review.webp"""

import io
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, ViewportSize, sync_playwright

import sortal

VIEWPORT: ViewportSize = {"width": 1000, "height": 760}  # CSS pixels
WIDTH, QUALITY, LIMIT = 800, 70, 2_000_000  # of the picture: pixels, of WebP, bytes
ANSWERS = 9
PATIENCE = 120_000  # milliseconds
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


class Film:
    def __init__(self, page: Page) -> None:
        self.page, self.frames, self.durations = page, list[Image.Image](), list[int]()

    def take(self, milliseconds: int, key: str = "") -> None:
        """Add a frame, with the key that is about to be pressed."""
        self.page.evaluate(SHOW_KEY, key)
        picture = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
        height = round(WIDTH * picture.height / picture.width)
        self.frames.append(picture.resize((WIDTH, height), Image.Resampling.LANCZOS))
        self.durations.append(milliseconds)

    def save(self, out: Path) -> None:
        first, *rest = self.frames
        first.save(out, save_all=True, append_images=rest, duration=self.durations, loop=0, quality=QUALITY, method=4)
        if out.stat().st_size > LIMIT:
            sys.exit(f"The picture must have at most {LIMIT:,} bytes, got {out.stat().st_size:,}.")


def record(film: Film, names: dict[str, str], truth: list[str]) -> None:
    """Answer the first questions of a review with the keys of a person who sees what is true."""
    page = film.page
    page.wait_for_selector(".queue a")
    page.wait_for_load_state("networkidle")
    film.take(2500, "q: one question after another")
    page.keyboard.press("q")
    for _ in range(ANSWERS):
        page.wait_for_function(ASKED, arg="")
        page.wait_for_load_state("networkidle")
        if page.evaluate(LEFT):
            break
        asked = page.locator(".question").inner_text()
        page.evaluate("scrollTo(0, 0)")
        film.take(1400)
        key, word = answer(page, names, truth)
        film.take(1000, f"{key}: {word}")
        page.keyboard.press(key)
        page.wait_for_function(ASKED, arg=asked)
        if page.locator("#names[open]").count():
            name = next(right for old, right in names.items() if old in asked)
            film.take(900)
            page.keyboard.type(name)
            film.take(1100, f"its name: {name}")
            page.keyboard.press("Enter")
            page.wait_for_selector("#names", state="hidden")
    page.goto(page.url.partition("#")[0] + "#/")
    page.wait_for_selector(".queue a, .queue .state")
    page.wait_for_load_state("networkidle")
    film.take(3000)


def answer(page: Page, names: dict[str, str], truth: list[str]) -> tuple[str, str]:
    """The key for the question that is shown, after choosing what is wrong where that is one image or two."""
    heading = page.locator(".question h1").inner_text()
    if "two" in heading or "same" in heading:
        return "n", "no"
    cells = page.locator(".cell[data-row]").all()
    shown = [truth[int(cell.get_attribute("data-row") or 0)] for cell in cells]
    right = next((name for old, name in names.items() if old in heading), Counter(shown).most_common(1)[0][0])
    wrong = [cell for cell, each in zip(cells, shown, strict=True) if each != right]
    if len(wrong) > 2:
        return ("m", "most are right") if 4 * len(wrong) <= len(cells) else ("n", "no")
    for cell in wrong:
        cell.click()
    return "y", "yes, but for what is chosen" if wrong else "yes"


def main(folder: Path, out: Path) -> None:
    """Review a copy of a run whose truth is known, and write the film."""
    run = sortal.load_run(folder)
    table = run.to_pandas()
    names = {
        category.name: Counter(table.truth[table.category_id == category.id]).most_common(1)[0][0]
        for category in run.categories
        if category.kind == "new"
    }
    copy = Path("build") / folder.name
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    words = [sys.executable, "-m", "sortal", "review", str(copy), "--no-browser"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            link = server.stdout.readline().partition(": ")[2].strip()
            chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
                context = browser.new_context(viewport=VIEWPORT, color_scheme="light", reduced_motion="reduce")
                context.set_default_timeout(PATIENCE)
                film = Film(context.new_page())
                film.page.goto(link)
                record(film, names, [str(each) for each in table.truth])
                film.save(out)
                browser.close()
        finally:
            server.terminate()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
