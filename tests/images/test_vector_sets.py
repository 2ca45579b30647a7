"""Sets of feature vectors: names, labels, and what is wrong or unusual, with its row."""

from pathlib import Path

import numpy as np
import pytest

from sortal.config import Reading
from sortal.errors import InputError
from sortal.images.vector_sets import check_features_differ, feature_notes, features_in_memory, read_features

X = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.8, 0.6]], dtype=np.float32)


def test_an_array_becomes_a_set_with_names_labels_and_classes() -> None:
    found = features_in_memory(X, files=["a", "b", "c", "d"], labels=["oak", None, "elm", ""])
    assert found.files == ("a", "b", "c", "d")
    assert found.classes == ("elm", "oak")
    assert found.labels.tolist() == [1, -1, 0, -1]
    assert found.features is not None
    assert np.array_equal(found.features, X)
    assert features_in_memory(X).files == ("row 1", "row 2", "row 3", "row 4")
    kept = found.select(np.array([False, True, False, True]))
    assert kept.features is not None
    assert np.array_equal(kept.features, X[[1, 3]])


def test_a_table_labels_rows_in_their_order_where_these_have_no_names(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    (tmp_path / "t.csv").write_text("file_name,label\na.png,oak\nb.png,\nc.png,elm\nd.png,\n")
    found = read_features(tmp_path / "x.npy", labels=tmp_path / "t.csv")
    assert found.files == ("a.png", "b.png", "c.png", "d.png")
    assert found.paths[0] == str(tmp_path / "a.png")
    assert found.labels.tolist() == [1, -1, 0, -1]
    (tmp_path / "t.csv").write_text("id,label,site\n1,oak,x\n2,,x\n3,elm,y\n4,,y\n")
    found = read_features(tmp_path / "x.npy", labels=tmp_path / "t.csv")
    assert (found.files, found.columns.names) == (("1", "2", "3", "4"), ("site",))
    (tmp_path / "t.csv").write_text("file_name,label\na.png,oak\n")
    with pytest.raises(InputError, match="a row for each of 4 vectors, in their order, got 1"):
        read_features(tmp_path / "x.npy", labels=tmp_path / "t.csv")


def test_a_name_that_leads_out_of_the_folder_is_no_picture(tmp_path: Path) -> None:
    inside = str(tmp_path / "pictures/b.png")
    names = ["a.png", inside, "/etc/passwd", "a/../../x.png"]
    np.savez(tmp_path / "x.npz", features=X, file_name=np.array(names))
    found = read_features(tmp_path / "x.npz", folder=tmp_path / "pictures")
    assert found.paths == (str(tmp_path / "pictures/a.png"), inside, "", "")
    assert found.files == tuple(names)


def test_a_table_labels_rows_by_their_names(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", features=X, file_name=np.array(["a", "b", "c", "d"]))
    (tmp_path / "t.csv").write_text("file_name,label\nc,elm\na,oak\n")
    with pytest.raises(InputError, match="2 rows have none: 'b', 'd'"):
        read_features(tmp_path / "x.npz", labels=tmp_path / "t.csv")
    read = {each: read_features(tmp_path / "x.npz", labels=tmp_path / "t.csv", reading=Reading(unlisted=each))
            for each in ("unlabelled", "ignore")}  # fmt: skip
    assert read["unlabelled"].labels.tolist() == [1, -1, 0, -1]
    assert read["ignore"].files == ("a", "c")
    (tmp_path / "t.csv").write_text("file_name,label\nnobody,elm\n")
    with pytest.raises(InputError, match="these do not: 'nobody'"):
        read_features(tmp_path / "x.npz", labels=tmp_path / "t.csv")


def test_a_column_that_may_hold_the_labels_is_refused_where_these_are_learned(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", features=X, id=np.array([*"abcd"]), species=np.array(["oak", "", "elm", ""]))
    assert read_features(tmp_path / "x.npz").classes == ()
    with pytest.raises(InputError, match=r"have no labels\. Did you mean to rename 'species' to label") as error:
        read_features(tmp_path / "x.npz", learned=True)
    assert [each.settings for each in error.value.remedies] == [{"extra_columns": "ignore"}]
    found = read_features(tmp_path / "x.npz", learned=True, reading=Reading(extra_columns="ignore"))
    assert (found.classes, found.columns.names) == ((), ())


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ([np.nan, 1.0], r"must be finite, got NaN or infinity in 1 row: '3 \(c\)'"),
        ([1.0, -np.inf], r"must be finite, got NaN or infinity in 1 row: '3 \(c\)'"),
        ([1e300, 1.0], r"must be finite, got NaN or infinity in 1 row: '3 \(c\)'"),
        ([0.0, 0.0], r"must not be 0 in every dimension, got 0 alone in 1 row: '3 \(c\)'"),
    ],
)
def test_vectors_without_a_direction_are_refused_with_their_row(row: list[float], problem: str) -> None:
    x = X.astype(np.float64)
    x[2] = row
    with pytest.raises(InputError, match=problem):
        features_in_memory(x, files=["a", "b", "c", "d"])


def test_equal_rows_missing_and_repeated_names_and_wrong_lengths_are_refused() -> None:
    with pytest.raises(InputError, match="all of 3 rows are equal"):
        check_features_differ(features_in_memory(np.ones((3, 2))))
    with pytest.raises(InputError, match="listed more than once: 'a'"):
        features_in_memory(X, files=["a", "b", "a", "d"])
    with pytest.raises(InputError, match="got none in row 2"):
        features_in_memory(X, files=["a", "", "c", "d"])
    with pytest.raises(InputError, match="files must be as many as the rows of features, 4, got 1"):
        features_in_memory(X, files=["a"])
    with pytest.raises(InputError, match="got 2"):
        features_in_memory(X, labels=["oak", "elm"])


def test_what_is_unusual_is_noted_with_its_row() -> None:
    assert feature_notes(features_in_memory(X)) == []
    x = np.concatenate([X, np.ones((4, 1))], axis=1)
    x[3] = x[1]
    lengths, constant, copies = feature_notes(features_in_memory(x, files=["a", "b", "c", "d"]))
    assert "from 1.41" in lengths
    assert constant == "1 dimension is the same in every row: '2'."
    assert copies.startswith("1 row has the same features as another")
    assert copies.endswith("the first of each are 'b (row 2)'.")
