"""The site that `make docs` builds: strict, complete, readable offline, and without broken links."""

from __future__ import annotations

import inspect
import re
import shutil
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
from support.fork_server import ForkServer

import sortal

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FROM_OUTSIDE = {"README.md": "index", "CHANGELOG.md": "changelog", "CONTRIBUTING.md": "contributing"}
FROM_OUTSIDE["benchmarks/RESULTS.md"] = "results"
MADE = ["api"]  # from docstrings
ARCHIVE = [f"archive/{path.stem}" for path in (ROOT / "benchmarks" / "archive").glob("*.md")]
PHONE = 390  # CSS pixels
LEFT_OVER = re.compile(r"```|\]\(|\*\*|^ *(?:[-*+]|\d+\.|\|) ", flags=re.MULTILINE)  # Markdown rendered as text


class Html(HTMLParser):
    """The links of a page, the files it loads, its anchors, the text of its paragraphs, and its navigation links."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: list[str] = []
        self.navigation: list[str] = []
        self.paragraphs: list[str] = []
        self._navs, self._codes, self._in_paragraph = 0, 0, False
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        of = {name: value or "" for name, value in attrs}
        self.anchors += [of[name] for name in ("id", "name") if name in of]
        self.loads += [of[name] for name in ("src", "srcset", "poster", "data") if name in of]
        if "href" in of:
            (self.loads if tag == "link" else self.links).append(of["href"])
            self.navigation += [of["href"]] if self._navs else []
        self._navs += tag == "nav"
        self._codes += tag == "code"
        if tag == "p":
            self._in_paragraph = True
            self.paragraphs.append("")

    def handle_endtag(self, tag: str) -> None:
        self._navs -= tag == "nav"
        self._codes -= tag == "code"
        self._in_paragraph &= tag != "p"

    def handle_data(self, data: str) -> None:
        if self._in_paragraph and not self._codes:
            self.paragraphs[-1] += data


def build_in_child(root: str, site: str) -> int:
    """In a child, which has PyTorch loaded, for the reference of the API: build a site."""
    from mkdocs.__main__ import cli

    cli(["build", "--config-file", f"{root}/mkdocs.yml", "--site-dir", site], standalone_mode=False)
    return 0


def build(server: ForkServer, root: Path, site: Path) -> tuple[int, str]:
    """Build a site; return the exit code and what was written to standard error."""
    before = len(server.errors.read_text())
    ended = server.run(build_in_child, str(root), str(site), codes=[0, 1])
    return ended.code, server.errors.read_text()[before:]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    code, said = build(fork_server, ROOT, folder)
    assert code == 0, said
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Html]:
    """Pages by path within the site, without 404.html, which needs a server."""
    found = {path.relative_to(site).as_posix(): Html(path) for path in sorted(site.rglob("*.html"))}
    del found["404.html"]
    return found


@pytest.mark.thorough
def test_the_site_and_its_navigation_have_every_page_and_nothing_else(site: Path, pages: dict[str, Html]) -> None:
    names = [path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")]
    wanted = sorted(f"{name}.html" for name in [*names, *FROM_OUTSIDE.values(), *ARCHIVE, *MADE])
    assert sorted(pages) == wanted
    assert {link for link in pages["index.html"].navigation if not link.startswith("#")} == set(wanted)
    assert list(site.rglob("*.py")) == list(site.rglob("*.md")) == list(site.rglob("__pycache__")) == []


def targets(page: str, html: Html) -> Iterator[tuple[str, str]]:
    """Yield (path within the site, anchor) of each link and each loaded file, except on other hosts."""
    for link in [*html.links, *html.loads]:
        parts = urlsplit(link)
        if not parts.scheme and not parts.netloc:
            path = (Path("/") / page).parent / unquote(parts.path) if parts.path else Path("/") / page
            yield Path(path).resolve().relative_to("/").as_posix(), unquote(parts.fragment)


@pytest.mark.thorough
def test_links_and_anchors_resolve(site: Path, pages: dict[str, Html]) -> None:
    count = 0
    for page, html in pages.items():
        for path, anchor in targets(page, html):
            count += 1
            assert (site / path).is_file(), f"{page}: {path}"
            assert not anchor or anchor in pages[path].anchors, f"{page}: {path}#{anchor}"
    assert count > 10 * len(pages), "links were found"
    assert "archive/method.html#flowers-from-a-folder-to-categories" in pages["protocols.html"].links
    assert {"backbones.html#the-default", "results.html#the-demo"} <= set(pages["index.html"].links)


@pytest.mark.thorough
def test_pages_need_no_network(site: Path, pages: dict[str, Html]) -> None:
    loads = [load for html in [*pages.values(), Html(site / "404.html")] for load in html.loads]
    assert any(load.endswith(".css") for load in loads)
    assert [load for load in loads if urlsplit(load).scheme or urlsplit(load).netloc] == []
    styles = [path.read_text(encoding="utf-8") for path in [*site.rglob("*.css"), *site.rglob("*.html")]]
    urls = [url for text in styles for url in re.findall(r"""(?:url\(|@import\s*["'])\s*["']?([^"')\s;]+)""", text)]
    assert urls
    assert [url for url in urls if urlsplit(url).scheme not in ("", "data") or urlsplit(url).netloc] == []


@pytest.mark.thorough
def test_the_reference_has_every_public_name(site: Path, pages: dict[str, Html]) -> None:
    text = unescape(re.sub(r"<[^>]+>", "", (site / "api.html").read_text(encoding="utf-8")))
    for name in set(sortal.__all__) - {"__version__"}:
        assert name.lower() in pages["api.html"].anchors
        first = (inspect.getdoc(getattr(sortal, name)) or "").split(". ")[0].split("\n")[0]
        assert " ".join(first.replace("`", "").split()) in " ".join(text.split()), name
    assert {"runto_pandas", "imagesethide_labels", "metricsevaluate"} <= set(pages["api.html"].anchors)
    returned = {"assignments", "category", "exportresult", "importresult", "kchoice", "model", "prediction"}
    assert returned <= set(pages["api.html"].anchors), "what public calls return, and what a run consists of"
    assert "runtimeprogress" not in pages["api.html"].anchors, "it is a field"


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["index", "tutorial", "review", "commands", "python", "api", "claims"])
def test_no_page_is_wider_than_a_phone(site: Path, browser: Browser, name: str) -> None:
    """Of pages with wide tables and code; without scripts, which only make what is too wide scroll, and pictures."""
    context = browser.new_context(viewport={"width": PHONE, "height": 800}, java_script_enabled=False)
    page = context.new_page()
    page.route("**/*", lambda route: route.abort() if route.request.resource_type == "image" else route.continue_())
    page.goto((site / f"{name}.html").as_uri())
    width = page.evaluate("document.documentElement.scrollWidth")
    context.close()
    assert width <= PHONE


def test_no_markdown_is_left_in_the_text(pages: dict[str, Html]) -> None:
    """Unlike code hosts, MkDocs needs an empty line before a list, and knows no code blocks within lists."""
    left = [(page, text) for page, html in pages.items() for text in html.paragraphs if LEFT_OVER.search(text)]
    assert left == []


def test_the_gallery_is_drawn_the_same_every_time(tmp_path: Path) -> None:
    pytest.importorskip("playwright", reason="the pictures are taken with it")
    import gallery

    for name, (draw, kinds, count) in gallery.COLLECTIONS.items():
        drawn = [draw(kind, np.random.default_rng(0)).tobytes() for kind in kinds]
        assert drawn == [draw(kind, np.random.default_rng(0)).tobytes() for kind in kinds]
        assert len({*drawn}) == len(kinds)
        assert count * len(kinds) >= 600
        assert f"gallery-{name}.png" in (DOCS / "gallery.md").read_text(encoding="utf-8")
    gallery.write("leaves", tmp_path / "leaves")
    head, *rows = (tmp_path / "leaves" / "labels.csv").read_text("utf-8").splitlines()
    assert head == "file_name,label,truth"
    labels = {truth: {row.split(",")[1] for row in rows if row.endswith(f",{truth}")} for truth in ("heart", "three")}
    assert labels == {"heart": {"", "heart"}, "three": {""}}, "half of the kinds is known, and some of their images"
    assert len(rows) == len(list((tmp_path / "leaves").glob("*.png"))) == 600


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Write a repository with our settings and hook, and two pages of its own."""
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:")[0]
    names = ["home.md", "deep/page.md", *(f"{name}.md" for name in FROM_OUTSIDE.values())]
    (tmp_path / "mkdocs.yml").write_text("\n".join([settings, "nav:", *(f"  - {name}" for name in names)]))
    for file in FROM_OUTSIDE:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("# From outside\n\n[back](docs/home.md)\n" if "/" not in file else "# Results\n")
    (tmp_path / "docs" / "deep").mkdir(parents=True)
    for name in ("hooks.py", "api.py", "site.css", "logo.svg", "iframe-worker.js"):
        shutil.copy(DOCS / name, tmp_path / "docs" / name)
    (tmp_path / "docs" / "home.md").write_text("# Home\n\n[deep](deep/page.md#deep)\n")
    (tmp_path / "docs" / "deep" / "page.md").write_text("# Deep\n")
    (tmp_path / "benchmarks" / "speed.py").write_text("")
    return tmp_path


