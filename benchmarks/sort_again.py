"""Whether what people made in a review stays made when the run is sorted again.

    python benchmarks/sort_again.py FEATURES.npz... --methods kmeans sortal --seeds 0 1 2 --out results.jsonl
    python benchmarks/sort_again.py --table results.jsonl

FEATURES.npz has vectors `x` (n, d) and their classes `y` (n,). Of some classes and images, half of the classes are
known and half of their images labelled; the rest is sorted, reviewed, and sorted again, with the same and with another
seed.

Reviews: `complete` answers the queue as `ours` of review.py does until nine of ten images are settled, `half` until
half of them are, and `structure` only names, merges and splits, without a word on any single image. An image is wrong
if its category has the name of another class; categories without a name stand for the classes that no category is named
after, as well as that is possible.
"""

import argparse
import json
import shutil
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

sys.path.insert(0, str(Path(__file__).parent))
from review import desk_at, ours

from sortal import discover
from sortal.images.image_set import ImageSet, image_set
from sortal.reviews import journal
from sortal.reviews.actions import Action, Merge, Rename, Split
from sortal.reviews.history import Review
from sortal.reviews.loading import load_run
from sortal.runs.run import DECISIONS, KNOWN, LABELLED, Run

SETTLED = {"complete": 0.9, "half": 0.5}  # share of images
REVIEWS = (*SETTLED, "structure")
SECOND = 0.2  # share of a category from which its second class is split off
LONGEST = 3600.0  # seconds of a review


