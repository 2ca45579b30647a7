"""An ImageFolder of Hugging Face datasets: the images, and a metadata table."""

import json
from collections.abc import Sequence

from sortal.runs.export.copying import place
from sortal.runs.export.file_names import Names
from sortal.runs.export.format import Request, utf8
from sortal.system.files import write_atomically

# Unless a folder is named like a split, the reader guesses splits from names such as test_1.png.
SPLIT = "train"
# Not CSV, in which the reader takes a class named NA for a missing value and 007 for a number. It infers types from
# the first rows, so no text is null.
TABLE = "metadata.jsonl"
TABLES = (TABLE, "metadata.csv", "metadata.parquet")  # names the reader takes for tables, which no image may have


def write(request: Request) -> Sequence[str]:
    names = Names(*TABLES)
    placed, missing = place(request, lambda row: names.file(row.file), SPLIT)
    lines = [
        {
            "file_name": path,  # the reader loads it into the column `image`
            "source": utf8(row.file),
            "label": utf8(row.label or ""),
            **row.assigned,
            "category_name": utf8(row.name),
        }
        for row, path in placed
    ]
    write_atomically(request.out / SPLIT / TABLE, "".join(f"{json.dumps(line)}\n" for line in lines).encode())
    return missing
