"""All figures of a run in a folder: those it has the data for, and why the others are left out."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, get_args

from matplotlib.figure import Figure

from sortal.errors import InputError, Remedy, listing, quoted
from sortal.exchange.output import image_folder_around, is_within
from sortal.research.figures import style
from sortal.research.figures.accuracy import k_curve, legacy_inflation, risk_coverage
from sortal.research.figures.attention_maps import attention, find_rows
from sortal.research.figures.scatter import tsne
from sortal.runs.reference import check_has_images
from sortal.runs.run import Run
from sortal.system.device import choose_device
from sortal.system.files import write_atomically, writing
from sortal.system.open_folder import FIGURES_FOLDER, make_folder, own_folder
from sortal.system.progress import Runtime
from sortal.system.publishing import holding, publishing
from sortal.system.regular_files import open_regular
from sortal.system.temporary import sweep

FIGURES = ("tsne", "attention", "k-curve", "risk-coverage", "legacy")
FIGURE_FORMATS: tuple[style.FigureFormat, ...] = get_args(style.FigureFormat)
Name = TypeVar("Name", bound=str)


@dataclass(frozen=True, kw_only=True)
class FiguresResult:
    """The figures that were written, and those that were left out."""

    out: Path
    files: tuple[Path, ...]
    left_out: dict[str, str]  # figure: why the run does not have the data for it


def draw(
    run: Run,
    out: str | os.PathLike[str] | None = None,
    *,
    which: Sequence[str] | None = None,
    images: Sequence[str] | None = None,
    seed: int = 0,
    formats: Sequence[style.FigureFormat] = FIGURE_FORMATS,
    cache: str | os.PathLike[str] | None = None,
    force: bool = False,
    runtime: Runtime = Runtime(),
) -> FiguresResult:
    """Draw all figures of a run, or `which`, and write them to the folder `out`, by default `figures` in the run's.

    Figures that the run does not have the data for are left out, with the reason in the result. `images` names those
    whose attention is shown. Everything is drawn before anything is written. Earlier figures are replaced; other files
    of the same name only with `force`. `cache` holds pixels and features, by default that of the run; those of a
    benchmark share one.
    """
    chosen = _chosen("which", FIGURES if which is None else which, FIGURES)
    kinds = _chosen("formats", formats, FIGURE_FORMATS)
    choose_device(runtime.device, None)
    check_has_images(run.folder)
    if images is not None:
        find_rows(run, images)  # raises on unknown names
    place = own_folder(run.folder) / FIGURES_FOLDER if out is None else Path(out)
    pixels = None if cache is None else Path(cache)
    if pixels is not None and not pixels.is_dir():
        found = quoted(str(pixels))
        raise InputError(f"The cache must be a folder, got {found}. Give OUT/cache/DATASET of a benchmark.")
    how: dict[str, Callable[[], Figure]] = {
        "tsne": lambda: tsne(run, seed=seed, cache=pixels, runtime=runtime),
        "attention": lambda: attention(run, images=images, seed=seed, cache=pixels, runtime=runtime),
        "k-curve": lambda: k_curve(run),
        "risk-coverage": lambda: risk_coverage(run),
        "legacy": lambda: legacy_inflation(run),
    }
    files: dict[Path, bytes] = {}
    left_out: dict[str, str] = {}
    with ExitStack() as held:
        paths = [place / f"{name}.{kind}" for name in chosen for kind in kinds]
        replaced = {path: held.enter_context(holding(path)) for path in paths}
        _check(run, place, paths, force)
        for number, name in enumerate(chosen):
            runtime.progress(f"Drawing {name}", number, len(chosen))
            try:
                figure = how[name]()
                files |= {place / f"{name}.{kind}": style.render(figure, kind) for kind in kinds}
            except style.LeftOutError as error:
                left_out[name] = str(error)
        if files:
            _write(place, files, replaced)
    return FiguresResult(out=place, files=tuple(files), left_out=left_out)


def _chosen(name: str, values: Sequence[Name], among: Sequence[Name]) -> list[Name]:
    """Return the requested values in their usual order."""
    if isinstance(values, str) or not values or not set(values) <= set(among):
        wrong = [values] if isinstance(values, str) else [each for each in values if each not in among]
        raise InputError(
            f"{name} must be a list of one or more of {', '.join(among)}, got {listing(wrong) or 'an empty one'}."
        )
    return [each for each in among if each in values]


def _check(run: Run, place: Path, paths: Sequence[Path], force: bool) -> None:
    """Refuse a folder where figures would do harm, before they are drawn."""
    if os.path.lexists(place) and not place.is_dir():
        raise InputError(f"Figures go into a folder, got {quoted(str(place))}, which is a file. Choose another.")
    if not is_within(place, run.folder) and (folder := image_folder_around(place, run)):
        raise InputError(
            f"Figures must be outside the images of the run, got {quoted(str(place))}, which is or lies in their "
            f"folder {quoted(folder)}. Choose another."
        )
    another, replace_it = Remedy("choose another folder", out=...), Remedy("replace it", force=True)
    for path in paths:
        if path.is_dir():
            raise InputError(f"A figure must be a file, got {quoted(str(path))}, which is a folder.", another)
        if not force and os.path.lexists(path) and not _is_ours(path):
            why = f"The file {quoted(str(path))} is not a figure of Sortal, so it is not replaced."
            raise InputError(why, another, replace_it)


def _write(place: Path, files: Mapping[Path, bytes], replaced: Mapping[Path, os.stat_result | None]) -> None:
    """Write figures one by one, each as a whole, in the place of what was there when drawing began."""
    try:
        with writing(place):
            make_folder(place)
            sweep(place)  # what a killed process left
            for path, content in files.items():
                with publishing(path, replaced[path]) as made:
                    write_atomically(made, content)
    except OSError as error:
        problem = f"The folder {str(place)!r} cannot be written: {error.strerror or error}."
        raise InputError(f"{problem} Choose another.") from error


def _is_ours(path: Path) -> bool:
    with suppress(OSError), open_regular(path) as file:
        return style.MADE_BY.encode() in file.read(4096)  # the start of a file has its metadata
    return False
