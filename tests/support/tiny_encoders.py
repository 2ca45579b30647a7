"""Folders of tiny networks of many families, with random weights, as the hub has those of real ones."""

import json
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import save_file

SIZE = 32  # pixels
ABOUT = {
    "input_size": [3, SIZE, SIZE],
    "mean": [0.4, 0.5, 0.6],
    "std": [0.2, 0.25, 0.3],
    "interpolation": "bilinear",
    "crop_pct": 0.8,
    "fixed_input_size": False,
}
TRANSFORMER: dict[str, Any] = {"embed_dim": 24, "depth": 3, "num_heads": 2, "img_size": SIZE}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("vit_tiny_patch16_224", {**TRANSFORMER, "patch_size": 8}),
    "siglip": ("vit_base_patch16_siglip_224", {**TRANSFORMER, "patch_size": 8}),
    "beit": ("beit_base_patch16_224", {**TRANSFORMER, "patch_size": 8}),
    "swin": (
        "swin_tiny_patch4_window7_224",
        {"embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 4, "img_size": SIZE},
    ),
    "convnext": ("convnext_atto", {"depths": [1, 1, 1, 1], "dims": [4, 8, 8, 16]}),
    "efficientnet": ("test_efficientnet", {}),
    "mobilenet": ("mobilenetv3_small_050", {}),
    "regnet": ("regnetx_002", {}),
    "resnet": ("resnet18", {"channels": [8, 8, 16, 16]}),
}
TOWER = {"image_size": SIZE, "layers": 3, "width": 32, "head_width": 16, "patch_size": 8}


def write(folder: Path, family: str, seed: int = 0) -> str:
    """Write the config and the random weights of a network, and return the path of their folder."""
    folder.mkdir(parents=True)
    if family == "open_clip":
        return _write_tower(folder, seed)
    architecture, arguments = FAMILIES[family]
    config = {"architecture": architecture, "num_classes": 10, "model_args": arguments, "pretrained_cfg": ABOUT}
    (folder / "config.json").write_text(json.dumps(config))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = timm.create_model(architecture, num_classes=10, **arguments)
    save_file(net.state_dict(), folder / "model.safetensors")
    return str(folder)


def _write_tower(folder: Path, seed: int) -> str:
    from open_clip.model import _build_vision_tower

    config = {
        "model_cfg": {"embed_dim": 20, "vision_cfg": TOWER, "text_cfg": {}},
        "preprocess_cfg": {key: ABOUT[key] for key in ("mean", "std", "interpolation")},
    }
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tower = _build_vision_tower(20, dict(TOWER))
    state = {f"visual.{key}": value for key, value in tower.state_dict().items()}
    save_file({**state, "logit_scale": torch.ones(())}, folder / "open_clip_model.safetensors")
    return str(folder)
