"""Weights from other projects' files: safetensors, and the raw checkpoints of DINO, DINOv2 and similar models."""

import argparse
import contextlib
import hashlib
import os
import re
import sys
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sortal.errors import InputError, Remedy, listing, quoted
from sortal.learning.backbones.names import check_file
from sortal.learning.backbones.network import RESIDUAL_HEAD
from sortal.system.regular_files import open_regular, openable

StateDict = dict[str, Tensor]

LONGEST_KEY = 200  # characters of a name in a message
MOST_WRAPPERS = 10  # wrappers around weights
ARCHIVE_SLACK = 2**26  # bytes that an archive may unpack to beyond its size

# Keys under which checkpoints hold the weights, the preferred ones first.
PLACES = ("teacher", "model_ema", "state_dict", "model", "module", "student")
WRAPPERS = re.compile(r"^((module|_orig_mod|backbone)\.)+")
# Parts of checkpoints that do not belong to the backbone: classifiers, projection heads, decoders.
EXTRA = re.compile(
    r"(head|head_dist|fc|classifier|last_linear|dino_head|ibot_head|dino_loss|ibot_patch_loss|decoder\w*|mask_token)(\.|$)"
)
PATCHES = "patch_embed.proj.weight"
BLOCK_GROUP = re.compile(r"^blocks\.\d+\.(\d+)\.")  # DINOv2 groups blocks: blocks.<group>.<block>.

