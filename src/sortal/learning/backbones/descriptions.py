"""Networks that files describe: models on the Hugging Face hub, folders of such files, and image towers of open_clip.

Neither torch nor the libraries are needed here, so that mistakes are reported at once.
"""

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sortal.config import HUB_PREFIX, OPEN_CLIP_PREFIX
from sortal.errors import InputError, Remedy, listing, quoted
from sortal.learning.backbones import hub
from sortal.system.regular_files import read_regular

CONFIGS = {"timm": "config.json", "open_clip": "open_clip_config.json"}  # by library
WEIGHT_FILES = {  # by library, the preferred ones first
    "timm": ("model.safetensors", "pytorch_model.bin"),
    "open_clip": (
        "open_clip_model.safetensors",
        "open_clip_pytorch_model.safetensors",
        "model.safetensors",
        "open_clip_pytorch_model.bin",
    ),
}
KEPT = {  # what a description keeps of a config: all that decides the network and its images
    "timm": ("architecture", "model_args", "pretrained_cfg"),
    "open_clip": ("model_cfg", "preprocess_cfg"),
}
STATED = ("mean", "std", "interpolation", "quick_gelu")  # about images, by open_clip for each file of weights
NEEDS_OPEN_CLIP = "Image towers of open_clip need its package: pip install 'sortal[names]'."
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class Published:
    """A network of timm or open_clip as its files describe it."""

    library: str
    config: dict[str, Any]
    place: Path | str  # the folder, or the repository on the hub; empty if the weights must be given
    file: str = ""  # of the weights, if only one can be meant

    @property
    def text(self) -> str:
        """The description that a saved backbone keeps."""
        kept = {name: self.config[name] for name in KEPT[self.library] if self.config.get(name)}
        return json.dumps({"library": self.library, **kept}, sort_keys=True)

    @property
    def files(self) -> tuple[str, ...]:
        """The files that may hold the weights, the preferred ones first."""
        return (self.file,) if self.file else WEIGHT_FILES[self.library]


def is_published(name: str) -> bool:
    """Tell whether a name is of the hub, of open_clip, or of a folder."""
    if name.startswith((HUB_PREFIX, OPEN_CLIP_PREFIX)):
        return True
    described = any((Path(name) / each).is_file() for each in CONFIGS.values())
    return described or (Path(name).is_dir() and "/" in name)


def find_published(name: str) -> Published:
    """Read the description of a network; one on the hub is downloaded, unless it is on this machine."""
    own = name.removeprefix(OPEN_CLIP_PREFIX)
    if Path(own).is_dir():
        return _in_folder(Path(own))
    if name.startswith(OPEN_CLIP_PREFIX):
        return _of_open_clip(own)
    repository = name.removeprefix(HUB_PREFIX)
    if not REPOSITORY.fullmatch(repository):
        raise InputError(f"A backbone on the hub must be {HUB_PREFIX}OWNER/NAME, got {quoted(name)}.")
    try:
        file = hub.download_first(name, repository, tuple(CONFIGS.values()))
        found = _read(file, repository)
        if found is None and file.name == CONFIGS["timm"]:  # a repository of several libraries
            with suppress(InputError):  # which of these it should have been is not known
                found = _read(hub.download(name, repository, CONFIGS["open_clip"]), repository)
    except InputError as error:
        how = f"download all files of {repository!r} from the Hugging Face hub on another machine and name their folder"
        message = error.message.replace(f"The weights of {name} are", f"The description of {name} is")
        raise InputError(message, Remedy(how, backbone="FOLDER")) from None
    if found is None:
        raise InputError(f"{name} must be a model of timm or open_clip, but its {file.name} is of neither.")
    return found


def weights_of(name: str, published: Published) -> Path:
    """Return the file of the weights, which is downloaded unless it is on this machine."""
    if (found := cached_weights(published)) is not None:
        return found
    place, pass_a_file = published.place, Remedy("pass a file", weights="FILE")
    if isinstance(place, Path):
        rule = f"must hold the weights of its network, one of {listing(published.files, show=9)}"
        raise InputError(f"The folder {str(place)!r} {rule}.", pass_a_file)
    if not place:
        name_them = Remedy("name weights that there are after a slash", backbone=f"{name}/...")
        raise InputError(f"The hub has no weights of {name}.", pass_a_file, name_them)
    return hub.download_first(name, place, published.files)


