"""Places of runs: new folders, and runs of the same images or features."""

import sys
from pathlib import Path

import numpy as np
import pytest
from support.runtimes import CPU

from sortal.discovery.pipeline import discover
from sortal.discovery.run_places import check_free, check_output_folder
from sortal.errors import InputError
from sortal.system.files import lock_folder

pytestmark = pytest.mark.usefixtures("quickly")


def test_a_new_or_empty_folder_outside_the_images_is_accepted(tmp_path: Path) -> None:
    photos = str(tmp_path / "photos")
    assert check_output_folder(tmp_path / "run", [photos], is_array=False, force=False) is None
    with pytest.raises(InputError, match="outside the folder of images"):
        check_output_folder(tmp_path / "photos/run", [photos], is_array=False, force=True)


def test_a_run_of_features_is_known_by_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).standard_normal((12, 4))
    np.savez("a.npz", features=x, label=np.array(["oak", "elm"] + [""] * 10))
    run = discover(features="a.npz", method="kmeans", k=3, n_init=1, runtime=CPU, progress=False)
    own = str(tmp_path / "a.npz")
    found = check_output_folder(run.folder, (), is_array=False, force=False, features=own)
    assert found is not None
    assert found.features == own
    for other in (str(tmp_path / "b.npz"), "", None):
        with pytest.raises(InputError, match="holds a run of other images"):
            check_output_folder(run.folder, (), is_array=False, force=False, features=other)
    assert check_output_folder(run.folder, (), is_array=False, force=True, features="") is None


@pytest.mark.skipif(sys.platform == "win32", reason="which cannot look at a lock")
def test_a_folder_in_use_is_refused_before_images_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_free(tmp_path / "none")
    monkeypatch.setattr("sortal.discovery.job.read_images", None)
    with lock_folder(tmp_path / "run"):
        with pytest.raises(InputError, match="Another process is using"):
            discover(tmp_path, out=tmp_path / "run", runtime=CPU, progress=False)
        check_free(tmp_path / "run", unless=True)
    check_free(tmp_path / "run")
