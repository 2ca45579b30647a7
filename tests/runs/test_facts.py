"""Facts of a run: where an image of a source is."""

import os

from sortal.runs.facts import ImageSource


def test_a_file_is_in_the_folder_of_its_source_unless_recorded_otherwise() -> None:
    source = ImageSource(folder="/photos", images=2, paths={"b.jpg": "/elsewhere/c.jpg"})
    assert source.path_of("sub/a.jpg") == os.path.join("/photos", "sub/a.jpg")
    assert source.path_of("b.jpg") == "/elsewhere/c.jpg"
    assert ImageSource(folder=None, images=1, paths={}).path_of("0") == "", "it was given as an array"
