import pytest

from sortal.errors import InputError, SortalError, listing


def test_input_error_is_caught_as_either() -> None:
    for kind in (SortalError, ValueError):
        with pytest.raises(kind, match="k must be at least 5"):
            raise InputError("k must be at least 5 (the labelled classes), got 2.")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], ""),
        (["a"], "'a'"),
        (["a", "b", "c"], "'a', 'b', 'c'"),
        (["a", "b", "c", "d"], "'a', 'b', 'c' and 1 more"),
        (("b", "a"), "'b', 'a'"),  # as they came, not sorted
        ({"x": 1}, "'x'"),
        ([3, None], "3, None"),
        (range(1_234_570), "0, 1, 2 and 1,234,567 more"),
    ],
)
def test_listing(names: list[object], expected: str) -> None:
    assert listing(names) == expected


def test_listing_shows_as_many_as_asked() -> None:
    assert listing("abcde", show=1) == "'a' and 4 more"
    assert listing("abcde", show=5) == "'a', 'b', 'c', 'd', 'e'"
    assert listing("abcde", show=9) == "'a', 'b', 'c', 'd', 'e'"


@pytest.mark.parametrize("name", ["two\nlines", "caf\udce9.jpg", "\x1b[31mred", "gpj.\u202eexe", "nul\0", "\u2028"])
def test_listing_is_safe_to_print(name: str) -> None:
    shown = listing([name])
    assert shown.isprintable()
    assert shown.encode("utf-8").decode("utf-8") == shown


def test_listing_stays_readable_with_endless_names() -> None:
    """A table with a quote too many makes one cell of half the file; nobody wants to read that in an error."""
    shown = listing(["x" * 100_000, "y" * 100_000])
    assert len(shown) < 10_000
    assert shown.startswith("'xxxxx")
    assert "yyyyy" in shown


def test_listing_keeps_the_longest_file_names_whole() -> None:
    name = "x" * 255
    assert listing([name]) == repr(name)
