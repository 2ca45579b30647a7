"""Numbers at and beyond their limits: features, counts, options; and memory that stays bounded."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from support import fork_server

from attacks.attack import OPTIONS, Attack, Trial, case
from attacks.examining import peak
from sortal.clustering.estimate_k import estimate_k
from sortal.clustering.kmeans import SemiSupervisedKMeans
from sortal.errors import InputError

MIB = 2**20
EXTREMES = ("0", "-1", "nan", "inf", "-inf", "1e308", str(10**30), "", "1e-320", "½", "0x10", "\u0661")


def features(name: str, n: int, random: np.random.Generator) -> NDArray[Any]:
    """Return odd features, (n, 3)."""
    x: NDArray[Any] = random.normal(size=(n, 3)).astype(np.float32)
    if name == "constant":
        x[:] = 1
    elif name == "zeros":
        x[:] = 0
    elif name == "huge":
        x *= np.float32(1e37)
    elif name == "tiny":
        x *= np.float32(1e-40)
    elif name == "half":
        return x.astype(np.float16)
    elif name in ("nan", "inf"):
        x[n // 2, 1] = float(name)
    return x


FEATURES = ("constant", "zeros", "huge", "tiny", "half", "nan", "inf", "usual")


def clustering(trial: Trial) -> int:
    """K-means and the estimate of k answer odd features with a sound result or an InputError."""
    name, generator = case(trial, FEATURES), np.random.default_rng(trial.random.randrange(2**32))
    tried = 0
    for n in (1, 2, 7, 30):
        x = features(name, n, generator)
        for classes in (0, 1, min(n, 3), n):
            y = np.where(np.arange(n) < classes, np.arange(n), -1)
            for k in (1, max(classes, 1), n, n + 1):
                _cluster(x, y, k)
                tried += 1
            try:
                found = estimate_k(x, y, k_max=n, n_init=1, random_state=0, device="cpu")
                assert 1 <= found.k <= n
            except InputError:
                pass
    return tried


def _cluster(x: NDArray[Any], y: NDArray[np.int64], k: int) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # fewer clusters than asked for, say
            found = SemiSupervisedKMeans(k, n_init=2, random_state=0, device="cpu").fit(x, y)
    except InputError:
        all_labelled = (y >= 0).all()  # nothing is left to cluster
        odd = not np.isfinite(x).all() or abs(x.astype(float)).max() > 1e30 or all_labelled
        assert odd or k < y.max() + 1 or k > len(np.unique(x, axis=0)), "what is sound is not refused"
        return
    assert np.isfinite(found.cluster_centers_).all()
    assert np.isfinite(found.inertia_)
    assert ((found.labels_ >= 0) & (found.labels_ < k)).all()
    assert (found.labels_[y >= 0] == y[y >= 0]).all(), "labelled rows stay with their class"


VALUES = {
    "discover": (
        "k",
        "epochs",
        "lr",
        "views",
        "seed",
        "n-init",
        "k-max",
        "held-out",
        "workers",
        "max-pixels",
        "learn-on",
    ),
    "check": ("tiny", "max-pixels", "workers"),
    "predict": ("max-pixels", "workers"),
    "figures": ("seed", "workers"),
    "review": ("port", "workers"),
    "demo": ("k", "labelled", "epochs", "seed"),
    "benchmark": ("k", "epochs", "lr", "views", "seeds", "processes", "workers"),
}
OPTION_CASES = [(command, option) for command, options in VALUES.items() for option in options]


def rejected_or_planned(trial: Trial) -> int:
    """Every option of a number meets every extreme value: it is refused in a sentence, or carried out soundly."""
    command, option = case(trial, OPTION_CASES)
    run, images, out = trial.world.run, trial.world.images, trial.folder / "out"
    start: dict[str, list[str | Path]] = {
        "discover": ["discover", images, "--out", out, *OPTIONS, "--dry-run", "--json"],
        "check": ["check", images, "--json"],
        "predict": ["predict", run, images, "--json", "--dry-run"],
        "figures": ["figures", run, "--out", out, "--which", "k-curve"],
        "review": ["review", run, "--no-browser"],
        "demo": ["demo", "--out", out],
        "benchmark": ["benchmark", "folder", "--root", images, "--out", out],
    }
    values = [trial.random.choice(EXTREMES)] if command == "discover" else trial.random.sample(EXTREMES, 3)
    for value in values:
        done = trial.world.sortal(*start[command], f"--{option}={value}", before=stop_early, given=[])
        done.check(0, 1, 2, 3)
        assert done.code != 1 or "sortal: error: " in done.err, (value, done)
        assert done.code != 2 or done.err.startswith("sortal: error: "), (value, done)
        assert "NaN" not in done.out, (value, done)
        assert "Infinity" not in done.out, (value, done)
    return len(values)


def stop_early() -> None:
    """In a child: leave out what takes long once the values were accepted."""
    from unittest.mock import patch

    from sortal.errors import SortalError

    accepted = SortalError("The values were accepted.")
    patch("sortal.web.app.server.Server.run", lambda *_, **__: None).start()
    patch("sortal.discovery.demo.discover", side_effect=accepted).start()
    patch("sortal.research.benchmark.sweep._attempt", side_effect=accepted).start()
    patch("sortal.research.benchmark.sweep._in_parallel", side_effect=accepted).start()


# Memory


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


def kmeans_memory(trial: Trial) -> None:
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
from attacks.examining import peak

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


def check_memory(trial: Trial) -> None:
    """A check grows by 64 MiB at most, whatever the images; a worker by one decoded image and 24 MiB.

    Pillow keeps 4 bytes for a pixel in RGB. A JPEG is decoded at the fraction of its size that is needed, and what a
    worker holds of a file is counted with the rest. The decoded image is resized as it is, so there is no copy of it.
    """
    extension, count, size = (("jpg", 4, (1000, 800)), ("png", 8, (8000, 6000)), ("jpg", 100, (8000, 6000)))[
        trial.number % 3
    ]
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


ATTACKS = (
    Attack("numbers", "clustering", clustering, quick=1, least=2 * len(FEATURES)),
    Attack("numbers", "options", rejected_or_planned, quick=2, least=2 * len(OPTION_CASES)),
    Attack("numbers", "memory of k-means", kmeans_memory, quick=1, least=2),
    Attack("numbers", "memory of check", check_memory, quick=1, least=3),
)
