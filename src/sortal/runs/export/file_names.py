"""Names of files and folders made of names that are data: those of classes, and of files from anywhere."""

import os
import re
from unicodedata import category, normalize

LONGEST = 100  # bytes of a name
ROOM = 14  # bytes of them for what is put around a name to make it free
SUFFIX = 16  # bytes; what is longer after the last dot is no extension
UNSAFE = frozenset('<>:"/\\|?*')  # not allowed on Windows; the separators nowhere
# Marks that change the direction of the text after them, and so what a name seems to be.
TURNING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
# Names of devices on Windows, with any extension.
RESERVED = re.compile(r"(CON|PRN|AUX|NUL|CONIN\$|CONOUT\$|(COM|LPT)[0-9\u00b9\u00b2\u00b3])\s*(\.|$)", re.IGNORECASE)


class Names:
    """Names that are given out once, whatever their case, as not every file system tells case apart."""

    def __init__(self, *taken: str, by_stem: bool = False) -> None:
        self._by_stem = by_stem  # whether they must differ in more than the extension
        self._next = {self._key(name): 2 for name in taken}  # what is taken: the number to put behind it next

    def folder(self, text: str) -> str:
        """A folder for this text."""
        return self._free(safe(text), "")

    def file(self, path: str) -> str:
        """A file for the last part of this path, with its extension."""
        name, suffix = os.path.splitext(_cleaned(path.rsplit("/", 1)[-1]))
        if len(suffix.encode()) > SUFFIX:
            name, suffix = (name + suffix).replace(".", "_"), ""  # without a dot, so that there is no other extension
        return self._free(safe(name, LONGEST - len(suffix.encode())), suffix)

    def _free(self, name: str, suffix: str) -> str:
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
    """A name that any file system takes, that is never a path, and is not hidden. Not more than `longest` bytes."""
    cut = _cleaned(text).encode()[: longest - ROOM].decode("utf-8", "ignore").rstrip(". ")
    return f"_{cut}" if not cut or RESERVED.match(cut) else cut


def plain(text: str) -> str:
    """Text that is UTF-8, which names of files and of the classes made of them need not be."""
    return text.encode("utf-8", "backslashreplace").decode()


def _cleaned(text: str) -> str:
    return "".join("_" if _odd(each) else each for each in normalize("NFC", text)).strip().lstrip(". ").rstrip(". ")


def _odd(character: str) -> bool:
    return character in UNSAFE or character in TURNING or category(character) in ("Cc", "Cs", "Zl", "Zp")
