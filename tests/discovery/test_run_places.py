"""Places of runs: new folders, and runs of the same images or features."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import tiny_folder as tiny
from support.runtimes import CPU

from sortal.discovery.pipeline import discover
from sortal.discovery.prediction import predict
from sortal.discovery.run_places import check_free, check_output_folder
from sortal.errors import InputError
from sortal.images.reading import read_images
from sortal.system.files import lock_folder

pytestmark = pytest.mark.usefixtures("quickly")


def test_a_new_or_empty_folder_outside_the_images_is_accepted(tmp_path: Path) -> None:
    photos = str(tmp_path / "photos")
    assert check_output_folder(tmp_path / "run", [photos], force=False) is None
    with pytest.raises(InputError, match="outside the folder of images"):
        check_output_folder(tmp_path / "photos/run", [photos], force=True)


def test_a_run_of_features_is_known_by_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).standard_normal((12, 4))
    np.savez("a.npz", features=x, label=np.array(["oak", "elm"] + [""] * 10))
    run = discover(features="a.npz", method="kmeans", k=3, n_init=1, runtime=CPU, progress=False)
    own = str(tmp_path / "a.npz")
    found = check_output_folder(run.folder, (), force=False, features=own)
    assert found is not None
    assert found.features == own
    for other in (str(tmp_path / "b.npz"), "", None):
        with pytest.raises(InputError, match="holds a run of other images"):
            check_output_folder(run.folder, (), force=False, features=other)
    assert check_output_folder(run.folder, (), force=True, features="") is None


def test_a_run_of_files_is_sorted_again_from_its_own_files_wherever_the_command_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the folder in which it was made nor the current one says which images it is of."""
    made, other, out = tmp_path / "made", tmp_path / "other", tmp_path / "run"
    files = {f"{name}/{i}.png": f"{name} {i}" for name in ("ash", "elm") for i in range(6)}
    tiny.write(made, files)
    tiny.write(made, {"left_out.png": "fir 0"})
    tiny.write(other, {f"{name}/{i}.png": f"{name} {i}" for name in ("fir", "holly") for i in range(4)})
    monkeypatch.chdir(made)
    images = read_images([*files], labels=["ash"] * 4 + [None] * 8, truth=["ash"] * 6 + ["elm"] * 6)
    options: dict[str, Any] = {"method": "kmeans", "backbone": "convnet", "n_init": 2, "runtime": CPU}
    before = discover(images, out=out, k=2, **options)
    predict(before, other, update=True, runtime=CPU)
    monkeypatch.chdir(other)
    for given in (out, [out], before):
        found = discover(given, k=3, runtime=CPU)
        a = found.assignments
        assert (found.folder, found.k.k, len(a), a.files[:12]) == (out, 3, 20, tuple(files)), (
            "those that were added, too"
        )
        assert (a.labels[:12], a.truth[:12]) == (before.assignments.labels, before.assignments.truth)
        assert found.paths()[:12] == [str(made / file) for file in files]
    elsewhere = discover(out, out=tmp_path / "elsewhere", k=2, **options)
    assert elsewhere.paths() == [str(made / file) for file in files]
    with pytest.raises(InputError, match="labels of their own"):
        discover(out, labels="labels.csv", runtime=CPU)
    (made / "elm/5.png").unlink()
    saved = tiny.contents(out)
    with pytest.raises(InputError, match=r"1 of its 12 images is gone: .*elm/5\.png.* Give its images again"):
        discover(out, k=2, runtime=CPU)
    assert tiny.contents(out) == saved


@pytest.mark.skipif(sys.platform == "win32", reason="which cannot look at a lock")
def test_a_folder_in_use_is_refused_before_images_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_free(tmp_path / "none")
    monkeypatch.setattr("sortal.discovery.job.read_images", None)
    with lock_folder(tmp_path / "run"):
        with pytest.raises(InputError, match="Another process is using"):
            discover(tmp_path, out=tmp_path / "run", runtime=CPU, progress=False)
        check_free(tmp_path / "run", unless=True)
    check_free(tmp_path / "run")
