"""The documentation is true: commands parse, options and files are complete, Python compiles, and examples run."""

import ast
import importlib.util
import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support import tiny_folder
from support.runtimes import CPU

import sortal
from sortal.cli import app
from sortal.images.decoding import ORIENTATION
from sortal.images.exif import CAMERA_MODEL
from sortal.runs.facts import KChoice, Trial
from sortal.runs.run import Run

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "sortal"
COMMANDS = {  # every command, with those below it
    name: (command, *(command[below] for below in command if not below.startswith("-")))
    for name, command in ((name, app.app[name]) for name in app.app if not name.startswith("-"))
}
PAGES = ("README.md", *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))))
OWN_COUNTS = {  # of fewer than there are
    ("README.md", "Three commands"),
    ("docs/discover.md", "three methods"),
    ("docs/reproduce.md", "four methods"),
    ("docs/protocols.md", "two methods"),
    ("docs/methods/index.md", "three data sets"),
}
FOREIGN = {
    "--help",
    "--version",
    "--nproc-per-node",
    "--nnodes",
    "--node-rank",
    "--master-addr",
    "--no-python",
}  # torchrun's


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
    """Split a line as a shell does, without comments and redirections."""
    words = shlex.split(line, comments=True)
    return words[: words.index(">")] if ">" in words else words


def options_of(name: str) -> set[str]:
    arguments = [argument for command in COMMANDS[name] for argument in command.assemble_argument_collection()]
    options = [option for argument in arguments if argument.index is None for option in argument.names]
    return {option for option in options if option.startswith("--")}  # not "*", a record whose fields are options


def lines_of_pages() -> Iterator[str]:
    """Yield every shell line that calls sortal; a block without a language counts if it has no other lines."""
    for page in PAGES:
        for language, code in blocks(page):
            lines = [line.strip() for line in code.splitlines() if line.strip()]
            calls = [line for line in lines if line.startswith("sortal ")]
            if language == "sh" or (not language and len(calls) == len(lines)):
                yield from calls


def lines_of_help() -> Iterator[str]:
    for command in (app.app, *(each for commands in COMMANDS.values() for each in commands)):
        for line in str(command.help_epilogue or "").splitlines()[1:]:
            yield re.split(r" {2,}", line.strip())[0]  # an explanation follows


def test_commands_parse_and_each_has_an_example_in_its_help_and_on_a_page() -> None:
    for line in {*lines_of_pages(), *lines_of_help()}:
        words = words_of(line)
        assert words[0] == "sortal"
        command, bound, _ = app.app.parse_args(words[1:], exit_on_error=False, print_error=False)
        assert command in [each.default_command for each in COMMANDS[words[1]]], line
        needed = {"images", "features", "run", "name", "out", "dataset", "preset", "runs"}
        assert needed & bound.arguments.keys() or command.__name__ in ("demo", "list_presets", "start_page"), line
    for lines in (lines_of_pages, lines_of_help):
        assert {words_of(line)[1] for line in lines()} == COMMANDS.keys()


def test_the_reference_has_the_options_of_each_command() -> None:
    sections = text_of("docs/commands.md").split("\n## sortal ")[1:]
    documented = {section.split()[0]: set(re.findall("`(--[a-z-]+)`", section)) for section in sections}
    assert documented == {name: options_of(name) for name in COMMANDS}


@pytest.mark.parametrize("page", PAGES)
def test_options_names_and_links_of_a_page_exist(page: str) -> None:
    options = FOREIGN.union(*map(options_of, COMMANDS))
    in_quotes = " ".join(re.findall(r"`[^`\n]+`", text_of(page)))
    assert set(re.findall(r"--[a-z][a-z-]*", in_quotes)) <= options
    for code in python_of(page):
        compile(code, page, "exec")
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "sortal":
                exec(ast.unparse(node), {})
    for name in set(re.findall(r"\bsortal(?:\.[a-zA-Z_]\w*)+(?!\w*\.md|/)", text_of(page))):
        if name == "sortal.methods":  # a group of entry points
            continue
        found: Any = sortal
        path = "sortal"
        for part in name.split(".")[1:]:
            path += f".{part}"
            found = getattr(found, part) if hasattr(found, part) else importlib.import_module(path)
    links = [link for link in re.findall(r"\]\(([^)#\s]+)", text_of(page)) if "://" not in link]
    assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []


