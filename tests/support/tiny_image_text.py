"""A tiny image-text model with random weights, saved in the way of the published folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TEXT: dict[str, Any] = {"width": 32, "heads": 2, "layers": 2}
VIT: dict[str, Any] = {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8}
CLIP: dict[str, Any] = {
    "model_cfg": {"embed_dim": 24, "quick_gelu": True, "vision_cfg": VIT, "text_cfg": TEXT},
    "preprocess_cfg": {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4], "interpolation": "bilinear"},
}


def tiny_model(folder: Path, config: dict[str, Any] = CLIP) -> Path:
    """Save a model of this configuration in a folder, and return the folder."""
    import open_clip
    import torch
    from safetensors.torch import save_file

    from sortal.learning.image_text import CONFIG_FILE, WEIGHTS

    model_cfg = json.loads(json.dumps(config["model_cfg"]))
    model_cfg["vision_cfg"].pop("timm_model_pretrained", None)
    model = (open_clip.CustomTextCLIP if model_cfg.pop("custom_text", False) else open_clip.CLIP)(**model_cfg)
    generator = torch.Generator().manual_seed(0)
    for values in model.parameters():
        values.data.normal_(std=0.3, generator=generator)  # far from the usual start, where all rows are similar
    folder.mkdir(parents=True, exist_ok=True)
    save_file(model.state_dict(), folder / WEIGHTS[0])
    (folder / CONFIG_FILE).write_text(json.dumps(config))
    return folder
