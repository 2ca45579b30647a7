"""Where a run is written: a new or empty folder outside the images, or that of an earlier run of the same images."""

import os
from collections.abc import Sequence
from pathlib import Path

from sortal.discovery.earlier import folders_of
from sortal.errors import InputError, Remedy, listing
from sortal.runs.facts import RunFacts
from sortal.runs.storage import peek, why_damaged
from sortal.system.files import LOCK_FILE, in_use, is_locked
from sortal.system.open_folder import CACHE, NEXT, open_folder
from sortal.system.temporary import is_temporary

ANOTHER_FOLDER = Remedy("choose another folder", out=...)


def check_free(place: Path, *, unless: bool = False) -> None:
    """Refuse a folder that another process is using, before any work is done, `unless` it is only looked at."""
    if place.is_dir() and not unless:
        with open_folder(place) as here:
            if is_locked(here, ""):
                raise in_use(place)


def check_output_folder(
    place: Path, folders: Sequence[str], is_array: bool, force: bool, features: str | None = None
) -> RunFacts | None:
    """Return the facts of the run in a place, if there is one; with `force`, whatever is there does not count.

    Refuse a place among the images, or one that holds other things.
    """
    if os.path.lexists(place) and not place.is_dir():
        raise InputError(f"The run must be a folder, got {str(place)!r}, which is a file.", ANOTHER_FOLDER)
    here = Path(os.path.realpath(place))  # resolves links and dots, which hide where things are
    anywhere = is_array or features is not None
    within = folders or ([] if anywhere else [os.getcwd()])  # where the images are
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
