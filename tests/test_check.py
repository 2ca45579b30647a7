import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from sortal import check, near, pixels
from sortal.check import ClassCount, Duplicates, Health
from sortal.errors import InputError
from sortal.images import image_set
from sortal.reading import read_images

DATA = Path(__file__).parents[2] / "shared" / "data"


def picture(seed: int, side: int = 48) -> Image.Image:
    """Something with structure, another for every seed."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)


def save(path: Path, image: Image.Image) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


def examined(folder: Path, *, tiny: int = check.TINY, max_pixels: int = pixels.MAX_PIXELS) -> Health:
    return check.check(read_images(folder, need_labels=False), tiny=tiny, max_pixels=max_pixels, workers=2)


def test_a_healthy_folder(tmp_path: Path) -> None:
    for seed, name in enumerate(("a/1.png", "a/2.png", "b/1.png", "unlabelled/x.png", "loose.png")):
        save(tmp_path / name, picture(seed))
    found = examined(tmp_path)
    assert found == Health(
        images=5,
        labelled=3,
        classes=(
            ClassCount(name="a", images=2, unreadable=0),
            ClassCount(name="b", images=1, unreadable=0),
            ClassCount(name=None, images=2, unreadable=0),
        ),
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


def test_classes_whose_names_are_nearly_the_same(tmp_path: Path) -> None:
    names = ("Rose", "rose", "tea rose", "tea_ROSE", " tea  rose", "tulip")
    for seed, name in enumerate(names):
        save(tmp_path / name / "1.png", picture(seed))
    assert examined(tmp_path).alike_names == ((" tea  rose", "tea rose", "tea_ROSE"), ("Rose", "rose"))


def test_unreadable_files_are_named_and_counted_in_their_class(tmp_path: Path) -> None:
    save(tmp_path / "a" / "good.jpg", picture(0))
    whole = (tmp_path / "a" / "good.jpg").read_bytes()
    (tmp_path / "a" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "text.png").write_text("not an image")
    (tmp_path / "empty.png").touch()
    (tmp_path / "notes.txt").touch()
    found = examined(tmp_path)
    assert [(bad.file, bad.reason) for bad in found.unreadable] == [
        ("a/cut.jpg", "truncated"),
        ("b/text.png", "not an image"),
        ("empty.png", "empty"),
    ]
    assert [(count.name, count.images, count.unreadable) for count in found.classes] == [
        ("a", 2, 1),
        ("b", 1, 1),
        (None, 1, 1),
    ]
    assert sum(count.images for count in found.classes) == found.images
    assert found.ignored == ("notes.txt",)


def test_duplicates_come_worst_first(tmp_path: Path) -> None:
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
    assert found.near_duplicates == ()  # what is the same is not reported as nearly the same too


def test_content_counts_not_the_name_or_the_format(tmp_path: Path) -> None:
    save(tmp_path / "a" / "x.png", picture(0))
    save(tmp_path / "b" / "x.png", picture(1))
    save(tmp_path / "b" / "y.bmp", picture(0))  # the same pixels in another file: nearly the same
    found = examined(tmp_path)
    assert found.duplicates == ()
    assert [(group.kind, group.files) for group in found.near_duplicates or ()] == [
        ("two labels", ("a/x.png", "b/y.bmp"))
    ]
    assert found.contradictions == 0


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda image: image.resize((96, 80), Image.Resampling.BICUBIC), id="resized"),
        pytest.param(lambda image: ImageEnhance.Brightness(image).enhance(1.1), id="brighter"),
        pytest.param(lambda image: ImageEnhance.Contrast(image).enhance(0.8), id="less contrast"),
        pytest.param(lambda image: recompressed(image, 40), id="recompressed"),
    ],
)
def test_near_duplicates(change: Callable[[Image.Image], Image.Image], tmp_path: Path) -> None:
    for seed in range(8):
        save(tmp_path / "a" / f"{seed}.png", picture(seed))
    save(tmp_path / "changed.png", change(picture(5)))
    assert examined(tmp_path).near_duplicates == (
        Duplicates(kind="labelled and unlabelled", files=("a/5.png", "changed.png"), labels=("a", None)),
    )


def recompressed(image: Image.Image, quality: int) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return Image.open(io.BytesIO(file.getvalue())).convert("RGB")


def test_one_colour_and_few_pixels_are_like_no_other(tmp_path: Path) -> None:
    for value in (100, 101):
        save(tmp_path / f"flat{value}.png", Image.new("L", (32, 32), value))
        small = picture(0, side=15)
        small.putpixel((0, 0), (value, 0, 0))
        save(tmp_path / f"small{value}.png", small)
    assert examined(tmp_path).near_duplicates == ()


def test_near_duplicates_are_left_out_where_there_are_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(3):
        save(tmp_path / f"{seed}.png", picture(seed))
    monkeypatch.setattr(near, "MOST", 3)
    assert examined(tmp_path).near_duplicates == ()
    monkeypatch.setattr(near, "MOST", 2)
    assert examined(tmp_path).near_duplicates is None


def test_what_could_not_be_stored_is_unreadable(tmp_path: Path) -> None:
    save(tmp_path / "thin.png", Image.new("L", (20, 40_000)))
    assert [(bad.file, bad.reason) for bad in examined(tmp_path).unreadable] == [("thin.png", "too large")]


def test_tiny_rotated_and_deep(tmp_path: Path) -> None:
    save(tmp_path / "low.png", picture(0).crop((0, 0, 48, 31)))
    save(tmp_path / "just.png", picture(1).crop((0, 0, 48, 32)))
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(2).save(tmp_path / "turned.jpg", exif=exif)
    save(tmp_path / "deep.png", Image.fromarray(np.arange(48 * 48, dtype=np.uint16).reshape(48, 48)))
    found = examined(tmp_path)
    assert (found.tiny, found.rotated, found.deep) == (("low.png",), ("turned.jpg",), ("deep.png",))
    assert examined(tmp_path, tiny=33).tiny == ("just.png", "low.png")


def test_max_pixels(tmp_path: Path) -> None:
    save(tmp_path / "x.png", picture(0, 300))
    assert examined(tmp_path, max_pixels=300 * 300).unreadable == ()
    assert examined(tmp_path, max_pixels=300 * 300 - 1).unreadable[0].reason == "too large"


def test_options_below_1_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "x.png", picture(0))
    images = read_images(tmp_path, need_labels=False)
    with pytest.raises(InputError, match=r"tiny must be at least 1, got 0\."):
        check.check(images, tiny=0)
    with pytest.raises(InputError, match=r"max_pixels must be at least 1, got 0\."):
        check.check(images, max_pixels=0)
    with pytest.raises(InputError, match=r"workers must be at least 1, got 0\."):
        check.check(images, workers=0)


def test_archives_are_checked_too() -> None:
    rows = np.stack([np.asarray(picture(seed, 32)) for seed in (0, 1, 0)])
    images = image_set(["r0", "r1", "r2"], pixels=rows, labels=["a", "b", "b"])
    found = check.check(images, workers=1)
    assert [(group.kind, group.files) for group in found.duplicates] == [("two labels", ("r0", "r2"))]


def test_progress_ends_at_the_number_of_images(tmp_path: Path) -> None:
    for seed in range(5):
        save(tmp_path / f"{seed}.png", picture(seed))
    steps: list[tuple[str, int, int]] = []
    images = read_images(tmp_path, need_labels=False)
    check.check(images, workers=2, on_progress=lambda *step: steps.append(step))
    looked = [("Checking images", number, 5) for number in range(1, 6)]
    assert steps == [*looked, ("Comparing images", 5, 5)]


def test_nothing_is_written(tmp_path: Path) -> None:
    save(tmp_path / "a" / "x.png", picture(0))
    before = sorted(tmp_path.rglob("*")), (tmp_path / "a").stat().st_mtime_ns
    examined(tmp_path)
    assert (sorted(tmp_path.rglob("*")), (tmp_path / "a").stat().st_mtime_ns) == before


@pytest.mark.skipif(not DATA.is_dir(), reason="needs the real images beside the project")
def test_real_flowers() -> None:
    """Three pairs of these photographs are the same but for encoding and colours, as a look at them shows."""
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
