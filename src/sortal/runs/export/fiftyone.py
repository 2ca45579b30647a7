"""A FiftyOneImageClassificationDataset: a folder of images, and labels by the names of their files."""

import json
import os
from collections.abc import Sequence

from sortal.export.images import place
from sortal.export.job import Job
from sortal.export.names import Names, plain
from sortal.segments import write_atomically

DATA, LABELS = "data", "labels.json"


def write(job: Job) -> Sequence[str]:
    names = Names(by_stem=True)  # labels are found by file names without extensions
    (job.out / DATA).mkdir()
    placed, missing = place(job, lambda row: f"{DATA}/{names.file(row.file)}")
    labels = {
        os.path.splitext(to.removeprefix(f"{DATA}/"))[0]: {
            "label": plain(row.name),
            "confidence": row.confidence,
            "attributes": {"status": row.status, "category": row.category, "source": plain(row.file)},
        }
        for row, to in placed
    }
    content = {"classes": [plain(name) for name in job.run.names], "labels": labels}
    write_atomically(job.out / LABELS, json.dumps(content).encode())
    return missing
