"""Take the pictures of docs/app.md, from a folder of images to an export: python docs/app_pictures.py FOLDER docs

FOLDER is the one to choose from; it has the digits of `sortal sample` in pictures/digits.
"""

import io
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from PIL import Image
from playwright.sync_api import FloatRect, Page, ViewportSize, sync_playwright

VIEWPORT: ViewportSize = {"width": 1000, "height": 640}  # CSS pixels
COLOURS, LIMIT = 64, 150_000  # of the palette; bytes
PATIENCE = 600_000  # milliseconds
HIDE_PATHS = """top => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(top, "/home/you");
}"""


def walk(page: Page, link: str, take: Callable[[Page, str], None]) -> None:
    """Go the whole way, and take a picture at each step."""
    page.goto(link)
    page.click(".folders a:has-text('pictures')")
    page.click(".folders a:has-text('digits')")
    page.wait_for_selector("text=images here.")
    take(page, "folder")
    page.click("text=Sort this folder")
    page.wait_for_selector(".costs dd:has-text('convnet')")
    take(page, "look")
    page.click("text=Start sorting")
    page.wait_for_selector(".during >> text=/left in this step/")
    take(page, "sorting")
    page.wait_for_selector("h1:has-text('digits-run')")
    with page.context.expect_page() as tab:
        page.click("button:has-text('Review')")
    tab.value.wait_for_selector(".tiles-of img")
    tab.value.wait_for_load_state("networkidle")
    take(tab.value, "review")
    page.click("button:has-text('Export')")
    page.wait_for_selector("text=images written as folders")
    take(page, "export")


def main(folder: Path, out: Path) -> None:
    """Serve the start page of a folder, and write the pictures."""

    def take(page: Page, name: str) -> None:
        page.evaluate(HIDE_PATHS, str(folder.resolve()))
        page.evaluate("scrollTo(0, 0)")
        height = page.evaluate("document.querySelector('main').scrollHeight") + 60
        clip: FloatRect = {"x": 0, "y": 0, "width": VIEWPORT["width"], "height": max(min(height, 1100), 300)}
        picture = Image.open(io.BytesIO(page.screenshot(full_page=True, clip=clip))).convert("RGB")
        path = out / f"app-{name}.png"
        picture.quantize(COLOURS, kmeans=1, dither=Image.Dither.NONE).save(path, optimize=True)
        if path.stat().st_size > LIMIT:
            sys.exit(f"A picture must have at most {LIMIT:,} bytes, got {path.stat().st_size:,} for {path}.")

    words = [sys.executable, "-m", "sortal", "app", str(folder), "--no-browser"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            link = server.stdout.readline().partition(": ")[2].strip()
            chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
                context = browser.new_context(viewport=VIEWPORT, color_scheme="light", reduced_motion="reduce")
                context.set_default_timeout(PATIENCE)
                walk(context.new_page(), link, take)
                browser.close()
        finally:
            server.terminate()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
