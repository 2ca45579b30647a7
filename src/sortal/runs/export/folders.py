"""One folder per category, which most training tools read."""

from collections.abc import Sequence

from sortal.runs.export.copying import place
from sortal.runs.export.file_names import Names
from sortal.runs.export.format import ASSIGNED, Request, Row
from sortal.runs.run import UNSURE
from sortal.runs.tables import table
from sortal.system.files import write_atomically

INDEX = "index.csv"


def write(request: Request) -> Sequence[str]:
    """Write CATEGORY/FILE for sure images, unsure/CATEGORY/FILE for the others, and an index."""
    top = Names(UNSURE, INDEX)
    folders = {category: top.folder(name) for category, name in request.run.names.items()}
    files: dict[str, Names] = {}

    def path(row: Row) -> str:
        folder = f"{UNSURE}/{folders[row.category]}" if row.status == UNSURE else folders[row.category]
        return f"{folder}/{files.setdefault(folder, Names()).file(row.file)}"

    placed, missing = place(request, path)
    index = [{"exported": path, "file_name": row.file, **row.assigned} for row, path in placed]
    columns = [(name, [each[name] for each in index]) for name in ("exported", "file_name", *ASSIGNED)]
    write_atomically(request.out / INDEX, table(columns))
    return missing
