"""Class names: a label has one name, whatever its type, and missing values have none."""

from decimal import Decimal
from unicodedata import normalize

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortal.errors import InputError
from sortal.images.class_names import as_name, like_places, named_like_places

NFC, NFD = normalize("NFC", "café"), normalize("NFD", "café")


@pytest.mark.parametrize(
    "label",
    [None, "", "\t\n\u00a0", " -1 ", "-1.0", np.int8(-1), float("nan"), pd.NaT, Decimal("nan"), pd.NA, np.ma.masked],
    ids=repr,
)
def test_missing_values_and_minus_1_mean_unlabelled(label: object) -> None:
    """pandas writes −1 as -1.0 in a column of numbers with gaps."""
    assert as_name(label) is None


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("\twild Cat\n", "wild Cat"),
        (np.str_("nan"), "nan"),
        ("00", "00"),
        (np.uint8(7), "7"),
        (np.float32(7), "7"),
        (-0.0, "0"),
        (np.float32(7.5), "7.5"),
        (1e15, "1000000000000000"),
        (float("inf"), "inf"),
        pytest.param(10**400, "1" + "0" * 400, id="beyond floats"),
        (NFD, NFC),  # names are composed, like those of folders
        ("\udcff", "\udcff"),  # a byte that is not UTF-8, as in file names
    ],
)
def test_a_label_has_one_name(label: object, name: str) -> None:
    assert as_name(label) == name
    assert type(as_name(label)) is str  # not np.str_


def test_labels_other_than_text_and_numbers_are_refused() -> None:
    """Otherwise there would be classes named "b'cat'" or "['cat']"."""
    for label in (b"cat", ["cat"], {"a": 1}, np.array([1]), True, object):
        with pytest.raises(InputError, match="A label must be text or a number, got "):
            as_name(label)
    with pytest.raises(InputError, match=r"A label must be text that can be written as UTF-8, got '\\ud800'\."):
        as_name("\ud800")


@given(st.text())
def test_the_name_of_a_name_is_itself(text: str) -> None:
    name = as_name(text)
    if name is not None:
        assert as_name(name) == name == as_name(f"  {text}\n")
        assert name == normalize("NFC", text.strip())


@given(st.integers(-(10**20), 10**20))
def test_a_whole_number_is_the_same_class_as_an_int_a_float_or_text(number: int) -> None:
    name = None if number == -1 else str(number)
    assert as_name(number) == as_name(str(number)) == name
    if abs(number) < 2**53:
        assert as_name(float(number)) == name


def test_most_classes_must_be_named_like_places_to_be_pointed_out() -> None:
    places = (
        "cam01",
        "Site_3",
        "station 12b",
        "2023-05-01",
        "20230501",
        "2023_05_01 night",
        "DCIM",
        "100MEDIA",
        "101_BTCF",
    )
    assert named_like_places(places) == places
    assert named_like_places(("cam01", "cam02", "fox")) == ("cam01", "cam02")
    for classes in (
        (),
        ("fox", "camel", "site", "trapdoor spider", "101", "2023"),
        ("cam01", "fox"),
        ("123", "45678901"),
        ("10023456", "40170725", "001_rose", "102_iris"),
    ):
        assert named_like_places(classes) == ()
    assert like_places(()) == ""
    assert "--folders ignore" in like_places(("cam01",))
