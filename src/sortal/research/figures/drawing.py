"""All figures of a run into a folder: what it has the material for, and why the others are left out."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

from matplotlib.figure import Figure

from sortal.config import AUTO
from sortal.errors import InputError, quoted
from sortal.figures import heads, paper
from sortal.figures.curves import k_curve, risk_coverage
from sortal.figures.heads import attention
from sortal.figures.inflation import legacy
from sortal.figures.paper import Format, LeftOutError
from sortal.figures.scatter import tsne
from sortal.inputs import choose_device
from sortal.run import Run
from sortal.segments import write_atomically
from sortal.workers import Progress

FIGURES = ("tsne", "attention", "k-curve", "risk-coverage", "legacy")
FORMATS: tuple[Format, ...] = get_args(Format)
FOLDER = "figures"  # in that of the run
Name = TypeVar("Name", bound=str)
HEAD = 4096  # bytes of a file in which it says what made it

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """What was drawn."""

    out: Path
    files: tuple[Path, ...]
    left_out: dict[str, str]  # figures that the run does not have the material for, and why

    def to_json(self) -> dict[str, Any]:
        return {"out": str(self.out), "files": list(map(str, self.files)), "left_out": self.left_out}


def draw(
    run: Run,
    out: str | os.PathLike[str] | None = None,
    *,
    which: Sequence[str] | None = None,
    images: Sequence[str] | None = None,
    seed: int = 0,
    device: str = AUTO,
    workers: int | None = None,
    formats: Sequence[Format] = FORMATS,
    force: bool = False,
    on_progress: Progress = lambda *_: None,
    on_note: Callable[[str], None] = logger.info,
) -> Drawn:
    """Draw figures of a run, all of them or `which`, and write them into the folder `out`, by default one in the run's.

    A figure that the run does not have the material for is left out, and the result says why. `images` are those whose
    attention is shown. All is drawn before anything is written. Figures of an earlier drawing are replaced; a file of
    the same name that is none is replaced only by `force`, and other files in the folder are not touched.
    """
    chosen = _chosen("which", FIGURES if which is None else which, FIGURES)
    kinds = _chosen("formats", formats, FORMATS)
    choose_device(device, None)
    if images is not None:
        heads.named(run, images)  # which tells of names that are none
    place = run.folder / FOLDER if out is None else Path(out)
    _check(run, place, [f"{name}.{format_}" for name in chosen for format_ in kinds], force)
    options: dict[str, Any] = {
        "seed": seed,
        "device": device,
        "workers": workers,
        "on_progress": on_progress,
        "on_note": on_note,
    }
    how: dict[str, Callable[[], Figure]] = {
        "tsne": lambda: tsne(run, **options),
        "attention": lambda: attention(run, images=images, **options),
        "k-curve": lambda: k_curve(run),
        "risk-coverage": lambda: risk_coverage(run),
        "legacy": lambda: legacy(run),
    }
    files: dict[str, bytes] = {}
    left_out: dict[str, str] = {}
    for number, name in enumerate(chosen):
        on_progress(f"Drawing {name}", number, len(chosen))
        try:
            drawn = how[name]()
        except LeftOutError as error:
            left_out[name] = str(error)
            continue
        files |= {f"{name}.{format_}": paper.file(drawn, format_) for format_ in kinds}
    if files:
        _write(place, files)
    return Drawn(out=place, files=tuple(place / name for name in files), left_out=left_out)


def _chosen(name: str, values: Sequence[Name], among: Sequence[Name]) -> list[Name]:
    """Those that were asked for, in their usual order."""
    if isinstance(values, str) or not values or not set(values) <= set(among):
        raise InputError(f"{name} must be a list of some of {', '.join(among)}, got {quoted(values)}.")
    return [each for each in among if each in values]


def _check(run: Run, place: Path, names: Sequence[str], force: bool) -> None:
    """Refuse a place where figures would do harm, before they are drawn."""
    if os.path.lexists(place) and not place.is_dir():
        raise InputError(f"Figures go into a folder, got {quoted(str(place))}, which is a file. Name another.")
    _check_not_among_images(run, place)
    for name in names:
        path = place / name
        if path.is_dir():
            raise InputError(
                f"A figure must be a file, got {quoted(str(path))}, which is a folder. Name another --out."
            )
        if not force and os.path.lexists(path) and not _is_ours(path):
            raise InputError(
                f"The file {quoted(str(path))} is no figure of Sortal, so it is not replaced. "
                "Name another folder, or have it replaced (--force)."
            )


def _check_not_among_images(run: Run, place: Path) -> None:
    """The next run would take figures for further images."""
    here = Path(os.path.realpath(place))
    if here.is_relative_to(os.path.realpath(run.folder)) or any(s["folder"] is None for s in run.about["images"]):
        return
    folders: dict[int, set[str]] = {}
    for path, number in zip(run.paths(), run.assignments.folders.tolist(), strict=True):
        folders.setdefault(number, set()).add(os.path.dirname(path))
    for common in filter(None, map(_common, folders.values())):
        if here.is_relative_to(common):
            raise InputError(
                f"Figures must lie outside the images of the run, got {quoted(str(place))}, which is or lies in their "
                f"folder {quoted(common)}. Name another."
            )


def _common(folders: Collection[str]) -> str | None:
    """The folder that all of these lie in, if it is more than the whole disk."""
    try:
        common = os.path.commonpath([os.path.realpath(folder) for folder in folders])
    except ValueError:  # on several drives of Windows
        return None
    return None if common == Path(common).anchor else common


def _is_ours(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return paper.MADE_BY.encode() in file.read(HEAD)
    except OSError:
        return False


def _write(place: Path, files: Mapping[str, bytes]) -> None:
    try:
        place.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_atomically(place / name, content)
    except OSError as error:
        raise InputError(
            f"The folder {quoted(str(place))} cannot be written: {error.strerror or error}. Name another, or make room."
        ) from error
