"""Settings from files: a run repeated by its run.json, and TOML."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import tiny_folder as tiny
from support.command_line import invoke, refused
from support.sample_run import sample_run

from sortal.config import BACKBONE, SMALLER, Discovery
from sortal.discovery.config_files import _changes, settings_in
from sortal.discovery.defaults import recipe_for
from sortal.errors import InputError
from sortal.reviews.loading import load_run
from sortal.runs.storage import RUN_FORMAT


def test_a_run_is_repeated_by_its_own_record(tmp_path: Path, quickly: None) -> None:
    tiny.write(tmp_path / "images")
    changes = ["losses.temperature=0.4", "training.flip=True", "clustering=kmeans"]
    first = tiny.sort(tmp_path / "images", tmp_path / "run", method="gcd", seed=5, set=changes)
    found = settings_in(tmp_path / "run" / "run.json", {"k"})
    assert "k" not in found
    assert (found["epochs"], found["views"], found["seed"], found["method"]) == (2, "auto", 5, "gcd")
    assert {*found["set"]} == {*changes}
    how = ["--config", tmp_path / "run" / "run.json", "--out", tmp_path / "two", "--device", "cpu"]
    again = invoke("discover", tmp_path / "images", *how)
    assert again.code == 0, again.err
    second = load_run(tmp_path / "two")
    assert second.facts.recipe == first.facts.recipe
    np.testing.assert_array_equal(second.features, first.features)
    assert tiny.tables(tmp_path / "two") == tiny.tables(tmp_path / "run")
    other = tiny.sort(tmp_path / "images", tmp_path / "three", config=tmp_path / "run", k=5)
    assert (other.k.k, other.facts.settings.seed) == (5, 0 if "seed" in tiny.SETTINGS else 5)


def test_what_a_machine_decides_is_repeated_on_the_other_kind() -> None:
    settings = Discovery(backbone=BACKBONE)
    for on_gpu, hidden, patches in ((False, 512, 0.25), (True, 2048, 0.5)):
        facts: Any = SimpleNamespace(settings=settings, recipe=recipe_for(settings, 600, on_gpu=on_gpu))
        assert {*_changes(facts)} == {f"losses.hidden={hidden}", f"training.patches={patches}"}


@pytest.mark.parametrize("size", [224, 168])
def test_a_default_network_sees_images_of_the_same_size_again(size: int, tmp_path: Path) -> None:
    usual, settings = sample_run().facts, Discovery(backbone=SMALLER)
    recipe, spec = recipe_for(settings, 600, on_gpu=False), replace(usual.backbone, image_size=size)
    facts = asdict(replace(usual, settings=settings, recipe=recipe, backbone=spec))
    (tmp_path / "run.json").write_text(json.dumps({"format": RUN_FORMAT, **facts}))
    assert settings_in(tmp_path)["image_size"] == size


def test_toml_has_the_names_of_arguments_and_tables_of_other_settings(tmp_path: Path) -> None:
    file = tmp_path / "how.toml"
    file.write_text(
        'method = "gcd"\nk = 7\nbackbone = "convnet"\nepochs = 1\nset = ["select=false"]\nunlisted = "ignore"\n'
        "[losses]\ntemperature = 0.5\n[training]\nbatch_size = 16\n"
    )
    for text in ('set = "select=false"\n', "[set]\nselect = false\n"):
        (tmp_path / "one.toml").write_text(text)
        assert settings_in(tmp_path / "one.toml")["set"] in (("select=false",), ("select=False",))
    found = settings_in(file, {"epochs"})
    changes = ("select=false", "losses.temperature=0.5", "training.batch_size=16")
    assert found == {"method": "gcd", "k": 7, "backbone": "convnet", "unlisted": "ignore", "set": changes}
    tiny.write(tmp_path / "images", tiny.planted(4, 2))
    done = invoke(
        "discover", tmp_path / "images", "--config", file, "--k", "6", "--dry-run", "--json", "--device", "cpu"
    )
    assert done.code == 0, done.err
    assert '"k": 6' in done.out
    assert '"epochs": 1' in done.out


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.toml", "kk = 3\n", r"^'kk' in '.*a.toml' is not a setting\. The settings are .*k, k_max, "),
        ("a.toml", "k = \n", r"^The configuration '.*a.toml' must be TOML, but it is not: "),
        ("run.json", "{}", r"^A configuration must be the run.json of a run, or TOML, got '.*run.json'\.$"),
    ],
)
def test_what_is_no_configuration_is_refused(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=said):
        settings_in(tmp_path / name)


def test_a_method_that_a_file_names_is_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "how.toml").write_text('method = "evil.py:Evil"\n')
    (tmp_path / "evil.py").write_text("raise SystemExit\n")
    tiny.write(tmp_path / "images")
    said = refused("discover", tmp_path / "images", "--config", tmp_path / "how.toml", "--out", tmp_path / "run")
    assert "The method 'evil.py:Evil' is not loaded, and Sortal loads code only where you name it." in said
