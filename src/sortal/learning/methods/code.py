"""The code that a training run depends on: versions of Sortal's own, and the source of everything else.

Weights trained by one loss must not pass for those of another. Sortal's own methods state a version, as their source
also changes where their results do not. Of other code, this is the source of the classes of a method and its modules,
and of all functions, classes and constants that they refer to, in whichever modules; installed libraries excepted.
"""

import hashlib
import inspect
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import PurePath
from types import CodeType, FunctionType, ModuleType
from typing import Any

from sortal.learning.methods.method import Method

LOOP = 1  # raised when batches, views, schedule or optimiser lead to other weights than before
LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
INSTALLED = ("site-packages", "dist-packages")  # folders of libraries in whichever place


def code_of(method: Method) -> str:
    """Return text that is the same for the same code."""
    classes = list(dict.fromkeys(cls for module in method.modules() for cls in type(module).__mro__))
    versions = {f"{cls.__name__} {vars(cls)['version']}" for cls in classes if _is_own(cls) and "version" in vars(cls)}
    brought = {_top(cls) for cls in type(method).__mro__ if not _is_own(cls)} - {"torch", *sys.stdlib_module_names}
    parts = sorted(_sources(classes, brought))
    source = [hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()] if parts else []
    return ", ".join([f"loop {LOOP}", *sorted(versions), *source])


def _sources(start: Iterable[Any], brought: set[str]) -> Iterator[str]:
    """Yield the source of what is no library, and of what that refers to; packages that `brought` the method count."""
    waiting, seen = list(start), set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen or _is_own(one) or (_is_installed(one) and _top(one) not in brought):
            continue
        seen.add(id(one))
        yield f"{one.__qualname__}\n{_source(one)}"
        for name, value in _referred(one):
            yield f"{one.__qualname__} refers to {name}, {_text(value, waiting)}"


def _text(value: Any, found: list[Any]) -> str:
    """Return a constant as text; classes and functions in it, whose names alone are in the text, are `found`."""
    match value:
        case type() | FunctionType():
            found.append(value)
            return value.__qualname__
        case partial():
            return f"partial {[_text(each, found) for each in (value.func, value.args, value.keywords)]}"
        case tuple() | list():
            return f"{type(value).__name__} {[_text(each, found) for each in value]}"
        case set() | frozenset():
            return f"set {sorted(_text(each, found) for each in value)}"
        case dict():
            return f"dict {[(_text(key, found), _text(each, found)) for key, each in value.items()]}"
        case bool() | int() | float() | complex() | str() | bytes() | None:
            return repr(value)
    return type(value).__qualname__


def _referred(one: type | FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what a class has, or a function refers to, by name."""
    if isinstance(one, type):
        yield "bases", one.__bases__
        for name, value in vars(one).items():
            parts = (value.fget, value.fset) if isinstance(value, property) else (getattr(value, "__func__", value),)
            yield from ((name, part) for part in parts if isinstance(part, FunctionType))
        return
    names = set(_names(one.__code__))
    full = (cell for cell in one.__closure__ or () if cell != type(cell)())
    yield from (("enclosed", cell.cell_contents) for cell in full)
    yield "wrapped", getattr(one, "__wrapped__", None)
    yield from _named(names, one.__globals__, set())


def _named(names: set[str], space: dict[str, Any], seen: set[str]) -> Iterator[tuple[str, Any]]:
    """Yield what has one of the names here, or in a module that has one."""
    for name in sorted(names & space.keys()):
        value = space[name]
        if not isinstance(value, ModuleType):
            yield name, value
        elif value.__name__ not in seen and not _is_library(value):
            yield from _named(names, vars(value), seen | {value.__name__})


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _source(one: type | FunctionType) -> str:
    """Return the source, or what was compiled from it where there is none, as at Python's prompt."""
    try:
        return inspect.getsource(one if isinstance(one, type) else one.__code__)  # not that of what it wraps
    except (OSError, TypeError):
        parts = [one] if isinstance(one, FunctionType) else [value for _, value in _referred(one)]
        return "\n".join(repr(_compiled(part.__code__)) for part in parts if isinstance(part, FunctionType))


def _compiled(code: CodeType) -> tuple[Any, ...]:
    constants = tuple(_compiled(each) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.co_name, code.co_code, code.co_names, constants


def _top(one: Any) -> str:
    return str(getattr(one, "__module__", None) or "").partition(".")[0]


def _is_own(one: Any) -> bool:
    return _top(one) == "sortal"


def _is_installed(one: Any) -> bool:
    module = sys.modules.get(getattr(one, "__module__", None) or "")
    return module is None or _is_library(module)


def _is_library(module: ModuleType) -> bool:
    """Tell whether a module comes with Python or an installed package."""
    file = getattr(module, "__file__", None)
    if module.__name__ == "__main__":
        return False
    return file is None or file.startswith(LIBRARIES) or not {*PurePath(file).parts}.isdisjoint(INSTALLED)
