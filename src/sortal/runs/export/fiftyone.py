"""A FiftyOneImageClassificationDataset: a folder of images, and labels by file name."""

import os
from collections.abc import Sequence

from sortal.runs.export.copying import place
from sortal.runs.export.file_names import Names
from sortal.runs.export.format import Request, utf8, write_json

DATA, LABELS = "data", "labels.json"


def write(request: Request) -> Sequence[str]:
    names = Names(by_stem=True)  # FiftyOne looks labels up by file name without extension
    placed, missing = place(request, lambda row: names.file(row.file), DATA)
    labels = {
        os.path.splitext(path)[0]: {
            "label": utf8(row.name),
            "confidence": row.confidence,
            "attributes": {"status": row.status, "category": row.category, "source": utf8(row.file)},
        }
        for row, path in placed
    }
    write_json(request.out / LABELS, {"classes": [utf8(name) for name in request.run.names.values()], "labels": labels})
    return missing
