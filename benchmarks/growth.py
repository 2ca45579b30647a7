"""How `discover` grows with the number of images: time and memory of each stage, and the size of what it writes.

    python benchmarks/growth.py --count 10000 100000 --out growth.jsonl
    python benchmarks/growth.py --count 1000000 --runs kmeans --out growth.jsonl    one count or run per call
    python benchmarks/growth.py --table growth.jsonl                                the table of all results so far

Makes tiny PNG files of 20 textures in a scratch folder, which is used again if it has them: half of the textures are
known classes, a fifth of whose images are labelled. Sorts them in a process of its own, once by k-means on an untrained
network and once after a short training, and appends each result to --out as a JSON line. A run that was interrupted
resumes, so its times are not those of a whole run: delete its folder to measure it again.

Memory is that of the process and of the workers that read images, sampled every 20 ms. It does not include mapped files
(the pixel store, features), which the system drops when it needs the room; "resident" does.
"""

import argparse
import csv
import json
import os
import shutil
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from math import log10
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np
from numpy.typing import NDArray

CLASSES, KNOWN, LABELLED = 20, 10, 0.2
PER_FOLDER = 1000  # files
EVERY = 0.02  # seconds between samples of memory
GIB = 2**30
Pixels = NDArray[np.uint8]
RUNS: dict[str, dict[str, Any]] = {
    "kmeans": {"method": "kmeans", "k": CLASSES},
    "estimated": {"method": "kmeans", "k_max": 100},
    "gcd": {"method": "gcd", "k": CLASSES, "epochs": 1},
    "sortal": {"method": "sortal", "k": CLASSES, "epochs": 3},
}


# Images


def texture(number: int, side: int, generator: np.random.Generator) -> Pixels:
    """Draw a grating whose direction, width and colour are those of a class, at a random place, with noise."""
    of_class = np.random.default_rng(number)
    angle, waves, colour = number * np.pi / CLASSES, 1.5 + 2.5 * (number % 3), of_class.uniform(0.3, 1, 3)
    y, x = np.mgrid[:side, :side] / side
    across = x * np.cos(angle) + y * np.sin(angle)
    wave = 0.5 + 0.4 * np.sin(2 * np.pi * (waves * across + generator.uniform()))
    noisy = wave[..., None] * colour + generator.normal(0, 0.12, (side, side, 3))
    pixels: Pixels = (255 * np.clip(noisy, 0, 1)).astype(np.uint8)
    return pixels


