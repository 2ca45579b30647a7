"""COCO: one JSON file with one annotation per image, as large as the image."""

import warnings
from collections.abc import Sequence
from typing import Any

from PIL import Image

from sortal import __version__
from sortal.images.decoding import FORMATS, ORIENTATION, SWAPPED
from sortal.runs.export.copying import has_content, visit
from sortal.runs.export.format import Request, Row, utf8, write_json


def write(request: Request) -> Sequence[str]:
    sized, missing = visit(request, lambda row: size(row.path))
    # A relative name is unambiguous below a single folder only.
    first, *others = request.run.facts.images
    relative = not others and not first.paths
    content = {
        "info": {"description": "Categories found by Sortal", "version": __version__, "contributor": "Sortal"},
        "licenses": [],
        "images": [
            {"id": number, "file_name": row.file if relative else row.path, "width": width, "height": height}
            for number, (row, (width, height)) in enumerate(sized, start=1)
        ],
        "annotations": [_annotation(number, row, *both) for number, (row, both) in enumerate(sized, start=1)],
        "categories": [
            {"id": each.id, "name": utf8(each.name), "supercategory": each.kind} for each in request.run.categories
        ],
    }
    write_json(request.out, content)
    return missing


def size(path: str) -> tuple[int, int] | None:
    """Return the width and height of the upright image, read from its header; None if it cannot be read."""
    if not has_content(path):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(path, formats=FORMATS) as image:
                width, height = image.size
                # Reading EXIF that is not in a PNG's header would decode the image; Pillow turns TIFFs itself.
                has_exif = image.format != "TIFF" and (image.format != "PNG" or "exif" in image.info)
                swapped = has_exif and image.getexif().get(ORIENTATION) in SWAPPED
    except Exception:  # decoders raise almost anything on damaged input
        return None
    return (height, width) if swapped else (width, height)


def _annotation(number: int, row: Row, width: int, height: int) -> dict[str, Any]:
    """Ids start at 1 because the official evaluation treats an annotation id of 0 as no match."""
    return {
        "id": number,
        "image_id": number,
        "category_id": row.category,
        "bbox": [0, 0, width, height],
        "area": width * height,
        "iscrowd": 0,
        "score": row.confidence,
        "status": row.status,
    }
