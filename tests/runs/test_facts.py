"""Facts of a run: where an image of a source is, and what k rests on."""

import os
from dataclasses import replace

from sortal.runs.facts import ImageSource, KChoice, Trial


def test_a_file_is_in_the_folder_of_its_source_unless_recorded_otherwise() -> None:
    source = ImageSource(folder="/photos", images=2, paths={"b.jpg": "/elsewhere/c.jpg"})
    assert source.path_of("sub/a.jpg") == os.path.join("/photos", "sub/a.jpg")
    assert source.path_of("b.jpg") == "/elsewhere/c.jpg"
    assert ImageSource(folder=None, images=1, paths={}).path_of("0") == "", "it was given as an array"


def test_a_trial_with_hidden_classes_is_told_in_a_sentence() -> None:
    k = KChoice(k=12, estimated=True, known=9)
    assert k.basis == ""
    told = [replace(k, trial=Trial(*each)).basis for each in ((3, 2), (3, 0), (3, 3), (2, 2), (1, 1), (1, 0))]
    assert told == [
        f"As a trial, {hidden} hidden from the method while it counted, and it {outcome}: too few classes to "
        "tell how far k can be trusted."
        for hidden, outcome in (
            ("3 of your 9 known classes were", "found 2 of them"),
            ("3 of your 9 known classes were", "found none of them"),
            ("3 of your 9 known classes were", "found all of them"),
            ("2 of your 9 known classes were", "found both"),
            ("1 of your 9 known classes was", "found it"),
            ("1 of your 9 known classes was", "did not find it"),
        )
    ]
    assert replace(k, trial=Trial(5, 2)).basis.endswith("and it found 2 of them.")
