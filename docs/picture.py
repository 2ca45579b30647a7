"""Take pictures of pages; here that of a report: python docs/picture.py digits-run/report.html docs/report.png"""

import io
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import FloatRect, Page, ViewportSize, sync_playwright

VIEWPORT: ViewportSize = {"width": 1440, "height": 720}  # CSS pixels
BOTTOM = "#categories"  # where the picture of a report ends: at its top
COLOURS, LIMIT = 256, 300_000  # of the palette; bytes
PATIENCE = 60_000  # milliseconds
# Leave out the date, notes, doubts and navigation; reduce the space between sections.
STYLE = """
#notes, #look, nav, time { display: none !important; }
header { padding-top: 1.5rem; padding-bottom: 0; }
section { padding-top: 1.5rem; }
"""
REPLACE_TEXT = """([old, now]) => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(old, now);
}"""


@contextmanager
def opened(address: str, viewport: ViewportSize) -> Iterator[Page]:
    """Open a page in the light scheme and without motion."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        context = browser.new_context(viewport=viewport, color_scheme="light", reduced_motion="reduce")
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        page.goto(address)
        yield page
        browser.close()


@contextmanager
def served(*words: str) -> Iterator[str]:
    """Start a command that serves pages, and return the link that it prints."""
    command = [sys.executable, "-m", "sortal", *words, "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().partition(": ")[2].strip()
        finally:
            server.terminate()


def shot(page: Page, clip: FloatRect | None = None) -> Image.Image:
    """Take what is in the window, or a part of the page."""
    taken = page.screenshot(full_page=True, clip=clip) if clip else page.screenshot()
    return Image.open(io.BytesIO(taken)).convert("RGB")


def save(picture: Image.Image, out: Path, colours: int = COLOURS, limit: int = LIMIT) -> None:
    """Write a picture with a palette of so many colours."""
    picture.quantize(colours, kmeans=1, dither=Image.Dither.NONE).save(out, optimize=True)
    check_size(out, limit)


def check_size(out: Path, limit: int) -> None:
    if out.stat().st_size > limit:
        sys.exit(f"A picture must have at most {limit:,} bytes, got {out.stat().st_size:,} for {out}.")


def take(report: Path) -> Image.Image:
    """Render what the report leads with, with paths relative to the folder of the run."""
    with opened(report.resolve().as_uri(), VIEWPORT) as page:
        page.add_style_tag(content=STYLE)
        page.evaluate(REPLACE_TEXT, [f"{report.resolve().parents[1]}/", ""])
        end = page.evaluate("selector => document.querySelector(selector).getBoundingClientRect().top", BOTTOM)
        return shot(page, {"x": 0, "y": 0, "width": VIEWPORT["width"], "height": end + 24})


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    save(take(source), target)