def png(rgb: Pixels) -> bytes:
    """Encode pixels as PNG, several times as fast as a general library."""
    height, width, _ = rgb.shape
    rows = np.zeros((height, 1 + 3 * width), np.uint8)  # each row begins with its filter, none
    rows[:, 1:] = rgb.reshape(height, -1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(rows.tobytes(), 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def write_folder(folder: Path, first: int, count: int, side: int) -> None:
    """Write some images; row by row, so that fewer images are the first of more."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        rgb = texture(number % CLASSES, side, np.random.default_rng([1, number]))
        (folder / f"{number:07d}.png").write_bytes(png(rgb))


def make_images(folder: Path, count: int, side: int) -> float:
    """Write the images and a table of their labels, unless they are there; return the seconds that it took."""
    started, table = perf_counter(), folder / "labels.csv"
    if table.exists():
        return 0.0
    with ProcessPoolExecutor() as pool:
        jobs = [
            pool.submit(
                write_folder, folder / f"{first // PER_FOLDER:04d}", first, min(PER_FOLDER, count - first), side
            )
            for first in range(0, count, PER_FOLDER)
        ]
        for job in jobs:
            job.result()
    drawn = np.random.default_rng(0).random(count)
    with table.with_suffix(".tmp").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file_name", "label", "truth"])
        for number in range(count):
            name = f"class {number % CLASSES:02d}"
            label = name if number % CLASSES < KNOWN and drawn[number] < LABELLED else ""
            writer.writerow([f"{number // PER_FOLDER:04d}/{number:07d}.png", label, name])
    table.with_suffix(".tmp").rename(table)
    return perf_counter() - started


# A run in a process of its own


def sort(images: Path, out: Path, device: str, settings: dict[str, Any]) -> None:
    """Sort images, and print the stage whenever it changes, then what was found."""
    from sortal import discover
    from sortal.system.progress import Runtime

    stage = ""

    def show(what: str, done: int, total: int) -> None:
        nonlocal stage
        if not what.startswith(stage) or not stage:
            stage = what.partition(" ")[0] if what.startswith("[") else ""
            print(json.dumps({"stage": what.partition("] ")[2] or what}), flush=True)

    runtime = Runtime(device=device, progress=show)
    run = discover(images, labels=images / "labels.csv", out=out, backbone="convnet", runtime=runtime, **settings)
    assert run.metrics is not None
    found = {"k": len(run.categories), "accuracy": run.metrics.accuracy.all, "seconds": run.facts.timings}
    print(json.dumps({"found": found}), flush=True)


def tree(process: int) -> list[int]:
    """Return a process and all that it started."""
    found = [process]
    for each in found:
        try:
            for thread in os.listdir(f"/proc/{each}/task"):
                found += map(int, Path(f"/proc/{each}/task/{thread}/children").read_text().split())
        except (OSError, ValueError):
            continue
    return found


def memory(process: int) -> tuple[int, int]:
    """Return the bytes of a process and its children: without mapped files, and with them."""
    own = resident = 0
    for each in tree(process):
        try:
            lines = Path(f"/proc/{each}/status").read_text().splitlines()
        except OSError:
            continue
        sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith(" kB")}
        own += sizes.get("RssAnon", 0) + sizes.get("RssShmem", 0)
        resident += sizes.get("VmRSS", 0)
    return own, resident


def measure(images: Path, out: Path, device: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Run `sort` in a process and sample its memory; "start" is what comes before the first stage."""
    command = [sys.executable, __file__, "--sort", str(images), str(out), device, json.dumps(settings)]
    peaks: dict[str, list[int]] = {}
    found: dict[str, Any] = {}
    stage = "start"
    started = perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:

        def listen() -> None:
            nonlocal stage
            assert process.stdout is not None
            for line in process.stdout:
                message = json.loads(line)
                found.update(message.get("found", {}))
                stage = message.get("stage", stage)

        listener = threading.Thread(target=listen)
        listener.start()
        while process.poll() is None:
            peak, now = peaks.setdefault(stage, [0, 0]), memory(process.pid)
            peak[:] = (max(pair) for pair in zip(peak, now, strict=True))
            sleep(EVERY)
        listener.join()
    if process.returncode:
        raise SystemExit(f"The run failed with code {process.returncode}.")
    total = perf_counter() - started
    files = [path for path in out.rglob("*") if path.is_file()]
    sizes = {name: sum(path.stat().st_size for path in files if name in path.parts) for name in ("cache", "pixels")}
    return {
        **found,
        "total": round(total, 1),
        "memory": {name: round(peak[0] / GIB, 3) for name, peak in peaks.items()},
        "resident": {name: round(peak[1] / GIB, 3) for name, peak in peaks.items()},
        "folder": round(sum(path.stat().st_size for path in files) / GIB, 3),
        "cache": round(sizes["cache"] / GIB, 3),
        "pixels": round(sizes["pixels"] / GIB, 3),
        "report": (out / "report.html").stat().st_size,
    }


# The table


def exponent(counts: tuple[int, int], values: tuple[float, float]) -> str:
    """Return the power of the number of images with which a value grows between two counts."""
    if min(values) <= 0:
        return ""
    return f"{log10(values[1] / values[0]) / log10(counts[1] / counts[0]):.2f}"


def rows_of(results: list[dict[str, Any]]) -> Iterable[list[str]]:
    """Yield the rows of one kind of run: each measure by count, and how it grows from one count to the next."""
    counts = [each["count"] for each in results]
    names = {**{f"{stage}, s": ("seconds", stage) for each in results for stage in each["seconds"]}}
    names |= {f"memory: {stage}, GiB": ("memory", stage) for each in results for stage in each["memory"]}
    names |= {"total, s": ("total", ""), "run folder, GiB": ("folder", ""), "of it pixels, GiB": ("pixels", "")}
    names |= {"report, bytes": ("report", ""), "accuracy": ("accuracy", "")}
    for name, (group, key) in names.items():
        values = [each[group].get(key, 0) if key else each[group] for each in results]
        pairs = zip(pairwise(counts), pairwise(values), strict=True)
        growth = [exponent(*pair) for pair in pairs] if name != "accuracy" else []
        yield [name, *(f"{value:,.3g}" if value < 1000 else f"{value:,.0f}" for value in values), ", ".join(growth)]


def table(results: list[dict[str, Any]]) -> str:
    """Return the results as Markdown, a table for each kind of run."""
    parts = []
    for run in dict.fromkeys(each["run"] for each in results):
        latest = {each["count"]: each for each in results if each["run"] == run}
        own = [latest[count] for count in sorted(latest)]
        header = [run, *(f"{each['count']:,}" for each in own), "power of n"]
        lines = [header, ["---"] * len(header), *rows_of(own)]
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=["kmeans", "gcd"])
    parser.add_argument("--side", type=int, default=16, help="pixels")
    parser.add_argument("--learn-on", type=int, help="sort this many images, and predict the others")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--scratch", type=Path, default=Path("growth-scratch"))
    parser.add_argument("--keep", action="store_true", help="keep the folders of runs")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, help="only print the table of these results")
    parser.add_argument("--sort", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.sort:
        images, out, device, settings = arguments.sort
        sort(Path(images), Path(out), device, json.loads(settings))
        return
    if arguments.table:
        print(table([json.loads(line) for line in arguments.table.read_text().splitlines()]))
        return
    results = []
    for count in arguments.count:
        folder = arguments.scratch / f"{count}"
        written = make_images(folder, count, arguments.side)
        print(f"{count:,} images written in {written:.0f} s.", file=sys.stderr, flush=True)
        for run in arguments.runs:
            settings, out = dict(RUNS[run]), arguments.scratch / f"{count}-{run}"
            if arguments.learn_on:
                settings["learn_on"], out = arguments.learn_on, out.with_name(f"{out.name}-{arguments.learn_on}")
            name = run if not arguments.learn_on else f"{run}, learning on {arguments.learn_on:,}"
            result = {"run": name, "count": count, **measure(folder, out, arguments.device, settings)}
            results.append(result)
            print(json.dumps(result), flush=True)
            if arguments.out:
                with arguments.out.open("a") as file:
                    file.write(json.dumps(result) + "\n")
            if not arguments.keep:
                shutil.rmtree(out)
    print(table(results))


if __name__ == "__main__":
    main()
