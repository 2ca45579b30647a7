"""Which variants of images are found to be of one moment, and how many different images are joined.

    python benchmarks/bursts.py variants IMAGES --count 300
    python benchmarks/bursts.py untouched IMAGES
    python benchmarks/bursts.py calibration --count 40 --seeds 3

`variants` takes some images of a folder, and up to five variants of each: crops of 85 to 95 %, shifts of up to 6 % with
a reflected border, other sizes, all of these together, or nothing but JPEG at a quality of 30 to 80, which all of them
have. It prints, for each kind of variant, how many are in the group of their original, by thumbnails as the check
compares them and by aligned structure, and how many images are in a group with others than their variants. `untouched`
groups the images as they are, and lists the groups, to be looked at. `calibration` takes `count` of each of the
handwritten digits, each photographed five times: shifted by up to half a pixel, turned a little, brighter or darker,
with noise. Half of those of 0–4 are labelled, with all of their frames. It sorts them with the small network, with and
without a column that says which frames are of one digit, and prints how far confidence is from accuracy on what is not
labelled. Images of 8 × 8 pixels are too small for frames to be recognised as such, so that only the column tells.
"""

import argparse
import random
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from sortal import discover, read_images
from sortal.discovery.grouping.bursts import burst_groups
from sortal.images.image_set import ImageSet, image_set
from sortal.images.near_duplicates import leaders
from sortal.images.store.packing import pack
from sortal.images.store.pixel_store import PixelStore

KINDS = ("jpeg", "resize", "shift", "crop", "all")
MOST_VARIANTS = 5


def variant(image: Image.Image, kind: str, draw: random.Random) -> Image.Image:
    """Change an image in one of KINDS of ways."""
    if kind in ("crop", "all"):
        share, (width, height) = draw.uniform(0.85, 0.95), image.size
        across, down = int(width * share), int(height * share)
        left, top = draw.randint(0, width - across), draw.randint(0, height - down)
        image = image.crop((left, top, left + across, top + down))
    if kind in ("shift", "all"):
        width, height = image.size
        x, y = int(width * draw.uniform(-0.06, 0.06)), int(height * draw.uniform(-0.06, 0.06))
        wide = np.pad(np.asarray(image), ((abs(y), abs(y)), (abs(x), abs(x)), (0, 0)), mode="reflect")
        image = Image.fromarray(wide[abs(y) + y : abs(y) + y + height, abs(x) + x : abs(x) + x + width])
    if kind in ("resize", "all"):
        scale = draw.uniform(0.5, 1.5)
        image = image.resize((max(int(image.width * scale), 16), max(int(image.height * scale), 16)))
    return image


def write_variants(images: ImageSet, count: int, seed: int, folder: Path) -> tuple[ImageSet, NDArray[np.int64]]:
    """Write some images and their variants, named by kind; return them and the number of each one's original."""
    draw, paths, of = random.Random(seed), list[Path](), list[int]()
    for number, row in enumerate(draw.sample(range(len(images)), min(count, len(images)))):
        image = Image.open(images.paths[row]).convert("RGB")
        kinds = ["original", *(draw.choice(KINDS) for _ in range(draw.randint(0, MOST_VARIANTS)))]
        for place, kind in enumerate(kinds):
            paths.append(folder / f"{number:05}-{place}-{kind}.jpg")
            quality = 92 if kind == "original" else draw.randint(30, 80)
            variant(image, kind, draw).save(paths[-1], quality=quality)
            of.append(number)
    names = [path.name for path in paths]
    return image_set(names, paths=[*map(str, paths)], labels=[None] * len(names)), np.array(of)


def by_thumbnails(store: PixelStore) -> NDArray[np.int64]:
    return leaders(store.thumbnails())


def by_structure(store: PixelStore) -> NDArray[np.int64]:
    return burst_groups(store, torch.device("cpu"))


def print_variants(images: ImageSet, of: NDArray[np.int64], folder: Path) -> None:
    store = pack(images, folder)
    kinds = [Path(file).stem.split("-")[2] for file in images.files]
    first = {number: row for row, number in reversed([*enumerate(of.tolist())])}
    print(f"{len(first)} images, {len(images) - len(first)} variants\n")
    print(f"| by | {' | '.join(KINDS)} | together | joined wrongly | ms an image |\n|---|{'---|' * (len(KINDS) + 3)}")
    for name, method in (("thumbnails", by_thumbnails), ("structure", by_structure)):
        begun = process_time()
        group = method(store)
        seconds = process_time() - begun
        found = defaultdict[str, list[bool]](list)
        for row, kind in enumerate(kinds):
            if kind != "original":
                found[kind].append(bool(group[row] == group[first[int(of[row])]]))
        every = [each for kind in KINDS for each in found[kind]]
        wrong = sum(bool((of[group == group[row]] != of[row]).any()) for row in range(len(images)))
        shares = [f"{100 * float(np.mean(each)):.1f}" if each else "" for each in (*map(found.get, KINDS), every)]
        print(f"| {name} | {' | '.join(shares)} | {wrong} | {1000 * seconds / len(images):.1f} |")