ADDED = re.compile(r"`(--[^`]+)`\s+to\s+((?:`[a-z ]+`(?:,?\s+(?:and|or)\s+|,\s+)?)+)")


@pytest.mark.parametrize("page", PAGES)
def test_a_command_has_the_options_that_prose_gives_it(page: str) -> None:
    """In sentences such as: run `sortal check … --x`, or add `--x` to `check` and `discover`. Blocks are parsed."""
    for line in re.findall(r"`(sortal [a-z][^`]*)`", text_of(page)):
        words = line.split()
        if words[1] in COMMANDS:  # not `sortal --help`, and not a sentence about sortal
            assert {*re.findall(r"--[a-z][a-z-]*", line)} - FOREIGN <= options_of(words[1]), line
    for given, commands in ADDED.findall(text_of(page)):
        for name in re.findall(r"`(?:sortal )?([a-z]+)[^`]*`", commands):
            if name in COMMANDS:
                assert {*re.findall(r"--[a-z][a-z-]*", given)} <= options_of(name), (given, name)


WORDS = dict(
    zip(
        ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"],
        range(1, 13),
        strict=True,
    )
)


def test_what_pages_count_is_what_there_is() -> None:
    """Every "N presets", "N commands" and the like: a number on a page that the code also has."""
    from sortal.config import Discovery, Reading, Training
    from sortal.exchange.export import EXPORT_FORMATS
    from sortal.images.datasets import DATASET_NAMES
    from sortal.research.benchmark.presets import DATASET_TITLES, PAPER_METHODS, PRESETS

    there = {
        "presets": {len(PRESETS)},
        "commands": {len(COMMANDS)},
        "formats": {len(EXPORT_FORMATS)},
        "public names": {len(sortal.__all__)},
        "methods": {len(PAPER_METHODS)},
        "settings": {len(fields(record)) for record in (Discovery, Reading, Training)},
        "paper's data sets": {len(DATASET_TITLES)},
        "data sets": {len(DATASET_TITLES), len(DATASET_NAMES)},
    }
    counted = r"\b(\d+|" + "|".join(WORDS) + r")\s+(" + "|".join(there) + r")\b"
    found = []
    for page in PAGES:
        text = re.sub(r"(?i)\bthe paper's (\w+) data sets", r"\1 paper's data sets", text_of(page))
        for number, what in re.findall(counted, text, flags=re.IGNORECASE):
            count = WORDS.get(number.lower()) or int(number)
            if (page, f"{number} {what}") not in OWN_COUNTS:
                assert count in there[what], (page, number, what)
            found.append(what)
    assert {"presets", "paper's data sets", "methods"} <= {*found}


def test_the_readme_is_short_and_contributing_lists_files() -> None:
    lines = text_of("README.md").splitlines()
    assert len(lines) < 120
    assert sum(line.startswith("sortal ") for line in lines[:20]) == 3, "commands come first"
    assert (ROOT / "docs" / "report.png").stat().st_size <= 300_000
    tree = text_of("CONTRIBUTING.md").split("```\nsrc/sortal/\n")[1].split("\n```")[0]
    listed, folders = set(), [""]
    for indent, name in re.findall(r"^( +)(\S+)", tree, flags=re.MULTILINE):
        depth = len(indent) // 2
        folders[depth:] = [f"{folders[depth - 1]}{name}"]
        listed |= {folders[depth]} if name.endswith(".py") else set()
    files = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")}
    assert listed == {file for file in files if not file.endswith("/__init__.py")}


