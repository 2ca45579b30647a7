"""What README and docs claim is shown somewhere: figures by the measurements that they link to, the rest by tests."""

import re
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

import pytest
from support import tiny_folder
from support.runtimes import CPU

import sortal
from sortal.research.benchmark.published import ABLATION, ACCURACY, RIVAL_FIGURES

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))]
NUMBER = r"(?<![\w.,/#-])\d[\d,]*(?:\.\d+)?(?![\w-]|\.\d|,\d)"
UNITS = (  # of what is measured
    r"%|of 100\b|(?:point|minute|second|hour)s?\b|(?:ms|s|min|GiB|MiB|GB|MB|kB|images/s)\b|times as (?:fast|long|many)"
)
FIGURE = re.compile(rf"({NUMBER}(?:\s*(?:to|and|or|–|,)\s*{NUMBER})*)\s*(?:{UNITS})")
CELL = re.compile(r"(?<![\w.,-])\d+\.\d+(?![\w.-])")  # in tables, also figures without a unit
CHOSEN = {  # by page: settings, limits, examples and what others have published, which is not measured here
    "README.md": {"150"},  # megabytes of PyTorch
    "docs/backbones.md": {"79.0", "82.1", "74.5", "76.1"},  # by the authors of DINO
    "docs/how.md": {"80"},  # an example
    "docs/install.md": {"150"},  # megabytes of PyTorch
    "docs/benchmark.md": {"95"},  # an interval
    "docs/commands.md": {"1.25", "2.5"},  # bounds of the granularity
    # constants of the count and of the chance; how copies were made
    "docs/discover.md": {"8", "85", "95", "6", "20", "72", "89", "45", "15", "256"},
    "docs/export.md": {"2"},  # a limit of ONNX
    "docs/learning.md": {"4", "14.5", "30"},  # limits in seconds; the size of an array
    "docs/processes.md": {"1.5", "3", "30"},  # the sizes of arrays; a limit
    "docs/protocols.md": {"100"},  # an example
    "docs/python.md": {"8"},  # a constant of the estimate
    "docs/security.md": {"1", "67", "10", "20", "60"},  # limits
    "docs/review.md": {"95", "15"},  # an interval, a probability
    "docs/methods/rounds.md": {"3", "15"},  # constants of the count
}

PROMISES = {  # page, its section and what comes before a promise in bold: the section of claims that lists it
    ("README.md", "what-you-get", "- "): "what-you-get",
    ("docs/export.md", "exporting-a-run-to-other-tools", ""): "exports",
    ("docs/security.md", "what-is-promised", r"\| "): "security",
    ("docs/stability.md", "what-1x-keeps", r"\| "): "what-1x-keeps",
}
SETTINGS = {"options", "training"}  # sections with tables of defaults
# Sections whose figures are products of measured rates or of the sizes of arrays, as they say.
COMPUTED = {"ten-million-photographs-on-paper", "the-time", "disk"}


@cache
def sections(path: Path) -> dict[str, str]:
    """The text of each heading's section by its anchor, with the sections below it; all of the page by ""."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found = {"": text}
    for heading in re.finditer(r"^(#+) (.*)$", text, flags=re.MULTILINE):
        end = re.search(rf"^#{{1,{len(heading[1])}}} ", text[heading.end() :], flags=re.MULTILINE)
        anchor = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading[2].lower()).strip())
        found[anchor] = text[heading.end() : heading.end() + end.start() if end else None]
    return found


def figures(text: str, *, tables: bool) -> Iterator[str]:
    """Yield the numbers with a unit of measurement, without those in code; of `tables` all decimals, too."""
    text = re.sub(r"`[^`]*`|\]\([^)]*\)", " ", text)
    for found in FIGURE.finditer(text):
        yield from re.findall(NUMBER, found[1])
    for row in re.findall(r"^\|.*$", text, flags=re.MULTILINE) if tables else ():
        yield from CELL.findall(row)


def numbers(text: str) -> set[str]:
    return {number.replace(",", "") for number in re.findall(NUMBER, text)}


def measured(page: Path, text: str) -> str:
    """The measurements that a text links to."""
    links = re.findall(r"\]\(((?:\.\./)*benchmarks/(?:RESULTS\.md(?=#)|archive/\w+\.md))(?:#([\w-]+))?\)", text)
    return "\n".join(sections((page.parent / path).resolve())[anchor] for path, anchor in links)


def published(method: str) -> str:
    """The figures by the authors of a method, which its page repeats."""
    rows = [*ACCURACY.values(), *RIVAL_FIGURES.values()]
    shares = [row.get(method, ()) for row in rows]
    if method == "gcd":
        shares += [share for row in ABLATION.values() for share in row.values()]
    return " ".join(str(figure) for share in shares for figure in share)


def is_among(figure: str, there: set[str]) -> bool:
    """Whether a figure is a number that was measured, or that number rounded."""
    digits = len(figure.partition(".")[2])
    return any(abs(float(number) - float(figure.replace(",", ""))) <= 0.5 * 10**-digits + 1e-9 for number in there)


def missing(page: Path, chosen: Collection[str] = ()) -> Iterator[tuple[str, str]]:
    """Yield (heading, figure) of each figure that no measurement has to which the text under that heading links."""
    for heading, text in sections(page).items():
        if heading and heading not in COMPUTED:
            text = re.split(r"^#", text, maxsplit=1, flags=re.MULTILINE)[0]
            there = numbers(f"{measured(page, text)} {published(page.stem)}")
            unknown = {*figures(text, tables=bool(there) and heading not in SETTINGS)}.difference(chosen)
            yield from ((heading, figure) for figure in sorted(unknown) if not is_among(figure, there))


@pytest.mark.parametrize("page", PAGES)
def test_every_figure_is_in_the_measurements_that_its_section_links_to(page: str) -> None:
    assert list(missing(ROOT / page, CHOSEN.get(page, ()))) == []


def rows(text: str) -> list[str]:
    """The rows of tables, the items of lists and the paragraphs of a text."""
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n|\n(?=[|*])", text)]


def listed_figures(claims: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield (figure, row, anchor, what stands there) of the figures that the page of claims lists."""
    line = r"^\| (.+) \| \[(.+)\]\(\.\./benchmarks/RESULTS\.md#([\w-]+)\): ([\d. and]+) \|$"
    for said, row, anchor, there in re.findall(line, claims, flags=re.MULTILINE):
        yield from ((figure, row, anchor, there) for figure in said.split(", "))


