"""CIFAR: pixels in order, pickles of Python 2 and 3, and nothing that is executed."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import layouts
from support.benchmarks import refused

from sortal.images.datasets import load


def test_cifar10_rows_have_their_pixels_in_order(roots: dict[str, Path]) -> None:
    images = load("cifar10", roots["cifar10"], fraction=1.0)
    assert images.classes == ("name0", "name1", "name2", "name3", "name4")
    assert images.files[99:101] == ("data_batch_5/00019.png", "test_batch/00000.png")
    assert images.truth[:12].tolist() == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 9, 8]
    assert images.pixels is not None
    assert images.pixels.shape == (105, 32, 32, 3)
    assert images.pixels.dtype == np.uint8
    assert images.pixels[[0, 99, 100], 0, 0].tolist() == [[0, 9, 7], [99, 0, 7], [200, 0, 7]]
    assert np.unique(images.pixels[:, 0, 1], axis=0).tolist() == [[255, 0, 0]]
    assert images.pixels[:, 1:].max() == images.pixels[:, :, 2:].max() == 0


def test_loading_a_pickle_executes_nothing(tmp_path: Path) -> None:
    layouts.cifar10(tmp_path)
    mark = tmp_path / "ran"
    malicious = f"cbuiltins\nexec\n(S\"__import__('os').mkdir({str(mark)!r})\"\ntR.".encode()
    (tmp_path / "cifar-10-batches-py/data_batch_3").write_bytes(malicious)
    refused(r"data_batch_3' would run builtins\.exec, which no CIFAR file does", "cifar10", tmp_path)
    assert not mark.exists()
    pickle.loads(malicious)  # to verify that it is malicious
    assert mark.exists()


def batch(labels: Any, *shape: int, dtype: type = np.uint8) -> bytes:
    return layouts.pickle2({"labels": labels, "data": np.zeros(shape, dtype)})


def test_damaged_pickles_are_reported(tmp_path: Path) -> None:
    layouts.cifar10(tmp_path)
    top = tmp_path / "cifar-10-batches-py"
    for content, message in (
        (b"", "cannot be read as a pickle"),
        (layouts.pickle2([1, 2]), "must contain a dictionary, got list"),
        (layouts.pickle2({"labels": [0]}), r"uint8 data of shape \(n, 3072\), got none"),
        (batch([0], 1, 3072, dtype=np.float64), r"uint8 data of shape \(n, 3072\), got none"),
        (batch([0], 1, 1024), r"got \(1, 1024\)"),
        (batch([0], 3072), r"got \(3072,\)"),
        (batch("0", 1, 3072), "must contain labels, one for each of 1 image"),
        (batch([0], 2, 3072), "one for each of 2 images"),
        (batch([10], 1, 3072), "from 0 to 9"),
        (batch([-1], 1, 3072), "from 0 to 9"),
    ):
        (top / "data_batch_3").write_bytes(content)
        refused(f"data_batch_3' .*{message}", "cifar10", tmp_path)
    (top / "batches.meta").write_bytes(layouts.pickle2({"label_names": "plane"}))
    refused(r"batches\.meta' must contain a list of names, label_names", "cifar10", tmp_path)


@pytest.mark.parametrize("protocol", [2, 4])
def test_pickles_of_python_3_are_read_too(tmp_path: Path, protocol: int) -> None:
    layouts.cifar100(tmp_path)
    data = layouts.cifar_rows([0] * 100, 0)
    for array in (data, np.asfortranarray(data)):
        content = pickle.dumps({"fine_labels": list(range(100)), "data": array}, protocol=protocol)
        (tmp_path / "cifar-100-python/test").write_bytes(content)
        images = load("cifar100", tmp_path, part="test")
        assert images.pixels is not None
        assert images.pixels[:, 0, 0].tolist() == [[i, 0, 7] for i in range(100)]
