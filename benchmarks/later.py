"""Classes that come later: how many images of classes that a run was made without are flagged, and at what loss.

    python benchmarks/later.py flowers.npz --methods kmeans sortal --seeds 0 1 --runs RUNS

A file has the features of labelled images, as `sortal features FOLDER --out FILE.npz` writes. A fifth of the classes is
left out of the run altogether, and a fifth of the images of the others; half of those classes are old, with half of
their images labelled. What was left out is then added by `predict`, and an image of it is flagged if it is unsure or
fits no category. The table has the share of images of later classes that are flagged, and of those that are sure by
0.8 or more; the share of the other images that are flagged, of all and of those in the right category; and the chance
that an image of a later class has less confidence than another one (AUC). `without` is without the chance that an image
belongs to any category at all. Then follow the candidates for new categories: how many there are, the share of later
images in them, of images in them that are of a later class, and of their most frequent class.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sortal import Run, metrics
from sortal.discovery.pipeline import discover
from sortal.discovery.prediction import predict
from sortal.images.image_set import ImageSet
from sortal.images.vector_sets import read_features
from sortal.runs.confidence import Floats
from sortal.runs.run import DOUBTFUL_STATUSES, Assignments
from sortal.system.progress import Runtime

COLUMNS = ("run", "confidence", "later flagged", "later sure", "others flagged", "right flagged", "AUC")
GROUPS = ("candidates", "later in them", "of later classes", "of one class")


def divide(path: Path, seed: int) -> tuple[ImageSet, ImageSet]:
    """Return what a run is made of, and what comes later."""
    whole, draw = read_features(path), np.random.default_rng(seed)
    order = draw.permutation(len(whole.classes))
    later = order[: max(1, len(order) // 5)]
    away = np.isin(whole.truth, later) | (draw.random(len(whole)) < 0.2)
    there = [whole.classes[each] for each in order[len(later) :].tolist()]
    made = whole.select(~away).hide_labels(old=there[: len(there) // 2], fraction=0.5, seed=seed)
    return made, whole.select(away)


def measure(path: Path, method: str, seed: int, runs: Path, epochs: int | None, device: str) -> list[str]:
    """Make a run, add what comes later, and return lines of the table."""
    made, more = divide(path, seed)
    settings: Any = {} if epochs is None or method == "kmeans" else {"epochs": epochs}
    name, runtime = f"{path.stem}-{method}-{seed}", Runtime(device=device)
    run = discover(
        made, out=runs / name, method=method, seed=seed, force=True, progress=False, runtime=runtime, **settings
    )
    truth = [(*more.classes, *more.new_classes)[each] for each in more.truth.tolist()]
    there = np.isin(truth, [each for each in run.assignments.truth if each is not None])
    given: Any = {"features": more.features, "files": more.files, "progress": False, "runtime": runtime}
    plain = replace(run, confidence=replace(run.confidence, usual_apart=None, deviation_apart=None))
    ids = right_ids(run)
    lines = []
    for what, which in (("without", plain), ("with", run)):
        found = predict(which, **given).assignments
        right = np.array([ids.get(each, -1) for each in truth]) == found.category_id
        lines.append([name, what, *shares(found, there, right)])
    added = predict(run, **given, update=True).run
    lines[-1] += candidates(added, dict(zip(more.files, zip(truth, there.tolist(), strict=True), strict=True)))
    return ["| " + " | ".join([*cells, *["" for _ in GROUPS]][: len(COLUMNS + GROUPS)]) + " |" for cells in lines]


def right_ids(run: Run) -> dict[Any, Any]:
    """Return the category of each true class of a run."""
    a = run.assignments
    rest = a.select(np.array([label is None for label in a.labels]))
    old = [each.name for each in run.categories if each.kind == "known"]
    return {name: number for number, name in metrics.match(rest.truth, rest.category_id, old=old).items()}


def shares(a: Assignments, there: NDArray[np.bool_], right: NDArray[np.bool_]) -> list[str]:
    flagged, sure = np.isin(a.status, DOUBTFUL_STATUSES), a.confidence
    of = (flagged[~there], sure[~there] >= 0.8, flagged[there], flagged[there & right])
    return [*(percent(each) for each in of), f"{100 * chance_below(sure[~there], sure[there]):.1f}"]


def percent(mask: Sequence[bool] | NDArray[np.bool_]) -> str:
    return f"{100 * np.mean(mask):.1f}" if len(mask) else "-"


def chance_below(low: Floats, high: Floats) -> float:
    """Return how often a value of the first is below one of the second; half of the ties count."""
    order = np.sort(low)
    ranks = np.searchsorted(order, high, "left") + np.searchsorted(order, high, "right")
    return float(ranks.mean()) / 2 / max(len(low), 1)


def candidates(run: Run, of: dict[str, tuple[str, bool]]) -> list[str]:
    groups = [[of[file] for file in each.files] for each in run.candidates]
    inside = [each for group in groups for each in group]
    most = sum(max(Counter(name for name, _ in group).values()) for group in groups)
    later = [not there for _, there in inside]
    known = sum(not there for _, there in of.values())
    pure = f"{100 * most / len(inside):.1f}" if inside else "-"
    return [str(len(groups)), f"{100 * sum(later) / max(known, 1):.1f}", percent(later), pure]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--methods", nargs="+", default=["kmeans", "sortal"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--runs", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    print("| " + " | ".join(COLUMNS + GROUPS) + " |\n" + "|---" * len(COLUMNS + GROUPS) + "|")
    for path in given.files:
        for method in given.methods:
            for seed in given.seeds:
                lines = measure(path, method, seed, given.runs, given.epochs, given.device)
                print("\n".join(lines), flush=True)


if __name__ == "__main__":
    main()
