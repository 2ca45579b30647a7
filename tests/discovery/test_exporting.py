"""Exports of the model: loaded again, it sorts new images exactly as the run does."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from conftest import SortedRun
from support import tiny_folder as tiny
from support.runtimes import CPU

import sortal
from sortal.discovery.exporting import MODEL_FORMATS, export
from sortal.discovery.prediction import redraw
from sortal.discovery.reviewing.open import open_review
from sortal.errors import InputError
from sortal.exchange.export import EXPORT_FORMATS
from sortal.research.figures import draw
from sortal.reviews.loading import load_run

NEW_IMAGES = {f"{name} {number}.png": f"{name} {number}" for name in (*tiny.CLASSES, "oak") for number in (500, 501)}


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("more")
    tiny.write(folder, NEW_IMAGES)
    return folder


def test_a_model_without_images_sorts_as_its_run_does_and_leaves_nothing_behind(
    sorted_run: SortedRun, more: Path, tmp_path: Path
) -> None:
    hub = export(sorted_run.out, "hub", tmp_path / "hub").out
    before = sorted(path.name for path in hub.rglob("*"))
    ours, theirs = (sortal.load(place).predict(more, runtime=CPU) for place in (sorted_run.out, hub))
    for name in ("category_id", "status", "confidence", "distance", "apart"):
        np.testing.assert_array_equal(getattr(ours.assignments, name), getattr(theirs.assignments, name))
    assert len({*ours.assignments.status.tolist()}) > 1
    assert sortal.load(hub).categories == tuple(sorted_run.run.names.values())
    assert repr(sortal.load(hub)) == f"<Model: 3 known and 3 new categories; {str(hub)!r}>"
    assert repr(ours).startswith(f"<Prediction: {len(ours.assignments)} images, 0 added; <Run: ")
    assert sorted(path.name for path in hub.rglob("*")) == before
    with pytest.raises(InputError, match="exported without its images, so none can be added"):
        sortal.load(hub).predict(more, update=True, runtime=CPU)
    assert sorted(path.name for path in hub.rglob("*")) == before


def test_a_model_without_images_says_so_wherever_they_are_needed(sorted_run: SortedRun, tmp_path: Path) -> None:
    hub = export(sorted_run.out, "hub", tmp_path / "hub").out
    before = sorted(path.name for path in hub.rglob("*"))
    uses: dict[str, Callable[[], object]] = {
        **{name: partial(export, hub, name, tmp_path / "out") for name in EXPORT_FORMATS},
        "report": partial(redraw, hub, runtime=CPU),
        "review": partial(open_review, hub, runtime=CPU),
        "figures": lambda: draw(load_run(hub), runtime=CPU),
    }
    for use in uses.values():
        with pytest.raises(InputError, match=r"'.*hub' holds no images.*Use the run that it was made of"):
            use()
    assert not (tmp_path / "out").exists()
    assert sorted(path.name for path in hub.rglob("*")) == before
    assert export(hub, "hub", tmp_path / "again").out.is_dir()


def test_a_model_is_an_export_like_any_other(sorted_run: SortedRun, tmp_path: Path) -> None:
    out = export(sorted_run.run, "hub", tmp_path / "hub")
    assert (out.format, out.images, out.missing) == ("hub", len(sorted_run.run.assignments), ())
    with pytest.raises(InputError, match="must be new or empty"):
        export(sorted_run.run, "hub", tmp_path / "hub")
    export(sorted_run.run, "hub", tmp_path / "hub", force=True)
    with pytest.raises(InputError, match=f"one of csv, .*{', '.join(MODEL_FORMATS)}, got 'xlsx'"):
        export(sorted_run.run, "xlsx", tmp_path / "none")
    assert export(sorted_run.run, "csv", tmp_path / "t.csv").images == out.images
