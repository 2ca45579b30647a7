"""Backbones by name: networks of timm, open_clip and the hub, a small one for tiny images, and a person's own."""

import copy
import os
from dataclasses import dataclass, fields, replace
from math import isfinite
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from sortal.config import CONVNET, VECTORS, is_reference, registered_backbone
from sortal.errors import InputError, quoted
from sortal.images.feature_files import LONGEST_VECTOR
from sortal.learning.backbones import descriptions
from sortal.learning.backbones import weights as files
from sortal.learning.backbones.architectures import check_name, check_normalisation, create, hub_file
from sortal.learning.backbones.backbone import BACKBONE_FORMAT, Backbone, ModuleBackbone, Spec
from sortal.learning.backbones.convnet import ConvNet
from sortal.learning.backbones.descriptions import Published, find_published, is_published
from sortal.learning.backbones.names import RANDOM, check_file, check_saved, has_its_own_weights, path_of_saved
from sortal.learning.backbones.vectors import VectorBackbone
from sortal.learning.backbones.vit import ADDED_TOKENS, VisionTransformer
from sortal.learning.methods.code import source_of
from sortal.system.json_records import read_record
from sortal.system.regular_files import read_json

TINY_SIZE, MIN_TINY_SIZE, MAX_SIZE = 16, 8, 8192
USUAL_SIZE = 224  # of images, for a module without an `image_size`


def load_backbone(
    name: str,
    *,
    weights: str | os.PathLike[str] | None = None,
    image_size: int | None = None,
    trained: int | None = None,
    seed: int = 0,
) -> Backbone:
    """Load a backbone and its weights.

    `name` is a timm model ("vit_base_patch16_224.dino"), hf-hub:OWNER/NAME, open_clip:NAME/WEIGHTS, a folder of such a
    model, "convnet" for the small network that is trained from scratch, the path of a saved backbone's .json, or one of
    your own that is loaded, FILE.py:NAME or MODULE:NAME. `weights` is a
    file, "random" (from `seed`), or None to download the hub's (once; never with HF_HUB_OFFLINE=1). `trained` is the
    number of last blocks to train; by default 1, but all blocks of "convnet".
    """
    if image_size is not None:
        _check_image_size(image_size)
    if (saved := path_of_saved(name)) is not None:
        if weights is not None or image_size is not None:
            raise has_its_own_weights(saved)
        return _load_saved(saved, trained)
    return _load(name, weights, image_size, trained, seed)


def _load(
    name: str,
    weights: str | os.PathLike[str] | None,
    image_size: int | None,
    trained: int | None,
    seed: int = 0,
    architecture: str | None = None,
) -> Backbone:
    """Load a backbone; a saved one states its architecture, which is empty if its name says it."""
    small, foreign = name == CONVNET, is_reference(name)
    if foreign:
        registered_backbone(name)
    elif not small and architecture is None:
        architecture = _description(name)
    if weights is None and not (small or foreign):
        weights = descriptions.weights_of(name, _published(name))
    elif weights is not None and weights != RANDOM:
        check_file(Path(weights))
    with torch.random.fork_rng(devices=[]):  # restores the global generator for CPUs
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also seed the GPUs
        if foreign:
            backbone = load_foreign(name, image_size)
            backbone.source = "the weights that its code gave it"
        elif small:
            backbone = _create_convnet(image_size or TINY_SIZE)
        else:
            backbone = create(name, image_size, architecture or "", draw=weights == RANDOM)
    if weights is not None and weights != RANDOM:
        normalised = _load_weights(backbone, Path(weights))
        if not (normalised or small or foreign or architecture or "." in name):
            check_normalisation(name)
        if not normalised:
            descriptions.check_tag(name)
    if trained is None:
        trained = len(backbone.blocks) if small else 1
    return backbone.train_last(trained)


def load_without_weights(name: str, image_size: int | None = None) -> Backbone:
    """Load a backbone of timm, open_clip or the hub with arbitrary weights, to measure its speed.

    Drawing random ones takes seconds.
    """
    with torch.random.fork_rng(devices=[]):
        return create(name, image_size, _description(name), draw=False).train_last(1)


def cached_weights(name: str) -> Path | None:
    """Return the file of a backbone's weights if it is on this machine."""
    return descriptions.cached_weights(_published(name))


def check_downloadable(name: str) -> None:
    """Raise InputError if the weights of a backbone cannot be downloaded."""
    descriptions.check_weights(name, _published(name))


def _description(name: str) -> str:
    """Return the JSON that describes a network; empty if timm knows its name, and an error if it does not."""
    if is_published(name):
        return find_published(name).text
    check_name(name)
    return ""


def _published(name: str) -> Published:
    """Return the description of a network, or only where the weights are of one whose name timm knows."""
    return find_published(name) if is_published(name) else Published("timm", {}, *hub_file(name))


def _check_image_size(image_size: object) -> None:
    if not isinstance(image_size, int) or image_size < 1:
        raise InputError(f"image_size must be a whole number of at least 1, got {quoted(image_size, 100)}.")
    if image_size > MAX_SIZE:
        raise InputError(f"image_size must be at most {MAX_SIZE:,}, got {quoted(image_size, 100)}.")


def _create_convnet(image_size: int) -> Backbone:
    if image_size < MIN_TINY_SIZE:
        raise InputError(f"image_size must be at least {MIN_TINY_SIZE} for {CONVNET!r}, got {image_size}.")
    spec = Spec(name=CONVNET, image_size=image_size, shorter_side=round(image_size * 1.25), width=ConvNet.WIDTH)
    return ConvNet(spec)


