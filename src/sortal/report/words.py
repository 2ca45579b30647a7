"""How names and figures are written for people."""

import math
from collections.abc import Iterable
from typing import Any

LONGEST = 300  # characters of a name; of a longer one the beginning and the end are shown
_ESCAPES = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160))}  # \\n for a new line, and so on


def readable(text: object, longest: int = LONGEST) -> str:
    """A name as it can be shown: bytes that are no text and control characters as escapes, and cut if long."""
    shown = str(text).encode("utf-8", "backslashreplace").decode("utf-8").translate(_ESCAPES)
    if len(shown) <= longest:
        return shown
    half = longest // 2
    return f"{shown[:half]}…{shown[-half + 1 :]}"


def percent(fraction: float | None, digits: int = 1) -> str:
    """A fraction in per cent; a dash where there is none."""
    return "–" if fraction is None or not math.isfinite(fraction) else f"{100 * fraction:.{digits}f}%"


def seconds(value: float) -> str:
    """A time that took so long, in the two largest units that say something."""
    if value < 10:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def plural(count: int, one: str, many: str = "") -> str:
    """A count and what is counted: 1 image, 2,000 images."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def setting(value: Any) -> str:
    """The value of a setting, a version or a hash."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return join(setting(each) for each in value)
    if isinstance(value, dict):
        return join(f"{readable(name)} {setting(each)}" for name, each in value.items())
    return readable(value)


def join(parts: Iterable[str]) -> str:
    return ", ".join(parts) or "–"


def number(value: float | None, digits: int = 3) -> float | None:
    """A figure for the script of the page, or nothing where JSON has no word for it."""
    return None if value is None or not math.isfinite(value) else round(float(value), digits)
