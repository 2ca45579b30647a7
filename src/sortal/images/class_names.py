"""Names of classes: what a label says, and the order that classes have."""

from collections.abc import Iterable
from decimal import Decimal
from numbers import Integral, Real
from unicodedata import normalize

from sortal.errors import InputError, quoted

EMPTY_CELLS = ("nan", "NaN", "<NA>", "NaT", "--")  # of data frames and masked arrays, if not text


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
