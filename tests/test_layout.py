"""The house: what imports what, what is called what, and how long it may be. Layers are contracts in pyproject.toml."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import grimp
import pytest

import sortal

SOURCE, TESTS = Path(sortal.__file__).parent, Path(__file__).parent
MOST_LINES, LONGEST_LINE = 400, 120  # of a module, and of a line of a script or style

# Packages and modules that may reach torch, directly or through others; every other module must not.
TORCH = (
    "sortal.__main__",  # which runs the commands below
    "sortal.cli.app",
    "sortal.cli.benchmark",
    "sortal.cli.discover",
    "sortal.cli.images",  # features
    "sortal.cli.predict",
    "sortal.cli.runs",
    "sortal.cli.start",  # which opens reviews by the same module
    "sortal.research.benchmark.bounds",
    "sortal.research.benchmark.sweep",
    "sortal.research.benchmark.task",
    "sortal.research.figures",
    "sortal.discovery",
    "sortal.learning",
    "sortal.clustering",
    "sortal.system.device",
    "sortal.system.distributed",
)
# And modules in those packages that must not: they are used before anything heavy is loaded.
LIGHT = (
    "sortal.discovery.defaults",
    "sortal.discovery.earlier",
    "sortal.discovery.symptoms",
    "sortal.learning.backbones.descriptions",
    "sortal.learning.backbones.hub",
    "sortal.learning.backbones.names",
    "sortal.learning.log",
    "sortal.learning.views",
    "sortal.research.figures.style",
)

# Libraries that functions may import: heavy ones that few commands need, optional ones, and those of one platform.
LAZY = {
    "difflib",  # 5 ms of every start, for one message
    "fcntl",
    "filelock",
    "huggingface_hub",
    "importlib",  # its metadata: 20 ms of every start, for methods of installed packages
    "msvcrt",
    "onnx",
    "onnxruntime",
    "open_clip",
    "pandas",
    "pillow_heif",
    "pyarrow",
    "resource",
    "rich",
    "safetensors",
    "scipy",
    "sklearn",
    "mlflow",
    "sknetwork",
    "tensorboard",
    "timm",
    "umap",
    "wandb",
}
# Modules whose functions import Sortal's own: commands, and what must start without torch.
LAZY_MODULES = {
    "sortal.__main__",  # so that Ctrl-C is handled before anything is loaded
    "sortal.cli.benchmark",
    "sortal.cli.decisions",
    "sortal.cli.discover",
    "sortal.cli.images",
    "sortal.cli.predict",
    "sortal.cli.runs",
    "sortal.cli.start",
    "sortal.discovery.exporting",  # only one format needs torch
    "sortal.discovery.job",  # checks a command before torch is loaded
    "sortal.discovery.reviewing.advice",  # a review opens before torch is loaded
    "sortal.discovery.reviewing.open",
}

VAGUE = re.compile("(LONGEST|SHORTEST|MOST|LEAST|FEWEST|LARGEST|SMALLEST|DEEPEST|NAME|NAMES|LIMIT|SAME|KIND|KINDS)")
VAGUE_FUNCTIONS = {"_told", "_said", "_found"}
SHARED_NAMES = {"T", "TYPE_CHECKING", "__all__", "logger"}  # which every module may define for itself


@cache
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("sortal", include_external_packages=True, exclude_type_checking_imports=True)


@cache
def modules() -> list[tuple[str, ast.Module, str]]:
    """Return the name, tree and text of every module."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        parts = ("sortal", *path.relative_to(SOURCE).with_suffix("").parts)
        text = path.read_text(encoding="utf-8")
        found.append((".".join(parts).removesuffix(".__init__"), ast.parse(text), text))
    return found


def is_below(module: str, packages: tuple[str, ...]) -> bool:
    return any(f"{module}.".startswith(f"{each}.") for each in packages)


def test_no_module_reaches_torch_unless_it_is_listed() -> None:
    reaching = {each for each in graph().modules if "torch" in graph().find_upstream_modules(each)}
    assert "sortal.learning.train" in reaching
    assert [each for each in sorted(reaching) if not is_below(each, TORCH) or is_below(each, LIGHT)] == []
    assert {*LIGHT} <= graph().modules
    assert all(any(is_below(each, (listed,)) for each in reaching) for listed in TORCH), "a listed one no longer does"


def test_no_modules_import_each_other_in_a_circle() -> None:
    circles = {
        (module, below)
        for module in graph().modules
        for below in graph().find_modules_directly_imported_by(module)
        if module in graph().find_upstream_modules(below)
    }
    assert circles == set()


