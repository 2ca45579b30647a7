"""benchmark and its subcommands."""

import json
import re
import shlex
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from support import tiny_folder
from support.command_line import INTERRUPTED, NOTE, Benchmarked, Done, Stub, invoke, options_of, refused
from support.latex_tables import read_latex
from support.printed import lines_of
from support.sample_records import example, scores

from sortal.cli import benchmark
from sortal.research.benchmark import comparison, presets, records, sweep, typesetting
from sortal.research.benchmark.presets import PRESETS
from sortal.research.benchmark.records import KRecord, Record
from sortal.research.benchmark.select import choose
from sortal.research.benchmark.sweep import SweepResult


def test_a_benchmark_is_recorded_and_not_repeated(benchmarked: Benchmarked) -> None:
    done, out = benchmarked.done, benchmarked.out
    assert done.code == 0
    found = records.find([out])
    assert sorted((record.name, record.seed) for record in found) == [("trees/kmeans", 0), ("trees/uno", 0)]
    figures_of = [f"{100 * (record.transductive.accuracy.all or 0):.1f}" for record in found]
    assert all(figure in done.out for figure in figures_of)
    assert [line.partition(": All ")[0] for line in done.err.splitlines()] == [
        f"sortal: trees/{method}, k true, seed 0" for method in ("kmeans", "uno")
    ], "a note for each finished run"
    assert done.out.splitlines()[-1] == f"The runs are in {out / 'trees'}; sortal benchmark table makes tables of them."
    assert max(map(len, done.out.splitlines()[:-1])) <= 80
    assert invoke(*benchmarked.words) == replace(done, err="sortal: 2 of 2 runs are already recorded.\n")
    again = invoke(*benchmarked.words, "--json")
    assert again.code == 0
    files = [out / "trees" / method / "k-true" / "seed-0" / "benchmark.json" for method in ("kmeans", "uno")]
    assert json.loads(again.out) == [json.loads(file.read_text()) for file in files]


