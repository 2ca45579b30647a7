"""Measure the power of the tests: plant small faults in the package, one at a time, and count those the tests catch.

    python benchmarks/mutations.py --count 40 --seed 0
    python benchmarks/mutations.py --count 40 --seed 0 --tests /path/to/another/checkout/tests

Faults are drawn by the seed from all places where one is possible, at most one in a module, so two sets of tests can be
compared on the same faults. Each is planted in a copy of the package and judged by the test files that name its
module, the module's own first, until one test fails. Tests that fail without any fault do not judge. A fault that keeps
a test from ending counts as caught.
"""

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
COMPARISONS: dict[type[ast.cmpop], ast.cmpop] = {
    ast.Lt: ast.LtE(),
    ast.LtE: ast.Lt(),
    ast.Gt: ast.GtE(),
    ast.GtE: ast.Gt(),
    ast.Eq: ast.NotEq(),
    ast.NotEq: ast.Eq(),
    ast.Is: ast.IsNot(),
    ast.IsNot: ast.Is(),
    ast.In: ast.NotIn(),
    ast.NotIn: ast.In(),
}
OPERATORS: dict[type[ast.operator], ast.operator] = {
    ast.Add: ast.Sub(),
    ast.Sub: ast.Add(),
    ast.Mult: ast.Div(),
    ast.Div: ast.Mult(),
    ast.FloorDiv: ast.Mult(),
    ast.Mod: ast.Mult(),
    ast.Pow: ast.Mult(),
}
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Fault:
    """A piece of source text in a module, and its replacement."""

    module: str  # path below the package
    line: int
    start: int  # in characters of the file
    end: int
    before: str
    after: str

    def plant(self, package: Path) -> None:
        path = package / self.module
        text = path.read_text()
        assert text[self.start : self.end] == self.before
        path.write_text(text[: self.start] + self.after + text[self.end :])


@dataclass(frozen=True)
class Verdict:
    fault: Fault
    caught_by: str | None  # a test, or None if all passed
    files: tuple[str, ...]


def mutate(node: ast.AST) -> str | None:
    """Return the source of a faulty version of a node, or None without a rule for it."""
    match node:
        case ast.Compare(left, [first, *others], comparators):
            return ast.unparse(ast.Compare(left, [COMPARISONS[type(first)], *others], comparators))
        case ast.BinOp(left, operator, right) if type(operator) in OPERATORS:
            return ast.unparse(ast.BinOp(left, OPERATORS[type(operator)], right))
        case ast.BoolOp(operator, values):
            return ast.unparse(ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values))
        case ast.UnaryOp(ast.Not(), operand):
            return ast.unparse(operand)
        case ast.Constant(bool(value)):
            return str(not value)
        case ast.Constant(int(value) | float(value)):
            return repr(value + 1)
        case ast.Name(name, ast.Load()) if name in CALLS:
            return CALLS[name]
        case ast.Expr(ast.Call()):
            return "pass"
    return None


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run: no annotations, no code for type checkers only, no parts of f-strings."""
    skipped = {"annotation", "returns", "decorator_list", "keywords" if isinstance(node, ast.ClassDef) else ""}
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name not in skipped:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from walk(child)


def faults(package: Path, module: str) -> Iterator[Fault]:
    text = (package / module).read_text()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    lines = text.splitlines(keepends=True)

    def place(line: int, column: int) -> int:
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    for node in walk(ast.parse(text)):
        if isinstance(node, ast.expr | ast.stmt) and (after := mutate(node)) is not None:
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            start, end = place(node.lineno, node.col_offset), place(node.end_lineno, node.end_col_offset)
            whole = isinstance(node, ast.Expr | ast.Name)
            yield Fault(module, node.lineno, start, end, text[start:end], after if whole else f"({after})")


def draw(package: Path, count: int, seed: int) -> list[Fault]:
    """Draw faults, each in a module of its own; the more places a module has, the likelier it is drawn."""
    modules = sorted(str(path.relative_to(package)) for path in package.rglob("*.py"))
    every = [fault for module in modules for fault in faults(package, module)]
    random.Random(seed).shuffle(every)
    chosen: dict[str, Fault] = {}
    for fault in every:
        chosen.setdefault(fault.module, fault)
    return sorted([*chosen.values()][:count], key=lambda fault: fault.module)


def related(tests: Path, module: str, most: int) -> list[str]:
    """Name the test files of a module: its own, then those that name it most often."""
    parts = [part for part in Path(module).with_suffix("").parts if part != "__init__"]
    leaf, package = (parts or ["sortal"])[-1], (parts or [""])[0]
    ranks: dict[str, tuple[int, int]] = {}
    for path in tests.rglob("test_*.py"):
        count = len(re.findall(rf"\b{re.escape(leaf)}\b", path.read_text()))
        rank = 2 if path.name.endswith(f"_{leaf}.py") else int(len(parts) > 1 and path.parent.name == package)
        if count or rank:
            ranks[str(path.relative_to(tests))] = (rank, count)
    return sorted(ranks, key=lambda name: ranks[name], reverse=True)[:most]


def run_tests(package: Path, tests: Path, files: list[str], options: list[str], limit: float) -> str | None:
    """Run test files against a package; return the output of pytest if a test failed, None if all passed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    with TemporaryDirectory() as folder:
        done = subprocess.run(
            [*command, *(str(tests / name) for name in files)],
            cwd=tests.parent,
            env={**os.environ, "PYTHONPATH": str(package.parent), "TMPDIR": folder},
            capture_output=True,
            text=True,
            timeout=limit,
        )
    return None if done.returncode in (0, 5) else done.stdout  # 5: no tests collected


