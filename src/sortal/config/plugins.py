"""Code that a person names: methods and backbones in a file, a module or an installed package.

Nothing else in Sortal imports code that is not its own; what the files of a run say is never imported.
"""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from os import PathLike, fspath
from pathlib import Path
from types import ModuleType
from typing import Any

from sortal.config.methods import METHODS, REFERENCES, Registration, reference_to, registered, registration_of
from sortal.config.settings import HUB_PREFIX, OPEN_CLIP_PREFIX
from sortal.errors import InputError, Remedy, SortalError, quoted

GROUP = "sortal.methods"  # of entry points
BACKBONES: dict[str, Any] = {}  # modules of a person's own, or what makes them, by reference
_LOADED: dict[str, tuple[int, int]] = {}  # by the name of a module that was a file: its size and time of change


@dataclass(frozen=True, kw_only=True)
class MethodSource:
    """Where the code of a method is that is not part of Sortal. Runs record it for people; nothing imports by it."""

    code: str  # FILE.py:NAME or MODULE:NAME
    package: str | None = None  # that is installed and has the module, if that is known
    version: str | None = None  # of the package


def load_method(reference: object) -> str:
    """Load the method that a person names, and return the text that settings have for it.

    That is its name; FILE.py:CLASS, MODULE:CLASS or the name of an entry point; or, in Python, the class itself.
    """
    if not isinstance(reference, str):
        return _linked(reference, None)
    if ":" in reference:
        return _linked(load_object(reference), reference)
    if reference not in METHODS:
        from importlib.metadata import entry_points

        for point in entry_points(group=GROUP, name=reference):
            return _linked(_guarded(point.load, point.value), reference)
    return reference  # whoever needs a method that there is not, says so


def method_source(reference: str) -> MethodSource | None:
    """Say where the code of a loaded method is; None for one of Sortal's own."""
    of = registration_of(reference)
    if of.is_own:
        return None
    module, _, name = of.place.partition(":")
    with suppress(Exception):  # the metadata of any package may be damaged, which is no reason to lose a run
        if (installed := _installed_source(of, module)) is not None:
            return installed
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or "." in module:  # at a prompt, or in a package that is not installed
        return MethodSource(code=of.place)
    return MethodSource(code=f"{os.path.abspath(file)}:{name}")


def not_loaded(method: str, source: MethodSource | None) -> InputError:
    """Return the error for the method of a run whose code is not loaded: where it came from, and the way out."""
    from importlib import metadata

    which, why = f"The method of this run, {quoted(method)},", "and Sortal loads code only where you name it."
    if source is not None and source.package is not None and not _is_installed(source.package):
        package = f"the package {quoted(' '.join(filter(None, (source.package, source.version))))}"
        return InputError(
            f"{which} is {quoted(source.code)} of {package}, which is not installed, {why}",
            Remedy("install that package if you trust it, then name the method", method=source.code),
        )
    if ":" in method or metadata.entry_points(group=GROUP, name=method):
        return InputError(f"{which} is not loaded, {why}", Remedy("name it if you trust it", method=method))
    if source is None:
        return InputError(
            f"{which} is not loaded, and the run does not say where its code is.",
            Remedy("install the package that has it, then name the code", method=...),
        )
    return InputError(f"{which} is not loaded, {why}", Remedy("name it if you trust it", method=source.code))


def line_of_method(error: BaseException) -> str:
    """Say in which line of a method that is not Sortal's own an error arose; empty if in none."""
    modules = (sys.modules.get(of.place.partition(":")[0]) for of in METHODS.values() if not of.is_own)
    files = {getattr(module, "__file__", None) for module in modules} - {None}
    at, where = error.__traceback__, ""
    while at is not None:
        if (file := at.tb_frame.f_code.co_filename) in files:
            where = f", in line {at.tb_lineno} of {file!r}"
        at = at.tb_next
    return where


def _installed_source(of: Registration, module: str) -> MethodSource | None:
    """Say in which installed package the code of a method is, if that is known."""
    from importlib import metadata

    for point in metadata.entry_points(group=GROUP):
        if REFERENCES.get(point.name) == of.name and point.dist is not None:
            code = f"{point.module}:{point.attr}"
            return MethodSource(code=code, package=point.dist.name, version=point.dist.version)
    having = () if module in _LOADED else metadata.packages_distributions().get(module.partition(".")[0], ())
    if (package := next(iter(having), None)) is None:
        return None
    return MethodSource(code=of.place, package=package, version=metadata.version(package))


def _is_installed(package: str) -> bool:
    from importlib import metadata

    try:
        return bool(metadata.version(package))
    except (metadata.PackageNotFoundError, ValueError):  # there is none, or it has no name
        return False


