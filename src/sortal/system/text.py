"""Names, counts, sizes, durations and percentages as text for people."""

import math
from collections.abc import Callable, Container
from itertools import chain, count
from typing import Any
from unicodedata import category

LONGEST_READABLE = 300  # characters of a name


def plain(text: object, keep: Callable[[str], bool] = str.isprintable) -> str:
    """Escape every character that `keep` rejects; by default, whatever could disturb a terminal.

    Bytes that are not UTF-8 become \\xNN.
    """
    return "".join(each if keep(each) else _escape(each) for each in str(text))


def _escape(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # a byte, as os.fsdecode returns it
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()


def readable(text: object, longest: int = LONGEST_READABLE) -> str:
    """Return a name for a page: control characters and bytes that are not UTF-8 escaped, a long name shortened."""
    return shorten(plain(text, lambda each: category(each) not in ("Cc", "Cs")), longest)


def shorten(text: str, longest: int) -> str:
    """Replace the middle of a text that has more than `longest` characters by an ellipsis."""
    half = longest // 2
    return text if len(text) <= longest else f"{text[:half]}…{text[len(text) - (longest - half - 1) :]}"


def percent(fraction: float | None, digits: int = 1, unit: str = "%") -> str:
    return "n/a" if fraction is None or not math.isfinite(fraction) else f"{100 * fraction:.{digits}f}{unit}"


def duration(seconds: float) -> str:
    """Return 59 s, 12 min or 3.4 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


def plural(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun: 1 image, 2,000 images."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def numbered(name: str, taken: Container[str]) -> str:
    """Return a name that is not taken: if need be, with a number after it, from 2 on."""
    names = chain([name], (f"{name} ({number})" for number in count(2)))
    return next(each for each in names if each not in taken)


def byte_sizes(*numbers: int) -> list[str]:
    """Return numbers of bytes in GB or MB; in bytes if two would look the same, or one would look like nothing."""
    texts = [f"{n / 1e9:,.1f} GB" if n >= 1e9 else f"{n / 1e6:,.1f} MB" for n in numbers]
    return texts if len(set(texts)) == len(texts) and "0.0 MB" not in texts else [f"{n:,} bytes" for n in numbers]


def setting(value: Any) -> str:
    """Return the value of a setting, a version or a hash."""
    if value is None:
        return "n/a"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(setting, value)) or "–"
    if isinstance(value, dict):
        return ", ".join(f"{readable(name)} {setting(each)}" for name, each in value.items()) or "–"
    return readable(value)
