"""Embeddings of pictures and words by a local CLIP model of open_clip, and the words that describe a category."""

import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.functional import normalize

from sortal.errors import InputError, listing
from sortal.system.device import choose_device
from sortal.system.regular_files import read_regular

CONFIG_FILE = "open_clip_config.json"
WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.safetensors", "model.safetensors")
PICKLES = (".bin", ".ckpt", ".pt", ".pth")
FOREIGN = ("hf_model_name", "hf_tokenizer_name", "tokenizer_kwargs")  # text models and tokenizers other than CLIP's
VOCABULARY = 49408  # tokens of CLIP
PROMPTS = ("a photo of a {}.", "a photo of the {}.", "{}")
ITEMS_AT_ONCE = 64  # pictures or words


class ImageText:
    """Embed pictures and words in one space, where a word is close to the pictures that it describes."""

    def __init__(self, model: Any, transform: Callable[[Image.Image], Tensor], tokenize: Callable[[list[str]], Tensor]):
        self._model, self._transform, self._tokenize = model, transform, tokenize
        self._device: torch.device = model.logit_scale.device
        ends = model.text.cls_emb is None and model.text.pool_type == "argmax"  # the embedding is the end token's
        self._mask: Tensor | None = model.text.attn_mask if ends else None

    def embed_images(self, pictures: Sequence[NDArray[np.uint8]]) -> NDArray[np.float32]:
        """Return (n, d) unit rows of RGB pictures, (height, width, 3) each."""
        return self._embed(self._encode_images, pictures)

    def embed_words(self, words: Sequence[str]) -> NDArray[np.float32]:
        """Return (m, d) unit rows, each the normalised mean of a word's prompts."""
        return self._embed(self._encode_words, words)

    @torch.no_grad()
    def _embed(self, encode: Callable[[Any], Tensor], items: Sequence[Any]) -> NDArray[np.float32]:
        starts = range(0, len(items), ITEMS_AT_ONCE)
        batches = [encode(items[start : start + ITEMS_AT_ONCE]).cpu().numpy() for start in starts]
        return np.concatenate([np.empty((0, self._model.text.output_dim), np.float32), *batches])

    def _encode_images(self, pictures: Sequence[NDArray[np.uint8]]) -> Tensor:
        images = torch.stack([self._transform(Image.fromarray(picture)) for picture in pictures])
        return self._model.encode_image(images.to(self._device), normalize=True)

    def _encode_words(self, words: Sequence[str]) -> Tensor:
        tokens = self._tokenize([prompt.format(word) for word in words for prompt in PROMPTS])
        if self._mask is not None:  # omit the padding, to which the end, the largest token, does not attend
            length = int(tokens.argmax(dim=1).max()) + 1
            tokens, self._model.text.attn_mask = tokens[:, :length], self._mask[:length, :length]
        rows: Tensor = self._model.encode_text(tokens.to(self._device), normalize=True)
        return normalize(rows.view(len(words), len(PROMPTS), -1).mean(dim=1), dim=-1)


def load_image_text(folder: str | os.PathLike[str], *, device: str) -> ImageText:
    """Load a CLIP model from a folder that open_clip or timm published, without network access and without pickles."""
    config, weights = _read_config(Path(folder) / CONFIG_FILE), _find_weights(Path(folder))
    try:
        import open_clip
        from open_clip.transform import PreprocessCfg, image_transform_v2, merge_preprocess_dict
    except ImportError as error:
        raise InputError(f"Suggesting names needs open_clip: pip install 'sortal[names]' ({error}).") from None
    try:
        with torch.random.fork_rng(devices=[]):  # restores the global generator for CPUs
            model = open_clip.CustomTextCLIP(**config["model_cfg"]).eval().to(choose_device(device, None))
        preprocessing = {**(config.get("preprocess_cfg") or {}), "size": model.visual.image_size}
        transform = image_transform_v2(PreprocessCfg(**merge_preprocess_dict(PreprocessCfg(), preprocessing)), False)
        if model.vocab_size != VOCABULARY:
            raise ValueError(f"vocab_size must be {VOCABULARY}, got {model.vocab_size}")
        image_text = ImageText(model, transform, partial(open_clip.tokenize, context_length=model.context_length))
        image_text.embed_images([np.zeros((1, 1, 3), np.uint8)])
        image_text.embed_words(["word"])
    except Exception as error:  # any value in the file can be wrong
        raise InputError(
            f"{CONFIG_FILE!r} in {str(folder)!r} must describe a CLIP model that open_clip {open_clip.__version__} can "
            f"build: {_brief(error)}. Choose another model."
        ) from None
    try:
        open_clip.load_checkpoint(model, str(weights))
        if broken := [name for name, values in model.state_dict().items() if not values.isfinite().all()]:
            raise ValueError(f"{listing(broken)} must be finite")
    except Exception as error:  # the file can be damaged or belong to another model
        raise InputError(
            f"The weights in {str(weights)!r} must match {CONFIG_FILE!r}: {_brief(error)}. Download the folder again."
        ) from None
    return image_text


def suggest(
    pictures: NDArray[np.float32],
    words: NDArray[np.float32],
    names: Sequence[str],
    count: int = 5,
    *,
    others: NDArray[np.float32] | None = None,
) -> list[str]:
    """Return the names of the words most similar to the mean of a category's pictures, the best first.

    `pictures` (n, d) and `words` (m, d) are unit rows; `names` has the m words. `others` (c, d) holds the mean pictures
    of all categories: subtract each word's mean similarity to them, as some words are similar to all pictures.
    """
    scores = words @ _unit(pictures.mean(axis=0))
    if others is not None:
        scores = scores - words @ _unit(others).mean(axis=0)
    return [names[row] for row in np.argsort(-scores, kind="stable")[:count]]


def _unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True).clip(1e-12)


def _read_config(path: Path) -> dict[str, Any]:
    """Read the description of a model; refuse one that would need downloads."""
    if not path.is_file():
        rule = f"must contain {path.name!r}" if path.parent.is_dir() else "must exist"
        raise InputError(f"The folder {str(path.parent)!r} {rule}. Download all files of a CLIP model of open_clip.")
    try:
        config: dict[str, Any] = json.loads(read_regular(path))
        vision, text = config["model_cfg"]["vision_cfg"], config["model_cfg"]["text_cfg"]
        config["model_cfg"].pop("custom_text", None)  # CustomTextCLIP loads the weights of all text models
        vision["timm_model_pretrained"] = False
        foreign = [f"{key} {text[key]!r}" for key in FOREIGN if text.get(key)]
        if ":" in (trunk := vision.get("timm_model_name") or ""):  # on the hub, or in another folder
            foreign.append(f"timm_model_name {trunk!r}")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(f"{str(path)!r} must be a config of open_clip: {_brief(error)}. Download it again.") from None
    if foreign:
        raise InputError(
            f"The model in {str(path.parent)!r} must have CLIP's text model and tokenizer and use no other models, got "
            f"{', '.join(foreign)}. Choose another model, such as ViT-B-32."
        )
    return config


def _find_weights(folder: Path) -> Path:
    for name in WEIGHTS:
        if (folder / name).is_file():
            return folder / name
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
    rule = f"The weights in {str(folder)!r} must be safetensors, which cannot run code, got"
    if pickles:
        raise InputError(
            f"{rule} {listing(pickles)}. Convert the weights to {WEIGHTS[0]!r} (safetensors.torch.save_file)."
        )
    raise InputError(f"{rule} no weights. Download {WEIGHTS[0]!r}.")


def _brief(error: Exception) -> str:
    return shorten(f"{type(error).__name__}: {error}", 300).rstrip(".:")
