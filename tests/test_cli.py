import csv
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field, fields, replace
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import tiny_folder
from PIL import Image
from sample_run import HOSTILE, sample_run

import sortal
from sortal import check, cli, demo, export, figures, job, pipeline, prediction, show
from sortal.benchmark import presets, records, sweep, tables
from sortal.benchmark.choice import choose
from sortal.config import Discovery, MethodName
from sortal.datasets import digits
from sortal.demo import DemoResult
from sortal.errors import InputError, SortalError
from sortal.export import Exported
from sortal.export.job import How
from sortal.metrics import Accuracy
from sortal.pixels import Quarantined
from sortal.prediction import Prediction
from sortal.reading import Folders, Unlisted, read_images
from sortal.run import Run, load
from sortal.tables import ExtraColumns

RESULT = DemoResult(
    run=sample_run(),
    plain=Accuracy(all=0.75, old=0.5, new=0.875),
    semi_supervised=Accuracy(all=0.9, old=None, new=1.0),
    discovered=Accuracy(all=0.95, old=0.9, new=0.975),
    k_true=10,
    seconds=1.26,
)
RUN = "import sys; from sortal.cli import main; sys.exit(main())"
COMMANDS = sorted(name for name in cli.app if not name.startswith("-"))
SUBCOMMANDS = ("benchmark presets", "benchmark table")
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(cli, name) for name in COMMANDS},
    "benchmark": cli.run_benchmark,
    "benchmark presets": cli.list_presets,
    "benchmark table": cli.table,
}
QUICK = ("--backbone", "convnet", "--epochs", "1", "--k", "6", "--workers", "1")
NASTY = '=1+1, "a"\n\x1b[31m.png'


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """Replaces the demo by one that notes its arguments and returns RESULT."""
    seen: list[dict[str, object]] = []

    def run(
        out: Path, *, on_progress: Callable[[str, int, int], None], on_note: Callable[[str], None], **others: object
    ) -> DemoResult:
        on_progress("Learning", 3, 7)
        on_note("Something to know.")
        on_progress("Clustering pixels", 0, 0)
        seen.append({"out": out, **others})
        return RESULT

    monkeypatch.setattr("sortal.demo.run", run)
    return seen


@pytest.fixture(autouse=True)
def terminal_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tester's own terminal says must not change what is printed here."""
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def run(*_: object, **__: object) -> DemoResult:
        raise error

    monkeypatch.setattr("sortal.demo.run", run)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"{sortal.__version__}\n"


@pytest.mark.parametrize(
    ("tokens", "example"),
    [
        ([], "sortal discover photos  "),
        (["--help"], "sortal discover photos  "),
        (["discover", "--help"], "sortal discover photos --labels labels.csv --out run"),
        (["predict", "--help"], "sortal predict photos-run new_photos --update"),
        (["export", "--help"], "sortal export photos-run --format folders --out sorted"),
        (["figures", "--help"], "sortal figures photos-run --which attention --images oak/1.jpg --out pictures"),
        (["benchmark", "--help"], "sortal benchmark --preset table3/cub/gcd --root data"),
        (["benchmark", "table", "--help"], "sortal benchmark table benchmark --out tables"),
        (["benchmark", "presets", "--help"], "sortal benchmark presets"),
        (["demo", "--help"], "sortal demo --k 10"),
        (["check", "--help"], "sortal check photos --labels labels.csv"),
        (["sample", "--help"], "sortal sample digits OUT"),
    ],
)
def test_help_has_examples(tokens: list[str], example: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(tokens) == 0
    out = capsys.readouterr().out
    assert out.startswith("Usage: sortal")
    assert example in out.split("Examples:")[1]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_help_tells_every_option_and_fits_a_terminal(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*name.split(), "--help"]) == 0
    out = capsys.readouterr().out
    assert re.search(rf"^  sortal {name}\b", out.split("Examples:")[1], flags=re.MULTILINE)
    for option in signature(FUNCTIONS[name]).parameters.values():
        shown = f"--{option.name.replace('_', '-')}" if option.kind is option.KEYWORD_ONLY else option.name.upper()
        assert re.search(rf"(?<![\w-]){shown}(?![\w-])", out), shown
    assert max(map(len, out.splitlines())) <= 80


def test_help_tells_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    listed = capsys.readouterr().out.split("Commands")[1]
    assert COMMANDS == ["benchmark", "check", "demo", "discover", "export", "figures", "predict", "sample"]
    assert all(re.search(rf"^\W*{name} ", listed, flags=re.MULTILINE) for name in COMMANDS)
    assert cli.main(["benchmark", "--help"]) == 0
    listed = capsys.readouterr().out.split("Commands")[1]
    assert {f"benchmark {name}" for name in cli.benchmark if not name.startswith("-")} == {*SUBCOMMANDS}
    assert all(re.search(rf"^\W*{name.split()[1]} ", listed, flags=re.MULTILINE) for name in SUBCOMMANDS)


def test_it_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "sortal", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{sortal.__version__}\n"


