"""Where, when and by which camera images were taken, by the columns of a run that have a usual name."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from sortal.errors import InputError, listing
from sortal.images.columns import Columns, ImageColumn, is_missing
from sortal.system.text import plural

# Names of columns, in any case and with any separators; the first of them that a run has counts.
USUAL_NAMES = {
    "time": ("timestamp", "datetime", "datetimeoriginal", "eventdate", "exiftime", "time", "date"),
    "latitude": ("latitude", "decimallatitude", "lat", "exiflatitude"),
    "longitude": ("longitude", "decimallongitude", "lon", "lng", "exiflongitude"),
    "deployment": ("deploymentid", "deployment", "station", "site", "location", "locationid", "sampleid", "sample"),
    "camera": ("cameramodel", "camera", "exifcamera"),
    "depth": ("depth",),
}
MOST_DEGREES = {"latitude": 90.0, "longitude": 180.0}


class FieldData(NamedTuple):
    """What is known of the moment that an image was taken."""

    time: datetime | None  # with its zone; UTC where the column says none
    latitude: float | None  # degrees
    longitude: float | None
    deployment: str
    camera: str
    depth: float | None


def field_data(columns: Columns, n: int) -> tuple[list[FieldData], tuple[str, ...]]:
    """Return what columns say of each of n images, and the names of the columns that say it."""
    found = {what: _column(columns, what) for what in USUAL_NAMES}

    def cells(what: str) -> Sequence[str]:
        column = found[what]
        return ("",) * n if column is None else column.cells

    def numbers(what: str) -> list[float | None]:
        column, most = found[what], MOST_DEGREES.get(what, float("inf"))
        values = (None,) * n if column is None else column.values
        return [value if value is not None and abs(value) <= most else None for value in values]

    times = [_time(cell) for cell in cells("time")]
    texts = [["" if is_missing(cell) else cell for cell in cells(what)] for what in ("deployment", "camera")]
    rows = zip(times, numbers("latitude"), numbers("longitude"), *texts, numbers("depth"), strict=True)
    return [FieldData(*row) for row in rows], tuple(each.name for each in found.values() if each is not None)


def required(data: Sequence[FieldData]) -> dict[str, list[bool]]:
    """Return what Camtrap DP needs to know of every image, by column, and of which images it is known."""
    everything = dict[str, list[bool]]()
    for what in ("time", "latitude", "longitude"):
        known = [getattr(each, what) is not None for each in data]
        if what != "time":  # one position is enough for a deployment
            placed = {each.deployment for each, has in zip(data, known, strict=True) if has and each.deployment}
            known = [has or each.deployment in placed for each, has in zip(data, known, strict=True)]
        everything[what] = known
    return everything


def lacking(columns: Columns, n: int) -> str:
    """Say what an export of camera traps will lack, if columns say something of where or when n images were taken."""
    data, _ = field_data(columns, n)
    lacks = {what: known.count(False) for what, known in required(data).items() if not all(known)}
    if not lacks or all(each.time is None and each.latitude is None and each.longitude is None for each in data):
        return ""
    each = ", ".join(f"{what} of {plural(count, 'image')}" for what, count in lacks.items())
    names = ", ".join(dict.fromkeys(USUAL_NAMES[what][0] for what in lacks))
    ways = f"EXIF data may have it (--exif), or add columns to the table: {names}."
    return f"An export as camtrap-dp would lack: {each}. {ways}"


def check_known(known: Mapping[str, Sequence[bool]], files: Sequence[str], format: str) -> None:
    """Raise InputError unless everything is known of every image; name all that is missing."""
    lacking = {what: [file for file, has in zip(files, own, strict=True) if not has] for what, own in known.items()}
    lacking = {what: images for what, images in lacking.items() if images}
    if lacking:
        missing = "; ".join(
            f"its {what}, which {plural(len(images), 'image')} of {len(files):,} "
            f"{'lacks' if len(images) == 1 else 'lack'}: {listing(images)}"
            for what, images in lacking.items()
        )
        others = {what: [name for name in USUAL_NAMES[what] if name != what][:3] for what in lacking}
        columns = ", ".join(f"{what} (or {', '.join(names)}, …)" for what, names in others.items())
        raise InputError(
            f"The format {format} needs for every image: {missing}. Sort the images again with sortal discover RUN "
            f"--exif, if their EXIF data has it, or with a table that has the columns: {columns}."
        )


def _column(columns: Columns, what: str) -> ImageColumn | None:
    by_name: dict[str, ImageColumn] = {}
    for each in columns.each:
        by_name.setdefault(re.sub(r"[^a-z]", "", each.name.casefold()), each)
    kind = {"time": "time", "latitude": "number", "longitude": "number", "depth": "number"}.get(what)
    named = (by_name.get(name) for name in USUAL_NAMES[what])
    return next((each for each in named if each is not None and kind in (None, each.kind)), None)


def _time(cell: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(cell)
    except ValueError:
        return None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).replace(microsecond=0)
