"""Annotations of images in files that other tools wrote: Label Studio, FiftyOne, and edited tables of an export."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from sortal.errors import InputError, listing
from sortal.images import label_tables
from sortal.images.label_tables import AS_EXPORTED, as_name
from sortal.images.review_states import SEEN_WORDS, ReviewState
from sortal.runs.run import LABELLED
from sortal.system.regular_files import read_regular

TAG = ReviewState.CONFIRMED.word  # a tag in FiftyOne by which a person says that a label is right
INSIDE = ("labels.json", "samples.json")  # what to read in a folder that FiftyOne exported
KINDS = (
    "a JSON or JSON-MIN export of Label Studio, labels.json or samples.json of FiftyOne, or a table that "
    "`sortal export` wrote"
)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What identifies an image, as far as a file has it, and what was known of it when it was exported."""

    content: str  # digest
    file: str  # name in the run
    path: str  # or the end of it, perhaps without extension
    reviewed: str

    @property
    def was_seen(self) -> bool:
        """Whether a person had decided on its category after seeing it."""
        return self.reviewed in SEEN_WORDS


@dataclass(frozen=True, kw_only=True)
class Annotation:
    """A category that a file gives an image."""

    image: Subject
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
        there = [name for name in INSIDE if (path / name).is_file()]
        if len(there) != 1:
            found = listing(there) or "neither"
            raise InputError(f"The folder {str(path)!r} must contain labels.json or samples.json, got {found}.")
        path = path / there[0]
    if path.suffix.lower() in label_tables.EXTENSIONS:
        return AnnotationFile(path=path, format="table", annotations=_table(*label_tables.read_exported(path)))
    content = _json(path)
    try:
        if isinstance(content, list) and all(isinstance(task, dict) for task in content):
            return AnnotationFile(path=path, format="Label Studio", annotations=[*_label_studio(content)])
        if isinstance(content, dict) and isinstance(content.get("labels"), dict):
            return AnnotationFile(path=path, format="FiftyOne", annotations=[*_fiftyone_labels(content)])
        if isinstance(content, dict) and isinstance(content.get("samples"), list):
            return AnnotationFile(path=path, format="FiftyOne", annotations=[*_fiftyone_samples(content["samples"])])
    except (AttributeError, KeyError, TypeError, IndexError) as error:
        raise InputError(f"{str(path)!r} is damaged, or not {KINDS}: {error!r}.") from error
    raise InputError(f"Annotations must be {KINDS}; {str(path)!r} is none of them.")


def _json(path: Path) -> Any:
    try:
        return json.loads(read_regular(path).decode("utf-8-sig"))
    except (ValueError, RecursionError):
        raise InputError(f"Annotations must be {KINDS}; {str(path)!r} is not valid JSON.") from None
    except OSError as error:
        raise InputError(f"The annotations {str(path)!r} cannot be read: {error.strerror}.") from error


def _image(about: Callable[[str], Any], path: str = "") -> Subject:
    """Return an image by the fields that an export has written."""

    def text(name: str) -> str:
        return str(about(name) or "")

    file, folder = text("source") or text("file_name"), text("image_folder")
    return Subject(
        content=text("content"),
        file=file,
        path=text("path") or path or (f"{folder}/{file}" if folder else ""),
        reviewed=text("reviewed").strip().casefold(),
    )


def _table(header: Sequence[str], rows: label_tables.Rows) -> list[Annotation]:
    found: list[Annotation] = []
    for row, decided in zip(rows, label_tables.decided_labels(rows), strict=True):
        name, label = as_name(row.get("category")), as_name(row.get("label"))
        before = as_name(row.get(AS_EXPORTED)) if AS_EXPORTED in header else name
        image = _image(row.get)
        if decided is None:
            continue
        if name is not None and name != before:
            found.append(Annotation(name=decided, edited=label != name, image=image))
        elif decided == label and (label != before or row.get("status") != LABELLED):
            found.append(Annotation(name=decided, image=image))
        elif image.was_seen:
            found.append(Annotation(name=decided, stale=True, image=image))
    return found


# Label Studio


def _label_studio(tasks: Sequence[Mapping[str, Any]]) -> Iterator[Annotation]:
    for task in tasks:
        data = task.get("data", task)  # JSON-MIN has the data in the task itself
        image = _image(data.get, _local_file(data.get("image")))
        decided = data.get("status") == LABELLED or image.was_seen
        given = [*_choices(task)] if "data" in task else [*_least_choices(task)]
        for name, by in given:
            stale = decided and name == data.get(AS_EXPORTED)  # the export wrote this annotation itself
            yield Annotation(name=name, by=by, stale=stale, image=image)


def _local_file(address: object) -> str:
    """Return the end of the path of an image that Label Studio serves from a folder."""
    query = urlsplit(address).query if isinstance(address, str) else ""
    return parse_qs(query, errors="surrogateescape").get("d", [""])[0]


def _choices(task: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the choices in the annotations of a task, and who made them."""
    for each in task.get("annotations") or ():
        if not each.get("was_cancelled"):
            for result in each.get("result") or ():
                if result.get("type") == "choices":
                    for name in result["value"]["choices"]:
                        yield str(name), _person(each.get("completed_by"))


def _least_choices(task: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the choices in a task of JSON-MIN, and who made them."""
    found = task.get("category")
    names = found["choices"] if isinstance(found, dict) else [found] if isinstance(found, str) else found or ()
    for name in names:
        yield str(name), _person(task.get("annotator"))


def _person(who: object) -> str:
    if isinstance(who, dict):
        name = " ".join(str(who.get(part) or "") for part in ("first_name", "last_name")).strip()
        return str(who.get("email") or name or f"Label Studio user {who.get('id')}")
    return who if isinstance(who, str) else "" if who is None else f"Label Studio user {who}"


# FiftyOne


def _fiftyone_labels(content: Mapping[str, Any]) -> Iterator[Annotation]:
    classes = content.get("classes") or ()
    for key, value in content["labels"].items():
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
    found: dict[str, bool] = {}
    for sample in samples:
        for name, value in sample.items():
            if isinstance(value, dict) and value.get("_cls") == "Classification":
                is_ours = AS_EXPORTED in (*value, *(value.get("attributes") or ()))
                found[name] = found.get(name, False) or is_ours
    ours = [name for name in found if found[name]] or [*found]
    if len(ours) != 1:
        raise InputError(f"The samples must have one field of classifications, got {listing(ours) or 'none'}.")
    return ours[0]


def _classification(label: Mapping[str, Any], place: str, tags: Sequence[str]) -> Iterator[Annotation]:
    def attribute(name: str) -> Any:
        value = (label.get("attributes") or {}).get(name, label.get(name))
        return value.get("value") if isinstance(value, dict) else value

    name, before = as_name(label.get("label")), attribute(AS_EXPORTED)
    image = _image(attribute, place.replace("\\", "/").rsplit("/", 1)[-1])
    confirmed = TAG in (*tags, *(label.get("tags") or ()))
    if name is None:
        return
    if confirmed or name != before:
        yield Annotation(name=name, edited=not confirmed, image=image)
    elif image.was_seen:
        yield Annotation(name=name, stale=True, image=image)
