"""What was seen of image files before: the content each had, so that only files that changed are read again."""

import json
import os
from pathlib import Path
from typing import Any, TypeAlias, cast

from sortal.pixels import Reason

Stamp: TypeAlias = list[int]  # what changes whenever a file does, as the file system tells
LASTING = frozenset({"empty", "not an image", "truncated", "damaged", "too large", "unsupported"})  # true of a content


def stamp_of(path: str) -> Stamp | None:
    """The stamp of a file, or nothing where there is none."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


class Seen:
    """A log of lines of JSON, appended to by any number of processes; a line torn by a kill is passed over.

    A line holds some of: "path" and "stamp" of a file, the "digest" of its content, the "size" (width, height) of that
    content's image, or why it is "bad" (reason, detail).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sizes: dict[str, tuple[int, int]] = {}
        self.bad: dict[str, tuple[Reason, str]] = {}
        self._files: dict[str, tuple[Stamp, str]] = {}
        self._unwritten: list[str] = []
        if path.exists():
            for line in path.read_bytes().split(b"\n"):
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                self._note(record)

    def content(self, path: str, stamp: Stamp) -> str | None:
        """The content of a file that is still as it was when last seen."""
        then, digest = self._files.get(os.path.abspath(path), (None, None))
        return digest if then == stamp else None

    def add(self, record: dict[str, Any]) -> None:
        """Note something, to be written by the next `flush`."""
        self._note(record)
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

    def _note(self, record: dict[str, Any]) -> None:
        digest = record["digest"]
        if "path" in record:
            self._files[record["path"]] = (record["stamp"], digest)
        if "size" in record:
            width, height = record["size"]
            self.sizes[digest] = (width, height)
        if "bad" in record:
            reason, detail = record["bad"]
            self.bad[digest] = (cast(Reason, reason), detail)
