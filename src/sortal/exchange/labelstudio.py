"""Label Studio: tasks with predictions that show the images in place, and the labelling interface."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape

from sortal import __version__
from sortal.errors import InputError, Remedy
from sortal.exchange.format import LeftOut, Request, is_there, visit, write_json
from sortal.images.exported import LABEL_STUDIO_DATA, ExportedRow, utf8
from sortal.images.review_states import SEEN_WORDS
from sortal.system.files import write_atomically
from sortal.system.text import numbered

QUOTED = {'"': "&quot;", "\n": "&#10;", "\r": "&#13;", "\t": "&#9;"}  # which attributes would lose
NOT_XML = re.compile("[^\t\n\r -\ufffd\U00010000-\U0010ffff]")
# The names `category` and `image` are those that tasks refer to.
LABELLING_CONFIG = """<View>
  <Image name="image" value="$image"/>
  <Choices name="category" toName="image" choice="single" showInline="true">
{choices}
  </Choices>
</View>
"""
README = """To open these tasks in Label Studio:

1. Start it with these environment variables, which let it show the images:
     LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED=true
     LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT={root}
2. Create a project. In its settings, paste config.xml as the code of the labeling interface.
3. Under Cloud Storage, add a source storage of type Local files for each path below{below}. Do not sync it:
   that would create a second task for every image.
{folders}
4. Import tasks.json.
5. To bring what you have annotated back into the run, export it as JSON or JSON-MIN, then:
     sortal import {run} FILE
"""


def write(request: Request) -> LeftOut:
    found, left = visit(request, lambda number: request.rows[number].path if is_there(request, number) else None)
    choices = choices_of(request.run.names)
    root, shown = _root(request, [path for _, path in found])
    version = f"sortal {request.run.facts.versions.get('sortal', __version__)}"
    config = LABELLING_CONFIG.format(
        choices="\n".join(f'    <Choice value="{escape(e, QUOTED)}"/>' for e in choices.values())
    )
    readme = _readme(request, root, shown)
    data = (*LABEL_STUDIO_DATA, *request.attributes)
    tasks = [_task(row, root, choices.get(row.category_id), version, data) for row, _ in found]
    write_json(request.out / "tasks.json", tasks)
    write_atomically(request.out / "config.xml", config.encode())
    write_atomically(request.out / "README.txt", readme.encode())
    return left


def _task(row: ExportedRow, root: str, choice: str | None, version: str, data: Sequence[str]) -> dict[str, Any]:
    """Return the task of an image; without a choice, as it belongs to no category, it is one that a person skipped."""
    path = os.path.relpath(row.path, root).replace(os.sep, "/")
    image = f"/data/local-files/?d={quote(os.fsencode(path))}"
    if choice is None:
        return {"data": {"image": image, **row.values(data)}, "annotations": [{"result": [], "was_cancelled": True}]}
    result = [{"from_name": "category", "to_name": "image", "type": "choices", "value": {"choices": [choice]}}]
    task = {
        "data": {"image": image, **row._replace(sorted_as=choice).values(data)},
        "predictions": [{"result": result, "score": row.confidence, "model_version": version}],
    }
    decided = row.label or row.reviewed in SEEN_WORDS
    return {**task, "annotations": [{"result": result}]} if decided else task


def choices_of(names: Mapping[int, str]) -> dict[int, str]:
    """Return the names of the categories, by id, made valid in XML and unique."""
    taken: dict[str, int] = {}
    for category, name in names.items():
        taken[numbered(NOT_XML.sub("\ufffd", utf8(name)), taken)] = category
    return {category: choice for choice, category in taken.items()}


def _readme(request: Request, root: str, shown: Sequence[str]) -> str:
    """Return the steps, with names only unless absolute paths were asked for: the folder may be given to others."""
    run, top, below = str(request.run.folder), root, ""
    if not request.absolute_paths:
        shown = [os.path.relpath(each, root).replace(os.sep, "/") for each in shown]
        run = request.run.folder.name or "RUN"
        top = f"(the absolute path of the folder that contains {', '.join(shown)})"
        below = ", after that of the document root"
    folders = "\n".join(f"     {utf8(folder)}" for folder in shown)
    return README.format(root=utf8(top), below=below, folders=folders, run=utf8(shlex.quote(run)))


def _root(request: Request, paths: Sequence[str]) -> tuple[str, list[str]]:
    """Return the document root, which tasks name images from, and the folders to add as storage, which lie below it."""
    if not paths:
        return os.sep, []
    try:
        folders = _folders(request, paths)
        root = os.path.commonpath([os.path.dirname(each) for each in folders])
    except ValueError:  # on Windows
        raise InputError(
            "Label Studio shows images below one folder, but those of this run are on several drives.",
            Remedy("export them as folders first", format="folders", how="copy"),
        ) from None
    if len(folders) > 1 and _reveals_all(root) and not request.absolute_paths:
        raise InputError(
            f"The images of this run are in folders that only {root!r} contains, so tasks must name them by their "
            "absolute paths.",
            Remedy("allow it", absolute_paths=True),
            Remedy("export them as folders", format="folders", how="copy"),
        )
    if root not in folders:
        return root, folders
    return root, sorted({os.path.join(root, os.path.relpath(each, root).split(os.sep)[0]) for each in paths})


def _folders(request: Request, paths: Sequence[str]) -> list[str]:
    """Return the folders that were given, if they contain all images, else the one that does."""
    given = sorted({each.folder for each in request.run.facts.images if each.folder})
    inside = [next((each for each in given if path.startswith(os.path.join(each, ""))), None) for path in paths]
    if None not in inside:
        return sorted({each for each in inside if each is not None})
    return [os.path.commonpath([os.path.dirname(path) for path in paths])]


def _reveals_all(root: str) -> bool:
    """Tell whether names relative to a folder reveal as much as absolute ones: it is the root, or contains homes."""
    home = Path.home()
    return Path(root) == Path(Path(root).anchor) or (home != Path(root) and home.is_relative_to(root))
