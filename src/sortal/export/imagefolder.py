"""An ImageFolder of Hugging Face's datasets: the images, and a table of what is known of each."""

import json
from collections.abc import Sequence

from sortal.export.images import place
from sortal.export.job import Job
from sortal.export.names import Names, plain
from sortal.segments import write_atomically

# Their reader makes splits of names such as test_1.png, unless a folder is named like one.
SPLIT = "train"
# Not CSV, where it takes a class named NA for a missing value and 007 for a number. It guesses types from the first
# rows, so that no text is null.
TABLE = "metadata.jsonl"
TABLES = (TABLE, "metadata.csv", "metadata.parquet")  # no image may have a name that it takes for a table


def write(job: Job) -> Sequence[str]:
    names = Names(*TABLES)
    placed, missing = place(job, lambda row: f"{SPLIT}/{names.file(row.file)}")
    lines = [
        {
            "file_name": to.removeprefix(f"{SPLIT}/"),  # its reader makes the column image of it
            "source": plain(row.file),
            "label": plain(row.label or ""),
            "category": row.category,
            "category_name": plain(row.name),
            "status": row.status,
            "confidence": row.confidence,
        }
        for row, to in placed
    ]
    (job.out / SPLIT).mkdir(exist_ok=True)  # also where there is no image to be placed
    write_atomically(job.out / SPLIT / TABLE, "".join(f"{json.dumps(line)}\n" for line in lines).encode())
    return missing
