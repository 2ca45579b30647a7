"""Speed of training and features, compared with a plain step and with the limit of the device.

    python benchmarks/training.py steps      # a plain float32 step; live and cached steps, for both outputs of the head
    python benchmarks/training.py features   # frozen features from the pixel store, plain and ours
    python benchmarks/training.py run        # a whole run: 200 epochs of 6,000 images, tokens included
    python benchmarks/training.py limit      # the rate of large matrix products

--backbone vit_small_patch16_224 --device cpu, --steps N and --epochs N make it fit for a small machine. Weights are
random and images are noise: neither changes the speed. Decoding is not part of it: pixels lie in a store.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from sortal import ImageSet
from sortal.config import Contrast, Training
from sortal.images.decoding import FACTS
from sortal.images.image_set import image_set
from sortal.images.store.pixel_store import PixelStore
from sortal.learning import token_cache, views
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.backbones.registry import load_backbone
from sortal.learning.batches import Batch, Draws, draw
from sortal.learning.features import extract
from sortal.learning.frozen import FrozenEncoder, load_crops
from sortal.learning.methods import Contrastive
from sortal.learning.optimiser import Optimiser
from sortal.learning.step import TrainingStep
from sortal.learning.token_cache import InputSource, LiveViews
from sortal.learning.train import train
from sortal.system import device as compute
from sortal.system.distributed import launch
from sortal.system.progress import Runtime

HEIGHT, WIDTH = 256, 340


def noise(n: int) -> tuple[ImageSet, PixelStore]:
    """Return images of noise, already packed; every fourth is labelled, in 50 classes."""
    one = HEIGHT * WIDTH * 3
    flat = np.resize(np.random.default_rng(0).integers(0, 256, 64 * one, dtype=np.uint8), n * one)
    names = [f"{i}.png" for i in range(n)]
    store = PixelStore(
        flat=(flat,),
        parts=np.zeros(n, dtype=np.int64),
        offsets=np.arange(n) * one,
        heights=np.full(n, HEIGHT),
        widths=np.full(n, WIDTH),
        quarantine=(),
        digests=np.array([f"{i:032d}".encode() for i in range(n)], dtype="S32"),
        facts=np.zeros(n, FACTS),
    )
    labels = [str(i % 50) if i % 4 == 0 else "" for i in range(n)]
    return image_set(names, paths=names, labels=labels), store


def seconds_of(work: Iterator[Any], *, skip: int, device: torch.device) -> float:
    """Return the mean seconds per item, after the first few."""

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    count, start = 0, now()
    for i, _ in enumerate(work):
        if i + 1 == skip:
            start = now()
        count = i + 1
    return (now() - start) / (count - skip)


def repeated(function: Callable[[], Any], times: int) -> Iterator[Any]:
    return (function() for _ in range(times))


def plain_step(backbone: Backbone, device: torch.device, size: int, *, all_blocks: bool) -> Callable[[], None]:
    """Return a step as literally described in the paper: float32, eager, every block in one graph, the paper's head."""
    if all_blocks:
        backbone.train_last(len(backbone.blocks))
    method = Contrastive(backbone, Contrast(output="prototypes")).to(device)
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    side = backbone.spec.image_size
    images = torch.randn(2 * size, 3, side, side, device=device)
    ids = torch.arange(size, device=device).repeat(2)
    labels, start = torch.where(ids % 2 == 0, ids % 50, -1), torch.zeros((), device=device)

    def step() -> None:
        optimizer.zero_grad()
        features = backbone.net.forward_features(images)[:, 0]  # type: ignore[operator]
        batch = Batch(method.head(features), ids, labels, start)
        sum(method.losses(batch).values()).backward()  # type: ignore[union-attr]
        optimizer.step()

    return step


def our_steps(source: InputSource, step: TrainingStep, draws: Draws, labels: Tensor) -> Iterator[Tensor]:
    ids = torch.from_numpy(np.concatenate([draws.rows, draws.rows], axis=1)).to(labels.device)
    start = torch.zeros((), device=labels.device)
    for inputs, rows in zip(source.stream(draws, 0), ids, strict=True):
        yield step(inputs, rows, labels[rows], start)


