"""Networks of timm and open_clip by name or description, untrained, with the images that they expect."""

import functools
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Any, cast

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from sortal.config import Interpolation
from sortal.errors import InputError, Remedy, listing
from sortal.learning.backbones import hub
from sortal.learning.backbones.backbone import Backbone, Spec
from sortal.learning.backbones.descriptions import NEEDS_OPEN_CLIP
from sortal.learning.backbones.names import RANDOM, unknown
from sortal.learning.backbones.network import network
from sortal.learning.backbones.vit import VisionTransformer

TRANSFORMERS = ["deit", "eva", "vision_transformer", "vision_transformer_hybrid"]  # modules of timm
IMAGE_SIZE = 224  # of vision transformers with a class token, whatever size they were trained with
LARGEST_CROP = 224 / 256  # of the shorter side of an image: views must differ from each other
REFUSED = ("cache_dir", "checkpoint_path", "exportable", "no_jit", "num_classes", "pretrained", "scriptable")  # to timm
CLIP_COLOURS = {"mean": (0.48145466, 0.4578275, 0.40821073), "std": (0.26862954, 0.26130258, 0.27577711)}


@functools.cache
def load_timm() -> Any:
    """Import timm without PyTorch's compiler, which is most of the time that it takes otherwise."""
    with suppress(ImportError), _compiler_later():
        import timm
    import timm

    return timm


@contextmanager
def _compiler_later() -> Iterator[None]:
    """Let timm and torchvision name functions of PyTorch's compiler, which is imported when they are called."""
    names = {"torch._dynamo": "disable", "torch._dynamo.utils": "is_compile_supported"}
    if not names.keys().isdisjoint(sys.modules):
        yield
        return
    for module, name in names.items():
        sys.modules[module] = ModuleType(module)
        setattr(sys.modules[module], name, functools.partial(_later, module, name))
    try:
        yield
    finally:
        for module in names:
            del sys.modules[module]


def _later(module: str, name: str, function: Any, *arguments: Any, **options: Any) -> Any:
    """Call a function of a module now, or if it decorates another, whenever that is called."""

    def real() -> Any:
        return getattr(import_module(module), name)(function, *arguments, **options)

    if not callable(function):
        return real()

    @functools.wraps(function)
    def call(*values: Any, **named: Any) -> Any:
        return real()(*values, **named)

    return call


def check_name(name: str) -> None:
    """Raise InputError unless timm has a model, and weights of its tag."""
    timm = load_timm()
    bare = name.partition(".")[0]
    if not timm.is_model(bare) or (bare != name and name not in timm.list_pretrained(f"{bare}.*")):
        raise unknown(name)


def create(name: str, image_size: int | None, architecture: str = "", *, draw: bool) -> Backbone:
    """Create a network of timm by its name, or one that JSON describes.

    Unless `draw`, its weights may be left uninitialised, which is quicker.
    """
    if not architecture:
        return _create_timm(name, name, {}, {}, image_size, draw=draw)
    config = json.loads(architecture)
    if config["library"] == "open_clip":
        return _create_tower(name, config, image_size, architecture)
    try:
        given = (config.get("model_args") or {}).items()
        arguments = {key: value for key, value in given if key not in REFUSED and not key.startswith("pretrained_")}
        model, stated = str(config["architecture"]), {**(config.get("pretrained_cfg") or {})}
        check_name(model.partition(".")[0])
        return _create_timm(name, model, arguments, stated, image_size, draw=draw, architecture=architecture)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"The config of {name} must describe a model of timm: {hub.first_line(error)}.") from error


def _create_timm(
    name: str,
    model: str,
    arguments: dict[str, Any],
    stated: dict[str, Any],
    image_size: int | None,
    *,
    draw: bool,
    architecture: str = "",
) -> Backbone:
    """Create a model of timm; what is `stated` about its images replaces what timm says."""
    models = load_timm().models
    bare = model.partition(".")[0]
    undrawn = (
        {**arguments, "weight_init": "skip"} if models.is_model_in_modules(bare, ["vision_transformer"]) else arguments
    )
    arguments = arguments if draw else undrawn
    net = None
    if models.is_model_in_modules(bare, TRANSFORMERS):
        size = image_size or min(IMAGE_SIZE, stated.get("input_size", [IMAGE_SIZE])[-1])
        net = _with_class_token(name, model, arguments, undrawn, size)
    if net is None:
        own = {**_config(model), **stated}
        usual: int = own["input_size"][-1]
        size = image_size or usual
        resized = {"img_size": size} if own.get("fixed_input_size") and size != usual else {}
        net = _made(name, model, size, {**arguments, **resized})
    made = cast(Any, net)
    spec = _spec(name, size, {**made.pretrained_cfg, **stated}, architecture)
    if isinstance(net, models.VisionTransformer | models.Eva):
        patch: int = made.patch_embed.feat_ratio()  # pixels per token, also with a convolutional stem
        if size % patch:
            raise InputError(f"image_size must be a multiple of {patch} for {name}, got {size}.")
        if made.cls_token is not None and made.global_pool == "token":
            return VisionTransformer(net, replace(spec, width=made.num_features))
    return _as_backbone(net, spec)


