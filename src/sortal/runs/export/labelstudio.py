"""Label Studio: tasks with predictions that show the images in place, and the labelling interface."""

import os
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape

from sortal import __version__
from sortal.errors import InputError, Remedy
from sortal.runs.export.copying import has_content, visit
from sortal.runs.export.format import Request, Row, utf8, write_json
from sortal.runs.run import LABELLED
from sortal.system.files import write_atomically

TASKS, CONFIG, README = "tasks.json", "config.xml", "README.txt"
CHOICES, IMAGE = "category", "image"  # names in the interface that tasks refer to
QUOTED = {'"': "&quot;", "\n": "&#10;", "\r": "&#13;", "\t": "&#9;"}  # which attributes would lose


def write(request: Request) -> Sequence[str]:
    found, missing = visit(request, lambda row: row.path if has_content(row.path) else None)
    choices = _choices(request.run.names)
    root, shown = _root([path for _, path in found])
    version = f"sortal {request.run.facts.versions.get('sortal', __version__)}"
    tasks = [_task(row, root, choices[row.category], version) for row, _ in found]
    write_json(request.out / TASKS, tasks)
    write_atomically(request.out / CONFIG, _config([*choices.values()]).encode())
    write_atomically(request.out / README, _readme(root, shown).encode())
    return missing


def _task(row: Row, root: str, choice: str, version: str) -> dict[str, Any]:
    result = [{"from_name": CHOICES, "to_name": IMAGE, "type": "choices", "value": {"choices": [choice]}}]
    path = os.path.relpath(row.path, root).replace(os.sep, "/")
    task = {
        "data": {
            "image": f"/data/local-files/?d={quote(os.fsencode(path))}",
            "file_name": utf8(row.file),
            "status": row.status,
            "confidence": row.confidence,
        },
        "predictions": [{"result": result, "score": row.confidence, "model_version": version}],
    }
    return {**task, "annotations": [{"result": result}]} if row.status == LABELLED else task


def _choices(names: Mapping[int, str]) -> dict[int, str]:
    """Return the names of the categories, by id, made valid in XML and unique."""
    choices: dict[int, str] = {}
    taken: set[str] = set()
    for category, name in names.items():
        free = text = "".join(each if _in_xml(each) else "\ufffd" for each in utf8(name))
        number = 2
        while free in taken:
            free, number = f"{text} ({number})", number + 1
        taken.add(free)
        choices[category] = free
    return choices


def _in_xml(character: str) -> bool:
    return character in "\t\n\r" or (character >= " " and character not in "\ufffe\uffff")


def _config(choices: Sequence[str]) -> str:
    lines = "\n".join(f'    <Choice value="{escape(choice, QUOTED)}"/>' for choice in choices)
    return f"""<View>
  <Image name="{IMAGE}" value="$image"/>
  <Choices name="{CHOICES}" toName="{IMAGE}" choice="single" showInline="true">
{lines}
  </Choices>
</View>
"""


def _root(paths: Sequence[str]) -> tuple[str, list[str]]:
    """Return the document root, which tasks name images from, and the folders below it to add as storage.

    Label Studio refuses a storage folder that is the document root itself.
    """
    folders = sorted({os.path.dirname(path) for path in paths})
    if not folders:
        return os.sep, []
    try:
        common = os.path.commonpath(folders)
    except ValueError:  # on Windows
        raise InputError(
            "Label Studio shows images below one folder, but those of this run are on several drives.",
            Remedy("export them as folders first", format="folders", how="copy"),
        ) from None
    root = os.path.dirname(common)
    if root != common:
        return root, [common]
    return root, sorted({os.path.join(root, os.path.relpath(each, root).split(os.sep)[0]) for each in folders})


def _readme(root: str, shown: Sequence[str]) -> str:
    folders = "\n".join(f"     {utf8(folder)}" for folder in shown)
    return f"""To open these tasks in Label Studio:

1. Start it with these environment variables, which let it show the images:
     LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED=true
     LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT={utf8(root)}
2. Create a project. In its settings, paste {CONFIG} as the code of the labeling interface.
3. Under Cloud Storage, add a source storage of type Local files for each path below. Do not sync it:
   that would create a second task for every image.
{folders}
4. Import {TASKS}.
"""
