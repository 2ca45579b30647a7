"""Crops: the centre of each image, each content once, through few slots."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sortal.images import decoding
from sortal.images.store.crops import Crop, CropReader
from sortal.images.store.packing import Settings
from sortal.system.workers import WorkItem

SIZE, SIDE = 8, 16  # of a crop, and the shorter side of an image, in pixels


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    """Twelve images that are wider than high, a copy of the first, and a file that is no image."""
    paths = [tmp_path / f"{number}.png" for number in range(14)]
    generator = np.random.default_rng(0)
    for path in paths[:12]:
        Image.fromarray(generator.integers(0, 256, (SIDE, 2 * SIDE, 3), dtype=np.uint8)).save(path)
    paths[12].write_bytes(paths[0].read_bytes())
    paths[13].write_bytes(b"no image")
    return [*map(str, paths)]


def read(paths: list[str], folder: Path, known: str = "") -> dict[int, Crop]:
    """Return what was read of each file, with the pixels copied before they are overwritten."""
    settings = Settings(shorter_side=SIDE)
    reader = CropReader(size=SIZE, settings=settings, slots=1, known=lambda digest: digest == known, workers=1)
    items = [WorkItem(row, path) for row, path in enumerate(paths)]
    found: dict[int, Crop] = {}
    for each in reader.read(items, folder):
        found[each.row] = each if each.pixels is None else each._replace(pixels=each.pixels.copy())
    return found


def test_each_content_is_cropped_once_however_few_slots_there_are(paths: list[str], tmp_path: Path) -> None:
    found = read(paths, tmp_path / "slots")
    assert sorted(found) == [*range(14)]
    top, left = (SIDE - SIZE) // 2, (2 * SIDE - SIZE) // 2
    for row in range(12):
        pixels = found[row].pixels
        whole = np.asarray(Image.open(paths[row]))
        assert pixels is not None
        np.testing.assert_array_equal(pixels, whole[top : top + SIZE, left : left + SIZE])
    assert found[12] == Crop(12, found[0].digest), "a copy has no pixels of its own"
    assert found[13].failure == ("not an image", f"none of {', '.join(decoding.IMAGE_FORMATS)}")
    assert found[13].lasting
    assert [*(tmp_path / "slots").iterdir()] == [], "the slots are gone"


def test_known_contents_and_missing_files_have_no_pixels(paths: list[str], tmp_path: Path) -> None:
    known = decoding.digest(Path(paths[0]).read_bytes())
    found = read([paths[0], str(tmp_path / "none.png"), paths[1]], tmp_path / "slots", known)
    assert found[0] == Crop(0, known)
    assert (found[1].digest, found[1].lasting) == ("", False)
    assert found[1].failure is not None
    assert found[1].failure[0] == "missing"
    assert found[2].pixels is not None
