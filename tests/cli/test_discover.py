"""discover and demo: options reach the library, and results are printed."""

import io
import json
import re
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, astuple, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.command_line import FUNCTIONS, NOTE, QUICK, Done, Real, Stub, invoke, options_of
from support.printed import RESULT, lines_of, shown
from support.sample_run import HOSTILE, by_hand, doubted, sample_run
from support.thorough import thorough_but

from sortal.cli import app, discover
from sortal.cli.options import spell
from sortal.config import Discovery, Reading
from sortal.discovery.forecast import RunForecast
from sortal.images.decoding import Quarantined
from sortal.learning import token_cache
from sortal.metrics import Accuracy
from sortal.reviews.actions import Bin
from sortal.reviews.history import Review
from sortal.reviews.loading import load_run
from sortal.runs.facts import KChoice
from sortal.runs.run import Category, Run

JOB: Any = SimpleNamespace(
    retraining=None, agreed=False, may_take_long=False, place=Path("photos-run"), reporting_to=lambda runtime: JOB
)
NUMBERS = {
    "k": 7,
    "epochs": 3,
    "lr": 0.5,
    "views": 4,
    "trained": 2,
    "seed": 5,
    "k_max": 60,
    "n_init": 2,
    "held_out": 0.25,
}
SETTINGS = {
    **NUMBERS,
    "learn_on": 9,
    "image_size": 28,
    "held_out": 0.25,
    "unsure_below": 0.75,
    "max_pixels": 9,
    "method": "kmeans",
    "backbone": "convnet",
    "weights": "w.pth",
    "granularity": "finer",
    "groups": "several",
}
READ: dict[str, Any] = {"folders": "ignore", "unlabelled": "rest", "unlisted": "unlabelled", "extra_columns": "ignore"}
READ |= {"placeholders": "classes", "group_by_time": 60.0}
OTHERS = {"labels": Path("l.csv"), "out": Path("o"), "device": "cpu", "workers": 1}


