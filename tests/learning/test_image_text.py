"""Embeddings of pictures and words by a tiny random model of open_clip, and the words for a category."""

import json
import pickle
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import load_file, save_file
from scipy.spatial.distance import pdist
from support.tiny_image_text import CLIP, TEXT, VIT, tiny_model

from sortal.errors import InputError
from sortal.learning import image_text
from sortal.learning.image_text import CONFIG_FILE, PROMPTS, WEIGHTS, load_image_text, suggest

pytestmark = pytest.mark.usefixtures("no_network")
CONFIGS: dict[str, dict[str, Any]] = {
    "clip": CLIP,
    "timm": {  # a text model without a causal mask: padding counts
        "model_cfg": {
            "embed_dim": 24,
            "custom_text": True,
            "vision_cfg": {"timm_model_name": "test_vit", "timm_model_pretrained": True, "image_size": 160},
            "text_cfg": {**TEXT, "context_length": 40, "no_causal_mask": True},
        },
        "preprocess_cfg": {"resize_mode": "squash"},
    },
    "last token": {
        "model_cfg": {"embed_dim": 24, "vision_cfg": VIT, "text_cfg": {**TEXT, "pool_type": "last"}},
        "preprocess_cfg": {"interpolation": "bicubic", "resize_mode": "longest", "fill_color": 9},
    },
    "class token": {
        "model_cfg": {"embed_dim": 24, "custom_text": True, "vision_cfg": VIT, "text_cfg": {**TEXT, "embed_cls": True}},
    },
}
WORDS = ["owl", "red-tailed hawk", "Owl {}", "", "a very " + "long " * 100 + "name"]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Save a random model of each kind in the way of the published folders."""
    pytest.importorskip("open_clip")
    return {kind: tiny_model(tmp_path_factory.mktemp(kind), config) for kind, config in CONFIGS.items()}


@pytest.fixture
def folder(published: dict[str, Path], tmp_path: Path) -> Path:
    """Copy a published folder, to be changed."""
    return Path(shutil.copytree(published["clip"], tmp_path / "model"))


def pictures() -> list[NDArray[np.uint8]]:
    random = np.random.default_rng(0)
    return [random.integers(0, 256, (*size, 3), dtype=np.uint8) for size in [(32, 32), (50, 70), (200, 31), (1, 1)]]


@pytest.mark.parametrize("kind", CONFIGS)
def test_embeddings_equal_those_of_open_clip(
    kind: str, published: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    import open_clip

    name = f"local-dir:{published[kind]}"
    model, _, transform = open_clip.create_model_and_transforms(name)
    tokens = open_clip.get_tokenizer(name)([prompt.format(word) for prompt in PROMPTS for word in WORDS])
    with torch.no_grad():
        images = torch.stack([transform(Image.fromarray(picture)) for picture in pictures()])
        expected_images = model.eval().encode_image(images, normalize=True).numpy()
        means = model.encode_text(tokens, normalize=True).view(len(PROMPTS), len(WORDS), -1).mean(dim=0)
        expected_words = torch.nn.functional.normalize(means, dim=-1).numpy()

    state = torch.random.get_rng_state()
    loaded = load_image_text(published[kind], device="cpu")
    assert torch.equal(torch.random.get_rng_state(), state)
    for batch in (64, 2):
        monkeypatch.setattr(image_text, "ITEMS_AT_ONCE", batch)
        for rows, expected in (
            (loaded.embed_images(pictures()), expected_images),
            (loaded.embed_words(WORDS), expected_words),
        ):
            assert rows.dtype == np.float32
            np.testing.assert_allclose(rows, expected, atol=1e-4)
            np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
            assert pdist(rows).min() > 1e-3  # ten times the tolerance
    assert loaded.embed_images([]).shape == loaded.embed_words([]).shape == (0, 24)


def test_a_batch_is_bounded(published: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    import open_clip

    sizes = []
    encode = open_clip.CustomTextCLIP.encode_text

    def count(self: Any, tokens: torch.Tensor, **options: Any) -> Any:
        sizes.append(len(tokens))
        return encode(self, tokens, **options)

    loaded = load_image_text(published["clip"], device="cpu")
    monkeypatch.setattr(open_clip.CustomTextCLIP, "encode_text", count)
    assert loaded.embed_words(["word"] * 200).shape == (200, 24)
    assert sum(sizes) == 200 * len(PROMPTS)
    assert max(sizes) == image_text.ITEMS_AT_ONCE * len(PROMPTS)


def test_weights_are_found_by_each_name_in_order_of_preference(folder: Path) -> None:
    expected = load_image_text(folder, device="cpu").embed_words(["owl"])
    weights = folder / WEIGHTS[0]
    for name in WEIGHTS[1:]:
        weights.rename(folder / name)
        weights.write_bytes(b"")
        with pytest.raises(InputError, match=re.escape(repr(str(weights)))):
            load_image_text(folder, device="cpu")
        weights.unlink()
        weights = folder / name
        (folder / "open_clip_pytorch_model.bin").write_bytes(b"")
        np.testing.assert_array_equal(load_image_text(folder, device="cpu").embed_words(["owl"]), expected)


class Exploit:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["open_clip_pytorch_model.bin", "model.pt", *WEIGHTS])
def test_a_pickle_is_refused_and_never_run(name: str, folder: Path, tmp_path: Path) -> None:
    (folder / WEIGHTS[0]).unlink()
    (folder / name).write_bytes(pickle.dumps(Exploit(tmp_path / "run")))
    expected = (
        "The weights in" if name in WEIGHTS else rf"must be safetensors, .*got '{name}'. Convert .*'{WEIGHTS[0]}'"
    )
    with pytest.raises(InputError, match=expected):
        load_image_text(folder, device="cpu")
    assert not (tmp_path / "run").exists()


def set_in_config(part: str, **values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / CONFIG_FILE).read_text())
        model = config["model_cfg"]
        {"model_cfg": model, "vision_cfg": model["vision_cfg"], "text_cfg": model["text_cfg"]}.get(
            part, config["preprocess_cfg"]
        ).update(values)
        (folder / CONFIG_FILE).write_text(json.dumps(config))

    return change


def set_weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def save(folder: Path) -> None:
        state = load_file(folder / WEIGHTS[0])
        change(state)
        save_file(state, folder / WEIGHTS[0])

    return save


ERRORS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (shutil.rmtree, "The folder '.*model' must exist. Download"),
    "no config": (
        lambda folder: (folder / CONFIG_FILE).unlink(),
        f"The folder '.*model' must contain '{CONFIG_FILE}'. Download",
    ),
    "not JSON": (
        lambda folder: (folder / CONFIG_FILE).write_text("{"),
        "must be a config of open_clip: JSONDecodeError",
    ),
    "not UTF-8": (
        lambda folder: (folder / CONFIG_FILE).write_bytes(b'"\xff"'),
        "config of open_clip: UnicodeDecodeError",
    ),
    "a list": (lambda folder: (folder / CONFIG_FILE).write_text("[]"), "must be a config of open_clip: TypeError"),
    "another config": (
        lambda folder: (folder / CONFIG_FILE).write_text("{}"),
        "config of open_clip: KeyError: 'model_cfg'",
    ),
    "another tokenizer": (
        set_in_config("text_cfg", hf_tokenizer_name="timm/ViT-B-16-SigLIP"),
        "must have CLIP's text model and tokenizer.* got hf_tokenizer_name 'timm/ViT-B-16-SigLIP'. Choose",
    ),
    "another text model": (set_in_config("text_cfg", hf_model_name="roberta-base"), "got hf_model_name 'roberta-base'"),
    "tokenizer that downloads": (
        set_in_config("text_cfg", tokenizer_kwargs={"reduction_mask": "syntax"}),
        "got tokenizer_kwargs {'reduction_mask': 'syntax'}",
    ),
    "image model of the hub": (
        set_in_config("vision_cfg", timm_model_name="hf-hub:timm/test_vit"),
        "got timm_model_name 'hf-hub:timm/test_vit'",
    ),
    "CoCa": (
        set_in_config("model_cfg", multimodal_cfg={}),
        "must describe a CLIP model that open_clip .*multimodal_cfg",
    ),
    "another vocabulary": (set_in_config("text_cfg", vocab_size=100), "vocab_size must be 49408, got 100"),
    "unknown interpolation": (set_in_config("preprocess_cfg", interpolation="x"), "can build: AssertionError"),
    "two colours": (set_in_config("preprocess_cfg", mean=[0.5, 0.5]), "can build: RuntimeError"),
    "no weights": (
        lambda folder: (folder / WEIGHTS[0]).unlink(),
        f"safetensors.*got no weights. Download '{WEIGHTS[0]}'",
    ),
    "damaged weights": (
        lambda folder: (folder / WEIGHTS[0]).write_bytes((folder / WEIGHTS[0]).read_bytes()[:-1]),
        rf"The weights in .*{WEIGHTS[0]}' must match '{CONFIG_FILE}': SafetensorError.* Download the folder again",
    ),
    "empty weights": (set_weights(dict.clear), "must match"),
    "missing weights": (set_weights(lambda state: state.pop("visual.proj")), 'Missing key.*"visual.proj"'),
    "other weights": (set_weights(lambda state: state.update(x=torch.ones(1))), 'Unexpected key.*"x"'),
    "another shape": (set_in_config("model_cfg", embed_dim=16), "must match .*size mismatch"),
    "not finite": (
        set_weights(lambda state: state["visual.proj"].fill_(torch.nan)),
        "'visual.proj' must be finite",
    ),
}


@pytest.mark.parametrize(("damage", "expected"), ERRORS.values(), ids=ERRORS)
def test_errors_name_the_way_out(damage: Callable[[Path], object], expected: str, folder: Path) -> None:
    damage(folder)
    with pytest.raises(InputError, match=expected) as error:
        load_image_text(folder, device="cpu")
    assert error.value.__cause__ is None
    assert error.value.__suppress_context__ or error.value.__context__ is None
    assert len(str(error.value)) < 1000


def test_open_clip_is_optional(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(InputError, match=re.escape("pip install 'sortal[names]'")):
        load_image_text(folder, device="cpu")


def test_suggest_orders_words_by_their_similarity_to_the_mean_picture() -> None:
    pictures = np.array([[1, 0, 0], [0, 1, 0]], np.float32)  # their mean has the direction (1, 1, 0) / √2
    words = np.array([[1, 0, 0], [0.6, 0.8, 0], [0, 0, 1], [0, 1, 0], [0.96, 0.28, 0]], np.float32)
    names = ["1.0", "1.4", "0.0", "1.0 too", "1.24"]  # √2 times the similarities; equal ones have a single term
    assert suggest(pictures, words, names) == ["1.4", "1.24", "1.0", "1.0 too", "0.0"]
    assert suggest(pictures, words, names, 2) == ["1.4", "1.24"]
    assert suggest(pictures, words, names, count=9) == suggest(pictures, words, names)


def test_suggest_discounts_words_that_are_similar_to_all_categories() -> None:
    pictures = np.array([[0.28, 0.96, 0], [0.28, -0.96, 0]], np.float32)  # their mean has the direction (1, 0, 0)
    words = np.array([[0.8, 0.6, 0], [0.6, 0, 0.8], [1, 0, 0]], np.float32)
    names = ["animal", "tail", "cat"]
    assert suggest(pictures, words, names) == ["cat", "animal", "tail"]  # 1, 0.8, 0.6
    others = np.array([[0.28, 0, 0], [0, 0.5, 0]], np.float32)  # similarities: (0.8, 0.6), (0.6, 0), (1, 0)
    assert suggest(pictures, words, names, others=others) == ["cat", "tail", "animal"]  # 0.5, 0.3, 0.1
