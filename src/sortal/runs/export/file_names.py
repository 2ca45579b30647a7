"""Safe, unique names of files and folders, made from class and file names that may be anything."""

import os
import re
from unicodedata import category, normalize

LONGEST = 100  # bytes of a name
ROOM = 14  # bytes of them, reserved for what makes a name unique
SUFFIX = 16  # bytes of an extension; anything longer after the last dot is not one
# Forbidden on Windows, and marks that reverse the direction of the following text and so disguise a name.
UNSAFE = frozenset('<>:"/\\|?*\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069')
# Device names of Windows, with any extension.
RESERVED = re.compile(r"(CON|PRN|AUX|NUL|CONIN\$|CONOUT\$|(COM|LPT)[0-9\u00b9\u00b2\u00b3])\s*(\.|$)", re.IGNORECASE)


class Names:
    """Unique names, regardless of case, which not every file system distinguishes."""

    def __init__(self, *taken: str, by_stem: bool = False) -> None:
        self._by_stem = by_stem  # names must differ in more than the extension
        self._next = {self._key(name): 2 for name in taken}  # taken name: number to append next

    def folder(self, text: str) -> str:
        """Return a folder name for a text."""
        return self._claim(safe(text), "")

    def file(self, path: str) -> str:
        """Return a file name for the last part of a path, with its extension."""
        name, suffix = os.path.splitext(_clean(path.rsplit("/", 1)[-1]))
        if len(suffix.encode()) > SUFFIX:  # no dot stays, or part of the name would become the extension
            name, suffix = (name + suffix).replace(".", "_"), ""
        return self._claim(safe(name, LONGEST - len(suffix.encode())), suffix)

    def _claim(self, name: str, suffix: str) -> str:
        free, first = name + suffix, self._key(name + suffix)
        while (key := self._key(free)) in self._next:
            free = f"{name} ({self._next[first]}){suffix}"
            self._next[first] += 1
        self._next[key] = 2
        return free

    def _key(self, name: str) -> str:
        stem = os.path.splitext(name)[0] if self._by_stem else name
        return normalize("NFKC", normalize("NFKC", stem).casefold())


def safe(text: str, longest: int = LONGEST) -> str:
    """Return a name of at most `longest` bytes that every file system accepts, never a path and never hidden."""
    cut = _clean(text).encode()[: longest - ROOM].decode("utf-8", "ignore").rstrip(". ")
    return f"_{cut}" if not cut or RESERVED.match(cut) else cut


def _clean(text: str) -> str:
    allowed = (
        "_" if each in UNSAFE or category(each) in ("Cc", "Cs", "Zl", "Zp") else each for each in normalize("NFC", text)
    )
    return "".join(allowed).strip().strip(". ")
