"""The code that a training run depends on: weights trained by one loss must not pass for those of another.

Sortal's own methods state a version, as their source also changes where their results do not. Other methods are
identified by the source of the modules that define them, and of all modules that these import, except libraries.
"""

import ast
import hashlib
import sys
from collections.abc import Iterator
from importlib.util import resolve_name
from inspect import getsource
from pathlib import PurePath
from types import CodeType, FunctionType

from sortal.learning.methods.method import Method

LOOP = 1  # raised when batches, views, schedule or optimiser lead to other weights than before
INSTALLED = {"site-packages", "dist-packages"}  # folders of libraries
NEVER = {"sortal", "torch", *sys.stdlib_module_names}  # packages whose source does not count


def code_of(method: Method) -> str:
    """Return text that is the same for the same code."""
    classes = list(dict.fromkeys(cls for module in method.modules() for cls in type(module).__mro__))
    own = [cls for cls in classes if _package(cls.__module__) == "sortal"]
    versions = sorted({f"{cls.__name__} {vars(cls)['version']}" for cls in own if "version" in vars(cls)})
    brought = {_package(cls.__module__) for cls in type(method).__mro__}  # an installed package may define a method
    counted = [cls for cls in classes if _counts(cls.__module__, brought)]
    parts = sorted({*_sources([cls.__module__ for cls in counted], brought), *map(_source, counted)})
    digest = [hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()] if parts else []
    return ", ".join([f"loop {LOOP}", *versions, *digest])


def source_of(*codes: type | FunctionType) -> str:
    """Return a digest of the source of classes and functions and of what they import; of ours, of the version."""
    places = [each for code in codes for each in (code.__mro__ if isinstance(code, type) else [code])]
    names, brought = [each.__module__ for each in places], {_package(each.__module__) for each in places}
    own = [each for each in places if _package(each.__module__) == "sortal" and "version" in vars(each)]
    versions = sorted(f"{each.__name__} {vars(each)['version']}" for each in own)
    counted = [each for each in places if isinstance(each, type) and _counts(each.__module__, brought)]
    parts = [*versions, *sorted({*_sources(names, brought), *map(_source, counted)})]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _sources(names: list[str], brought: set[str]) -> Iterator[str]:
    """Yield the source of modules that count, and of those that they import."""
    waiting, seen = list(names), set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen or not _counts(name, brought) or not _file(name).endswith(".py"):
            continue
        seen.add(name)
        source = getsource(sys.modules[name])
        waiting += _imports(source, sys.modules[name].__package__)
        yield source


def _imports(source: str, package: str | None) -> Iterator[str]:
    """Yield the full names of all that a module of a package imports, whether or not they are modules."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            yield from (base, *(f"{base}.{each.name}" for each in node.names))


def _source(cls: type) -> str:
    """Return the source of a class; where there is none, as at Python's prompt, what was compiled from it."""
    try:
        return getsource(cls)
    except (OSError, TypeError):
        functions = [value for value in vars(cls).values() if isinstance(value, FunctionType)]
        return "\n".join(text for each in functions for text in _compiled(each, each.__code__, {each.__name__}))


def _compiled(function: FunctionType, code: CodeType, seen: set[str]) -> Iterator[str]:
    """Yield the compiled code of a function, and the global functions and constants that it names."""
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    yield repr((code.co_name, code.co_code, code.co_names, [each for each in code.co_consts if each not in inner]))
    for each in inner:
        yield from _compiled(function, each, seen)
    for name in (each for each in code.co_names if each not in seen):
        seen.add(name)
        match function.__globals__.get(name):
            case FunctionType() as named:
                yield from _compiled(named, named.__code__, seen)
            case int() | float() | str() as constant:
                yield f"{name} = {constant!r}"


def _counts(name: str, brought: set[str]) -> bool:
    """Tell whether the source of a module counts: it is loaded, and no library unless that `brought` the method."""
    if name not in sys.modules or _package(name) in NEVER:
        return False
    return _package(name) in brought or INSTALLED.isdisjoint(PurePath(_file(name)).parts)


def _file(name: str) -> str:
    return getattr(sys.modules[name], "__file__", None) or ""


def _package(name: str) -> str:
    return name.partition(".")[0]
