"""Annotations of images in files that other tools wrote: Label Studio, FiftyOne, and edited tables of an export."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from sortal.errors import InputError, listing
from sortal.images import label_tables
from sortal.images.class_names import as_name
from sortal.images.exported import FIFTYONE_ATTRIBUTES, LABEL_STUDIO_DATA, Statement, class_in, statement
from sortal.runs.run import LABELLED
from sortal.system.regular_files import read_regular

CONFIRMING_TAG = "confirmed"  # of a label or sample in FiftyOne, by which a person says that the label is right
FIFTYONE_FILES = ("labels.json", "samples.json")  # what to read in a folder that FiftyOne exported
READABLE = (
    "a JSON or JSON-MIN export of Label Studio, labels.json or samples.json of FiftyOne, or a table that "
    "`sortal export` wrote"
)


@dataclass(frozen=True, kw_only=True)
class Annotation:
    """A category that a file gives an image."""

    image: Statement  # what identifies it, and what was known of it when it was exported
    name: str  # of the category
    by: str = ""  # who said so
    edited: bool = False  # the category was replaced, perhaps in many rows at once; this does not confirm an image
    stale: bool = False  # unchanged since the export, so it says nothing if the run has changed since


@dataclass(frozen=True, kw_only=True)
class AnnotationFile:
    """The annotations in a file; an image may have several."""

    path: Path
    format: str
    annotations: Sequence[Annotation]


def read_annotations(path: Path) -> AnnotationFile:
    """Read a file, or the folder of a data set that FiftyOne exported."""
    if path.is_dir():
        there = [name for name in FIFTYONE_FILES if (path / name).is_file()]
        if len(there) != 1:
            got = listing(there) or "neither"
            raise InputError(f"The folder {str(path)!r} must contain labels.json or samples.json, got {got}.")
        path = path / there[0]
    if path.suffix.lower() in label_tables.TABLE_EXTENSIONS:
        return AnnotationFile(path=path, format="table", annotations=[*_table(label_tables.read_exported(path))])
    content = _json(path)
    try:
        match content:
            case list() if all(isinstance(task, dict) for task in content):
                format_, annotations = "Label Studio", [*_label_studio(content)]
            case {"labels": dict(labels)}:
                format_, annotations = "FiftyOne", [*_fiftyone_labels(labels, content.get("classes") or ())]
            case {"samples": list(samples)}:
                format_, annotations = "FiftyOne", [*_fiftyone_samples(samples)]
            case _:
                raise InputError(f"must be {READABLE}.")
    except InputError as error:
        raise InputError(f"The file {str(path)!r} {error.message}") from error
    except (AttributeError, KeyError, TypeError, IndexError) as error:
        raise InputError(f"The file {str(path)!r} is damaged, or not {READABLE}: {error!r}.") from error
    return AnnotationFile(path=path, format=format_, annotations=annotations)


def _json(path: Path) -> Any:
    try:
        return json.loads(read_regular(path).decode("utf-8-sig"))
    except (ValueError, RecursionError):
        raise InputError(f"Annotations must be {READABLE}; {str(path)!r} is not valid JSON.") from None
    except OSError as error:
        raise InputError(f"The annotations {str(path)!r} cannot be read: {error.strerror}.") from error


def _table(rows: Iterable[Statement]) -> Iterator[Annotation]:
    for row in rows:
        if row.given is None:
            continue
        if row.is_edited:
            yield Annotation(image=row, name=row.given, edited=row.label != row.category)
        elif row.given == row.label and (row.label != row.sorted_as or row.status != LABELLED):
            yield Annotation(image=row, name=row.given)
        elif row.was_seen:
            yield Annotation(image=row, name=row.given, stale=True)


# Label Studio


def _label_studio(tasks: Sequence[Mapping[str, Any]]) -> Iterator[Annotation]:
    for task in tasks:
        data = task.get("data", task)  # JSON-MIN has the data in the task itself
        known = {name: data.get(name) for name in LABEL_STUDIO_DATA}
        image = statement({**known, "file_name": known["file_name"] or _local_name(data.get("image"))})
        decided = image.status == LABELLED or image.was_seen
        for choice, by in _choices(task) if "data" in task else _minimal_choices(task):
            if name := as_name(str(choice)):
                stale = decided and name == image.sorted_as  # the export wrote this annotation itself
                yield Annotation(image=image, name=name, by=by, stale=stale)


def _local_name(address: object) -> str:
    """Return the name of an image that Label Studio serves from a folder."""
    query = urlsplit(address).query if isinstance(address, str) else ""
    return _last_part(parse_qs(query, errors="surrogateescape").get("d", [""])[0])


def _choices(task: Mapping[str, Any]) -> Iterator[tuple[object, str]]:
    """Yield the choices in the annotations of a task, and who made them."""
    for each in task.get("annotations") or ():
        if not each.get("was_cancelled"):
            for result in each.get("result") or ():
                if result.get("type") == "choices":
                    for choice in result["value"]["choices"]:
                        yield choice, _person(each.get("completed_by"))


def _minimal_choices(task: Mapping[str, Any]) -> Iterator[tuple[object, str]]:
    """Yield the choices in a task of JSON-MIN, and who made them."""
    found = task.get("category")
    choices = found["choices"] if isinstance(found, dict) else [found] if isinstance(found, str) else found or ()
    for choice in choices:
        yield choice, _person(task.get("annotator"))


def _person(who: object) -> str:
    if isinstance(who, dict):
        name = " ".join(str(who.get(part) or "") for part in ("first_name", "last_name")).strip()
        return str(who.get("email") or name or f"Label Studio user {who.get('id')}")
    return who if isinstance(who, str) else "" if who is None else f"Label Studio user {who}"


# FiftyOne


def _fiftyone_labels(labels: Mapping[str, Any], classes: Sequence[str]) -> Iterator[Annotation]:
    for key, value in labels.items():
        for each in value if isinstance(value, list) else [value]:
            label = dict(each) if isinstance(each, dict) else {"label": each}
            if isinstance(label["label"], int):  # where FiftyOne was told the classes
                label["label"] = classes[label["label"]]
            yield from _classification(label, key, ())


def _fiftyone_samples(samples: Sequence[Mapping[str, Any]]) -> Iterator[Annotation]:
    field = _label_field(samples)
    for sample in samples:
        if isinstance(label := sample.get(field), dict):
            yield from _classification(label, sample["filepath"], sample.get("tags") or ())


def _label_field(samples: Sequence[Mapping[str, Any]]) -> str:
    """Return the name of the field with the labels: the one that came from an export of Sortal, or the only one."""
    is_ours: dict[str, bool] = {}
    for sample in samples:
        for name, value in sample.items():
            if isinstance(value, dict) and value.get("_cls") == "Classification":
                is_ours[name] = is_ours.get(name, False) or "sorted_as" in (*value, *(value.get("attributes") or ()))
    fields = [name for name in is_ours if is_ours[name]] or [*is_ours]
    if len(fields) != 1:
        raise InputError(f"must have one field of classifications, got {listing(fields) or 'none'}.")
    return fields[0]


def _classification(label: Mapping[str, Any], place: str, tags: Sequence[str]) -> Iterator[Annotation]:
    known = {**label, **(label.get("attributes") or {})}
    cells = {name: known.get(name) for name in FIFTYONE_ATTRIBUTES}
    plain = {name: cell.get("value") if isinstance(cell, dict) else cell for name, cell in cells.items()}
    image = statement({**plain, "file_name": _last_part(place)})
    name, confirmed = class_in(label, "label"), CONFIRMING_TAG in (*tags, *(label.get("tags") or ()))
    if name is None:
        return
    if confirmed or name != image.sorted_as:
        yield Annotation(image=image, name=name, edited=not confirmed)
    elif image.was_seen:
        yield Annotation(image=image, name=name, stale=True)


def _last_part(path: str) -> str:
    return path.replace("\\", "/").rsplit("/", 1)[-1]
