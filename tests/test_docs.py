"""The code in the README and in docs/ is code that works: commands parse, Python compiles, some of it is run."""

import ast
import importlib
import re
import shlex
from collections.abc import Callable, Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import tiny_folder

import sortal
from sortal import cli
from sortal.run import Run

ROOT = Path(__file__).parents[1]
OF_BENCHMARK = (cli.run_benchmark, cli.table, cli.list_presets)


def functions_of(name: str) -> tuple[Callable[..., Any], ...]:
    return OF_BENCHMARK if name == "benchmark" else (getattr(cli, name),)


PAGES = ("README.md", *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))))
OF_OTHERS = {"--help", "--version", "--nproc-per-node", "--nnodes", "--node-rank", "--master-addr"}  # torchrun's


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[tuple[str, str]]:
    """(language, code) of each block of a page, in order."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text_of(page), flags=re.MULTILINE | re.DOTALL)
    assert 2 * len(found) == len(re.findall(r"^```", text_of(page), flags=re.MULTILINE))
    return found


def python_of(page: str) -> list[str]:
    return [code for language, code in blocks(page) if language == "python"]


def words_of(line: str) -> list[str]:
    """What a shell would pass on: without comments, and without the files it writes to itself."""
    words = shlex.split(line, comments=True)
    return words[: words.index(">")] if ">" in words else words


def of_pages() -> Iterator[str]:
    """Every line for a shell that calls sortal. A block that is not said to be for a shell has to be nothing else."""
    for page in PAGES:
        for language, code in blocks(page):
            lines = [line.strip() for line in code.splitlines() if line.strip()]
            calls = [line for line in lines if line.startswith("sortal ")]
            if language == "sh" or (not language and len(calls) == len(lines)):
                yield from calls


def of_help() -> Iterator[str]:
    for name in ("EXAMPLES", *(each for each in dir(cli) if each.endswith("_EXAMPLES"))):
        for line in getattr(cli, name).splitlines()[1:]:
            yield re.split(r" {2,}", line.strip())[0]  # what follows says what it does


def test_commands_parse_and_every_one_has_an_example_and_is_on_a_page() -> None:
    for line in {*of_pages(), *of_help()}:
        words = words_of(line)
        assert words[0] == "sortal"
        command, bound, _ = cli.app.parse_args(words[1:], exit_on_error=False, print_error=False)
        assert command in functions_of(words[1]), line
        needed = {"images", "run", "name", "out", "dataset", "preset", "runs"}
        assert needed & bound.arguments.keys() or command in (cli.demo, cli.list_presets), line
    names = {name for name in cli.app if not name.startswith("-")}
    assert names >= {"discover", "predict", "export", "check", "sample", "demo"}
    assert {words_of(line)[1] for line in of_help()} == names
    assert {words_of(line)[1] for line in of_pages()} == names


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_is_there(page: str) -> None:
    """Options, Python names, imports and files that it links to; and its Python compiles."""
    options = set(OF_OTHERS)
    for name in cli.app:
        if not name.startswith("-"):
            for function in functions_of(name):
                options |= {f"--{option.replace('_', '-')}" for option in signature(function).parameters}
    in_quotes = " ".join(re.findall(r"`[^`\n]+`", text_of(page)))
    assert set(re.findall(r"--[a-z][a-z-]+", in_quotes)) <= options
    for code in python_of(page):
        compile(code, page, "exec")
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "sortal":
                exec(ast.unparse(node), {})
    for name in set(re.findall(r"\bsortal(?:\.[a-zA-Z_]\w*)+(?!\w*\.md|/)", text_of(page))):
        found: Any = sortal
        path = "sortal"
        for part in name.split(".")[1:]:
            path += f".{part}"
            found = getattr(found, part) if hasattr(found, part) else importlib.import_module(path)
    links = [link for link in re.findall(r"\]\(([^)#\s]+)", text_of(page)) if "://" not in link]
    assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder that holds photos; discover sorts them without a large network."""
    tiny_folder.write(tmp_path / "photos", tiny_folder.planted(6, 3))
    discover: Callable[..., Run] = sortal.discover

    def quick(images: str, **options: Any) -> Run:
        return discover(
            images, **{**options, "weights": None, "backbone": "convnet", "epochs": 0, "k": 6, "workers": 1}
        )

    monkeypatch.setattr(sortal, "discover", quick)
    monkeypatch.setattr("sortal.report.make", lambda *_, **__: tiny_folder.PAGE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_block(page: str, number: int) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(python_of(page)[number], page, "exec"), names)
    return names


def test_the_code_of_the_readme_about_images_runs(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "sortal.discover(" in text_of("README.md")[:1200], "it comes before anything else"
    run = run_block("README.md", 0)["run"]
    assert capsys.readouterr().out.startswith("<Run: 36 images (9 labelled, ")
    assert run.report.resolve() == photos / "photos-run" / "report.html"
    promised = {"file_name", "label", "category", "status", "confidence"}
    assert promised <= set(run.to_pandas().columns)
    names = run_block("README.md", 1)
    assert len(names["images"]) == 36
    assert len(names["bench"].classes) == 2


def test_the_code_about_features_runs(capsys: pytest.CaptureFixture[str]) -> None:
    run_block("README.md", 3)
    k, clusters, new, accuracy = capsys.readouterr().out.strip().rsplit("\n", 3)
    assert 5 <= int(k.split()[0]) <= 20
    assert clusters.startswith("[")
    assert new.startswith("[")
    assert accuracy.startswith("Accuracy(all=0.")


def test_the_code_about_runs_and_exports_runs(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_block("docs/discover.md", 0)["run"]
    assert [category.kind for category in run.categories] == ["known"] * 3 + ["new"] * 3, "known ones first"
    check_table_of_files(run)
    (photos / "photos-run").rename(photos / "run")
    run_block("docs/export.md", 0)
    assert capsys.readouterr().out == "36 images; 0 are not there any more: ()\n"
    assert (photos / "sorted" / "index.csv").exists()
    assert cli.main(["export", "run", "--format", "parquet", "--out", "table.parquet"]) == 0
    assert len(run_block("docs/export.md", 1)["table"]) == 36


def check_table_of_files(run: Run) -> None:
    """The files of a run, and the columns of its table, are those that the page tells of."""
    table = text_of("docs/discover.md").split("## The run folder")[1].split("\n## ")[0]
    cells = [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| `")]
    told = {name.rstrip("/") for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    there = {path.name for path in run.folder.iterdir() if not path.name.startswith(".")}
    assert there <= told
    not_here = {"candidates.csv", "metrics.json", "log.jsonl", "head.npy", "initial.safetensors"}
    assert told - there == not_here, "no update, no truth, nothing learned"
    columns = next(line for line in table.splitlines() if "`assignments.csv`" in line)
    named = re.findall(r"`(\w+)`", columns.split(" | ")[1])
    assert {*run.to_pandas().columns, "truth"} == set(named)
