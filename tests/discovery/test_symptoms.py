"""Signs that a run has failed are said, with a way out."""

from dataclasses import replace

import numpy as np
from support.sample_run import sample_run

from sortal.discovery.symptoms import COLLAPSED, mean_cosine
from sortal.discovery.symptoms import symptoms as all_symptoms
from sortal.reviews.questions import Question
from sortal.runs.run import LABELLED, UNSURE, Run
from sortal.web.report.highlights import Comparison

NOTHING = Comparison([], [])


def symptoms(run: Run, compared: Comparison = NOTHING) -> list[str]:
    return all_symptoms(run, compared)


def healthy() -> Run:
    run = sample_run()
    status = np.where(run.assignments.status == LABELLED, LABELLED, "known")
    return replace(
        run,
        assignments=replace(run.assignments, status=status),
        confidence=replace(run.confidence, held_out=40),
    )


def test_a_healthy_run_has_no_symptoms() -> None:
    assert symptoms(healthy()) == []


def test_collapsed_features_are_named() -> None:
    run = healthy()
    x = run.features + 30 * np.ones_like(run.features) / np.sqrt(run.features.shape[1])
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    assert mean_cosine(x) > COLLAPSED > mean_cosine(run.features)
    (text,) = symptoms(replace(run, features=x))
    assert "all images look nearly the same to the network" in text
    assert "Lower the learning rate, or use other weights." in text


def test_the_mean_cosine_is_that_of_all_pairs() -> None:
    x = healthy().features
    cosines = x.astype(np.float64) @ x.T.astype(np.float64)
    n = len(x)
    assert abs(mean_cosine(x) - (cosines.sum() - np.trace(cosines)) / (n * (n - 1))) < 1e-6
    assert mean_cosine(x[:1]) == 0


def test_many_unsure_images_are_counted() -> None:
    run = healthy()
    a = run.assignments
    free = np.array([label is None for label in a.labels])
    everyone = replace(run, assignments=replace(a, status=np.where(free, UNSURE, a.status)))
    (text,) = symptoms(everyone)
    assert text.startswith(f"{free.sum()} of {free.sum()} unlabelled images are unsure. Label some of them")
    kmeans = replace(run.facts, settings=replace(run.facts.settings, method="kmeans"))
    (text,) = symptoms(replace(everyone, facts=kmeans))
    assert "a method that trains on the images usually separates them better" in text


def test_single_images_and_a_weak_basis_are_pointed_out() -> None:
    run = healthy()
    categories = tuple(
        replace(each, size=1) if each.name == "new 1" else each for each in run.categories
    )  # the sizes of a run must be those of its images, so the record is changed after it was checked
    object.__setattr__(run, "categories", categories)
    single = "1 category has only one image: 'new 1'. k may be too large."
    assert symptoms(run) == [single]
    calibrated = run.confidence
    object.__setattr__(run, "confidence", replace(run.confidence, held_out=7))
    assert symptoms(run)[1:] == [single], "after what all of it rests on"
    object.__setattr__(run, "confidence", calibrated)
    emptied = tuple(replace(each, size=0) if each.kind == "new" else each for each in run.categories)
    object.__setattr__(run, "categories", emptied)
    assert symptoms(run) == ["2 categories have no image at all: 'new 1', 'new 2'. k is larger than what was found."]
    few, none = (symptoms(replace(healthy(), confidence=replace(run.confidence, held_out=n))) for n in (7, 0))
    assert few == ["Confidence rests on 7 held-out images only, so it is not calibrated. Label more images."]
    assert none[0].startswith("Confidence rests on distances alone, as fewer than 20 labelled images could be held out")


def test_categories_that_look_alike_or_mixed_are_named() -> None:
    run = healthy()
    ids = [each.id for each in run.categories if each.kind == "new"]
    first, second = (run.names[each] for each in ids)
    pair = Question(kind="merge", categories=tuple(ids), images=9, likely=0.8)
    split = Question(kind="split", categories=(ids[0],), images=9, likely=0.6)
    assert symptoms(run, Comparison([pair], [split])) == [
        f"These categories look alike, so each pair may be one class: '{first} and {second}'.",
        f"This category looks mixed: '{first}'.",
    ]
    unlikely = Comparison([replace(pair, likely=0.4)], [replace(split, likely=None)])
    assert symptoms(run, unlikely) == []


def test_labelled_classes_that_are_mixed_up_and_a_lack_of_new_ones_are_named() -> None:
    run = healthy()
    a = run.assignments
    labels = tuple(f"class {row % 2}" if row < 40 else None for row in range(len(a)))
    x = np.random.default_rng(0).normal(size=run.features.shape).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    mixed = replace(run, assignments=replace(a, labels=labels), features=x)
    (text,) = symptoms(mixed)
    assert text.startswith("Your labelled classes are hardly told apart: ")
    x[np.arange(0, 40, 2), 0], x[np.arange(1, 40, 2), 0] = 9, -9
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    assert symptoms(replace(mixed, features=x)) == []
    (text,) = symptoms(replace(run, k=replace(run.k, estimated=True, k=4, known=4)))
    assert text.startswith("No new category was found. If you expect some, ask for finer categories, give the number")
    assert symptoms(replace(run, k=replace(run.k, estimated=True, k=4, known=4, usual=6))) == [], "it was wished for"