def wrong_rows(claims: str, results: Path) -> Iterator[str]:
    """Yield each listed figure that is not what stands in the rows that are named, rounded."""
    for figure, row, anchor, there in listed_figures(claims):
        all_rows = rows(sections(results)[anchor])
        named = [each for each in all_rows if each.startswith(f"| {row} |")] or [
            each for each in all_rows if row in each
        ]
        told, measured = (re.findall(NUMBER, text) for text in (figure.removesuffix(" of 100"), there))
        same = [is_among(one, {other}) for one, other in zip(told, measured, strict=False)]
        if not all(same) or len(told) != len(measured) or not {*measured} <= numbers("\n".join(named)):
            yield figure


def test_figures_of_the_first_pages_are_those_of_the_rows_that_are_named() -> None:
    claims = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    assert list(wrong_rows(claims, ROOT / "benchmarks" / "RESULTS.md")) == []
    listed = {figure for figure, *_ in listed_figures(claims)}
    for page in ("README.md", "docs/expect.md"):
        text = re.sub(r"`[^`]*`|\]\([^)]*\)", " ", sections(ROOT / page)[""])
        told = {" ".join(found[0].split()) for found in FIGURE.finditer(text)}
        assert told - {"150 MB"} <= listed, page


def test_the_measurements_are_one_page_whose_sections_lead_to_the_archive() -> None:
    page = ROOT / "benchmarks" / "RESULTS.md"
    assert len(page.read_text(encoding="utf-8").splitlines()) <= 400
    linked = {*re.findall(r"archive/(\w+\.md)", page.read_text(encoding="utf-8"))}
    assert linked == {path.name for path in (page.parent / "archive").glob("*.md")}


def test_a_figure_without_a_measurement_is_found(tmp_path: Path) -> None:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "RESULTS.md").write_text("# All\n\n## Flowers\n\n82.7, 1,234.5\n\n## Cars\n\n41.6\n")
    page = tmp_path / "README.md"
    link = "([measured](benchmarks/RESULTS.md#flowers))"
    page.write_text(
        f"# Page\n\n## Good\n\n82.7 %, 83 %, 1,234 or 1,235 s {link}, `--k 9 %`, Python 3.11\n\n| 82.7 |\n\n"
        f"## Wrong\n\n84 % and 41.6 to 83 % {link}\n\n| 82.6 |\n\n## Bare\n\n82.7 %\n"
    )
    assert list(missing(page)) == [
        ("wrong", "41.6"),
        ("wrong", "82.6"),
        ("wrong", "84"),
        ("bare", "82.7"),
    ]


def test_claims_name_tests_that_exist_and_have_every_promise_in_bold() -> None:
    claims = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", claims)
    assert len(named) > 30
    assert [f"{file}::{test}" for file, test in named if f"\ndef {test}(" not in (ROOT / file).read_text("utf-8")] == []
    of_claims = sections(ROOT / "docs" / "claims.md")
    for (page, section, start), place in PROMISES.items():
        text = re.split(r"^#", sections(ROOT / page)[section], maxsplit=1, flags=re.MULTILINE)[0]
        promises = re.findall(rf"^{start}\*\*(.+?)\.?\*\*", text, flags=re.MULTILINE)
        assert len(promises) > 4, page
        listed = re.findall(r"^\| \*\*(.+?)\*\*", of_claims[place], flags=re.MULTILINE)
        assert [promise for promise in promises if promise not in listed] == [], page
    for row in re.findall(r"^\| .+$", claims, flags=re.MULTILINE):
        shown = row.split(" | ")[1]
        assert re.search(r"`tests/|\]\(|nothing|same table|above|shown by", shown), row


def test_images_are_not_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sort, predict, add and export: every file of the collection has the bytes and times that it had."""
    images = tmp_path / "photos"
    tiny_folder.write(images, tiny_folder.planted(6, 3))
    monkeypatch.chdir(tmp_path)
    before = contents(images)
    monkeypatch.setattr("sortal.web.report.report.make_report", lambda *_, **__: tiny_folder.PAGE)
    run = sortal.discover("photos", backbone="convnet", epochs=0, k=6, runtime=CPU)
    sortal.predict(run, "photos", update=True, runtime=CPU)
    sortal.export(run, "folders", "linked")
    sortal.export(run, "folders", "copied", how="copy")
    assert contents(images) == before
    assert len(before) == 36


def contents(folder: Path) -> dict[Path, tuple[bytes, int]]:
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}
