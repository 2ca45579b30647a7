"""The folders that a run's images are in, which output must not land in."""

import os
from contextlib import suppress
from pathlib import Path

from sortal.runs.run import Run


def paths_of(run: Run) -> list[str]:
    """Return the absolute path of each image, as `Run.paths` does, but empty for images given as pixels."""
    a = run.assignments
    paths = (run.facts.images[at].path_of(file) for file, at in zip(a.files, a.folders.tolist(), strict=True))
    return [path and os.path.abspath(path) for path in paths]


def image_folder_around(place: Path, run: Run) -> str | None:
    """Return the folder of images that a path is or lies in, where the next run would read output as images."""
    folders: dict[int, set[str]] = {}  # by source; not its own folder, which for a list of files is the working one
    for path, source in zip(paths_of(run), run.assignments.folders.tolist(), strict=True):
        if path:
            folders.setdefault(source, set()).add(os.path.dirname(path))
    for each in folders.values():
        try:
            common = os.path.commonpath(each)
        except ValueError:  # on several drives of Windows
            continue
        if common != Path(common).anchor and is_within(place, Path(common)):
            return common
    return None


def is_within(inner: Path, outer: Path) -> bool:
    """Tell whether a path is or lies in a folder, also where links or letter case make their names differ."""
    inner, outer = Path(os.path.realpath(inner)), Path(os.path.realpath(outer))
    return inner.is_relative_to(outer) or any(same_file(outer, each) for each in (inner, *inner.parents))


def same_file(one: Path, other: Path) -> bool:
    with suppress(OSError, ValueError):
        return os.path.samefile(one, other)
    return False
