"""Jobs: invalid requests are refused up front with a remedy; the recorded command repeats the request."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, cast
from unittest.mock import patch

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.layouts import plant_photos
from support.runtimes import CPU
from support.sample_run import sample_facts

from sortal.cli.app import app
from sortal.config import BUILT_IN, Discovery, Reading
from sortal.discovery import job as job_module
from sortal.discovery.defaults import recipe_for
from sortal.discovery.job import Job, Source, check_sortable, prepare
from sortal.errors import InputError
from sortal.images.image_set import ImageSet, image_set
from sortal.learning.backbones import hub
from sortal.runs.facts import ImageSource
from sortal.runs.storage import RUN_FORMAT
from sortal.system.files import lock_folder
from sortal.system.progress import Runtime

NAMES = tuple(sorted(BUILT_IN))
USUAL = Discovery()
OPTIONS: dict[str, Any] = {"runtime": CPU, "force": False}


@pytest.fixture(autouse=True)
def _hub_in_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "check_reachable", lambda *_: None)


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create two known classes and three unlabelled images in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    return plant_photos(tmp_path / "photos")


def asked(images: Source, out: Any = None, settings: Discovery = USUAL, *, labels: Any = None, **options: Any) -> Job:
    return prepare(images, labels, out, settings, Reading(**options.pop("reading", {})), **{**OPTIONS, **options})


def refusal(images: Source, out: Any = None, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        asked(images, out, **options)
    return str(caught.value)


def some(labels: Sequence[str | None], *, validation: Sequence[int] = ()) -> ImageSet:
    files = [f"{row}.jpg" for row in range(len(labels))]
    return image_set(files, paths=files, labels=labels, validation=np.isin(np.arange(len(labels)), validation))


def finished(place: Path, folder: str | None) -> None:
    """Write the file that marks a finished run."""
    place.mkdir(parents=True, exist_ok=True)
    facts = replace(
        sample_facts(6, np.zeros((6, 2), dtype=np.float32), 2),
        images=(ImageSource(folder=folder, images=6, paths={}),),
        settings=Discovery(backbone="convnet"),
    )
    place.mkdir(parents=True, exist_ok=True)
    (place / "run.json").write_text(json.dumps({"format": RUN_FORMAT, **asdict(facts)}))


UNLABELLED = (
    "Some images must be unlabelled, got 1,200 images, all labelled. Put unlabelled images into a folder "
    "named unlabelled, or leave their label empty in the table."
)
VIEWS = "views must be 'auto' or 'live' for convnet, which caches no views, got 4."
BOUNDS = "k must be from {} (the labelled classes) to {} (with a class for each unlabelled image), got {}."
VALIDATION = (
    "Images to sort must be labelled or unlabelled, got 1,200 for validation. "
    "Leave them out: images.select(~images.validation)."
)


@pytest.mark.parametrize(
    ("images", "settings", "message"),
    [
        (some(["cat"] * 1500 + [None], validation=range(1200)), {"k": 2}, VALIDATION),
        (some(["cat", "dog"] * 600), {}, UNLABELLED),
        (some([None, None]), {}, None),
        (some([None, None]), {"k": 1}, None),
        (some(["cat", "cat", None]), {}, None),
        (some(["a", "b", "c", None]), {"k_max": 2}, "k_max must be at least 3 (the labelled classes), got 2."),
        (some(["a", "b", "c", None]), {"k_max": 3}, None),
        (some([*map(str, range(1001)), None]), {}, None),  # k_max follows
        (some(["a", "b", "c", None]), {"k_max": 2, "k": 3}, None),  # it does not matter if k is given
        (some(["a", "b", "b", None, None]), {"k": 1}, BOUNDS.format(2, 4, 1)),
        (some(["a", "b", "b", None, None]), {"k": 2}, None),
        (some(["a", "b", "b", None, None]), {"k": 4}, None),
        (some(["a", "b", "b", None, None]), {"k": 5}, BOUNDS.format(2, 4, 5)),
        # A selection keeps its classes, but those without images are not counted.
        (some(["a", "b", "c", None]).select(np.array([True, False, True, True])), {"k": 2}, None),
        (some(["a", None]), {"k": 2, "backbone": "convnet", "views": 4}, VIEWS),
        (some(["a", None]), {"k": 2, "backbone": "convnet", "views": "live"}, None),
    ],
)
def test_images_and_settings_must_be_compatible(
    images: ImageSet, settings: dict[str, Any], message: str | None
) -> None:
    if message is None:
        check_sortable(images, Discovery(**settings))
        return
    with pytest.raises(InputError) as caught:
        check_sortable(images, Discovery(**settings))
    assert str(caught.value) == message


def test_invalid_jobs_are_refused_before_any_work(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal(photos, settings=Discovery(k=1)).startswith("k must be from 2 (the labelled classes) to 5 ")
    assert refusal("gone").startswith("The ")
    table = photos.parent / "labels.jsonl"
    table.write_text(json.dumps({"file_name": "loose.jpg", "label": "cat \ud800"}) + "\n")
    message = refusal(photos, labels=table, reading={"unlisted": "unlabelled"}, settings=Discovery(k=3))
    assert "A label must be text that can be written as UTF-8, got 'cat \\ud800'." in message
    assert refusal(photos, runtime=Runtime(device="gpu")).startswith("device must be ")
    assert refusal(photos, runtime=Runtime(workers=0)).startswith("workers must be ")
    assert asked(photos, runtime=Runtime(workers=1)).runtime.workers == 1
    assert not list(photos.parent.glob("*-run"))


def test_the_run_is_named_after_the_images_and_lies_in_the_current_folder(photos: Path) -> None:
    for images in (photos, "photos", "photos/", "./photos/../photos", str(photos)):
        job = asked(images)
        assert (job.place, job.origin.folder, job.cache) == (Path("photos-run"), str(photos), Path("photos-run/cache"))
    assert asked(photos, "elsewhere").place == Path("elsewhere")
    assert not Path("photos-run").exists()  # nothing is written
    assert asked("photos").origin.command == "sortal discover photos --out photos-run"  # only what differs
    assert asked(photos, "a b").origin.command == f"sortal discover {shlex.quote(str(photos))} --out 'a b'"
    files = [str(path) for path in photos.rglob("*.jpg")]
    settings = Discovery(k=2)
    job = asked(files, "elsewhere", settings)
    assert (job.place, job.origin.folder) == (Path("elsewhere"), str(photos.parent))
    assert job.origin.command == "sortal.discover(...) with the settings above"
    # Rows of an array have no folder.
    rows = image_set(["0", "1"], pixels=np.zeros((2, 4, 4, 3), dtype=np.uint8), labels=["a", None])
    job = asked(rows, "images-run", settings)
    assert (job.origin.folder, job.place) == (None, Path("images-run"))
    assert job.images is rows
    assert refusal(cast(Any, 5)).endswith("a list of files, an ImageSet or a run, got int.")
    for source in (files, rows):
        assert "out is required for images that are not a folder" in refusal(source, settings=settings)
    for options in ({"reading": {"folders": "ignore"}}, {"labels": "labels.csv"}):
        assert "cannot be combined with an ImageSet" in refusal(rows, "x", settings=settings, **options)
    finished(Path("images-run"), None)
    assert asked(rows, "images-run", settings).place == Path("images-run")
    assert "holds a run of other images, given as an array." in refusal(photos, "images-run")
    settings = Discovery(k=2, backbone="convnet")
    job = asked(photos, "out", settings, runtime=replace(CPU, workers=3))
    assert (job.settings, job.device.type, job.runtime.workers, job.on_gpu) == (settings, "cpu", 3, False)
    assert job.images.classes == ("cat", "dog")
    assert int(job.images.unlabelled.sum()) == 3
    assert (job.recipe, job.cache) == (recipe_for(job.settings, 6, on_gpu=False), Path("out/cache"))
    shared = replace(job, shared=Path("elsewhere"))
    assert (shared.cache, shared.place) == (Path("elsewhere"), Path("out"))


@pytest.mark.parametrize("force", [False, True])
def test_a_file_or_a_folder_among_the_images_is_refused(photos: Path, force: bool) -> None:
    Path("file").write_text("mine")
    Path("other").mkdir()
    os.symlink("gone", "dangling")
    os.symlink("photos", "link")
    os.symlink(".", "up")
    for out in ("file", "dangling"):
        message = f"The run must be a folder, got {out!r}, which is a file. Choose another folder (out=...)."
        assert refusal(photos, out, force=force) == message
    among = "The run must be outside the folder of images, got {!r}. Choose another folder (out='{}-run')."
    for out in ("photos", "photos/cat/a/b", "./photos/run", "other/../photos/run", "link/run", "up/photos/x"):
        assert refusal("photos", out, force=force) == among.format(str(Path(out)), photos)
    assert refusal("link", "photos/run", force=force) == among.format("photos/run", photos.parent / "link")
    for out in ("photos/../run", "photos-run", "photographs", f"{photos}-run"):
        assert asked("photos", out, force=force).place == Path(out)
    os.chdir(photos)
    assert refusal(".", force=force) == among.format("photos-run", photos)
    assert asked(".", "../photos-run", force=force).place == Path("../photos-run")


def test_the_folder_of_a_run_may_contain_its_images_but_nothing_else(photos: Path) -> None:
    plant_photos(Path("run/deep/images"))
    for out in ("run", "run/../run"):
        assert asked("run/deep/images", out).place == Path(out)
    os.symlink(photos, "run/linked")
    assert "which contains 'linked'. " in refusal("run/deep/images", "run")
    Path("run/linked").unlink()
    Path("run/notes.txt").write_text("mine")
    assert "which contains 'notes.txt'. " in refusal("run/deep/images", "run")
    assert "which contains 'deep', 'notes.txt'. " in refusal(photos, "run")


def test_a_folder_with_other_content_is_refused_unless_forced(photos: Path) -> None:
    Path("out").mkdir()
    assert asked(photos, "out").place == Path("out")  # empty
    for name in ("d", "b", "a", "c"):
        (Path("out") / name).touch()
    assert refusal(photos, "out") == (
        "The run must be a new or empty folder or an earlier run, got 'out', which contains 'a', 'b', 'c' and 1 more. "
        "Choose another folder (out=...), or write into it nevertheless (force=True)."
    )
    assert asked(photos, "out", force=True).place == Path("out")
    # The remains of a run that was interrupted early
    Path("stages/cache").mkdir(parents=True)
    with lock_folder(Path("begun")):
        pass
    for name in ("stages", "begun"):
        assert asked(photos, name).place == Path(name)
        Path(name, "metrics.json").touch()
        assert "which contains 'metrics.json'. " in refusal(photos, name)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "has a damaged run.json: Expecting property name"),
        (json.dumps({"format": RUN_FORMAT}), "has a damaged run.json: run.json has no key 'backbone'"),
        (json.dumps({"format": "another"}), "has a run.json of another format"),
    ],
)
def test_a_damaged_run_is_not_taken_for_a_folder_of_images(photos: Path, content: str, problem: str) -> None:
    run = plant_photos(photos.parent / "run")  # pictures such as those of `sortal figures`
    for name in ("assignments.csv", "categories.csv", "centres.npy"):
        (run / name).touch()
    (run / "run.json").write_text(content)
    assert f"'{run}' cannot be sorted again, as it {problem}" in refusal(run)
    assert f"got 'run', which {problem}" in refusal(photos, "run")
    assert asked(photos, "run", force=True).place == Path("run")
    (run / "centres.npy").unlink()
    assert len(asked(run, "elsewhere").images) == 6


def test_an_earlier_run_is_resumed_but_not_overwritten(photos: Path) -> None:
    finished(Path("photos-run"), str(photos))
    Path("photos-run/more.txt").touch()
    assert asked("photos", settings=Discovery(k=3)).place == Path("photos-run")
    remedy = "Choose another folder (out=...), or overwrite it (force=True)."
    finished(Path("photos-run"), "/other")
    assert refusal(photos) == f"'photos-run' holds a run of other images, '/other'. {remedy}"
    assert asked(photos, force=True).place == Path("photos-run")


def parsed(command: str) -> tuple[dict[str, Any], Discovery, Reading]:
    """Return the paths and settings that the command line parses from a command."""
    program, *words = shlex.split(command)
    assert program == "sortal"
    called, bound, *_ = app.parse_args(words, print_error=False, exit_on_error=False)
    assert getattr(called, "__name__", "") == "discover"
    paths: dict[str, Any] = dict(bound.arguments)
    return paths, paths.pop("settings", Discovery()), paths.pop("reading", Reading())


@given(
    st.builds(
        Discovery,
        k=st.just("auto") | st.integers(2, 5),
        method=st.sampled_from(NAMES),
        backbone=st.sampled_from(["convnet", "-x", "a 'quoted' \"one\"", "$HOME"]),
        weights=st.none() | st.sampled_from(["w.safetensors", "-w", "--k", "x=y"]),
        epochs=st.just("auto") | st.integers(1, 500),
        lr=st.just("auto") | st.floats(1e-9, 1e3),
        views=st.sampled_from(["auto", "live", 2, 8]),
        seed=st.integers(0, 2**31 - 1),
        k_max=st.just("auto") | st.integers(2, 10**6),
        n_init=st.integers(1, 100),
        held_out=st.floats(0, 0.5),
        unsure_below=st.floats(0, 1),
    ).filter(lambda one: one.backbone != "convnet" or not isinstance(one.views, int)),
    st.booleans(),
    st.sampled_from(["-photos", "--out", 'it\'s "b"', "$HOME `x` *", "two\nlines", "#1", "-", "a=b", "~"]),
)
@hypothesis.settings(
    deadline=None, max_examples=60, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
def test_the_recorded_command_parses_to_the_same_settings_and_paths(
    photos: Path, settings: Discovery, as_usual: bool, name: str
) -> None:
    odd = Reading(folders="ignore", unlabelled="none", unlisted="unlabelled", extra_columns="ignore")
    reading = Reading() if as_usual else odd
    here = Path(mkdtemp(dir=photos.parent))  # per example, as the run of one may have the name of another's images
    plant_photos(here / name)
    os.chdir(here)
    table = Path(f"{name}.csv")
    table.write_text("file_name,label,note\ncat/1.jpg,cat,x\ndog/1.jpg,dog,y\n")
    labels: dict[str, Any] = {} if as_usual else {"labels": table}
    with patch.object(job_module, "check_backbone"):  # which refuses such names
        job = asked(name, f"{name}-out", settings, reading=asdict(reading), **labels)
    paths = {"images": [Path(name)], "out": Path(f"{name}-out"), **labels}
    assert parsed(job.origin.command) == (paths, settings, reading)