# Names of EfficientNet-PyTorch and what timm calls these: of the whole network, of a block, and of one of the first.
EFFICIENTNET = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}
SQUEEZE = {"_se_reduce": "se.conv_reduce", "_se_expand": "se.conv_expand", "_depthwise_conv": "conv_dw"}
EXPANDED = {"_expand_conv": "conv_pw", "_bn0": "bn1", "_bn1": "bn2", "_project_conv": "conv_pwl", "_bn2": "bn3"}
SEPARABLE = {**SQUEEZE, "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
EFFICIENTNET_KEY = re.compile(r"(?:_blocks\.(\d+)\.)?(_\w+)\.(\w+)")


def sha256(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read(path: str | os.PathLike[str]) -> StateDict:
    """Read the named tensors of a file, without the prefixes of wrappers; never runs code from the file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = Path(path)
    check_file(path)
    try:
        with open_regular(path) as file:
            is_safetensors = file.read(9)[8:] == b"{"  # after a length of eight bytes
        with openable(path) as name:
            content = load_file(name) if is_safetensors else _read_checkpoint(path)
    except OSError as error:
        raise InputError(f"The weights file {str(path)!r} cannot be read: {error.strerror or error}.") from error
    except SafetensorError as error:
        raise InputError(f"The weights file {str(path)!r} is damaged: {error}. Download it again.") from error
    state = _unwrap(content)
    if not state:
        raise InputError(f"The file {str(path)!r} holds no weights: it has no named tensors.")
    for key, value in state.items():
        if problem := _problem_of(value):
            raise InputError(
                f"The weights in {str(path)!r} must be plain numbers, but {quoted(key, LONGEST_KEY)} is {problem}."
            )
    return state


def _problem_of(value: Tensor) -> str:
    """Say why a tensor is not an array of real numbers in memory; empty if it is one."""
    if value.layout != torch.strided or value.is_nested:
        return "sparse or nested"
    if value.is_meta:
        return "without values"
    if value.is_quantized:
        return "quantised"
    if value.is_complex():
        return "complex"
    size, held = value.numel() * value.element_size(), value.untyped_storage().nbytes()
    return "" if size <= held else f"of {size:,} bytes, of which the file holds {held:,}"  # repeats its values


def check_header(path: Path) -> None:
    """Raise InputError unless the header of a safetensors file describes exactly what follows it."""
    from safetensors import SafetensorError, safe_open

    try:
        with openable(path) as name, safe_open(name, "pt"):
            return
    except (SafetensorError, OSError) as error:
        raise InputError(f"The weights file {str(path)!r} is damaged: {error}.") from error


def fill(net: nn.Module, state: StateDict, *, name: str, origin: str) -> None:
    """Load weights into a timm network, which they must match exactly; position embeddings are resampled."""
    state = {key: value.float() if value.is_floating_point() else value for key, value in state.items()}
    own = net.state_dict()
    optional = {key for key in own if key.endswith("num_batches_tracked") or key.startswith(f"{RESIDUAL_HEAD}.")}
    classifiers = _classifiers(net)

    def is_extra(key: str) -> bool:
        return key not in own and (EXTRA.match(key) is not None or key.startswith(classifiers))

    absent = (key not in state or state[key].shape != own[key].shape for key in own.keys() - optional)
    if any(absent) or any(key not in own and not is_extra(key) for key in state):
        state = _translate(net, state)
    state = {key: value for key, value in state.items() if not is_extra(key)}
    missing = sorted(own.keys() - state.keys() - optional)
    unexpected = sorted(state.keys() - own.keys())
    both = (("missing", missing), ("unexpected", unexpected))
    problems = [f"{len(keys)} {what}: {listing(keys)}" for what, keys in both if keys] or [
        f"{quoted(key, LONGEST_KEY)} must have shape {tuple(own[key].shape)}, got {tuple(value.shape)}"
        for key, value in state.items()
        if value.shape != own[key].shape
    ][:1]
    if problems:
        raise InputError(
            f"The weights in {origin} must match {name} exactly: {'; '.join(problems)}.",
            Remedy("name the architecture of the file", backbone=...),
        )
    for key, value in state.items():
        shown = quoted(key, LONGEST_KEY)
        if value.is_floating_point() != own[key].is_floating_point():
            raise InputError(
                f"The weights in {origin} must match {name}: {shown} must be {own[key].dtype}, got {value.dtype}."
            )
        if value.is_floating_point() and not value.isfinite().all():
            raise InputError(f"The weights in {origin} must be finite, but {shown} is not. Download the file again.")
    net.load_state_dict(state, strict=False)


def _classifiers(net: nn.Module) -> tuple[str, ...]:
    """Return what the names of the weights of a network's classifiers begin with, as timm says."""
    about = getattr(net, "pretrained_cfg", None)
    named = about.get("classifier") if isinstance(about, dict) else None
    return tuple(f"{each}." for each in ([named] if isinstance(named, str) else named or ()))


def _read_checkpoint(path: Path) -> Any:
    if zipfile.is_zipfile(path):
        _check_archive(path)
    with torch.serialization.safe_globals(_safe_types()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about problems that are errors here, or harmless
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except OSError:
            raise
        except Exception as error:  # a damaged pickle can raise anything
            raise InputError(
                f"The weights file {str(path)!r} must be safetensors or a checkpoint that loads without running code, "
                f"but {_explain(str(error))}."
            ) from None


def _check_archive(path: Path) -> None:
    """Raise InputError for an archive whose entries claim more bytes than it has, which torch would allocate.

    torch.save compresses nothing, and TorchScript only its code.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            claimed = sum(max(each.file_size, each.compress_size) for each in archive.infolist())
    except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError) as error:
        raise InputError(f"The weights file {str(path)!r} is damaged: {error}. Download it again.") from error
    if claimed > path.stat().st_size + ARCHIVE_SLACK:
        raise InputError(
            f"The weights file {str(path)!r} must be safetensors or a checkpoint as torch.save writes it, but it is an "
            f"archive that claims {claimed:,} bytes, more than it holds."
        )


def _safe_types() -> list[Any]:
    """List the types that full DINO checkpoints hold besides weights: the arguments of a run, and NumPy scalars."""
    number, types = np.float64(0).__reduce__()[0], ("f2", "f4", "f8", "i4", "i8", "?")
    names = [(number, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")]  # NumPy 1 and 2
    return [argparse.Namespace, np.dtype, *names, *(type(np.dtype(kind)) for kind in types)]


def _explain(error: str) -> str:
    """Replace torch's message, which recommends running the file's code."""
    if wanted := re.search(r"GLOBAL (\S+)", error):
        return f"it needs {quoted(wanted[1], LONGEST_KEY)[1:-1]}"
    return "it is a TorchScript program" if "TorchScript" in error else "it is damaged or has another format"


def _unwrap(content: Any) -> StateDict:
    if not isinstance(content, Mapping):
        return {}
    for _ in range(MOST_WRAPPERS):  # a pickle may contain itself
        inner = [content[place] for place in PLACES if isinstance(content.get(place), Mapping)]
        content = inner[0] if inner else content
    state = {key: value for key, value in content.items() if isinstance(key, str) and isinstance(value, Tensor)}
    return {WRAPPERS.sub("", key): value for key, value in state.items()}


def _translate(net: nn.Module, state: StateDict) -> StateDict:
    """Let timm translate the names of other projects and resample position embeddings."""
    if not any(map(BLOCK_GROUP.match, net.state_dict())):
        state = {BLOCK_GROUP.sub(r"blocks.\1.", key): value for key, value in state.items()}
    if "_conv_stem.weight" in state:
        return _from_efficientnet(net, state)
    module: Any = sys.modules[type(net).__module__]
    if not module.__name__.startswith("timm.") or not hasattr(module, "checkpoint_filter_fn"):
        return state
    try:
        with contextlib.redirect_stdout(None):  # timm prints the weights it omits
            translated = dict(module.checkpoint_filter_fn(dict(state), net))
    except Exception:  # timm does not check what it is given
        return state  # another architecture, which the check of names and shapes reports
    if PATCHES in state and state[PATCHES].dim() == 4:
        translated[PATCHES] = state[PATCHES]  # timm would silently resample patches of another size
    return translated


def _from_efficientnet(net: nn.Module, state: StateDict) -> StateDict:
    """Translate the names of EfficientNet-PyTorch, whose blocks are not in stages."""
    blocks = list(dict.fromkeys(found[0] for key in net.state_dict() if (found := re.match(r"blocks\.\d+\.\d+", key))))
    translated = StateDict()
    for key, value in state.items():
        found = EFFICIENTNET_KEY.fullmatch(key)
        if found is None or (found[1] and int(found[1]) >= len(blocks)):
            return state  # another architecture
        expanding = f"_blocks.{found[1]}._expand_conv.weight" in state
        names = EFFICIENTNET if found[1] is None else {**SQUEEZE, **EXPANDED} if expanding else SEPARABLE
        place = "" if found[1] is None else f"{blocks[int(found[1])]}."
        translated[f"{place}{names.get(found[2], found[2])}.{found[3]}"] = value
    return translated
