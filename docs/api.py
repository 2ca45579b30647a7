"""MkDocs hook: write the page api.md from the docstrings of every public name."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from types import ModuleType
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import sortal
from sortal.discovery.prediction import Model, Prediction
from sortal.exchange.export import ExportResult
from sortal.exchange.importing import ImportResult
from sortal.runs.facts import KChoice, Metrics, RunFacts
from sortal.runs.run import Assignments, Category

RETURNED = (Assignments, Category, ExportResult, ImportResult, KChoice, Metrics, Model, Prediction, RunFacts)
PAGE = "api.md"
HEAD = """# API

Every public name of `sortal`, and the records that these return, with their docstrings. [Python](python.md) shows how
they work together.
"""
EXAMPLE = re.compile(r"(?:^(?:>>> |\.\.\. ).*\n?(?:^(?!>>>|\.\.\.)\S.*\n?)*)+", flags=re.MULTILINE)
SECTION = re.compile(r"^(\w+)\n-+$", flags=re.MULTILINE)
SETTING = re.compile(r"^    (\w+ = .+?): (.*)$", flags=re.MULTILINE)
FIELD = re.compile(r"^    ([a-z]\w*): ([^=#\n]+?)(?: = [^#\n]+)?(?:  # (.*))?$", flags=re.MULTILINE)
ENTRY = re.compile(r"^(?:`(\w+)`:|(\w+) :) (.*(?:\n    .*)*)", flags=re.MULTILINE)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    if config.nav and PAGE in str(config.nav):
        files.append(File.generated(config, PAGE, content=page()))
    return files


def page() -> str:
    """All names, classes with their methods and modules with their functions, and what they return, as Markdown."""
    names = {name: getattr(sortal, name) for name in sortal.__all__ if name != "__version__"}
    names |= {each.__name__: each for each in RETURNED}
    ordered = sorted(names, key=str.lower)
    return "\n".join([HEAD, *(entry for name in ordered for entry in _entries(name, names[name], "##"))])


def _entries(name: str, what: Any, level: str) -> Iterator[str]:
    call = _signature(name, what)
    code = f"```python\n{call}\n```\n\n" if call else ""
    yield f"{level} {name}\n\n{code}{_markdown(inspect.getdoc(what) or '')}\n{_fields(what)}"
    for below, each in vars(what).items() if inspect.isclass(what) or inspect.ismodule(what) else ():
        if below[0] != "_" and below not in vars(what).get("__dataclass_fields__", ()) and _is_public(each, what):
            yield from _entries(f"{name}.{below}", each, f"{level}#")


def _fields(what: Any) -> str:
    """The fields of a record whose docstring does not list them, as the source spells and explains them."""
    if not isinstance(what, type) or not is_dataclass(what) or ENTRY.search(inspect.getdoc(what) or ""):
        return ""
    found = [each for base in reversed(inspect.getmro(what)) if is_dataclass(base) for each in _of_source(base)]
    return "\n" + "".join(f"- `{name}: {kind}`{comment and f': {comment}'}\n" for name, kind, comment in found)


def _of_source(record: type) -> list[tuple[str, str, str]]:
    return FIELD.findall(inspect.getsource(record))


def _is_public(each: Any, of: Any) -> bool:
    if isinstance(of, ModuleType):
        return callable(each) and getattr(each, "__module__", "") == of.__name__
    return (inspect.isfunction(each) or isinstance(each, property)) and bool(each.__doc__)


def _signature(name: str, what: Any) -> str:
    """A call as the source spells it; nothing for what is not called, or is a record that others make."""
    if not (callable(what) and (inspect.isfunction(what) or "__init__" in vars(what))):
        return ""
    if "__dataclass_fields__" in vars(what):
        return ""
    function = what.__init__ if inspect.isclass(what) else what
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    parts = list(_parameters(tree.args))
    call = f"{name}({', '.join(parts)})"
    if len(call) > 80:
        call = "\n".join([f"{name}(", *(f"    {part}," for part in parts), ")"])
    returns = "" if inspect.isclass(what) or tree.returns is None else f" -> {_typed(tree.returns)}"
    return call + returns


def _parameters(of: ast.arguments) -> Iterator[str]:
    plain = [*of.posonlyargs, *of.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(of.defaults))
    for each, default in zip(plain, [*defaults, *of.defaults], strict=True):
        if each.arg not in ("self", "cls"):
            yield _parameter(each, default)
    if of.vararg or of.kwonlyargs:
        yield f"*{_parameter(of.vararg) if of.vararg else ''}"
    yield from map(_parameter, of.kwonlyargs, of.kw_defaults)
    if of.kwarg:
        yield f"**{_parameter(of.kwarg)}"


def _parameter(of: ast.arg, default: ast.expr | None = None) -> str:
    typed = f"{of.arg}: {_typed(of.annotation)}" if of.annotation else of.arg
    return f"{typed} = {ast.unparse(default)}" if default else typed


def _typed(of: ast.expr) -> str:
    """A type as it is read; one that is defined later is quoted in the source."""
    return of.value if isinstance(of, ast.Constant) and isinstance(of.value, str) else ast.unparse(of)


def _markdown(doc: str) -> str:
    """A docstring as Markdown: entries as a list, examples as code."""
    doc = EXAMPLE.sub(lambda found: f"\n```pycon\n{found[0].rstrip()}\n```\n", doc.replace("  # doctest: +SKIP", ""))
    doc = SETTING.sub(r"- `\1`: \2", SECTION.sub(r"**\1**\n", doc))
    return ENTRY.sub(lambda found: f"- `{found[1] or found[2]}`: {' '.join(found[3].split())}", _separate(doc))


def _separate(doc: str) -> str:
    """Put an empty line before the first of several entries, as a list of Markdown needs."""
    return re.sub(r"(^(?!`\w+`:|\w+ :|    ).+\n)(?=`\w+`: |\w+ : )", r"\1\n", doc, flags=re.MULTILINE)
