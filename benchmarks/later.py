"""Classes that come later: how many images of classes that a run was made without are flagged, and at what loss.

    python benchmarks/later.py flowers.npz --methods kmeans sortal --seeds 0 1 --runs RUNS

A file has the features of labelled images, as `sortal features FOLDER --out FILE.npz` writes. A fifth of the classes is
left out of the run altogether, and a fifth of the images of the others; half of those classes are old, with half of
their images labelled. All that was left out is then sorted by `predict`. An image is flagged if it is unsure or fits no
category. AUC is the chance that an image of a later class has less confidence than one of the others; a cell of
`right` is the share of sure images that are in the category of their class.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from sortal import Run, metrics
from sortal.discovery.pipeline import discover
from sortal.discovery.prediction import predict
from sortal.images.vector_sets import read_features
from sortal.runs.confidence import Floats, Ints
from sortal.runs.run import DOUBTFUL_STATUSES, Assignments
from sortal.system.progress import Runtime

COLUMNS = ("set", "method", "seed", "later flagged", "others flagged", "AUC", "right", "said")


def divide(path: Path, seed: int) -> tuple[Any, Any]:
    """Return what a run is made of, and what comes later."""
    whole = read_features(path)
    draw = np.random.default_rng(seed)
    order = draw.permutation(len(whole.classes))
    later = order[: max(1, len(order) // 5)]
    away = np.isin(whole.truth, later) | (draw.random(len(whole)) < 0.2)
    there = [whole.classes[each] for each in order[len(later) :]]
    made = whole.select(~away).hide_labels(old=there[: len(there) // 2], fraction=0.5, seed=seed)
    return made, whole.select(away)


def sort(
    path: Path, method: str, seed: int, runs: Path, epochs: int | None, device: str
) -> tuple[Run, Assignments, Any]:
    """Make a run, and predict what comes later; return both, and the true classes of the latter."""
    made, more = divide(path, seed)
    settings: Any = {} if epochs is None or method == "kmeans" else {"epochs": epochs}
    out, runtime = runs / f"{path.stem}-{method}-{seed}", Runtime(device=device)
    run = discover(made, out=out, method=method, seed=seed, progress=False, runtime=runtime, **settings)
    found = predict(run, features=more.features, files=more.files, progress=False, runtime=runtime)
    truth = np.array([(*more.classes, *more.new_classes)[each] for each in more.truth.tolist()])
    return run, found.assignments, truth


def right_ids(run: Run) -> dict[Any, Any]:
    """Return the category of each true class of a run."""
    a = run.assignments
    rest = a.select(np.array([label is None for label in a.labels]))
    old = [each.name for each in run.categories if each.kind == "known"]
    return {name: number for number, name in metrics.match(rest.truth, rest.category_id, old=old).items()}


def chance_below(low: Floats, high: Floats) -> float:
    """Return how often a value of the first is below one of the second; half of the ties count."""
    ranks = np.searchsorted(np.sort(low), high, "left") + np.searchsorted(np.sort(low), high, "right")
    return float(ranks.mean()) / 2 / len(low)


def line(name: str, method: str, seed: int, run: Run, a: Assignments, truth: Any) -> str:
    """Return a line of the table."""
    ids = right_ids(run)
    there = np.isin(truth, [each for each in run.assignments.truth if each is not None])
    flagged = np.isin(a.status, DOUBTFUL_STATUSES)
    is_right: Ints = np.array([ids.get(each, -1) for each in truth.tolist()]) == a.category_id
    cells = [
        f"{100 * flagged[~there].mean():.1f}",
        f"{100 * flagged[there].mean():.1f}",
        f"{100 * chance_below(a.confidence[~there], a.confidence[there]):.1f}",
        f"{100 * is_right[~flagged].mean():.1f}",
        f"{100 * a.confidence[~flagged].mean():.1f}",
    ]
    return f"| {name} | {method} | {seed} | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--methods", nargs="+", default=["kmeans", "sortal"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--runs", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|")
    for path in given.files:
        for method in given.methods:
            for seed in given.seeds:
                found = sort(path, method, seed, given.runs, given.epochs, given.device)
                print(line(path.stem, method, seed, *found), flush=True)


if __name__ == "__main__":
    main()
