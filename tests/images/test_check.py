from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from sortal.config import MAX_PIXELS
from sortal.errors import InputError
from sortal.images import check, near_duplicates
from sortal.images.check import ClassCount, DuplicateKind, Duplicates, Health
from sortal.images.columns import Columns
from sortal.images.image_set import image_set
from sortal.images.reading import read_images
from sortal.images.store.packing import Settings, pack
from sortal.system.progress import Runtime

DATA = Path(__file__).parents[3] / "shared" / "data"


def picture(seed: int, side: int = 48) -> Image.Image:
    """Make a structured image, a different one for every seed."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)


def save(path: Path, image: Image.Image) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


def examined(folder: Path, *, tiny: int = check.TINY_BELOW, max_pixels: int = MAX_PIXELS) -> Health:
    """Check a folder on its own, and as a by-product of packing, with the same result."""
    images = read_images(folder, need_labels=False)
    found = check.check(images, tiny=tiny, max_pixels=max_pixels, runtime=Runtime(workers=1))
    if tiny == check.TINY_BELOW:
        with TemporaryDirectory() as store:
            packed = pack(images, store, settings=Settings(max_pixels=max_pixels), runtime=Runtime(workers=1))
            assert check.check_stored(images, packed) == found
    return found


def test_a_healthy_folder_has_no_findings(tmp_path: Path) -> None:
    for seed, name in enumerate(("a/1.png", "a/2.png", "b/1.png", "unlabelled/x.png", "loose.png")):
        save(tmp_path / name, picture(seed))
    before = sorted(tmp_path.rglob("*")), (tmp_path / "a").stat().st_mtime_ns
    steps: list[tuple[str, int, int]] = []
    images = read_images(tmp_path, need_labels=False)
    found = check.check(images, runtime=Runtime(workers=2, progress=lambda *step: steps.append(step)))
    counts = (("a", 2), ("b", 1), (None, 2))
    assert found == Health(
        images=5,
        labelled=3,
        classes=tuple(ClassCount(name=name, images=n, unreadable=0) for name, n in counts),
        alike_names=(),
        unreadable=(),
        duplicates=(),
        near_duplicates=(),
        tiny=(),
        rotated=(),
        deep=(),
        ignored=(),
    )
    assert found.contradictions == 0
    assert steps == [*(("Checking images", number, 5) for number in range(1, 6)), ("Comparing images", 5, 5)]
    assert (sorted(tmp_path.rglob("*")), (tmp_path / "a").stat().st_mtime_ns) == before  # nothing is written


def test_unreadable_files_are_listed_and_counted_in_their_class(tmp_path: Path) -> None:
    save(tmp_path / "a" / "good.jpg", picture(0))
    whole = (tmp_path / "a" / "good.jpg").read_bytes()
    (tmp_path / "a" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "text.png").write_text("not an image")
    (tmp_path / "empty.png").touch()
    (tmp_path / "notes.txt").touch()
    save(tmp_path / "wide.png", picture(0, 300))
    bad = [("a/cut.jpg", "truncated"), ("b/text.png", "not an image"), ("empty.png", "empty")]
    found = examined(tmp_path, max_pixels=300 * 300)
    assert [(each.file, each.reason) for each in found.unreadable] == bad
    counts = [("a", 2, 1), ("b", 1, 1), (None, 2, 1)]
    assert [(count.name, count.images, count.unreadable) for count in found.classes] == counts
    assert found.ignored == ("notes.txt",)
    assert found.tiny == ()  # the size of an unreadable image is unknown
    smaller = examined(tmp_path, max_pixels=300 * 300 - 1)
    assert [(each.file, each.reason) for each in smaller.unreadable] == [*bad, ("wide.png", "too large")]


def test_duplicates_are_ordered_worst_first(tmp_path: Path) -> None:
    copies = {
        0: ("a/0.png", "a/00.png"),  # the same label twice
        1: ("a/1.png", "unlabelled/1.png"),
        2: ("a/2.png", "b/2.png", "unlabelled/2.png"),
        3: ("unlabelled/3.png", "z.png"),
    }
    for seed, names in copies.items():
        for name in names:
            save(tmp_path / name, picture(seed))
    found = examined(tmp_path)
    assert found.duplicates == (
        Duplicates(kind="two labels", files=("a/2.png", "b/2.png", "unlabelled/2.png"), labels=("a", "b", None)),
        Duplicates(kind="labelled and unlabelled", files=("a/1.png", "unlabelled/1.png"), labels=("a", None)),
        Duplicates(kind="same", files=("a/0.png", "a/00.png"), labels=("a", "a")),
        Duplicates(kind="same", files=("unlabelled/3.png", "z.png"), labels=(None, None)),
    )
    assert found.contradictions == 1
    assert found.near_duplicates == ()  # identical images are not reported again as near-duplicates


def test_near_duplicates_are_found_by_appearance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of one colour or of few pixels are never near-duplicates."""
    for seed in range(6):
        save(tmp_path / "a" / f"{seed}.png", picture(seed))
    save(tmp_path / "0 resized.png", picture(0).resize((96, 80), Image.Resampling.BICUBIC))
    save(tmp_path / "1 brighter.png", ImageEnhance.Brightness(picture(1)).enhance(1.1))
    save(tmp_path / "2 less contrast.png", ImageEnhance.Contrast(picture(2)).enhance(0.8))
    picture(3).save(tmp_path / "3 recompressed.jpg", quality=40)
    save(tmp_path / "b" / "0.png", picture(6))
    save(tmp_path / "b" / "y.bmp", picture(5))  # the same pixels in another file
    for value in (100, 101):
        save(tmp_path / f"flat{value}.png", Image.new("L", (32, 32), value))
        small = picture(0, side=15)
        small.putpixel((0, 0), (value, 0, 0))
        save(tmp_path / f"small{value}.png", small)
    monkeypatch.setattr(near_duplicates, "MOST_THUMBNAILS", 16)  # the number of images
    found = examined(tmp_path)
    assert found.near_duplicates is not None
    worst, *others = found.near_duplicates
    assert worst == Duplicates(kind="two labels", files=("a/5.png", "b/y.bmp"), labels=("a", "b"))
    changed = ("0 resized.png", "1 brighter.png", "2 less contrast.png", "3 recompressed.jpg")
    kind: DuplicateKind = "labelled and unlabelled"
    assert others == [Duplicates(kind=kind, files=(each, f"a/{each[0]}.png"), labels=(None, "a")) for each in changed]
    assert found.duplicates == ()
    assert found.contradictions == 0
    monkeypatch.setattr(near_duplicates, "MOST_THUMBNAILS", 15)
    assert examined(tmp_path).near_duplicates is None


