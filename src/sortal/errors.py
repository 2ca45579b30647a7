"""The errors Sortal raises on purpose. A message names the thing, the rule, the value and the way out."""

from collections.abc import Collection


class SortalError(Exception):
    """Base of every error of this package; the command line shows it without a traceback."""


class InputError(SortalError, ValueError):
    """Bad data or a bad parameter. Also a `ValueError`, which is what scikit-learn's users catch."""


def listing(names: Collection[object], show: int = 3) -> str:
    """The first few of many, quoted and with odd characters escaped, and how many there are beyond them."""
    shown = [repr(name) for _, name in zip(range(show), names, strict=False)]
    rest = len(names) - len(shown)
    return ", ".join(shown) + (f" and {rest:,} more" if rest else "")
