"""How well collections are sorted that are not made for it: few labels, long tails, junk, wrong labels, bursts.

    python benchmarks/wild.py IMAGES... --weights FILE --conditions H F T --splits first second --out results.jsonl
    python benchmarks/wild.py table results.jsonl
    python benchmarks/wild.py plot results.jsonl calibration.png

IMAGES are folders with one folder per class. Each condition is one way in which a collection may come:

    H   half of the images of the old classes are labelled
    F   ten labels a class; V five
    T   sizes fall exponentially to a tenth, in a random order of classes, half labelled; TF ten labels
    N   a tenth of the labels are wrong
    J   a tenth of the pile is junk: images of the other IMAGES, at most two of a class
    B   bursts: each image comes with up to five crops, shifts and recompressions of itself
    O1  a quarter of the classes is old; O3 three quarters
    S3  300 images in all; S6 600
    G   the same images under coarser labels, of the sets in GROUPS
    U   no labels at all; U1 one labelled class

Splits are which classes are old: the first half, every second, or a random half. --images takes so many images of a
set, about equally many of each class, and --labels so many labels a class, at most half of it, instead of those of the
condition. Methods other than sortal get the true k, and so does sortal with --k true; with --k own or a number, every
method gets that. --epochs, --lr, --views, --image-size and --set are those of sortal discover; --as-cpu takes what it
does on a machine without a GPU by default. Everything else is as there, without the report. The methods floor and
ceiling are k-means on the raw features and a linear probe on the truth. Prints a JSON line per run: accuracy on the
unlabelled images (All, Old, New, and the mean over classes), k with its interval, calibration error, what became of
junk and of wrong labels, seconds, and the devices that held the network. `sortal benchmark compare` reads these lines.
"""

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sortal import ImageSet, Run, Runtime, metrics, read_images
from sortal.reviews.loading import save_run

if TYPE_CHECKING:
    from sortal.discovery.job import Job

