"""What a job takes over from the run in its folder."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from support import tiny_folder as tiny
from support.layouts import plant_photos
from support.runtimes import CPU
from support.sample_run import sample_facts

from sortal.config import REFERENCES, SMALLER, Discovery, Reading
from sortal.discovery.defaults import resolved
from sortal.discovery.earlier import Wanted, folders_of, retraining
from sortal.discovery.job import Job, prepare
from sortal.discovery.pipeline import carry_out, discover
from sortal.errors import InputError
from sortal.reviews.loading import load_run
from sortal.runs.facts import ImageSource, RunFacts
from sortal.runs.storage import RUN_FORMAT

KMEANS: dict[str, Any] = {"method": "kmeans", "backbone": "convnet", "n_init": 2}


def facts(folder: str | None = "/photos", **changes: Any) -> RunFacts:
    usual = sample_facts(6, np.zeros((6, 2), dtype=np.float32), 2)
    return replace(usual, images=(ImageSource(folder=folder, images=6, paths={}),), **changes)


def wanted(*given: str, labels: str | None = None, **settings: Any) -> Wanted:
    return Wanted(settings=Discovery(**settings), reading=Reading(), labels=labels, given=frozenset(given))


def test_settings_that_are_not_given_come_from_the_earlier_run() -> None:
    before = Discovery(backbone="vit_tiny", weights="w.safetensors", image_size=112, k=12, epochs=7)
    earlier = facts(settings=before, reading=Reading(unlisted="ignore"), labels="/l.csv")
    found, taken = wanted(k=10).completed(earlier)
    assert found.settings == replace(before, k=10)
    assert (found.reading, found.labels) == (Reading(unlisted="ignore"), "/l.csv")
    assert taken == {
        "backbone": "vit_tiny",
        "weights": "w.safetensors",
        "image_size": 112,
        "epochs": 7,
        "unlisted": "ignore",
        "labels": "/l.csv",
    }
    found, taken = wanted("k", "epochs", labels="mine.csv").completed(earlier)
    assert (found.settings.k, found.settings.epochs, found.labels) == ("auto", "auto", "mine.csv")
    assert taken.keys() == {"backbone", "weights", "image_size", "unlisted"}
    found, _ = wanted(backbone="convnet").completed(earlier)
    assert found.settings == Discovery(backbone="convnet", k=12, epochs=7), "weights and sizes fit one backbone only"
    assert wanted(backbone="vit_tiny").completed(earlier)[0].settings == before, "it is the same"
    finer = facts(settings=Discovery(granularity="finer"))
    assert wanted().completed(finer)[1] == {"granularity": "finer"}
    assert wanted(k=10).completed(finer)[0].settings.granularity == "usual", "a given k replaces a wish"
    assert wanted().completed(facts(settings=Discovery()))[1] == {}


@pytest.mark.parametrize(
    ("version", "before", "now"),
    [
        ("0.1.0", 1000, "auto"),
        ("1.0.0rc1", 1000, "auto"),
        ("1.0.0rc2", 1000, 1000),
        ("0.1.0", 999, 999),
        ("1.0.0", 1000, 1000),
        (None, 9, 9),
    ],
)
def test_the_largest_k_is_kept_unless_it_was_the_default_of_versions_before_1_0(
    version: str | None, before: int, now: int | str
) -> None:
    versions = {} if version is None else {"sortal": version}
    found, taken = wanted().completed(facts(settings=Discovery(k_max=before), versions=versions))
    assert found.settings.k_max == now
    assert taken == ({} if now == "auto" else {"k_max": now})


def test_only_changes_that_reach_the_network_mean_training_again(monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = facts(settings=Discovery(backbone="convnet"), timings={"learn": 300.0})
    same = earlier.settings
    for settings in (
        same,
        replace(same, k=7),
        replace(same, granularity="finer"),
        replace(same, n_init=3, unsure_below=0.2),
        replace(same, method="kmeans"),
    ):
        assert retraining(earlier, settings) is None
    assert retraining(earlier, replace(same, epochs=9, seed=1)) == (
        "A change of epochs (auto, now 9), seed (0, now 1) means training again. Training took 5 min the last time."
    )
    assert "image_size (auto, now 64)" in str(retraining(earlier, replace(same, image_size=64)))
    classifier = replace(same, method="simgcd", k=7)
    assert "k (7, now 8)" in str(retraining(replace(earlier, settings=classifier), replace(classifier, k=8)))
    classifier = replace(same, method="simgcd")
    changed = retraining(replace(earlier, settings=classifier), replace(classifier, granularity="coarser"))
    assert "granularity (usual, now coarser)" in str(changed)
    assert "last time" not in str(retraining(replace(earlier, timings={}), replace(same, seed=1)))
    named = replace(earlier, settings=replace(same, method="gcd"))
    monkeypatch.setitem(REFERENCES, "package:Gcd", "gcd")
    assert retraining(named, replace(same, method="package:Gcd")) is None, "the same, named in another way"
    assert "method (gcd, now uno)" in str(retraining(named, replace(same, method="uno")))


@pytest.mark.parametrize("size", [224, 168])
def test_a_default_network_keeps_the_size_of_its_images_on_any_machine(size: int) -> None:
    """A size that is not recorded was chosen with a GPU, or by the version before, so it may be another here."""
    usual = facts(settings=Discovery(backbone=SMALLER))
    before = replace(usual, backbone=replace(usual.backbone, image_size=size))
    again = wanted().completed(before)[0].settings
    assert resolved(again, on_gpu=False).image_size == resolved(again, on_gpu=True).image_size == size
    assert retraining(before, again) is None
    assert f"image_size ({size}, now 112)" in str(retraining(before, replace(again, image_size=112)))
    other = replace(before, settings=Discovery(backbone="convnet"))
    assert wanted().completed(other)[0].settings.image_size == "auto"


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr("sortal.discovery.job.check_backbone", lambda *_, **__: None)  # none is loaded
    return plant_photos(tmp_path / "photos")


def finished(place: Path, earlier: RunFacts) -> None:
    place.mkdir(parents=True)
    place.mkdir(parents=True, exist_ok=True)
    (place / "run.json").write_text(json.dumps({"format": RUN_FORMAT, **asdict(earlier)}))


def asked(images: Any, out: Any = None, *, force: bool = False, given: tuple[str, ...] = (), **settings: Any) -> Job:
    return prepare(images, None, out, Discovery(**settings), Reading(), given=given, runtime=CPU, force=force)


def test_another_k_keeps_the_settings_of_the_run_unless_forced(photos: Path) -> None:
    notes: list[str] = []
    finished(Path("photos-run"), facts(str(photos), settings=Discovery(backbone="convnet", seed=4)))
    usual = Discovery(k=3), Reading()
    job = prepare("photos", None, None, *usual, runtime=replace(CPU, note=notes.append), force=False)
    assert job.settings == Discovery(backbone="convnet", seed=4, k=3)
    assert notes == ["As in the run in 'photos-run': backbone convnet, seed 4."]
    assert job.origin.command == "sortal discover photos --out photos-run --k 3 --backbone convnet --seed 4"
    assert asked("photos", force=True, k=3).settings == Discovery(k=3, backbone=SMALLER, image_size=168)
    assert asked("photos", given=("seed",)).settings.seed == 0
    assert (job.retraining, asked("photos", given=("seed",)).retraining is None) == (None, False)


def test_what_was_agreed_to_holds_for_these_settings_alone(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished(Path("photos-run"), facts(str(photos), settings=Discovery(backbone="convnet")))
    job = asked("photos", epochs=3)
    assert job.retraining
    assert not job.agreed
    monkeypatch.setattr("sortal.discovery.pipeline.store_pixels", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):  # by a person, in the first stage
        carry_out(job)
    assert asked("photos", epochs=3).agreed, "resuming is not asked about again"
    assert asked("photos", epochs=3, unsure_below=0.3, n_init=4).agreed, "training is the same"
    assert not asked("photos", epochs=4).agreed
    assert asked("photos").retraining is None


def test_a_run_may_be_given_for_its_images(photos: Path) -> None:
    plant_photos(Path("more"))
    folders = (str(photos), str(photos.parent / "more"))
    finished(Path("run"), facts(str(photos.parent), folders=folders, settings=Discovery(k=5)))
    job = asked("run")
    assert (job.place, job.origin.folders, job.settings.k) == (photos.parent / "run", folders, 5)
    assert {file.partition("/")[0] for file in job.images.files} == {"photos", "more"}
    assert asked("run", "elsewhere").place == Path("elsewhere")
    finished(Path("array-run"), facts(None))
    with pytest.raises(InputError, match="were given as an array"):
        asked("array-run")


def test_folders_of_the_run_take_part_and_others_are_refused(photos: Path) -> None:
    for name in ("more", "others"):
        plant_photos(Path(name))
    here = str(photos.parent)
    both = (str(photos), f"{here}/more")
    finished(Path("photos-run"), facts(here, folders=both, settings=Discovery(k=5)))
    assert asked("photos").origin.folders == both
    assert asked("photos", force=True).origin.folders == both[:1]
    assert asked(["photos", "others"]).origin.folders == (both[0], f"{here}/others", both[1])
    with pytest.raises(InputError, match="holds a run of other images"):
        asked("others", "photos-run")
    assert folders_of(facts("/old")) == ("/old",)


def test_several_folders_are_sorted_as_one_and_grow(tmp_path: Path) -> None:
    """From one folder to two, with another k in between: nothing is given twice."""
    first, second = tmp_path / "first", tmp_path / "second"
    tiny.write(first, {f"{name}/{i}.png": f"{name} {i}" for name in ("ash", "beech") for i in range(6)})
    tiny.write(first, {f"unlabelled/{i}.png": f"elm {i}" for i in range(6)})
    tiny.write(second, {f"ash/{i}.png": f"ash {100 + i}" for i in range(3)})
    tiny.write(second, {f"{i}.png": f"beech {100 + i}" for i in range(3)})
    out = tmp_path / "run"
    with tiny.quickly():
        discover(first, out=out, k=3, runtime=CPU, **KMEANS)
        run = discover([first, second], out=out, runtime=CPU)
        assert (len(run.assignments), run.k.k, run.facts.settings.backbone) == (24, 3, "convnet")
        assert sum(label == "ash" for label in run.assignments.labels) == 9
        assert {"first/ash/0.png", "second/ash/0.png", "second/0.png"} < {*run.assignments.files}
        assert all(map(Path.is_file, map(Path, run.paths())))
        again = discover(out, k=4, runtime=CPU)
    assert (again.folder, again.k.k, again.assignments.files) == (out, 4, run.assignments.files)
    assert load_run(out).facts.folders == (str(first), str(second))
