"""The card of a run says what is recorded and measured, and nothing of the computer."""

from dataclasses import replace

import numpy as np
from support.exports import of_pixels
from support.sample_run import sample_run

from sortal.config import VECTORS
from sortal.exchange.card import card_of
from sortal.runs.run import Run


def said(run: Run) -> dict[str, str]:
    card = card_of(run)
    return {name: value for rows in card.facts.values() for name, value in rows}


def test_a_card_has_the_facts_of_a_run() -> None:
    run = sample_run(categories=6, known=4, images=72)
    found = said(run)
    labelled = sum(label is not None for label in run.assignments.labels)
    assert (found["images"], found["labelled images"]) == ("72", f"{labelled} of 72")
    assert found["labelled classes"] == "4, 4 each"
    assert found["known"].startswith("4: ")
    assert found["trust in k"] == run.k.basis != ""
    assert "trust in k" not in said(replace(run, k=replace(run.k, estimated=False)))
    assert run.metrics is not None
    assert found["accuracy, all classes"] == f"{100 * (run.metrics.accuracy.all or 0):.1f}%"
    assert found["accuracy, known classes by name"] == "90.0%"
    assert "measured" not in found
    assert found["seed"] == str(run.facts.settings.seed)
    assert any("not on images from elsewhere" in each for each in card_of(run).limits)


def test_a_card_says_what_is_not_known() -> None:
    run = replace(sample_run(truth=False, categories=9), metrics=None)
    run = replace(run, confidence=replace(run.confidence, held_out=3))
    assert said(run)["measured"].startswith("no: ")
    assert said(run)["confidence"] == "not calibrated"
    limits = " ".join(card_of(run).limits)
    for words in ("only 3 labelled images", "9 categories have fewer than 10", "has not been measured"):
        assert words in limits
    sure = card_of(replace(run, confidence=replace(run.confidence, held_out=50))).limits
    assert any("extrapolation" in each for each in sure)


def test_groups_reviews_and_missing_folders_are_counted() -> None:
    run = sample_run(images=12)
    a = replace(run.assignments, group=np.arange(12) // 2, reviewed=np.array([1, 2, *[0] * 10]))
    found = said(of_pixels(replace(run, assignments=a)))
    assert found["moments"] == "6; images of one count once"
    assert found["reviewed by people"] == "1 confirmed, 1 moved"
    assert "from" not in found
    listed = replace(run, facts=replace(run.facts, folders=()))
    given = replace(run, facts=replace(run.facts, folders=("/home/me/photos",)))
    assert ("from" in said(listed), "from" in said(given)) == (False, True), "a list is not of the current folder"


def test_the_card_of_feature_vectors_is_not_about_images() -> None:
    run = sample_run(images=12)
    run = replace(
        run, facts=replace(run.facts, features="/home/me/a.npz", backbone=replace(run.facts.backbone, name=VECTORS))
    )
    for each in (run, replace(run, metrics=None, confidence=replace(run.confidence, held_out=3))):
        card = card_of(each)
        text = " ".join([*card.limits, *(word for rows in card.facts.values() for row in rows for word in row)])
        assert "feature vectors" in text
        assert "image" not in text
        assert "a.npz" not in text
