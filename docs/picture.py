"""Take the picture of a report that the README shows: python docs/picture.py digits-run/report.html docs/report.png"""

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

VIEWPORT = (1440, 720)  # CSS pixels
BOTTOM = "#categories"  # where the picture ends: at its top
COLOURS, LIMIT = 256, 300_000  # of the palette; bytes
# Leave out the date, notes, doubts and navigation; reduce the space between sections.
STYLE = """
#notes, #look, nav, time { display: none !important; }
header { padding-top: 1.5rem; padding-bottom: 0; }
section { padding-top: 1.5rem; }
"""
SHORTEN_PATHS = """root => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(root, "");
}"""


def take(report: Path) -> Image.Image:
    """Render what the report leads with, with paths relative to the folder of the run."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    width, height = VIEWPORT
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
        page.goto(report.resolve().as_uri())
        page.add_style_tag(content=STYLE)
        page.evaluate(SHORTEN_PATHS, f"{report.resolve().parents[1]}/")
        end = page.evaluate("selector => document.querySelector(selector).getBoundingClientRect().top", BOTTOM)
        picture = page.screenshot(full_page=True, clip={"x": 0, "y": 0, "width": width, "height": end + 24})
        browser.close()
    return Image.open(io.BytesIO(picture)).convert("RGB")


if __name__ == "__main__":
    source, out = map(Path, sys.argv[1:])
    take(source).quantize(COLOURS, kmeans=1, dither=Image.Dither.NONE).save(out, optimize=True)
    if out.stat().st_size > LIMIT:
        sys.exit(f"The picture must have at most {LIMIT:,} bytes, got {out.stat().st_size:,}.")