def steps(arguments: argparse.Namespace) -> None:
    device, n, count = torch.device(arguments.device), arguments.images, arguments.steps
    name, batch = arguments.backbone, arguments.batch
    for all_blocks in () if arguments.no_plain else (False, True):
        step = plain_step(load_backbone(name, weights="random"), device, batch, all_blocks=all_blocks)
        plain = seconds_of(repeated(step, max(count // 20, 3)), skip=2, device=device)
        print(f"plain float32 step, {'all blocks' if all_blocks else 'last block'} trained: {plain * 1e3:.1f} ms")
        del step
    images, store = noise(n)
    processes = launch(arguments.device)
    labels = torch.from_numpy(np.array(images.labels)).to(device)
    rows = np.arange(n)
    drawn = draw(rows, images.labels >= 0, batch_size=batch, balanced=True, seed=0, epoch=0)
    for output in arguments.outputs:
        for compiled in (False, True) if device.type == "cuda" else (False,):
            backbone = load_backbone(name, weights="random")
            method = Contrastive(backbone, Contrast(output=output)).to(device)
            chosen = compute.choose_compute(device, compiled=compiled, worthwhile=False)
            trunk = FrozenEncoder(backbone, chosen)
            kept = token_cache.cache_tokens(trunk, store, rows, n_views=2, flip=True, seed=0, where=_place(device))
            for kind, source, many in (
                ("cached", kept, count),
                ("live", LiveViews(trunk, store, flip=True, seed=0), max(count // 4, 5)),
            ):
                trained = {name: value for name, value in method.named_parameters() if value.requires_grad}
                step_ = TrainingStep(processes, method, chosen, Optimiser(trained, lr=0.1, momentum=0.9), 1)
                draws = Draws(np.resize(drawn.rows, (many, batch)), np.resize(drawn.times, (many, batch)))
                skip = 10 if device.type == "cuda" else 2
                seconds = seconds_of(our_steps(source, step_, draws, labels), skip=skip, device=device)
                words = f"{kind}, {output}, {'compiled' if compiled else 'not compiled'}"
                print(f"{words}: {seconds * 1e3:.2f} ms a step, {batch / seconds:,.0f} images/s", flush=True)


def _place(device: torch.device) -> Any:
    return "device" if device.type == "cuda" else "memory"


def features(arguments: argparse.Namespace) -> None:
    device = torch.device(arguments.device)
    _, store = noise(arguments.images)
    backbone = load_backbone(arguments.backbone, weights="random").to(device)
    size, rows = backbone.spec.image_size, np.arange(len(store))
    crops = [views.centre_crops(store, rows[i : i + 256], size=size) for i in range(0, len(rows) // 256 * 256, 256)]

    @torch.no_grad()
    def plain() -> Iterator[Tensor]:
        for pixels, flipped, *_ in load_crops(store, crops[: max(len(crops) // 8, 3)], size=size, device=device):
            yield backbone.net.forward_features(backbone.normalise(pixels, flipped))  # type: ignore[operator]

    seconds = seconds_of(plain(), skip=min(2, len(crops) - 1), device=device)
    print(f"plain float32: {256 / seconds:,.0f} images/s", flush=True)
    for compiled in (False, True) if device.type == "cuda" else (False,):
        whole = FrozenEncoder(backbone, compute.choose_compute(device, compiled=compiled, worthwhile=False), whole=True)
        seconds = seconds_of(whole.stream(store, crops), skip=min(10, len(crops) - 2), device=device)
        print(f"{'compiled' if compiled else 'not compiled'}: {256 / seconds:,.0f} images/s", flush=True)
    start = time.perf_counter()
    extract(backbone, store, runtime=Runtime(device=arguments.device))
    print(f"extract() of {len(store):,}, start to end: {len(store) / (time.perf_counter() - start):,.0f} images/s")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        backbone(torch.zeros(1, 3, size, size, device=device))
    print(f"{counter.get_total_flops() / 1e9:.1f} GFLOP an image")


def run(arguments: argparse.Namespace) -> None:
    images, store = noise(arguments.images)
    for output in arguments.outputs:
        method = Contrastive(load_backbone(arguments.backbone, weights="random"), Contrast(output=output))
        start = time.perf_counter()
        config = Training(epochs=arguments.epochs)
        result = train(method, images, store, config, runtime=Runtime(device=arguments.device, note=print))
        seconds = time.perf_counter() - start
        print(f"{output}: {arguments.epochs} epochs of {len(images):,} images in {seconds:.1f} s, {result}", flush=True)


def limit(arguments: argparse.Namespace) -> None:
    device = torch.device(arguments.device)
    size = arguments.size or (8192 if device.type == "cuda" else 2048)
    for dtype in (torch.bfloat16, torch.float32):
        a = torch.randn(size, size, device=device, dtype=dtype)
        seconds = seconds_of(repeated(lambda a=a: a @ a, 20), skip=5, device=device)  # type: ignore[misc]
        print(f"{dtype}: {2 * size**3 / seconds / 1e12:.2f} TFLOP/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["steps", "features", "run", "limit"])
    parser.add_argument("--backbone", default="vit_base_patch16_224")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int, default=6000)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--batch", type=int, default=128, help="images of a step, of two views each")
    parser.add_argument("--size", type=int, help="rows of the matrices of limit; 8,192 on a GPU, 2,048 otherwise")
    parser.add_argument("--outputs", nargs="+", default=["bottleneck", "prototypes"], help="of the head")
    parser.add_argument("--no-plain", action="store_true", help="leave out the plain step, which takes long on a CPU")
    arguments = parser.parse_args()
    on = torch.cuda.get_device_name() if arguments.device.startswith("cuda") else f"{torch.get_num_threads()} threads"
    print(f"{arguments.what}: {arguments.backbone}, torch {torch.__version__}, {on}")
    {"steps": steps, "features": features, "run": run, "limit": limit}[arguments.what](arguments)


if __name__ == "__main__":
    main()
