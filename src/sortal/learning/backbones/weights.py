"""Weights from files of others: safetensors, and the raw checkpoints of DINO, DINOv2 and their kin."""

import argparse
import contextlib
import hashlib
import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sortal.errors import InputError, listing

State = dict[str, Tensor]

# Where checkpoints keep the weights that count, the better place first.
PLACES = ("teacher", "model_ema", "state_dict", "model", "module", "student")
WRAPPERS = ("module.", "_orig_mod.", "backbone.")
# What stands beside a backbone in such files and is no part of it: classifiers, projection heads, decoders.
BESIDE = re.compile(r"(head|head_dist|fc|dino_head|ibot_head|dino_loss|ibot_patch_loss|decoder\w*|mask_token)(\.|$)")
PATCHES = "patch_embed.proj.weight"
CHUNK = re.compile(r"^blocks\.\d+\.(\d+)\.")  # DINOv2's training groups its blocks: blocks.<group>.<block>.


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read(path: str | os.PathLike[str]) -> State:
    """The tensors of a file under their own names, less wrappers. No code in a file is ever run."""
    path = Path(path)
    if not path.is_file():
        what = "a folder" if path.is_dir() else "not there"
        raise InputError(f"The file of weights {str(path)!r} is {what}. Check the path.")
    try:
        content = _safetensors(path) if _is_safetensors(path) else _checkpoint(path)
    except OSError as error:
        raise InputError(f"The file of weights {str(path)!r} cannot be read: {error.strerror or error}.") from error
    state = _unwrapped(content)
    if not state:
        raise InputError(f"The file {str(path)!r} holds no weights: no tensors under names were found in it.")
    return state


def fill(net: nn.Module, state: State, *, name: str, origin: str) -> None:
    """Load weights into a network of timm: all of it and nothing else, position embeddings resampled to its size."""
    state = {key: value.float() if value.is_floating_point() else value for key, value in state.items()}
    state = {key: value for key, value in _in_timms_names(net, state).items() if not BESIDE.match(key)}
    own = net.state_dict()
    optional = {key for key in own if key.endswith("num_batches_tracked")}
    missing = sorted(own.keys() - state.keys() - optional)
    unexpected = sorted(state.keys() - own.keys())
    if missing or unexpected:
        both = (("missing", missing), ("unexpected", unexpected))
        parts = [f"{len(keys)} {what}: {listing(keys)}" for what, keys in both if keys]
        raise InputError(
            f"The weights of {origin} must be those of {name}, whole and nothing else; "
            f"{'; '.join(parts)}. Choose the architecture the file was made for."
        )
    for key, value in state.items():
        if value.shape != own[key].shape:
            raise InputError(
                f"The weights of {origin} must be those of {name}: {key!r} must be {tuple(own[key].shape)}, "
                f"got {tuple(value.shape)}. Choose the architecture the file was made for."
            )
        if value.is_floating_point() != own[key].is_floating_point():
            raise InputError(f"The weights of {origin} must be {own[key].dtype} or so; {key!r} is {value.dtype}.")
        if value.is_floating_point() and not value.isfinite().all():
            raise InputError(f"The weights of {origin} must be finite numbers; {key!r} is not.")
    net.load_state_dict(state, strict=False)


def _is_safetensors(path: Path) -> bool:
    """By content: a length of eight bytes, then JSON."""
    with path.open("rb") as file:
        return file.read(9)[8:] == b"{"


def _safetensors(path: Path) -> State:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise InputError(f"The file of weights {str(path)!r} is damaged: {error}. Get it again.") from error


def _checkpoint(path: Path) -> Any:
    with torch.serialization.safe_globals(_harmless()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch would warn of is an error here, or does not matter
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except OSError:
            raise
        except Exception as error:  # a damaged pickle fails in any way
            raise InputError(
                f"The file of weights {str(path)!r} must be safetensors, or a checkpoint that loads without running "
                f"code; it is neither: {_why(str(error))}."
            ) from None


def _harmless() -> list[Any]:
    """What full DINO checkpoints hold beside weights: the arguments of their run, and numbers of NumPy."""
    number, types = np.float64(0).__reduce__()[0], ("f2", "f4", "f8", "i4", "i8", "?")
    names = [(number, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")]  # before NumPy 2 and since
    return [argparse.Namespace, np.dtype, *names, *(type(np.dtype(kind)) for kind in types)]


def _why(error: str) -> str:
    """torch's own words advise to let the file run its code."""
    if wanted := re.search(r"GLOBAL (\S+)", error):
        return f"it asks for {wanted[1]}"
    return "it is a TorchScript program" if "TorchScript" in error else "it is damaged, or something else"


def _unwrapped(content: Any) -> State:
    while isinstance(content, Mapping):
        inner = next((content[place] for place in PLACES if isinstance(content.get(place), Mapping)), None)
        if inner is None:
            break
        content = inner
    if not isinstance(content, Mapping):
        return {}
    state = {str(key): value for key, value in content.items() if isinstance(value, Tensor)}
    for _ in WRAPPERS:
        state = {_bare(key): value for key, value in state.items()}
    return state


def _bare(key: str) -> str:
    for wrapper in WRAPPERS:
        key = key.removeprefix(wrapper)
    return CHUNK.sub(r"blocks.\1.", key)


def _in_timms_names(net: nn.Module, state: State) -> State:
    """timm knows the names of other authors, and resamples position embeddings."""
    from timm.models import eva, vision_transformer

    translate: Any = None
    if isinstance(net, eva.Eva):
        translate = eva.checkpoint_filter_fn
    elif isinstance(net, vision_transformer.VisionTransformer):
        translate = vision_transformer.checkpoint_filter_fn
    if translate is None:
        return state
    try:
        with contextlib.redirect_stdout(None):  # it prints what it leaves out
            translated = dict(translate(dict(state), net))
    except (RuntimeError, KeyError, ValueError, AttributeError, AssertionError, IndexError):
        return state  # of another architecture: what is wrong with it is found by its names and shapes
    if PATCHES in state and state[PATCHES].dim() == 4:
        translated[PATCHES] = state[PATCHES]  # timm would resample patches of another size without a word
    return translated
