"""The errors Sortal raises on purpose. A message names the thing, the rule, the value and the way out."""

from collections.abc import Collection


class SortalError(Exception):
    """Base of every error of this package; the command line shows it without a traceback."""


class InputError(SortalError, ValueError):
    """Bad data or a bad parameter. Also a `ValueError`, which is what scikit-learn's users catch."""


def quoted(value: object, longest: int = 1000) -> str:
    """A value for a message: odd characters escaped, NumPy's text as text, and cut where nobody would read on."""
    text = repr(str(value) if isinstance(value, str) else value)
    return text if len(text) <= longest else f"{text[:longest]}... ({len(text):,} characters)"


def listing(names: Collection[object], show: int = 3) -> str:
    """The first few of many, quoted, and how many there are beyond them."""
    shown = [quoted(name) for _, name in zip(range(show), names, strict=False)]
    rest = len(names) - len(shown)
    return ", ".join(shown) + (f" and {rest:,} more" if rest else "")
