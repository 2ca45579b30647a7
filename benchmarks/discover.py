"""Accuracy and calibration of `discover` on images whose truth is known, and of updates with new images.

    python benchmarks/discover.py table IMAGES labels.csv       a table for the command line
    python benchmarks/discover.py sort IMAGES --weights FILE    k estimated and given, over seeds
    python benchmarks/discover.py update IMAGES --weights FILE  images and classes that are new to a run
    python benchmarks/discover.py demo                          the digits, over seeds

IMAGES has one folder per class; the first half of the classes is old, half of their images are labelled. Prints
JSON lines, and with --out also appends them to a file.
"""

import argparse
import json
import platform
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from sortal import ImageSet, discover, read_images
from sortal.discovery import demo
from sortal.discovery.prediction import predict
from sortal.runs.run import DOUBTFUL_STATUSES, OTHER, UNSURE, Run
from sortal.system.csv_tables import table as csv_table
from sortal.system.progress import Runtime

BACKBONE = "vit_small_patch14_dinov2.lvd142m"
COVERAGE = (0.25, 0.5, 0.75, 1.0)


def read(folder: Path) -> ImageSet:
    images = read_images(folder)
    return images.hide_labels(old=len(images.classes) // 2)


def table(arguments: argparse.Namespace) -> None:
    images = read(arguments.images)
    names = (*images.classes, *images.new_classes, "")
    labels, truth = ([names[i] for i in numbers] for numbers in (images.labels, images.truth))
    arguments.table.write_bytes(csv_table([("file_name", images.files), ("label", labels), ("truth", truth)]))


def found(run: Run) -> dict[str, Any]:
    assert run.metrics is not None
    curve = run.metrics.risk_coverage.all
    at = {str(share): min(curve, key=lambda point: abs(point.coverage - share)).accuracy for share in COVERAGE}
    return {
        "k": run.k.k,
        "interval": run.k.interval,
        **asdict(run.metrics.accuracy),
        "calibration_error": asdict(run.metrics.calibration_error),
        "accuracy_of_the_surest": at,
        "unsure": run.counts()[UNSURE],
        "other": run.counts()[OTHER],
        "stages": run.facts.timings,
    }


def sort(arguments: argparse.Namespace) -> None:
    images = read(arguments.images)
    with TemporaryDirectory() as folder:
        for seed in arguments.seeds:
            for k in ("auto", len(images.classes) + len(images.new_classes)):
                start = time.perf_counter()
                run = discover(images, out=Path(folder, str(seed)), k=k, seed=seed, **options(arguments))
                report(arguments, seed=seed, given=k, seconds=time.perf_counter() - start, **found(run))


def update(arguments: argparse.Namespace) -> None:
    """Sort a set without some new classes and a fifth of the unlabelled images, then add these."""
    images = read(arguments.images)
    draw = np.random.RandomState(0)
    classes = np.arange(len(images.classes), len(images.classes) + len(images.new_classes))
    strange = np.isin(images.truth, draw.choice(classes, arguments.unseen, replace=False))
    later = strange | (images.unlabelled & (draw.rand(len(images)) < 0.2))
    with TemporaryDirectory() as folder:
        for seed in arguments.seeds:
            out = Path(folder, str(seed))
            before = discover(images.select(~later), out=out, seed=seed, **options(arguments))
            added = [images.paths[row] for row in np.flatnonzero(later)]
            after = predict(out, added, update=True, runtime=Runtime(device=arguments.device))
            report(arguments, seed=seed, **found(before), **judged(before, after.run, images, strange, later))


def judged(before: Run, after: Run, images: ImageSet, strange: Any, later: Any) -> dict[str, Any]:
    """Count a category as correct if it is the most frequent class among the images of the first run."""
    a, old = after.assignments, before.assignments
    counts = {j: Counter(t for t, c in zip(old.truth, old.category_id, strict=True) if c == j) for j in after.names}
    usual = {j: count.most_common(1)[0][0] if count else None for j, count in counts.items()}
    names = (*images.classes, *images.new_classes)
    truth = {images.paths[row]: names[images.truth[row]] for row in range(len(images))}
    result: dict[str, Any] = {}
    for what, mask in (("of_seen_classes", ~strange), ("of_unseen_classes", strange)):
        paths = {images.paths[row] for row in np.flatnonzero(mask & later)}
        rows = [row for row in range(len(old), len(a)) if a.files[row] in paths]
        sure = [row for row in rows if a.status[row] not in DOUBTFUL_STATUSES]
        right = [row for row in rows if usual[a.category_id[row]] == truth[a.files[row]]]
        result[what] = {
            "images": len(rows),
            "unsure": 1 - len(sure) / len(rows),
            "accuracy": len(right) / len(rows),
            "accuracy_of_sure": len(set(right) & set(sure)) / max(len(sure), 1),
        }
    groups = [Counter(truth[file] for file in candidate.files) for candidate in after.candidates]
    result["candidates"] = {
        "groups": len(groups),
        "images": sum(sum(group.values()) for group in groups),
        "of_the_group's_class": sum(group.most_common(1)[0][1] for group in groups),
    }
    return result


def digits(arguments: argparse.Namespace) -> None:
    for seed in arguments.seeds:
        with TemporaryDirectory() as folder:
            how = {"epochs": arguments.epochs, "runtime": Runtime(device=arguments.device)}
            result = demo.run(Path(folder, "run"), seed=seed, **how)
            rows = {"pixels": vars(result.plain), "semi_supervised_pixels": vars(result.semi_supervised)}
            report(arguments, seed=seed, seconds=result.seconds, **found(result.run), **rows)


def options(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "backbone": arguments.backbone,
        "weights": arguments.weights,
        "epochs": arguments.epochs,
        "runtime": Runtime(device=arguments.device),
    }


def report(arguments: argparse.Namespace, **record: object) -> None:
    print(json.dumps(record), flush=True)
    if arguments.out:
        with arguments.out.open("a") as file:
            file.write(json.dumps(record) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_subparsers(dest="mode", required=True)
    for name, work in (("table", table), ("sort", sort), ("update", update), ("demo", digits)):
        mode = modes.add_parser(name)
        mode.set_defaults(work=work)
        if name != "demo":
            mode.add_argument("images", type=Path)
        if name == "table":
            mode.add_argument("table", type=Path)
            continue
        mode.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
        mode.add_argument("--device", default="auto")
        mode.add_argument("--out", type=Path)
        if name != "demo":
            mode.add_argument("--backbone", default=BACKBONE)
            mode.add_argument("--weights")
        mode.add_argument("--epochs", type=int, default="auto" if name == "demo" else 200)
        if name == "update":
            mode.add_argument("--unseen", type=int, default=5, help="classes added later")
    arguments = parser.parse_args()
    if arguments.mode != "table":
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        print(platform.python_version(), torch.__version__, gpu, flush=True)
    arguments.work(arguments)


if __name__ == "__main__":
    main()
