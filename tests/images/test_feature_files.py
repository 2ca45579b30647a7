"""Files of feature vectors: the same rows from every format, and errors that name the row."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sortal.errors import InputError
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
