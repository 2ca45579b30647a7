"""A folder for each category, which is what most tools that train classifiers read."""

from collections.abc import Sequence
from typing import Any

from sortal.cells import table
from sortal.export.images import place
from sortal.export.job import Job, Row
from sortal.export.names import Names
from sortal.run import UNSURE
from sortal.segments import write_atomically

INDEX = "index.csv"


def write(job: Job) -> Sequence[str]:
    """CATEGORY/FILE, or unsure/CATEGORY/FILE, so that a category's folder holds only what is sure; and an index."""
    top = Names(UNSURE, INDEX)
    folders = [top.folder(name) for name in job.run.names]
    files: dict[str, Names] = {}

    def path(row: Row) -> str:
        folder = f"{UNSURE}/{folders[row.category]}" if row.status == UNSURE else folders[row.category]
        return f"{folder}/{files.setdefault(folder, Names()).file(row.file)}"

    placed, missing = place(job, path)
    index: dict[str, list[Any]] = {
        "exported": [to for _, to in placed],
        "file_name": [row.file for row, _ in placed],
        "category": [row.category for row, _ in placed],
        "category_name": [row.name for row, _ in placed],
        "status": [row.status for row, _ in placed],
        "confidence": [row.confidence for row, _ in placed],
    }
    write_atomically(job.out / INDEX, table([*index.items()]))
    return missing
