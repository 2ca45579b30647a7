"""The index of a pixel store: the content of every file it read, and what became of each content.

Unchanged files are recognised by their stamp and not read again; moved and copied ones by their content.
"""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, get_args

from sortal.errors import Reason
from sortal.images import near_duplicates
from sortal.images.decoding import DECODER, FACTS

Stamp: TypeAlias = list[int]  # size and times of a file, which change whenever its content does


def stamp_of(path: str) -> Stamp | None:
    """Return the stamp of a file, or None if it does not exist."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns]


class StoredImage(NamedTuple):
    """Where the pixels of a content are stored, and the facts about its file."""

    offset: int  # of the pixels, uint8 (height, width, 3); the thumbnail for near-duplicates follows them
    height: int
    width: int
    facts: list[int]  # in the order of decoding.FACTS

    @property
    def end(self) -> int:
        return self.offset + bytes_of(self.height, self.width)


def bytes_of(height: int, width: int) -> int:
    """Return the bytes that an image takes in a pixel file."""
    return 3 * height * width + near_duplicates.LENGTH


class Index:
    """A log of JSON lines that any number of processes may append to; a line torn by a kill is skipped.

    A line has the "digest" of a content and some of: "path" and "stamp" of a file with that content, the fields of its
    StoredImage ("stored"), or why it is "unreadable" (reason, detail) and for which "decoder".
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.path = home / "index.jsonl"
        self.pixels = home / "pixels.bin"
        self.stored: dict[str, StoredImage] = {}
        self.unreadable: dict[str, tuple[Reason, str]] = {}
        self._files: dict[str, tuple[Stamp, str]] = {}
        self._unwritten: list[str] = []
        self._position = 0
        self.refresh()

    def refresh(self) -> None:
        """Read the lines appended since the last call. Pixels missing from their file count as not stored."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._position)
            text = file.read()
        self._position += text.rfind(b"\n") + 1
        size = self.pixels.stat().st_size if self.pixels.exists() else 0
        for line in text.split(b"\n"):
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if _is_record(record) and ("stored" not in record or StoredImage(**record["stored"]).end <= size):
                self._note(record)

    def knows(self, digest: str) -> bool:
        """Return whether a content is stored or known to be unreadable."""
        return digest in self.stored or digest in self.unreadable

    def content(self, path: str, stamp: Stamp) -> str | None:
        """Return the digest of a file that has not changed since it was read, if the index knows its content."""
        then, digest = self._files.get(os.path.abspath(path), (None, ""))
        return digest if then == stamp and self.knows(digest) else None

    def add(self, record: dict[str, Any]) -> None:
        """Add a record, to be written by the next `flush`."""
        if "unreadable" in record:
            record = {**record, "decoder": DECODER}
        self._note(record)
        self._unwritten.append(json.dumps(record, separators=(",", ":")))

    def flush(self) -> None:
        """Append the added records to the file, in one write."""
        if not self._unwritten:
            return
        # The leading line break ends a line that a killed process left unfinished.
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
        if "stored" in record:
            self.stored[digest] = StoredImage(**record["stored"])
        if "unreadable" in record and record["decoder"] == DECODER:
            reason, detail = record["unreadable"]
            self.unreadable[digest] = (reason, detail)


def _is_record(record: object) -> bool:
    """Return whether `Index.add` could have written a line."""
    if not isinstance(record, dict) or not isinstance(record.get("digest"), str):
        return False
    unreadable = record.get("unreadable", ["damaged", ""])
    return (
        ("path" in record) == ("stamp" in record)
        and ("unreadable" in record) == ("decoder" in record)
        and isinstance(record.get("path", ""), str)
        and _is_list(record.get("stamp", []), int)
        and ("stored" not in record or _is_stored(record["stored"]))
        and _is_list(unreadable, str, 2)
        and unreadable[0] in get_args(Reason)
    )


def _is_stored(value: object) -> bool:
    if not isinstance(value, dict) or value.keys() != set(StoredImage._fields):
        return False
    *place, facts = (value[name] for name in StoredImage._fields)
    return _is_list(place, int) and min(place) >= 0 and _is_list(facts, int, len(FACTS.names or ()))


def _is_list(value: object, kind: type, length: int | None = None) -> bool:
    return isinstance(value, list) and length in (None, len(value)) and all(isinstance(item, kind) for item in value)
