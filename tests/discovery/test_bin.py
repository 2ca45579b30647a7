"""The bin of an earlier review: what is in it stays there, and nothing is learned from it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import SortedRun
from support.runtimes import CPU
from support.tiny_folder import sort

from sortal.discovery import stages
from sortal.discovery.job import Job
from sortal.discovery.prediction import predict
from sortal.errors import InputError
from sortal.images.image_set import ImageSet
from sortal.reviews import journal
from sortal.reviews.actions import Bin, PutBack
from sortal.reviews.loading import load_run
from sortal.runs.run import DECISIONS, Run

pytestmark = pytest.mark.usefixtures("quickly")


def put_into_bin(run: Run, rows: list[int]) -> tuple[str, ...]:
    images = tuple(dict.fromkeys(run.assignments.contents[row] for row in rows))
    journal.append(run.folder / DECISIONS, run.facts, [journal.decide(Bin(images=images))])
    return images


@pytest.mark.parametrize("more", [{"method": "kmeans"}, {"method": "kmeans", "learn_on": 40}], ids=str)
def test_sorting_again_learns_nothing_from_the_bin_and_keeps_it(
    copied_run: SortedRun, more: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copied_run.run
    a = run.assignments
    labelled, new = np.flatnonzero(a.status == "labelled"), np.flatnonzero(a.status == "new")
    binned = put_into_bin(run, [int(labelled[0]), *new[:3].tolist()])
    learned_on: list[ImageSet] = []
    find_moments = stages.__dict__["find_moments"]

    def noted(job: Job, images: ImageSet, *rest: Any) -> Any:
        learned_on.append(images)
        return find_moments(job, images, *rest)

    monkeypatch.setattr(stages, "find_moments", noted)
    again = sort(copied_run.images, copied_run.out, **more)
    b = again.assignments
    assert b.files == a.files
    assert {b.contents[row] for row in np.flatnonzero(b.binned)} == {*binned}
    assert (b.category_id[b.binned] == -1).all()
    files = {b.files[row] for row in np.flatnonzero(b.binned).tolist()}
    assert learned_on
    assert not files & {*learned_on[0].files}
    assert sum(each.size for each in again.categories) == len(b) - int(b.binned.sum())
    assert any("In the bin by a review: 4 images" in text for text in again.facts.notes) == ("learn_on" not in more)
    np.testing.assert_allclose(np.linalg.norm(again.features, axis=1), 1, atol=1e-5)
    loaded = load_run(copied_run.out)
    assert loaded.assignments.category_id.tolist() == b.category_id.tolist()
    found = predict(copied_run.out, copied_run.images, update=True, runtime=CPU)
    assert found.added == 0


def test_a_bin_of_all_that_is_unlabelled_leaves_nothing_to_sort(copied_run: SortedRun) -> None:
    run = copied_run.run
    put_into_bin(run, np.flatnonzero(run.assignments.status != "labelled").tolist())
    with pytest.raises(InputError, match="Every image is labelled or in the bin"):
        sort(copied_run.images, copied_run.out, method="kmeans", k=9)


def test_what_is_put_back_takes_part_again(copied_run: SortedRun) -> None:
    run = copied_run.run
    images = put_into_bin(run, np.flatnonzero(run.assignments.status == "new")[:2].tolist())
    journal.append(run.folder / DECISIONS, run.facts, [journal.decide(PutBack(images=images))])
    again = sort(copied_run.images, copied_run.out, method="kmeans")
    assert not again.assignments.binned.any()
