"""COCO: one JSON file with one annotation per image, as large as the image; those in the bin have none."""

import os
import warnings

from PIL import Image

from sortal import __version__
from sortal.exchange.format import LeftOut, Request, visit, write_json
from sortal.exchange.naming import folder_names
from sortal.images.decoding import IMAGE_FORMATS, ORIENTATION, SWAPPED, pillows_limit
from sortal.images.exported import ExportedRow, utf8
from sortal.images.originals import ChangedError
from sortal.runs.run import NOWHERE


def write(request: Request) -> LeftOut:
    with pillows_limit(request.run.facts.settings.max_pixels):
        sized, left = visit(request, lambda number: _size(request, number))
    several = "image_folder" in request.places  # below which a relative name is unambiguous
    sources = request.run.facts.images
    folders = dict(zip(folder_names(sources), (each.folder or "" for each in sources), strict=True))
    images, annotations = [], []
    # Ids start at 1 because the official evaluation treats an annotation id of 0 as no match.
    for number, (row, (width, height)) in enumerate(sized, start=1):
        relative = _relative(row, folders[row.image_folder])
        relative = f"{row.image_folder}/{relative}" if several else relative
        file = row.path if request.absolute_paths else relative
        images.append({"id": number, "file_name": file, "width": width, "height": height})
        if row.category_id == NOWHERE:
            images[-1] |= {"status": row.status, "reviewed": row.reviewed}
            continue
        annotations.append(
            {
                "id": number,
                "image_id": number,
                "category_id": row.category_id,
                "bbox": [0, 0, width, height],
                "area": width * height,
                "iscrowd": 0,
                "score": row.confidence,
                "status": row.status,
                "reviewed": row.reviewed,
                **({"attributes": attributes} if (attributes := row.values(request.attributes)) else {}),
            }
        )
    kinds = [{"id": each.id, "name": utf8(each.name), "supercategory": each.kind} for each in request.run.categories]
    info = {"description": "Categories found by Sortal", "version": __version__, "contributor": "Sortal"}
    content = {"info": info, "licenses": [], "images": images, "annotations": annotations, "categories": kinds}
    write_json(request.out, content)
    return left


def _relative(row: ExportedRow, folder: str) -> str:
    """Return the name under which an image opens in a folder, if it is there, else the one that it has in the run."""
    if os.path.join(folder, row.file_name) == row.path or not row.path.startswith(os.path.join(folder, "")):
        return row.file_name
    return os.path.relpath(row.path, folder).replace(os.sep, "/")


def _size(request: Request, number: int) -> tuple[int, int] | None:
    """Return the width and height of the upright image, read from its header; None if it cannot be read."""
    try:
        with (
            warnings.catch_warnings(action="ignore"),
            request.originals.open(number) as file,
            Image.open(file, formats=IMAGE_FORMATS) as image,
        ):
            width, height = image.size
            # Reading EXIF that is not in a PNG's header would decode the image; Pillow turns TIFFs itself.
            has_exif = image.format != "TIFF" and (image.format != "PNG" or "exif" in image.info)
            swapped = has_exif and image.getexif().get(ORIENTATION) in SWAPPED
    except ChangedError:
        raise
    except Exception:  # decoders raise almost anything on damaged input
        return None
    return (height, width) if swapped else (width, height)
