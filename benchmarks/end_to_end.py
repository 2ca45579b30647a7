"""The whole command, from its start to its end: when it first reports, each stage, and what lies outside of them.

    python benchmarks/end_to_end.py make IMAGES FOLDER --count 8189      enlarge a set: a folder per class
    python benchmarks/end_to_end.py run FOLDER --times 2 -- --backbone vit_small_patch14_dinov2 --weights FILE

`make` copies a set with a folder per class, of which the first half is old, half of their images labelled; beyond
those it has, images are turned and cropped at random. `run` starts `sortal discover` on it in a process of its own, as
often as asked, each time from scratch, with the options after `--`, and prints a row of seconds for each: until its
first output on a terminal, until it says what it is doing, until its first stage, of each stage, and in all.
"""

import argparse
import json
import os
import pty
import re
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from sortal import read_images

SIDE = 256


def make(source: Path, target: Path, count: int) -> None:
    """Write `count` images into folders of classes and `unlabelled`."""
    images = read_images(source)
    images = images.hide_labels(old=len(images.classes) // 2)
    names, n = (*images.classes, "unlabelled"), len(images)
    folders = [target / names[label] for label in images.labels.tolist()]
    for folder in set(folders):
        folder.mkdir(parents=True, exist_ok=True)
    rows = [number % n for number in range(count)]
    columns = range(count), [images.paths[row] for row in rows], [folders[row] for row in rows]
    with ProcessPoolExecutor() as pool:
        list(pool.map(partial(copy, n), *columns, chunksize=64))


def copy(originals: int, number: int, source: str, folder: Path) -> None:
    """Copy an image; beyond the originals, turn and crop it."""
    if number < originals:
        shutil.copy(source, folder / f"{number}{Path(source).suffix}")
        return
    generator = np.random.default_rng(number)
    with Image.open(source) as opened:
        picture = opened.convert("RGB").rotate(generator.uniform(-20, 20), Image.Resampling.BILINEAR)
    left, top = (int(generator.uniform(0, 0.15) * side) for side in picture.size)
    right, bottom = (side - int(generator.uniform(0, 0.15) * side) for side in picture.size)
    picture.crop((left, top, right, bottom)).resize((SIDE, SIDE)).save(folder / f"{number}.webp", quality=90)


def run(folder: Path, options: list[str]) -> dict[str, float]:
    """Run the command on a terminal; return the seconds until it reports, those of each stage, and all."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch, "run")
        start = time.perf_counter()
        pid, terminal = pty.fork()
        if not pid:
            os.environ["TERM"] = "xterm"
            os.execv(
                sys.executable, [sys.executable, "-m", "sortal", "discover", str(folder), "--out", str(out), *options]
            )
        seconds: dict[str, float] = {}
        said = b""
        while True:
            try:
                text = os.read(terminal, 65536)
            except OSError:  # how a terminal ends
                break
            now = time.perf_counter() - start
            said += text
            seconds.setdefault("first output", now)
            if "first stage" not in seconds and re.search(rb"\[1/\d", said):
                seconds["first stage"] = now
            elif "finding images" not in seconds and b"Finding images" in said:
                seconds["finding images"] = now
        _, status = os.waitpid(pid, 0)
        if os.waitstatus_to_exitcode(status) not in (0, 3):
            sys.exit(said.decode(errors="replace")[-3000:])
        total = time.perf_counter() - start
        timings = json.loads((out / "run.json").read_text())["timings"]
        rest = total - seconds["first stage"] - sum(timings.values())
        return {**seconds, **timings, "outside of stages": rest, "in all": total}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    maker = commands.add_parser("make")
    maker.add_argument("images", type=Path)
    maker.add_argument("folder", type=Path)
    maker.add_argument("--count", type=int, default=8189)
    runner = commands.add_parser("run")
    runner.add_argument("folder", type=Path)
    runner.add_argument("--times", type=int, default=2)
    here = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    arguments, options = parser.parse_args(sys.argv[1:here]), sys.argv[here + 1 :]
    if arguments.command == "make":
        make(arguments.images, arguments.folder, arguments.count)
        return
    for number in range(arguments.times):
        row = run(arguments.folder, options)
        if not number:
            print(f"| run | {' | '.join(row)} |\n|{' --- |' * (len(row) + 1)}")
        print(f"| {number + 1} | {' | '.join(f'{value:.1f}' for value in row.values())} |", flush=True)


if __name__ == "__main__":
    main()
