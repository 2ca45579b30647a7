"""Label Studio: tasks that show the images where they are, with what was found, and the interface to correct it."""

import json
import os
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape

from sortal import __version__
from sortal.errors import InputError
from sortal.export.images import readable, with_each
from sortal.export.job import Job, Row
from sortal.export.names import plain
from sortal.run import LABELLED
from sortal.segments import write_atomically

TASKS, CONFIG, README = "tasks.json", "config.xml", "README.txt"
CHOICES, IMAGE = "category", "image"  # names in the interface, to which tasks refer
QUOTED = {'"': "&quot;", "\n": "&#10;", "\r": "&#13;", "\t": "&#9;"}  # so that attributes keep them


def write(job: Job) -> Sequence[str]:
    found, missing = with_each(job, lambda row: row.path if readable(row.path) else None)
    choices = _choices(job.run.names)
    root, shown = _root([path for _, path in found])
    version = f"sortal {job.run.about.get('versions', {}).get('sortal', __version__)}"
    tasks = [_task(row, root, choices[row.category], version) for row, _ in found]
    write_atomically(job.out / TASKS, json.dumps(tasks).encode())
    write_atomically(job.out / CONFIG, _config(choices).encode())
    write_atomically(job.out / README, _readme(root, shown).encode())
    return missing


def _task(row: Row, root: str, choice: str, version: str) -> dict[str, Any]:
    result = [{"from_name": CHOICES, "to_name": IMAGE, "type": "choices", "value": {"choices": [choice]}}]
    path = os.path.relpath(row.path, root).replace(os.sep, "/")
    task = {
        "data": {
            "image": f"/data/local-files/?d={quote(os.fsencode(path))}",
            "file_name": plain(row.file),
            "status": row.status,
            "confidence": row.confidence,
        },
        "predictions": [{"result": result, "score": row.confidence, "model_version": version}],
    }
    return {**task, "annotations": [{"result": result}]} if row.status == LABELLED else task


def _choices(names: Sequence[str]) -> list[str]:
    """Names of categories as XML can hold them, each once."""
    choices: list[str] = []
    taken: set[str] = set()
    for name in names:
        free = text = "".join(each if _in_xml(each) else "\ufffd" for each in plain(name))
        number = 2
        while free in taken:
            free, number = f"{text} ({number})", number + 1
        taken.add(free)
        choices.append(free)
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
    """The folder that tasks name images from, and those below it that are to be shown, which may not be the same."""
    folders = sorted({os.path.dirname(path) for path in paths})
    if not folders:
        return os.sep, []
    try:
        common = os.path.commonpath(folders)
    except ValueError:  # on Windows
        raise InputError(
            "Label Studio shows images below one folder only; those of this run are on several drives. "
            "Export them as folders first (--format folders --how copy)."
        ) from None
    root = os.path.dirname(common)
    if root != common:
        return root, [common]
    return root, sorted({os.path.join(root, os.path.relpath(each, root).split(os.sep)[0]) for each in folders})


def _readme(root: str, shown: Sequence[str]) -> str:
    folders = "\n".join(f"     {plain(folder)}" for folder in shown)
    return f"""To open these tasks in Label Studio:

1. Start it with these environment variables, so that it may show the images:
     LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED=true
     LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT={plain(root)}
2. Make a project. In its settings, paste {CONFIG} as the code of the labeling interface.
3. Under Cloud Storage add a source storage of the type Local files for this path. Do not sync it:
   that would make a second task of every image.
{folders}
4. Import {TASKS}.
"""
