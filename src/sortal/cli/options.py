"""What several commands share: options, and how messages spell them."""

import os
import shlex
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from sortal.config import Auto, Discovery, SettingsGroup, described, load_method, registration_of
from sortal.discovery.defaults import recipe_for
from sortal.errors import InputError

Images = Annotated[list[Path], Parameter(help="A folder of images, or several.", negative="")]
FEATURES_HELP = (
    "Feature vectors to sort instead of images: Parquet, CSV, .npz, .npy or safetensors. IMAGES is then the folder of "
    "their pictures, if there are any; by default that of the file."
)
FeaturesOption = Annotated[Path | None, Parameter(help=FEATURES_HELP)]
COLUMNS_HELP = (
    "A table (CSV, TSV, JSON lines, Parquet) with the columns file_name, label (may be empty) and, if known, truth."
)
TableOption = Annotated[Path | None, Parameter(help=COLUMNS_HELP)]
RunFolder = Annotated[Path, Parameter(help="Folder of a run.")]
Labelled = Annotated[float, Parameter(help="Fraction of the images of digits 0 to 4 that are labelled.")]
Flag = Annotated[bool, Parameter(negative="", show_default=False)]
DRY_RUN_HELP = "Only report the steps, the memory and disk they need, and how long they take."
DryRun = Annotated[Flag, Parameter(help=DRY_RUN_HELP)]
WATCH_HELP = "Write the accuracy after each epoch, by the truth where it is known, to watched.jsonl in the run."
WatchTruth = Annotated[Flag, Parameter(help=WATCH_HELP)]
Json = Annotated[Flag, Parameter(help="Write the result as JSON.")]
CountOption = Annotated[int | Auto, Parameter(metavar="INT|auto", show_choices=False)]
Device = Annotated[Literal["auto", "cpu", "cuda", "mps"], Parameter(help="Device to compute on.")]
Workers = Annotated[int | None, Parameter(help="Processes that read images; one per core by default.")]
Several = Parameter(consume_multiple=True, negative="", metavar="NAME …", show_default=False)  # see split()
Flat = Parameter(name="*", negative="")  # the fields of a record as options of their own

words: ContextVar[tuple[str, ...]] = ContextVar("words", default=())  # the command line, which benchmarks record


def spell(settings: Mapping[str, object]) -> str:
    """Spell settings as options: --force --unlisted ignore."""
    found = []
    for name, value in settings.items():
        found.append(f"--{name.replace('_', '-')}")
        if value is not ... and value is not True:
            found.append(shlex.quote(str(value)))
    return " ".join(found)


def given(*records: type[SettingsGroup]) -> set[str]:
    """Return the names of the settings that the command line gives."""
    options = {word.partition("=")[0] for word in words.get()}
    names = {each.name for record in records for each in fields(record)}
    return {name for name in names if f"--{name.replace('_', '-')}" in options}


def settings_of_methods() -> str:
    """Describe the settings of the methods that the command line names, one a line; empty if it names none."""
    found, tokens = [], words.get()
    for token, after in zip(tokens, (*tokens[1:], ""), strict=True):
        option, _, value = token.partition("=")
        for reference in split([value or after]) if option == "--method" else ():
            recipe = recipe_for(Discovery(method=load_method(reference)), 1, on_gpu=True)
            title = registration_of(recipe.method).title
            found += [f"Settings of {title}, for --set NAME=VALUE:", *(f"  {line}" for line in described(recipe))]
    return "\n".join(found)


def source_of(images: Sequence[Path]) -> Path | Sequence[Path]:
    """Return one folder, or several; refuse files among several paths, which the library would read as images."""
    if len(images) == 1:
        return images[0]
    for path in images:
        if not path.is_dir():
            what = "is a file" if path.exists() else "does not exist"
            raise InputError(f"Images must be one or more folders, got {str(path)!r}, which {what}.")
    return images


def source_or_pictures(images: Sequence[Path] | None, features: Path | None) -> Path | Sequence[Path] | None:
    """Return the folders of images; beside features, the one folder of their pictures, or None."""
    if features is None and not images:
        command = " ".join(words.get()[:1])
        needed = "IMAGES, a folder of images, or several; or --features, a file of feature vectors"
        raise InputError(f"sortal {command} needs {needed}. See sortal {command} --help.")
    if features is not None and images and len(images) > 1:
        raise InputError("Beside --features, IMAGES must be the one folder of their pictures.")
    return source_of(images) if images else None


def split(values: Sequence[str]) -> list[str]:
    """Return the values of an option that takes several, separated by spaces, commas or both."""
    return [each for value in values for each in value.split(",") if each]


def processes() -> int:
    """Return how many processes torchrun started for this command; 1 without it."""
    size = os.environ.get("WORLD_SIZE", "1")
    if not (size.isascii() and size.isdigit() and int(size) >= 1):
        raise InputError(f"WORLD_SIZE must be the number of processes that torchrun started, got {size!r}. Unset it.")
    return int(size)
