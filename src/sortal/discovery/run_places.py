"""Where a run is written: a new or empty folder outside the images, or that of an earlier run of the same images."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sortal.discovery.earlier import folders_of
from sortal.errors import InputError, Remedy, listing
from sortal.reviews.loading import load_run
from sortal.runs.facts import RunFacts
from sortal.runs.run import Run
from sortal.runs.storage import peek, why_damaged
from sortal.system.files import LOCK_FILE, in_use, is_locked
from sortal.system.open_folder import CACHE, NEXT, open_folder
from sortal.system.temporary import is_temporary
from sortal.system.text import plural

ANOTHER_FOLDER = Remedy("choose another folder", out=...)


def check_free(place: Path, *, unless: bool = False) -> None:
    """Refuse a folder that another process is using, before any work is done, `unless` it is only looked at."""
    if place.is_dir() and not unless:
        with open_folder(place) as here:
            if is_locked(here, ""):
                raise in_use(place)


def run_of_files(folder: str) -> Run | None:
    """Return the run in a folder, without images that were added later, if it was made of files one by one.

    Such a run was given a list of files or an ImageSet, so no folder says which images it is of: the run itself does.
    """
    facts = peek(Path(folder))
    if facts is None or facts.features is not None or facts.folders or facts.images[0].folder is None:
        return None
    run = load_run(folder, raw=True)
    run = run.part(np.flatnonzero(run.assignments.folders == 0))
    if gone := [path for path in run.paths() if not os.path.isfile(path)]:
        raise InputError(
            f"The run in {folder!r} cannot be sorted again, as {len(gone):,} of its "
            f"{plural(len(run.assignments), 'image')} {'is' if len(gone) == 1 else 'are'} gone: {listing(gone)}.",
            Remedy("give its images again, with the folder of the run", out=folder),
        )
    return run


def place_and_folders(folders: tuple[str, ...], out: str | os.PathLike[str] | None) -> tuple[Path, tuple[str, ...]]:
    """Return the folder of the run and those of the images; a run that is given is sorted again, in its folder."""
    if len(folders) == 1:
        given = Path(folders[0])
        if (facts := peek(given)) is not None:
            return given if out is None else Path(out), _own_folders(folders[0], facts)
        if problem := why_damaged(given):
            raise InputError(
                f"The run in {folders[0]!r} cannot be sorted again, as it {problem.rstrip('.')}.",
                Remedy("give its images again, with the folder of the run", out=folders[0], force=True),
            )
    return Path(out) if out is not None else Path(f"{os.path.basename(folders[0])}-run"), folders


def _own_folders(run: str, facts: RunFacts) -> tuple[str, ...]:
    folders = folders_of(facts)
    if not folders or not all(map(os.path.isdir, folders)):
        raise InputError(
            f"The images of the run in {run!r} are not in {listing(folders)} any more."
            if folders
            else f"The images of the run in {run!r} were given as an array.",
            Remedy("give its images again, with the folder of the run", out=run),
        )
    return folders


def check_output_folder(
    place: Path, folders: Sequence[str], root: str | None = None, *, force: bool, features: str | None = None
) -> RunFacts | None:
    """Return the facts of the run in a place, if there is one; with `force`, whatever is there does not count.

    The images are in `folders`; files that were listed one by one are below `root`; an array has neither. Refuse
    a place among the images, or one that holds other things.
    """
    if os.path.lexists(place) and not place.is_dir():
        raise InputError(f"The run must be a folder, got {str(place)!r}, which is a file.", ANOTHER_FOLDER)
    here = Path(os.path.realpath(place))  # resolves links and dots, which hide where things are
    within = folders or ([] if root is None or features is not None else [root])  # where the images are
    real = [Path(os.path.realpath(folder)) for folder in within]
    for folder, images in zip(folders, real, strict=False):
        if here.is_relative_to(images):
            raise InputError(
                f"The run must be outside the folder of images, got {str(place)!r}.",
                Remedy("choose another folder", out=f"{folder}-run"),
            )
    if force or not place.is_dir():
        return None
    facts = peek(place)
    if facts is None:
        others = {
            path.name
            for path in here.iterdir()
            if not any(images.is_relative_to(os.path.realpath(path)) for images in real)
        }
        others -= {LOCK_FILE, CACHE, NEXT, *filter(is_temporary, others)}  # left by an interrupted run
        if others:
            problem = why_damaged(place) or f"contains {listing(sorted(others))}"
            raise InputError(
                f"The run must be a new or empty folder or an earlier run, got {str(place)!r}, which "
                f"{problem.rstrip('.')}.",
                ANOTHER_FOLDER,
                Remedy("write into it nevertheless", force=True),
            )
        return None
    before = folders_of(facts)
    if features is not None or facts.features is not None:
        same, before = features == facts.features, () if facts.features is None else (facts.features,)
    else:
        same = bool({*before} & {*within}) or not (before or within)
    if not same:
        other = listing([*filter(None, before)]) or "given as an array"
        message = f"{str(place)!r} holds a run of other images, {other}."
        raise InputError(message, ANOTHER_FOLDER, Remedy("overwrite it", force=True))
    return facts