def imports_in_functions(tree: ast.Module) -> Iterator[str]:
    """Yield the module of each import inside a function."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.ImportFrom):
                    yield str(node.module)
                elif isinstance(node, ast.Import):
                    yield from (each.name for each in node.names)


def test_functions_import_only_what_is_heavy_optional_or_of_one_platform() -> None:
    lazy = {(name, each) for name, tree, _ in modules() for each in imports_in_functions(tree)}
    start = {("sortal.__main__", "signal"), ("sortal.__main__", "contextlib")}
    others = {
        (name, each)
        for name, each in lazy - start
        if each.partition(".")[0] not in LAZY and not (is_below(each, ("sortal",)) and name in LAZY_MODULES)
    }
    assert others == set()
    assert {name for name, each in lazy if is_below(each, ("sortal",))} == LAZY_MODULES
    assert {each.partition(".")[0] for _, each in lazy} >= LAZY, "one is no longer imported so"


def test_no_module_is_too_long() -> None:
    lengths = {name: text.count("\n") for name, _, text in modules()}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES} == {}


def test_no_two_modules_or_classes_have_one_name() -> None:
    homes = defaultdict(set)
    for name, tree, _ in modules():
        if not (SOURCE.parent / name.replace(".", "/")).is_dir():
            homes[f"{name.rpartition('.')[2]}.py"].add(name)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes[node.name].add(name)
        for each in assigned(tree):
            if re.fullmatch("[A-Z][A-Za-z]*[a-z][A-Za-z]*", each):  # an alias of a type
                homes[each].add(name)
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}
    assert not {*sortal.__all__} - {"metrics"} & {path.stem for path in SOURCE.iterdir()}, "a module hides a function"


def assigned(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module assigns to."""
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            for each in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(each, ast.Name):
                    yield each.id


def test_names_say_of_what() -> None:
    vague = {(name, each) for name, tree, _ in modules() for each in assigned(tree) if VAGUE.fullmatch(each)}
    for name, tree, _ in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in VAGUE_FUNCTIONS:
                vague.add((name, node.name))
    assert vague == set()


def test_a_constant_has_one_meaning() -> None:
    homes = defaultdict(set)
    for name, tree, _ in modules():
        for each in assigned(tree):
            homes[each].add(name)
    assert {each: where for each, where in homes.items() if len(where) > 1 and each not in SHARED_NAMES} == {}


@pytest.mark.parametrize("path", sorted((SOURCE / "web/static").rglob("*.*s")), ids=lambda path: path.name)
def test_scripts_and_styles_are_formatted(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").split("\n")
    assert [number for number, line in enumerate(lines, 1) if len(line) > LONGEST_LINE or line != line.rstrip()] == []


# Modules whose tests are in files of another name, because they are tested together with others.
TESTED_BY = {
    "sortal": "test_public.py",
    "sortal.__main__": "test_main.py",
    "sortal.config.rules": "config/test_settings.py",
    "sortal.config.training": "config/test_settings.py",
    "sortal.discovery.grouping.choose_k": "discovery/test_stages.py",
    "sortal.discovery.grouping.shared_kmeans": "discovery/test_processes.py",
    "sortal.discovery.reviewing.open": "web/app/test_server.py",
    "sortal.research.benchmark.aggregate": "research/benchmark/test_comparison.py",
    "sortal.research.benchmark.published": "research/benchmark/test_comparison.py",
    "sortal.research.benchmark.task": "research/benchmark/test_sweep.py",
    "sortal.research.figures": "research/figures/test_drawing.py",
    "sortal.research.figures.samples": "research/figures/test_scatter.py",
    "sortal.reviews.advising": "discovery/reviewing/test_advice.py",
    "sortal.web.report.charts": "web/report/test_report.py",
}


def has_quick_tests(path: Path) -> bool:
    return path.exists() and "\npytestmark = pytest.mark.thorough\n" not in path.read_text(encoding="utf-8")


def test_every_module_with_logic_has_tests_of_its_own() -> None:
    missing = set()
    for name, tree, _ in modules():
        has_logic = any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in ast.walk(tree))
        *rooms, stem = name.split(".")[1:] or ["sortal"]
        if has_logic and not has_quick_tests(TESTS / "/".join(rooms) / f"test_{stem}.py"):
            missing.add(name)
    assert missing == {*TESTED_BY}
    assert {path for path in TESTED_BY.values() if not has_quick_tests(TESTS / path)} == set()