def print_groups(images: ImageSet, folder: Path) -> None:
    group = by_structure(pack(images, folder))
    numbers, counts = np.unique(group, return_counts=True)
    print(f"{len(images)} images, {len(numbers)} moments")
    for number in numbers[counts > 1]:
        print("  " + " ".join(images.files[row] for row in np.flatnonzero(group == number)))


FRAMES = 5
BACKGROUND = 4.0  # standard deviation of what is behind a digit, of 16 levels
OLD = 5  # digits, from 0, of which half are labelled


def write_frames(count: int, seed: int, folder: Path) -> Path:
    """Write frames of digits into a folder, and a table with their labels, true classes and groups beside it."""
    from scipy.ndimage import affine_transform, gaussian_filter
    from sklearn.datasets import load_digits

    draw = np.random.default_rng(seed)
    grey, digit = load_digits(return_X_y=True)
    lines = ["file_name,label,truth,group"]
    folder.mkdir()
    for each in range(10):
        for number, row in enumerate(draw.choice(np.flatnonzero(digit == each), count, replace=False).tolist()):
            label = str(each) if each < OLD and number < count // 2 else ""
            behind = gaussian_filter(draw.normal(0, 1, (8, 8)), 1)
            whole = grey[row].reshape(8, 8) + BACKGROUND * behind / behind.std()
            for frame in range(FRAMES):
                angle, shift = draw.uniform(-0.05, 0.05), draw.uniform(-0.5, 0.5, 2)
                turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
                moved = affine_transform(whole, turn, 3.5 - turn @ [3.5, 3.5] + shift, order=1)
                moved = moved * draw.uniform(0.85, 1.15) + draw.normal(0, 0.7, (8, 8))
                name = f"{each}-{number:03}-{frame}.png"
                Image.fromarray(np.clip(moved * 255 / 16, 0, 255).astype(np.uint8)).save(folder / name)
                lines.append(f"{name},{label},{each},{each}-{number}")
    table = folder.parent / "labels.csv"
    table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return table


def print_calibration(count: int, seeds: range, folder: Path, settings: dict[str, Any]) -> None:
    figures = ("accuracy", "confidence − accuracy", "error")
    print(f"| groups | seed | k |{''.join(f' {each}: all | old | new |' for each in figures)}\n|{'---|' * 12}")
    for seed in seeds:
        place = folder / str(seed)
        place.mkdir()
        table = write_frames(count, seed, place / "frames")
        for given in (True, False):
            columns: Any = "keep" if given else "ignore"
            run = discover(
                place / "frames",
                labels=table,
                out=place / columns,
                backbone="convnet",
                seed=seed,
                extra_columns=columns,
                **settings,
            )
            scores, a = run.metrics, run.assignments
            assert scores is not None
            free, is_old = a.status != "labelled", np.array([str(truth) < str(OLD) for truth in a.truth])
            parts = {"all": free, "old": free & is_old, "new": free & ~is_old}
            right = {name: getattr(scores.accuracy, name) for name in parts}
            gaps = [float(a.confidence[rows].mean()) - right[name] for name, rows in parts.items()]
            errors = [getattr(scores.calibration_error, name) for name in parts]
            cells = [*(f"{100 * each:.1f}" for each in right.values()), *(f"{100 * each:+.1f}" for each in gaps)]
            cells += [f"{100 * each:.1f}" for each in errors]
            print(f"| {'given' if given else 'not given'} | {seed} | {run.k.k} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("variants", "untouched", "calibration"))
    parser.add_argument("images", nargs="?", help="a folder of images")
    parser.add_argument("--count", type=int, default=300, help="images that get variants, or are of a digit")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--method", default="sortal")
    parser.add_argument("--k", type=lambda text: text if text == "auto" else int(text), default="auto")
    parser.add_argument("--epochs", type=lambda text: text if text == "auto" else int(text), default="auto")
    parser.add_argument("--seeds", type=int, default=3, help="runs with and without groups")
    arguments = parser.parse_args()
    with TemporaryDirectory() as name:
        folder = Path(name)
        if arguments.what == "calibration":
            seeds = range(arguments.seed, arguments.seed + arguments.seeds)
            settings = {"method": arguments.method, "k": arguments.k, "epochs": arguments.epochs}
            print_calibration(arguments.count, seeds, folder, settings)
            return
        images = read_images(arguments.images)
        if arguments.what == "untouched":
            print_groups(images, folder / "pixels")
            return
        (folder / "variants").mkdir()
        print_variants(*write_variants(images, arguments.count, arguments.seed, folder / "variants"), folder / "pixels")


if __name__ == "__main__":
    main()
