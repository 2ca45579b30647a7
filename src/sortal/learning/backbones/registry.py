"""Loading of backbones by name: timm's vision transformers and ResNets, and a small network for tiny images."""

import os
from dataclasses import dataclass, fields, replace
from math import isfinite
from pathlib import Path
from typing import Any, cast

import torch

from sortal.config import CONVNET, VECTORS, is_reference, registered_backbone
from sortal.errors import InputError, Remedy, listing, quoted
from sortal.learning.backbones import hub
from sortal.learning.backbones import weights as files
from sortal.learning.backbones.backbone import BACKBONE_FORMAT, Backbone, Spec
from sortal.learning.backbones.convnet import ConvNet, ResNet
from sortal.learning.backbones.foreign import load_foreign
from sortal.learning.backbones.names import (
    RANDOM,
    check_file,
    check_saved,
    has_its_own_weights,
    path_of_saved,
    unknown,
)
from sortal.learning.backbones.vectors import VectorBackbone
from sortal.learning.backbones.vit import ADDED_TOKENS, VisionTransformer
from sortal.system.json_records import read_record
from sortal.system.regular_files import read_json

TRANSFORMERS = ["deit", "eva", "vision_transformer", "vision_transformer_hybrid"]  # modules of timm
IMAGE_SIZE, TINY_SIZE, MIN_TINY_SIZE, MAX_SIZE = 224, 16, 8, 8192


def load_backbone(
    name: str,
    *,
    weights: str | os.PathLike[str] | None = None,
    image_size: int | None = None,
    trained: int | None = None,
    seed: int = 0,
) -> Backbone:
    """Load a backbone and its weights.

    `name` is a timm model ("vit_base_patch16_224.dino"), "convnet" for the small network that is trained from scratch,
    the path of a saved backbone's .json, or one of your own that is loaded, FILE.py:NAME or MODULE:NAME. `weights` is a
    file, "random" (from `seed`), or None to download the hub's (once; never with HF_HUB_OFFLINE=1). `trained` is the
    number of last blocks to train; by default 1, but all blocks of "convnet".
    """
    if image_size is not None:
        _check_image_size(image_size)
    if (saved := path_of_saved(name)) is not None:
        if weights is not None or image_size is not None:
            raise has_its_own_weights(saved)
        return _load_saved(saved, trained)
    small, foreign = name == CONVNET, is_reference(name)
    if foreign:
        registered_backbone(name)
    elif not small:
        _check_name(name)
    if weights is None and not (small or foreign):
        weights = hub.download(name, *hub_file(name))
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
            backbone = _create_timm(name, image_size or IMAGE_SIZE, draw=weights == RANDOM)
    if weights is not None and weights != RANDOM:
        normalised = _load_weights(backbone, Path(weights))
        if not (normalised or small or foreign or "." in name):
            _check_normalisation(name)
    if trained is None:
        trained = len(backbone.blocks) if small else 1
    return backbone.train_last(trained)


def load_without_weights(name: str) -> Backbone:
    """Load one of timm's backbones with arbitrary weights, to measure its speed; drawing random ones takes seconds."""
    _check_name(name)
    with torch.random.fork_rng(devices=[]):
        return _create_timm(name, IMAGE_SIZE, draw=False).train_last(1)


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


def _check_name(name: str) -> None:
    import timm

    bare = name.partition(".")[0]
    if not timm.is_model(bare) or (bare != name and name not in timm.list_pretrained(f"{bare}.*")):
        raise unknown(name)


