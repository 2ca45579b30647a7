import pytest

from sortal.errors import InputError, SortalError, listing


def test_an_input_error_is_caught_as_either() -> None:
    for kind in (SortalError, ValueError):
        with pytest.raises(kind, match="k must be at least 5"):
            raise InputError("k must be at least 5 (the labelled classes), got 2.")


def test_a_listing_shows_the_first_few_as_they_came() -> None:
    assert listing([]) == ""
    assert listing(["b", "a", "c"]) == "'b', 'a', 'c'"
    assert listing({"x": 1, 3: 2, None: 3, "y": 4}) == "'x', 3, None and 1 more"
    assert listing(range(1_234_570)) == "0, 1, 2 and 1,234,567 more"
    assert listing("abcde", show=1) == "'a' and 4 more"
    assert listing("abcde", show=5) == listing("abcde", show=9) == "'a', 'b', 'c', 'd', 'e'"


def test_a_listing_is_safe_to_print_and_short_enough_to_read() -> None:
    for name in ("two\nlines", "caf\udce9.jpg", "\x1b[31mred", "gpj.\u202eexe", "nul\0", "\u2028"):
        assert listing([name]).isprintable()
        listing([name]).encode("utf-8")
    assert listing(["x" * 255]) == repr("x" * 255), "the longest file names stay whole"
    shown = listing(["x" * 100_000, "y" * 100_000])  # a table with a quote too many makes one cell of half the file
    assert len(shown) < 10_000
    assert shown.startswith("'xxxxx")
    assert "yyyyy" in shown
