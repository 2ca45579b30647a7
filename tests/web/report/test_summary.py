"""The records of a report: cards, confusion, and addresses of originals."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.sample_run import by_hand, sample_run

from sortal.runs.facts import Confused, ImageSource
from sortal.web.report import summary


def test_a_card_shows_the_most_typical_images_and_then_the_least_sure_unlabelled_ones() -> None:
    first, second = summary.cards(by_hand(), typical=2, doubtful=1)
    assert first.typical == [6, 2]
    assert first.doubtful == [4]  # row 0 is labelled
    assert first.confidence == pytest.approx((0.6 + 0.3 + 0.7) / 3)
    assert second.typical == [1, 3]  # a tie keeps their order
    assert second.doubtful == [5]
    first, second = summary.cards(by_hand(), typical=3, doubtful=5)
    assert (first.typical, first.doubtful) == ([6, 2, 0], [4]), "an unsure image is not typical, however near"
    assert (second.typical, second.doubtful) == ([1, 3, 7], [5]), "no image is shown twice"
    assert np.flatnonzero(summary.wrong(by_hand())).tolist() == [1, 4], "images of a known class in another category"


def test_images_of_one_moment_are_known_to_the_page_and_fit_nowhere_once() -> None:
    run, status = by_hand(), np.array(["labelled", "new", "known", "other", "other", "other", "known", "unsure"])
    group, apart = np.array([0, 1, 0, 2, 3, 2, 0, 4]), np.array([0, 0, 0, 4.0, 3.0, 5.0, 0, 0])
    run = replace(run, assignments=replace(run.assignments, status=status, group=group, apart=apart))
    assert summary.images(run, [2, 1, 6, 5, 0, 3])["moment"] == {2: 0, 4: 0, 5: 3}
    assert summary.images(run, [2, 1, 3])["stack"] == {0: 3, 2: 2}  # even if the others are not on the page
    assert summary.farthest(run) == [5, 4]


def test_confusion_is_a_table_or_a_list_if_there_are_many_classes() -> None:
    run = sample_run(categories=3, known=2, images=9)
    counts = [("class 0", 0, 6), ("class 0", 2, 2), ("class 1", 0, 1), ("class 1", 1, 3)]
    made = summary.confusion([Confused(*each) for each in counts], run.categories)
    assert made is not None
    assert made.known == {"class 0": 0, "class 1": 1}
    assert [*made.rows.values()] == [[6, 0, 2], [1, 3, 0]]
    assert made.mistakes == [("class 0", 2, 2), ("class 1", 0, 1)]
    assert made.totals == {"class 0": 8, "class 1": 4}
    assert summary.confusion([], run.categories) is None
    run = sample_run(categories=40, known=35, images=80)
    made = summary.confusion([Confused(f"class {i}", (i + 1) % 35, i + 1) for i in range(35)], run.categories)
    assert made is not None
    assert made.rows == {}
    assert (made.mistakes[0].truth, made.mistakes[0].images) == ("class 34", 35)


def test_originals_are_addressed_from_the_report_whatever_their_names_are(tmp_path: Path) -> None:
    files = ["plain/é #1.jpg", "\udcff.jpg", "/elsewhere/b?.jpg", "listed.jpg"]
    run = sample_run(categories=1, known=0, images=4, file=lambda row: files[row])
    source = ImageSource(folder=str(tmp_path / "my photos"), images=4, paths={"listed.jpg": str(tmp_path / "c%.jpg")})
    run = replace(run, folder=tmp_path / "run", facts=replace(run.facts, images=(source,)))
    assert [each["url"] for each in summary.sources(run)] == ["./../my%20photos/"]
    up = "../" * len((tmp_path / "run").parts[1:])
    urls = {1: "./../my%20photos/%FF.jpg", 2: f"./{up}elsewhere/b%3F.jpg", 3: "./../c%25.jpg"}
    assert summary.images(run, [0, 1, 2, 3], True)["url"] == urls, "a plain name needs no address of its own"
    del urls[2]  # which would say where the report is
    assert summary.images(run, [0, 1, 2, 3])["url"] == urls
    away = replace(run, folder=tmp_path / "other" / "run")
    assert summary.images(away, [0, 1, 2, 3])["url"] == {}
    assert summary.sources(away) == [{"name": "my photos", "url": None}]
    assert [each["url"] for each in summary.sources(away, True)] == ["./../../my%20photos/"]
    array = replace(run, facts=replace(run.facts, images=(ImageSource(folder=None, images=4, paths={}),)))
    assert summary.sources(array) == [{"name": None, "url": None}]
    assert summary.images(array, [0, 1])["url"] == {}
