"""Results printed as text: runs, predictions, exports, figures, checks, benchmarks, the demo and dry runs."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.sample_records import example, scores
from support.sample_results import HEALTHY, RESULT, counts
from support.sample_run import HOSTILE, by_hand, sample_run

from sortal.cli import printing
from sortal.discovery.dry_run import DryPrediction, DryRun
from sortal.discovery.prediction import Prediction
from sortal.exchange.export import ExportResult
from sortal.images.check import ClassCount, Duplicates, Kind
from sortal.images.decoding import Quarantined
from sortal.learning import token_cache
from sortal.metrics import Accuracy
from sortal.research.benchmark.presets import PRESETS
from sortal.research.benchmark.records import KRecord, Record
from sortal.research.benchmark.sweep import SweepResult
from sortal.research.figures import FiguresResult
from sortal.runs.facts import KChoice
from sortal.runs.run import Candidate, Category, Run
from sortal.system.text import plain

BAD = tuple(Quarantined(f"{number}.jpg", "empty", "0 bytes") for number in range(12))
NAMES = (*HOSTILE[3:7], "\x1b[31mred", "[red]oak[/red]", ":smile:", "a\rb\tc\bd\x9b2J")


def category(number: int, *, known: bool = False, size: int = 1, name: str = "") -> Category:
    """Make a category with `number` as its id and its count of unsure images; twice as many are labelled."""
    counts: dict[str, Any] = {"size": size, "labelled": 2 * number, "unsure": number}
    made = replace(sample_run().categories[0], id=number, name=name or f"class {number}", **counts)
    return replace(made, kind="known" if known else "new", cohesion=0.875 if size else None)


def a_run(*categories: Category) -> Run:
    """Make a run with these categories, consistent as far as printing goes."""
    sizes = [each.size for each in categories]
    own = np.repeat(np.arange(len(categories)), sizes)
    run = sample_run(categories=len(categories), known=0, images=sum(sizes), truth=False, category=own)
    return replace(run, categories=categories)


def shown(found: Run, capsys: pytest.CaptureFixture[str]) -> list[str]:
    printing.run(found)
    return lines_of(capsys)


def table_of(lines: Sequence[str]) -> list[list[str]]:
    """Return the cells of the table of categories."""
    start = next(at for at, line in enumerate(lines) if line.startswith("──")) + 1
    rows = lines[start:]
    return [line.split() for line in rows[: rows.index("")]]


def test_a_run_is_printed_with_its_counts_and_categories(capsys: pytest.CaptureFixture[str]) -> None:
    """The statuses are those of `by_hand`; categories are ordered known first, then by size."""
    made = (category(0, known=True, size=4, name="oak"), category(1, size=4, name="new 1"))
    found = replace(by_hand(), categories=made, metrics=None, k=replace(by_hand().k, interval=(2, 4)))
    assert shown(found, capsys) == [
        "8 images: 1 labelled, 2 known, 2 new, 3 unsure.",
        "k = 2, estimated, likely 2 to 4: 1 known category and 1 new.",
        "",
        "Category    Kind   Images   Labelled   Unsure   Cohesion",
        "────────────────────────────────────────────────────────",
        "oak        known        4          0        0       0.88",
        "new 1        new        4          2        1       0.88",
        "",
        f"Report: {Path('a run', 'report.html')}",
        "",
    ]
    sizes = [(2, False), (1, True), (9, False), (4, True), (0, False)]
    found = a_run(*(category(number, known=known, size=size) for number, (size, known) in enumerate(sizes)))
    rows = table_of(shown(found, capsys))
    assert [int(row[1]) for row in rows] == [3, 1, 2, 0, 4]
    assert rows[-1] == ["class", "4", "new", "0", "8", "4"], "a category without images has no cohesion"
    found = replace(sample_run(), k=KChoice(k=6, estimated=False, known=4))
    assert shown(found, capsys)[1] == "k = 6, given: 4 known categories and 2 new."
    assert found.metrics is not None
    metrics = replace(found.metrics, accuracy=Accuracy(all=0.5, old=0.98765, new=None), images=1234)
    lines = shown(replace(found, metrics=metrics), capsys)
    accuracy = "Accuracy, %: All 50.0, Old 98.8, New n/a; on the 1,234 unlabelled images whose truth is known."
    assert lines[-5:] == ["", accuracy, "", f"Report: {found.report}", ""]


def test_unreadable_files_are_listed_by_reason(capsys: pytest.CaptureFixture[str]) -> None:
    cut = [Quarantined(name, "truncated", "ends\nearly") for name in ("a\x1b.png", "b.png")]
    bad = (cut[0], *BAD, cut[1], Quarantined("c.png", "damaged", "not shown"))
    lines = shown(sample_run(quarantine=bad), capsys)
    start = lines.index("Unreadable, left out of every run (exit code 3): 15")
    assert lines[start + 1 : start + 4] == ["  truncated: ends\\nearly", "    a\\x1b.png", "    b.png"]
    assert lines[start + 4 : start + 13] == ["  empty: 0 bytes", *(f"    {number}.jpg" for number in range(8))]
    assert lines[start + 13] == "  … and 5 more; --json lists all"


@pytest.mark.parametrize("count", [24, 25, 1000])
def test_a_long_list_of_categories_is_abbreviated_and_its_sums_cover_all(
    count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [category(number, known=number % 2 == 0, size=1 + 7 * number % 13) for number in range(count)]
    table = table_of(shown(a_run(*made), capsys))
    assert len(table) == 24
    numbers = [[int(cell.replace(",", "")) for cell in row if cell.replace(",", "").isdigit()] for row in table]
    rest = [row[1:4] for row in table if row[0] == "…"]
    assert rest == ([[f"{count - 23:,}", "more", "categories"]] if count > 24 else [])
    for column, name in enumerate(("size", "labelled", "unsure"), start=1):
        assert sum(row[column] for row in numbers) == sum(getattr(each, name) for each in made)
    least = min(row[1] for row in numbers[:23])
    assert sum(each.size > least for each in made) <= 23, "the largest are listed"


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
    printing.prediction(added, [Path(name.replace("\0", ""))], None)
    printed = [*capsys.readouterr().out.splitlines(), *printing.exported(exported), *printing.drawn(drawn)]
    assert all(line.isprintable() for line in printed)
    assert sum(plain(name) in line for line in printed) >= 4


def test_the_option_for_larger_images_is_named_where_one_was_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    large = Quarantined("a.png", "too large", "9 × 9 pixels; max_pixels is 80")
    heavy = Quarantined("a.png", "too large", "9 bytes; the limit is 8")  # which no option raises
    for bad, named in ((large, True), (heavy, False)):
        found = sample_run(quarantine=(bad,))
        shown_lines = [*shown(found, capsys), *predicted(replace(a_prediction(found), quarantine=(bad,)), capsys)]
        assert shown_lines.count("  Use larger images with --max-pixels N.") == 2 * named


def a_prediction(found: Run) -> Prediction:
    return Prediction(run=found, assignments=by_hand().assignments, quarantine=(), added=0)


def predicted(found: Prediction, capsys: pytest.CaptureFixture[str], csv: Path | None = None) -> list[str]:
    printing.prediction(found, [Path("new photos")], csv)
    return capsys.readouterr().out.splitlines()


def test_a_prediction_is_printed_by_category_with_the_next_steps(capsys: pytest.CaptureFixture[str]) -> None:
    found = a_prediction(sample_run(candidates=3))
    first, empty, heading, rule, *rows = predicted(found, capsys)
    assert (first, empty, {*rule}) == ("8 images: 2 known, 2 new, 3 unsure.", "", {"─"})
    assert heading.split() == ["Category", "Kind", "Images", "Unsure"]
    numbers = [row.rsplit(maxsplit=2)[1:] for row in rows[: rows.index("")]]
    sizes = [int(size) for size, _ in numbers]
    assert sizes == sorted(sizes, reverse=True), "the largest first"
    assert (sum(sizes), sum(int(unsure) for _, unsure in numbers)) == (8, 3)
    again = "sortal predict 'a run' 'new photos'"
    todo = [
        f"To get the category of each image: {again} --csv FILE",
        f"To add these images to the run: {again} --update",
    ]
    assert rows[rows.index("") :] == ["", *todo]
    assert predicted(found, capsys, Path("t.csv"))[-2:] == ["Table: t.csv", todo[1]]
    lines = predicted(replace(found, quarantine=BAD), capsys)
    assert "Unreadable, left out of every run (exit code 3): 12" in lines
    assert "    9.jpg" in lines
    assert "  … and 2 more; --json lists all" in lines


def test_a_prediction_is_printed_with_candidates_only_if_images_were_added(capsys: pytest.CaptureFixture[str]) -> None:
    found = a_prediction(sample_run(candidates=3))
    assert not any("candidate" in line for line in predicted(found, capsys))
    files = tuple(f"{number}.jpg" for number in range(1200))
    large = Candidate(id=1, files=files, folders=(1,) * len(files), nearest_id=0)
    candidates = (large, replace(large, id=2, files=files[:2], folders=(1, 1)))
    found = replace(found, run=replace(sample_run(), candidates=candidates), added=1300)
    lines = predicted(found, capsys)
    assert lines[-4:-1] == [
        f"1,300 images added to the run. Report: {Path('a run', 'report.html')}",
        "  candidate 1 for a new category: 1,200 images far from all others, such as 0.jpg, 1.jpg, 2.jpg",
        "  candidate 2 for a new category: 2 images far from all others, such as 0.jpg, 1.jpg",
    ]
    assert not any("--update" in line for line in lines)
    many = tuple(replace(candidates[1], id=number) for number in range(30))
    lines = predicted(replace(found, run=replace(sample_run(), candidates=many)), capsys)
    assert sum(line.startswith("  candidate ") for line in lines) == 10


def test_exports_and_figures_are_printed_with_what_is_missing() -> None:
    missing = tuple(f"{number}.jpg" for number in range(12))
    done = ExportResult(format="coco", out=Path("x.json"), images=1234, missing=missing[:10])
    left_out = [f"  missing, left out: {file}" for file in missing[:10]]
    assert printing.exported(done) == ["1,234 images written as coco: x.json", *left_out]
    assert printing.exported(replace(done, missing=missing))[1:] == [*left_out, "  … and 2 more"]
    files = (Path("o/tsne.png"), Path("o/tsne.svg"))
    drawn = FiguresResult(out=Path("o"), files=files, left_out={"k-curve": "k was given."})
    assert printing.drawn(drawn) == [*map(str, files), "Left out: k-curve. k was given."]
    assert printing.drawn(replace(drawn, files=(), left_out={})) == []


def duplicates(kind: Kind, **labels: str | None) -> Duplicates:
    """Make a group of duplicates from files and their labels."""
    return Duplicates(kind=kind, files=tuple(labels), labels=tuple(labels.values()))


def health_of(capsys: pytest.CaptureFixture[str], **changes: Any) -> list[str]:
    printing.health(replace(HEALTHY, **changes), 32)
    return lines_of(capsys)


def test_the_health_of_images_is_printed_for_few_many_and_no_classes(capsys: pytest.CaptureFixture[str]) -> None:
    assert health_of(capsys) == [
        "1,103 images: 1,102 labelled in 2 classes, 1 unlabelled.",
        "",
        "Class          Images",
        "─────────────────────",
        "class 0             2",
        "class 1         1,100",
        "(unlabelled)        1",
        "",
        "Ignored, not pictures: 1",
        "  notes.txt",
        "",
        "No problems found.",
        "",
    ]
    cats = {f"cat/{number}": "cat" for number in (1, *range(10, 20))}
    group = duplicates("two labels", **cats, **{"dog/x": "dog", "y\n": None})
    ill = health_of(
        capsys,
        labelled=1103,
        classes=(ClassCount(name="class 0", images=1103, unreadable=3), ClassCount(name=None, images=0, unreadable=0)),
        alike_names=(("Oak", "oak "),),
        unreadable=BAD[:3],
        duplicates=(group, duplicates("same", a="cat", b="cat")),
        near_duplicates=(duplicates("labelled and unlabelled", c="cat", d=None),),
        tiny=("t.png",),
        rotated=tuple(f"{number}.jpg" for number in range(1103)),
        deep=tuple(f"{number}.png" for number in range(11)),
    )
    assert [line for line in ill if line] == [
        "1,103 images: 1,103 labelled in 1 class, 0 unlabelled. 3 are unreadable.",
        "Class     Images   Unreadable",
        "─────────────────────────────",
        "class 0    1,103            3",
        "Only one class is labelled. To estimate how many classes there are, sortal discover needs two that are "
        "labelled; or tell it, with --k N.",
        "Classes whose names differ only in case and spaces: 1",
        "  Oak = oak",
        "Images with two labels (exit code 1), which a run ignores; keep one copy of each: 1",
        "  cat/1 (cat) = dog/x (dog) = y\\n (unlabelled) = cat/10 (cat) and 9 more",
        "Unreadable, left out of every run (exit code 3): 3",
        "  empty: 0 bytes",
        *(f"    {number}.jpg" for number in range(3)),
        "Duplicates: 1",
        "  a (cat) = b (cat)",
        "Near-duplicates, labelled and unlabelled: 1",
        "  c (cat) ≈ d (unlabelled)",
        "Tiny, shorter side below 32 pixels: 1",
        "  t.png",
        "Rotated by EXIF, shown upright: all 1,103",
        "More than 8 bits per channel, scaled to 8: 11",
        *(f"  {number}.png" for number in range(10)),
        "  … and 1 more; --json lists all",
        "Ignored, not pictures: 1",
        "  notes.txt",
    ]

    lines = health_of(capsys, classes=counts(*range(1, 31), 5))
    rows = [line.split() for line in lines[4:30]]
    assert rows[0] == ["class", "29", "30"]
    assert rows[12] == ["…", "6", "more", "classes", str(13 + 14 + 15 + 16 + 17 + 18)]
    assert rows[24:] == [["class", "0", "1"], ["(unlabelled)", "5"]]
    assert sum(int(row[-1]) for row in rows[:25]) == sum(range(31))
    assert len(health_of(capsys, classes=counts(*range(24), 5))) == len(lines) - 1, "24 classes are all listed"
    lines = health_of(capsys, labelled=0, classes=counts(7), near_duplicates=None)
    assert "No image is labelled. Put the images of a class into a folder named after it, or pass" in lines[6]
    assert lines[8].startswith("To estimate how many classes there are, sortal discover needs two that are labelled")
    assert "Too many images to search for near-duplicates." in lines
    assert "No problems found." not in lines
    lines = health_of(capsys, labelled=5, classes=counts(5, 2))
    assert any(line.startswith("Only one class is labelled. ") for line in lines)
    assert "No problems found." not in lines
    lines = health_of(capsys, ignored=("a/1.heic", "b.CR2", "c.txt"))
    assert [line for line in lines if " ignored, " in line] == [
        "1 picture is ignored, in a format that is not read here (.heic): 'a/1.heic'. To read them, pip install "
        "pillow-heif.",
        "1 picture is ignored, in a format that is not read here (.cr2): 'b.CR2'. To read them, save them as JPEG.",
    ]
    assert lines[lines.index("Ignored, not pictures: 1") + 1 :] == ["  c.txt", ""]
    assert "No problems found." not in lines


FEWER = KRecord(asked="auto", k=48, true=55, error=7 / 55, interval=(40, 60))


def swept_of(*found: Record, **others: Any) -> SweepResult:
    folders = tuple(Path("out") / record.name / "k-true" / f"seed-{record.seed}" for record in found)
    return SweepResult(**{"records": found, "folders": folders, "failed": (), "reused": 0, **others})


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.rstrip() for line in capsys.readouterr().out.split("\n")]


def test_a_sweep_is_printed_by_preset_and_seed(capsys: pytest.CaptureFixture[str]) -> None:
    """All but the last run took 120 s."""
    printing.sweep(
        swept_of(
            example(name="flowers55/rankstats", k=FEWER, transductive=scores(12.34, 0, 100)),
            example(name="flowers55/rankstats", k=FEWER, seed=11, inductive=scores(100, None, 3)),
            example(name="flowers55/gcd", transductive=scores(50, None, 40), timings={"learn": 12_345.0}),
        )
    )
    assert lines_of(capsys) == [
        "  Seed              k    All    Old     New   Legacy    Test    Time",
        "────────────────────────────────────────────────────────────────────",
        "flowers55/rankstats",
        "  0      48 (true 55)   12.3    0.0   100.0     12.3     n/a   2 min",
        "  11     48 (true 55)   50.0   60.0    40.0     50.0   100.0   2 min",
        "flowers55/gcd",
        "  0               200   50.0    n/a    40.0     50.0     n/a   3.4 h",
        "",
        f"The runs are in {Path('out/flowers55')}; sortal benchmark table makes tables of them.",
        "",
    ]


def test_names_of_runs_are_never_wrapped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    k = replace(FEWER, k=1048, true=1055)
    for columns, name in (("30", "table3/stanford_cars/rankstats"), ("80", "x" * 90 + "/gcd"), ("200", "a/gcd")):
        monkeypatch.setenv("COLUMNS", columns)
        printing.sweep(
            swept_of(*(example(name=name, seed=seed, k=k, inductive=scores(100, 100, 100)) for seed in (0, 1)))
        )
        lines = lines_of(capsys)
        assert lines[2] == name
        assert [line.split()[:4] for line in lines[3:5]] == [[seed, "1048", "(true", "1055)"] for seed in ("0", "1")]
        assert all(line.split()[-3:] == ["100.0", "2", "min"] for line in lines[3:5])


def test_a_sweep_lists_failures_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    name = "a\x1b[31m/gcd"
    failed = ((f"{name}, k true, seed 0", "No\nmemory."), ("b/gcd, k true, seed 1", "The loss must be a number."))
    printing.sweep(swept_of(example(name=name), failed=failed))
    lines = lines_of(capsys)
    assert lines[2] == "a\\x1b[31m/gcd"
    assert lines[4:8] == [
        "",
        "Failed: a\\x1b[31m/gcd, k true, seed 0: No\\nmemory.",
        "",
        "Failed: b/gcd, k true, seed 1: The loss must be a number.",
    ]
    assert all(line.isprintable() for line in lines)
    printing.sweep(swept_of(failed=failed[1:]))
    assert lines_of(capsys) == ["", lines[7], ""], "no table if every run failed"


def test_presets_are_listed_by_unwrapped_names(capsys: pytest.CaptureFixture[str]) -> None:
    printing.presets(PRESETS)
    lines = lines_of(capsys)
    assert max(map(len, lines)) <= 80
    rows = [line.split() for line in lines[2:] if not line.startswith(" ") and line]
    assert [row[0] for row in rows] == [*PRESETS]
    assert [row[1] for row in rows] == [str(preset.version) for preset in PRESETS.values()]
    assert lines[2] == "table2/cifar10/kmeans                  1   CIFAR-10, k-means"


def test_the_demo_is_printed_like_discover_with_a_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    printing.demo(RESULT)
    lines = lines_of(capsys)
    assert lines[-12:] == [
        "",
        "There are 10 true classes. On the unlabelled images, with k = 6:",
        "",
        "Accuracy, %                          All    Old     New",
        "───────────────────────────────────────────────────────",
        "k-means on pixels                   75.0   50.0    87.5",
        "semi-supervised k-means on pixels   90.0    n/a   100.0",
        "sortal discover                     95.0   90.0    97.5",
        "",
        f"62 s. Report: {RESULT.run.report}",
        "To name the new classes and correct the result: sortal review 'a run'",
        "",
    ]
    assert lines[:-12] == shown(RESULT.run, capsys)[:-3], "the output of sortal discover comes first"


COUNTS = {"images": 12_345, "labelled": 1_200, "unlabelled": 11_145, "classes": 7, "held_out": 240}
WORDS = {"k": "auto", "method": "gcd", "backbone": "vit", "weights": "from the hub", "device": "cpu"}
ROOM = {"memory": 3_200_000_000, "disk": 45_600_000, "free_disk": 78_900_000_000}
OTHERS: dict[str, Any] = {
    "tokens": token_cache.TokenPlan(2_500_000_000, "memory"),
    "seconds": {"check": 0.4, "pixels": 12.3, "learn": 5400.0, "report": 100.0},
    "notes": ("There is no GPU.", "Label\x1b more."),
    "unreadable_sample": ("a\nb.jpg",),
}
PLAN = DryRun(epochs=100, views=4, **OTHERS, **COUNTS, **WORDS, **ROOM)  # type: ignore[arg-type]


def planned(capsys: pytest.CaptureFixture[str], **changes: Any) -> dict[str, str]:
    """Return the printed values by name."""
    printing.dry_run(replace(PLAN, **changes))
    rows = [re.split(r" {2,}", line.rstrip(), maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    return {row[0]: row[1] for row in rows if len(row) == 2 and row[0]}


def test_a_dry_run_is_printed_in_full(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    printing.dry_run(PLAN)
    out = capsys.readouterr().out
    assert [re.sub(r"(?<=\S) {2,}", " | ", line.rstrip()) for line in out.splitlines()] == [
        "images | 12,345: 1,200 labelled in 7 classes, 11,145 unlabelled",
        "held out | 240 labelled images, to calibrate confidence",
        "classes | estimated",
        "backbone | vit, from the hub",
        "training | 100 epochs, 4 cached views per image; 2.5 GB of tokens are cached in memory",
        "device | cpu",
        "memory | about 3.2 GB",
        "disk | about 45.6 MB; 78.9 GB free",
        "time | about 1.5 h: pixels 12 s, learn 1.5 h, report 2 min",
        "",
        "There is no GPU.",
        "",
        "Label\\x1b more.",
        "",
        "Unreadable files in the sample, which would be left out: 1",
        "  a\\nb.jpg",
    ]


def test_a_dry_run_prints_only_what_applies(capsys: pytest.CaptureFixture[str]) -> None:
    assert planned(capsys, k=12)["classes"] == "k = 12"
    assert planned(capsys, views=None, tokens=None)["training"] == "100 epochs, new views in every epoch"
    assert planned(capsys, method="kmeans")["training"] == "none"
    assert planned(capsys, epochs=0)["training"] == "none"
    printing.dry_run(replace(PLAN, notes=(), unreadable_sample=()))
    assert capsys.readouterr().out.splitlines()[-1].startswith("time")
    for seconds, text in (
        ({"check": 0.2, "report": 0.4}, "about 1 s"),
        ({"check": 0.6, "learn": 89.2}, "about 90 s: check 1 s, learn 89 s"),
        ({"learn": 90.0}, "about 2 min: learn 2 min"),
        ({"learn": 5399.0}, "about 90 min: learn 90 min"),
        ({"learn": 72_000.0, "report": 0.1}, "about 20.0 h: learn 20.0 h"),
    ):
        assert planned(capsys, seconds=seconds)["time"] == text


def test_a_dry_prediction_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    plan = DryPrediction(
        images=1_200,
        in_run=34_000,
        update=True,
        backbone="vit",
        device="cpu",
        disk=45_600_000,
        free_disk=78_900_000_000,
        seconds={"start": 5.2, "pixels": 0.1, "features": 60.0},
        unreadable_sample=("a\nb.jpg",),
    )
    printing.dry_prediction(plan)
    assert [re.sub(r"(?<=\S) {2,}", " | ", line.rstrip()) for line in capsys.readouterr().out.splitlines()] == [
        "images | 1,200, to be added to the 34,000 of the run, as far as it does not have them",
        "backbone | vit",
        "device | cpu",
        "disk | about 45.6 MB; 78.9 GB free",
        "time | about 65 s: start 5 s, features 60 s",
        "",
        "Unreadable files in the sample, which would be left out: 1",
        "  a\\nb.jpg",
    ]
    printing.dry_prediction(replace(plan, update=False, unreadable_sample=()))
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.split() == ["images", "1,200"]
    assert last.startswith("time")