METHODS = ("sortal", "gcd", "simgcd", "uno")
BOUNDS = ("floor", "ceiling")  # of every run
SPLITS = ("first", "second", "random1", "random2")
CONDITIONS = ("H", "F", "V", "T", "TF", "N", "J", "B", "O1", "O3", "S3", "S6", "G", "U", "U1")
LABELS = {"F": 10, "TF": 10, "V": 5}  # labelled images of a class; half of them otherwise
OLD = {"O1": 0.25, "O3": 0.75}  # share of the classes; half of them otherwise
SMALL = {"S3": 300, "S6": 600}  # images
WRONG, JUNK, JUNK_OF_A_CLASS, MOST_COPIES = 0.1, 0.1, 2, 5
FEWEST_IN_BIN = 20  # images in a bin of confidence that is drawn
SETTINGS = ("epochs", "lr", "views", "image_size", "set")  # options that are settings of sortal discover
SUBSETS = ("images", "labels")  # options that say how much of a set there is
CHECKED = 0.15  # share of the labels, the most doubtful first, among which wrong ones are looked for
COLUMNS = ("all", "old", "new", "mean", "k", "interval", "ece_old", "ece_new", "seconds")
# CIFAR's vehicles by where they go and its animals by kind; flowers by their botanical family.
GROUPS: dict[str, dict[str, tuple[str, ...]]] = {
    "cifar10_5k": {
        "road": ("automobile", "truck"),
        "pets": ("cat", "dog"),
        "hoofed": ("deer", "horse"),
    },
    "flowers55": {
        "Asteraceae": ("5", "10", "12", "14", "17", "29", "34", "41", "47", "49", "50", "54"),
        "Orchidaceae": ("2", "7", "36"),
        "Campanulaceae": ("3", "19"),
        "Liliaceae": ("6", "21", "23"),
        "Ranunculaceae": ("9", "16", "33", "40", "48"),
        "Iridaceae": ("15", "43"),
        "Zingiberaceae": ("24", "39"),
        "Gentianaceae": ("28", "45"),
        "Caryophyllaceae": ("30", "31"),
        "Apiaceae": ("35", "38"),
        "Amaryllidaceae": ("37", "42"),
    },
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Collection:
    """Images of a set as they come under a condition."""

    images: ImageSet
    junk: NDArray[np.bool_]  # (n,)
    wrong: NDArray[np.bool_]  # (n,) images with a wrong label


def collection(
    folder: Path,
    others: Sequence[Path],
    *,
    condition: str,
    split: str,
    seed: int,
    place: Path,
    count: int | None = None,
    labelled: int | None = None,
) -> Collection:
    """Read a set, and change it and hide its labels according to a condition; `place` gets images that are made.

    `count` is the number of images in all, and `labelled` that of labels of a class, where the condition's are not
    wanted.
    """
    count, labelled = count or SMALL.get(condition), labelled or LABELS.get(condition)
    images, random = read_images(folder), np.random.default_rng([seed, CONDITIONS.index(condition)])
    if condition == "G":
        images = grouped(images, GROUPS[folder.name])
    if condition in ("T", "TF"):
        images = images.select(tail(images.labels, len(images.classes)))
    if count is not None:
        images = images.select(some(images.labels, count, random))
    if condition == "B":
        images = with_bursts(images, place, random)
    names = sorted(images.classes, key=int) if all(map(str.isdigit, images.classes)) else list(images.classes)
    old = old_classes(names, split, OLD.get(condition, 0.5))
    if condition in ("U", "U1"):
        old = old[:1]
    every = labelled is not None or condition in SMALL  # class has a label
    images = images.hide_labels(old=old, fraction=1.0 if every else 0.5, seed=seed)
    labels, junk = images.labels.copy(), np.zeros(len(images), dtype=bool)
    if every:
        for label in range(len(images.classes)):
            rows = random.permutation(np.flatnonzero(labels == label))
            labels[rows[min(labelled or len(rows), max(len(rows) // 2, 1)) :]] = -1
    if condition == "U":
        labels[:] = -1
    if condition == "N":
        rows = random.permutation(np.flatnonzero(labels >= 0))
        rows = rows[: round(WRONG * len(rows))]
        labels[rows] = (labels[rows] + random.integers(1, len(images.classes), len(rows))) % len(images.classes)
    wrong = (labels >= 0) & (labels != images.truth)
    images = replace(images, labels=labels)
    if condition == "J":
        images, junk = with_junk(images, others, random)
    return Collection(images=images, junk=junk, wrong=np.append(wrong, np.zeros(len(images) - len(wrong), dtype=bool)))


def old_classes(names: list[str], split: str, share: float) -> list[str]:
    """Return the classes that are old in a split of the classes."""
    count = round(share * len(names))
    if split == "first":
        return names[: len(names) // 2] if share == 0.5 else names[:count]
    if split == "second":
        order = [*names[::2], *names[1::2]]
    else:
        order = [names[i] for i in np.random.default_rng(SPLITS.index(split)).permutation(len(names))]
    return order[:count]


def tail(labels: NDArray[np.int64], classes: int) -> NDArray[np.bool_]:
    """Return a mask (n,) of images whose classes fall to a tenth, in a random order of classes."""
    places, keep = np.random.default_rng(0).permutation(classes), np.zeros(len(labels), dtype=bool)
    for label in range(classes):
        rows = np.flatnonzero(labels == label)
        count = int(np.ceil(len(rows) * 10 ** (-places[label] / (classes - 1))))
        keep[np.random.default_rng([1, label]).permutation(rows)[:count]] = True
    return keep


def some(labels: NDArray[np.int64], count: int, random: np.random.Generator) -> NDArray[np.bool_]:
    """Return a mask (n,) of so many images, about equally many of each class."""
    order = random.permutation(len(labels))
    by_class = order[np.argsort(labels[order], kind="stable")]
    starts = np.searchsorted(labels[by_class], labels[by_class])
    first = by_class[np.argsort(np.arange(len(order)) - starts, kind="stable")][:count]
    keep = np.zeros(len(labels), dtype=bool)
    keep[first] = True
    return keep


def grouped(images: ImageSet, groups: dict[str, tuple[str, ...]]) -> ImageSet:
    """Merge classes into groups; a class of no group stays."""
    group_of = {name: group for group, names in groups.items() for name in names}
    names = [group_of.get(name, name) for name in images.classes]
    classes = tuple(dict.fromkeys(names))
    number = np.array([classes.index(name) for name in names])
    return replace(images, labels=number[images.labels], truth=number[images.truth], classes=classes)


def with_junk(
    images: ImageSet, others: Sequence[Path], random: np.random.Generator
) -> tuple[ImageSet, NDArray[np.bool_]]:
    """Add unlabelled images of other sets, at most two of a class; return the images, and a mask of the junk."""
    paths = []
    for folder in others:
        for each in sorted(path for path in folder.iterdir() if path.is_dir()):
            files = sorted(each.iterdir())
            paths += [str(files[i]) for i in random.permutation(len(files))[:JUNK_OF_A_CLASS]]
    count = min(round(JUNK * int(images.unlabelled.sum())), len(paths))
    chosen = [paths[i] for i in random.permutation(len(paths))[:count]]
    none, blank = np.full(count, -1), np.zeros(count, dtype=bool)
    more = replace(
        images,
        files=(*images.files, *(f"junk/{i}-{Path(path).name}" for i, path in enumerate(chosen))),
        paths=(*images.paths, *chosen),
        labels=np.append(images.labels, none),
        truth=np.append(images.truth, none),
        validation=np.append(images.validation, blank),
    )
    return more, np.append(np.zeros(len(images), dtype=bool), ~blank)


def with_bursts(images: ImageSet, place: Path, random: np.random.Generator) -> ImageSet:
    """Take every third image, and add up to five crops, shifts and recompressions of each, written to a place."""
    from PIL import Image

    files, paths, rows = list[str](), list[str](), list[int]()
    for row in range(0, len(images), 3):
        files.append(images.files[row])
        paths.append(images.paths[row])
        rows.append(row)
        with Image.open(images.paths[row]) as opened:
            picture = opened.convert("RGB")
        for copy in range(int(random.integers(0, MOST_COPIES + 1))):
            width, height = picture.size
            share = random.uniform(0.88, 1.0)
            w, h = round(share * width), round(share * height)
            left, top = (int(random.integers(0, room + 1)) for room in (width - w, height - h))
            path = place / f"{row}-{copy}.jpg"
            picture.crop((left, top, left + w, top + h)).save(path, quality=int(random.integers(40, 90)))
            files.append(f"{images.files[row]}-{copy}.jpg")
            paths.append(str(path))
            rows.append(row)
    labels = images.labels[rows]
    blank = np.zeros(len(rows), dtype=bool)
    return replace(
        images, files=tuple(files), paths=tuple(paths), labels=labels, truth=images.truth[rows], validation=blank
    )


def k_of(asked: Any, method: str, images: ImageSet) -> Any:
    """Return the k that a method gets: what was asked for, or the true one."""
    if method in BOUNDS or asked == "true" or (asked == "auto" and method != "sortal"):
        return len(np.unique(images.truth[images.truth >= 0]))
    return asked


def job_of(images: ImageSet, arguments: argparse.Namespace, method: str, seed: int, cache: Path, place: Path) -> "Job":
    """Return what `sortal discover` would do, with a cache that all runs on a set share; bounds learn nothing."""
    from sortal.config import Discovery
    from sortal.discovery.defaults import recipe_for, resolved
    from sortal.discovery.job import Job
    from sortal.system.distributed import alone

    given = ("image_size",) if method in BOUNDS else SETTINGS
    asked = Discovery(
        method="kmeans" if method in BOUNDS else method,
        k=k_of(arguments.k, method, images),
        backbone=arguments.backbone,
        weights=arguments.weights,
        seed=seed,
        **{name: value for name in given if (value := getattr(arguments, name)) is not None},
    )
    processes = alone(arguments.device)
    on_gpu = processes.device.type == "cuda" and not arguments.as_cpu
    settings = resolved(asked, on_gpu=on_gpu)
    return Job(
        images=images,
        settings=settings,
        recipe=recipe_for(settings, len(images), on_gpu=on_gpu),
        place=place,
        runtime=processes.runtime(Runtime()),
        processes=processes,
        shared=cache,
    )


def sort(
    images: ImageSet, arguments: argparse.Namespace, method: str, seed: int, cache: Path, keep: Path | None = None
) -> Run:
    """Sort as `sortal discover` does; keep the run in a folder, if given."""
    from sortal.discovery.pipeline import backbone_of
    from sortal.discovery.stages import Stages, store_pixels
    from sortal.discovery.stages import sort as sorted_

    with nullcontext(keep) if keep is not None else TemporaryDirectory() as place:
        job = job_of(images, arguments, method, seed, cache, Path(place))
        backbone = backbone_of(job)
        stages = Stages(job.order, job.runtime)
        found = sorted_(job, backbone, stages, store_pixels(job, backbone, stages))
        assert found is not None  # in the only process
        run = stages.recorded_in(found.run)
        if keep is not None:
            save_run(run, found.files)
        return run


def bounds(images: ImageSet, arguments: argparse.Namespace, seed: int, cache: Path) -> dict[str, dict[str, Any]]:
    """Return the figures of the floor and the ceiling."""
    from sortal.discovery.pipeline import backbone_of
    from sortal.discovery.stages import Stages, store_pixels
    from sortal.research.benchmark.bounds import bounds_of

    with TemporaryDirectory() as place:
        job = job_of(images, arguments, BOUNDS[0], seed, cache, Path(place))
        backbone = backbone_of(job)
        found = bounds_of(job, backbone, store_pixels(job, backbone, Stages(job.order, job.runtime)), job.runtime)
    true = job.settings.k
    same = {**dict.fromkeys(COLUMNS), "k": true, "true": true, "seconds": 0.0}
    of = {name: getattr(found, name) for name in BOUNDS}
    return {name: {**same, **vars(each.accuracy), "mean": each.class_mean} for name, each in of.items()}


def record(run: Run, what: Collection) -> dict[str, Any]:
    """Return the figures of a run."""
    assert run.metrics is not None
    everything = run.assignments
    free = (everything.status != "labelled") & np.array([truth is not None for truth in everything.truth])
    a = everything.select(free)
    matched = metrics.match(a.truth, a.category_id, old=[c.name for c in run.categories if c.kind == "known"])
    right, of_class = np.array([matched.get(j) for j in a.category_id.tolist()]) == np.array(a.truth), np.array(a.truth)
    error, accuracy = run.metrics.calibration_error, run.metrics.accuracy
    status, real = everything.status, free & ~what.junk
    found = {
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
        "bins": [[each.confidence, each.accuracy, each.images] for each in run.metrics.reliability],
        "other": float((status[real] == "other").mean()),
        "setbacks": list(run.facts.training.setbacks) if run.facts.training else [],
        "seconds": run.facts.timings["learn"],
        "device": run.facts.device,
        "trained_on": list(run.facts.training.devices) if run.facts.training else [],
        "timings": run.facts.timings,
    }
    if what.junk.any():
        found["junk"] = {each: float((status[what.junk] == each).mean()) for each in np.unique(status[what.junk])}
    if what.wrong.any() and (doubt := getattr(everything, "doubt", None)) is not None:
        labelled = np.flatnonzero(status == "labelled")
        first = labelled[np.argsort(-doubt[labelled], kind="stable")][: round(CHECKED * len(labelled))]
        found["wrong_found"] = float(what.wrong[first].sum() / what.wrong.sum())
    return found


def run_set(arguments: argparse.Namespace, folder: Path, condition: str, split: str, seed: int) -> None:
    """Run all methods on one set under one condition, in this process."""
    others = [each for each in (arguments.others or arguments.folders) if each.name != folder.name]
    given = {name: value for name in (*SETTINGS, *SUBSETS) if (value := getattr(arguments, name)) is not None}
    with TemporaryDirectory() as cache, TemporaryDirectory() as made:
        what = collection(
            folder,
            others,
            condition=condition,
            split=split,
            seed=seed,
            place=Path(made),
            count=arguments.images,
            labelled=arguments.labels,
        )
        for method in (*arguments.methods, *BOUNDS):
            about = {"set": folder.name, "condition": condition, "split": split, "method": method, "seed": seed}
            about |= {
                "asked": "true" if method in BOUNDS else str(arguments.k),
                "version": arguments.version,
                "images": len(what.images),
            }
            about |= {"settings": given}
            try:
                name = f"{folder.name}-{condition}-{split}-{method}-{seed}"
                keep = None if arguments.runs is None else arguments.runs / name
                if method in BOUNDS:
                    figures = bounds(what.images, arguments, seed, Path(cache))[method]
                else:
                    figures = record(sort(what.images, arguments, method, seed, Path(cache), keep), what)
            except Exception as error:  # a failed run is a result, too
                figures = {"error": f"{type(error).__name__}: {error}"}
            line = json.dumps({**about, **figures})
            print(line, flush=True)
            if arguments.out:
                with arguments.out.open("a") as file:
                    file.write(line + "\n")


def table(path: Path) -> None:
    """Print means over splits and seeds for each set, condition and method."""
    rows = defaultdict(list)
    for line in path.read_text().splitlines():
        one = json.loads(line)
        rows[one["condition"], one["set"], one["method"], one["version"]].append(one)
    print("| | set | method | version | runs | failed | " + " | ".join(COLUMNS) + " | other figures |")
    print("|---" * (7 + len(COLUMNS)) + "|")
    order = {name: at for at, name in enumerate(CONDITIONS)}
    for (condition, *names), runs in sorted(rows.items(), key=lambda item: (order[item[0][0]], item[0][1:])):
        good = [one for one in runs if "error" not in one]
        cells = [_cell(column, [one[column] for one in good]) for column in COLUMNS]
        junk = [_unfit(one["junk"]) for one in good if "junk" in one]
        extra = [f"{_mean(junk)} of junk unsure or other"] if junk else []
        extra += [f"{_mean([one['wrong_found'] for one in good])} found"] if good and "wrong_found" in good[0] else []
        counts = [str(len(runs)), str(len(runs) - len(good))]
        print(f"| {' | '.join([condition, *names, *counts, *cells, '; '.join(extra)])} |")


def plot(path: Path, picture: Path) -> None:
    """Draw accuracy against confidence: all images of each condition together, one line per set."""
    from matplotlib.figure import Figure

    bins: dict[tuple[str, str], NDArray[np.float64]] = defaultdict(lambda: np.zeros((10, 3)))  # by condition and set
    for line in path.read_text().splitlines():
        one = json.loads(line)
        for confidence, accuracy, images in one.get("bins", ()):
            place = min(int(10 * confidence), 9)
            bins[one["condition"], one["set"]][place] += images * np.array([confidence, accuracy, 1])
    conditions = [each for each in CONDITIONS if any(each == condition for condition, _ in bins)]
    colours = {name: f"C{at}" for at, name in enumerate(sorted({name for _, name in bins}))}
    figure = Figure(figsize=(3 * len(conditions), 3.4), layout="constrained")
    for axes, condition in zip(np.ravel(figure.subplots(1, len(conditions), sharey=True)), conditions, strict=True):
        axes.plot([0, 1], [0, 1], color="0.8")
        for name in sorted(name for each, name in bins if each == condition):
            sums = bins[condition, name][bins[condition, name][:, 2] >= FEWEST_IN_BIN]
            places, style = (sums[:, :2] / sums[:, 2:]).T, {"marker": "o", "markersize": 3}
            axes.plot(*places, color=colours[name], label=name, **style)
        axes.set(title=condition, xlabel="confidence", ylabel="share right", xlim=(0, 1), ylim=(0, 1), aspect="equal")
        axes.legend(fontsize=6)
    figure.savefig(picture, dpi=100)


def _unfit(junk: dict[str, float]) -> float:
    return junk.get("unsure", 0.0) + junk.get("other", 0.0)


def _mean(values: list[float]) -> str:
    return f"{100 * np.mean(values):.0f} %" if values else "–"


def _cell(column: str, values: list[Any]) -> str:
    if not values or any(value is None for value in values):
        return "–"
    if column in ("k", "interval"):
        return ", ".join("–".join(map(str, value)) if isinstance(value, list) else str(value) for value in values)
    if column == "seconds":
        return f"{np.mean(values):.0f}"
    return f"{100 * np.mean(values):.1f} ± {100 * np.std(values):.1f}"


def number_or(*words: str) -> Callable[[str], str | int]:
    """Return the type of an option that takes a number or one of some words."""

    def read(text: str) -> str | int:
        return text if text in words else int(text)

    return read


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = found.add_argument
    add("folders", nargs="+", type=Path, metavar="IMAGES")
    add("--weights", help="of the backbone; the convnet needs none")
    add("--backbone", default="vit_small_patch14_dinov2")
    add("--conditions", nargs="+", choices=CONDITIONS, default=["H", "F", "T"])
    add("--splits", nargs="+", choices=SPLITS, default=["first"])
    add("--methods", nargs="+", default=METHODS)
    add("--seeds", nargs="+", type=int, default=[0])
    add("--images", type=int, metavar="N", help="take so many images of a set, of each class about equally many")
    add("--labels", type=int, metavar="N", help="label so many images of each old class, at most half of them")
    add("--k", type=number_or("auto", "true", "own"), default="auto", metavar="auto|true|own|N")
    add("--epochs", type=int, metavar="N")
    add("--lr", type=float, metavar="RATE")
    add("--views", type=number_or("live"), metavar="N|live")
    add("--image-size", type=int, metavar="PIXELS")
    add("--set", nargs="+", metavar="NAME=VALUE", help="such as training.patches=0.5 training.windows=true")
    add("--device", default="auto")
    add("--as-cpu", action="store_true", help="train as a machine without a GPU does by default")
    add("--others", nargs="+", type=Path, help="sets that junk comes from; by default IMAGES")
    add("--version", default="", help="a word for the table, such as before or after")
    add("--jobs", type=int, default=1, help="processes, each with one condition of one set")
    add("--out", type=Path)
    add("--runs", type=Path, help="folder for the runs themselves")
    return found


def repeated(arguments: argparse.Namespace) -> list[str]:
    """Return the options of a command that has the same for one condition, set, split and seed."""
    names = ("weights", "backbone", "k", "device", "version", "out", "runs", *SUBSETS, *SETTINGS)
    several = {name: getattr(arguments, name) for name in ("set", "others", "methods")}
    several["others"] = several["others"] or arguments.folders
    options = ["--as-cpu"] if arguments.as_cpu else []
    for name in names:
        if name not in several and (value := getattr(arguments, name)) is not None:
            options.append(f"--{name.replace('_', '-')}={value}")
    for name, values in several.items():
        options += [f"--{name}", *map(str, values)] if values else []
    return options


def main() -> None:
    if sys.argv[1:2] == ["table"]:
        table(Path(sys.argv[2]))
        return
    if sys.argv[1:2] == ["plot"]:
        plot(Path(sys.argv[2]), Path(sys.argv[3]))
        return
    arguments = parser().parse_args()
    tasks = list(product(arguments.conditions, arguments.folders, arguments.splits, arguments.seeds))
    tasks = [task for task in tasks if task[0] != "G" or task[1].name in GROUPS]
    if len(tasks) == 1:
        condition, folder, split, seed = tasks[0]
        run_set(arguments, folder, condition, split, seed)
        return
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for condition, folder, split, seed in tasks:
            words = [sys.executable, __file__, str(folder), *repeated(arguments)]
            words += ["--conditions", condition, "--splits", split, "--seeds", str(seed)]
            pool.submit(subprocess.run, words, check=True)


if __name__ == "__main__":
    main()
