import pytest

from sortal.errors import InputError, SortalError


def test_input_error_is_caught_as_either() -> None:
    for kind in (SortalError, ValueError):
        with pytest.raises(kind, match="k must be at least 5"):
            raise InputError("k must be at least 5 (the labelled classes), got 2.")