def test_public_names_are_in_the_reference() -> None:
    named = {*re.findall(r"[`(, ](?:sortal\.)?(\w+)`", text_of("docs/python.md"))}
    assert {name for name in sortal.__all__ if name not in ("__version__", "KEstimate", "SortalError")} <= named


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder that holds photos, and let discover sort them without a large network."""
    tiny_folder.write(tmp_path / "photos", tiny_folder.planted(6, 3))
    discover: Callable[..., Run] = sortal.discover

    def quick(images: str, **options: Any) -> Run:
        return discover(
            images, **{**options, "weights": None, "backbone": "convnet", "epochs": 0, "k": 6, "runtime": CPU}
        )

    monkeypatch.setattr(sortal, "discover", quick)
    monkeypatch.setattr("sortal.web.report.report.make_report", lambda *_, **__: tiny_folder.PAGE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_blocks(page: str, *numbers: int) -> dict[str, Any]:
    """Run blocks of a page, one after the other, and return the names they define."""
    names: dict[str, Any] = {}
    for number in numbers:
        exec(compile(python_of(page)[number], page, "exec"), names)
    return names


def test_examples_with_images_run(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(photos / "photos", photos / "new_photos")
    run = run_blocks("README.md", 0)["run"]
    assert capsys.readouterr().out.startswith("<Run: 36 images (9 labelled, ")
    assert run.report.resolve() == photos / "photos-run" / "report.html"
    assert {"file_name", "label", "category", "status", "confidence"} <= set(run.to_pandas().columns)
    names = run_blocks("docs/python.md", 0, 1, 2, 3, 4, 5)
    assert len(names["found"].assignments) == len(names["images"]) == names["done"].images == 36
    assert len(names["bench"].classes) == 2
    shutil.rmtree(photos / "sorted")
    monkeypatch.setattr(sortal, "review", lambda folder: None)  # until it is interrupted
    table = run_blocks("docs/tutorial.md", 0)["table"]
    assert len(table) == 36
    run = run_blocks("docs/discover.md", 0)["run"]
    assert [category.kind for category in run.categories] == ["known"] * 3 + ["new"] * 3, "known ones first"
    check_table_of_files(run)
    (photos / "photos-run").rename(photos / "run")
    shutil.rmtree(photos / "sorted")
    run_blocks("docs/export.md", 0)
    assert (photos / "sorted" / "index.csv").exists()
    assert app.main(["export", "run", "--format", "parquet", "--out", "table.parquet"]) == 0
    assert len(run_blocks("docs/export.md", 1)["table"]) == 36
    assert app.main(["export", "run", "--format", "hub", "--out", "photos-model"]) == 0
    assert run_blocks("docs/export.md", 8)["model"].categories == tuple(run.names.values())
    if importlib.util.find_spec("onnx") and importlib.util.find_spec("onnxruntime"):
        assert app.main(["export", "run", "--format", "onnx", "--out", "photos.onnx"]) == 0
        with Image.open(next((photos / "new_photos").rglob("*.png"))) as image:
            image.convert("RGB").save("new.jpg")
        assert run_blocks("docs/export.md", 7)["confidence"].shape == (1,)


def test_animals_are_cut_out_by_the_boxes_of_a_detector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "traps" / "fox").mkdir(parents=True)
    exif = Image.Exif()
    exif[ORIENTATION], exif[CAMERA_MODEL] = 6, "One"  # stored lying: 100 × 200 once it is upright
    Image.new("RGB", (200, 100)).save(tmp_path / "traps" / "fox" / "a.jpg", exif=exif)
    boxes = [{"category": kind, "conf": 0.9, "bbox": [0.5, 0.25, 0.5, 0.25]} for kind in "12"]
    found = [{"file": "fox/a.jpg", "detections": boxes}, {"file": "broken.jpg", "failure": "no image"}]
    (tmp_path / "detections.json").write_text(json.dumps({"images": found}))
    run_blocks("docs/expect.md", 0)
    with Image.open(tmp_path / "animals" / "fox" / "a 0.jpg") as crop:
        assert crop.size == (50, 50)
        assert crop.getexif() == {CAMERA_MODEL: "One"}
    assert len([*(tmp_path / "animals").rglob("*.jpg")]) == 1, "not what is no animal"


def worded(printed: str) -> set[str]:
    """Return the lines of an output without what differs between collections: numbers, rows of categories, width."""
    lines = set()
    for line in printed.splitlines():
        if re.match(r"(new )?\d+ +(known|new) ", line):  # a category
            continue
        masked = re.sub(r"\d[\d,.]*(?<=\d)", "#", re.sub(r", \d+ other\b", "", line))
        lines.add(" ".join(masked.replace("─", "").split()))
    return lines - {"", "…"}


def test_the_commands_of_the_tutorial_run_in_their_order_and_print_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On every thirtieth digit, without training, with a review that nobody answers, and without a drawn report."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sortal.web.report.report.make_report", lambda *_, **__: tiny_folder.PAGE)
    monkeypatch.setattr("sortal.discovery.reviewing.open.serve", lambda *_, **__: None)
    tutorial = text_of("docs/tutorial.md").split("## With your own")[0]
    steps = re.findall(r"^```sh\n(.*?)^```\n(?:\n```\n(.*?)^```$)?", tutorial, flags=re.M | re.S)
    assert [words_of(line)[1] for code, _ in steps for line in code.splitlines()] == [
        *("sample", "check", "discover", "discover", "review", "decisions", "discover", "export", "predict", "predict")
    ]
    trial = KChoice(k=10, estimated=True, known=5, trial=Trial(hidden=2, found=2)).basis  # of too few classes here
    untrained = KChoice(k=10, estimated=True, known=5, method="brent").basis  # here, where no class is hidden
    compared = 0
    for code, told in steps:
        capsys.readouterr()
        for line in code.splitlines():
            words = words_of(line)[1:]
            quick = ["--epochs", "0", "--device", "cpu"] if words[0] == "discover" else []
            assert app.main([*words, *quick]) == 0, (line, capsys.readouterr().err)
        printed = capsys.readouterr().out
        if words[0] == "sample":
            head, *rows = (tmp_path / "digits" / "labels.csv").read_text("utf-8").splitlines()
            (tmp_path / "digits" / "labels.csv").write_text("\n".join([head, *rows[::30]]), "utf-8")
            for row in {*rows} - {*rows[::30]}:
                (tmp_path / "digits" / row.split(",")[0].strip('"')).unlink()
        if "--dry-run" in words:  # the other column says what will be done
            told, printed = (
                "\n".join(re.findall(r"^(\w+(?: \w+)?) {2,}", each, flags=re.M)) for each in (told, printed)
            )
        if told and words[0] not in ("sample", "decisions"):  # a part of the table; nobody has decided anything
            assert worded(told) - worded(trial) - worded(printed) == set(), code
            assert worded(printed) - worded(told) - worded(untrained) == set() or words[0] == "predict", code
            compared += 1
    assert compared == 5
    assert worded(trial) <= worded(tutorial)
    assert (tmp_path / "sorted" / "index.csv").is_file()
    assert len((tmp_path / "predicted.csv").read_text("utf-8").splitlines()) == 1 + 60


def test_examples_with_features_run() -> None:
    names = run_blocks("docs/python.md", 6, 7, 8)
    assert names["estimate"].k in [each.k for each in names["estimate"].curve]
    assert names["scores"].accuracy.all > 0.6


def test_examples_of_protocols_run_and_print_their_comments(capsys: pytest.CaptureFixture[str]) -> None:
    run_blocks("docs/protocols.md", 0)
    printed = re.findall(r"^print\(.*\)  # (.*)$", python_of("docs/protocols.md")[0], flags=re.MULTILINE)
    assert capsys.readouterr().out.splitlines() == printed
    assert len(printed) == 3
    names = run_blocks("docs/protocols.md", 1)
    assert min(names["seen"].all, names["unseen"].all) > 0.6
    assert not names["test"][names["number"] % 2 == 0].any(), "no test image is labelled"


def check_table_of_files(run: Run) -> None:
    """Compare the files of a run, and the columns of its table, with those on the page."""
    table = text_of("docs/discover.md").split("## The run folder")[1].split("\n## ")[0]
    cells = [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| `")]
    documented = {name.rstrip("/") for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    there = {path.name for path in run.folder.iterdir() if not path.name.startswith(".")}
    assert there <= documented
    not_here = {"candidates.csv", "metrics.json", "log.jsonl", "head.npy", "initial.safetensors"}
    not_here |= {"decisions.jsonl", "rejected.csv", "watched.jsonl", "columns.json"}
    assert documented - there == not_here, "no update, no truth, nothing learned, nothing reviewed"
    columns = next(line for line in table.splitlines() if "`assignments.csv`" in line)
    named = re.findall(r"`(\w+)`", columns.split(" | ")[1])
    assert {*run.to_pandas().columns, "truth"} == set(named)