def test_the_hook_follows_links_through_the_repository(small: Path, fork_server: ForkServer) -> None:
    (small / "docs" / "deep" / "page.md").write_text(
        "# Deep\n\n[results](../../benchmarks/RESULTS.md#results), [readme](../../README.md), [home](../home.md), "
        "[speed.py](../../benchmarks/speed.py), [other](https://example.org/a.md)\n\n"
        "`METHODS[name](backbone)`\n\n```python\nMETHODS[name](backbone)\n```\n"
    )
    (small / "benchmarks" / "RESULTS.md").write_text(
        "# Results\n\n[deep](../docs/deep/page.md), [log](../CHANGELOG.md)\n"
    )
    code, said = build(fork_server, small, small / "site")
    assert code == 0, said
    deep, results = Html(small / "site" / "deep" / "page.html"), Html(small / "site" / "results.html")
    assert {"../results.html#results", "../index.html", "../home.html", "https://example.org/a.md"} <= set(deep.links)
    assert "results, readme, home, speed.py, other" in deep.paragraphs, "the program is named but not linked"
    assert not any("speed.py" in link for link in deep.links)
    assert {"deep/page.html", "changelog.html"} <= set(results.links)


def test_any_warning_fails_the_build(small: Path, fork_server: ForkServer) -> None:
    (small / "docs" / "home.md").write_text(
        "# Home\n\n[gone](gone.md) [gone](deep/page.md#gone) [gone](../GONE.md) [gone][1] ![gone](gone.png) "
        "[not a file of the repository](results.md)\n\n[1]: ../GONE2.md\n"
    )
    (small / "README.md").write_text("# Read me\n\n[gone](changelog.md)\n")
    (small / "docs" / "more.md").write_text("# More\n")
    code, said = build(fork_server, small, small / "site")
    assert code != 0
    warnings = [line for line in said.splitlines() if line.startswith("WARNING")]
    for gone in ("gone.md,", "../GONE.md,", "gone.png,", "results.md,"):
        assert any(f"docs/home.md links to {gone}" in line for line in warnings), gone
    for gone in ("README.md links to changelog.md,", "'../GONE2.md'", "'#gone'", 'not included in the "nav"'):
        assert any(gone in line for line in warnings), gone