def load_named_backbone(reference: Any) -> str:
    """Load the backbone that a person names as FILE.py:NAME or MODULE:NAME, or, in Python, gives as a module.

    Return the text that settings have for it; any other text is returned as it is.
    """
    if isinstance(reference, str | PathLike):
        text = fspath(reference)
        if is_reference(text):
            BACKBONES[text] = load_object(text)
        return text
    name = reference_to(reference if hasattr(reference, "__qualname__") else type(reference))
    BACKBONES[name] = reference
    return name


def is_reference(name: str) -> bool:
    """Tell whether the name of a backbone is FILE.py:NAME or MODULE:NAME."""
    if name.startswith((HUB_PREFIX, OPEN_CLIP_PREFIX)):
        return False
    _, colon, own = name.rpartition(":")
    return bool(colon) and own.replace(".", "_").isidentifier() and not name.endswith((".json", ".safetensors"))


def registered_backbone(name: str) -> Any:
    """Return a module of a person's own, or what makes it; raise InputError if its code is not loaded."""
    if name not in BACKBONES:
        raise InputError(
            f"The backbone {quoted(name)} is not loaded, and Sortal loads code only where you name it.",
            Remedy("name it", backbone=name),
        )
    return BACKBONES[name]


def load_object(reference: str) -> Any:
    """Return what FILE.py:NAME or MODULE:NAME names."""
    place, _, name = reference.rpartition(":")
    module = _from_file(Path(place), reference) if place.endswith(".py") else _guarded(import_module, reference, place)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise InputError(f"{quoted(place)} must define {quoted(name)}, but it does not. Check the name.")
        found = getattr(found, part)
    return found


def _linked(found: object, reference: str | None) -> str:
    """Check that a class or registration is known, and let it be found by a reference, too."""
    if isinstance(found, Registration):
        of: Registration | None = METHODS.get(found.name)
        same = of is found
    else:
        of = registered(reference_to(found)) if isinstance(found, type) else None
        same = of is not None and of.learner is found
    if of is None or not same:
        raise InputError(
            f"A method must be registered, but {getattr(found, '__name__', None) or quoted(found, 100)} is not. Call "
            "sortal.config.register(NAME, CLASS, losses=SETTINGS) after it is defined."
        )
    if reference is None:
        return of.name if isinstance(found, Registration) else reference_to(found)
    if reference != of.name:
        REFERENCES[reference] = of.name
    return reference


def _from_file(path: Path, reference: str) -> ModuleType:
    """Load a file as a module of its own name; modules beside it can be imported, too."""
    if not path.is_file():
        raise InputError(f"The file {str(path)!r} of {quoted(reference)} does not exist. Check the path.")
    path, name = path.resolve(), path.stem
    stamp = path.stat().st_size, path.stat().st_mtime_ns
    before = sys.modules.get(name)
    if before is not None and _is_file(getattr(before, "__file__", None), path) and _LOADED.get(name, stamp) == stamp:
        return before
    if before is None or not _is_file(getattr(before, "__file__", None), path):
        other = find_spec(name) if name.isidentifier() else None
        if not name.isidentifier() or before is not None or (other is not None and not _is_file(other.origin, path)):
            problem = "is that of another module" if name.isidentifier() else "is not a word"
            raise InputError(f"The name of a file of code must be new, but {path.name!r} {problem}. Rename the file.")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # last, so that nothing there replaces a library
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        _guarded(spec.loader.exec_module, reference, module)
    except BaseException:
        del sys.modules[name]
        raise
    _LOADED[name] = stamp
    return module


def _is_file(origin: str | None, path: Path) -> bool:
    return origin is not None and Path(origin).resolve() == path


def _guarded(load: Callable[..., Any], reference: str, *arguments: object) -> Any:
    """Run code of a person's own, and turn what is wrong with it into one sentence."""
    try:
        return load(*arguments)
    except SortalError:
        raise
    except Exception as error:
        at, where = error.__traceback__, ""
        while at is not None:
            if not at.tb_frame.f_code.co_filename.startswith("<frozen"):
                where = f", in line {at.tb_lineno} of {at.tb_frame.f_code.co_filename!r}"
            at = at.tb_next
        if isinstance(error, SyntaxError):
            where = f", in line {error.lineno} of {error.filename!r}"
        text = error.msg if isinstance(error, SyntaxError) else str(error)
        raise InputError(
            f"{quoted(reference)} cannot be loaded: {type(error).__name__}: {text.rstrip('.')}{where}."
        ) from error
