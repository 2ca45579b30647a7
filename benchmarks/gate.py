"""Is it still fast? Ten ratios, each of plain code to Sortal's for the same work, with the least that each must keep.

    python benchmarks/gate.py

Part of every release (supply/release.py): takes about two minutes on an idle machine, prints a table, and exits with 1
if a ratio is below its bound. Both sides run in turn on one thread, three times; the ratio is that of the least
processor times, so that other work on the machine matters little. The bounds of x86_64 and aarch64 are about half of
what was measured on them (archive/runs.md), so that only a lasting loss falls short; processors that Sortal computes in
bfloat16 on have a bound of their own where that matters. `--tiny` tries everything within seconds, without a verdict,
and `--only NAME ...` some of it.
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import torch
from peers import Scale, Split, blocked, generator, lloyd, make_problem, nearest, ours, plus_plus, scikit_learn
from scipy.optimize import linear_sum_assignment
from training import noise, our_steps, plain_step

from sortal import estimate_k, metrics, read_images
from sortal.clustering.tsne import place
from sortal.config import Contrast
from sortal.discovery.grouping import neighbours
from sortal.images.store.packing import pack
from sortal.learning.backbones.registry import load_backbone
from sortal.learning.batches import Draws
from sortal.learning.frozen import FrozenEncoder
from sortal.learning.methods import Contrastive
from sortal.learning.optimiser import Optimiser
from sortal.learning.step import TrainingStep
from sortal.learning.token_cache import InputSource, LiveViews, cache_tokens
from sortal.system.device import choose_compute
from sortal.system.distributed import launch

TIMES = 3
Work = Callable[[], object]
Pair = tuple[Work, Work]  # plain, ours


@dataclass(frozen=True)
class Ratio:
    """Two ways to do the same work; `make` gets whether it is to be small."""

    name: str
    against: str
    x86_64: float  # the least that it must keep
    aarch64: float
    make: Callable[[bool, Path], Pair] = field(repr=False)
    bfloat16: float | None = None  # the least where frozen layers compute in it, on any processor

    @property
    def least(self) -> float:
        if self.bfloat16 is not None and choose_compute(torch.device("cpu"), worthwhile=False).bf16:
            return self.bfloat16
        return self.aarch64 if platform.machine().lower() in ("aarch64", "arm64") else self.x86_64


def step(tiny: bool, _: Path, *, live: bool) -> Pair:
    """Train on a batch: every block in one graph in float32, or the last block on tokens of the others."""
    name, batch, n = ("test_vit", 2, 8) if tiny else ("vit_tiny_patch16_224", 8, 32)
    cpu, (images, store) = torch.device("cpu"), noise(n)
    backbone = load_backbone(name, weights="random")
    compute, rows = choose_compute(cpu, compiled=False, worthwhile=False), np.arange(n)
    method, trunk = Contrastive(backbone, Contrast()), FrozenEncoder(backbone, compute)
    trained = {each: value for each, value in method.named_parameters() if value.requires_grad}
    one = TrainingStep(launch("cpu"), method, compute, Optimiser(trained, lr=0.1, momentum=0.9), 1)
    source: InputSource = LiveViews(trunk, store, flip=True, seed=0)
    if not live:
        source = cache_tokens(trunk, store, rows, n_views=2, flip=True, seed=0, where="memory")
    draws, labels = Draws(rows[:batch][None], np.zeros((1, batch), np.int64)), torch.from_numpy(np.array(images.labels))
    plain = plain_step(load_backbone(name, weights="random"), cpu, batch, all_blocks=False)
    return plain, lambda: list(our_steps(source, one, draws, labels))


def kmeans(tiny: bool, _: Path, *, semi: bool) -> Pair:
    """Cluster by five restarts: all distances in every iteration, or those that matter; scikit-learn for all rows."""
    scale = Scale(n=300, k=6, old=3, d=16, separation=1.0) if tiny else Scale(n=3000, k=100, old=50, separation=0.8)
    problem = make_problem("gate", scale, seed=0)
    own = partial(ours, problem, 5, 0, semi=semi, candidates=1 if semi else None)
    return (partial(blocked, problem, 5, 0) if semi else partial(scikit_learn, problem, 5, 0, algorithm="lloyd")), own


def count(tiny: bool, _: Path) -> Pair:
    """Estimate k by ten restarts each: a search that leaves early, or as many fits by blocked matrix products."""
    scale = Scale(n=200, k=6, old=3, d=16, separation=1.0) if tiny else Scale(n=2000, k=40, old=20, d=192, separation=1)
    problem = make_problem("gate", scale, seed=0)
    search = partial(estimate_k, problem.x, problem.labels, k_max=10 * scale.k, random_state=0)
    tried = [at.k for at in search().curve]
    free = Split.of(problem, semi=False)

    def plain() -> None:
        for k in tried:
            for seed in range(10):
                lloyd(free, plus_plus(free, k, generator(free, seed), None), nearest)

    return plain, search


def crops(tiny: bool, folder: Path) -> Pair:
    """Cut random crops of photographs: decoded each time, or from the store."""
    from pixels import BATCH, by_decoding, from_store, make_images  # needs a Unix

    images, each = folder / "images", 4 if tiny else 32
    images.mkdir()
    make_images(images, None, each, (320, 240) if tiny else (500, 375))
    found = read_images(images, need_labels=False)
    pack(found, folder / "store")
    return (
        partial(by_decoding, found.paths, 0, BATCH),
        partial(from_store, str(folder / "store"), str(images), 0, BATCH),
    )


def near(tiny: bool, _: Path) -> Pair:
    """Find the ten nearest neighbours of each row: by sorting all distances, or Sortal's way."""
    n = 200 if tiny else 6000
    rows = torch.nn.functional.normalize(torch.randn(n, 64, generator=torch.Generator().manual_seed(0)))
    return lambda: torch.cdist(rows, rows).argsort(1)[:, 1:11], lambda: list(neighbours.nearest(rows, 10))