def _load_weights(backbone: Backbone, path: Path) -> bool:
    """Load weights; return whether a .json next to them states how images are normalised."""
    state = files.read(path)
    if '"open_clip"' in backbone.spec.architecture:  # of which the image tower is a part
        state = {key.removeprefix("visual."): state[key] for key in state if key.startswith("visual.")} or state
    if ADDED_TOKENS in state and isinstance(backbone, VisionTransformer) and state[ADDED_TOKENS].dim() == 2:
        backbone.add_tokens(len(state[ADDED_TOKENS]))
    files.fill(backbone.net, state, name=backbone.spec.name, origin=repr(str(path)))
    sha256 = files.sha256(path)
    backbone.source = f"{path.name} (sha256 {sha256})"
    saved = _read_saved(path.with_suffix(".json"))
    if saved is None or saved.sha256 != sha256:
        return False
    backbone.spec = replace(backbone.spec, mean=saved.spec.mean, std=saved.spec.std)
    return True


def _load_saved(path: Path, trained: int | None) -> Backbone:
    check_saved(path)
    saved = _read_saved(path)
    if saved is None:
        raise InputError(f"{str(path)!r} is not the .json of a saved backbone. Check the path.")
    file, spec = path.with_suffix(".safetensors"), saved.spec
    check_file(file)
    files.check_header(file)  # before its digest, as a sparse file would take hours
    if files.sha256(file) != saved.sha256:
        raise InputError(
            f"The weights in {str(file)!r} do not match the digest in {str(path)!r}. Save the backbone again."
        )
    if spec.name == VECTORS:
        if not 1 <= spec.width <= LONGEST_VECTOR:
            raise InputError(f"The width in {str(path)!r} must be from 1 to {LONGEST_VECTOR:,}, got {spec.width:,}.")
        vectors = VectorBackbone(torch.zeros(spec.width))
        _load_weights(vectors, file)
        return vectors
    _check_image_size(spec.image_size)
    if spec.name != CONVNET and not is_reference(spec.name):
        _check_claim(spec, path, file)
    trained = saved.trained if trained is None else trained
    backbone = _load(spec.name, file, spec.image_size, trained, architecture=spec.architecture)
    backbone.spec = replace(backbone.spec, shorter_side=spec.shorter_side, interpolation=spec.interpolation)
    return backbone


def _check_claim(spec: Spec, path: Path, file: Path) -> None:
    """Raise InputError if a network has more weights than its file has bytes, before memory is allocated for them."""
    if not spec.architecture:
        check_name(spec.name)
    with torch.device("meta"):  # allocates no weights
        made = create(spec.name, spec.image_size, spec.architecture, draw=False)
    weights = sum(each.numel() for each in made.net.parameters())
    if weights > (size := file.stat().st_size):
        raise InputError(
            f"{str(path)!r} names {spec.name} with an image_size of {spec.image_size:,}, which has {weights:,} weights"
            f", but {str(file)!r} has only {size:,} bytes. Save the backbone again."
        )


@dataclass(frozen=True)
class SavedBackbone:
    """What the .json of a saved backbone says about it."""

    spec: Spec
    trained: int  # blocks
    sha256: str  # of the weights


def _read_saved(path: Path) -> SavedBackbone | None:
    """Read the .json of a saved backbone; None if there is no such file, or if it is something else."""
    try:
        about = read_json(path)
        spec = read_record(Spec, {field.name: about[field.name] for field in fields(Spec) if field.name in about})
        saved = SavedBackbone(spec, read_record(int, about["trained"]), read_record(str, about["sha256"]))
        valid = about["format"] == BACKBONE_FORMAT and not spec.name.endswith(".json")
    except (OSError, ValueError, OverflowError, LookupError, TypeError):
        return None
    return saved if valid and all(map(isfinite, (*spec.mean, *spec.std))) and min(spec.std) > 0 else None


def load_foreign(name: str, image_size: int | None) -> Backbone:
    """Make the backbone that a person has named, with the weights that its code gives it."""
    found: Any = registered_backbone(name)
    made = copy.deepcopy(found) if isinstance(found, nn.Module) else found()
    if not isinstance(made, nn.Module):
        raise InputError(f"The backbone {name} must be a torch.nn.Module or make one, got {quoted(made, 100)}.")
    made.eval()
    backbone = made if isinstance(made, Backbone) else _wrapped(made, name, image_size)
    if image_size not in (None, backbone.spec.image_size):
        raise InputError(f"image_size must be {backbone.spec.image_size} for {name}, got {image_size}.")
    backbone.spec = replace(backbone.spec, name=name)
    backbone.code = source_of(*{type(module): None for module in backbone.modules()})
    return backbone


def _wrapped(net: nn.Module, name: str, image_size: int | None) -> Backbone:
    own = cast(Any, net)
    size: int = getattr(own, "image_size", USUAL_SIZE) if image_size is None else image_size
    colours: dict[str, Any] = {
        key: tuple(getattr(own, key)) for key in ("mean", "std") if isinstance(getattr(own, key, None), tuple)
    }
    with torch.no_grad():
        try:
            features = net(torch.zeros(1, 3, size, size))
        except Exception as error:
            raise InputError(
                f"The backbone {name} must compute features of images (n, 3, {size}, {size}), but it fails: {error}."
            ) from error
    if not isinstance(features, Tensor) or features.dim() != 2 or len(features) != 1:
        shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise InputError(f"The backbone {name} must return features of shape (n, d), got {shape} for one image.")
    shorter = int(getattr(own, "shorter_side", round(size * 256 / 224)))
    spec = Spec(name=name, image_size=size, shorter_side=shorter, width=features.shape[1], **colours)
    return ModuleBackbone(net, spec)
