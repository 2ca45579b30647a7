"""Names of images, folders and commands in files that people share, without their location on this computer."""

import ntpath
import os
import shlex
from collections.abc import Sequence
from contextlib import suppress

from sortal.runs.facts import ImageSource, RunFacts
from sortal.runs.run import Run


def shared_names(run: Run) -> list[str]:
    """Return the name of each image as the user wrote it, but relative to the folder of the images where absolute."""
    sources, rows = run.facts.images, [*zip(run.assignments.files, run.assignments.folders.tolist(), strict=True)]
    absolute: list[dict[str, str]] = [{} for _ in sources]  # paths by file, of each source
    taken: list[set[str]] = [set() for _ in sources]
    for file, at in rows:
        taken[at].add(file)
        if is_absolute(file):
            absolute[at][file] = os.path.abspath(sources[at].path_of(file) or file)
    names = [*map(_relative, sources, absolute, taken)]
    return [names[at].get(file, file) for file, at in rows]


def _relative(source: ImageSource, paths: dict[str, str], taken: set[str]) -> dict[str, str]:
    """Return a relative name for each of these files, which no other file has that is taken."""
    if not paths:
        return {}
    base = source.folder or ""
    with suppress(ValueError):  # on several drives of Windows
        if os.path.commonpath([base, *paths.values()]) != os.path.normpath(base):
            base = os.path.commonpath([os.path.dirname(path) for path in paths.values()])
        while True:
            names = {file: os.path.relpath(path, base).replace(os.sep, "/") for file, path in paths.items()}
            if not {*names.values()} & taken or base == os.path.dirname(base):
                return names
            base = os.path.dirname(base)
    return {file: os.path.basename(path) for file, path in paths.items()}


def folder_names(sources: Sequence[ImageSource]) -> list[str]:
    """Return the last parts of the folder of each source: as few as tell the folders apart; empty without a folder."""
    parts = [(each.folder or "").replace(os.sep, "/").rstrip("/").split("/") for each in sources]
    distinct = len({*map(tuple, parts)})
    for count in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(each[-count:]) for each in parts]
        if len({*names}) == distinct:
            return names
    return ["/".join(each) for each in parts]


def last_part(path: str) -> str:
    """Return the last part of an absolute path, and any other text as it is."""
    return os.path.basename(os.path.normpath(path)) if is_absolute(path) else path


def shared_command(command: str) -> str:
    """Return the lines of a command with the last parts of absolute paths."""
    return "\n".join(map(_shared_line, command.split("\n")))


def _shared_line(line: str) -> str:
    try:
        words = shlex.split(line)
    except ValueError:  # not of a command line
        return line if "/" not in line else ""
    if not any(map(is_absolute, words)):
        return line
    return shlex.join(map(last_part, words))


def shared_text(text: str, facts: RunFacts, *others: str) -> str:
    """Return a text with the last parts of the folders of a run's images, of its labels, and of other paths."""
    known = [each.folder for each in facts.images if each.folder] + [*facts.folders, facts.labels or "", *others]
    for path in sorted({each for each in known if is_absolute(each)}, key=len, reverse=True):
        text = text.replace(path, last_part(path))
    return text


def is_absolute(path: str) -> bool:
    """Tell whether a path is absolute here or on Windows."""
    return os.path.isabs(path) or bool(ntpath.splitdrive(path)[0])