def test_a_benchmark_names_the_files_it_left_out_whenever_it_is_run(
    benchmarked: Benchmarked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = shutil.copytree(benchmarked.out.parent / "trees", tmp_path / "trees")
    tiny_folder.break_some(root, ["elm/1.png"])
    options = "--method kmeans --backbone convnet --seeds 0 1 --device cpu --workers 1"
    words = ("benchmark", "folder", "--root", root, "--out", tmp_path / "out", *options.split())
    with tiny_folder.quickly():
        done = invoke(*words)
    assert done.code == 3
    assert "Unreadable, left out of every run (exit code 3): 1\n" in done.out
    assert done.out.count("elm/1.png") == 1
    again = invoke(*words)
    assert (again.code, again.out) == (3, done.out), "of recorded runs too"
    listed = [record["unreadable"] for record in json.loads(invoke(*words, "--json").out)]
    assert [[bad["file"] for bad in each] for each in listed] == [["elm/1.png"]] * 2
    monkeypatch.setattr("sortal.cli.benchmark.torchrun", lambda: 2)
    assert invoke(*words).code == 0, "torchrun takes any other code for a crash"


def test_benchmark_table_prints_and_writes_tables(benchmarked: Benchmarked, tmp_path: Path) -> None:
    made = comparison.tables(records.find([benchmarked.out]))
    done = invoke("benchmark", "table", benchmarked.out)
    assert done == Done(0, typesetting.document(made), "")
    assert done.out.startswith("# Benchmarks\n\n## trees: convnet, random weights, true k\n")
    parts = [benchmarked.out / "trees/uno", benchmarked.out / "trees/kmeans/k-true/seed-0"]
    assert invoke("benchmark", "table", *parts) == done

    out = tmp_path / "tables"
    tokens = ("benchmark", "table", benchmarked.out, "--out", out)
    assert invoke(*tokens) == done
    assert (out / "trees-convnet-k-true.csv").exists()
    assert (out / "tables.md").read_text() == done.out
    (out / "tables.md").write_text("mine")
    assert "--force" in refused(*tokens)
    assert (out / "tables.md").read_text() == "mine"
    assert invoke(*tokens, "--force") == done
    assert (out / "tables.md").read_text() == done.out


def test_benchmark_compare_prints_and_writes_tables_and_the_plot_of_ranks(tmp_path: Path) -> None:
    results, out = tmp_path / "results.jsonl", tmp_path / "out"
    lines = []
    for method, share in (("sortal", 0.5), ("gcd", 0.25), ("uno", 0.75)):
        shares = {"all": share, "old": share, "new": 1 - share}
        for name, seed in product(("cars_60", "pets"), range(3)):
            about = {"set": name, "condition": "H", "split": "first", "seed": seed, "method": method}
            lines.append(json.dumps({**about, **shares}))
    results.write_text("\n".join(lines))
    done = invoke("benchmark", "compare", results)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("# Comparison\n\n## All runs\n\n| Method | All | Old | New | All − sortal | Rank |")
    assert "| gcd | 25.0 | 25.0 | 75.0 | −25.0 \\[−25.0, −25.0\\] | 3.00 | – | – | 6 |" in done.out

    assert invoke("benchmark", "compare", results, "--out", out) == done
    assert (out / "comparison.md").read_text() == done.out
    names = {"comparison.md", "all.csv", "all.tex", "rows.csv", "rows.tex", "ranks.png", "ranks.svg"}
    assert {path.name for path in out.iterdir() if not path.name.startswith(".")} == names
    assert (out / "ranks.png").read_bytes().startswith(b"\x89PNG")
    for name, title, columns in (("all", "All runs", "lrrrrrrrr"), ("rows", "Every row", "llrrlr")):
        printed = re.split(r"^## ", done.out, flags=re.MULTILINE)
        (section,) = [each for each in printed if each.startswith(title)]
        lines = [line for line in section.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
        cells = [[re.sub(r"\\(.)", r"\1", cell) for cell in line[2:-2].split(" | ")] for line in lines]
        assert read_latex((out / f"{name}.tex").read_text(encoding="utf-8"))[:3] == (title, columns, cells)
    assert "--force" in refused("benchmark", "compare", results, "--out", out)
    assert invoke("benchmark", "compare", results, "--out", out, "--force") == done

    other = invoke("benchmark", "compare", results, "--reference", "gcd", "--method", "uno", "--score", "new").out
    assert "New − gcd" in other
    assert "| uno | 75.0 | 75.0 | 25.0 | −50.0 \\[−50.0, −50.0\\] |" in other
    assert "sortal" not in other
    assert "The reference must be one of" in refused("benchmark", "compare", results, "--reference", "x")


def test_benchmark_compare_reads_runs(benchmarked: Benchmarked) -> None:
    done = invoke("benchmark", "compare", benchmarked.out, "--reference", "kmeans")
    (uno,) = [line for line in done.out.splitlines() if line.startswith("| uno | ")]
    each = [record.transductive.accuracy.all or 0 for record in records.find([benchmarked.out])]
    assert sorted(each) != [each[0]] * 2
    assert any(f"| {100 * share:.1f} | " in uno for share in each)


SWEPT = sweep.SweepResult(records=(), folders=(), failed=(), reused=0)
SWEEP = {"out": Path("benchmark"), "seeds": (0, 1, 2), "processes": None, "watch_truth": False}


def test_each_option_of_benchmark_reaches_the_library(stub: Stub) -> None:
    swept = stub("sortal.research.benchmark.sweep.sweep", SWEPT)
    tried = {"dataset", "json"}
    network = {"k": 7, "backbone": "convnet", "weights": "w.pth", "epochs": 3, "lr": 0.5, "views": 4, "trained": 2}
    others = {"seeds": (5, 7), "out": Path("my runs"), "processes": 2, "device": "cpu", "workers": 3}
    cases: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
        ("cub", {"dataset": "cub"}, {}),
        ("cub --method uno,gcd", {"dataset": "cub", "methods": ["uno", "gcd"]}, {}),
        ("--preset table3 --preset table2/cifar10", {"names": ["table3", "table2/cifar10"]}, {}),
        (f"cub {' '.join(f'--{name} {value}' for name, value in network.items())}", {"dataset": "cub", **network}, {}),
        ("cub --set losses.hidden=8,16", {"dataset": "cub", "set": ("losses.hidden=8,16",)}, {}),
        ("cub --watch-truth", {"dataset": "cub"}, {"watch_truth": True}),
        ("cub --views live", {"dataset": "cub", "views": "live"}, {}),
        ("--preset table3/cub/gcd --fast", {"names": ["table3/cub/gcd"], "fast": True}, {}),
        ("folder --root my/flowers", {"dataset": "folder", "root": Path("my/flowers")}, {}),
        ("cub --seeds 5,7 --out 'my runs' --processes 2 --device cpu --workers 3", {"dataset": "cub"}, others),
    )
    for words, asked, options in cases:
        done = invoke("benchmark", *shlex.split(words))
        assert (done.code, done.err) == (0, NOTE)
        given = {"dataset": None, "root": Path("data"), **asked}
        chosen = {"presets": choose(given.pop("dataset"), **given), "root": given["root"]}
        assert swept.pop() == {**chosen, **SWEEP, **options, "command": f"sortal benchmark {words}"}
        tried |= {word[2:].replace("-", "_") for word in words.split() if word.startswith("--")}
    assert tried == options_of(benchmark.run_benchmark).keys()


def test_a_failed_benchmark_exits_1_and_an_interrupted_one_130(stub: Stub) -> None:
    failed = ("cub/gcd, seed 1", "The loss is no number.")
    stub("sortal.research.benchmark.sweep.sweep", replace(SWEPT, failed=(failed,)))
    done = invoke("benchmark", "cub")
    assert done == Done(1, "\nFailed: cub/gcd, seed 1: The loss is no number.\n", NOTE)
    assert invoke("benchmark", "cub", "--json") == replace(done, out="[]\n")
    stub("sortal.research.benchmark.sweep.sweep", KeyboardInterrupt())
    assert invoke("benchmark", "cub") == Done(130, "", NOTE + INTERRUPTED)


def test_benchmark_presets_are_listed() -> None:
    found = json.loads(invoke("benchmark", "presets", "--json").out)
    assert [*found] == [*presets.PRESETS]
    assert found["table3/cub/gcd"]["recipe"]["training"]["epochs"] == 200
    assert "table5/cifar100/6" in invoke("benchmark", "presets").out


FEWER = KRecord(asked="auto", k=48, true=55, error=7 / 55, interval=(40, 60))


def swept_of(*found: Record, **others: Any) -> SweepResult:
    folders = tuple(Path("out") / record.name / "k-true" / f"seed-{record.seed}" for record in found)
    return SweepResult(**{"records": found, "folders": folders, "failed": (), "reused": 0, **others})


def test_a_sweep_is_printed_by_preset_and_seed(capsys: pytest.CaptureFixture[str]) -> None:
    """All but the last run took 120 s."""
    benchmark.print_sweep(
        swept_of(
            example(name="flowers55/rankstats", k=FEWER, transductive=scores(12.34, 0, 100)),
            example(name="flowers55/rankstats", k=FEWER, seed=11, inductive=scores(100, None, 3)),
            example(name="flowers55/gcd", transductive=scores(50, None, 40), timings={"learn": 12_345.0}),
        )
    )
    assert lines_of(capsys) == [
        "",
        "flowers55/rankstats",
        "Seed    k   Classes    All    Old     New   Legacy    Test   Minutes",
        "────────────────────────────────────────────────────────────────────",
        "0      48        55   12.3    0.0   100.0     12.3     n/a       2.0",
        "11     48        55   50.0   60.0    40.0     50.0   100.0       2.0",
        "",
        "flowers55/gcd",
        "Seed     k   Classes    All   Old    New   Legacy   Test   Minutes",
        "──────────────────────────────────────────────────────────────────",
        "0      200       200   50.0   n/a   40.0     50.0    n/a     205.8",
        "",
        f"The runs are in {Path('out/flowers55')}; sortal benchmark table makes tables of them.",
        "",
    ]


def test_names_of_runs_are_never_wrapped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    k = replace(FEWER, k=1048, true=1055)
    for columns, name in (("80", "table3/stanford_cars/rankstats"), ("80", "x" * 90 + "/gcd"), ("200", "a/gcd")):
        monkeypatch.setenv("COLUMNS", columns)
        benchmark.print_sweep(
            swept_of(*(example(name=name, seed=seed, k=k, inductive=scores(100, 100, 100)) for seed in (0, 1)))
        )
        lines = lines_of(capsys)
        assert lines[1] == name
        assert [line.split()[:3] for line in lines[4:6]] == [[seed, "1,048", "1,055"] for seed in ("0", "1")]
        assert all(line.split()[-2:] == ["100.0", "2.0"] for line in lines[4:6])


def test_a_sweep_lists_failures_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    name = "a\x1b[31m/gcd"
    failed = ((f"{name}, k true, seed 0", "No\nmemory."), ("b/gcd, k true, seed 1", "The loss must be a number."))
    benchmark.print_sweep(swept_of(example(name=name), failed=failed))
    lines = lines_of(capsys)
    assert lines[1] == "a\\x1b[31m/gcd"
    assert lines[5:9] == [
        "",
        "Failed: a\\x1b[31m/gcd, k true, seed 0: No\\nmemory.",
        "",
        "Failed: b/gcd, k true, seed 1: The loss must be a number.",
    ]
    assert all(line.isprintable() for line in lines)
    benchmark.print_sweep(swept_of(failed=failed[1:]))
    assert lines_of(capsys) == ["", lines[8], ""], "no table if every run failed"


def test_presets_are_listed_by_unwrapped_names(capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.list_presets()
    lines = lines_of(capsys)
    assert max(map(len, lines)) <= 80
    rows = [line.split() for line in lines[2:] if not line.startswith(" ") and line]
    assert [row[0] for row in rows] == [*PRESETS]
    assert [row[-1] for row in rows] == [str(preset.version) for preset in PRESETS.values()]
    assert rows[0] == ["table2/cifar10/kmeans", "CIFAR-10,", "k-means", "1"]
