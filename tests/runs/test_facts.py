"""Facts of a run: where an image of a source is, and what k rests on."""

import os
from dataclasses import replace

from sortal.config import OWN_K
from sortal.runs.facts import ImageSource, KChoice, Trial


def test_a_file_is_in_the_folder_of_its_source_unless_recorded_otherwise() -> None:
    source = ImageSource(folder="/photos", images=2, paths={"b.jpg": "/elsewhere/c.jpg"})
    assert source.path_of("sub/a.jpg") == os.path.join("/photos", "sub/a.jpg")
    assert source.path_of("b.jpg") == "/elsewhere/c.jpg"
    assert ImageSource(folder=None, images=1, paths={}).path_of("0") == "", "it was given as an array"


def test_a_trial_with_hidden_classes_is_told_in_a_sentence() -> None:
    k = KChoice(k=12, estimated=True, known=9)
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


def test_an_estimate_without_a_trial_is_called_untested_and_why() -> None:
    k = KChoice(k=12, estimated=True, known=0, method="separation")
    told = [replace(k, known=known).basis for known in (0, 1, 2, 3)]
    assert told == [
        f"{why}, so k is untested: it rests only on how clearly the categories are set apart."
        for why in (
            "No class is known that could be hidden from the method as a trial",
            "1 known class is too few to hide one from the method as a trial",
            "2 known classes are too few to hide one from the method as a trial",
            "None of your 3 known classes was hidden from the method as a trial",
        )
    ]
    by_labels, own = (replace(k, known=2, method=method).basis for method in ("brent", OWN_K))
    assert by_labels.endswith("so k is untested: it rests only on how well the categories agree with your labels.")
    assert own.endswith("so k is untested: it rests only on the groups that the method forms.")
    assert replace(k, estimated=False, method=None).basis == ""
