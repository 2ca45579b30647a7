"""Jobs: what cannot end well is refused before any work, with a way out; the command repeats what was asked for."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortal import kept, run
from sortal.advice import recipe_for
from sortal.cli import app
from sortal.config import Discovery, MethodName
from sortal.errors import InputError
from sortal.images import ImageSet, image_set
from sortal.job import READING, Job, Source, check_sortable, prepare
from sortal.lock import alone

METHODS: tuple[MethodName, ...] = get_args(MethodName)
OPTIONS: dict[str, Any] = {"device": "cpu", "workers": None, "force": False}


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two known classes and three images without a label, in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    return a_folder(tmp_path / "photos")


def a_folder(folder: Path) -> Path:
    for name in ("cat/1.jpg", "cat/2.jpg", "dog/1.jpg", "unlabelled/1.jpg", "unlabelled/2.jpg", "loose.jpg"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def asked(
    images: Source,
    out: str | Path | None = None,
    settings: Discovery | None = None,
    *,
    labels: str | Path | None = None,
    reading: dict[str, Any] | None = None,
    **options: Any,
) -> Job:
    return prepare(
        images, labels, out, settings or Discovery(), {**READING, **(reading or {})}, **{**OPTIONS, **options}
    )


def refusal(images: Source, out: str | Path | None = None, settings: Discovery | None = None, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        asked(images, out, settings, **options)
    return str(caught.value)


def some(labels: Sequence[str | None], *, validation: Sequence[int] = ()) -> ImageSet:
    files = [f"{row}.jpg" for row in range(len(labels))]
    kept_out = np.isin(np.arange(len(labels)), validation)
    return image_set(files, paths=files, labels=labels, validation=kept_out)


def finished(place: Path, folder: str | None, updates: Sequence[int] = ()) -> None:
    """What tells that there is a run."""
    place.mkdir(parents=True, exist_ok=True)
    about = {"format": run.FORMAT, "images": [{"folder": folder, "images": 6, "paths": {}}]}
    about["updates"] = [{"folder": "/more", "images": count, "finished": ""} for count in updates]
    kept.save(place / "run.json", about)


# What can be sorted


def test_images_for_validation_are_refused() -> None:
    with pytest.raises(InputError) as caught:
        check_sortable(some(["cat"] * 1500 + [None], validation=range(1200)), Discovery(k=2))
    assert str(caught.value) == (
        "Images to be sorted must be labelled or unlabelled, got 1,200 for validation. "
        "Leave them out: images.select(~images.validation)."
    )


def test_there_must_be_something_to_sort() -> None:
    with pytest.raises(InputError) as caught:
        check_sortable(some(["cat", "dog"] * 600), Discovery())
    assert str(caught.value) == (
        "There must be images without a label to sort, got 1,200 images, all labelled. Put those without a label "
        "into a folder named unlabelled, or leave their label empty in the table."
    )


@pytest.mark.parametrize(("labels", "known"), [([None, None], 0), (["cat", "cat", None], 1)])
def test_k_is_estimated_from_two_classes_at_least(labels: list[str | None], known: int) -> None:
    with pytest.raises(InputError) as caught:
        check_sortable(some(labels), Discovery())
    assert str(caught.value) == (
        f"To estimate k, images of at least two classes must be labelled, got {known}. Label some, or give k."
    )
    check_sortable(some(labels), Discovery(k=max(known, 1)))  # the way out


def test_k_max_must_reach_the_known_classes() -> None:
    images = some(["a", "b", "c", None])
    with pytest.raises(InputError) as caught:
        check_sortable(images, Discovery(k_max=2))
    assert str(caught.value) == "k_max must be at least 3 (the labelled classes), got 2."
    check_sortable(images, Discovery(k_max=3))
    check_sortable(images, Discovery(k_max=2, k=3))  # where nothing is estimated it does not matter


@pytest.mark.parametrize(
    ("labels", "least", "most"), [(["a", "b", "b", None, None], 2, 4), (["a", None], 1, 2), ([None, None, None], 0, 3)]
)
def test_k_is_from_the_known_classes_to_every_image_its_own(labels: list[str | None], least: int, most: int) -> None:
    for k in range(max(least, 1), most + 1):
        check_sortable(some(labels), Discovery(k=k))
    for k in {least - 1, most + 1} - {0, -1}:
        with pytest.raises(InputError) as caught:
            check_sortable(some(labels), Discovery(k=k))
        assert str(caught.value) == (
            f"k must be from {least} (the labelled classes) to {most} (and every unlabelled image a class of its own), "
            f"got {k}."
        )


def test_classes_without_an_image_left_are_not_counted() -> None:
    """A set of which some were left out keeps its classes."""
    images = some(["a", "b", "c", None]).select(np.array([True, False, True, True]))
    assert len(images.classes) == 3
    check_sortable(images, Discovery(k=2, k_max=2))
    check_sortable(images, Discovery(k_max=2))


def test_prepare_refuses_what_cannot_be_sorted(photos: Path) -> None:
    assert refusal(photos, settings=Discovery(k=1)).startswith("k must be from 2 (the labelled classes) to 5 ")
    assert refusal(photos, reading={"folders": "ignore"}).startswith("To estimate k, ")
    assert refusal("gone").startswith("The ")
    assert not list(photos.parent.glob("*-run"))


def test_labels_that_cannot_be_written_are_refused(photos: Path) -> None:
    """They would spoil the tables of the run when all the work is done."""
    table = photos.parent / "labels.jsonl"
    table.write_text(json.dumps({"file_name": "loose.jpg", "label": "cat \ud800"}) + "\n")
    said = refusal(photos, labels=table, reading={"unlisted": "unlabelled"}, settings=Discovery(k=3))
    assert "A label must be text that can be written as UTF-8, got 'cat \\ud800'." in said


# Where it goes


def test_the_run_is_named_after_the_images_and_lies_in_the_current_folder(photos: Path) -> None:
    for images in (photos, "photos", "photos/", "./photos/../photos", str(photos)):
        job = asked(images)
        assert job.place == Path("photos-run")
        assert job.source == str(photos)
        assert job.cache == Path("photos-run/cache")
    files = [str(path) for path in photos.rglob("*.jpg")]
    job = asked(files, "elsewhere", settings=Discovery(k=2))
    assert (job.place, job.source) == (Path("elsewhere"), str(photos.parent))
    assert "out must be given for images that are no folder" in refusal(files, settings=Discovery(k=2))
    assert asked(photos, "elsewhere").place == Path("elsewhere")
    assert not Path("photos-run").exists()  # nothing is written yet


def test_rows_of_an_array_lie_nowhere(photos: Path) -> None:
    pixels = np.zeros((3, 4, 4, 3), dtype=np.uint8)
    images = image_set(["0", "1", "2"], pixels=pixels, labels=["a", None, None])
    job = asked(images, "images-run", settings=Discovery(k=2))
    assert (job.source, job.place) == (None, Path("images-run"))
    assert "out must be given for images that are no folder" in refusal(images, settings=Discovery(k=2))
    said = refusal(images, "x", settings=Discovery(k=2), reading={"folders": "ignore"})
    assert "An ImageSet has its labels" in said
    assert job.images is images
    finished(Path("images-run"), None)
    assert asked(images, "images-run", settings=Discovery(k=2)).place == Path("images-run")
    assert "holds a run of other images, None." in refusal(photos, "images-run")


def test_the_job_has_what_was_asked_for(photos: Path) -> None:
    settings = Discovery(k=4)
    job = asked(photos, "out", settings, workers=3)
    assert (job.settings, job.device, job.workers, job.on_gpu) == (settings, "cpu", 3, False)
    assert job.images.classes == ("cat", "dog")
    assert int(job.images.unlabelled.sum()) == 3


def test_a_job_is_done_as_suits_its_settings_and_keeps_things_in_its_place_unless_told(photos: Path) -> None:
    job = asked(photos, "out")
    assert (job.recipe, job.shared, job.cache) == (None, None, Path("out/cache"))
    shared = replace(job, shared=Path("elsewhere"), recipe=recipe_for(job.settings, 6, on_gpu=False))
    assert shared.cache == Path("elsewhere")
    assert shared.place == Path("out")


def test_a_file_is_no_place(photos: Path) -> None:
    Path("file").write_text("mine")
    for force in (False, True):
        assert refusal(photos, "file", force=force) == (
            "The run must be a folder, got 'file', which is a file. Choose another (--out)."
        )
    os.symlink("gone", "dangling")
    assert refusal(photos, "dangling").startswith("The run must be a folder, got 'dangling', ")
    assert Path("file").read_text() == "mine"


@pytest.mark.parametrize(
    "out", ["photos", "photos/run", "photos/cat/a/b", "./photos/run", "other/../photos/run", "link/run", "up/photos/x"]
)
@pytest.mark.parametrize("force", [False, True])
def test_a_place_among_the_images_is_refused(photos: Path, out: str, force: bool) -> None:
    Path("other").mkdir()
    os.symlink("photos", "link")
    os.symlink(".", "up")
    said = refusal("photos", out, force=force)
    assert said == (
        f"The run must not lie among the images, got {str(Path(out))!r}. Choose another folder (--out {photos}-run)."
    )
    assert asked("photos", f"{photos}-run").place == Path(f"{photos}-run")  # the way out


def test_a_place_among_images_that_are_a_link_is_refused_too(photos: Path) -> None:
    os.symlink("photos", "link")
    assert refusal("link", "photos/run").startswith("The run must not lie among the images, ")
    assert "--out " in refusal("link", "link/run")


def test_the_images_of_the_current_folder_need_another_place(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(photos)
    assert refusal(".") == (
        "The run must not lie among the images, got 'photos-run'. "
        f"Choose another folder (--out {photos.parent / 'photos-run'})."
    )
    assert asked(".", "../photos-run").place == Path("../photos-run")


@pytest.mark.parametrize("out", ["photos/../run", "photos-run", "photographs", "."])
def test_a_place_that_only_looks_like_it_is_not_refused(photos: Path, out: str) -> None:
    assert asked("photos", out).place == Path(out)


def test_images_in_the_run_s_folder_are_allowed_and_other_things_there_are_not(photos: Path) -> None:
    a_folder(Path("run/deep/images"))
    assert asked("run/deep/images", "run").place == Path("run")
    assert asked("run/deep/images", "run/../run").place == Path("run/../run")
    os.symlink(photos, "run/linked")
    assert "which holds 'linked'. " in refusal("run/deep/images", "run")
    Path("run/linked").unlink()
    Path("run/notes.txt").write_text("mine")
    assert "which holds 'notes.txt'. " in refusal("run/deep/images", "run")
    assert "which holds 'deep', 'notes.txt'. " in refusal(photos, "run")


def test_a_folder_of_other_things_is_refused_unless_forced(photos: Path) -> None:
    Path("out").mkdir()
    assert asked(photos, "out").place == Path("out")  # empty
    for name in ("d", "b", "a", "c"):
        (Path("out") / name).touch()
    assert refusal(photos, "out") == (
        "The run must be a new or empty folder or an earlier run, got 'out', which holds 'a', 'b', 'c' and 1 more. "
        "Choose another (--out), or allow it (--force)."
    )
    assert asked(photos, "out", force=True).place == Path("out")


def test_a_run_that_was_broken_off_early_goes_on(photos: Path) -> None:
    Path("stages/cache").mkdir(parents=True)
    assert asked(photos, "stages").place == Path("stages")
    with alone(Path("begun")):  # that is all that a run leaves whose weights cannot be loaded
        pass
    assert asked(photos, "begun").place == Path("begun")
    Path("begun/mine.txt").touch()
    assert "which holds 'mine.txt'. " in refusal(photos, "begun")


def test_an_earlier_run_of_the_same_images_is_gone_on_with(photos: Path) -> None:
    finished(Path("photos-run"), str(photos))
    Path("photos-run/more.txt").touch()
    assert asked("photos").place == Path("photos-run")
    assert asked(photos, settings=Discovery(k=3)).place == Path("photos-run")


def test_a_run_of_other_images_is_refused_unless_forced(photos: Path) -> None:
    finished(Path("photos-run"), "/other")
    assert refusal(photos) == (
        "'photos-run' holds a run of other images, '/other'. Choose another folder (--out), or write over it (--force)."
    )
    assert asked(photos, force=True).place == Path("photos-run")


def test_a_run_that_images_were_added_to_is_refused_unless_forced(photos: Path) -> None:
    finished(Path("photos-run"), str(photos), updates=[1000, 234])
    assert refusal(photos) == (
        "1,234 images were added to the run in 'photos-run', which sorting anew would drop. "
        "Choose another folder (--out), or write over it (--force)."
    )
    assert asked(photos, force=True).place == Path("photos-run")


@pytest.mark.parametrize("device", ["gpu", "cuda:99", ""])
def test_a_device_that_is_none_is_refused_before_any_work(photos: Path, device: str) -> None:
    said = refusal(photos, device=device)
    assert said.startswith("device must be ")
    assert repr(device) in said


def test_no_worker_is_too_few(photos: Path) -> None:
    assert refusal(photos, workers=0).startswith("workers must be ")
    assert asked(photos, workers=1).workers == 1


def test_torchrun_is_refused(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert refusal(photos) == (
        "discover must be started as one process, not by torchrun. sortal.train.train takes several."
    )
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert asked(photos).place == Path("photos-run")


# What repeats it


def parsed(command: str) -> tuple[dict[str, Any], Discovery, dict[str, Any]]:
    """Paths, settings and ways of reading that the command line takes a command for."""
    program, *words = shlex.split(command)
    assert program == "sortal"
    called, bound, *_ = app.parse_args(words, print_error=False, exit_on_error=False)
    assert getattr(called, "__name__", "") == "discover"
    told: dict[str, Any] = dict(bound.arguments)
    paths: dict[str, Any] = {name: told.pop(name) for name in ("images", "out", "labels") if name in told}
    reading = {name: told.pop(name, default) for name, default in READING.items()}
    if told.get("views") == "live":
        told["views"] = None
    if "weights" in told:
        told["weights"] = str(told["weights"])
    assert set(told) <= {each.name for each in fields(Discovery)}
    return paths, Discovery(**told), reading


def test_the_shortest_command(photos: Path) -> None:
    assert asked("photos").command == "sortal discover photos --out photos-run"
    assert asked(photos, "a b").command == f"sortal discover {shlex.quote(str(photos))} --out 'a b'"


def test_every_setting_is_in_the_command(photos: Path) -> None:
    Path("labels.csv").write_text("file_name,label,note\ncat/1.jpg,cat,x\n")
    settings = Discovery(
        k=3,
        method="kmeans",
        backbone="my model.json",
        weights="a file",
        epochs=7,
        lr=0.01,
        views=None,
        seed=5,
        k_max=9,
        n_init=2,
        held_out=0.0,
        unsure_below=1e-5,
    )
    assert not [each.name for each in fields(Discovery) if getattr(settings, each.name) == each.default]
    reading = {"folders": "ignore", "unlabelled": "none", "unlisted": "unlabelled", "extra_columns": "ignore"}
    assert not [name for name, value in reading.items() if READING[name] == value]
    job = asked("photos", "out", settings, labels="labels.csv", reading=reading)
    assert parsed(job.command) == (
        {"images": Path("photos"), "out": Path("out"), "labels": Path("labels.csv")},
        settings,
        reading,
    )


@given(
    st.builds(
        Discovery,
        k=st.just("auto") | st.integers(2, 5),
        method=st.sampled_from(METHODS),
        backbone=st.sampled_from(["convnet", "-x", "a 'quoted' \"one\"", "$HOME"]),
        weights=st.none() | st.sampled_from(["w.safetensors", "-w", "--k", "x=y"]),
        epochs=st.just("auto") | st.integers(1, 500),
        lr=st.just("auto") | st.floats(1e-9, 1e3),
        views=st.sampled_from(["auto", None, 2, 8]),
        seed=st.integers(0, 2**31 - 1),
        k_max=st.integers(2, 10**6),
        n_init=st.integers(1, 100),
        held_out=st.floats(0, 0.5),
        unsure_below=st.floats(0, 1),
    ).filter(lambda one: one.backbone != "convnet" or not isinstance(one.views, int))
)
@hypothesis.settings(
    deadline=None, max_examples=40, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
def test_the_command_is_taken_for_the_same_settings(photos: Path, settings: Discovery) -> None:
    job = asked("photos", None, settings)
    assert parsed(job.command) == (
        {"images": Path("photos"), "out": Path("photos-run")},
        settings,
        READING,
    )


@pytest.mark.parametrize(
    "name",
    [
        "-photos",
        "--out",
        "with space",
        "it's",
        'a "b"',
        "$HOME",
        "`x`",
        "*",
        "two\nlines",
        "#1",
        "naïve",
        "-",
        "a=b",
        "~",
    ],
)
def test_the_command_is_taken_for_the_same_paths(photos: Path, name: str) -> None:
    a_folder(photos.parent / "in" / name)
    os.chdir(photos.parent / "in")
    table = f"{name}.csv"
    Path(table).write_text("file_name,label\nloose.jpg,\ncat/1.jpg,cat\ndog/1.jpg,dog\n")
    job = asked(name, f"{name}-out", labels=table, reading={"unlisted": "unlabelled"})
    paths, settings, reading = parsed(job.command)
    assert paths == {"images": Path(name), "out": Path(f"{name}-out"), "labels": Path(table)}
    assert settings == Discovery()
    assert reading == {**READING, "unlisted": "unlabelled"}
    again = prepare(paths["images"], paths["labels"], paths["out"], settings, reading, **OPTIONS)
    assert again.command == job.command


def test_a_list_has_no_command_of_its_own(photos: Path) -> None:
    job = asked([str(path) for path in photos.rglob("*.jpg")], "out", settings=Discovery(k=2))
    assert job.command == "sortal.discover(...) with the settings above"


def test_the_small_network_keeps_no_views(photos: Path) -> None:
    said = refusal(photos, settings=Discovery(k=2, backbone="convnet", views=4))
    assert said == "views must be 'auto' or 'live' for convnet, of which nothing is kept, got 4."
    assert asked(photos, settings=Discovery(k=2, backbone="convnet", views=None)).settings.views is None


def test_a_folder_that_happens_to_have_a_cache_is_not_taken_for_a_run(photos: Path) -> None:
    Path("work/cache").mkdir(parents=True)
    assert asked(photos, "work").place == Path("work")  # as a run that was broken off leaves it
    Path("work/metrics.json").write_text("mine")
    assert "which holds 'metrics.json'" in refusal(photos, "work")
    assert asked(photos, "work", force=True).place == Path("work")