def _create_timm(name: str, image_size: int, *, draw: bool) -> Backbone:
    """Create a network; unless `draw`, its weights may be left uninitialised, which is quicker."""
    import timm
    from timm.models import eva, is_model_in_modules, resnet, vision_transformer

    bare = name.partition(".")[0]
    options: Any = {"img_size": image_size, "global_pool": "token"} if is_model_in_modules(bare, TRANSFORMERS) else {}
    if not draw and is_model_in_modules(bare, ["vision_transformer"]):
        options["weight_init"] = "skip"
    try:
        net = timm.create_model(name, num_classes=0, **options)
    except (AssertionError, ValueError, RuntimeError, TypeError) as error:
        if isinstance(error, AssertionError) and not _has_class_token(name):  # timm's assertion has no message
            raise InputError(
                f"Features need a class token, which {name} does not have. Choose another backbone."
            ) from error
        raise InputError(f"{name} does not support an image_size of {image_size}: {hub.first_line(error)}.") from error
    made = cast(Any, net)
    colours: Any = {key: tuple(made.pretrained_cfg[key]) for key in ("mean", "std")}
    shorter = round(image_size * 256 / 224)
    spec = Spec(name=name, image_size=image_size, shorter_side=shorter, width=made.num_features, **colours)
    if isinstance(net, vision_transformer.VisionTransformer | eva.Eva):
        patch: int = made.patch_embed.feat_ratio()  # pixels per token, also with a convolutional stem
        if image_size % patch:
            raise InputError(f"image_size must be a multiple of {patch} for {name}, got {image_size}.")
        return VisionTransformer(net, spec)
    if isinstance(net, resnet.ResNet):
        return ResNet(net, spec)
    raise InputError(f"The backbone must be a vision transformer or a ResNet, got {name!r} ({type(net).__name__}).")


def _has_class_token(name: str) -> bool:
    import timm

    with torch.device("meta"):  # allocates no weights
        return getattr(timm.create_model(name, num_classes=0), "cls_token", None) is not None


def _check_normalisation(name: str) -> None:
    """Raise InputError if a name without a tag does not determine the normalisation of images for its weights."""
    import timm

    tagged = timm.list_pretrained(f"{name}.*")
    if len({(cfg.mean, cfg.std) for cfg in map(timm.get_pretrained_cfg, tagged) if cfg is not None}) > 1:
        raise InputError(
            f"The name must include a tag, as the normalisation of images depends on the weights, got {name!r}. "
            f"Use one of {listing(tagged, show=len(tagged))}."
        )


def hub_file(name: str) -> tuple[str, str]:
    """Return the repository and the file of a model's weights on the hub."""
    import timm

    _check_name(name)
    cfg = timm.get_pretrained_cfg(name)
    if cfg is None or not cfg.hf_hub_id:
        raise InputError(
            f"The hub has no weights of {name}.",
            Remedy("pass a file", weights="FILE"),
            Remedy("use untrained weights", weights=RANDOM),
        )
    return cfg.hf_hub_id, cfg.hf_hub_filename or hub.WEIGHTS_FILE


def _load_weights(backbone: Backbone, path: Path) -> bool:
    """Load weights; return whether a .json next to them states how images are normalised."""
    state = files.read(path)
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
        vectors = VectorBackbone(torch.zeros(spec.width))
        _load_weights(vectors, file)
        return vectors
    _check_image_size(spec.image_size)
    if spec.name != CONVNET and not is_reference(spec.name):
        _check_claim(spec, path, file)
    trained = saved.trained if trained is None else trained
    backbone = load_backbone(spec.name, weights=file, image_size=spec.image_size, trained=trained)
    backbone.spec = replace(backbone.spec, shorter_side=spec.shorter_side)
    return backbone


def _check_claim(spec: Spec, path: Path, file: Path) -> None:
    """Raise InputError if a network has more weights than its file has bytes, before memory is allocated for them."""
    _check_name(spec.name)
    with torch.device("meta"):  # allocates no weights
        weights = sum(each.numel() for each in _create_timm(spec.name, spec.image_size, draw=False).net.parameters())
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
        spec = read_record(Spec, {field.name: about[field.name] for field in fields(Spec)})
        saved = SavedBackbone(spec, read_record(int, about["trained"]), read_record(str, about["sha256"]))
        valid = about["format"] == BACKBONE_FORMAT and not spec.name.endswith(".json")
    except (OSError, ValueError, OverflowError, LookupError, TypeError):
        return None
    return saved if valid and all(map(isfinite, (*spec.mean, *spec.std))) and min(spec.std) > 0 else None
