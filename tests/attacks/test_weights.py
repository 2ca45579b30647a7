"""Foreign weights of every kind: files with code, of other formats, damaged, or with claims that memory cannot hold."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from support import damage
from support.damage import Scene
from support.limits import check_peak, limit_all
from support.world import ON_CPU, OPTIONS, Trial, Words

Kind: TypeAlias = Callable[[Path, Scene], None]
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 343279349\n"


def _saved(make: Callable[[], Any]) -> Kind:
    """Return a kind of file that torch.save writes."""

    def write(path: Path, here: Scene) -> None:
        import torch

        torch.save(make(), path)

    return write


def _text(content: str) -> Kind:
    def write(path: Path, here: Scene) -> None:
        path.write_text(content)

    return write


def _tensor(dtype: str = "float32", value: float = 0.0) -> Any:
    import torch

    return torch.full((2, 2), value).to(getattr(torch, dtype))


def _sparse() -> Any:
    return {"weight": _tensor(value=1.0).to_sparse()}


def _quantised() -> Any:
    import torch

    return {"weight": torch.quantize_per_tensor(_tensor(), 0.1, 0, torch.qint8)}


def _without_values() -> Any:
    import torch

    return {"weight": torch.empty(2**40, device="meta")}


def _repeated() -> Any:
    """Return a tensor of a terabyte that repeats one number."""
    return {"weight": _tensor("float16")[0, 0].expand(2**20, 2**19)}


def _in_itself() -> Any:
    found: dict[str, Any] = {}
    found["model"] = found
    return found


def _deep() -> Any:
    found: dict[str, Any] = {"weight": _tensor()}
    for _ in range(50):
        found = {"state_dict": found}
    return found


def _bomb(path: Path, here: Scene) -> None:
    """Write an archive of some kilobytes that unpacks to gigabytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}, protocol=2))
        with archive.open("archive/data/0", "w", force_zip64=True) as entry:
            for _ in range(100):
                entry.write(bytes(2**20))


def _program(path: Path, here: Scene) -> None:
    """Write what looks like a TorchScript archive."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/constants.pkl", pickle.dumps(()))
        archive.writestr("archive/data.pkl", pickle.dumps({}, protocol=2))
        archive.writestr("archive/code/__torch__.py", "raise SystemExit\n")
        archive.writestr("archive/version", "3\n")


KINDS: dict[str, Kind] = {
    **damage.CODE,
    "header": damage.claim_header,
    "tensor": damage.claim_tensor,
    "noise": damage.noise,
    "empty": damage.empty,
    "nesting": damage.nest,
    "sparse file": damage.grow,
    "folder": damage.no_file("folder"),
    "pipe": damage.no_file("pipe"),
    "socket": damage.no_file("socket"),
    "device": damage.as_device,
    "loop": damage.no_file("loop"),
    "page": _text("<!doctype html><title>404</title>"),
    "pointer": _text(LFS),
    "archive bomb": _bomb,
    "program": _program,
    "list": _saved(lambda: [1, 2]),
    "nothing": _saved(dict),
    "other names": _saved(lambda: {"weight": _tensor()}),
    "control characters": _saved(lambda: {"\x1b[2J\n\0": _tensor()}),
    "long names": _saved(lambda: {"a" * 100_000: _tensor()}),
    "names that are no text": _saved(lambda: {(1, 2): _tensor(), 3: _tensor()}),
    "double": _saved(lambda: {"weight": _tensor("float64")}),
    "whole numbers": _saved(lambda: {"weight": _tensor("int8")}),
    "complex": _saved(lambda: {"weight": _tensor("complex64")}),
    "NaN": _saved(lambda: {"weight": _tensor(value=float("nan"))}),
    "sparse": _saved(_sparse),
    "quantised": _saved(_quantised),
    "without values": _saved(_without_values),
    "repeated": _saved(_repeated),
    "in itself": _saved(_in_itself),
    "deep": _saved(_deep),
}


@pytest.mark.attack(most=2 * len(KINDS))
def test_foreign(trial: Trial) -> None:
    """Start a run with weights of some kind, under some extension: it must be refused by name."""
    kind = trial.case([*KINDS])
    path = trial.folder / f"weights{trial.random.choice(('.pth', '.pt', '.bin', '.ckpt', '.safetensors', '.npz'))}"
    here = damage.scene(trial.random, trial.folder, trial.folder)
    path.write_bytes(b"\0")
    KINDS[kind](path, here)
    words: Words = ("discover", trial.world.images, "--out", trial.folder / "run", *OPTIONS, "--weights", path)
    done = trial.world.sortal(*words, before=limit_all).check(2)
    assert str(path) in done.err, f"The message about {kind} does not name the file:\n{done.err}"
    assert len(done.err) < 5000, f"The message about {kind} is too long:\n{done.err[:500]}"
    assert "\x1b[2J" not in done.err, "A name in the file disturbs the terminal."
    assert not here.marker.exists(), f"Code was executed: {kind}."
    check_peak(trial.world, done, kind)


# Networks that have more weights than the file of a saved backbone
CLAIMS: dict[str, dict[str, Any]] = {
    "vit_7b_patch16_dinov3": {"name": "vit_7b_patch16_dinov3", "image_size": 224},
    "vit_giant_patch14_dinov2": {"name": "vit_giant_patch14_dinov2", "image_size": 518},
    "a vit_base for large images": {"name": "vit_base_patch16_224", "image_size": 8192},
    "a ResNet": {"name": "resnet152", "image_size": 224},
    "images of gigabytes": {"name": "vit_tiny_patch16_224", "image_size": 10**9},
    "no number": {"image_size": "1e9"},
}


@pytest.mark.attack(most=len(CLAIMS))
def test_claimed(trial: Trial) -> None:
    """Let the model of a run claim a network that its weights are too few for: it is refused before it is made."""
    claim = trial.case([*CLAIMS])
    run = trial.world.copy_run(trial.folder / "run")
    path = run / "model.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **CLAIMS[claim]}))
    done = trial.world.sortal("predict", run, trial.world.more, *ON_CPU, before=limit_all).check(2)
    assert "model.json" in done.err or "image_size" in done.err, done.err
    check_peak(trial.world, done, claim)