def _with_class_token(
    name: str, model: str, arguments: dict[str, Any], undrawn: dict[str, Any], size: int
) -> nn.Module | None:
    """Create a vision transformer whose features are its class token; None if it has none, or no weights for it."""
    with torch.device("meta"), _Undrawn():  # allocates no weights; drawing them there would import PyTorch's compiler
        pooled = _made(name, model, size, undrawn)
    try:
        net = _made(name, model, size, {**arguments, "img_size": size, "global_pool": "token"})
    except AssertionError as error:
        if getattr(pooled, "cls_token", None) is not None:
            problem = hub.first_line(error)
            raise InputError(f"{name} does not support an image_size of {size}: {problem}.") from error
        return None
    return net if net.state_dict().keys() == pooled.state_dict().keys() else None


class _Undrawn(TorchFunctionMode):
    """Leave weights that functions of torch.nn.init would draw as they are."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if getattr(function, "__module__", "") == nn.init.__name__:
            return args[0] if args else given["tensor"]
        return function(*args, **given)


def _made(name: str, model: str, size: int, arguments: dict[str, Any]) -> nn.Module:
    try:
        made: nn.Module = load_timm().create_model(model, num_classes=0, **arguments)
    except (ValueError, RuntimeError, TypeError) as error:
        raise InputError(f"{name} does not support an image_size of {size}: {hub.first_line(error)}.") from error
    return made


def _as_backbone(net: nn.Module, spec: Spec) -> Backbone:
    try:
        return network(net, spec)
    except InputError:
        raise
    except Exception as error:  # of images of another size than a network was made for
        problem = hub.first_line(error)
        raise InputError(f"{spec.name} does not support an image_size of {spec.image_size}: {problem}.") from error


def _create_tower(name: str, config: dict[str, Any], image_size: int | None, architecture: str) -> Backbone:
    """Create the image tower of a model of open_clip; its features are embeddings."""
    try:
        from open_clip.model import _build_vision_tower
    except ImportError as error:
        raise InputError(NEEDS_OPEN_CLIP) from error
    try:
        model = config["model_cfg"]
        vision = {**model["vision_cfg"], "timm_model_pretrained": False, "output_tokens": False, "patch_dropout": 0.0}
        if ":" in (vision.get("timm_model_name") or ""):  # on the hub, or in another folder
            raise ValueError(f"its tower must be a model of timm, got {vision['timm_model_name']!r}")
        about = {**CLIP_COLOURS, **(config.get("preprocess_cfg") or {})}
        quick = bool(model.get("quick_gelu") or about.get("quick_gelu"))
        net: nn.Module = _build_vision_tower(int(model["embed_dim"]), vision, quick)
        usual = vision.get("image_size", IMAGE_SIZE)
        usual = usual if isinstance(usual, int) else int(usual[0])
        spec = _spec(name, usual, about, architecture)
    except Exception as error:  # any value in the file can be wrong
        raise InputError(
            f"The config of {name} must describe a model of open_clip: {hub.first_line(error)}."
        ) from error
    if image_size not in (None, usual):
        raise InputError(f"image_size must be {usual} for {name}, got {image_size}.")
    return _as_backbone(net, spec)


def _spec(name: str, size: int, about: dict[str, Any], architecture: str) -> Spec:
    """Return the spec of a network from what is known about its images; its width is not known yet."""
    crop = min(about.get("crop_pct") or LARGEST_CROP, LARGEST_CROP)
    interpolation: Interpolation = "bilinear" if about.get("interpolation") == "bilinear" else "bicubic"
    mean, std = (tuple(map(float, about[key])) for key in ("mean", "std"))
    return Spec(
        name=name,
        image_size=size,
        shorter_side=round(size / crop),
        width=0,
        mean=cast(Any, mean),
        std=cast(Any, std),
        interpolation=interpolation,
        architecture=architecture,
    )


def _config(model: str) -> dict[str, Any]:
    """Return what timm says about the images of a model."""
    found = load_timm().get_pretrained_cfg(model)
    return {"input_size": (3, IMAGE_SIZE, IMAGE_SIZE)} if found is None else cast(Any, found).to_dict()


def check_normalisation(name: str) -> None:
    """Raise InputError if a name without a tag does not determine the normalisation of images for its weights."""
    timm = load_timm()
    tagged = timm.list_pretrained(f"{name}.*")
    if len({(cfg.mean, cfg.std) for cfg in map(timm.get_pretrained_cfg, tagged) if cfg is not None}) > 1:
        raise InputError(
            f"The name must include a tag, as the normalisation of images depends on the weights, got {name!r}. "
            f"Use one of {listing(tagged, show=len(tagged))}."
        )


def hub_file(name: str) -> tuple[str, str]:
    """Return the repository and the file of a model's weights on the hub."""
    check_name(name)
    cfg = load_timm().get_pretrained_cfg(name)
    if cfg is None or not cfg.hf_hub_id:
        raise InputError(
            f"The hub has no weights of {name}.",
            Remedy("pass a file", weights="FILE"),
            Remedy("use untrained weights", weights=RANDOM),
        )
    return cfg.hf_hub_id, cfg.hf_hub_filename or hub.WEIGHTS_FILE
