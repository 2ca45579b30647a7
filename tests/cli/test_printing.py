"""What all commands print alike: unreadable files, and names that could disturb a terminal."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.printed import BAD, a_prediction, predicted, shown
from support.sample_run import HOSTILE, sample_run

from sortal.cli import predict, runs
from sortal.exchange.export import ExportResult
from sortal.images.decoding import Quarantined
from sortal.research.figures import FiguresResult
from sortal.runs.run import Candidate
from sortal.system.text import plain

NAMES = (*HOSTILE[3:7], "\x1b[31mred", "[red]oak[/red]", ":smile:", "a\rb\tc\bd\x9b2J")


def test_unreadable_files_are_listed_by_reason(capsys: pytest.CaptureFixture[str]) -> None:
    cut = [Quarantined(name, "truncated", "ends\nearly") for name in ("a\x1b.png", "b.png")]
    bad = (cut[0], *BAD, cut[1], Quarantined("c.png", "damaged", "not shown"))
    lines = shown(sample_run(quarantine=bad), capsys)
    start = lines.index("Unreadable, left out of every run (exit code 3): 15")
    assert lines[start + 1 : start + 4] == ["  truncated: ends\\nearly", "    a\\x1b.png", "    b.png"]
    assert lines[start + 4 : start + 13] == ["  empty: 0 bytes", *(f"    {number}.jpg" for number in range(8))]
    assert lines[start + 13] == "  … and 5 more; --json lists all"


@pytest.mark.parametrize("name", NAMES)
def test_names_do_not_disturb_a_terminal(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    bad = Quarantined(name, "not an image", name)
    found = sample_run(name=lambda number: f"{name} {number}"[-3000:], file=lambda _: name, quarantine=[bad])
    lines = shown(found, capsys)
    assert all(line.isprintable() for line in lines)
    start = next(at for at, line in enumerate(lines) if line.startswith("──")) + 1
    assert lines[start + 6] == "", "one row per category, however long its name"
    assert plain(name)[:8].strip() in lines[start], "recognisable"
    assert plain("a\udce9\x1b[31m\u202eb é") == "a\\xe9\\x1b[31m\\u202eb é"
    added = replace(a_prediction(found), quarantine=(bad,), added=1)
    candidate = Candidate(id=1, files=(name,), folders=(1,), nearest_id=0)
    added = replace(added, run=replace(found, candidates=(candidate,), folder=Path(name.replace("\0", ""))))
    exported = ExportResult(format="csv", out=Path(name.replace("\0", "")), images=3, missing=(name,))
    drawn = FiguresResult(out=Path("o"), files=(Path(name.replace("\0", "")),), left_out={"attention": name})
    predict.print_prediction(added, [Path(name.replace("\0", ""))], None)
    runs.print_exported(exported)
    runs.print_drawn(drawn)
    printed = capsys.readouterr().out.splitlines()
    assert all(line.isprintable() for line in printed)
    assert sum(plain(name) in line for line in printed) >= 4


def test_the_option_for_larger_images_is_named_where_one_was_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    large = Quarantined("a.png", "too large", "9 × 9 pixels; max_pixels is 80")
    heavy = Quarantined("a.png", "too large", "9 bytes; the limit is 8")  # which no option raises
    for bad, named in ((large, True), (heavy, False)):
        found = sample_run(quarantine=(bad,))
        shown_lines = [*shown(found, capsys), *predicted(replace(a_prediction(found), quarantine=(bad,)), capsys)]
        assert shown_lines.count("  Use larger images with --max-pixels N.") == 2 * named
