"""Features of a folder and nothing else: what is written can be read, and an interrupted call resumes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.runtimes import CPU

from sortal.discovery import computing
from sortal.discovery.computing import compute_features
from sortal.errors import InputError
from sortal.images.columns import Columns
from sortal.images.feature_files import read_feature_file
from sortal.images.image_set import ImageSet
from sortal.images.reading import read_images


def photographs(folder: Path) -> ImageSet:
    for name in ("oak/1", "oak/2", "unlabelled/3"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(len(name)).integers(0, 255, (24, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels // int(name[-1])).save(folder / f"{name}.png")
    (folder / "oak/broken.png").write_bytes(b"no picture")
    return read_images(folder)


def test_features_of_a_folder_are_computed_written_and_read_back(tmp_path: Path) -> None:
    images, out = photographs(tmp_path / "photos"), tmp_path / "x.npz"
    found = compute_features(images, out, backbone="convnet", runtime=CPU)
    assert [bad.file for bad in found.quarantine] == ["oak/broken.png"]
    read = read_feature_file(out)
    assert np.array_equal(read.features, found.x)
    assert [*(read.file_name or ())] == ["oak/1.png", "oak/2.png", "unlabelled/3.png"]
    assert [*(read.label or ())] == ["oak", "oak", ""]
    assert {path.name for path in tmp_path.iterdir()} == {"photos", "x.npz"}  # the cache is gone
    for wrong, problem in ((out, "exists"), (tmp_path / "x.txt", "written as"), (tmp_path / "no/x.npz", "existing")):
        with pytest.raises(InputError, match=problem):
            compute_features(images, wrong, backbone="convnet", runtime=CPU)


def test_a_folder_that_someone_else_made_is_not_removed(tmp_path: Path) -> None:
    images, out = photographs(tmp_path / "photos"), tmp_path / "x.npz"
    (tmp_path / "x.npz.cache").mkdir()
    with pytest.raises(InputError, match=r"x\.npz\.cache'.* is not Sortal's"):
        compute_features(images, out, backbone="convnet", runtime=CPU)


def test_an_interrupted_call_computes_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, out = photographs(tmp_path / "photos"), tmp_path / "x.npz"

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(computing, "write_atomically", interrupt)
        with pytest.raises(KeyboardInterrupt):
            compute_features(images, out, backbone="convnet", runtime=CPU)
    assert (tmp_path / "x.npz.cache").is_dir()
    monkeypatch.setattr("sortal.learning.frozen.FrozenEncoder.__call__", interrupt)
    assert len(compute_features(images, out, backbone="convnet", runtime=CPU).x) == 3


@pytest.mark.parametrize("kind", [".npz", ".parquet"])
def test_columns_are_written_beside_features(tmp_path: Path, kind: str) -> None:
    images = photographs(tmp_path / "photos")
    columns = Columns.infer(
        ["depth", "file", "group"], [["3", "", "4.5", "1"], ["x", "y", "", "y"], ["1", "1", "2", ""]]
    )
    kept = replace(images, columns=columns)
    compute_features(kept, tmp_path / f"x{kind}", backbone="convnet", runtime=CPU)
    read = read_feature_file(tmp_path / f"x{kind}").columns
    readable = columns.take(row for row, file in enumerate(images.files) if "broken" not in file)
    name = "own_file" if kind == ".npz" else "file"  # which NumPy cannot write
    assert read.names == ("depth", name, "group")
    assert read.each[0].values == readable.each[0].values
    assert [each.cells for each in read.each[1:]] == [each.cells for each in readable.each[1:]]


@pytest.mark.parametrize("kind", [".npz", ".parquet"])
def test_what_is_true_of_unlabelled_images_is_written(tmp_path: Path, kind: str) -> None:
    images, out = photographs(tmp_path / "photos"), tmp_path / f"x{kind}"
    known = np.where(images.labels < 0, len(images.classes), images.labels)
    compute_features(replace(images, truth=known, new_classes=("elm",)), out, backbone="convnet", runtime=CPU)
    read = read_feature_file(out)
    assert [*(read.truth or ())] == ["oak", "oak", "elm"]
    assert [each or "" for each in read.label or ()] == ["oak", "oak", ""]
