"""Time and faithfulness of the map: Sortal's t-SNE against scikit-learn's, as it was used before, and openTSNE.

    python benchmarks/map.py --seeds 0 1 2
    python benchmarks/map.py --images IMAGES --weights WEIGHTS --backbone vit_small_patch14_dinov2
    python benchmarks/map.py --device cuda --count 100000 --peers sortal

Prints a table: the seconds of the first call, which loads libraries and initialises a GPU, and of the fastest call;
processor seconds of the fastest; and means over the seeds of three figures from 0 to 1. `trustworthiness` is that of
scikit-learn for 15 neighbours. `neighbours` is the share of the 15 nearest neighbours by features that are among the 15
nearest on the map. `classes` is the share of images whose class is the most frequent among the 15 nearest on the map.
Features are synthetic unless images or a NumPy file are given.
"""

import argparse
import os
import platform
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

import numpy as np
import torch
from numpy.typing import NDArray
from peers import Scale, make_problem
from torch import Tensor

from sortal import read_images
from sortal.clustering.points import slices
from sortal.clustering.tsne import place
from sortal.learning.backbones.registry import load_backbone
from sortal.learning.features import extract
from sortal.system.progress import Runtime

K = 15
JUDGED = 5000  # rows whose neighbours are compared with all others
BLOCK = 1 << 26  # elements of a distance table

Features = NDArray[np.float32]
Peer = Callable[[Features, int], NDArray[np.float64]]


def scikit_learn(x: Features, seed: int) -> NDArray[np.float64]:
    """Place rows exactly as Sortal did before it had a t-SNE of its own."""
    from sklearn.manifold import TSNE

    wide = _principal(x)
    start, perplexity = wide[:, :2] / wide[:, 0].std() * 1e-4, min(30.0, (len(wide) - 1) / 3)
    tsne = TSNE(init=start.astype(np.float32), perplexity=perplexity, max_iter=500, random_state=seed)
    return np.asarray(tsne.fit_transform(wide.astype(np.float32)), dtype=np.float64)


def open_tsne(x: Features, seed: int) -> NDArray[np.float64]:
    """Place rows by openTSNE, with its own number of steps."""
    import openTSNE

    threads = torch.get_num_threads()
    tsne = openTSNE.TSNE(negative_gradient_method="fft", n_jobs=threads, random_state=seed)
    return np.asarray(tsne.fit(_principal(x)), dtype=np.float64)


def _principal(features: Features) -> NDArray[np.float64]:
    x = features.astype(np.float64)
    x = x - x.mean(axis=0)
    axes = np.linalg.eigh(x.T @ x)[1][:, ::-1][:, :50]
    largest = np.take_along_axis(axes, np.abs(axes).argmax(axis=0, keepdims=True), axis=0)
    projected: NDArray[np.float64] = x @ (axes * np.sign(largest))
    return projected


def judge(x: Tensor, y: Tensor, classes: Tensor, rows: Tensor) -> tuple[float, float, float]:
    """Return trustworthiness, agreement of neighbours and accuracy by neighbours, measured at some rows."""
    penalty = shared = right = 0
    for part in slices(len(rows), len(x), BLOCK):
        some = rows[part]
        order = _distances(x, some).argsort(1)
        rank = torch.empty_like(order).scatter_(1, order, torch.arange(len(x), device=x.device).expand_as(order))
        near = _distances(y, some).topk(K + 1, largest=False).indices[:, 1:]
        penalty += int((rank.gather(1, near) - K).clamp_min(0).sum())
        shared += int((near[:, :, None] == order[:, None, 1 : K + 1]).sum())
        right += int((classes[near].mode(1).values == classes[some]).sum())
    n, m = len(x), len(rows)
    return 1 - 2 * penalty / (m * K * (2 * n - 3 * K - 1)), shared / (m * K), right / m


def _distances(x: Tensor, rows: Tensor) -> Tensor:
    """Return squared distances (r, n) less a constant per row; a row comes before all others."""
    table = torch.addmm(x.square().sum(1)[None], x[rows], x.T, alpha=-2)
    return table.scatter_(1, rows[:, None], -torch.inf)


def read(arguments: argparse.Namespace) -> tuple[Features, NDArray[np.int64], str]:
    """Return features, the class of each row, and words that describe them."""
    if arguments.features:
        x, y = np.load(arguments.features), np.load(arguments.labels)
        return x[: arguments.count].astype(np.float32), y[: arguments.count], arguments.features.name
    if arguments.images:
        images = read_images(arguments.images)
        chosen = np.zeros(len(images), dtype=bool)
        chosen[np.random.default_rng(0).permutation(len(images))[: arguments.count]] = True
        images = images.select(chosen)
        backbone = load_backbone(arguments.backbone, weights=arguments.weights)
        with TemporaryDirectory() as folder:
            x = extract(backbone, images, normalise=True, folder=folder, runtime=Runtime(device=arguments.device))
        return x, images.labels, f"{Path(arguments.images).name} by {arguments.backbone}"
    problem = make_problem("map", Scale(n=arguments.count, k=100, old=50, separation=0.8), seed=0)
    return problem.x.numpy(), problem.truth, "synthetic features of 100 classes"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--peers", nargs="+", default=["sortal", "scikit-learn", "openTSNE"])
    parser.add_argument("--features", type=Path, help="NumPy file (n, d), with --labels (n,)")
    parser.add_argument("--labels", type=Path)
    parser.add_argument("--images", help="folder with one folder per class, with --weights")
    parser.add_argument("--weights")
    parser.add_argument("--backbone", default="vit_small_patch14_dinov2")
    arguments = parser.parse_args()
    device = arguments.device
    peers: dict[str, Peer] = {
        "sortal": lambda x, seed: place(x, seed, device=device),
        "scikit-learn": scikit_learn,
        "openTSNE": open_tsne,
    }
    x, classes, words = read(arguments)
    where = torch.cuda.get_device_name() if device != "cpu" else f"{platform.machine()}, {os.cpu_count()} cores"
    load = os.getloadavg()[0]
    print(f"{words}, {x.shape[0]:,} × {x.shape[1]}, seeds {arguments.seeds}; {where}, load {load:.1f}; ", end="")
    print(f"torch {torch.__version__}, scikit-learn {version('scikit-learn')}\n", flush=True)
    print("| | first, s | fastest, s | processor, s | trustworthiness | neighbours | classes |")
    print("|---|---|---|---|---|---|---|", flush=True)
    on, truth = torch.from_numpy(x).to(device), torch.from_numpy(classes).to(device)
    rows = torch.from_numpy(np.random.default_rng(0).permutation(len(x))[:JUDGED]).to(device)
    for name in arguments.peers:
        if name == "openTSNE" and find_spec("openTSNE") is None:
            continue
        times, figures = [], []
        for seed in arguments.seeds:
            start, used = perf_counter(), process_time()
            xy = peers[name](x, seed)
            times.append((perf_counter() - start, process_time() - used))
            figures.append(judge(on, torch.from_numpy(xy - xy.mean(axis=0)).float().to(device), truth, rows))
        fastest, used = min(times)
        means = " | ".join(f"{mean:.4f}" for mean in np.mean(figures, axis=0))
        print(f"| {name} | {times[0][0]:.2f} | {fastest:.2f} | {used:.2f} | {means} |", flush=True)


if __name__ == "__main__":
    main()
