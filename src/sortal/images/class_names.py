"""Names of classes: what a label says, and the order that classes have."""

import re
from collections.abc import Collection, Iterable
from decimal import Decimal
from numbers import Integral, Real
from unicodedata import normalize

from sortal.errors import InputError, listing, quoted
from sortal.system.text import plural

EMPTY_CELLS = ("nan", "NaN", "<NA>", "NaT", "--")  # of data frames and masked arrays, if not text

# Names of cameras, stations, days, and folders of memory cards (DCF).
OF_PLACES = re.compile(
    r"(cam|camera|trap|site|station|stn|plot|location|loc|deployment|transect)[ ._-]*\d+[a-z]?"
    r"|(19|20)\d{2}([ ._-]?)(0[1-9]|1[0-2])\3(0[1-9]|[12]\d|3[01])([ ._t-].*)?|dcim|[1-9]\d{2}(?-i:[A-Z_][A-Z0-9_]{4})",
    re.IGNORECASE,
)


def named_like_places(classes: Collection[str]) -> tuple[str, ...]:
    """Return the classes whose names look like those of cameras, stations, days or memory cards, if most do."""
    found = tuple(name for name in classes if OF_PLACES.fullmatch(name))
    return found if 2 * len(found) > len(classes) else ()


def like_places(classes: Collection[str]) -> str:
    """Say that folders with such names are taken as classes; nothing of none."""
    if not classes:
        return ""
    return (
        f"{plural(len(classes), 'class is', 'classes are')} named like cameras, stations, days or memory cards: "
        f"{listing(classes)}. If a folder is not a class, leave folders out of it (--folders ignore), or give a table "
        "of labels (--labels)."
    )


def as_name(label: object) -> str | None:
    """Return a label as a class name, stripped and in NFC; `None` if it is empty or −1."""
    if not isinstance(label, str):
        if label is None or str(label) in EMPTY_CELLS:
            return None
        if isinstance(label, bool) or not isinstance(label, Real | Decimal):
            raise InputError(f"A label must be text or a number, got {type(label).__name__} {quoted(label, 100)}.")
        if not isinstance(label, Integral | Decimal) and float(label).is_integer():
            label = int(float(label))  # data frames turn integers with gaps into floats
    name = normalize("NFC", str(label).strip())
    try:
        name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InputError(f"A label must be text that can be written as UTF-8, got {quoted(name, 100)}.") from None
    return None if name in ("", "-1", "-1.0") else name


def in_order(names: Iterable[str]) -> list[str]:
    """Sort class names by code point, or by value if all of them are whole numbers."""
    found = sorted(names)
    if all(name.isascii() and name.isdigit() for name in found):
        found.sort(key=lambda name: (len(name.lstrip("0")), name.lstrip("0")))  # int() refuses more than 4,300 digits
    return found
