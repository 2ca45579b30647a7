"""Accuracy of the small network on the digits, over learning rates, temperatures and seeds.

    python benchmarks/digits.py --seeds 0 1 2 --temperatures 0.1 0.3 0.5 0.7 1.0
    python benchmarks/digits.py --seeds 0 1 2 --lrs 0.02 0.05 0.1 0.3

Prints All/Old/New accuracy on the unlabelled images, of semi-supervised k-means on pixels and on trained features.
The seed determines the labelled images, the initial network, the batches and views, and the centres of k-means.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray

from sortal import ImageSet, SemiSupervisedKMeans
from sortal.config import CONVNET, TINY_CONTRAST, TINY_TRAINING
from sortal.discovery.demo import grey_pixels
from sortal.images.datasets import digits
from sortal.images.store.packing import Settings, pack
from sortal.learning.backbones.registry import load_backbone
from sortal.learning.features import extract
from sortal.learning.methods import Contrastive
from sortal.learning.train import train
from sortal.metrics import Accuracy, accuracy


def cluster(x: NDArray[np.float32], images: ImageSet, n_init: int, seed: int) -> Accuracy:
    found = SemiSupervisedKMeans(10, n_init=n_init, random_state=seed).fit(x, images.labels).labels_
    hidden = images.unlabelled
    return accuracy(images.truth[hidden], found[hidden], old=range(len(images.classes)))


def learn(
    images: ImageSet, folder: Path, *, lr: float, temperature: float, epochs: int, n_init: int, seed: int
) -> Accuracy:
    backbone = load_backbone(CONVNET, seed=seed)
    store = pack(images, folder, settings=Settings(shorter_side=backbone.spec.shorter_side))
    method = Contrastive(backbone, replace(TINY_CONTRAST, temperature=temperature), seed=seed)
    train(method, images, store, replace(TINY_TRAINING, lr=lr, epochs=epochs, seed=seed))
    return cluster(extract(backbone, store, normalise=True, precision="float32"), images, n_init, seed)


def line(what: str, rows: list[Accuracy], seconds: float) -> str:
    table = 100 * np.array([[row.all, row.old, row.new] for row in rows], dtype=float)
    spread = table.std(axis=0, ddof=1) if len(rows) > 1 else np.zeros(3)
    means = " / ".join(f"{mean:.1f} ± {sd:.1f}" for mean, sd in zip(table.mean(axis=0), spread, strict=True))
    return f"{what}: {means}; All {', '.join(f'{value:.1f}' for value in table[:, 0])}; {seconds / len(rows):.0f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--lrs", nargs="+", type=float, default=[TINY_TRAINING.lr])
    parser.add_argument("--temperatures", nargs="+", type=float, default=[TINY_CONTRAST.temperature])
    parser.add_argument("--epochs", type=int, default=TINY_TRAINING.epochs)
    parser.add_argument("--n-init", type=int, default=100, help="restarts of k-means")
    arguments = parser.parse_args()
    how = {"epochs": arguments.epochs, "n_init": arguments.n_init}
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {arguments.epochs} epochs")
    with TemporaryDirectory() as folder:
        home = Path(folder)
        sets = {seed: digits.write(home / f"digits{seed}", seed=seed) for seed in arguments.seeds}
        start = time.perf_counter()
        rows = [
            cluster(grey_pixels(images, home / "pixels"), images, arguments.n_init, seed)
            for seed, images in sets.items()
        ]
        print(line("pixels", rows, time.perf_counter() - start), flush=True)
        for lr in arguments.lrs:
            for temperature in arguments.temperatures:
                start = time.perf_counter()
                rows = [
                    learn(images, home / "pixels", lr=lr, temperature=temperature, seed=seed, **how)
                    for seed, images in sets.items()
                ]
                print(line(f"lr {lr:g}, temperature {temperature:g}", rows, time.perf_counter() - start), flush=True)


if __name__ == "__main__":
    main()
