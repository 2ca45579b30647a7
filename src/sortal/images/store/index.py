"""What was seen of image files before: the content each had, so that only files that changed are read again."""

import json
import os
from pathlib import Path
from typing import Any, TypeAlias, get_args

from sortal.pixels import DECODER, Reason

Stamp: TypeAlias = list[int]  # what changes whenever a file does, as the file system tells


def stamp_of(path: str) -> Stamp | None:
    """The stamp of a file, or nothing where there is none."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns]


class Seen:
    """A log of lines of JSON, appended to by any number of processes; a line torn by a kill is passed over.

    A line holds some of: "path" and "stamp" of a file, the "digest" of its content, the "size" (width, height) of that
    content's image, or why it is "bad" (reason, detail) and "by" which decoder; another one may think otherwise.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sizes: dict[str, tuple[int, int]] = {}
        self.bad: dict[str, tuple[Reason, str]] = {}
        self._files: dict[str, tuple[Stamp, str]] = {}
        self._unwritten: list[str] = []
        for line in path.read_bytes().split(b"\n") if path.exists() else ():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if _is_record(record):
                self.note(record)

    def content(self, path: str, stamp: Stamp) -> str | None:
        """The content of a file that is still as it was when last seen, if it is known what became of it."""
        then, digest = self._files.get(os.path.abspath(path), (None, ""))
        return digest if then == stamp and (digest in self.sizes or digest in self.bad) else None

    def add(self, record: dict[str, Any]) -> None:
        """Note something, to be written by the next `flush`."""
        if "bad" in record:
            record = {**record, "by": DECODER}
        self.note(record)
        self._unwritten.append(json.dumps(record))

    def flush(self) -> None:
        """Append what was added, in one write."""
        if not self._unwritten:
            return
        # A line break first ends whatever a killed process left without one.
        text = "\n" + "\n".join(self._unwritten) + "\n"
        self._unwritten.clear()
        with self.path.open("ab") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())

    def note(self, record: dict[str, Any]) -> None:
        """Know something, without writing it down."""
        digest = record["digest"]
        if "path" in record:
            self._files[record["path"]] = (record["stamp"], digest)
        if "size" in record:
            width, height = record["size"]
            self.sizes[digest] = (width, height)
        if "bad" in record and record.get("by", DECODER) == DECODER:
            reason, detail = record["bad"]
            self.bad[digest] = (reason, detail)


def _is_record(record: object) -> bool:
    """Whether a line is one that `add` could have written."""
    if not isinstance(record, dict) or not isinstance(record.get("digest"), str):
        return False
    bad = record.get("bad", ("damaged", ""))
    return (
        ("path" in record) == ("stamp" in record)
        and ("bad" in record) == ("by" in record)
        and isinstance(record.get("path", ""), str)
        and _is_list(record.get("stamp", []), int)
        and _is_list(record.get("size", [1, 1]), int, 2)
        and _is_list(list(bad) if isinstance(bad, list | tuple) else bad, str, 2)
        and bad[0] in get_args(Reason)
    )


def _is_list(value: object, kind: type, length: int | None = None) -> bool:
    return (
        isinstance(value, list)
        and all(isinstance(item, kind) for item in value)
        and (length is None or len(value) == length)
    )
