"""Names of backbones and their weights: what can be checked without importing torch and timm, which takes seconds."""

import os
import re
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from sortal.config import CONVNET, VECTORS, is_reference, registered_backbone
from sortal.errors import InputError, listing
from sortal.learning.backbones import hub
from sortal.learning.backbones.descriptions import check_weights, find_published, is_published
from sortal.system.open_folder import kind_of
from sortal.system.regular_files import read_json

RANDOM = "random"  # untrained weights


def check_backbone(name: str, weights: str | os.PathLike[str] | None) -> None:
    """Raise InputError for files that do not exist, an unknown name, and weights that cannot be had.

    A backbone that passes may still fail to load. Nothing is downloaded but the description of one on the hub.
    """
    if (saved := path_of_saved(name)) is not None:
        if weights is not None:
            raise has_its_own_weights(saved)
        check_saved(saved)
        named = ""
        with suppress(OSError, ValueError, AttributeError):  # which loading reports
            named = read_json(saved).get("name")
        if named == VECTORS:
            raise InputError(f"The saved backbone {str(saved)!r} is of feature vectors, and cannot read images.")
        return
    if weights is not None and weights != RANDOM:
        check_file(Path(weights))
    if is_reference(name):
        registered_backbone(name)
        return
    if name == CONVNET:
        return
    if is_published(name):
        found = find_published(name)
        if weights is None:
            check_weights(name, found)
        return
    source = _source_of_timm()
    if source and not set(name.split(".", 1)) <= _words(source):
        raise unknown(name)
    if weights is None and (repository := _repository(name, source)) is not None:
        hub.check_reachable(name, repository)


def path_of_saved(name: str) -> Path | None:
    """Return the .json of a saved backbone, which `name` may state with any suffix or none; None for other names."""
    if Path(f"{name}.json").is_file():
        return Path(f"{name}.json")
    return Path(name).with_suffix(".json") if name.endswith((".json", ".safetensors")) else None


def check_saved(path: Path) -> None:
    """Raise InputError unless the .json of a saved backbone exists."""
    if not path.is_file():
        raise InputError(f"The saved backbone {str(path)!r} does not exist. Check the path.")


def check_file(path: Path) -> None:
    """Raise InputError unless a file of weights exists."""
    if not path.is_file():
        what = f"is {kind_of(path.stat().st_mode)}" if path.exists() else "does not exist"
        raise InputError(f"The weights file {str(path)!r} {what}. Check the path.")


def has_its_own_weights(path: Path) -> InputError:
    return InputError(f"The saved backbone {str(path)!r} has its own weights and image_size. Omit both options.")


def unknown(name: str) -> InputError:
    """Return the error for a name that is not a model of timm, with names like it."""
    known = sorted(_names(_source_of_timm()))
    near = get_close_matches(name, known, n=3, cutoff=0.5)
    near = near or [other for other in known if name.isalnum() and name in other][:3]
    hint = f" Did you mean {listing(near)}?" if near else ""
    return InputError(f"The backbone must be {CONVNET!r} or a timm model, got {name!r}.{hint}")


@cache
def _source_of_timm() -> str:
    """Return the source of timm's models, in which all of their names occur; empty if it is not installed as files."""
    found = find_spec("timm")
    files = Path(found.origin).parent.glob("models/*.py") if found is not None and found.origin else ()
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


@cache
def _words(source: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", source))


def _names(source: str) -> set[str]:
    """Return the names of models in timm's source, with and without the tags of their weights."""
    models = set(re.findall(r"^@register_model\ndef (\w+)\(", source, re.M))
    tagged = re.findall(r"""['"]((\w+)\.\w+)['"]:""", source)
    return models | {name for name, model in tagged if model in models}


def _repository(name: str, source: str) -> str | None:
    """Return the repository of a model's weights on the hub, if timm's source states it in the usual way."""
    stated = re.search(rf"""['"]{re.escape(name)}['"]: _cfg\(((?:[^()]|\([^()]*\))*)\)""", source)
    words = re.sub("#.*", "", stated[1]) if stated else ""
    usual = re.search(r"""hf_hub_id=['"]timm/['"]""", words) and "hf_hub_filename" not in words
    return f"timm/{name}" if usual else None
