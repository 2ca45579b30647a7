"""export and figures: options reach the library, and results are printed."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from support.command_line import NOTE, Done, Real, Stub, invoke, refused
from support.printed import lines_of

from sortal.cli import runs
from sortal.exchange.export import EXPORT_FORMATS, NO_PROBABILITY, ExportResult, export
from sortal.exchange.format import How
from sortal.research import figures
from sortal.research.figures import FiguresResult


def test_export_options_reach_the_library(stub: Stub) -> None:
    loaded = stub("sortal.reviews.loading.load_run", "the run")
    asked = stub("sortal.discovery.exporting.export", ExportResult(format="csv", out=Path("o"), images=5, missing=()))
    for name in EXPORT_FORMATS:
        assert invoke("export", "r", "--format", name) == Done(0, "5 images written as csv: o\n", NOTE)
        usual = {"run": "the run", "format": name, "out": None, "how": "hardlink", "force": False}
        usual |= {"absolute_paths": False}
        assert (loaded.pop(), asked.pop()) == ({"folder": Path("r")}, usual)
    for how in get_args(How):
        invoke("export", "r", "--format", "folders", "--out", "o", "--how", how, "--force", "--absolute-paths")
        chosen = {"run": "the run", "format": "folders", "out": Path("o"), "how": how, "force": True}
        assert asked.pop() == {**chosen, "absolute_paths": True}
    stub("sortal.discovery.exporting.export", ExportResult(format="csv", out=Path("o"), images=5, missing=("a.png",)))
    message = "5 images written as csv: o\n  missing, left out: a.png\n"
    assert invoke("export", "r", "--format", "csv") == Done(3, message, NOTE)


def test_export_writes_a_file_named_after_the_run(real: Real, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for format, name in (("coco", "run-coco.json"), ("csv", "run.csv"), ("folders", "run-folders")):
        done = invoke("export", real.run, "--format", format)
        assert done == Done(0, f"36 images written as {format}: {name}\n", f"sortal: {NO_PROBABILITY}\n")
        assert (tmp_path / name).exists()
    assert export(real.run, "csv", "same.csv").images == 36, "a folder will do for a run"
    complaint = refused("export", real.run, "--format", "csv", "--out", "run.csv")
    assert complaint.endswith("/run.csv' already exists. Choose another (--out), or replace it (--force).\n")


def test_figures_options_reach_the_library(stub: Stub) -> None:
    stub("sortal.reviews.loading.load_run", "the run")
    drawn = figures.FiguresResult(out=Path("o"), files=(Path("o/a.png"),), left_out={"legacy": "No truth."})
    asked = stub("sortal.research.figures.draw", drawn)
    assert invoke("figures", "r") == Done(0, "o/a.png\nLeft out: legacy. No truth.\n", NOTE)
    words = "--out o --which tsne,legacy --images a.png b/c.png --seed 5 --cache c --device cpu --workers 1 --force"
    assert invoke("figures", "r", *words.split()).code == 0
    assert invoke("figures", "r", "--images", "a.png", "--images", "b.png").code == 0
    usual = {"run": "the run", "out": None, "which": None, "images": None}
    rest = {"seed": 0, "cache": None, "force": False}
    chosen = {"run": "the run", "out": Path("o"), "which": ["tsne", "legacy"], "images": ["a.png", "b/c.png"]}
    assert asked == [
        {**usual, **rest},
        {**chosen, "seed": 5, "cache": Path("c"), "device": "cpu", "workers": 1, "force": True},
        {**usual, **rest, "images": ["a.png", "b.png"]},
    ]


def test_exports_and_figures_are_printed_with_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    missing = tuple(f"{number}.jpg" for number in range(12))
    done = ExportResult(format="coco", out=Path("x.json"), images=1234, missing=missing[:10])
    left_out = [f"  missing, left out: {file}" for file in missing[:10]]
    runs.print_exported(replace(done, format="onnx"))
    assert capsys.readouterr().out.startswith("Model written as onnx: ")
    runs.print_exported(done)
    assert lines_of(capsys) == ["1,234 images written as coco: x.json", *left_out, ""]
    runs.print_exported(replace(done, missing=missing, changed=("a.jpg",)))
    changed = "  changed since it was sorted, left out: a.jpg"
    assert lines_of(capsys)[1:] == [*left_out, "  … and 2 more", changed, ""]
    files = (Path("o/tsne.png"), Path("o/tsne.svg"))
    drawn = FiguresResult(out=Path("o"), files=files, left_out={"k-curve": "k was given."})
    runs.print_drawn(drawn)
    assert lines_of(capsys) == [*map(str, files), "Left out: k-curve. k was given.", ""]
