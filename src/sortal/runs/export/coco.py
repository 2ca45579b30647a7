"""COCO: one JSON file in which each image has one annotation, as large as the image."""

import json
import warnings
from collections.abc import Sequence
from typing import Any

from PIL import Image

from sortal import __version__
from sortal.export.images import readable, with_each
from sortal.export.job import Job, Row
from sortal.export.names import plain
from sortal.pixels import FORMATS, ORIENTATION, SWAPPED
from sortal.run import Run
from sortal.segments import write_atomically


def write(job: Job) -> Sequence[str]:
    sized, missing = with_each(job, lambda row: size(row.path))
    # Names below one folder are enough to find the images; those from several, or from a list, are not.
    first, *others = job.run.about["images"]
    enough = not others and not first["paths"]
    content = {
        "info": {"description": "Categories found by Sortal", "version": __version__, "contributor": "Sortal"},
        "licenses": [],
        "images": [
            {"id": number, "file_name": row.file if enough else row.path, "width": width, "height": height}
            for number, (row, (width, height)) in enumerate(sized, start=1)
        ],
        "annotations": [_annotation(number, row, *both) for number, (row, both) in enumerate(sized, start=1)],
        "categories": _categories(job.run),
    }
    # Escapes keep even names of files that are not UTF-8, so that they open.
    write_atomically(job.out, json.dumps(content).encode())
    return missing


def size(path: str) -> tuple[int, int] | None:
    """Width and height, upright, by the header alone; None where there is no image to be read."""
    if not readable(path):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(path, formats=FORMATS) as image:
                width, height = image.size
                # Asking a PNG for EXIF that is not in its header would decode it; TIFFs are upright already.
                told = image.format != "TIFF" and (image.format != "PNG" or "exif" in image.info)
                swapped = told and image.getexif().get(ORIENTATION) in SWAPPED
    except Exception:  # decoders raise nearly every kind on damaged input
        return None
    return (height, width) if swapped else (width, height)


def _annotation(number: int, row: Row, width: int, height: int) -> dict[str, Any]:
    """Numbers start at 1: the official evaluation takes an annotation 0 for none."""
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


def _categories(run: Run) -> list[dict[str, Any]]:
    return [{"id": each.id, "name": plain(each.name), "supercategory": each.kind} for each in run.categories]