def chart(tiny: bool, _: Path) -> Pair:
    """Draw the map of features: by scikit-learn's t-SNE with as many steps, or by Sortal's."""
    from map import scikit_learn as usual

    x = make_problem("gate", Scale(n=100 if tiny else 3000, k=5, old=2, d=64, separation=1.0), seed=0).x.numpy()
    return partial(usual, x, 0), partial(place, x, 0, device="cpu")


def matched(tiny: bool, _: Path) -> Pair:
    """Compute the accuracy under the best match: counted image by image, or by Sortal."""
    rng, n = np.random.default_rng(0), 200 if tiny else 300_000
    truth, clusters = rng.integers(100, size=n), rng.integers(100, size=n)

    def plain() -> float:
        counts = np.zeros((100, 100), dtype=np.int64)
        for one, other in zip(truth, clusters, strict=True):
            counts[one, other] += 1
        return float(counts[linear_sum_assignment(-counts)].sum() / n)

    return plain, lambda: metrics.accuracy(truth, clusters, old=range(50))


def start_up(_: bool, __: Path) -> Pair:
    """Answer --help: against a command that imports PyTorch first."""
    run = partial(subprocess.run, check=True, stdout=subprocess.DEVNULL)
    return partial(run, [sys.executable, "-c", "import torch"]), partial(
        run, [sys.executable, "-m", "sortal", "--help"]
    )


RATIOS = (
    Ratio("cached step", "a step through all blocks", 15, 18, partial(step, live=False)),
    Ratio("live step", "a step through all blocks", 1.1, 1.1, partial(step, live=True), bfloat16=2.5),
    Ratio("k-means", "blocked matrix products", 1, 1.3, partial(kmeans, semi=True)),
    Ratio("plain k-means", "scikit-learn", 2, 1.2, partial(kmeans, semi=False)),
    Ratio("estimate of k", "as many blocked fits", 1.2, 1.2, count),
    Ratio("crops", "decoding each time", 50, 50, crops),
    Ratio("neighbours", "sorting all distances", 5, 4, near),
    Ratio("map", "scikit-learn's t-SNE", 7, 5, chart),
    Ratio("accuracy", "counting one by one", 10, 10, matched),
    Ratio("help", "importing torch", 3, 3, start_up),
)


def processor_seconds(work: Work) -> float:
    """Return the processor time of all threads, and of processes that the work waits for."""

    def now() -> float:
        return time.process_time() + sum(os.times()[2:4])

    start = now()
    work()
    return now() - start


@contextmanager
def one_thread() -> Iterator[None]:
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


def measured(ratio: Ratio, *, tiny: bool) -> tuple[float, float]:
    """Return the least seconds of the plain way and of ours, which take turns."""
    with tempfile.TemporaryDirectory() as folder:
        pair = ratio.make(tiny, Path(folder))
        if not tiny:
            pair[1]()  # imports and first calls
        each = [processor_seconds(work) for work in islice(cycle(pair), 2 * (1 if tiny else TIMES))]
    return min(each[::2]), min(each[1::2])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="small sizes, once each, and no verdict")
    parser.add_argument("--only", nargs="+", choices=[each.name for each in RATIOS], metavar="NAME")
    arguments = parser.parse_args()
    print(f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}, one thread\n")
    print("| | against | plain, s | ours, s | ratio | at least |\n|---|---|---|---|---|---|")
    short = []
    with one_thread():
        for each in RATIOS:
            if arguments.only and each.name not in arguments.only:
                continue
            plain, own = measured(each, tiny=arguments.tiny)
            ratio = plain / max(own, 1e-9)
            row = f"| {each.name} | {each.against} | {plain:.3f} | {own:.3f} | {ratio:.1f} | {each.least:g} |"
            print(row, flush=True)
            if ratio < each.least and not arguments.tiny:
                short.append(each.name)
    if short:
        print(f"Slower than it must be: {', '.join(short)}.", file=sys.stderr)
    return int(bool(short))


if __name__ == "__main__" and main():
    sys.exit(1)