def judge(fault: Fault, tests: Path, files: list[str], limit: float) -> Verdict:
    """Run tests until one fails that passes without the fault."""
    options: list[str] = []
    with TemporaryDirectory() as folder:
        package = Path(folder) / "src/sortal"
        shutil.copytree(ROOT / "src/sortal", package, ignore=shutil.ignore_patterns("__pycache__"))
        fault.plant(package)
        while True:
            try:
                output = run_tests(package, tests, files, ["-x", *options], limit)
            except subprocess.TimeoutExpired:
                return Verdict(fault, "(a test that does not end)", tuple(files))
            if output is None:
                return Verdict(fault, None, tuple(files))
            failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
            if failed is None:
                return Verdict(fault, "(pytest itself)", tuple(files))
            path, _, name = failed[1].partition("::")
            alone = ["--collect-only"] if not name else []
            where = str(Path(path).relative_to("tests")) + failed[1].removeprefix(path)
            if run_tests(ROOT / "src/sortal", tests, [where], alone, limit) is None:
                return Verdict(fault, failed[1], tuple(files))
            options.append(f"--deselect={failed[1]}" if name else f"--ignore={tests.parent / path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tests", type=Path, default=ROOT / "tests", help="the tests that judge")
    parser.add_argument("--files", type=int, default=4, help="how many test files judge a fault")
    parser.add_argument("--jobs", type=int, default=2, help="how many faults are judged at once")
    parser.add_argument("--limit", type=float, default=900, help="seconds after which tests count as hanging")
    parser.add_argument("--list", action="store_true", help="only list the faults")
    parser.add_argument("--only", type=int, nargs="+", help="judge faults of these numbers only")
    parser.add_argument("--json", type=Path, help="write the verdicts to this file")
    arguments = parser.parse_args()
    drawn = [*enumerate(draw(ROOT / "src/sortal", arguments.count, arguments.seed))]
    if arguments.only is not None:
        drawn = [(number, fault) for number, fault in drawn if number in arguments.only]

    tests: Path = arguments.tests.resolve()
    judges = {fault: related(tests, fault.module, arguments.files) for _, fault in drawn}
    verdicts = []
    with ThreadPoolExecutor(arguments.jobs) as pool:

        def judged(fault: Fault) -> Verdict | None:
            return None if arguments.list else judge(fault, tests, judges[fault], arguments.limit)

        for (number, fault), verdict in zip(drawn, pool.map(judged, judges), strict=True):
            before, after = (" ".join(text.split())[:70] for text in (fault.before, fault.after))
            print(f"{number:3} {fault.module}:{fault.line}: {before} -> {after}", flush=True)
            if verdict is not None:
                verdicts.append(verdict)
                print(f"    {verdict.caught_by or 'SURVIVED'}", flush=True)
    if verdicts:
        print(f"{sum(verdict.caught_by is not None for verdict in verdicts)} of {len(verdicts)} caught")
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(verdict) for verdict in verdicts], indent=1) + "\n")


if __name__ == "__main__":
    main()
