"""Feature vectors of images: plain k-means, and the head that is trained on them, on the same split.

    python benchmarks/vectors.py flowers.npz --methods kmeans sortal --runs RUNS
    python benchmarks/vectors.py --mixture 100000 1000 384 --device cuda --epochs 40 --runs RUNS

A file has the features of labelled images, as `sortal features FOLDER --out FILE.npz` writes. The first half of the
classes is old, half of their images labelled; with --images only so many are drawn. With --mixture, features are drawn
from so many Gaussians. Prints accuracy (All/Old/New), k, the seconds of the whole run and of each stage, and the
largest memory of the process so far, on the GPU as well if there is one.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peers import Scale, make_problem

from sortal.discovery.pipeline import discover
from sortal.images.vector_sets import read_features
from sortal.system.progress import Runtime


def measure(path: Path, method: str, seed: int, given: argparse.Namespace) -> str:
    """Sort the features of a file, and return a line about the result."""
    whole, runs, epochs, device = read_features(path), given.runs, given.epochs, given.device
    if given.images is not None:
        drawn = np.random.default_rng(seed).permutation(len(whole))[: given.images]
        whole = whole.select(np.isin(np.arange(len(whole)), drawn))
    images = whole.hide_labels(old=len(whole.classes) // 2, fraction=0.5, seed=seed)
    started = time.perf_counter()
    more: Any = {} if epochs is None or method == "kmeans" else {"epochs": epochs}
    out, runtime = runs / f"{path.stem}-{method}-{seed}", Runtime(device=device)
    run = discover(images, out=out, method=method, seed=seed, force=True, progress=False, runtime=runtime, **more)
    took, stages = (
        time.perf_counter() - started,
        ", ".join(f"{name} {each:.0f}" for name, each in run.facts.timings.items()),
    )
    assert run.metrics is not None
    a = run.metrics.accuracy
    shares = "/".join("-" if each is None else f"{100 * each:.1f}" for each in (a.all, a.old, a.new))
    text = (
        f"{path.stem} {method} seed {seed}: {shares}, k {run.k.k} {run.k.interval}, {took:.0f} s ({stages}), {peak()}"
    )
    return text if device == "cpu" else f"{text}, GPU {torch.cuda.max_memory_allocated() / 1e6:,.0f} MB"


def peak() -> str:
    """Return the largest memory of this process, as Linux counts it."""
    return f"{int(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0]) / 1e3:,.0f} MB"


def mixture(folder: Path, n: int, k: int, d: int) -> Path:
    """Write features (n, d) of k Gaussian classes to a file."""
    folder.mkdir(parents=True, exist_ok=True)
    problem = make_problem("mixture", Scale(n=n, k=k, old=k // 2, d=d, separation=1.2), seed=0)
    path = folder / f"mixture-{n}-{k}.npz"
    np.savez(path, features=problem.x.numpy(), label=problem.truth)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--mixture", nargs=3, type=int, metavar=("ROWS", "CLASSES", "WIDTH"))
    parser.add_argument("--methods", nargs="+", default=["kmeans", "sortal"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--runs", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--images", type=int)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    made = [] if given.mixture is None else [mixture(given.runs, *given.mixture)]
    for path in [*given.files, *made]:
        for method in given.methods:
            for seed in given.seeds:
                print(measure(path, method, seed, given), flush=True)


if __name__ == "__main__":
    main()