def images_of(path: Path, *, classes: int, images: int, seed: int) -> ImageSet:
    """Draw classes and images of a file of features; half of the classes are known, and half of their images."""
    held = np.load(path)
    draw, y = np.random.default_rng(seed), held["y"]
    chosen = draw.permutation(np.unique(y))[:classes]
    rows = np.sort(draw.permutation(np.flatnonzero(np.isin(y, chosen)))[:images])
    names = [f"class {number:03}" for number in y[rows].tolist()]
    files, x = [f"{row:05}.jpg" for row in rows.tolist()], held["x"][rows].astype(np.float32)
    whole = image_set(files, labels=names, features=x, paths=[""] * len(rows))
    return whole.hide_labels(old=max(1, len(whole.classes) // 2), seed=seed)


def right_of(run: Run, truth: dict[str, str]) -> np.ndarray:
    """Return the mask of images that are in the right category."""
    names = [run.names[int(each)] for each in run.assignments.category_id]
    true = [truth[file] for file in run.assignments.files]
    others, left = sorted({*names} - {*true}), sorted({*true} - {*names})
    if others and left:
        pairs = Counter(zip(names, true, strict=True))
        common = np.array([[pairs[name, of] for of in left] for name in others])
        rows, columns = linear_sum_assignment(-common)
        stands = {others[row]: left[column] for row, column in zip(rows, columns, strict=True)}
        names = [stands.get(name, name) for name in names]
    return np.array([name == of for name, of in zip(names, true, strict=True)])


def review(run: Run, kind: str) -> None:
    """Review a run, and leave the decisions in its folder."""
    if kind == "structure":
        journal.append(run.folder / DECISIONS, run.facts, [journal.decide(each, "person") for each in structure(run)])
        return
    with desk_at(run.folder, look=0.2, misses=0.0, seed=0) as desk:
        ours(desk, LONGEST)
        lines = (desk.client.session.run.folder / DECISIONS).read_text().splitlines(keepends=True)
        wanted = SETTLED[kind] * int((run.assignments.status != LABELLED).sum())
        count = next(at for at, each in enumerate(desk.track, start=1) if each[1] >= wanted)
    (run.folder / DECISIONS).write_text("".join(lines[: 1 + count]))


def structure(run: Run) -> list[Action]:
    """Return decisions that split mixed categories, and name and merge all others."""
    review, found = Review(run), list[Action]()
    truth, contents = np.array(run.assignments.truth), run.assignments.contents

    def take(action: Action) -> None:
        review.take(action)
        found.append(action)

    for category in [each.id for each in run.categories]:
        rows = review.members(category)
        kinds, counts = np.unique(truth[rows], return_counts=True)
        called = review.categories[category].name
        for name in kinds[(counts >= max(5, SECOND * len(rows))) & (kinds != called)].tolist():
            part = rows[truth[rows] == name]
            if len(kinds) > 1 and name != kinds[counts.argmax()]:
                images = tuple(dict.fromkeys(contents[row] for row in part))
                take(Split(images=images, category=review.next_id, name=review.free_name()))
    for category in [*review.categories]:
        rows, own = review.members(category), review.categories[category]
        if own.kind == KNOWN or not len(rows):
            continue
        kinds, counts = np.unique(truth[rows], return_counts=True)
        name = str(kinds[counts.argmax()])
        same = [each.id for each in review.categories.values() if each.name == name]
        take(Merge(categories=(same[0], category)) if same else Rename(category=category, name=name))
    return found


def measure(path: Path, method: str, seed: int, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Sort, review in every way, and sort again; return a line for each."""
    found = []
    images = images_of(path, classes=arguments.classes, images=arguments.images, seed=seed)
    settings: dict[str, Any] = {
        "method": method,
        "progress": False,
        **({} if method == "kmeans" else {"epochs": arguments.epochs}),
    }
    with TemporaryDirectory() as place:
        base = discover(images, out=Path(place) / "base", seed=seed, **settings)
        for kind in REVIEWS:
            reviewed = Path(place) / kind
            shutil.copytree(base.folder, reviewed)
            review(load_run(reviewed, raw=True), kind)
            before = load_run(reviewed)
            truth = {
                file: (*images.classes, *images.new_classes)[t]
                for file, t in zip(images.files, images.truth.tolist(), strict=True)
            }
            for other in (0, 1):
                again = Path(place) / f"{kind}-{other}"
                shutil.copytree(reviewed, again)
                after = discover(images, out=again, **{**settings, **({"seed": seed + 100} if other else {})})
                line = {
                    "set": path.stem,
                    "method": method,
                    "seed": seed,
                    "review": kind,
                    "other seed": bool(other),
                    "images": len(images),
                    "sorted": int((~right_of(base, truth)).sum()),
                    "reviewed": int((~right_of(before, truth)).sum()),
                    "again": int((~right_of(after, truth)).sum()),
                    "open": int((~before.assignments.settled & images.unlabelled).sum()),
                    "k": [base.k.k, len(before.categories), after.k.k],
                    "calibrated": after.confidence.calibrated,
                }
                print(json.dumps(line), flush=True)
                found.append(line)
    return found


def table(path: Path) -> None:
    """Print wrong images as sorted, as reviewed and sorted again: means, and how often there are more than before."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    print("| set | method | review | runs | sorted | reviewed | again | more wrong than reviewed | at most |")
    print("|---" * 9 + "|")
    for key in dict.fromkeys((each["set"], each["method"], each["review"]) for each in lines):
        own = [each for each in lines if (each["set"], each["method"], each["review"]) == key]
        means = (f"{np.mean([each[name] for each in own]):.1f}" for name in ("sorted", "reviewed", "again"))
        worse = [each["again"] - each["reviewed"] for each in own if each["again"] > each["reviewed"]]
        print(f"| {' | '.join(key)} | {len(own)} | {' | '.join(means)} | {len(worse)} | {max(worse, default=0)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", nargs="*", type=Path)
    parser.add_argument("--methods", nargs="+", default=["kmeans", "sortal"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--classes", type=int, default=15)
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    arguments = parser.parse_args()
    if arguments.table:
        table(arguments.table)
    for path in arguments.features:
        for method in arguments.methods:
            for seed in arguments.seeds:
                lines = measure(path, method, seed, arguments)
                if arguments.out:
                    with arguments.out.open("a") as file:
                        file.writelines(json.dumps(line) + "\n" for line in lines)


if __name__ == "__main__":
    main()
