"""Files of feature vectors: the same rows from every format, and errors that name the row."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from sortal.errors import InputError
from sortal.images import feature_files
from sortal.images.feature_files import as_matrix, numbered_columns, read_feature_file

X = np.array([[1.0, -2.5], [0.25, 3.0], [7.0, 0.0]], dtype=np.float32)
NAMES, LABELS = ["a.png", "b/c.png", "ü"], ["oak", None, "elm"]


def parquet(path: Path, columns: dict[str, Any]) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), path)
    return path


def text(path: Path, header: str, rows: list[str]) -> Path:
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def written(folder: Path, kind: str) -> Path:
    """Write the same rows in a format."""
    named = {"file_name": NAMES, "label": LABELS}
    if kind == "parquet, a list":
        return parquet(folder / "x.parquet", {**named, "features": list(X)})
    if kind == "parquet, columns":
        return parquet(folder / "x.parquet", {**named, "dim_1": X[:, 1].astype(np.float64), "dim_0": X[:, 0]})
    if kind == "csv, a list":
        cells = [f'"{json.dumps(row.tolist())}"' for row in X]
        rows = [f"{cell},{name},{label or ''}" for cell, name, label in zip(cells, NAMES, LABELS, strict=True)]
        return text(folder / "x.csv", "embedding,id,label", rows)
    if kind == "tsv, columns":
        rows = [f"{name}\t{label or ''}\t{b}\t{a}" for name, label, (a, b) in zip(NAMES, LABELS, X, strict=True)]
        return text(folder / "x.tsv", "file_name\tlabel\tf1\tf0", rows)
    np.savez(folder / "x.npz", embeddings=X, files=np.array(NAMES), labels=np.array([each or "" for each in LABELS]))
    return folder / "x.npz"


@pytest.mark.parametrize("kind", ["parquet, a list", "parquet, columns", "csv, a list", "tsv, columns", "npz"])
def test_every_format_gives_the_same_rows(tmp_path: Path, kind: str) -> None:
    found = read_feature_file(written(tmp_path, kind))
    assert found.features.dtype == np.float32
    assert np.array_equal(found.features, X)
    assert [*(found.file_name or ())] == NAMES
    assert [each or None for each in found.label or ()] == LABELS
    assert found.truth is None


@pytest.mark.parametrize("kind", [".npy", ".safetensors"])
def test_arrays_without_names_are_read(tmp_path: Path, kind: str) -> None:
    from safetensors.numpy import save_file

    path = tmp_path / f"x{kind}"
    if kind == ".npy":
        np.save(path, X.astype(np.float16))
    else:
        save_file({"anything": X.astype(np.float16), "other": np.zeros(3, np.float32)}, path)
    found = read_feature_file(path)
    assert np.array_equal(found.features, X)  # all of them are exact in half precision
    assert found.file_name is found.label is None


def test_numbered_columns_are_ordered_by_their_numbers() -> None:
    names = [f"f{number}" for number in (10, 2, 9, *range(3, 9), 1)]
    assert numbered_columns(["label", *names, "camera2"]) == [f"f{number}" for number in range(1, 11)]
    with pytest.raises(InputError, match="numbered column per dimension"):
        numbered_columns(["f1", "f3", "label"])


def test_two_groups_of_numbered_columns_are_refused_unless_one_is_called_features() -> None:
    two = [f"{model}_{number}" for model in ("clip", "dino") for number in range(3)]
    with pytest.raises(InputError, match="several groups of numbered columns, from 'clip_0', 'dino_0'"):
        numbered_columns([*two, "camera2"])
    assert numbered_columns(["clip_0", "clip_1", "F0", "F1"]) == ["F0", "F1"]


def test_columns_are_known_whatever_their_case_and_others_are_hinted_at(tmp_path: Path) -> None:
    found = read_feature_file(text(tmp_path / "x.csv", "Filename,Label,f0,f1", ["a,oak,1,2", "b,,2,1"]))
    assert (found.file_name, found.label, found.hint) == (["a", "b"], ["oak", ""], "")
    found = read_feature_file(text(tmp_path / "x.csv", "id,Species,f0,f1", ["a,oak,1,2", "b,,2,1"]))
    assert found.label is None
    assert found.hint == " Did you mean to rename 'Species' to label?"


def test_bytes_are_text(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", features=X, file_name=np.array([each.encode() for each in NAMES]))
    assert read_feature_file(tmp_path / "x.npz").file_name == NAMES
    np.savez(tmp_path / "x.npz", features=X, file_name=np.array([b"a", b"b", b"\xff"]))
    with pytest.raises(InputError, match="must have UTF-8 text as file_name"):
        read_feature_file(tmp_path / "x.npz")


def test_tensors_are_matrices() -> None:
    torch = pytest.importorskip("torch")
    given = torch.from_numpy(X).to(torch.bfloat16).requires_grad_()
    assert np.array_equal(as_matrix(given), X)  # all of them are exact with eight bits


def test_the_errors_of_arrays_say_what_is_wrong(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 2, 2)))
    with pytest.raises(InputError, match=r"got float64 of shape \(2, 2, 2\)"):
        read_feature_file(tmp_path / "x.npy")
    (tmp_path / "x.npy").rename(tmp_path / "x.npz")
    with pytest.raises(InputError, match=r"saved by numpy\.savez; it is damaged"):
        read_feature_file(tmp_path / "x.npz")
    np.savez(tmp_path / "x.npz", a=X, b=X)
    with pytest.raises(InputError, match="must have one array of shape"):
        read_feature_file(tmp_path / "x.npz")
    np.savez(tmp_path / "x.npz", features=X, label=np.zeros(2))
    with pytest.raises(InputError, match="must have a label for each of 3 rows"):
        read_feature_file(tmp_path / "x.npz")


def test_a_file_that_claims_more_than_it_has_is_refused(tmp_path: Path) -> None:
    header = {"descr": "<f4", "fortran_order": False, "shape": (10**6, 4 * 10**6)}
    with (tmp_path / "x.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.write(bytes(64))
    with pytest.raises(InputError, match="is damaged"):
        read_feature_file(tmp_path / "x.npy")
    np.savez_compressed(tmp_path / "x.npz", features=np.ones((1000, 1000), np.float32))
    assert read_feature_file(tmp_path / "x.npz").features.shape == (1000, 1000)
    with (
        patch.object(feature_files, "LITTLE_FEATURES", 10**6),
        pytest.raises(InputError, match="in its cells, but a file of its size has at most"),
    ):
        read_feature_file(tmp_path / "x.npz")


def test_large_lists_are_read(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    columns = {"features": pyarrow.array([*X], pyarrow.large_list(pyarrow.float32()))}
    assert np.array_equal(read_feature_file(parquet(tmp_path / "x.parquet", columns)).features, X)


@pytest.mark.thorough
def test_features_that_are_mostly_zero_are_read(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    one_hot = pyarrow.FixedSizeListArray.from_arrays(np.eye(2048, 10**4, dtype=np.float32).ravel(), 10**4)
    assert len(read_feature_file(parquet(tmp_path / "y.parquet", {"features": one_hot})).features) == 2048


def test_a_row_of_another_length_is_named(tmp_path: Path) -> None:
    ragged = parquet(tmp_path / "x.parquet", {"features": [[1.0, 2.0]] * 600 + [[1.0]]})
    with pytest.raises(InputError, match="the first has 2 features, row 601 1"):
        read_feature_file(ragged)
    with pytest.raises(InputError, match="the first has 2 features, row 2 3"):
        read_feature_file(text(tmp_path / "x.csv", "features", ['"1 2"', '"1 2 3"']))


def test_what_is_not_a_number_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="numbers as features, unlike in row 2"):
        read_feature_file(text(tmp_path / "x.csv", "id,f0,f1", ["a,1,2", "b,1,two"]))
    with pytest.raises(InputError, match="must have numbers as features, got string in row 1"):
        read_feature_file(parquet(tmp_path / "x.parquet", {"features": [["one", "two"]]}))
    with pytest.raises(InputError, match="got none in row 2"):
        read_feature_file(parquet(tmp_path / "y.parquet", {"features": [[1.0, 2.0], None]}))


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("x.npy", b"\x93NUMPY", "is damaged"),
        ("x.npz", b"PK\x03\x04 no zip", "is damaged"),
        ("x.safetensors", b"\xff" * 64, "must be safetensors"),
        ("x.parquet", b"PAR1 and then nothing", "cannot be read as Parquet"),
        ("x.csv", b"\xff\xfe\x00", "UTF-8"),
        ("x.txt", b"", "must be one of .parquet"),
        ("x.csv", b"id,f0,f1\n", "at least one row"),
    ],
)
def test_files_that_cannot_be_read_are_refused_by_name(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=problem) as error:
        read_feature_file(tmp_path / name)
    assert str(tmp_path / name) in error.value.message
    with pytest.raises(InputError, match="does not exist"):
        read_feature_file(tmp_path / f"missing-{name}")


def test_python_objects_are_never_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[{}]], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="holds Python objects"):
        read_feature_file(tmp_path / "x.npy")


@pytest.mark.parametrize(
    "wrong", [np.zeros(3), np.zeros((0, 4)), np.array([["a"]]), [[1, 2], [3]], np.zeros((2, 2), complex)]
)
def test_only_matrices_of_numbers_are_features(wrong: Any) -> None:
    with pytest.raises(InputError, match="must be"):
        as_matrix(wrong)
