"""Memory that stays bounded, whatever the size of the data."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support import fork_server
from support.examining import peak
from support.world import Trial

from sortal.clustering.kmeans import SemiSupervisedKMeans

pytestmark = pytest.mark.thorough

MIB = 2**20


def resident() -> int:
    """Return the memory of this process at the moment in bytes, or its peak where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return peak()


def measure_kmeans(n: int, d: int) -> None:
    """In a child: cluster, and say what it held before and its peak afterwards."""
    x = np.random.default_rng(0).standard_normal((n, d), dtype=np.float32)
    y = np.where(np.arange(n) < n // 10, np.arange(n) % 10, -1)
    SemiSupervisedKMeans(20, n_init=1, max_iter=2, random_state=0, device="cpu").fit(x[-500:], y[-500:])  # loads all
    before = resident()
    SemiSupervisedKMeans(100, n_init=2, max_iter=10, random_state=0, device="cpu").fit(x, y)
    fork_server.say("peak", [before, peak()])


@pytest.mark.attack(most=2)
def test_memory_of_kmeans(trial: Trial) -> None:
    """K-means needs less than two copies of its data, and 64 MiB of blocks and of numbers for each row."""
    n, d = (200_000, 64) if trial.number else (20_000, 64)
    ((before, after),) = fork_server.shared().run(measure_kmeans, n, d).each("peak")
    bound = 2 * 4 * n * d + 64 * MIB
    assert after - before <= bound, f"{(after - before) / MIB:.0f} MiB, at most {bound / MIB:.0f}"


# In a process of its own: what one that has loaded torch takes would count as that of its workers.
CHECK = """
import resource, sys
from sortal.images.check import check
from sortal.images.reading import read_images
from sortal.system.progress import Runtime

sys.path.append(sys.argv[2])
from support.examining import peak

unit = 1 if sys.platform == "darwin" else 1024
before = peak()
found = check(read_images(sys.argv[1], need_labels=False), runtime=Runtime(workers=2))
assert not found.unreadable
print(before, peak(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit)
"""


def check_peaks(folder: Path) -> tuple[int, int]:
    """Check images in a process of its own; return what it took, and the peak of a worker, in bytes."""
    tests = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", CHECK, folder, tests], capture_output=True, text=True, check=True)
    before, after, worker = map(int, done.stdout.split())
    return after - before, worker


@pytest.mark.attack(most=3)
def test_memory_of_check(trial: Trial) -> None:
    """A check grows by 64 MiB at most, whatever the images; a worker by one decoded image and 24 MiB.

    Pillow keeps 4 bytes for a pixel in RGB. A JPEG is decoded at the fraction of its size that is needed, and what a
    worker holds of a file is counted with the rest. The decoded image is resized as it is, so there is no copy of it.
    """
    extension, count, size = trial.case([("jpg", 4, (1000, 800)), ("png", 8, (8000, 6000)), ("jpg", 100, (8000, 6000))])
    small, folder = trial.folder / "small", trial.folder / "images"
    for place in (small, folder):
        place.mkdir()
    Image.new("RGB", (64, 64)).save(small / f"0.{extension}")
    first = folder / f"0.{extension}"
    picture = Image.effect_noise((size[0] // 8, size[1] // 8), 60).convert("RGB")
    picture.resize(size, Image.Resampling.NEAREST).save(first, quality=80, compress_level=1)
    for number in range(1, count):
        shutil.copyfile(first, folder / f"{number}.{extension}")
        with (folder / f"{number}.{extension}").open("ab") as file:
            file.write(number.to_bytes(4, "big"))
    _, base = check_peaks(small)
    grown, worker = check_peaks(folder)
    decoded = 4 * size[0] * size[1] // (1 if extension == "png" else 64)  # or an eighth of each side
    bound = base + decoded + 2 * first.stat().st_size + 24 * MIB
    assert grown <= 64 * MIB, f"the check takes {grown / MIB:.0f} MiB, at most 64"
    assert worker <= bound, f"a worker takes {worker / MIB:.0f} MiB, at most {bound / MIB:.0f} ({base / MIB:.0f} alone)"
