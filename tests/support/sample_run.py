"""Runs made in memory: points around centres, and figures that a run of them could have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sortal.config import Contrast, Discovery, Recipe, Training
from sortal.images import decoding
from sortal.images.decoding import Quarantined
from sortal.metrics import Accuracy
from sortal.runs.categories import describe
from sortal.runs.confidence import Confidence
from sortal.runs.facts import (
    CalibrationError,
    Confused,
    CoveragePoint,
    Hashes,
    ImageSource,
    KChoice,
    Metrics,
    ReliabilityBin,
    RiskCoverage,
    RunFacts,
    Spec,
    TrainingResult,
    TriedK,
)
from sortal.runs.projection import Mapper
from sortal.runs.run import KNOWN, LABELLED, NEW, OTHER, UNSURE, Assignments, Candidate, Category, Run
from sortal.system import cache

Array: TypeAlias = NDArray[Any]
UNSURE_BELOW = 0.5
HOSTILE = (
    "<script>window.hit = 1</script>",
    '"><img src=x onerror="window.hit = 1">',
    "</script><b>bold</b>",
    "שלום \u202e עולם",
    "x" * 3000,
    "one\ntwo\x00\u2028three",
    "\udcff bytes",
    "{{ 7 * 7 }} & ]]>",
)


def sample_run(
    *,
    categories: int = 6,
    known: int = 4,
    images: int = 72,
    d: int = 8,
    seed: int = 0,
    truth: bool = True,
    name: Callable[[int], str] | None = None,
    file: Callable[[int], str] | None = None,
    features: NDArray[np.float32] | None = None,
    category: NDArray[np.int64] | None = None,
    candidates: int = 0,
    quarantine: Sequence[Quarantined] = (),
) -> Run:
    """A run over so many images, of which row i is in category i % categories, unless told otherwise.

    Every third image of a known category is labelled. Where the truth is known, every ninth image is astray.
    """
    generator, known = np.random.default_rng(seed), min(known, categories)
    centres = _unit(generator.normal(size=(categories, d)))
    at = np.arange(images) % categories if category is None else category
    x = _unit(centres[at] + generator.normal(0, 0.45, (images, d))) if features is None else features
    if features is not None:
        centres = _unit(np.stack([x[at == each].sum(axis=0) + 1e-6 for each in range(categories)]))
    files = [(file or "photos/{:05d}.jpg".format)(row) for row in range(images)]
    names = [(name or _name(known))(each) for each in range(categories)]
    distance, following, next_distance = _distances(x, centres, at)
    labelled = (at < known) & (np.arange(images) // categories % 3 == 0)
    confidence = np.where(labelled, 1.0, 1 / (1 + np.exp(-6 * (next_distance - distance))))
    status = np.where(at < known, KNOWN, NEW).astype("U8")
    status[confidence < UNSURE_BELOW] = UNSURE
    status[labelled] = LABELLED
    right = np.where(~labelled & (np.arange(images) % 9 == 8), (at + 1) % categories, at)
    a = Assignments(
        files=tuple(files),
        folders=np.zeros(images, dtype=np.int64),
        contents=tuple(f"{row:032x}" for row in range(images)),
        labels=tuple(names[c] if is_labelled else None for c, is_labelled in zip(at, labelled, strict=True)),
        truth=tuple(names[c] if truth else None for c in right),
        category_id=at.astype(np.int64),
        status=status,
        confidence=confidence,
        distance=distance,
        next_category_id=following,
        next_distance=next_distance,
        apart=np.zeros(images),
        reviewed=np.zeros(images, dtype=np.int64),
        group=np.arange(images),
        doubt=np.zeros(images),
        suggested_id=np.full(images, -1),
    )
    made = [
        Category(id=each, name=names[each], kind="known" if each < known else "new", weight=int((at == each).sum()))
        for each in range(categories)
    ]
    return Run(
        folder=Path("a run"),
        facts=sample_facts(images, x, categories),
        assignments=a,
        categories=describe(made, a, centres),
        k=_k(categories, known),
        confidence=Confidence(
            held_out=40,
            unsure_below=UNSURE_BELOW,
            temperature=0.07,
            usual=np.full(categories, 0.5),
            deviation=np.full(categories, 0.1),
        ),
        metrics=sample_metrics(at, right, known, labelled, names) if truth else None,
        features=x,
        centres=centres,
        quarantine=tuple(quarantine),
        candidates=tuple(
            Candidate(id=i, files=(named := tuple(files[i::20][:12])), folders=(0,) * len(named), nearest_id=0)
            for i in range(candidates)
        ),
    )


def doubted(run: Run, rows: Sequence[int], suggested: int, doubt: float = 0.9) -> Run:
    """The run with doubt in the labels of these rows, the first the most doubtful; another category is suggested."""
    a, numbers = run.assignments, np.array(rows)
    assert (a.status[numbers] == LABELLED).all()
    doubts, others = a.doubt.copy(), a.suggested_id.copy()
    doubts[numbers], others[numbers] = doubt - 0.01 * np.arange(len(rows)), suggested
    return replace(run, assignments=replace(a, doubt=doubts, suggested_id=others))


def with_others(run: Run, apart: Mapping[int, float]) -> Run:
    """Return the run with some unlabelled rows, given with how far apart they are, that fit nowhere."""
    a, rows = run.assignments, [*apart]
    status, values = a.status.copy(), a.apart.copy()
    status[rows], values[rows] = OTHER, [*apart.values()]
    a = replace(a, status=status, apart=values)
    confidence = replace(run.confidence, other_above=min(apart.values()) / 2)
    return replace(run, assignments=a, confidence=confidence, categories=describe(run.categories, a, run.centres))


def by_hand() -> Run:
    """Two categories: rows 0, 2, 4, 6 and rows 1, 3, 5, 7, with figures that are easy to follow."""
    run = sample_run(categories=2, known=1, images=8)
    a = replace(
        run.assignments,
        distance=np.array([0.4, 0.1, 0.2, 0.1, 0.3, 0.9, 0.1, 0.5]),
        confidence=np.array([1.0, 0.9, 0.6, 0.8, 0.3, 0.2, 0.7, 0.4]),
        status=np.array([LABELLED, "new", "known", "new", "unsure", "unsure", "known", "unsure"]),
        truth=("class 0", "class 0", "class 0", None, "new 1", "new 1", None, "new 1"),
    )
    return replace(run, assignments=a)


def place(features: NDArray[np.float32], seed: int) -> NDArray[np.float64]:
    """Place images by their first two principal components, which is quick."""
    x = features.astype(np.float64) - features.mean(axis=0, dtype=np.float64)
    places: NDArray[np.float64] = x @ np.linalg.svd(x, full_matrices=False)[2][:2].T
    return places


QUICK = Mapper(place)


def _unit(x: NDArray[Any]) -> NDArray[np.float32]:
    rows: NDArray[np.float32] = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    return rows


def as_sorted(run: Run) -> Run:
    """Return a run as if its files had been sorted as they are now."""
    contents = tuple(decoding.digest(Path(path).read_bytes()) for path in run.paths())
    return replace(run, assignments=replace(run.assignments, contents=contents))


def _name(known: int) -> Callable[[int], str]:
    return lambda number: f"class {number}" if number < known else f"new {number - known + 1}"


def _distances(x: Array, centres: Array, at: Array) -> tuple[Array, Array, Array]:
    """To the own centre; which of the others is nearest; and to that."""
    squares = np.clip(2 - 2 * (x @ centres.T).astype(np.float64), 0, None)
    rows = np.arange(len(x))
    own = np.sqrt(squares[rows, at])
    if len(centres) == 1:
        return own, np.zeros(len(x), dtype=np.int64), own
    squares[rows, at] = np.inf
    return own, squares.argmin(axis=1), np.sqrt(squares.min(axis=1))


def _k(categories: int, known: int) -> KChoice:
    tried = sorted({max(1, round(categories * factor)) for factor in (0.6, 0.8, 0.9, 1, 1.1, 1.3, 1.8, 3)})
    score = [float(0.92 - 0.3 * abs(np.log(each / categories))) for each in tried]
    curve = tuple(TriedK(k=k, score=s, each=(s - 0.03, s, s + 0.02)) for k, s in zip(tried, score, strict=True))
    interval = (max(1, round(0.9 * categories)), round(1.15 * categories))
    return KChoice(k=categories, estimated=True, known=known, interval=interval, method="brent", curve=curve)


def sample_metrics(at: Array, right: Array, known: int, labelled: Array, names: Sequence[str]) -> Metrics:
    pairs = [(r, a) for r, a, is_labelled in zip(right.tolist(), at.tolist(), labelled, strict=True) if not is_labelled]
    accuracy = float(np.mean([r == a for r, a in pairs])) if pairs else None
    counts = {pair: pairs.count(pair) for pair in dict.fromkeys(pairs[:5000]) if pair[0] < known}
    surest = [(i / 20, 1 - 0.12 * (i / 20) ** 2, 1 - i / 40) for i in range(1, 21)]
    return Metrics(
        images=len(pairs),
        k_true=len(names),
        accuracy=Accuracy(all=accuracy, old=0.931, new=0.784 if known < len(names) else None),
        legacy=Accuracy(all=accuracy, old=0.931, new=0.784),
        nmi=0.871,
        ari=0.802,
        known_accuracy=0.9,
        risk_coverage=RiskCoverage(
            all=tuple(CoveragePoint(*each) for each in surest),
            old=tuple(CoveragePoint(x, y + 0.01 * x, c) for x, y, c in surest),
            new=tuple(CoveragePoint(x, y - 0.09 * x, c) for x, y, c in surest),
        ),
        reliability=tuple(
            ReliabilityBin(low=i / 10, high=(i + 1) / 10, images=5 + 4 * i, confidence=i / 10 + 0.05, accuracy=i / 10)
            for i in range(3, 10)
        ),
        calibration_error=CalibrationError(all=0.041, old=0.03, new=None),
        confusion=tuple(Confused(names[r], a, count) for (r, a), count in counts.items()),
    )


def sample_facts(images: int, x: NDArray[np.float32], categories: int) -> RunFacts:
    return RunFacts(
        images=(ImageSource(folder="/photos/meadow", images=images, paths={}),),
        settings=Discovery(backbone="vit_small", unsure_below=UNSURE_BELOW),
        recipe=Recipe(
            method="gcd",
            training=Training(),
            losses=Contrast(),
            clustering="semi-supervised",
            estimate_on="learned",
        ),
        command="sortal discover /photos/meadow --seed 0",
        backbone=Spec(
            name="vit_small", image_size=224, shorter_side=256, width=x.shape[1], mean=(0.5, 0.5, 0.5), std=(1, 1, 1)
        ),
        weights="a file, sha256 " + 8 * "0123abcd",
        precision="float32",
        training=TrainingResult(
            epochs=30,
            selected=None,
            validation=None,
            views=2,
            losses={"supervised": 0.31, "contrastive": 2.2},
            seconds=754.0,
            images_per_second=10.0,
            devices=("cpu",),
        ),
        device="cpu",
        machine="8 cores",
        versions={"sortal": "0.1.0", "python": "3.12.3"},
        hashes=Hashes(model="0", images=4 * "0123456789abcdef", features=cache.hashed(x)),
        timings={"check": 0.8, "pixels": 12.2, "learn": 754.0, "clusters": 3.0},
        notes=("Two classes have fewer than five labelled images; label a few more.",),
        finished="2025-03-01T12:30:59+00:00",
        next_id=categories,
    )
