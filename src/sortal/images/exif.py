"""EXIF: when, with which camera and where photographs were taken, as columns; groups of those taken in one go."""

import os
import warnings
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from fractions import Fraction
from typing import Any, NamedTuple

from PIL import Image

from sortal.errors import InputError
from sortal.images.columns import GROUP_COLUMN, ImageColumn, is_missing
from sortal.images.decoding import IMAGE_FORMATS
from sortal.images.image_set import ImageSet
from sortal.system.regular_files import open_regular
from sortal.system.text import numbered

EXIF_IFD, GPS_IFD = 0x8769, 0x8825
TAKEN, WRITTEN_AT, OFFSET, CAMERA_MAKER, CAMERA_MODEL = 0x9003, 0x0132, 0x9011, 0x010F, 0x0110
LONGEST_CAMERA = 80  # characters


class Exif(NamedTuple):
    """What the EXIF data of an image say, as cells of the columns of these names; empty where they do not."""

    exif_time: str = ""  # ISO 8601, in the camera's time
    exif_camera: str = ""
    exif_latitude: str = ""  # degrees, north and east positive
    exif_longitude: str = ""


def with_exif(images: ImageSet, *, keep: bool, within: float | None) -> tuple[ImageColumn, ...]:
    """Return columns of what EXIF says, if they are to be kept, and of groups of images taken `within` so many seconds.

    What no image says is no column. Each of a group was taken at most so long after the one before it, by the same
    camera and in the same folder. Groups that a table gives stay as they are.
    """
    if images.pixels is not None:
        raise InputError("EXIF requires image files, got an array of pixels.")
    found = [*map(read_exif, images.paths)]
    said = zip(Exif._fields, zip(*found, strict=True), strict=True) if found and keep else ()
    columns = [ImageColumn.infer(name, cells) for name, cells in said if any(cells)]
    if within is not None:
        columns.append(_grouped(images, found, within))
    return tuple(columns)


def read_exif(path: str) -> Exif:
    """Read the header of a file; what cannot be read is empty."""
    try:
        with (
            warnings.catch_warnings(action="ignore"),
            open_regular(path) as file,
            Image.open(file, formats=IMAGE_FORMATS) as image,
        ):
            if image.format == "PNG" and "exif" not in image.info:  # looking for it would decode the image
                return Exif()
            data = image.getexif()
            more, place = data.get_ifd(EXIF_IFD), data.get_ifd(GPS_IFD)
    except Exception:  # decoders raise almost anything on damaged input
        return Exif()
    camera = " ".join(filter(None, (_text(data.get(tag)) for tag in (CAMERA_MAKER, CAMERA_MODEL))))[:LONGEST_CAMERA]
    time = _time(_text(more.get(TAKEN) or data.get(WRITTEN_AT)), _text(more.get(OFFSET)))
    latitude, longitude = _degrees(place, 1, "S", 90), _degrees(place, 3, "W", 180)
    return Exif(time, camera, *((latitude, longitude) if latitude and longitude else ("", "")))


def _text(value: object) -> str:
    return " ".join(value.replace("\0", " ").split()) if isinstance(value, str) else ""


def _time(text: str, offset: str) -> str:
    with suppress(ValueError):
        time = datetime.strptime(text, "%Y:%m:%d %H:%M:%S")
        with suppress(ValueError):
            return datetime.fromisoformat(f"{time.isoformat()}{offset}").isoformat()
        return time.isoformat()
    return ""


def _degrees(place: dict[int, Any], at: int, negative: str, most: int) -> str:
    """Return a latitude or longitude: its tags are the direction, and degrees, minutes and seconds."""
    try:
        degrees, minutes, seconds = (float(Fraction(part)) for part in place[at + 1])
        found = degrees + minutes / 60 + seconds / 3600
    except (KeyError, TypeError, ValueError, ArithmeticError):
        return ""
    sign = -1 if _text(place.get(at)).upper() == negative else 1
    return f"{sign * found:.6f}" if 0 <= found <= most else ""


def _grouped(images: ImageSet, found: Sequence[Exif], within: float) -> ImageColumn:
    given = images.columns.get(GROUP_COLUMN)
    cells = [*given.cells] if given is not None else [""] * len(images)
    # Some images of a camera may not say the offset of its time.
    seconds = ImageColumn("", "time", tuple(each.exif_time[: len("2024-05-01T10:00:00")] for each in found)).values
    rows = [
        (os.path.dirname(images.paths[row]), found[row].exif_camera, at, row)
        for row, at in enumerate(seconds)
        if at is not None and is_missing(cells[row])
    ]
    taken, before = {*cells}, ("", "", float("-inf"))
    group: list[int] = []
    for folder, camera, at, row in [*sorted(rows), ("", "", float("inf"), -1)]:
        if (folder, camera) != before[:2] or at - before[2] > within:
            _name(cells, group, found, taken)
            group = []
        group.append(row)
        before = folder, camera, at
    return ImageColumn(GROUP_COLUMN, "category", tuple(cells))


def _name(cells: list[str], group: Sequence[int], found: Sequence[Exif], taken: set[str]) -> None:
    """Call a group of several images by the time of the first, and a number where others have that name."""
    if len(group) < 2:
        return
    name = numbered(found[group[0]].exif_time, taken)
    taken.add(name)
    for row in group:
        cells[row] = name
