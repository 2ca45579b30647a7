"""The errors Sortal raises on purpose. A message names the thing, the rule, the value and the way out."""


class SortalError(Exception):
    """Base of every error of this package; the command line shows it without a traceback."""


class InputError(SortalError, ValueError):
    """Bad data or a bad parameter. Also a `ValueError`, which is what scikit-learn's users catch."""
