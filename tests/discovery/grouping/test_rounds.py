"""Sortal's own method: how rounds share the epochs, what is counted between them, and what a run keeps of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from support import tiny_folder as tiny
from support.runtimes import CPU
from support.thorough import thorough_but

from sortal.config import Discovery, Rounds
from sortal.discovery import defaults, stages
from sortal.discovery.grouping import clusters, rounds
from sortal.discovery.grouping.choose_k import estimated_k, narrowed
from sortal.discovery.grouping.clusters import rows_of
from sortal.discovery.grouping.counting import KDistribution
from sortal.discovery.grouping.rounds import (
    Attempt,
    Count,
    Epochs,
    LearningResult,
    choose,
    count,
    epochs_of_rounds,
    levelled,
    next_k,
    weighted,
)
from sortal.discovery.job import Job
from sortal.discovery.results import means_of
from sortal.images.image_set import ImageSet, image_set
from sortal.learning import token_cache
from sortal.learning.losses import divergence
from sortal.learning.methods import Sortal
from sortal.learning.train import Trainer
from sortal.runs.facts import Trial
from sortal.runs.run import INITIAL, LOG, MODEL
from sortal.system.distributed import alone

SETTINGS: dict[str, Any] = {**tiny.SETTINGS, "method": "sortal", "epochs": 4, "k_max": 12}


@pytest.mark.parametrize(
    ("epochs", "rounds", "tries"),
    [
        (0, (0, 0, 0), 0),
        (1, (1, 0, 0), 0),
        (2, (1, 1, 0), 1),
        (4, (2, 1, 1), 1),
        (100, (40, 20, 40), 1),
        (150, (40, 42, 68), 3),
        (200, (40, 60, 100), 3),
    ],
)
def test_rounds_share_the_epochs(epochs: int, rounds: tuple[int, int, int], tries: int) -> None:
    assert epochs_of_rounds(Rounds(ratio=1.2), epochs) == Epochs(*rounds, tries)


def test_a_single_classifier_is_refined_for_most_of_the_epochs() -> None:
    assert epochs_of_rounds(Rounds(), 200) == Epochs(40, 20, 140, 1)


@given(st.integers(0, 1000), st.floats(0.01, 0.9), st.floats(0.01, 0.9), st.floats(1, 2))
def test_no_epoch_is_lost_between_rounds(epochs: int, contrastive: float, refinement: float, ratio: float) -> None:
    found = epochs_of_rounds(Rounds(contrastive=contrastive, refinement=refinement, ratio=ratio), epochs)
    assert found.contrast + found.classifiers + found.refinement == epochs
    assert min(found.contrast, found.classifiers, found.refinement) >= 0
    assert found.contrast <= 40
    assert bool(found.classifiers) == bool(found.tries) >= bool(found.refinement)
    assert found.tries in (0, 1) or (found.tries == 3 and found.classifiers >= 30 and ratio > 1)


def distribution(known: int, ks: tuple[int, ...], scores: tuple[float, ...]) -> KDistribution:
    return KDistribution(known, ks, scores, separations=(0.0,) * len(ks))


def attempt(k: int, separation: float, prior: float = 0.0) -> Attempt:
    counted = Count(shares=np.ones(k), clusters=np.zeros(9, np.int64), distribution=distribution(1, (k,), (0.0,)))
    none = np.zeros((k, 2), np.float32)
    return Attempt(
        k=k, prior=prior, separation=separation, weights={}, head={}, features=none, counted=counted, centres=none
    )


@pytest.mark.parametrize(
    ("priors", "separations", "chosen"),
    [
        ((0.0, 0.4), (0.50, 0.485), 0),  # 3 % worse is one standard deviation, which costs a half
        ((0.0, 0.6), (0.50, 0.485), 1),
        ((0.0, 1.9, 0.6), (0.50, 0.47, 0.485), 2),  # two of them cost two
        ((0.0, 2.6, 0.6), (0.50, 0.47, 0.485), 1),
        ((0.0, 0.4), (-0.10, -0.103), 0),
        ((0.0, 0.6), (-0.10, -0.103), 1),
        ((0.0, 0.4), (0.01, 0.0085), 0),  # a bad separation counts as one of 0.05
        ((0.0, 0.6), (0.01, 0.0085), 1),
        ((-9.0,), (-0.1,), 0),
    ],
)
def test_the_attempt_that_is_chosen_was_likely_before_and_separates_well(
    priors: tuple[float, ...], separations: tuple[float, ...], chosen: int
) -> None:
    attempts = [attempt(4, each, prior) for prior, each in zip(priors, separations, strict=True)]
    assert choose(attempts) is attempts[chosen]


UP, DOWN = distribution(1, (2, 1000), (-3.0, 0.0)), distribution(1, (2, 1000), (0.0, -3.0))


@pytest.mark.parametrize(
    ("tried", "prior", "bounds", "following"),
    [
        ([(10, 0.67)], UP, (5, 1000), 12),  # what was counted says on which side to begin
        ([(10, 0.67)], DOWN, (5, 1000), 8),
        ([(10, 0.67), (12, 0.60)], UP, (5, 1000), 8),  # more are worse
        ([(10, 0.67), (8, 0.60)], DOWN, (5, 1000), 12),  # fewer are worse
        ([(8, 0.47), (10, 0.48)], DOWN, (5, 1000), 12),  # more are better
        ([(12, 0.47), (10, 0.48)], UP, (5, 1000), 8),  # fewer are better
        ([(10, 0.67), (12, 0.60)], UP, (10, 1000), 14),  # the other side is forbidden
        ([(10, 0.67)], UP, (5, 11), 11),
        ([(10, 0.67)], UP, (5, 10), 8),
        ([(10, 0.67)], DOWN, (10, 1000), 12),
        ([(10, 0.67), (12, 0.60)], UP, (10, 12), None),
        ([(5, 0.67)], UP, (5, 5), None),
        ([(2, 0.67)], UP, (2, 1000), None),  # 1.2 times two is two
    ],
)
def test_more_or_fewer_are_tried_on_the_side_of_the_best(
    tried: list[tuple[int, float]], prior: KDistribution, bounds: tuple[int, int], following: int | None
) -> None:
    assert next_k([attempt(k, each) for k, each in tried], prior, 1.2, bounds) == following


@pytest.mark.parametrize(("share", "weight"), [(0.5, 0.35), (0.25, 0.35), (0.1, 0.14)])
def test_labels_weigh_less_where_few_of_a_batch_are_labelled(share: float, weight: float) -> None:
    losses = Rounds(supervised_weight=0.35)
    found = weighted(losses, share)
    assert found.supervised_weight == pytest.approx(weight)
    assert replace(found, supervised_weight=0.35) == losses


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=9), st.floats(0, 1))
def test_sizes_are_levelled_without_changing_their_sum(sizes: list[int], strength: float) -> None:
    before = np.array(sizes, dtype=np.float64)
    after = levelled(before, strength)
    assert after.sum() == pytest.approx(before.sum())
    assert (np.diff(after[np.argsort(before)]) >= -1e-9 * before.sum()).all(), "larger ones stay larger"
    np.testing.assert_allclose(levelled(before, 0.0), before)
    np.testing.assert_allclose(levelled(before, 1.0), before.mean())


def test_levelling_halfway_is_a_square_root() -> None:
    np.testing.assert_allclose(levelled(np.array([100.0, 400.0]), 0.5), 500 * np.array([1 / 3, 2 / 3]))


def job_on(images: ImageSet, tmp_path: Path, **settings: Any) -> Job:
    asked = Discovery(**{name: value for name, value in {**SETTINGS, **settings}.items() if name != "runtime"})
    recipe = defaults.recipe_for(asked, len(images), on_gpu=False)
    how: dict[str, Any] = {"runtime": CPU, "processes": alone("cpu")}
    return Job(images=images, settings=asked, recipe=recipe, place=tmp_path, **how)


@pytest.mark.parametrize("labelled", [0, 1, 2, 3, 5])
def test_categories_and_their_unlabelled_images_are_counted(labelled: int, tmp_path: Path) -> None:
    """Five clear classes of 10 to 50 images; of the first ones half are labelled."""
    sizes = np.array([30, 20, 40, 10, 50])
    truth = np.repeat(np.arange(5), sizes)
    generator = np.random.default_rng(0)
    x = np.eye(16)[truth] + generator.normal(0, 0.02, (len(truth), 16))
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    has_label = (truth < labelled) & (generator.permutation(len(truth)) % 2 == 0)
    names = [f"c{label}" if known else None for label, known in zip(truth, has_label, strict=True)]
    images = image_set(
        [f"{at}.png" for at in range(len(x))], pixels=np.zeros((len(x), 8, 8, 3), np.uint8), labels=names
    )
    job = job_on(images, tmp_path, k="auto")
    found = count(job, rows_of(job, x), images, CPU)
    assert found.k == 5
    low, high = found.distribution.interval
    assert low <= 5 <= high
    assert (found.distribution.known, found.distribution.trial) == (labelled, None)
    centres = means_of(x, found.clusters, 5)
    np.testing.assert_allclose(centres, [x[found.clusters == j].mean(0) for j in range(5)], atol=1e-6)
    of_class = (centres @ np.eye(16)[:5].T).argmax(0)  # the cluster of each class
    assert of_class[:labelled].tolist() == list(range(labelled)), "known classes come first"
    total = levelled(sizes + 1.0, 0.5)
    wanted = np.maximum(total - np.bincount(truth[has_label], minlength=5), 0.1 * total)
    np.testing.assert_allclose(found.shares[of_class], wanted)


def test_the_divergence_is_that_of_the_mean_over_unlabelled_views() -> None:
    rows = torch.tensor([[0.5, 0.5], [0.1, 0.9], [0.3, 0.7]])
    among, shares = torch.tensor([False, True, True]), torch.tensor([0.25, 0.75])
    by_hand = 0.2 * np.log(0.2 / 0.25) + 0.8 * np.log(0.8 / 0.75)
    assert divergence(rows, among, shares).item() == pytest.approx(by_hand, abs=1e-6)
    assert divergence(rows, among, torch.tensor([0.2, 0.8])).item() == pytest.approx(0, abs=1e-6)
    assert divergence(rows, torch.zeros(3, dtype=torch.bool), shares).item() == 0


def test_a_run_keeps_all_rounds_and_learns_without_k(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are computed once, though rounds differ in their labels; with another k nothing is trained again.

    The two epochs of learning to count are on top of the four that were asked for.
    """
    tiny.write(tmp_path / "images", tiny.planted(each=5, labelled=4))
    vit: dict[str, Any] = {**SETTINGS, "backbone": "test_vit", "weights": "random", "views": 2}
    made, trained = (tiny.spy(monkeypatch, *each) for each in ((token_cache, "cache_tokens"), (rounds, "train")))
    notes: list[str] = []
    with tiny.quickly():
        run = tiny.sort(tmp_path / "images", tmp_path / "run", **{**vit, "runtime": replace(CPU, note=notes.append)})
        assert len(made) == 1
        assert [len(images.known) for _, images, *_ in trained] == [2, 3, 3, 3], "one is hidden at first"
        assert len([*(run.cache / "learn").iterdir()]) == 4, "the folder of the tokens is gone"
        assert run.facts.training is not None
        assert run.facts.training.epochs == 6
        log = (run.folder / LOG).read_text()
        assert (log.count('"event": "start"'), log.count('"event": "epoch"')) == (4, 6)
        assert sum(text.startswith("Counted ") for text in notes) == 1
        before, after = load_file(run.folder / INITIAL), load_file(run.folder / f"{MODEL}.safetensors")
        assert any(not torch.equal(value, after[name.removeprefix("net.")]) for name, value in before.items())
        monkeypatch.setattr(Trainer, "_train", tiny.never)
        again = tiny.sort(tmp_path / "images", tmp_path / "run", **{**vit, "k": 5})
    assert again.facts.hashes.model == run.facts.hashes.model
    assert len(again.categories) == 5