def test_help_and_version_load_nothing_heavy() -> None:
    code = (
        "import sys; from sortal.cli import app, main; assert 0 == main(['--version']) == main(['--help']); "
        "assert not any(main([name, '--help']) for name in app if not name.startswith('-')); "
        "assert 0 == main(['benchmark', 'table', '--help']) == main(['benchmark', 'presets', '--help']); "
        "print(*{'PIL', 'numpy', 'scipy', 'sklearn', 'torch', 'timm', 'pandas'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.split() == []
    assert done.stdout.count("Examples:") == 1 + len(FUNCTIONS)


def test_demo_as_a_table(calls: list[dict[str, object]], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("72 images: ")
    assert "\nsortal discover                     95.0   90.0    97.5\n" in out
    assert err == "sortal: Something to know.\n"


def test_demo_as_json(calls: list[dict[str, object]], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.pop("accuracy") == {
        "plain": {"all": 0.75, "old": 0.5, "new": 0.875},
        "semi_supervised": {"all": 0.9, "old": None, "new": 1.0},
        "discovered": {"all": 0.95, "old": 0.9, "new": 0.975},
    }
    assert (found.pop("k_true"), found.pop("seconds")) == (10, 1.26)
    assert found == json.loads(json.dumps(RESULT.run.to_json())), "the rest is what discover gives"


def test_demo_options_reach_the_library(calls: list[dict[str, object]]) -> None:
    assert cli.main(["demo"]) == 0
    assert cli.main(["demo", "--k", "7", "--labelled", "0.25", "--epochs", "2", "--seed", "5", "--out", "x"]) == 0
    assert cli.main(["demo", "--k", "auto", "--epochs", "auto", "--device", "cpu"]) == 0
    out = Path("digits-run")
    assert calls == [
        {"out": out, "k": "auto", "labelled": 0.5, "epochs": "auto", "seed": 0, "device": "auto"},
        {"out": Path("x"), "k": 7, "labelled": 0.25, "epochs": 2, "seed": 5, "device": "auto"},
        {"out": out, "k": "auto", "labelled": 0.5, "epochs": "auto", "seed": 0, "device": "cpu"},
    ]


# discover


@dataclass
class Called:
    """What discover asked the library for."""

    prepared: list[dict[str, Any]] = field(default_factory=list)
    carried_out: int = 0
    planned: int = 0
    found: Run = field(default_factory=sample_run)


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Called:
    """Replaces the work of discover by functions that note what they are asked for."""
    seen, prepared = Called(), object()
    real = signature(job.prepare)

    def prepare(*values: object, **options: object) -> object:
        seen.prepared.append(dict(real.bind(*values, **options).arguments))
        return prepared

    def carry_out(given: object, *, on_progress: Any, on_note: Any) -> Run:
        assert given is prepared
        on_progress("[3/7] Learning", 1, 2)
        on_note("Learning for 100 epochs.")
        seen.carried_out += 1
        return seen.found

    def plan(given: object, *, on_progress: Any) -> SimpleNamespace:
        assert given is prepared
        on_progress("Trying", 1, 2)
        seen.planned += 1
        return SimpleNamespace(to_json=lambda: {"images": 36})

    monkeypatch.setattr("sortal.job.prepare", prepare)
    monkeypatch.setattr("sortal.pipeline.carry_out", carry_out)
    monkeypatch.setattr("sortal.plan.plan", plan)
    return seen


def test_discover_without_options_asks_for_what_the_library_does_by_itself(called: Called) -> None:
    assert cli.main(["discover", "photos"]) == 0
    assert called.prepared == [
        {
            "images": Path("photos"),
            "labels": None,
            "out": None,
            "settings": Discovery(),
            "reading": job.READING,
            "device": "auto",
            "workers": None,
            "force": False,
        }
    ]
    assert (called.carried_out, called.planned) == (1, 0)


SETTINGS: dict[str, tuple[str, Any]] = {
    "k": ("7", 7),
    "method": ("kmeans", "kmeans"),
    "backbone": ("convnet", "convnet"),
    "weights": ("w.pth", "w.pth"),
    "epochs": ("3", 3),
    "lr": ("0.5", 0.5),
    "views": ("4", 4),
    "seed": ("5", 5),
    "k_max": ("60", 60),
    "n_init": ("2", 2),
    "held_out": ("0.25", 0.25),
    "unsure_below": ("0.75", 0.75),
}
READING: dict[str, tuple[str, Any]] = {
    "folders": ("ignore", "ignore"),
    "unlabelled": ("rest", "rest"),
    "unlisted": ("unlabelled", "unlabelled"),
    "extra_columns": ("ignore", "ignore"),
}
OTHERS: dict[str, tuple[str, Any]] = {
    "labels": ("l.csv", Path("l.csv")),
    "out": ("o", Path("o")),
    "device": ("cpu", "cpu"),
    "workers": ("1", 1),
    "force": ("", True),
}


@pytest.mark.parametrize("name", [*SETTINGS, *READING, *OTHERS])
def test_each_option_of_discover_reaches_the_library(name: str, called: Called) -> None:
    word, value = {**SETTINGS, **READING, **OTHERS}[name]
    assert cli.main(["discover", "photos"]) == 0
    assert cli.main(["discover", "photos", f"--{name.replace('_', '-')}", *([word] if word else [])]) == 0
    plain, changed = called.prepared
    if name in SETTINGS:
        assert changed == {**plain, "settings": replace(Discovery(), **{name: value})}
    elif name in READING:
        assert changed == {**plain, "reading": {**job.READING, name: value}}
    else:
        assert changed == {**plain, name: value}


def test_every_option_of_discover_is_tried_here() -> None:
    names = set(signature(cli.discover).parameters)
    assert names == {*SETTINGS, *READING, *OTHERS, "images", "json", "dry_run"}
    assert SETTINGS.keys() == vars(Discovery()).keys()


@pytest.mark.parametrize(("word", "views"), [("live", None), ("auto", "auto"), ("2", 2)])
def test_live_views_are_new_ones_in_every_epoch(word: str, views: Any, called: Called) -> None:
    assert cli.main(["discover", "photos", "--views", word, "--k", "auto", "--epochs", "auto", "--lr", "auto"]) == 0
    assert called.prepared[0]["settings"] == replace(Discovery(), views=views)


def test_discover_as_text(called: Called, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["discover", "photos"]) == 0
    out, err = capsys.readouterr()
    show.run(called.found)
    assert out == capsys.readouterr().out
    assert err == "sortal: Learning for 100 epochs.\n"


def test_discover_as_json_and_nothing_else(
    called: Called, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called.found = sample_run(name=lambda number: f"{HOSTILE[number]}\x1b[31m"[-99:])
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert cli.main(["discover", "photos", "--json"]) == 0
    out = capsys.readouterr().out
    assert json.loads(out) == json.loads(json.dumps(called.found.to_json()))
    assert all(line.isprintable() for line in out.splitlines())
    assert "sortal: Learning for 100 epochs.\n" in terminal.getvalue()
    assert "[3/7] Learning" in terminal.getvalue()


@pytest.mark.parametrize("tokens", [[], ["--json"]])
def test_discover_exits_with_3_where_files_were_left_out(
    tokens: list[str], called: Called, capsys: pytest.CaptureFixture[str]
) -> None:
    called.found = sample_run(quarantine=[Quarantined("a/b.jpg", "empty", "0 bytes")])
    assert cli.main(["discover", "photos", *tokens]) == 3
    assert "a/b.jpg" in capsys.readouterr().out


def test_a_dry_run_plans_and_does_nothing(
    called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(show, "plan", lambda planned: show._line(f"a plan of {planned.to_json()['images']}"))
    assert cli.main(["discover", "photos", "--dry-run", "--k", "3"]) == 0
    assert capsys.readouterr() == ("a plan of 36\n", "")
    assert cli.main(["discover", "photos", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"images": 36}
    assert [asked["settings"].k for asked in called.prepared] == [3, "auto"]
    assert (called.carried_out, called.planned) == (0, 2)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("how", [(), ("--json",)])
def test_where_nobody_can_read_notes_they_are_not_among_the_results(
    how: tuple[str, ...], called: Called, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", None)  # as Python has it where the stream is closed
    assert cli.main(["discover", "photos", *how]) == 0
    assert "Learning for" not in capsys.readouterr().out
    fail_with(monkeypatch, InputError("No."))
    assert cli.main(["demo"]) == 2
    assert capsys.readouterr().out == ""


@dataclass(frozen=True)
class Real:
    """A folder of images, one of which cannot be read, and what came of sorting it."""

    images: Path
    run: Path
    done: "Done"


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


def sortal_does(*tokens: object) -> Done:
    """Call the command line, with streams as they are outside of tests."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="\n") for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err):
        code = cli.main([str(token) for token in tokens])
    for stream in (out, err):
        stream.flush()
    assert isinstance(out.buffer, io.BytesIO)
    assert isinstance(err.buffer, io.BytesIO)
    return Done(code, out.buffer.getvalue().decode(), err.buffer.getvalue().decode())


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Real:
    folder = tmp_path_factory.mktemp("real")
    tiny_folder.write(folder / "photos", tiny_folder.planted(6, 3))
    (folder / "photos" / "ash" / "broken.png").write_bytes(b"")
    done = sortal_does("discover", folder / "photos", "--out", folder / "run", *QUICK)
    return Real(folder / "photos", folder / "run", done)


def test_discover_for_real(real: Real) -> None:
    assert real.done.code == 3
    lines = real.done.out.splitlines()
    assert lines[0].startswith("36 images: 9 labelled, ")
    assert lines[1] == "k = 6, given: 3 known categories and 3 new ones."
    assert lines[-4:] == ["  empty: 0 bytes", "    ash/broken.png", "", f"Report: {real.run / 'report.html'}"]
    assert real.done.err.splitlines()[0] == "sortal: 1 files cannot be read and are left out."
    assert (real.run / "report.html").stat().st_size > 10_000
    assert load(real.run).about["settings"]["backbone"] == "convnet"
    again = sortal_does("discover", real.images, "--out", real.run, *QUICK, "--json")
    assert again.code == 3
    assert json.loads(again.out) == json.loads(json.dumps(load(real.run).to_json()))


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["nowhere"], "The image folder 'nowhere' does not exist."),
        (["photos", "--k", "2"], "k must be from 3 (the labelled classes) to 30"),
        (["photos", "--k-max", "2"], "k_max must be at least 3 (the labelled classes), got 2."),
        (["photos", "--labels", "nowhere.csv"], "The table 'nowhere.csv' does not exist."),
        (["photos", "--held-out", "0.9"], "held_out must be a number of at least 0 and at most 0.5, got 0.9."),
        (["photos", "--out", "photos/run"], "The run must not lie among the images"),
        (["photos", "--out", "file"], "The run must be a folder, got 'file'"),
        (["photos", "--out", "file/run", "--backbone", "convnet"], "The folder 'file/run' cannot be written"),
        (["photos", "--backbone", "nonsense"], "The backbone must be 'convnet' or a model of timm, got 'nonsense'."),
        (["photos", "--weights", "nowhere.pth"], "The file of weights 'nowhere.pth' is not there."),
        (["photos", "--backbone", "convnet", "--device", "mps"], "device must be on this machine, got 'mps'"),
    ],
)
def test_what_cannot_be_sorted_exits_2_and_nothing_is_written(
    tokens: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny_folder.write(tmp_path / "photos", tiny_folder.planted(6, 3))
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    assert cli.main(["discover", *tokens]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("sortal: error: ")
    assert err.count("\n") == 1
    assert message in err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_with_nothing_but_a_lock_is_as_good_as_empty(tmp_path: Path) -> None:
    """A run that was broken off at once leaves one."""
    tiny_folder.write(tmp_path / "photos", tiny_folder.planted(6, 3))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").touch()
    with tiny_folder.quickly():
        done = sortal_does("discover", tmp_path / "photos", "--out", tmp_path / "run", *QUICK)
    assert (done.code, done.out.splitlines()[0][:12]) == (0, "36 images: 9")


# predict


@pytest.fixture(scope="module")
def further(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images that the run has never seen, one of them with a name that is trouble in a table and on a terminal."""
    folder = tmp_path_factory.mktemp("further")
    for at, name in enumerate(("ash", "elm", "oak")):
        tiny_folder.save(folder / "some" / f"{name}.png", tiny_folder.picture(name, 50 + at))
    tiny_folder.save(folder / NASTY, tiny_folder.picture("fir", 60))
    return folder


FILES = sorted(["some/ash.png", "some/elm.png", "some/oak.png", NASTY])


def test_predict_writes_a_table_that_others_read(real: Real, further: Path) -> None:
    done = sortal_does("predict", real.run, further, "--workers", "1")
    assert done.code == 0
    header, *rows = csv.reader(io.StringIO(done.out, newline=""), strict=True)
    assert header == list(prediction.COLUMNS)
    assert sorted(row[0] for row in rows) == sorted(["'" + NASTY if file == NASTY else file for file in FILES])
    names = load(real.run).names
    for row in rows:
        cells = dict(zip(header, row, strict=True))
        assert cells["category_name"] == names[int(cells["category"])]
        assert cells["status"] in {"known", "new", "unsure"}
        assert 0 <= float(cells["confidence"]) <= 1
    assert re.fullmatch(r"4 images: \d known, \d new, \d unsure\.\n", done.err), "the summary, and not on stdout"


def test_predict_as_json(real: Real, further: Path) -> None:
    done = sortal_does("predict", real.run, further, "--workers", "1", "--json")
    found = json.loads(done.out)
    assert sorted(row["file_name"] for row in found["images"]) == FILES
    assert (found["quarantine"], found["added"], found["candidates"]) == ([], 0, [])


def test_predict_into_a_file(real: Real, further: Path, tmp_path: Path) -> None:
    table, tokens = tmp_path / "table.csv", ("predict", real.run, further, "--workers", "1")
    wanted = sortal_does(*tokens)
    done = sortal_does(*tokens, "--out", table)
    assert (done.code, done.out, done.err) == (0, "", wanted.err)
    assert table.read_bytes().decode() == wanted.out
    table.write_text("mine")
    done = sortal_does(*tokens, "--out", table)
    assert (done.code, done.out, table.read_text()) == (2, "", "mine")
    assert "must be a new file" in done.err
    assert "--force" in done.err
    assert sortal_does(*tokens, "--out", table, "--force", "--json").code == 0
    assert len(json.loads(table.read_text())["images"]) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]


@pytest.mark.parametrize("out", ["nowhere/table.csv", "file/table.csv", "folder"])
def test_a_table_that_cannot_be_written_is_told_before_any_work(
    out: str, real: Real, further: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sortal.prediction.predict", lambda *_, **__: pytest.fail("worked in vain"))
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.rglob("*"))
    for how in ((), ("--force",)):
        done = sortal_does("predict", real.run, further, "--out", tmp_path / out, *how)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith("sortal: error: The table must ")
        assert str(tmp_path / out) in done.err
        assert sorted(tmp_path.rglob("*")) == before


def test_predict_goes_on_without_unreadable_files_and_exits_3(real: Real, further: Path, tmp_path: Path) -> None:
    shutil.copytree(further, tmp_path / "new")
    (tmp_path / "new" / "bro\nken.png").write_text("no image")
    done = sortal_does("predict", real.run, tmp_path / "new", "--workers", "1")
    assert done.code == 3
    assert len([*csv.reader(io.StringIO(done.out, newline=""))]) == 5
    assert "  cannot be read, left out: bro\\nken.png (not an image: " in done.err


def test_predict_with_update(real: Real, further: Path, tmp_path: Path) -> None:
    run = shutil.copytree(real.run, tmp_path / "run")
    with tiny_folder.quickly():
        done = sortal_does("predict", run, further, "--workers", "1", "--update")
    assert done.code == 0
    assert f"\n4 images were added to the run; report: {run / 'report.html'}\n" in done.err
    assert len(load(run).assignments) == 40
    done = sortal_does("predict", run, further, "--workers", "1", "--update")
    assert done.err.startswith("sortal: All of these images are in the run already: it stays as it is.\n")
    done = sortal_does("discover", real.images, "--out", run, *QUICK)
    assert (done.code, done.out) == (2, "")
    assert "4 images were added to the run" in done.err


def test_predict_by_something_that_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some_images(tmp_path / "photos")
    for run in ("photos", "nowhere"):
        assert cli.main(["predict", str(tmp_path / run), str(tmp_path / "photos")]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("sortal: error: A run must be the folder that sortal discover wrote, got ")
    assert not (tmp_path / "nowhere").exists()


def test_predict_options_reach_the_library(monkeypatch: pytest.MonkeyPatch, real: Real) -> None:
    seen: list[dict[str, Any]] = []
    one = Prediction(run=load(real.run), assignments=sample_run().assignments, quarantine=(), added=0)

    def predict(run: Path, images: Path, *, on_progress: Any, on_note: Any, **options: Any) -> Prediction:
        on_progress("Computing features", 1, 2)
        on_note("A note.")
        seen.append({"run": run, "images": images, **options})
        return one

    monkeypatch.setattr("sortal.prediction.predict", predict)
    done = sortal_does("predict", "r", "i")
    assert done.err.startswith("sortal: A note.\n72 images: ")
    sortal_does("predict", "r", "i", "--update", "--device", "cpu", "--workers", "3")
    start = {"run": Path("r"), "images": Path("i")}
    assert seen == [
        {**start, "update": False, "device": "auto", "workers": None},
        {**start, "update": True, "device": "cpu", "workers": 3},
    ]


# export


def test_export_options_reach_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[object, ...]] = []

    def write(run: object, format: str, out: Path, *, how: str, force: bool, on_progress: Any) -> Exported:
        on_progress("Writing", 1, 2)
        seen.append((run, format, out, how, force))
        return Exported(format=format, out=out, images=5, missing=())

    monkeypatch.setattr("sortal.run.load", lambda folder: f"the run in {folder}")
    monkeypatch.setattr("sortal.export.export", write)
    tokens = ("export", "r", "--out", "o", "--format")
    for name in export.FORMATS:
        assert sortal_does(*tokens, name) == Done(0, f"5 images written as {name}: o\n", "")
    for how in get_args(How):
        sortal_does(*tokens, "folders", "--how", how, "--force")
    assert seen == [
        *(("the run in r", name, Path("o"), "hardlink", False) for name in export.FORMATS),
        *(("the run in r", "folders", Path("o"), how, True) for how in get_args(How)),
    ]


def test_export_for_real(real: Real, tmp_path: Path) -> None:
    out = tmp_path / "table.csv"
    tokens = ("export", real.run, "--format", "csv", "--out", out)
    assert sortal_does(*tokens) == Done(0, f"36 images written as csv: {out}\n", "")
    written = out.read_bytes()
    out.write_text("mine")
    done = sortal_does(*tokens)
    assert (done.code, done.out, out.read_text()) == (2, "", "mine")
    assert done.err.startswith(f"sortal: error: The file '{out}' is there already.")
    assert sortal_does(*tokens, "--force").code == 0
    assert out.read_bytes() == written


def test_export_without_files_that_are_gone_exits_3(real: Real, tmp_path: Path) -> None:
    run, images = shutil.copytree(real.run, tmp_path / "run"), shutil.copytree(real.images, tmp_path / "photos")
    about = json.loads((run / "run.json").read_text())
    about["images"][0]["folder"] = str(images)
    (run / "run.json").write_text(json.dumps(about))
    (images / "ash" / "1.png").unlink()
    done = sortal_does("export", run, "--format", "folders", "--out", tmp_path / "sorted", "--how", "copy")
    said = [f"35 images written as folders: {tmp_path / 'sorted'}", "  not there any more, left out: ash/1.png"]
    assert done == Done(3, "\n".join(said) + "\n", "")
    assert (tmp_path / "sorted" / "ash" / "0.png").stat().st_nlink == 1, "copies, as was asked for"


def test_export_of_something_that_is_no_run(tmp_path: Path) -> None:
    done = sortal_does("export", tmp_path, "--format", "csv", "--out", tmp_path / "x.csv")
    assert (done.code, done.out) == (2, "")
    assert "A run must be the folder that sortal discover wrote" in done.err
    assert [*tmp_path.iterdir()] == []


# figures


def test_figures_options_reach_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def draw(run: object, out: Path | None, *, on_progress: Any, on_note: Any, **options: Any) -> figures.Drawn:
        on_progress("Drawing tsne", 1, 2)
        on_note("A note.")
        seen.append({"run": run, "out": out, **options})
        return figures.Drawn(out=Path("o"), files=(Path("o/a.png"), Path("o/a.svg")), left_out={"legacy": "No truth."})

    monkeypatch.setattr("sortal.run.load", lambda folder: f"the run in {folder}")
    monkeypatch.setattr("sortal.figures.draw", draw)
    said = "o/a.png\no/a.svg\nLeft out: legacy. No truth.\n"
    assert sortal_does("figures", "r") == Done(0, said, "sortal: A note.\n")
    words = "--out o --which tsne,legacy --images a.png b/c.png --seed 5 --device cpu --workers 1 --force"
    assert sortal_does("figures", "r", *words.split()).code == 0
    assert sortal_does("figures", "r", "--images", "a.png", "--images", "b.png").code == 0
    usual = {"which": None, "images": None, "seed": 0, "device": "auto", "workers": None, "force": False}
    start = {"run": "the run in r", "out": None, **usual}
    assert seen == [
        start,
        {
            "run": "the run in r",
            "out": Path("o"),
            "which": ["tsne", "legacy"],
            "images": ["a.png", "b/c.png"],
            "seed": 5,
            "device": "cpu",
            "workers": 1,
            "force": True,
        },
        {**start, "images": ["a.png", "b.png"]},
    ]


def test_figures_for_real(real: Real, tmp_path: Path) -> None:
    """A run of the small network, which was told k and does not know the truth, has material for one of them."""
    out = tmp_path / "figures"
    done = sortal_does("figures", real.run, "--out", out, "--workers", "1")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[:2] == [str(out / "tsne.png"), str(out / "tsne.svg")]
    assert [line.split(".")[0] for line in lines[2:]] == [
        f"Left out: {name}" for name in ("attention", "k-curve", "risk-coverage", "legacy")
    ]
    assert all(line.endswith(".") for line in lines[2:])
    assert sorted(path.name for path in out.iterdir()) == ["tsne.png", "tsne.svg"]
    with Image.open(out / "tsne.png") as image:
        assert min(image.size) > 300
    (out / "tsne.png").write_text("mine")
    done = sortal_does("figures", real.run, "--out", out, "--which", "tsne")
    assert (done.code, done.out, (out / "tsne.png").read_text()) == (2, "", "mine")
    assert "is no figure of Sortal" in done.err
    assert "--force" in done.err


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["nowhere"], "A run must be the folder that sortal discover wrote, got 'nowhere'"),
        (["RUN", "--which", "tsne,map"], "which must be a list of some of tsne, attention, k-curve, risk-coverage"),
        (["RUN", "--which", ""], "which must be a list of some of"),
        (["RUN", "--images", "no.png"], "images must be file names of the run"),
        (["RUN", "--out", "file"], "Figures go into a folder, got 'file', which is a file."),
        (["RUN", "--device", "mps"], "device must be on this machine"),
    ],
)
def test_figures_that_cannot_be_drawn_exit_2_and_nothing_is_written(
    tokens: list[str], message: str, real: Real, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    before = sorted(real.run.rglob("*"))
    done = sortal_does("figures", *(real.run if token == "RUN" else token for token in tokens))
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("sortal: error: ")
    assert done.err.count("\n") == 1
    assert message in done.err
    assert sorted(real.run.rglob("*")) == before
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# benchmark


@dataclass(frozen=True)
class Benchmarked:
    """Two methods and two seeds on a folder of classes, by the command line."""

    root: Path
    out: Path
    done: "Done"

    def words(self, *further: object) -> tuple[object, ...]:
        options = "--method kmeans,uno --backbone convnet --epochs 1 --seeds 0,1 --device cpu --workers 1"
        return "benchmark", "folder", "--root", self.root, "--out", self.out, *options.split(), *further


@pytest.fixture(scope="module")
def benchmarked(tmp_path_factory: pytest.TempPathFactory) -> Benchmarked:
    folder = tmp_path_factory.mktemp("benchmarked")
    for name in tiny_folder.CLASSES:
        for number in range(10):
            tiny_folder.save(folder / "trees" / name / f"{number}.png", tiny_folder.picture(name, number))
    asked = Benchmarked(folder / "trees", folder / "out", Done(0, "", ""))
    with tiny_folder.quickly():
        return replace(asked, done=sortal_does(*asked.words()))


def test_benchmark_for_real(benchmarked: Benchmarked) -> None:
    done, out = benchmarked.done, benchmarked.out
    assert done.code == 0
    found = records.find([out])
    assert sorted((record.name, record.seed) for record in found) == [
        *(("trees/kmeans", seed) for seed in (0, 1)),
        *(("trees/uno", seed) for seed in (0, 1)),
    ]
    figures_of = [f"{100 * record.transductive['accuracy']['all']:.1f}" for record in found]
    assert all(figure in done.out for figure in figures_of)
    assert [line.partition(": All ")[0] for line in done.err.splitlines()] == [
        f"sortal: trees/{method}, k true, seed {seed}" for method in ("kmeans", "uno") for seed in (0, 1)
    ], "each as soon as it is done"
    assert done.out.count("trees/kmeans") >= 1
    assert done.out.splitlines()[-1] == f"Runs are in {out / 'trees'}; sortal benchmark table makes tables of them."
    assert max(map(len, done.out.splitlines()[:-1])) <= 80
    again = sortal_does(*benchmarked.words())
    assert (again.code, again.out) == (0, done.out)
    assert again.err == "sortal: 4 of 4 runs were done before.\n"


def test_benchmark_as_json_and_nothing_else(benchmarked: Benchmarked) -> None:
    done = sortal_does(*benchmarked.words("--json"))
    assert done.code == 0
    found = json.loads(done.out)
    assert [(each["name"], each["seed"]) for each in found] == [
        ("trees/kmeans", 0),
        ("trees/kmeans", 1),
        ("trees/uno", 0),
        ("trees/uno", 1),
    ]
    files = [benchmarked.out / each["name"] / "k-true" / f"seed-{each['seed']}" / "benchmark.json" for each in found]
    assert found == [json.loads(file.read_text()) for file in files]


def test_a_run_that_fails_is_named_and_the_command_exits_1(benchmarked: Benchmarked, tmp_path: Path) -> None:
    """The loss of one of two methods is no number any more."""
    words = [*benchmarked.words("--lr", "1e30")]
    words[words.index("--out") + 1], words[words.index("--epochs") + 1] = tmp_path / "out", 3
    done = sortal_does(*words, "--json")
    assert done.code == 1
    assert [each["name"] for each in json.loads(done.out)] == ["trees/kmeans"] * 2
    notes = [note.partition(" failed: ")[0] for note in done.err.splitlines() if " failed: " in note]
    assert notes == [f"sortal: trees/uno, k true, seed {seed}" for seed in (0, 1)]
    done = sortal_does(*words)
    assert done.code == 1
    lines = [line for line in done.out.splitlines() if line.startswith("Failed: ")]
    assert [line[:34] for line in lines] == [f"Failed: trees/uno, k true, seed {seed}:" for seed in (0, 1)]
    assert all("Use a lower lr." in line for line in lines)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["benchmark"], "A data set or a preset must be named: sortal benchmark presets lists them."),
        (["benchmark", "mnist"], "The data set must be one of cifar10, cifar100, imagenet100, cub,"),
        (["benchmark", "cub"], "root must be the folder that holds CUB-200-2011, got 'data', which does not exist."),
        (
            ["benchmark", "cub", "--method", "gdc"],
            "method must be one of gcd, kmeans, rankstats, simgcd, uno, got 'gdc'.",
        ),
        (["benchmark", "cub", "--method", "gcd,"], "got ''."),
        (["benchmark", "cub", "--k", "many"], "k must be true, auto or a number of at least 1, got 'many'."),
        (["benchmark", "cub", "--seeds", "a"], "seeds must be whole numbers with commas between, like 0,1,2, got 'a'."),
        (["benchmark", "cub", "--seeds", "1,1"], "seeds must be at least one, each once, got [1, 1]."),
        (["benchmark", "cub", "--epochs", "-1"], "epochs must be a whole number of at least 0, got -1."),
        (["benchmark", "cub", "--lr", "0"], "lr must be a number above 0, got 0.0."),
        (["benchmark", "cub", "--views", "1"], "views must be a whole number of at least 2 or 'auto' or None, got 1."),
        (["benchmark", "cub", "--processes", "0"], "processes must be at least 1, got 0."),
        (["benchmark", "cub", "--weights", "no.pth"], "The file of weights 'no.pth' is not there. Check the path."),
        (["benchmark", "cub", "--device", "mps"], "device must be on this machine, got 'mps'"),
        (["benchmark", "folder", "--root", "file"], "root must be a folder with a folder for each class, got 'file'"),
        (["benchmark", "folder", "--root", "empty"], "There must be images of at least two classes"),
        (["benchmark", "--preset", "table9"], "There is no preset 'table9'."),
        (["benchmark", "--preset", "table5/cifar100/1"], "needs weights that no hub has: dino_resnet50_pretrain.pth"),
        (["benchmark", "table"], "got none. Name at least one."),
        (["benchmark", "table", "nowhere"], "got 'nowhere', which is not there."),
        (["benchmark", "table", "empty"], "there is none in 'empty' or below. Run sortal benchmark first."),
        (["benchmark", "table", "file"], "The benchmark run 'file' is damaged"),
    ],
)
def test_benchmarks_that_cannot_be_run_exit_2_and_nothing_is_written(
    tokens: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    assert cli.main(tokens) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("sortal: error: ")
    assert err.count("\n") == 1
    assert message in err
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["empty", "file"]


@pytest.fixture
def sweeps(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Replaces the sweep by one that notes what it is asked for."""
    seen: list[dict[str, Any]] = []

    def noted(chosen: Any, root: Path, *, command: str, on_progress: Any, on_note: Any, **options: Any) -> sweep.Swept:
        on_progress("Run 1 of 3", 1, 2)
        on_note("A note.")
        assert command.startswith("sortal benchmark ")
        seen.append({"presets": chosen, "root": root, **options})
        return sweep.Swept(records=(), folders=(), failed=(), again=0)

    monkeypatch.setattr("sortal.benchmark.sweep.sweep", noted)
    return seen


SWEEP: dict[str, Any] = {
    "root": Path("data"),
    "out": Path("benchmark"),
    "seeds": (0, 1, 2),
    "device": "auto",
    "workers": None,
    "processes": None,
}


@pytest.mark.parametrize(
    ("words", "asked", "options"),
    [
        ("cub", {"dataset": "cub"}, {}),
        ("cub --method uno,gcd", {"dataset": "cub", "methods": ["uno", "gcd"]}, {}),
        ("--preset table3/cub/gcd", {"names": ["table3/cub/gcd"]}, {}),
        ("--preset table3 --preset table2/cifar10", {"names": ["table3", "table2/cifar10"]}, {}),
        ("cub --k auto", {"dataset": "cub", "k": "auto"}, {}),
        ("cub --k 7", {"dataset": "cub", "k": "7"}, {}),
        ("cub --backbone convnet", {"dataset": "cub", "backbone": "convnet"}, {}),
        ("cub --weights w.pth", {"dataset": "cub", "weights": "w.pth"}, {}),
        ("cub --epochs 3", {"dataset": "cub", "epochs": 3}, {}),
        ("cub --lr 0.5", {"dataset": "cub", "lr": 0.5}, {}),
        ("cub --views live", {"dataset": "cub", "views": "live"}, {}),
        ("cub --views 4", {"dataset": "cub", "views": 4}, {}),
        ("cub --views auto", {"dataset": "cub", "views": "auto"}, {}),
        ("--preset table3/cub/gcd --fast", {"names": ["table3/cub/gcd"], "fast": True}, {}),
        ("folder --root my/flowers", {"dataset": "folder", "root": "my/flowers"}, {"root": Path("my/flowers")}),
        ("cub --seeds 5", {"dataset": "cub"}, {"seeds": (5,)}),
        ("cub --out o", {"dataset": "cub"}, {"out": Path("o")}),
        ("cub --processes 2", {"dataset": "cub"}, {"processes": 2}),
        ("cub --device cpu", {"dataset": "cub"}, {"device": "cpu"}),
        ("cub --workers 3", {"dataset": "cub"}, {"workers": 3}),
    ],
)
def test_benchmark_options_reach_the_library(
    words: str, asked: dict[str, Any], options: dict[str, Any], sweeps: list[dict[str, Any]]
) -> None:
    done = sortal_does("benchmark", *words.split())
    assert (done.code, done.err) == (0, "sortal: A note.\n")
    given = {"dataset": None, "root": "data", **asked}
    chosen = choose(given.pop("dataset"), Path(given.pop("root")), **given)
    assert sweeps == [{"presets": chosen, **SWEEP, **options}]


def test_every_option_of_benchmark_is_tried_here() -> None:
    (mark,) = test_benchmark_options_reach_the_library.pytestmark
    tried = {word[2:] for case in mark.args[1] for word in case[0].split() if word.startswith("--")}
    assert tried | {"dataset", "json"} == signature(cli.run_benchmark).parameters.keys()


def test_tables_of_what_was_run(benchmarked: Benchmarked, tmp_path: Path) -> None:
    made = tables.tables(records.find([benchmarked.out]))
    done = sortal_does("benchmark", "table", benchmarked.out)
    assert done == Done(0, tables.document(made), "")
    assert done.out.startswith("# Benchmarks\n\n## trees: convnet, random weights, true k\n")
    rows = [line for line in done.out.splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[0] for row in rows[2:]] == ["| k-means", "| UNO+"]
    half = [benchmarked.out / "trees/uno", benchmarked.out / "trees/kmeans/k-true/seed-0"]
    assert "| k-means | " in sortal_does("benchmark", "table", *half).out

    out = tmp_path / "tables"
    tokens = ("benchmark", "table", benchmarked.out, "--out", out)
    assert sortal_does(*tokens) == done
    names = ["tables.md", "trees-convnet-k-true.csv"]
    assert sorted(path.name for path in out.iterdir() if not path.name.startswith(".")) == names
    assert (out / "tables.md").read_text() == done.out
    header, *body = csv.reader((out / names[1]).read_text().splitlines())
    assert (header[0], len(body)) == ("Method", 2)
    (out / "tables.md").write_text("mine")
    refused = sortal_does(*tokens)
    assert (refused.code, refused.out, (out / "tables.md").read_text()) == (2, "", "mine")
    assert "--force" in refused.err
    assert sortal_does(*tokens, "--force") == done
    assert (out / "tables.md").read_text() == done.out


def test_the_presets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["benchmark", "presets"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    joined = "".join(out.split())
    for name in ("table2/cifar10/gcd", "table4/cub", "table5/cifar100/6"):
        assert name in joined
    assert "CUB-200-2011, GCD" in out


def test_the_presets_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["benchmark", "presets", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [*found] == [*presets.PRESETS]
    one = found["table3/cub/gcd"]
    assert (one["dataset"], one["k"], one["version"]) == ("cub", "true", 1)
    assert one["recipe"]["training"]["epochs"] == 200
    assert one["recipe"]["losses"]["output"] == "prototypes"


def test_presets_tables_and_refusals_load_no_torch(benchmarked: Benchmarked) -> None:
    """What takes no computing takes no time."""
    code = (
        "import sys; from sortal.cli import main; "
        "assert main(['benchmark', 'presets']) == main(['benchmark', 'presets', '--json']) == 0; "
        f"assert main(['benchmark', 'table', {str(benchmarked.out)!r}]) == 0; "
        "assert main(['benchmark']) == main(['benchmark', 'mnist']) == main(['benchmark', '--preset', 'x']) == 2; "
        "print(*{'torch', 'timm', 'sklearn', 'pandas', 'matplotlib'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == ""
    assert len([line for line in done.stderr.splitlines() if line.startswith("sortal: error: ")]) == 3


def test_an_interrupted_benchmark_exits_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object, **__: object) -> sweep.Swept:
        raise KeyboardInterrupt

    monkeypatch.setattr("sortal.benchmark.sweep.sweep", stop)
    assert cli.main(["benchmark", "cub"]) == 130
    said = "sortal: interrupted; what was done is kept, and the same command goes on\n"
    assert capsys.readouterr() == ("", said)


# check


def some_images(folder: Path) -> None:
    """Two classes, one unlabelled image, one file that is no image."""
    for seed, name in enumerate(("cat/1.png", "cat/2.png", "dog/1.png", "unlabelled/x.png")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(seed).integers(0, 256, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / name)
    (folder / "notes.txt").touch()


def test_check_as_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some_images(tmp_path)
    assert cli.main(["check", str(tmp_path)]) == 0
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "4 images: 3 labelled in 2 classes, 1 unlabelled.",
        "",
        "Class          Images",
        "─────────────────────",
        "cat                 2",
        "dog                 1",
        "(unlabelled)        1",
        "",
        "Ignored, not in a format that is read: 1",
        "  notes.txt",
        "",
        "Nothing is wrong with them.",
    ]


def test_check_goes_on_without_unreadable_files_and_exits_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some_images(tmp_path)
    (tmp_path / "dog" / "2\n[red].jpg").write_text("no image")
    assert cli.main(["check", str(tmp_path)]) == 3
    out = capsys.readouterr().out
    assert out.startswith("5 images: 4 labelled in 2 classes, 1 unlabelled. 1 cannot be read.\n")
    assert "left out of every run (exit code 3): 1\n  not an image: none of JPEG" in out
    assert "GIF\n    dog/2\\n[red].jpg\n" in out
    assert "dog                 2            1\n" in out
    assert cli.main(["check", str(tmp_path), "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["unreadable"][0]["file"] == "dog/2\n[red].jpg"


def test_check_of_an_image_under_two_labels_exits_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some_images(tmp_path)
    (tmp_path / "dog" / "2.png").write_bytes((tmp_path / "cat" / "2.png").read_bytes())
    (tmp_path / "dog" / "3.png").touch()  # an unreadable one beside it does not make it better
    assert cli.main(["check", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "One image under two labels (exit code 1); keep one of them: 1\n  cat/2.png (cat) = dog/2.png (dog)\n" in out


def test_each_label_of_a_group_is_shown_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some_images(tmp_path)
    for name in [*(f"cat/{number}.png" for number in range(10, 20)), "dog/x.png", "unlabelled/y.png"]:
        (tmp_path / name).write_bytes((tmp_path / "cat" / "1.png").read_bytes())
    assert cli.main(["check", str(tmp_path)]) == 1
    shown = "cat/1.png (cat) = dog/x.png (dog) = unlabelled/y.png (unlabelled) = cat/10.png (cat) and 9 more"
    assert shown in capsys.readouterr().out


def test_unreadable_files_are_listed_by_reason_and_not_without_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    some_images(tmp_path)
    for number in range(8):
        (tmp_path / f"{number}.png").touch()
        (tmp_path / f"{number}.jpg").write_text("text")
    assert cli.main(["check", str(tmp_path)]) == 3
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("Cannot be read and left out of every run (exit code 3): 16")
    assert lines[start + 1].startswith("  not an image")
    assert lines[start + 2 : start + 10] == [f"    {number}.jpg" for number in range(8)]
    assert lines[start + 10 : start + 14] == [
        "  empty: 0 bytes",
        "    0.png",
        "    1.png",
        "  … and 6 more; --json lists all",
    ]


def test_what_is_true_of_all_images_is_not_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some_images(tmp_path)
    assert cli.main(["check", str(tmp_path), "--tiny", "41"]) == 0
    assert "Tiny, shorter side below 41 pixels: all 4\n" in capsys.readouterr().out


def test_names_are_shown_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some_images(tmp_path)
    (tmp_path / "cat").rename(tmp_path / ":smile:")
    (tmp_path / ":smile:" / ":cat: [bold].png").touch()
    assert cli.main(["check", str(tmp_path)]) == 3
    out = capsys.readouterr().out
    assert ":smile:  " in out
    assert "    :smile:/:cat: [bold].png\n" in out
    (tmp_path / "t.csv").write_text("file_name,label\nunlisted='x'.jpg,a\n")
    assert cli.main(["check", str(tmp_path), "--labels", str(tmp_path / "t.csv")]) == 2
    assert "do not: \"unlisted='x'.jpg\"." in capsys.readouterr().err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_is_told(tmp_path: Path) -> None:
    some_images(tmp_path)
    with open("/dev/full", "w") as full:
        run = [sys.executable, "-c", RUN, "check", str(tmp_path)]
        done = subprocess.run(run, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "sortal: error: there is no space left to write to.\n")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell")
def test_signals_and_streams_that_were_taken_away(tmp_path: Path) -> None:
    some_images(tmp_path)
    code = "import os, signal; from sortal import check, cli; old = check.check; check.check = lambda *a, **k: "
    code += "(os.kill(os.getpid(), signal.SIGTERM), old(*a, **k))[1]; import sys; sys.exit(cli.main())"
    shell = f"trap '' TERM; {sys.executable} -c {shlex.quote(code)} check {shlex.quote(str(tmp_path))} 2>&-"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.startswith("4 images: 3 labelled")


def test_bytes_of_names_are_shown() -> None:
    assert show.plain("a\udce9\x1b[31m\u202eb é") == "a\\xe9\\x1b[31m\\u202eb é"


def test_check_with_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some_images(tmp_path)
    table = tmp_path / "labels.csv"
    table.write_text("file_name,label,who\ncat/1.png,tom,me\ncat/2.png,,me\n")
    tokens = ["check", str(tmp_path), "--labels", str(table), "--json"]
    assert cli.main(tokens) == 2
    assert "unknown columns, 1: 'who'" in capsys.readouterr().err
    tokens += ["--extra-columns", "ignore"]
    assert cli.main(tokens) == 2
    err = capsys.readouterr().err
    assert "2 have none: 'dog/1.png', 'unlabelled/x.png'" in err
    assert "are unlabelled (--unlisted unlabelled) or left out (--unlisted ignore)" in err
    assert cli.main([*tokens, "--unlisted", "unlabelled"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(count["name"], count["images"]) for count in found["classes"]] == [("tom", 1), (None, 3)]
    assert found["ignored"] == ["notes.txt"]  # the table itself is not an odd file


def test_check_options_reach_the_library(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some_images(tmp_path)

    def checked(*tokens: str) -> dict[str, Any]:
        cli.main(["check", str(tmp_path), "--json", *tokens])
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    assert len(checked("--tiny", "41")["tiny"]) == 4
    assert len(checked("--max-pixels", "1599", "--workers", "1")["unreadable"]) == 4
    assert checked("--unlabelled", "dog")["labelled"] == 3  # and unlabelled/x.png is now one of them
    assert cli.main(["check", str(tmp_path), "--workers", "0"]) == 2
    assert "workers must be at least 1, got 0." in capsys.readouterr().err


def test_check_without_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some_images(tmp_path)
    assert cli.main(["check", str(tmp_path), "--folders", "ignore", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["labelled"] == 0


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_names_are_shown_as_far_as_the_encoding_goes(encoding: str, tmp_path: Path) -> None:
    some_images(tmp_path)
    (tmp_path / "cat").rename(tmp_path / "дуб")
    run = [sys.executable, "-c", RUN, "check", str(tmp_path)]
    done = subprocess.run(run, capture_output=True, env=os.environ | {"PYTHONIOENCODING": encoding})
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"\u0434\u0443\u0431" in done.stdout


def test_check_of_a_folder_without_labels_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some_images(tmp_path)
    assert cli.main(["check", str(tmp_path / "cat")]) == 0
    assert "No image is labelled. Put the images of a class" in capsys.readouterr().out


def test_check_shows_the_largest_and_the_smallest_of_many_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(30):
        (tmp_path / f"class{number:02d}").mkdir()
        for copy in range(1 + (number == 29)):
            Image.new("L", (40, 40), 8 * number + copy).save(tmp_path / f"class{number:02d}" / f"{copy}.png")
    assert cli.main(["check", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[4].split() == ["class29", "2"]
    assert [line.split() for line in lines if "more classes" in line] == [["…", "6", "more", "classes", "6"]]
    assert sum(int(line.split()[-1]) for line in lines[4:29]) == 31


@pytest.mark.parametrize(
    ("command", "function", "beside"),
    [
        (cli.discover, pipeline.discover, {"json", "dry_run"}),
        (cli.predict, prediction.predict, {"json", "out", "force"}),
        (cli.export, export.export, set()),
        (cli.figures, figures.draw, set()),
        (cli.demo, demo.run, {"json"}),
        (cli.sample, digits.write, {"name"}),
    ],
)
def test_the_options_are_those_of_the_library_with_the_same_defaults(
    command: Callable[..., Any], function: Callable[..., Any], beside: set[str]
) -> None:
    shown, real = dict(signature(command).parameters), dict(signature(function).parameters)
    assert shown.keys() - beside == ({**real, "run": 0} if "folder" in real else real).keys() - {
        "folder",
        "formats",
        "on_progress",
        "on_note",
    }
    for name in shown.keys() & real.keys():
        theirs = real[name].default
        assert shown[name].default == (Path(theirs) if isinstance(theirs, str) and name == "out" else theirs), name
    for name in beside & {"json", "dry_run", "force"}:
        assert shown[name].default is False


def test_the_defaults_of_discover_are_those_of_the_settings() -> None:
    shown = signature(cli.discover).parameters
    assert {each.name: shown[each.name].default for each in fields(Discovery)} == vars(Discovery())
    assert {name: shown[name].default for name in job.READING} == job.READING


def test_the_options_of_benchmark_are_those_of_choosing_and_sweeping_with_the_same_defaults() -> None:
    shown = dict(signature(cli.run_benchmark).parameters)
    real = {**signature(choose).parameters, **signature(sweep.sweep).parameters}
    words = {"methods": "method", "names": "preset", "presets": "preset"}  # what some are called on the command line
    assert shown.keys() - {"json"} == {words.get(name, name) for name in real} - {"on_progress", "on_note", "command"}
    for name in ("k", "backbone", "weights", "epochs", "lr", "views", "fast", "device", "workers", "processes"):
        assert shown[name].default == real[name].default, name
    assert all(shown[name].default is None for name in ("dataset", "method", "preset"))
    assert shown["out"].default == Path(sweep.OUT)
    assert shown["seeds"].default == ",".join(map(str, sweep.SEEDS))
    assert shown["json"].default is False


def test_the_words_of_benchmark_are_those_of_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["benchmark", "--help"]) == 0
    out = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert all(name in out for name in (*sortal.datasets.NAMES, sortal.datasets.FOLDER))
    assert "gcd, kmeans, rankstats, simgcd or uno" in out
    assert {*get_args(MethodName)} == {"gcd", "kmeans", "rankstats", "simgcd", "uno"}
    assert cli.main(["figures", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"{name} (" in " ".join(out.split()) for name in figures.FIGURES)


def test_the_defaults_shown_are_those_of_the_library() -> None:
    shown = signature(cli.check).parameters
    real = signature(check.check).parameters
    for name in ("tiny", "max_pixels", "workers"):
        assert shown[name].default == real[name].default
    read = signature(read_images).parameters
    for name in ("folders", "unlabelled", "unlisted", "extra_columns"):
        assert shown[name].default == read[name].default


def test_the_choices_are_those_of_the_library() -> None:
    def choices(command: Callable[..., Any], option: str) -> set[str]:
        return set(get_args(signature(command).parameters[option].annotation))

    assert choices(cli.discover, "method") == set(get_args(MethodName))
    assert choices(cli.export, "format") == set(export.FORMATS)
    assert choices(cli.export, "how") == set(get_args(How))
    for command in (cli.discover, cli.check):
        assert choices(command, "folders") == set(get_args(Folders))
        assert choices(command, "unlisted") == set(get_args(Unlisted))
        assert choices(command, "extra_columns") == set(get_args(ExtraColumns))


def test_sample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "my digits"
    assert cli.main(["sample", "digits", str(out), "--labelled", "0.25", "--seed", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"1,797 images and labels.csv written to {out}. Look at them with:"
    assert cli.main(shlex.split(lines[1])[1:]) == 0
    assert "1,797 images: 225 labelled in 5 classes, 1,572 unlabelled." in capsys.readouterr().out
    assert cli.main(["sample", "digits", str(out)]) == 2
    assert "must be new or empty" in capsys.readouterr().err


def test_a_bar_on_a_terminal_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some_images(tmp_path)
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert cli.main(["check", str(tmp_path)]) == 0
    assert "Checking images" in terminal.getvalue()
    assert "4/4" in terminal.getvalue()


def test_progress_only_on_a_terminal(
    calls: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["demo", "--json"]) == 0
    assert capsys.readouterr().err == "sortal: Something to know.\n"

    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert cli.main(["demo", "--json"]) == 0
    assert "Clustering pixels" in terminal.getvalue()
    assert json.loads(capsys.readouterr().out)["k"]["k"] == 6  # data and nothing else on stdout


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["dmo"], 'Unknown command "dmo"'),
        (["demo", "--zzz", "1"], "--zzz"),
        (["demo", "--k", "many"], "--k"),
        (["demo", "--device", "gpu"], "--device"),
        (["demo", "stray"], "stray"),
        (["discover"], "--images"),
        (["discover", "photos", "--k", "few"], "--k"),
        (["discover", "photos", "--views", "dead"], "--views"),
        (["discover", "photos", "--method", "magic"], "--method"),
        (["predict", "run"], "--images"),
        (["export", "run", "--out", "x"], "--format"),
        (["export", "run", "--format", "zip", "--out", "x"], "--format"),
        (["export", "run", "--format", "csv", "--out", "x", "--how", "magic"], "--how"),
        (["figures"], "--run"),
        (["figures", "run", "--seed", "x"], "--seed"),
        (["benchmark", "cub", "--views", "dead"], "--views"),
        (["benchmark", "cub", "--epochs", "auto"], "--epochs"),
        (["benchmark", "cub", "--device", "gpu"], "--device"),
        (["benchmark", "cub", "stray"], "stray"),
        (["benchmark", "presets", "stray"], "stray"),
        (["benchmark", "table", "benchmark", "--zzz"], "--zzz"),
    ],
)
def test_bad_usage_exits_2(tokens: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(tokens) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("sortal: error: ")
    assert message in err
    assert err.endswith("--help.\n")


def test_own_errors_have_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fail_with(monkeypatch, InputError("k must be at least 5 (the labelled classes), got 2."))
    assert cli.main(["demo"]) == 2
    assert capsys.readouterr() == ("", "sortal: error: k must be at least 5 (the labelled classes), got 2.\n")
    fail_with(monkeypatch, SortalError("A process that reads images could not start."))  # nobody's bad input
    assert cli.main(["demo"]) == 1
    assert capsys.readouterr() == ("", "sortal: error: A process that reads images could not start.\n")


def test_interrupt_exits_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fail_with(monkeypatch, KeyboardInterrupt())
    assert cli.main(["demo"]) == 130
    assert capsys.readouterr() == ("", "sortal: interrupted\n")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_ended_exits_130(how: signal.Signals, tmp_path: Path) -> None:
    some_images(tmp_path)
    waiting = (
        "import sys, time; from sortal import check, cli; check.check = lambda *_, **__: (print('on', flush=True), "
    )
    code = waiting + "time.sleep(60)); sys.exit(cli.main())"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "check", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "on\n"
    process.send_signal(how)
    assert process.communicate(timeout=30) == ("", "sortal: interrupted\n")
    assert process.returncode == 130


def test_unexpected_errors_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, RuntimeError("a bug"))
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main(["demo"])


@pytest.mark.parametrize("tokens", [["--help"], ["discover", "--help"], ["check", "--json"]])
def test_closed_pipe_is_quiet(tokens: list[str], tmp_path: Path) -> None:
    some_images(tmp_path)
    tokens += [str(tmp_path)] if "--json" in tokens else []
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run([sys.executable, "-c", RUN, *tokens], stdout=writer, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_no_color_is_honoured() -> None:
    assert "\x1b[36m" in help_on_a_terminal({})
    assert "\x1b[36m" not in help_on_a_terminal({"NO_COLOR": "1"})


def help_on_a_terminal(environment: dict[str, str]) -> str:
    import pty

    main, terminal = pty.openpty()
    env = os.environ | {"TERM": "xterm"} | environment
    process = subprocess.Popen([sys.executable, "-c", RUN, "--help"], stdin=terminal, stdout=terminal, env=env)
    os.close(terminal)
    out = b""
    with suppress(OSError):  # how Linux says that the other end is closed
        while chunk := os.read(main, 65536):
            out += chunk
    os.close(main)
    assert process.wait() == 0
    return out.decode()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_command_is_in_the_readme(name: str) -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    assert f"\nsortal {name} " in readme.split("## The command line")[1].split("\n## ")[0] + " "


def test_an_export_is_named_after_the_run_unless_told(
    real: Real, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for format, name in (("coco", "run-coco.json"), ("csv", "run-csv.csv"), ("folders", "run-folders")):
        done = sortal_does("export", shutil.copytree(real.run, tmp_path / format / "run"), "--format", format)
        assert done.code == 0
        assert (tmp_path / name).exists()
        assert done.out.endswith(f"{name}\n")


def test_a_table_is_never_written_into_the_run(real: Real, further: Path) -> None:
    for name in ("table.csv", "assignments.csv"):
        done = sortal_does("predict", real.run, further, "--out", real.run / name, "--force")
        assert done.code == 2
        assert f"The table must lie outside the run, got '{real.run / name}'." in done.err
        done = sortal_does("export", real.run, "--format", "csv", "--out", real.run / name, "--force")
        assert done.code == 2
        assert "The export must lie outside the run" in done.err
