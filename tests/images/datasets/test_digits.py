"""The sample of digits: images and a table, written completely or not at all."""

import unittest.mock
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.layouts import plant

from sortal.errors import SortalError
from sortal.images import label_tables
from sortal.images.datasets import digits


def test_digits_are_written_as_images_and_a_table(tmp_path: Path) -> None:
    """Digits 0–4 have 901 of the 1,797 images, and half of these, rounded down, are labelled."""
    from sklearn.datasets import load_digits

    out = tmp_path / "a/b/digits"
    images = digits.write(out)
    assert images.files == tuple(f"{i:04d}.png" for i in range(1797))
    assert (images.classes, images.new_classes) == (tuple("01234"), tuple("56789"))
    assert (images.labelled.sum(), images.unlabelled.sum(), images.validation.sum()) == (450, 1347, 0)
    assert sorted(path.name for path in out.iterdir()) == [*images.files, "labels.csv"]
    assert [path.name for path in out.parent.iterdir()] == ["digits"]
    table = label_tables.read(out / "labels.csv")
    assert table.truth == [str(digit) for digit in images.truth]
    assert table.label == [name or None for name in digits.labels(0.5, 0)]
    grey, digit = load_digits(return_X_y=True)
    scaled = {tuple((row * 255 / 16 + 0.5).astype(int).tolist()): n for row, n in zip(grey, digit, strict=True)}
    assert len(scaled) == 1797
    for path, number in zip(images.paths, images.truth, strict=True):
        with Image.open(path) as image:
            assert (image.mode, image.size) == ("L", (8, 8))
            assert scaled[tuple(np.asarray(image).ravel().tolist())] == number
    # scikit-learn's first thirty are 0, 1, … 9 in turn; the numbers of files must not reveal the digit.
    assert images.truth[:30].tolist() != digit[:30].tolist()


def test_the_labels_of_digits_depend_on_fraction_and_seed(tmp_path: Path) -> None:
    names = digits.labels(0.1, 7)
    images = digits.write(tmp_path, labelled=0.1, seed=7)  # an empty folder may be used
    assert [(*images.classes, "")[number] for number in images.labels] == names
    assert sum(name != "" for name in names) == 90
    assert sum(name != "" for name in digits.labels(1.0, 3)) == 901
    assert digits.labels(0.1, 7) == names != digits.labels(0.1, 2)


def test_digits_are_written_completely_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, "file", "full/1.png", "full/2.png")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    full = unittest.mock.Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr(Image.Image, "save", full)
    for folder, labelled, message in (
        ("full", 0.5, r"must be new or empty, got .*full', which contains '1\.png', '2\.png'"),
        ("file", 0.5, r"must be new or empty, got .*file', which is a file\."),
        ("new", 0.0, r"labelled must be above 0 and at most 1, got 0\.0\."),
        ("new", 1.01, r"labelled must be above 0 and at most 1, got 1\.01\."),
        ("file/new", 0.5, r"cannot be written: File exists: '.*/file'\."),
        ("here", 0.5, r"must not be the current one, got '.*here'"),
        ("new", 0.5, r"Cannot write '.*new': no space left on device\. Free some space"),
    ):
        with pytest.raises(SortalError, match=message):
            digits.write(tmp_path / folder, labelled=labelled)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["1.png", "2.png", "file", "full", "here"]
