"""What EXIF says: columns, and groups of images taken in one go."""

import math
from fractions import Fraction
from pathlib import Path

import pytest
from PIL import Image
from PIL.TiffImagePlugin import IFDRational

from sortal.errors import InputError
from sortal.images.exif import (
    CAMERA_MAKER,
    CAMERA_MODEL,
    EXIF_IFD,
    GPS_IFD,
    OFFSET,
    TAKEN,
    Exif,
    _degrees,
    read_exif,
    with_exif,
)
from sortal.images.image_set import image_set
from sortal.images.reading import read_images


def photo(path: Path, time: str = "", *, model: str = "", offset: str = "", south: Fraction | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = Image.Exif()
    if model:
        data[CAMERA_MAKER], data[CAMERA_MODEL] = "Acme\0", model
    if time:
        data.get_ifd(EXIF_IFD)[TAKEN] = time
    if offset:
        data.get_ifd(EXIF_IFD)[OFFSET] = offset
    if south is not None:
        place = tuple(IFDRational(each) for each in (south, 30, 36))
        data.get_ifd(GPS_IFD).update({1: "S", 2: place, 3: "E", 4: place})
    Image.new("RGB", (4, 4)).save(path, exif=data)
    return path


def test_time_camera_and_position_are_read(tmp_path: Path) -> None:
    whole = photo(tmp_path / "a.jpg", "2024:05:01 10:00:00", model="One", offset="+02:00", south=Fraction(10))
    assert read_exif(str(whole)) == Exif("2024-05-01T10:00:00+02:00", "Acme One", "-10.510000", "10.510000")
    assert read_exif(str(photo(tmp_path / "b.jpg", "2024:05:01 10:00:00"))) == Exif("2024-05-01T10:00:00")


def test_what_cannot_be_read_is_empty(tmp_path: Path) -> None:
    assert read_exif(str(photo(tmp_path / "a.jpg", "0000:00:00 00:00:00", south=Fraction(1000)))) == Exif()
    assert read_exif(str(photo(tmp_path / "a.png"))) == Exif()
    assert _degrees({1: "S", 2: (math.inf, 0.0, 0.0)}, 1, "S", 90) == ""
    assert _degrees({1: "S", 2: (10**400, 0, 0)}, 1, "S", 90) == ""
    (tmp_path / "no.jpg").write_bytes(b"\xff\xd8\xff\xe1\x00\x10Exif\x00\x00MM\x00*")
    assert read_exif(str(tmp_path / "no.jpg")) == Exif()
    assert read_exif(str(tmp_path / "missing.jpg")) == Exif()


def test_images_of_one_camera_are_grouped_by_time(tmp_path: Path) -> None:
    for name, time, model in (
        ("a/1.jpg", "10:00:00", "One"),
        ("a/2.jpg", "10:01:00", "One"),
        ("a/3.jpg", "10:02:00", "One"),  # a minute after the one before it
        ("a/4.jpg", "10:03:01", "One"),
        ("a/5.jpg", "10:00:30", "Two"),
        ("b/1.jpg", "10:00:00", "One"),
        ("b/2.jpg", "10:00:00", "One"),
        ("b/3.jpg", "", "One"),
    ):
        photo(tmp_path / name, time and f"2024:05:01 {time}", model=model)
    images = read_images(tmp_path, folders="ignore", need_labels=False, group_by_time=60)
    first, other = "2024-05-01T10:00:00", "2024-05-01T10:00:00 (2)"
    assert images.columns.names == ("group",)
    assert images.columns.each[0].cells == (first, first, first, "", "", other, other, "")
    assert len({*images.groups.tolist()}) == 5
    kept = read_images(tmp_path, folders="ignore", need_labels=False, exif=True).columns
    assert kept.names == ("exif_time", "exif_camera"), "no image says where it was taken"
    assert [each.kind for each in kept.each] == ["time", "category"]


def test_images_are_grouped_by_the_time_of_the_camera(tmp_path: Path) -> None:
    photo(tmp_path / "1.jpg", "2024:05:01 10:00:00", offset="+02:00")
    photo(tmp_path / "2.jpg", "2024:05:01 10:00:30")
    images = read_images(tmp_path, folders="ignore", need_labels=False, group_by_time=60)
    assert len({*images.groups.tolist()}) == 1


def test_groups_of_a_table_stay(tmp_path: Path) -> None:
    for name in "abc":
        photo(tmp_path / f"{name}.jpg", "2024:05:01 10:00:00")
    (tmp_path / "t.csv").write_text("file_name,label,group\na.jpg,x,mine\nb.jpg,,\nc.jpg,,\n")
    images = read_images(tmp_path, labels=tmp_path / "t.csv", group_by_time=1)
    assert images.columns.each[0].cells == ("mine", "2024-05-01T10:00:00", "2024-05-01T10:00:00")


def test_pixels_have_no_exif() -> None:
    import numpy as np

    images = image_set(["a"], pixels=np.zeros((1, 2, 2, 3), np.uint8), labels=[None])
    with pytest.raises(InputError, match="EXIF requires image files"):
        with_exif(images, keep=True, within=None)
