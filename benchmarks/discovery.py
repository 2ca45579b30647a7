"""How well collections are sorted: methods, seeds and data sets, each also with a long tail.

    python benchmarks/discovery.py IMAGES... --weights FILE --backbone vit_small_patch14_dinov2 --out results.jsonl
    python benchmarks/discovery.py table results.jsonl

IMAGES are folders with one folder per class; the first half of the classes is old, half of their images are labelled.
With --tail, class sizes fall exponentially to a tenth, in a random order of classes. Methods other than sortal get the
true k, and so does sortal with --k true. Everything else is as in sortal discover, without the report. With --runs,
runs are saved below that folder. Prints a JSON line per run: accuracy on the unlabelled images (All, Old, New, and the
mean over classes), k with its interval, calibration error, setbacks, seconds, and the devices that held the network.
"""

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from sortal import ImageSet, Run, Runtime, metrics, read_images
from sortal.reviews.loading import save_run

METHODS = ("sortal", "gcd", "simgcd", "uno")
COLUMNS = ("all", "old", "new", "mean", "k", "interval", "ece", "ece_old", "ece_new", "seconds")


def collection(folder: Path, *, tail: bool, seed: int) -> ImageSet:
    """Read a set, cut off its tail, and hide the labels of new classes and of half of the others."""
    images = read_images(folder)
    if tail:
        classes = len(images.classes)
        places = np.random.default_rng(0).permutation(classes)
        keep = np.zeros(len(images), dtype=bool)
        for label in range(classes):
            rows = np.flatnonzero(images.labels == label)
            count = int(np.ceil(len(rows) * 10 ** (-places[label] / (classes - 1))))
            keep[np.random.default_rng([1, label]).permutation(rows)[:count]] = True
        images = images.select(keep)
    names = sorted(images.classes, key=int) if all(map(str.isdigit, images.classes)) else list(images.classes)
    return images.hide_labels(old=names[: len(names) // 2], seed=seed)


def sort(
    images: ImageSet, arguments: argparse.Namespace, method: str, seed: int, cache: Path, keep: Path | None = None
) -> Run:
    """Sort as `sortal discover` does, with a cache that all runs on a set share; keep the run in a folder, if given."""
    from sortal.config import Discovery
    from sortal.discovery.defaults import recipe_for
    from sortal.discovery.job import Job
    from sortal.discovery.stages import Stages, store_pixels
    from sortal.discovery.stages import sort as sorted_
    from sortal.learning.backbones.registry import load_backbone
    from sortal.system.distributed import alone

    true = len(images.classes) + len(images.new_classes)
    settings = Discovery(
        method=method,  # type: ignore[arg-type]
        k=true if method != "sortal" or arguments.k == "true" else "auto",
        backbone=arguments.backbone,
        weights=arguments.weights,
        seed=seed,
        **({} if arguments.epochs is None else {"epochs": arguments.epochs}),
    )
    processes = alone(arguments.device)
    runtime = processes.runtime(Runtime())
    with nullcontext(keep) if keep is not None else TemporaryDirectory() as place:
        job = Job(
            images=images,
            settings=settings,
            recipe=recipe_for(settings, len(images), on_gpu=processes.device.type == "cuda"),
            place=Path(place),
            runtime=runtime,
            processes=processes,
            shared=cache,
        )
        backbone = load_backbone(arguments.backbone, weights=arguments.weights, seed=seed)
        stages = Stages(job.order, runtime)
        found = sorted_(job, backbone, stages, store_pixels(job, backbone, stages))
        assert found is not None  # in the only process
        run = stages.recorded_in(found.run)
        if keep is not None:
            save_run(run, found.files)
        return run


def record(run: Run) -> dict[str, Any]:
    """Return the figures of a run."""
    assert run.metrics is not None
    a = run.assignments.select(run.assignments.status != "labelled")
    matched = metrics.match(a.truth, a.category_id, old=[c.name for c in run.categories if c.kind == "known"])
    right, of_class = np.array([matched.get(j) for j in a.category_id.tolist()]) == np.array(a.truth), np.array(a.truth)
    error, accuracy = run.metrics.calibration_error, run.metrics.accuracy
    return {
        "all": accuracy.all,
        "old": accuracy.old,
        "new": accuracy.new,
        "mean": float(np.mean([right[of_class == name].mean() for name in np.unique(of_class)])),
        "k": run.k.k,
        "interval": run.k.interval,
        "true": run.metrics.k_true,
        "ece": error.all,
        "ece_old": error.old,
        "ece_new": error.new,
        "setbacks": list(run.facts.training.setbacks) if run.facts.training else [],
        "seconds": run.facts.timings["learn"],
        "device": run.facts.device,
        "trained_on": list(run.facts.training.devices) if run.facts.training else [],
        "timings": run.facts.timings,
    }


def run_set(arguments: argparse.Namespace, folder: Path, tail: bool, seed: int) -> None:
    """Run all methods on one split of one set, in this process."""
    images = collection(folder, tail=tail, seed=seed)
    with TemporaryDirectory() as cache:
        for method in arguments.methods:
            about = {"set": folder.name, "tail": tail, "method": method, "seed": seed, "asked": arguments.k}
            try:
                name = f"{folder.name}{'-tail' if tail else ''}-{method}-{seed}"
                keep = None if arguments.runs is None else arguments.runs / name
                figures = record(sort(images, arguments, method, seed, Path(cache), keep))
            except Exception as error:  # a failed run is a result, too
                figures = {"error": f"{type(error).__name__}: {error}"}
            line = json.dumps({**about, **figures})
            print(line, flush=True)
            if arguments.out:
                with arguments.out.open("a") as file:
                    file.write(line + "\n")


def table(path: Path) -> None:
    """Print the mean and the deviation over seeds of each set and method."""
    rows = defaultdict(list)
    for line in path.read_text().splitlines():
        one = json.loads(line)
        rows[one["set"] + (", long tail" if one["tail"] else ""), one["method"], one["asked"]].append(one)
    print("| set | method | k asked | runs | failed | " + " | ".join(COLUMNS) + " |")
    print("|---" * (5 + len(COLUMNS)) + "|")
    for (name, method, asked), runs in sorted(rows.items()):
        good = [one for one in runs if "error" not in one]
        cells = [_cell(column, [one[column] for one in good]) for column in COLUMNS]
        print(f"| {name} | {method} | {asked} | {len(runs)} | {len(runs) - len(good)} | " + " | ".join(cells) + " |")


def _cell(column: str, values: list[Any]) -> str:
    if not values or any(value is None for value in values):
        return "–"
    if column in ("k", "interval"):
        return ", ".join("–".join(map(str, value)) if isinstance(value, list) else str(value) for value in values)
    if column == "seconds":
        return f"{np.mean(values):.0f}"
    return f"{100 * np.mean(values):.1f} ± {100 * np.std(values):.1f}"


def main() -> None:
    if sys.argv[1:2] == ["table"]:
        table(Path(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", nargs="+", type=Path)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--backbone", default="vit_small_patch14_dinov2")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--tail", choices=("no", "yes", "both"), default="no")
    parser.add_argument("--k", choices=("auto", "true"), default="auto", help="of sortal")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1, help="processes, each with one split of one set")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--runs", type=Path, help="folder for the runs themselves")
    arguments = parser.parse_args()
    tails = {"no": [False], "yes": [True], "both": [False, True]}[arguments.tail]
    tasks = list(product(arguments.images, tails, arguments.seeds))
    if len(tasks) == 1:
        run_set(arguments, *tasks[0])
        return
    options = [f"--{name}={value}" for name in ("weights", "backbone", "k", "epochs", "device", "out", "runs")
               if (value := getattr(arguments, name)) is not None]  # fmt: skip
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for folder, tail, seed in tasks:
            words = [sys.executable, __file__, str(folder), *options, "--methods", *arguments.methods]
            words += ["--seeds", str(seed), "--tail", "yes" if tail else "no"]
            pool.submit(subprocess.run, words, check=True)


if __name__ == "__main__":
    main()
