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
    k = KChoice(k=12, estimated=True, known=27)
    assert k.basis == ""
    told = [replace(k, trial=Trial(*each)).basis for each in ((9, 7), (1, 0))]
    assert told == [
        "As a trial, 9 of your 27 known classes were hidden from the method while it counted, and it found 7 of them.",
        "As a trial, 1 of your 27 known classes was hidden from the method while it counted, and it found none of them.",
    ]