@pytest.mark.parametrize("restart", thorough_but([True], [True, False]))
def test_the_best_of_several_classifiers_is_refined(
    restart: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each starts from the pretrained weights or, from scratch, from those of contrast with all labels."""
    starts, ends, ks, balanced, known = list[float](), list[float](), list[int](), list[bool](), list[int]()
    train, overlapped = Trainer.train, tiny.spy(monkeypatch, stages, "overlaps")
    sorted_, counted = tiny.spy(monkeypatch, stages, "cluster"), tiny.spy(monkeypatch, rounds, "count")

    def noted(trainer: Trainer) -> Any:
        def weights() -> float:
            return float(next(trainer.method.backbone.parameters()).detach().double().sum())

        starts.append(weights())
        balanced.append(trainer.config.balanced)
        known.append(len(trainer.images.known))
        result = train(trainer)
        ends.append(weights())
        if isinstance(trainer.method, Sortal):
            ks.append(len(trainer.method.shares))
        return result

    monkeypatch.setattr(Trainer, "train", noted)
    monkeypatch.setattr(rounds, "EPOCHS_PER_TRY", 1)
    chosen, following = tiny.spy(monkeypatch, rounds, "choose"), tiny.spy(monkeypatch, rounds, "next_k")
    losses = Rounds(hidden=16, bottleneck=8, refinement=0.3, ratio=1.2, restart=restart)
    monkeypatch.setattr(defaults, "TINY_LOSSES", (losses,))
    settings = {**SETTINGS, "epochs": 8, "k": "auto"}
    with tiny.quickly():
        run = tiny.sort(tiny.as_array(), tmp_path / "run", **settings)
    assert run.facts.training is not None
    assert run.facts.training.epochs == 12, "four to count, and eight as asked"
    attempts = chosen[-1][0]
    assert known == [2] + [3] * (len(ks) + 1), "only learning to count does without some labels"
    assert starts[1] == starts[0] != ends[0], "and nothing of it is kept"
    assert ends[1] != ends[0]
    assert [one.k for one in attempts] == ks[:-1]
    bounds, prior = (len(tiny.OLD), SETTINGS["k_max"]), following[0][1]
    assert ks[0] == prior.k
    assert [one.prior for one in attempts] == [prior.score_of(one.counted.k) for one in attempts]
    assert [next_k(attempts[: at + 1], prior, 1.2, bounds) for at in range(len(ks) - 2)] == ks[1:-1]
    assert set(starts[2:-1]) == {starts[0] if restart else ends[1]}
    best = attempts.index(choose(attempts))
    assert starts[-1] == ends[2 + best]
    assert ks[-1] == attempts[best].counted.k
    assert balanced == [True] * (1 + len(ks)) + [False], "labelled images are favoured until the last round"
    contrast = counted[0][1]
    assert contrast.beside is None
    assert all(rows.beside is contrast.x for _, rows, *_ in counted[1:]), "each classifier is judged beside contrast"
    assert [rows.beside is contrast.x for _, rows, *_ in sorted_] == [True]
    assert run.centres.shape[1] == contrast.x.shape[1], "new images are placed by the last features alone"
    clustered, others, k = overlapped[0]
    assert k == run.k.k
    assert [len(each) for each in others] == [len(clustered)] * (1 + len(attempts))
    assert run.confidence.exponent is not None
    assert run.k.interval is not None
    assert run.k.interval[0] <= run.k.k <= run.k.interval[1]
    note = next(text for text in run.facts.notes if text.startswith("Counted"))
    assert all(f"{one.separation:.3f} for {one.k}" in note for one in attempts)
    smoothings = tiny.spy(monkeypatch, clusters, "smooth")
    with tiny.quickly():
        assert tiny.sort(tiny.as_array(), tmp_path / "run", **settings).k == run.k
    assert not smoothings, "everything that needs them is cached"


def test_epochs_of_classifiers_that_bounds_forbid_go_to_the_refinement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With k_max as many as the known classes, only one classifier can be tried."""
    trained = tiny.spy(monkeypatch, Trainer, "train")
    monkeypatch.setattr(rounds, "EPOCHS_PER_TRY", 1)
    monkeypatch.setattr(defaults, "TINY_LOSSES", (Rounds(hidden=16, bottleneck=8, refinement=0.3, ratio=1.2),))
    with tiny.quickly():
        settings = {**SETTINGS, "epochs": 8, "k": "auto", "k_max": len(tiny.OLD)}
        run = tiny.sort(tiny.as_array(), tmp_path / "run", **settings)
    assert [trainer.config.epochs for (trainer,) in trained] == [4, 4, 1, 3]
    assert run.k.k == len(tiny.OLD)


def test_without_training_the_rule_for_k_is_the_papers(tmp_path: Path) -> None:
    with tiny.quickly():
        found = [
            tiny.sort(tiny.as_array(), tmp_path / method, **{**SETTINGS, "method": method, "epochs": 0, "k": "auto"}).k
            for method in ("sortal", "gcd")
        ]
    assert found[0] == found[1]
    assert found[0].method == "brent"


def test_k_and_its_interval_rest_on_what_was_counted_before_a_classifier_was_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of three known classes was hidden then, and the run says whether it was found."""
    counted: KDistribution | None = None
    learned = rounds.learn

    def learn(*args: Any, **kwargs: Any) -> LearningResult:
        found = learned(*args, **kwargs)
        return found if counted is None else replace(found, counted=counted)

    monkeypatch.setattr(rounds, "learn", learn)
    with tiny.quickly():
        usual = tiny.sort(tiny.as_array(), tmp_path / "run", **{**SETTINGS, "k": "auto"}).k
        counted = distribution(3, (3, 6, 12), (0.0, 0.0, 0.0))  # 3 to 12, each half of the logarithm as likely
        wide = tiny.sort(tiny.as_array(), tmp_path / "run", **{**SETTINGS, "k": "auto"}).k
        counted = replace(distribution(3, (3, 10, 11, 12), (-99.0, -99.0, 0.0, 0.0)), trial=Trial(1, 0))
        high = tiny.sort(tiny.as_array(), tmp_path / "run", **{**SETTINGS, "k": "auto"}).k
        given = tiny.sort(tiny.as_array(), tmp_path / "run", **{**SETTINGS, "k": 5}).k
    assert usual.trial is not None
    assert usual.trial.hidden == 1
    assert usual.interval != wide.interval == narrowed(wide.k, 3, 12)
    assert (high.interval, high.trial) == ((11, 12), Trial(1, 0))
    assert high.k in (11, 12)
    assert (given.interval, given.trial) == (None, None)


def test_smoothed_features_choose_among_the_likely_ks(tmp_path: Path) -> None:
    """Six classes in three pairs: with noise, three are as likely as six, which only their means tell apart."""
    truth = np.repeat(np.arange(6), 60)
    centres = np.eye(64)[truth // 2] + 0.9 * np.eye(64)[6 + truth]
    x = centres + np.random.default_rng(0).normal(0, 0.12, (len(truth), 64))
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    names = [f"c{label}" if label in (0, 2) and at % 2 else None for at, label in enumerate(truth)]
    files = [f"{at}.png" for at in range(len(x))]
    images = image_set(files, pixels=np.zeros((len(x), 8, 8, 3), np.uint8), labels=names)
    job = job_on(images, tmp_path, k="auto")
    found, alone = (estimated_k(job, replace(rows_of(job, x), neighbours=each), images, CPU) for each in (8, 0))
    assert alone.k == 3
    assert found.k == 6
    assert found.interval == alone.interval
    assert found.curve == alone.curve
    assert alone.interval is not None
    assert alone.interval[0] <= 3 < 6 <= alone.interval[1]


@pytest.mark.parametrize(
    ("old", "k"),
    [
        ((), "auto"),
        (tiny.CLASSES, "auto"),
        pytest.param((), 6, marks=pytest.mark.thorough),
        pytest.param(tiny.OLD[:1], "auto", marks=pytest.mark.thorough),
    ],
    ids=str,
)
def test_no_one_and_all_classes_may_be_known(old: tuple[str, ...], k: int | str, tmp_path: Path) -> None:
    tiny.write(tmp_path / "images", tiny.planted(each=10, labelled=7, old=old))
    with tiny.quickly():
        run = tiny.sort(tmp_path / "images", tmp_path / "run", **{**SETTINGS, "k": k})
    assert [category.name for category in run.categories if category.kind == "known"] == sorted(old)
    assert len(run.categories) == run.k.k >= len(old)
    assert run.facts.training is not None
    assert run.facts.training.epochs == (6 if len(old) >= 3 else 4), "with too few to hide, nothing is learned to count"
