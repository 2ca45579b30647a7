"""Collections, tables and features that have hardly anything in them: a sound result, or a sentence that refuses."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from support import tiny_folder

from attacks.attack import Attack, Trial, case
from sortal import metrics
from sortal.clustering import tsne
from sortal.clustering.estimate_k import estimate_k
from sortal.clustering.kmeans import SemiSupervisedKMeans
from sortal.errors import InputError
from sortal.review.loading import load_run
from sortal.runs import confidence
from sortal.runs.projection import SPAN, coordinates

# Collections


def looks(files: Mapping[str, int], side: int = tiny_folder.SIDE) -> dict[str, NDArray[np.uint8]]:
    """Return an image for each file name: those of one number are the same."""
    return {file: tiny_folder.picture("ash", number, side=side) for file, number in files.items()}


def numbered(folder: str, count: int, start: int = 0) -> dict[str, int]:
    return {f"{folder}/{at}.png": at for at in range(start, start + count)}


CONSTANT = dict.fromkeys([*numbered("ash", 4), *numbered("unlabelled", 8)], 0)
CONTRADICTING = dict.fromkeys([*numbered("ash", 4), *numbered("beech", 4), *numbered("unlabelled", 4)], 0)
ONE_CLASS = {**numbered("ash", 6), **numbered("unlabelled", 6, 6)}
TWO_CLASSES = {**numbered("ash", 4), **numbered("beech", 4, 4), **numbered("unlabelled", 4, 8)}


@dataclass(frozen=True)
class Collection:
    """Images that are hardly a collection, and how to sort them."""

    name: str
    images: dict[str, NDArray[np.uint8]]
    options: tuple[str, ...] = ()
    refused: bool | None = field(default=None)  # None where both are sound


COLLECTIONS = (
    Collection("all images are the same, k is 1", looks(CONSTANT), ("--k", "1")),
    Collection("all images are the same, k is 3", looks(CONSTANT), ("--k", "3")),
    Collection("all images are the same", looks(CONSTANT)),
    Collection("all images are the same, with two labels", looks(CONTRADICTING), ("--k", "2")),
    Collection("one labelled image", looks({"ash/0.png": 0}), ("--k", "1")),
    Collection("one unlabelled image", looks({"unlabelled/0.png": 0}), ("--k", "1"), refused=False),
    Collection("two images", looks({"ash/0.png": 0, "unlabelled/1.png": 1}), ("--k", "2")),
    Collection("two images of one class", looks({"ash/0.png": 0, "unlabelled/1.png": 1}), ("--k", "1")),
    Collection("two images, k is to be found", looks({"ash/0.png": 0, "unlabelled/1.png": 1})),
    Collection("two labelled images", looks({"ash/0.png": 0, "beech/1.png": 1}), ("--k", "2")),
    Collection("one class", looks(ONE_CLASS), ("--k", "2"), refused=False),
    Collection("one class, k is to be found", looks(ONE_CLASS)),
    Collection("as many categories as images", looks(TWO_CLASSES), ("--k", str(len(TWO_CLASSES)))),
    Collection("as many categories as can be", looks(TWO_CLASSES), ("--k", "6"), refused=False),
    Collection("more categories than images", looks(TWO_CLASSES), ("--k", str(len(TWO_CLASSES) + 1)), refused=True),
    Collection("only the known classes", looks(TWO_CLASSES), ("--k", "2"), refused=False),
    Collection("fewer categories than known classes", looks(TWO_CLASSES), ("--k", "1"), refused=True),
    Collection("images of a pixel", looks(TWO_CLASSES, side=1), ("--k", "3")),
    Collection("images of a pixel, k is to be found", looks(TWO_CLASSES, side=1)),
    Collection("k is to be found among few", looks(TWO_CLASSES)),
)
QUICKLY = "--backbone convnet --epochs 1 --n-init 2 --k-max 12 --device cpu --workers 1 --yes"
TINY = tuple(QUICKLY.split())


def discover(trial: Trial) -> None:
    """Sort a collection that is hardly one: a run without a number that is none, or a refusal in a sentence."""
    given: Collection = case(trial, COLLECTIONS)
    images, run = trial.folder / "images", trial.folder / "run"
    for file, pixels in given.images.items():
        tiny_folder.save(images / file, pixels)
    more = () if trial.number < len(COLLECTIONS) else ("--held-out", str(trial.random.choice([0, 0.2, 0.5, 0.9])))
    with_report = trial.number % 3 == 0
    done = trial.world.sortal("discover", images, "--out", run, *TINY, *given.options, *more, quickly=not with_report)
    done.check(*{None: (0, 2), True: (2,), False: (0,)}[given.refused])
    if done.code == 2:
        assert done.err.splitlines()[-1].startswith("sortal: error: "), done
        return
    check_written(run)
    found = load_run(run)
    assert len(found.assignments.files) == len(given.images)
    table = trial.folder / "table.csv"
    trial.world.sortal("export", run, "--format", "csv", "--out", table).check(0)
    check_table(table)


def check_written(run: Path) -> None:
    """Require that the tables and the JSON of a run have no number that is none."""
    for path in run.glob("*.csv"):
        check_table(path)
    for path in run.glob("*.json"):
        tiny_folder.strict_json(path)
    for path in run.glob("*.jsonl"):
        assert not {"NaN", "Infinity", "-Infinity"} & {*path.read_text().replace(",", " ").replace("}", " ").split()}
    for path in run.glob("*.npy"):
        assert np.isfinite(np.load(path)).all(), path.name


def check_table(path: Path) -> None:
    cells = [(name, cell) for row in tiny_folder.rows_of(path) for name, cell in row.items()]
    odd = [each for each in cells if each[1].lower().lstrip("-+") in ("nan", "inf", "infinity")]
    assert not odd, (path.name, odd[:3])


# Metrics


def scores_of(value: Any) -> list[float]:
    """Return all numbers of a score, without those that are undefined."""
    if isinstance(value, dict):
        return [number for each in value.values() for number in scores_of(each)]
    return [] if value is None else [float(value)]


def score(trial: Trial) -> int:
    """Score tables of no row, of one and of one class, with labels of many kinds: fractions, or None if undefined."""
    draw = np.random.default_rng(trial.random.randrange(2**32))
    kinds: tuple[Callable[[NDArray[np.int64]], Any], ...] = (
        lambda x: x.tolist(), lambda x: x.astype(np.uint8), lambda x: x.astype(np.float16), lambda x: x.astype(str),
        lambda x: x.astype(object), lambda x: x - 2**62, lambda x: x.astype(bool),
    )  # fmt: skip
    tried = 0
    for n in (0, 1, 2, 9):
        for classes, clusters in ((1, 1), (1, n + 1), (n + 1, 1), (n + 1, n + 1)):
            truth, found = draw.integers(0, classes, n), draw.integers(0, clusters, n)
            for kind in kinds:
                some = kind(truth)
                old = list(some)[:1] if trial.random.random() < 0.7 else []
                result = metrics.evaluate(some, kind(found), old=old)
                numbers = scores_of({**asdict(result), "k": None, "classes": None, "k_error": None})
                assert all(math.isfinite(each) and -0.5 <= each <= 1 for each in numbers), result
                assert (result.accuracy.all is None) == (n == 0), result
                if n and (classes == 1) and (clusters == 1):
                    assert result.accuracy.all == result.nmi == result.ari == 1, "one cluster is the one class"
                tried += 1
    for odd in (math.nan, np.float32("nan"), np.datetime64("NaT")):
        for where in ("truth", "clusters", "old"):
            given: dict[str, Any] = {"truth": [0, 1], "clusters": [0, 1], "old": [0]}
            given[where] = [0, odd]
            refuse(partial(metrics.evaluate, **given))
            tried += 1
    refuse(lambda: metrics.evaluate([0, 1], [0], old=[]))
    return tried + 1


def refuse(call: Callable[[], Any]) -> None:
    """Require that a call is refused."""
    try:
        found = call()
    except InputError:
        return
    raise AssertionError(f"this is not refused: {found}")


# Confidence, maps and clustering


def rows(name: str, n: int, d: int, draw: np.random.Generator) -> NDArray[np.float32]:
    """Return features (n, d) of a degenerate kind."""
    x = draw.standard_normal((n, d), dtype=np.float32)
    if name == "constant":
        x[:] = x[:1]
    elif name == "zero":
        x[:] = 0
    elif name == "pairs":
        x = np.repeat(x, 2, axis=0)[:n]
    elif name == "line":
        x[:, 1:] = 0
    elif name == "nearly constant":
        x[:] = 1 + np.float32(1e-7) * x
    elif name == "far":
        x[-1:] = 6e4  # which float16 can hold
    return np.ascontiguousarray(x)


ROWS = ("constant", "zero", "pairs", "line", "nearly constant", "far", "usual")


def confident(trial: Trial) -> int:
    """Calibrate on nothing, on one image and on equal ones, with empty categories: confidence is from 0 to 1."""
    name, draw = case(trial, ROWS), np.random.default_rng(trial.random.randrange(2**32))
    tried = 0
    for n in (1, 2, 5, 40):
        x = rows(name, n, 4, draw)
        for k in (1, 2, n, n + 3):  # of which some are empty
            row = draw.integers(0, max(1, k - 1), n)
            centres = x[draw.integers(0, n, k)] if k <= n else rows("usual", k, 4, draw)
            for held_out in (np.zeros(n, dtype=bool), np.ones(n, dtype=bool), np.arange(n) == 0):
                agreement = np.where(np.arange(n) % 2, draw.random(n), np.nan)
                overlap = draw.random(k) if tried % 3 else None
                found = confidence.calibrate(
                    x, centres, row, held_out=held_out, truth=draw.integers(0, k, n), unsure_below=0.5,
                    agreement=None if tried % 2 else agreement, overlap=overlap,
                )  # fmt: skip
                given = confidence.place(x, centres, found.temperature)
                sure = found.of(given)
                assert math.isfinite(found.temperature)
                assert found.temperature > 0
                assert np.isfinite(sure).all()
                assert ((sure >= 0) & (sure <= 1)).all(), sure
                assert np.isfinite(given.distance).all()
                assert np.isfinite(given.next_distance).all() == (k > 1)
                tried += 1
    return tried


def mapped(trial: Trial) -> int:
    """Place hardly any, equal and nearly equal rows on a map: positions are finite; rows that are not are refused."""
    name, draw = case(trial, ROWS), np.random.default_rng(trial.random.randrange(2**32))
    sizes = (0, 1, 2, 3, 4, 5, 11, 40)
    for n in sizes:
        for d in (1, 3, 70):
            x = rows(name, n, d, draw)
            for kind in (np.float32, np.float16, np.float64):
                xy = tsne.place(x.astype(kind), 0, device="cpu")
                assert xy.shape == (n, 2)
                assert np.isfinite(xy).all(), (name, n, d, kind)
            at = coordinates(x, lambda x, seed: tsne.place(x, seed, device="cpu"), seed=0)
            assert ((at >= 0) & (at <= SPAN)).all()
    for odd in (np.nan, np.inf):
        for n in (1, 12):
            x = rows("usual", n, 3, draw)
            x[0, 0] = odd
            refuse(partial(tsne.place, x, 0, device="cpu"))
    return 12 * len(sizes) + 4


KINDS = (np.int8, np.uint8, np.int64, np.uint64, np.bool_, np.float16, np.float64, np.float32)


def kinds(trial: Trial) -> int:
    """Cluster whole numbers and floats of every width, in every layout: alike, as far as they are the same numbers."""
    draw = np.random.default_rng(trial.random.randrange(2**32))
    n = 24
    whole = draw.integers(0, 2 if trial.number % 2 else 100, (n, 3))
    y = np.where(np.arange(n) < 6, np.arange(n) % 2, -1)
    results = []
    for kind in KINDS:
        if kind is np.bool_ and whole.max() > 1:
            continue
        for x in (whole.astype(kind), np.asfortranarray(whole.astype(kind)), np.repeat(whole, 2, 0).astype(kind)[::2]):
            fitted = SemiSupervisedKMeans(4, n_init=3, random_state=0, device="cpu").fit(x, y)
            assert np.isfinite(fitted.cluster_centers_).all()
            estimate = estimate_k(x, y, k_max=6, n_init=2, random_state=0, device="cpu")
            results.append((round(float(fitted.inertia_), 2), estimate.k))
    assert {k for _, k in results} <= {*range(2, 7)}
    lowest = min(inertia for inertia, _ in results)
    assert all(inertia <= 1.5 * lowest + 1 for inertia, _ in results), results
    for odd in (whole.astype(complex), whole[:, :0], whole[:0], whole[0]):
        labels = y[: len(odd)]
        refuse(partial(SemiSupervisedKMeans(2, random_state=0, device="cpu").fit, odd, labels))
        refuse(partial(estimate_k, odd, labels, k_max=4, random_state=0, device="cpu"))
    return len(results) + 8


ATTACKS = (
    Attack("numbers", "hardly a collection", discover, quick=0, least=2 * len(COLLECTIONS)),
    Attack("numbers", "metrics", score, quick=0, least=20),
    Attack("numbers", "confidence", confident, quick=0, least=2 * len(ROWS)),
    Attack("numbers", "maps", mapped, quick=0, least=len(ROWS)),
    Attack("numbers", "kinds of numbers", kinds, quick=0, least=20),
)
