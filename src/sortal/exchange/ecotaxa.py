"""EcoTaxa: a zip of the images and a table, whose second row has the type of each column: text or number."""

import io
import os
import re
import zipfile
from collections.abc import Collection, Sequence
from datetime import UTC
from decimal import Decimal
from typing import Any, NamedTuple

from sortal.exchange.field_data import FieldData, field_data
from sortal.exchange.format import LeftOut, Request, is_there, visit
from sortal.exchange.image_formats import UniqueNames
from sortal.images.exported import ExportedRow, utf8
from sortal.images.originals import ChangedError, digest_of
from sortal.images.review_states import SEEN_WORDS
from sortal.runs.run import OTHER
from sortal.system.csv_tables import safe_cell
from sortal.system.regular_files import open_regular
from sortal.system.text import plural

ECOTAXA_TABLE = "ecotaxa_sortal.tsv"  # EcoTaxa looks for ecotaxa*.tsv
TEXT_TYPE, NUMBER_TYPE = "[t]", "[f]"
MOST_OWN_TEXTS = 15  # columns: a project of EcoTaxa has room for 20 texts of an object, and Sortal's own take 5


class Exported(NamedTuple):
    """A column of the table."""

    name: str
    type: str
    cells: Sequence[Any]


def write(request: Request) -> LeftOut:
    names = UniqueNames(ECOTAXA_TABLE, by_stem=True)
    with zipfile.ZipFile(request.out, "w") as archive:

        def put(number: int) -> tuple[int, str] | None:
            if not is_there(request, number):
                return None
            name = names.file(request.rows[number].file_name)
            archive.writestr(zipfile.ZipInfo(name), _content(request, number))
            return number, name

        placed, left = visit(request, put)
        rows = [(row, number, name) for row, (number, name) in placed]
        archive.writestr(zipfile.ZipInfo(ECOTAXA_TABLE), _table(_columns(request, rows)))
    return left


def _content(request: Request, number: int) -> bytes:
    """Read an image, which must have the content that was sorted."""
    row, copy = request.rows[number], io.BytesIO()
    with open_regular(row.path) as file:
        found = digest_of(file, copy=copy)
    if found != row.content and (request.originals.compared or not found):
        raise ChangedError
    return copy.getvalue()


def _columns(request: Request, rows: Sequence[tuple[ExportedRow, int, str]]) -> list[Exported]:
    known, used = field_data(request.run.assignments.columns, len(request.rows))
    taken: list[FieldData] = [known[number] for _, number, _ in rows]
    images = [row for row, _, _ in rows]
    times = [each.time and each.time.astimezone(UTC) for each in taken]
    sorted_ = [bool(row.category) and row.status != OTHER for row in images]
    columns = [
        Exported("img_file_name", TEXT_TYPE, [name for _, _, name in rows]),
        Exported("img_rank", NUMBER_TYPE, [0] * len(rows)),
        Exported("object_id", TEXT_TYPE, [os.path.splitext(name)[0] for _, _, name in rows]),
        Exported("object_lat", NUMBER_TYPE, [each.latitude for each in taken]),
        Exported("object_lon", NUMBER_TYPE, [each.longitude for each in taken]),
        Exported("object_date", NUMBER_TYPE, [time and f"{time:%Y%m%d}" for time in times]),
        Exported("object_time", NUMBER_TYPE, [time and f"{time:%H%M%S}" for time in times]),
        Exported("object_depth_min", NUMBER_TYPE, [each.depth for each in taken]),
        Exported("object_depth_max", NUMBER_TYPE, [each.depth for each in taken]),
        Exported("sample_id", TEXT_TYPE, [each.deployment for each in taken]),
        Exported("acq_id", TEXT_TYPE, [each.camera and f"{each.deployment} / {each.camera}" for each in taken]),
        Exported("acq_instrument", TEXT_TYPE, [each.camera for each in taken]),
    ]
    names = {each.name for each in columns}
    columns = [each for each in columns if any(cell not in (None, "") for cell in each.cells)]
    said = [row.category if has else "" for row, has in zip(images, sorted_, strict=True)]
    states = [_state(row) if has else "" for row, has in zip(images, sorted_, strict=True)]
    return [
        *columns,
        Exported("object_annotation_category", TEXT_TYPE, said),
        Exported("object_annotation_status", TEXT_TYPE, states),
        Exported("object_sortal_category", TEXT_TYPE, [row.sorted_as for row in images]),
        Exported("object_sortal_status", TEXT_TYPE, [row.status for row in images]),
        Exported(
            "object_sortal_confidence",
            NUMBER_TYPE,
            [None if row.calibrated == "no" else row.confidence for row in images],
        ),
        Exported("object_sortal_reviewed", TEXT_TYPE, [row.reviewed for row in images]),
        Exported("object_sortal_source", TEXT_TYPE, [row.file_name for row in images]),
        Exported("object_sortal_content", TEXT_TYPE, [row.content for row in images]),
        *_own(request, images, used, names),
    ]


def _state(row: ExportedRow) -> str:
    return "validated" if row.label or row.reviewed in SEEN_WORDS else "predicted"


def _own(
    request: Request, images: Sequence[ExportedRow], used: Sequence[str], names: Collection[str]
) -> list[Exported]:
    """Return the columns of the user's table, and the places of images, as fields of objects with none of the names."""
    own = {name: [row.own[name] for row in images] for name in (images[0].own if images else ()) if name not in used}
    found, taken, texts, left = list[Exported](), {*names}, 0, list[str]()
    places = [name for name in request.places if name != "calibrated"]
    for name, cells in [*((place, [getattr(row, place) for row in images]) for place in places), *own.items()]:
        numbers = any(isinstance(cell, Decimal) for cell in cells)
        if not numbers and (texts := texts + 1) > MOST_OWN_TEXTS:
            left.append(name)
            continue
        field, count = f"object_{re.sub('[^a-z0-9]+', '_', name.casefold()).strip('_') or 'column'}", 1
        unique = field
        while unique in taken or unique.startswith(("object_sortal_", "object_annotation_")):
            count += 1
            unique = f"object_own_{field.removeprefix('object_')}_{count}"
        taken.add(unique)
        found.append(Exported(unique, NUMBER_TYPE if numbers else TEXT_TYPE, cells))
    if left:
        request.runtime.note(
            f"EcoTaxa has room for {MOST_OWN_TEXTS} columns of text of your own, so {plural(len(left), 'column')} were "
            f"left out: {', '.join(left)}."
        )
    return found


def _table(columns: Sequence[Exported]) -> bytes:
    rows = [[each.name for each in columns], [each.type for each in columns]]
    rows += [list(row) for row in zip(*(each.cells for each in columns), strict=True)]
    return "".join("\t".join(map(_cell, row)) + "\n" for row in rows).encode("utf-8-sig")  # else read as Latin 1


def _cell(value: Any) -> str:
    """Return a cell on one line, quoted where it starts like that; what a spreadsheet would run is escaped."""
    text = utf8(re.sub(r"[\t\r\n\v\f\x00-\x1f\x85\u2028\u2029]+", " ", str(safe_cell(value))))
    return '"' + text.replace('"', '""') + '"' if text.startswith('"') else text