def test_tiny_rotated_deep_and_thin_images_are_listed(tmp_path: Path) -> None:
    save(tmp_path / "low.png", picture(0).crop((0, 0, 48, 31)))
    save(tmp_path / "just.png", picture(1).crop((0, 0, 48, 32)))
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(2).save(tmp_path / "turned.jpg", exif=exif)
    save(tmp_path / "thin.png", Image.new("L", (20, 40_000)))  # too large when resized
    save(tmp_path / "deep.png", Image.fromarray(np.arange(48 * 48, dtype=np.uint16).reshape(48, 48)))
    found = examined(tmp_path)
    assert (found.tiny, found.rotated, found.deep) == (("low.png",), ("turned.jpg",), ("deep.png",))
    assert [(bad.file, bad.reason) for bad in found.unreadable] == [("thin.png", "too large")]
    assert examined(tmp_path, tiny=33).tiny == ("just.png", "low.png")


@pytest.mark.parametrize("option", ["tiny", "max_pixels", "workers"])
def test_options_below_1_are_refused(option: str, tmp_path: Path) -> None:
    save(tmp_path / "x.png", picture(0))
    options: dict[str, Any] = {"runtime": Runtime(workers=0)} if option == "workers" else {option: 0}
    with pytest.raises(InputError, match=rf"{option} must be at least 1, got 0\."):
        check.check(read_images(tmp_path, need_labels=False), **options)


def test_class_names_that_differ_only_in_case_and_spaces_are_listed() -> None:
    names = ["Rose", "rose", "tea rose", "tea_ROSE", " tea  rose", "tulip"]
    rows = np.stack([np.asarray(picture(seed, 32)) for seed in (0, 1, 2, 3, 4, 0)])
    found = check.check(image_set([*"012345"], pixels=rows, labels=names), runtime=Runtime(workers=1))
    assert found.alike_names == ((" tea  rose", "tea rose", "tea_ROSE"), ("Rose", "rose"))
    assert [(group.kind, group.files) for group in found.duplicates] == [("two labels", ("0", "5"))]


@pytest.mark.skipif(not DATA.is_dir(), reason="needs the real images next to the project")
def test_near_duplicates_among_real_flowers_are_found() -> None:
    """Three pairs of these photographs differ only in encoding and colours."""
    images = read_images(DATA / "flowers55")
    some = images.select(np.isin(images.labels, [images.classes.index(name) for name in ("8", "39")]))
    found = check.check(some)
    assert found.unreadable == ()
    assert [group.files for group in found.near_duplicates or ()] == [
        ("39/image_07015.webp", "39/image_07040.webp"),
        ("39/image_07029.webp", "39/image_08080.webp"),
        ("8/image_03285.webp", "8/image_03351.webp"),
    ]
    assert {count.name: count.images for count in found.classes if count.images} == {"8": 70, "39": 33}


def test_groups_and_folders_of_cameras_are_counted(tmp_path: Path) -> None:
    for at, name in enumerate(("cam01/a.png", "cam01/b.png", "cam02/a.png", "cam02/b.png")):
        save(tmp_path / name, picture(at))
    found = examined(tmp_path)
    assert (found.like_places, found.groups, found.grouped) == (("cam01", "cam02"), 0, 0)
    columns = Columns.infer(["group"], [["x", "x", "", "y"]])
    grouped = check.check(replace(read_images(tmp_path), columns=columns), runtime=Runtime(workers=1))
    assert (grouped.groups, grouped.grouped) == (1, 2)
