"""How many wrong labels are among the first on the list of labels to check.

    python benchmarks/labels.py RUN... --wrong 0.1 --each 0 10

RUNs have a truth and features of an untrained network (`sortal discover --method kmeans`). Half of the classes are
labelled (the first half, every second one, and two random halves): half of the images, or so many of `--each` class. A
share of the labels is replaced by other classes. Prints, in percent and over all splits: wrong labels that are among
the first 15 % of the list, by doubt and by two simpler rules; those that are listed as to be checked and those that
would not be learned from, and how many of either are wrong indeed.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sortal import load_run
from sortal.discovery.grouping.label_doubt import doubts, untrusted
from sortal.runs.run import LABEL_TO_CHECK

FIRST, SPLITS, NEIGHBOURS = 0.15, 4, 10
COLUMNS = ("run", "labels", "first 15 %", "by neighbours", "by means", "listed", "of these wrong", "left out", "wrong")
Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]


def tasks(truth: Ints, each: int, wrong: float) -> Iterator[tuple[Ints, Ints]]:
    """Yield rows that are labelled, and their labels, for each split of the classes."""
    k = int(truth.max()) + 1
    for split in range(SPLITS):
        generator = np.random.default_rng(split)
        order = np.arange(k) if split < 2 else generator.permutation(k)
        old = np.sort(order[::2] if split == 1 else order[: k // 2])
        of_class = [generator.permutation(np.flatnonzero(truth == label)) for label in old]
        rows = np.concatenate([own[: each or -(-len(own) // 2)] for own in of_class])
        labels = np.searchsorted(old, truth[rows])
        astray = generator.choice(len(rows), size=max(round(wrong * len(rows)), 1), replace=False)
        labels[astray] = (labels[astray] + generator.integers(1, len(old), len(astray))) % len(old)
        yield rows, old[labels]


def by_neighbours(x: Floats, labels: Ints) -> Floats:
    """Return the share of the nearest labelled images that have another label."""
    alike = x @ x.T
    np.fill_diagonal(alike, -np.inf)
    near = np.argsort(-alike, axis=1)[:, :NEIGHBOURS]
    share: Floats = (labels[near] != labels[:, None]).mean(axis=1)
    return share


def by_means(x: Floats, labels: Ints) -> Floats:
    """Return how much nearer the mean of another class is than that of the own."""
    known, own = np.unique(labels, return_inverse=True)
    sums, counts = np.stack([x[labels == label].sum(axis=0) for label in known]), np.bincount(own)
    alike, rows = x @ (sums / counts[:, None]).T, np.arange(len(x))
    mine = (x * (sums[own] - x) / np.maximum(counts[own] - 1, 1)[:, None]).sum(axis=1)
    alike[rows, own] = -np.inf
    nearer: Floats = alike.max(axis=1) - mine
    return nearer


def figures(x: Floats, truth: Ints, each: int, wrong: float) -> tuple[int, list[float]]:
    """Return how many labels there were in all splits, and the columns in percent."""
    first, masks = [], []
    for rows, labels in tasks(truth, each, wrong):
        own, astray = x[rows], labels != truth[rows]
        doubt = doubts(own.astype(np.float32), labels, rows).doubt
        scores = doubt, by_neighbours(own, labels), by_means(own, labels)
        best = [np.argsort(-score, kind="stable")[: round(FIRST * len(rows))] for score in scores]
        first.append([astray[each].sum() / astray.sum() for each in best])
        masks.append((astray, doubt > LABEL_TO_CHECK, untrusted(labels, doubt)))
    astray, *found = map(np.concatenate, zip(*masks, strict=True))
    shares = [part for mask in found for part in (mask.mean(), (astray & mask).sum() / max(mask.sum(), 1))]
    return len(astray), [float(100 * each) for each in (*np.mean(first, axis=0), *shares)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--wrong", type=float, default=0.1)
    parser.add_argument("--each", nargs="+", type=int, default=[0, 10])
    arguments = parser.parse_args()
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
    for path in arguments.runs:
        run = load_run(path, raw=True)
        truth = np.unique([name or "" for name in run.assignments.truth], return_inverse=True)[1]
        for each in arguments.each:
            count, cells = figures(np.asarray(run.features, dtype=np.float64), truth, each, arguments.wrong)
            print(f"| {path.name} | {count:,} | {' | '.join(f'{cell:.1f}' for cell in cells)} |", flush=True)


if __name__ == "__main__":
    main()
