"""Backbones by name: any vision transformer of timm, ResNets, and a small network for tiny images."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from sortal import weights as files
from sortal.config import CONVNET
from sortal.convnet import ConvNet, ResNet
from sortal.errors import InputError, listing
from sortal.network import FORMAT, Backbone, Spec
from sortal.vit import VisionTransformer

KEPT = {"sha256", "trained", *(field.name for field in fields(Spec))}  # beside saved weights
RANDOM = "random"  # weights that were never trained
TRANSFORMERS = ["deit", "eva", "vision_transformer", "vision_transformer_hybrid"]  # timm's modules that have such
IMAGE_SIZE, TINY_SIZE, MIN_TINY_SIZE = 224, 16, 8


def load_backbone(
    name: str,
    *,
    weights: str | os.PathLike[str] | None = None,
    image_size: int | None = None,
    trained: int | None = None,
    seed: int = 0,
) -> Backbone:
    """A backbone with its weights.

    `name` is a model of timm ("vit_base_patch16_224.dino"), "convnet" for the small network that learns from scratch,
    or the path of the .json of a saved backbone. `weights` is a file, "random" (from `seed`), or None for those of the
    hub, which are fetched once; HF_HUB_OFFLINE=1 forbids that. `trained` says how many of the last blocks are trained:
    1, and all of the small network.
    """
    if image_size is not None and (not isinstance(image_size, int) or isinstance(image_size, bool) or image_size < 1):
        raise InputError(f"image_size must be a number of pixels, at least 1, got {image_size!r}.")
    if Path(f"{name}.json").is_file():  # the name it was saved under
        name = f"{name}.json"
    if name.endswith(".safetensors"):
        name = name.removesuffix(".safetensors") + ".json"
    if name.endswith(".json"):
        if weights is not None or image_size is not None:
            raise InputError(f"The saved backbone {name!r} has its own weights and image_size; give neither beside it.")
        return _saved(Path(name), trained)
    if name == CONVNET:
        backbone: Backbone = _small(image_size or TINY_SIZE, seed)
        if weights is not None and weights != RANDOM:
            _load(backbone, Path(weights))
    else:
        backbone = _of_timm(name, image_size or IMAGE_SIZE, seed)
        if weights is None:
            _load(backbone, _from_hub(name))
        elif weights != RANDOM and not _load(backbone, Path(weights)):
            _check_normalisation(name)
    return backbone.train_last(_default_trained(backbone) if trained is None else trained)


def _default_trained(backbone: Backbone) -> int:
    return len(backbone.blocks) if isinstance(backbone, ConvNet) else 1


def _small(image_size: int, seed: int) -> Backbone:
    if image_size < MIN_TINY_SIZE:
        raise InputError(f"image_size must be at least {MIN_TINY_SIZE} for {CONVNET!r}, got {image_size}.")
    spec = Spec(name=CONVNET, image_size=image_size, shorter_side=round(image_size * 1.25), width=ConvNet.WIDTH)
    with _seeded(seed):
        return ConvNet(spec)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Torch's own random numbers from a seed, and afterwards as they were."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the GPUs too, for good
        yield


def _of_timm(name: str, image_size: int, seed: int) -> Backbone:
    import timm
    from timm.models import eva, resnet, vision_transformer

    bare = name.partition(".")[0]
    if not timm.is_model(bare) or (bare != name and name not in timm.list_pretrained(f"{bare}.*")):
        known = timm.list_pretrained(["vit_*", "resnet*"]) + timm.list_models(["vit_*", "resnet*"])
        near = (
            get_close_matches(name, known, n=3, cutoff=0.5)
            or [other for other in known if name.isalnum() and name in other][:3]
        )
        hint = f" Did you mean {listing(near)}?" if near else ""
        raise InputError(f"The backbone must be {CONVNET!r} or a model of timm, got {name!r}.{hint}")
    try:
        with _seeded(seed):
            net = _create(name, image_size)
    except (AssertionError, ValueError, RuntimeError, TypeError) as error:
        if isinstance(error, AssertionError) and not _has_class_token(name):  # timm asserts that without a word
            raise InputError(f"{name} has no class token, which features are read from. Choose another.") from error
        raise InputError(f"{name} cannot be made for images of {image_size} pixels: {_first_line(error)}.") from error
    cfg: dict[str, Any] = dict(net.pretrained_cfg)  # type: ignore[arg-type]
    width: int = net.num_features  # type: ignore[assignment]
    spec = Spec(
        name=name,
        image_size=image_size,
        shorter_side=round(image_size * 256 / 224),
        width=width,
        mean=tuple(cfg["mean"]),
        std=tuple(cfg["std"]),
    )
    if isinstance(net, vision_transformer.VisionTransformer | eva.Eva):
        patch: int = cast(Any, net.patch_embed).feat_ratio()  # pixels a token, those of a convolutional stem too
        if image_size % patch:
            raise InputError(f"image_size must be a multiple of {patch} for {name}, got {image_size}.")
        return VisionTransformer(net, spec)
    if isinstance(net, resnet.ResNet):
        return ResNet(net, spec)
    raise InputError(f"The backbone must be a vision transformer or a ResNet, got {name!r} ({type(net).__name__}).")


def _create(name: str, image_size: int) -> nn.Module:
    import timm
    from timm.models import is_model_in_modules

    if is_model_in_modules(name.partition(".")[0], TRANSFORMERS):
        return timm.create_model(name, num_classes=0, img_size=image_size, global_pool="token")
    return timm.create_model(name, num_classes=0)


def _has_class_token(name: str) -> bool:
    import timm

    with torch.device("meta"):  # no weights are made
        return getattr(timm.create_model(name, num_classes=0), "cls_token", None) is not None


def _check_normalisation(name: str) -> None:
    """A name must tell how images were normalised for its weights, unless a .json beside them does."""
    import timm

    if "." in name:
        return
    tagged = timm.list_pretrained(f"{name}.*")
    if len({(cfg.mean, cfg.std) for cfg in map(timm.get_pretrained_cfg, tagged) if cfg is not None}) > 1:
        raise InputError(
            f"The name must say whose weights these are, since images are normalised in their way, got {name!r}. "
            f"Use one of {listing(tagged, show=len(tagged))}."
        )


def _from_hub(name: str) -> Path:
    """The hub's file of a model, fetched or from its cache on this machine."""
    import timm
    from huggingface_hub import hf_hub_download

    cfg = timm.get_pretrained_cfg(name)
    if cfg is None or not cfg.hf_hub_id:
        raise InputError(
            f"There are no weights of {name} on the hub. Pass a file, weights=FILE, or weights={RANDOM!r}."
        )
    file = cfg.hf_hub_filename or "model.safetensors"
    try:
        return Path(hf_hub_download(cfg.hf_hub_id, file))
    except Exception as error:  # a network fails in many ways, each of its libraries in its own
        raise InputError(
            f"The weights of {name} are not on this machine and cannot be fetched: {_first_line(error)} "
            f"Get the file {file!r} of {cfg.hf_hub_id!r} on the Hugging Face hub and pass it: weights='{file}'."
        ) from None


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _load(backbone: Backbone, path: Path) -> bool:
    """Fill a backbone, and say whether a .json beside the weights told how images are normalised for them."""
    files.fill(backbone.net, files.read(path), name=backbone.spec.name, origin=repr(str(path)))
    sha256 = files.sha256(path)
    backbone.source = f"{path.name} (sha256 {sha256})"
    about = path.with_suffix(".json")
    saved = _about(about) if about.is_file() else None
    if saved is None or saved["sha256"] != sha256:
        return False
    backbone.spec = replace(backbone.spec, mean=tuple(saved["mean"]), std=tuple(saved["std"]))
    return True


def _saved(path: Path, trained: int | None) -> Backbone:
    if not path.is_file():
        raise InputError(f"The saved backbone {str(path)!r} is not there. Check the path.")
    about = _about(path)
    if about is None:
        raise InputError(f"{str(path)!r} must be the .json of a saved backbone, which it is not.")
    file = path.with_suffix(".safetensors")
    if file.is_file() and files.sha256(file) != about["sha256"]:
        raise InputError(f"The weights in {str(file)!r} are not those {str(path)!r} was written for. Save them again.")
    backbone = load_backbone(
        about["name"],
        weights=file,
        image_size=about["image_size"],
        trained=about["trained"] if trained is None else trained,
    )
    backbone.spec = replace(backbone.spec, shorter_side=about["shorter_side"])
    return backbone


def _about(path: Path) -> dict[str, Any] | None:
    """What was saved beside weights; None where that file is something else."""
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    whole = isinstance(about, dict) and about.get("format") == FORMAT and about.keys() >= KEPT
    return about if whole and not str(about["name"]).endswith(".json") else None
