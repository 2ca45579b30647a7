"""Originals: the files that were sorted, and whether they still have the content that they had then."""

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

import numpy as np

from sortal.errors import InputError, listing
from sortal.images.decoding import ABSENT, DIGEST_SIZE, MAX_BYTES
from sortal.images.store.index import INDEX_FILE, Index, Stamp, stamp_from, stamp_of
from sortal.system.gathering import gathered
from sortal.system.regular_files import open_regular
from sortal.system.text import plural

THERE, CHANGED, MISSING_FILE, UNREADABLE_FILE = FILE_STATES = ("", "changed", "missing", "unreadable")
READ_BYTES = 2**20  # bytes that are read at a time
STATE_PHRASES = {
    CHANGED: ("has changed since it was sorted", "have changed since they were sorted"),
    MISSING_FILE: ("no longer exists", "no longer exist"),
    UNREADABLE_FILE: ("cannot be read", "cannot be read"),
}


class ChangedError(Exception):
    """A file no longer has the content that was sorted."""


class Originals:
    """Files, one row each, and the contents they had; `indexes` of pixel stores know what they had under which stamp.

    A file whose size and times are those of a known stamp is not read again. Any other is: what is checked is what was
    opened, not what its name leads to a moment later. Files that are not `compared` are pictures of feature vectors:
    they were not sorted, and need not be there.
    """

    def __init__(
        self, paths: Sequence[str], contents: Sequence[str], indexes: Iterable[Index] = (), *, compared: bool = True
    ) -> None:
        self.paths, self.contents, self.compared = paths, contents, compared
        self.state = np.zeros(len(contents), dtype=np.int8)  # (n,) numbers of FILE_STATES, as of the last look at each
        self._indexes = tuple(indexes)
        self._read: dict[int, tuple[Stamp, bool]] = {}  # stamps of files that were read, and whether they had it
        # Of each content, which several files may have
        self._rows = gathered((content, row) for row, content in enumerate(contents))

    def open(self, row: int) -> BufferedReader:
        """Open a file that has its content; raise ChangedError if it has another, OSError as `open_regular` does."""
        file = open_regular(self.paths[row])
        if not self.compared:
            return file
        try:
            stamp = stamp_from(os.fstat(file.fileno()))
            same = self._knows(row, stamp)
            if same is None:
                same = digest_of(file) == self.contents[row]
                self._read[row] = stamp, same
                file.seek(0)
            if not same:
                raise ChangedError
        except BaseException:
            file.close()
            raise
        return file

    def look(self, row: int) -> str:
        """Look at a file now, and return its state."""
        if not self.compared:
            return THERE
        try:
            same = self._knows(row, stamp_from(os.stat(self.paths[row])))
            if same is None:
                self.open(row).close()
            found = CHANGED if same is False else THERE
        except ChangedError:
            found = CHANGED
        except (OSError, ValueError) as error:
            found = MISSING_FILE if isinstance(error, ValueError) or error.errno in ABSENT else UNREADABLE_FILE
        self.state[row] = FILE_STATES.index(found)
        return found

    def has_changed(self, row: int) -> bool:
        """Tell whether a file has another content; it is read only if its size or time differs from what is known."""
        if not self.compared:
            return False
        stamp, path = stamp_of(self.paths[row]), self.paths[row]
        known = [found for each in self._indexes if (found := each.last_seen(path)) is not None]
        if stamp is None or not known:
            return False
        if any(digest == self.contents[row] and then[:2] == stamp[:2] for then, digest in known):
            return False
        return self.look(row) == CHANGED

    def look_at_all(self, progress: Callable[[int, int], None] = lambda done, of: None) -> None:
        """Look at every file."""
        for row in range(len(self.contents)):
            self.look(row)
            progress(row + 1, len(self.contents))

    def lost(self, contents: Iterable[str]) -> list[int]:
        """Look at the files of these contents now, and return the rows of those that no file has any more."""
        found = list[int]()
        for content in contents:
            rows = self._rows.get(content, [])
            if all(self.look(row) for row in rows):
                found += rows
        return found

    def say(self, rows: Sequence[int], names: Sequence[str]) -> str:
        """Say in words what became of files; `names` has those of all rows."""
        parts = []
        for state in FILE_STATES[1:]:
            own = [names[row] for row in rows if self.state[row] == FILE_STATES.index(state)]
            if own:
                parts.append(f"{plural(len(own), 'file')} {STATE_PHRASES[state][len(own) > 1]}: {listing(own)}")
        return "; ".join(parts)

    def _knows(self, row: int, stamp: Stamp) -> bool | None:
        """Tell whether the file with this stamp has its content; None if it must be read to know that."""
        then, same = self._read.get(row, (None, False))
        if then == stamp:
            return same
        known = {each.last_content(self.paths[row], stamp) for each in self._indexes} - {None}
        return self.contents[row] in known if known else None


def digest_of(file: BinaryIO, *, copy: BinaryIO | None = None) -> str:
    """Return the digest of an open file up to its present length, as it may be growing; also write it to `copy`.

    A file that is larger than any image is not read, for it may claim terabytes and hold nothing: its digest is empty.
    """
    found, left = hashlib.blake2b(digest_size=DIGEST_SIZE // 2), os.fstat(file.fileno()).st_size
    if left > MAX_BYTES:
        return ""
    while part := file.read(min(left, READ_BYTES)):
        found.update(part)
        left -= len(part)
        if copy is not None:
            copy.write(part)
    return found.hexdigest()


def indexes_below(cache: Path) -> list[Index]:
    """Return the indexes of all pixel stores in the cache of a run; one that cannot be read knows nothing."""
    found = []
    for path in sorted(cache.glob(f"*/*/{INDEX_FILE}")):
        with suppress(InputError):
            found.append(Index(path.parent))
    return found
