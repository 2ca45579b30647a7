"""The index of a pixel store: the content of every file it read, and what became of each content.

Unchanged files are recognised by their stamp and not read again; moved and copied ones by their content.
"""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, get_args
from zlib import crc32

from sortal.errors import InputError, Reason
from sortal.images import near_duplicates
from sortal.images.decoding import DECODER, DIGEST_SIZE, FACTS
from sortal.system.regular_files import check_size, open_regular, parse_json, regular

INDEX_FILE = "index.jsonl"
SUM = b',"crc":'  # before the checksum, which ends a line
DIGEST_CHARACTERS = frozenset("0123456789abcdef")
Stamp: TypeAlias = list[int]  # size and times of a file, which change whenever its content does


def stamp_of(path: str) -> Stamp | None:
    """Return the stamp of a file, or None if it does not exist."""
    try:
        return stamp_from(os.stat(path))
    except (OSError, ValueError):
        return None


def stamp_from(found: os.stat_result) -> Stamp:
    """Return the stamp of a file whose status is known."""
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns]


class StoredImage(NamedTuple):
    """Where the pixels of a content are stored, and the facts about its file."""

    offset: int  # of the pixels, uint8 (height, width, 3); the thumbnail for near-duplicates follows them
    height: int
    width: int
    facts: list[int]  # in the order of decoding.FACTS
    part: int = 0  # of the store; implied by the index that lists it

    @property
    def end(self) -> int:
        return self.offset + bytes_of(self.height, self.width)


def bytes_of(height: int, width: int) -> int:
    """Return the bytes that an image takes in a pixel file."""
    return 3 * height * width + near_duplicates.LENGTH


class Index:
    """Logs of JSON lines, one for each part of a store; this process appends to one of them, and reads all.

    A line has the "digest" of a content and some of: "path" and "stamp" of a file with that content, the fields of its
    StoredImage ("stored"), or why it is "unreadable" (reason, detail) and for which "decoder", and a checksum of all
    that. A line that was torn by a kill, or is damaged, is skipped.
    """

    def __init__(self, home: Path, part: int = 0) -> None:
        self.home = home
        self.part = part
        self.stored: dict[str, StoredImage] = {}
        self.unreadable: dict[str, tuple[Reason, str]] = {}
        self._files: dict[str, tuple[Stamp, str]] = {}
        self._unwritten: list[str] = []
        self._positions: dict[int, int] = {}  # read so far, of each part
        self.refresh()

    def folder(self, part: int | None = None) -> Path:
        """Return the folder of a part, by default the one that this process writes."""
        part = self.part if part is None else part
        return self.home / str(part) if part else self.home

    def pixels(self, part: int | None = None) -> Path:
        """Return the pixel file of a part, by default the one that this process writes."""
        return self.folder(part) / "pixels.bin"

    def refresh(self) -> None:
        """Read the lines appended since the last call. Pixels missing from their file count as not stored."""
        others = (path.parent.name for path in self.home.glob(f"*/{INDEX_FILE}"))
        for part in (0, *sorted(int(name) for name in others if name.isdecimal())):
            self._read(part)

    def _read(self, part: int) -> None:
        path, pixels = self.folder(part) / INDEX_FILE, self.pixels(part)
        try:
            with open_regular(path) as file:
                check_size(path, file.fileno(), os.fstat(file.fileno()).st_size)
                file.seek(self._positions.get(part, 0))
                text = file.read()
            size = pixels.stat().st_size if pixels.is_file() else 0
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            problem = f"The index of stored images {str(path)!r} cannot be read: {error.strerror or error}."
            raise InputError(f"{problem} Move it away; its images will be read again.") from error
        self._positions[part] = self._positions.get(part, 0) + text.rfind(b"\n") + 1
        for line in text.split(b"\n"):
            try:
                record = parse_json(_checked(line))
            except ValueError:
                continue
            if _is_record(record) and ("stored" not in record or StoredImage(**record["stored"]).end <= size):
                self._note(record, part)

    def knows(self, digest: str) -> bool:
        """Return whether a content is stored or known to be unreadable."""
        return digest in self.stored or digest in self.unreadable

    def last_content(self, path: str, stamp: Stamp) -> str | None:
        """Return the digest of a file that has not changed since it was read, whatever became of its content."""
        then, digest = self._files.get(os.path.abspath(path), (None, ""))
        return digest if then == stamp else None

    def last_seen(self, path: str) -> tuple[Stamp, str] | None:
        """Return the stamp and the digest of a file when it was read last."""
        return self._files.get(os.path.abspath(path))

    def add(self, record: dict[str, Any]) -> None:
        """Add a record, to be written by the next `flush`."""
        if "unreadable" in record:
            record = {**record, "decoder": DECODER}
        self._note(record, self.part)
        self._unwritten.append(_line(record))

    def flush(self) -> None:
        """Append the added records to the file, in one write."""
        if not self._unwritten:
            return
        # The leading line break ends a line that a killed process left unfinished.
        text = "\n" + "\n".join(self._unwritten) + "\n"
        self._unwritten.clear()
        with open(self.folder() / INDEX_FILE, "ab", opener=regular) as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())

    def _note(self, record: dict[str, Any], part: int) -> None:
        digest = record["digest"]
        if "path" in record:
            self._files[record["path"]] = (record.get("stamp", []), digest)
        if "stored" in record:
            self.stored[digest] = StoredImage(**record["stored"], part=part)
        if "unreadable" in record and record.get("decoder") == DECODER:
            reason, detail = record["unreadable"]
            self.unreadable[digest] = (reason, detail)


def _line(record: dict[str, Any]) -> str:
    text = json.dumps(record, separators=(",", ":"))
    return f"{text[:-1]}{SUM.decode()}{crc32(text.encode())}}}"


def _checked(line: bytes) -> bytes:
    """Return a line without its checksum; raise ValueError if it has none, or does not match it."""
    text, _, checksum = line.rpartition(SUM)
    text += b"}"
    if checksum != b"%d}" % crc32(text):
        raise ValueError("a line does not match its checksum")
    return text


def _is_record(record: object) -> bool:
    """Return whether `Index.add` could have written a line."""
    absent: dict[str, Any] = {"path": "", "stamp": [], "stored": None, "unreadable": None, "decoder": ""}
    match {**absent, **record} if isinstance(record, dict) else None:
        case {
            "digest": str(digest),
            "path": str(),
            "stamp": list(stamp),
            "stored": None | {"offset": int(), "height": int(), "width": int(), "facts": list()} as stored,
            "unreadable": None | [str(), str()] as unreadable,
            "decoder": str(),
            **others,
        }:
            return (
                not others
                and len(digest) == DIGEST_SIZE
                and DIGEST_CHARACTERS.issuperset(digest)
                and all(isinstance(number, int) for number in stamp)
                and (stored is None or _is_stored(**stored))
                and (unreadable is None or unreadable[0] in get_args(Reason))
            )
    return False


def _is_stored(offset: int, height: int, width: int, facts: list[Any], **others: object) -> bool:
    are_facts = all(isinstance(fact, int) and 0 <= fact < 2**31 for fact in facts)
    return not others and offset >= 0 and min(height, width) >= 1 and len(facts) == len(FACTS.names or ()) and are_facts