def test_each_option_of_discover_reaches_the_library(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("photos", "more"):
        (tmp_path / name).mkdir()
    prepared, carried_out = (
        stub("sortal.discovery.job.prepare", JOB),
        stub("sortal.discovery.pipeline.carry_out", sample_run()),
    )

    def asked(*words: str) -> dict[str, Any]:
        assert invoke("discover", "photos", *words).code == 0
        assert carried_out.pop() == {"job": JOB}
        return prepared.pop()

    usual = asked()
    paths: dict[str, Any] = {
        "images": Path("photos"),
        "labels": None,
        "out": None,
        "force": False,
        "given": set(),
        "watch_truth": False,
        "features": None,
        "dry_run": False,
    }
    assert usual == {**paths, "settings": Discovery(), "reading": Reading()}
    for name, value in {**SETTINGS, **READ, **OTHERS}.items():
        changed: dict[str, Any] = {name: value}
        if name in SETTINGS:
            changed = {"settings": replace(Discovery(), **changed), "given": {name}}
        elif name in READ:
            changed = {"reading": replace(Reading(), **changed), "given": {name}}
        assert asked(f"--{name.replace('_', '-')}", str(value)) == {**usual, **changed}
    assert asked("--exif") == {**usual, "reading": Reading(exif=True), "given": {"exif"}}
    assert asked("--force") == {**usual, "force": True}
    assert asked("--watch-truth") == {**usual, "watch_truth": True}
    assert asked("--features", "x.npz") == {**usual, "features": Path("x.npz")}
    tracked = stub("sortal.discovery.tracking.tracker", None)
    assert asked("--track", "mlflow") == usual
    assert tracked.pop() == {"name": "mlflow", "run": "photos-run"}
    assert asked("--views", "live")["settings"] == Discovery(views="live")
    words = "--views auto --k=auto --epochs auto --lr auto"
    assert asked(*words.split()) == {**usual, "given": {"views", "k", "epochs", "lr"}}
    changes = ("training.batch_size=64", "losses.hidden=8")
    of_changes = {"settings": Discovery(set=changes), "given": {"set"}}
    assert asked("--set", changes[0], "--set", changes[1]) == {**usual, **of_changes}
    (tmp_path / "how.toml").write_text('labels = "t.csv"\nk = 4\nn_init = 2\nunlisted = "ignore"\n')
    in_file = {"settings": Discovery(k=5, n_init=2), "reading": Reading(unlisted="ignore"), "labels": "t.csv"}
    assert asked("--config", "how.toml", "--k", "5") == {**usual, **in_file, "given": {"k", "n_init", "unlisted"}}
    assert asked("more")["images"] == [Path("photos"), Path("more")]
    tried = {
        *SETTINGS,
        *READ,
        *OTHERS,
        "images",
        "features",
        "exif",
        "force",
        "json",
        "dry_run",
        "yes",
        "set",
        "config",
        "watch_truth",
        "track",
    }
    assert options_of(FUNCTIONS["discover"]).keys() == tried


def test_training_again_is_asked_about(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    job: Any = SimpleNamespace(
        retraining="A change of seed means training again.",
        agreed=False,
        may_take_long=False,
        reporting_to=lambda runtime: job,
    )
    stub("sortal.discovery.job.prepare", job)
    carried_out = stub("sortal.discovery.pipeline.carry_out", sample_run())
    planned = stub("sortal.discovery.forecast.forecast", SimpleNamespace(seconds={"learn": 600.0}, quicker=""))
    code, _, message = astuple(invoke("discover", "photos", "--seed", "1"))
    assert code == 2
    assert f"error: {job.retraining} Train again (--yes), see what it costs (--dry-run), or choose another" in message
    assert (carried_out, planned) == ([], [])
    assert invoke("discover", "photos", "--yes").code == 0
    assert (len(carried_out), planned) == (1, [])
    monkeypatch.setattr(discover, "_can_ask", lambda: True)
    for answer, code in (("n", 1), ("", 1), ("YES", 0)):
        carried_out.clear()
        monkeypatch.setattr(sys, "stdin", io.StringIO(f"{answer}\n"))
        done = invoke("discover", "photos", "--seed", "1")
        assert f"{job.retraining} In all, this takes about 10 min: learn 10 min.\nGo on? [y/N] " in done.err
        assert (done.code, len(carried_out)) == (code, 1 - code)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert invoke("discover", "photos").code == 2, "nobody can answer for several processes"
    job.agreed = True
    assert invoke("discover", "photos").code == 0, "resuming is not asked about again"


def test_quicker_ways_are_named_before_a_long_run_starts(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JOB, "may_take_long", True)
    stub("sortal.discovery.job.prepare", JOB)
    carried_out = stub("sortal.discovery.pipeline.carry_out", sample_run())
    for said in ("This takes about 2.0 h; other settings are quicker.", ""):
        planned = stub("sortal.discovery.forecast.forecast", SimpleNamespace(quicker=said))
        done = invoke("discover", "photos")
        assert (done.code, done.err) == (0, f"{NOTE}{said}\n" if said else NOTE)
        assert (len(carried_out), len(planned)) == (1, 1)
        carried_out.clear()


def test_discover_prints_text_or_json(stub: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    stub("sortal.discovery.job.prepare", JOB)
    found = sample_run()
    stub("sortal.discovery.pipeline.carry_out", found)
    discover.print_run(found)
    assert invoke("discover", "photos") == Done(0, capsys.readouterr().out, NOTE)
    with redirect_stderr(None), redirect_stdout(io.StringIO()) as out:  # as in Python if stderr is closed
        assert app.main(["discover", "photos"]) == 0
    assert "72 images: " in out.getvalue()
    assert "A note." not in out.getvalue()

    assert "to check" not in out.getvalue()
    discover.print_run(doubted(sample_run(), [0, 18], suggested=2))
    assert "\n2 labels to check, which may be right: " in capsys.readouterr().out

    bad = Quarantined("a/b.jpg", "empty", "0 bytes")
    found = sample_run(name=lambda number: f"{HOSTILE[number]}\x1b[31m"[-99:], quarantine=[bad])
    stub("sortal.discovery.pipeline.carry_out", found)
    done = invoke("discover", "photos")
    assert done.code == 3, "some files were skipped"
    assert "a/b.jpg" in done.out
    done = invoke("discover", "photos", "--json")
    assert (done.code, done.err) == (3, NOTE)
    assert json.loads(done.out) == json.loads(json.dumps(found.to_json()))
    assert all(line.isprintable() for line in done.out.splitlines())


def test_a_dry_run_only_plans(stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        discover, "print_forecast", lambda plan: sys.stdout.write(f"a plan of {plan.to_json()['images']}\n")
    )
    stub("sortal.discovery.job.prepare", JOB)
    carried_out = stub("sortal.discovery.pipeline.carry_out", None)
    planned = stub("sortal.discovery.forecast.forecast", SimpleNamespace(to_json=lambda: {"images": 36}))
    assert invoke("discover", "photos", "--dry-run") == Done(0, "a plan of 36\n", NOTE)
    assert json.loads(invoke("discover", "photos", "--dry-run", "--json").out) == {"images": 36}
    since = [each.pop("since") for each in planned]
    assert since == sorted(since)
    assert (planned, carried_out, [*tmp_path.iterdir()]) == ([{"job": JOB, "spell": spell}] * 2, [], [])


def test_discover_sorts_a_folder_once_and_then_reads_the_run(real: Real) -> None:
    assert real.done.code == 3
    lines = real.done.out.splitlines()
    assert lines[0].startswith("36 images: 9 labelled, ")
    assert lines[1] == "k = 6, given: 3 known categories and 3 new."
    assert lines[-4:] == ["  empty: 0 bytes", "    ash/broken.png", "", f"Report: {real.run / 'report.html'}"]
    assert real.done.err.splitlines()[:2] == [
        "sortal: 1 label is not used: of unreadable images (1).",
        "sortal: 1 file could not be read and will be left out.",
    ]
    assert (real.run / "report.html").stat().st_size > 10_000
    assert load_run(real.run).facts.settings.backbone == "convnet"
    again = invoke("discover", real.images, "--out", real.run, *QUICK, "--json")
    assert again.code == 3
    assert json.loads(again.out) == json.loads(json.dumps(load_run(real.run).to_json()))


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
        found.k.basis,
        "",
        "Category    Kind   Images   Labelled   Unsure   Cohesion",
        "────────────────────────────────────────────────────────",
        "oak        known        4          0        0       0.88",
        "new 1        new        4          2        1       0.88",
        "",
        f"Report: {Path('a run', 'report.html')}",
        "Too coarse or too fine? sortal discover 'a run' --granularity finer (or coarser) sorts again without "
        "training.",
        "",
    ]
    odd = replace(found.assignments, status=np.where(found.assignments.status == "unsure", "other", "new"))
    first, *lines = shown(replace(found, assignments=odd, categories=(made[0], replace(made[1], other=3))), capsys)
    assert first == "8 images: 0 labelled, 0 known, 5 new, 0 unsure, 3 other."
    assert lines[3].split() == ["Category", "Kind", "Images", "Labelled", "Unsure", "Other", "Cohesion"]
    assert [row[-2] for row in table_of(lines)] == ["0", "3"]
    review = Review(by_hand())
    review.take(Bin(images=by_hand().assignments.contents[7:]))
    first, *_ = shown(review.run(), capsys)
    assert first.endswith(" unsure, 1 in the bin.")
    finer = replace(found.facts.settings, granularity="finer", method="uno")
    found = replace(found, facts=replace(found.facts, settings=finer), k=replace(found.k, k=4, usual=2))
    lines = shown(found, capsys)
    assert (
        lines[1] == "k = 4, estimated (2 without the wish for finer ones, likely 2 to 4): 1 known category and 1 new."
    )
    assert lines[-2].endswith("sortal discover 'a run' --granularity usual (or coarser) sorts again.")
    sizes = [(2, False), (1, True), (9, False), (4, True), (0, False)]
    found = a_run(*(category(number, known=known, size=size) for number, (size, known) in enumerate(sizes)))
    rows = table_of(shown(found, capsys))
    assert [int(row[1]) for row in rows] == [3, 1, 2, 0, 4]
    assert rows[-1] == ["class", "4", "new", "0", "8", "4"], "a category without images has no cohesion"
    found = replace(sample_run(), k=KChoice(k=6, estimated=False, known=4))
    assert shown(found, capsys)[1] == "k = 6, given: 4 known categories and 2 new."
    assert found.metrics is not None
    accuracy = Accuracy(all=0.5, old=0.98765, new=None)
    metrics = replace(found.metrics, accuracy=accuracy, known_accuracy=0.8012, images=1234)
    lines = shown(replace(found, metrics=metrics), capsys)
    line = (
        "Accuracy, %: All 50.0, Old 98.8 (80.1 by name), New n/a; on the 1,234 unlabelled images whose truth is known."
    )
    assert lines[-5:] == ["", line, "", f"Report: {found.report}", ""]


@pytest.mark.parametrize("count", thorough_but([24, 25], [24, 25, 1000]))
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


def test_demo_prints_a_table_or_json(stub: Stub) -> None:
    asked = stub("sortal.discovery.demo.run", RESULT)
    done = invoke("demo")
    assert (done.code, done.err) == (0, NOTE)
    assert done.out.startswith("72 images: ")
    assert "\nsortal discover                     95.0   90.0    97.5\n" in done.out
    found = json.loads(invoke("demo", "--json").out)
    accuracy = {"plain": RESULT.plain, "semi_supervised": RESULT.semi_supervised, "discovered": RESULT.discovered}
    assert found.pop("accuracy") == {name: asdict(each) for name, each in accuracy.items()}
    assert (found.pop("k_true"), found.pop("seconds")) == (10, 61.6)
    assert found == json.loads(json.dumps(RESULT.run.to_json())), "the rest is the output of discover"
    words = "--k 7 --labelled 0.25 --epochs 2 --seed 5 --out x --device cpu"
    assert invoke("demo", *words.split()).code == 0
    usual = {"out": Path("digits-run"), "k": "auto", "labelled": 0.5, "epochs": "auto", "seed": 0}
    chosen = {"out": Path("x"), "k": 7, "labelled": 0.25, "epochs": 2, "seed": 5, "device": "cpu"}
    assert asked == [usual, usual, chosen]


def test_the_demo_is_printed_like_discover_with_a_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    discover.print_demo(RESULT)
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
    assert lines[:-12] == shown(RESULT.run, capsys)[:-4], "the output of sortal discover comes first"


COUNTS = {"images": 12_345, "labelled": 1_200, "unlabelled": 11_145, "classes": 7, "held_out": 240}
WORDS = {
    "k": "auto",
    "granularity": "usual",
    "method": "gcd",
    "backbone": "vit",
    "weights": "from the hub",
    "device": "cpu",
}
ROOM = {"memory": 3_200_000_000, "disk": 45_600_000, "free_disk": 78_900_000_000}
FURTHER: dict[str, Any] = {
    "tokens": token_cache.TokenPlan(2_500_000_000, "memory"),
    "seconds": {"check": 0.4, "pixels": 12.3, "learn": 5400.0, "report": 100.0},
    "notes": ("There is no GPU.", "Label\x1b more."),
    "unreadable_sample": ("a\nb.jpg",),
}
PLAN = RunForecast(quicker="", epochs=100, counting_epochs=0, views=4, **FURTHER, **COUNTS, **WORDS, **ROOM)  # type: ignore[arg-type]


def planned(capsys: pytest.CaptureFixture[str], **changes: Any) -> dict[str, str]:
    """Return the printed values by name."""
    discover.print_forecast(replace(PLAN, **changes))
    rows = [re.split(r" {2,}", line.rstrip(), maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    return {row[0]: row[1] for row in rows if len(row) == 2 and row[0]}


def test_a_dry_run_is_printed_in_full(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    discover.print_forecast(PLAN)
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
    assert planned(capsys, granularity="finer")["classes"] == "estimated, finer than usual"
    assert planned(capsys, views=None, tokens=None)["training"] == "100 epochs, new views in every epoch"
    both = planned(capsys, counting_epochs=40, views=None, tokens=None)["training"]
    assert both == "100 epochs and 40 to count the classes, new views in every epoch"
    assert planned(capsys, method="kmeans")["training"] == "none"
    assert planned(capsys, epochs=0)["training"] == "none"
    discover.print_forecast(replace(PLAN, notes=(), unreadable_sample=()))
    assert capsys.readouterr().out.splitlines()[-1].startswith("time")
    for seconds, text in (
        ({"check": 0.2, "report": 0.4}, "about 1 s"),
        ({"check": 0.6, "learn": 89.2}, "about 90 s: check 1 s, learn 89 s"),
        ({"learn": 90.0}, "about 2 min: learn 2 min"),
        ({"learn": 5399.0}, "about 90 min: learn 90 min"),
        ({"learn": 72_000.0, "report": 0.1}, "about 20.0 h: learn 20.0 h"),
    ):
        assert planned(capsys, seconds=seconds)["time"] == text