def check_weights(name: str, published: Published) -> None:
    """Raise InputError if the weights are neither on this machine nor available from the hub."""
    if isinstance(published.place, str) and published.place:
        hub.check_any_reachable(name, published.place, published.files)
    else:
        weights_of(name, published)


def cached_weights(published: Published) -> Path | None:
    """Return the file of the weights if it is on this machine."""
    if isinstance(published.place, Path):
        return next((published.place / each for each in published.files if (published.place / each).is_file()), None)
    found = (hub.cached(published.place, each) for each in published.files if published.place)
    return next((each for each in found if each is not None), None)


def _in_folder(folder: Path) -> Published:
    for name in CONFIGS.values():
        if (folder / name).is_file() and (found := _read(folder / name, folder)) is not None:
            return found
    raise InputError(
        f"The folder {str(folder)!r} must describe a network: {listing(list(CONFIGS.values()))} of a model of timm or "
        "open_clip. Download all files of the model."
    )


def _of_open_clip(name: str) -> Published:
    """Return a model that open_clip describes, NAME or NAME/WEIGHTS."""
    package = find_spec("open_clip")
    if package is None or package.origin is None:
        raise InputError(NEEDS_OPEN_CLIP)
    architecture, _, tag = name.partition("/")
    configs = Path(package.origin).parent / "model_configs"
    known = sorted(path.stem for path in configs.glob("*.json"))
    if architecture not in known:
        near = get_close_matches(architecture, known, n=3, cutoff=0.5)
        hint = f" Did you mean {listing(near)}?" if near else ""
        raise InputError(f"open_clip must have the model, but it has no {quoted(architecture)}.{hint}")
    config = json.loads((configs / f"{architecture}.json").read_text(encoding="utf-8"))
    place, preprocessing = _tagged(architecture, tag) if tag else ("", _agreed(architecture))
    repository, _, file = place.rpartition("/") if place.count("/") == 2 else (place, "", "")
    described = {"model_cfg": config, "preprocess_cfg": preprocessing}
    return Published("open_clip", described, repository, file)


def _tagged(architecture: str, tag: str) -> tuple[str, dict[str, Any]]:
    """Return where the hub has these weights of a model of open_clip, and what they say about images."""
    from open_clip import pretrained  # only here, as it imports torch

    stated = pretrained.get_pretrained_cfg(architecture, tag)
    if not stated:
        tags = pretrained.list_pretrained_tags_by_model(architecture)
        which = f"one of {listing(tags, show=9)}" if tags else "left out, as there are none"
        raise InputError(f"The weights of open_clip's {architecture} must be {which}, got {quoted(tag)}.")
    return stated.get("hf_hub") or "", {key: stated[key] for key in STATED if key in stated}


def _by_tag(architecture: str) -> dict[str, dict[str, Any]]:
    """Return what each of the weights of a model of open_clip say about images, by their tags."""
    from open_clip import pretrained

    return {tag: _tagged(architecture, tag)[1] for tag in pretrained.list_pretrained_tags_by_model(architecture)}


def _agreed(architecture: str) -> dict[str, Any]:
    """Return what all weights of a model of open_clip say about images."""
    first, *others = [*_by_tag(architecture).values()] or [{}]
    return {key: value for key, value in first.items() if all(each.get(key) == value for each in others)}


def check_tag(name: str) -> None:
    """Raise InputError if a name without a tag does not determine how a model of open_clip treats images."""
    architecture, _, tag = name.removeprefix(OPEN_CLIP_PREFIX).partition("/")
    if not name.startswith(OPEN_CLIP_PREFIX) or tag:
        return
    stated = _by_tag(architecture)
    if len({(*map(str, map(each.get, ("mean", "std"))), bool(each.get("quick_gelu"))) for each in stated.values()}) > 1:
        raise InputError(
            f"The name must include a tag, NAME/TAG, as the normalisation of images and the activations depend on the "
            f"weights, got {quoted(name)}. Use that of the weights which yours are made of, one of "
            f"{listing([*stated], show=len(stated))}."
        )


def _read(path: Path, place: Path | str) -> Published | None:
    """Read a config; None if it is of another library."""
    try:
        config = json.loads(read_regular(path))
    except (OSError, ValueError) as error:
        raise InputError(f"{str(path)!r} must be the config of a model: {error}. Download it again.") from None
    if isinstance(config, dict):
        if isinstance(config.get("architecture"), str):
            return Published("timm", config, place)
        if isinstance(config.get("model_cfg"), dict):
            return Published("open_clip", config, place)
    return None
