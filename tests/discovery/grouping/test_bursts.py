"""Bursts: which variants of an image are found, and that sorting counts them once."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from support import tiny_folder as tiny
from support.runtimes import CPU

from sortal.config import Rounds
from sortal.discovery.grouping import bursts
from sortal.discovery.grouping.bursts import (
    WIDTH,
    align,
    burst_groups,
    describe_bursts,
    find_moments,
    groups_of_one_class,
    structure,
    what_groups_hold,
)
from sortal.images.columns import Columns
from sortal.images.image_set import ImageSet, image_set
from sortal.images.moments import Moments
from sortal.images.store.packing import Settings, pack
from sortal.images.store.pixel_store import PixelStore
from sortal.images.store.vector_rows import Vectors

SIDE = 96


def scene(seed: int, *, side: int = SIDE) -> Image.Image:
    """A picture of smooth random blobs of colour, of several sizes."""
    generator = np.random.default_rng(seed)
    whole = np.full((side, side, 3), 128.0)
    for cells in (4, 12, 24):
        coarse = Image.fromarray(generator.integers(0, 256, (cells, cells, 3)).astype(np.uint8))
        whole += (np.asarray(coarse.resize((side, side), Image.Resampling.BICUBIC), dtype=float) - 128) / 2
    return Image.fromarray(np.clip(whole, 0, 255).astype(np.uint8))


def cropped(image: Image.Image, left: float, top: float, share: float) -> Image.Image:
    width, height = image.size
    box = (left * width, top * height, (left + share) * width, (top + share) * height)
    return image.resize(image.size, Image.Resampling.BICUBIC, box=box)


def stored(folder: Path, images: list[Image.Image]) -> PixelStore:
    pixels = np.stack([np.asarray(each.resize((SIDE, SIDE))) for each in images])
    made = image_set([f"{row}.png" for row in range(len(images))], pixels=pixels, labels=[None] * len(images))
    return pack(made, folder, settings=Settings(shorter_side=SIDE), runtime=CPU)


def groups(folder: Path, images: list[Image.Image]) -> list[int]:
    found: NDArray[np.int64] = burst_groups(stored(folder, images), torch.device("cpu"))
    return [int(each) for each in Moments.grouped(found).of]


def test_crops_shifts_sizes_and_copies_are_of_one_moment_and_other_scenes_are_not(tmp_path: Path) -> None:
    variants = []
    for seed in range(6):
        one = scene(seed)
        smaller = one.resize((48, 48), Image.Resampling.BICUBIC)
        variants += [one, cropped(one, 0.1, 0.02, 0.88), cropped(one, 0.0, 0.05, 0.94), smaller, one]
    others = [scene(100 + seed) for seed in range(20)]
    found = groups(tmp_path, [*variants, *others])
    assert found == [*np.repeat(np.arange(6), 5).tolist(), *range(6, 26)]


def test_groups_do_not_depend_on_the_order_of_images(tmp_path: Path) -> None:
    images = [each for seed in range(4) for each in (scene(seed), cropped(scene(seed), 0.05, 0.05, 0.9))]
    order = np.random.default_rng(0).permutation(len(images))
    mixed = groups(tmp_path, [images[row] for row in order])
    assert mixed == Moments.grouped((np.arange(8) // 2)[order]).of.tolist()


def test_a_class_of_images_that_all_look_the_same_is_no_burst(tmp_path: Path) -> None:
    one = scene(0)
    alike = [cropped(one, left / 100, 0.03, 0.9) for left in range(8)]
    assert groups(tmp_path, [*alike, one, one]) == [*range(9), 8]


def test_images_that_are_hardly_larger_than_a_pixel_are_not_compared(tmp_path: Path) -> None:
    pixels = np.stack([np.asarray(cropped(scene(0), left, 0, 0.9).resize((8, 8))) for left in (0, 0.02, 0.04)])
    images = image_set(["0", "1", "2"], pixels=pixels, labels=[None] * 3)
    store = pack(images, tmp_path, settings=Settings(shorter_side=SIDE), runtime=CPU)
    assert len(set(burst_groups(store, torch.device("cpu")).tolist())) == 3


def test_alignment_finds_a_shift_and_a_scale() -> None:
    one = scene(3).convert("L")

    def at(image: Image.Image) -> torch.Tensor:
        grey = np.asarray(image.resize((WIDTH, WIDTH), Image.Resampling.BILINEAR), dtype=np.float32)
        return structure(torch.from_numpy(grey)[None])

    others = torch.cat([at(one), at(cropped(one, 0.08, 0, 0.9)), at(scene(4).convert("L"))])
    found = align(at(one).expand(3, -1, -1), others, torch.tensor([2, 0, 1])).tolist()
    assert found[0] < 0.7
    assert found[1] == pytest.approx(1, abs=1e-4)
    assert found[2] > 0.9
    flat = torch.zeros(1, WIDTH, WIDTH)
    assert align(flat, flat, torch.zeros(1, dtype=torch.int64)).item() == 0


def test_structure_has_no_weights_that_processors_are_slow_with() -> None:
    corner = torch.zeros(1, WIDTH, WIDTH)
    corner[0, 0, 0] = 1  # so that weights and products of them are left
    found = structure(corner).abs()
    assert found[found > 0].min() >= torch.finfo(torch.float32).smallest_normal


def test_bursts_are_counted_in_words() -> None:
    alike, images = Moments.grouped(np.array([0, 0, 1, 2, 2, 2])), in_groups("", "", "", "", "", "")
    assert describe_bursts(alike, images, "auto") == (
        "5 images are near-duplicates of others (2 groups); each group counts once."
    )
    given = in_groups("a", "a", "b", "b", "b", "")
    joined = Moments.grouped(given.groups).joined(alike)
    assert describe_bursts(joined, given, "one") == "2 groups of images given; each group counts once."
    assert describe_bursts(joined, given, "auto") == (
        "2 groups of images given; each group counts once. "
        "No group has two labels, so each is assumed to be of one class."
    )
    torn = in_groups("a", "a", "b", "b", "b", "", labels=["x", "x", "x", "y", None, None])
    assert describe_bursts(groups_of_one_class(torn, "one"), torn, "one") == (
        "2 groups of images given; each group counts once. 1 group has different labels: every image of it counts."
    )
    assert describe_bursts(alike, given, "several") == (
        "2 groups of images given, which stay together, but every image counts. "
        "5 images in 2 groups of near-duplicates count once."
    )


def in_groups(*groups: str, labels: Sequence[str | None] = ()) -> ImageSet:
    files = [f"{number}.png" for number in range(len(groups))]
    columns = Columns.infer(["group"], [groups])
    return image_set(files, paths=files, labels=[*labels] or [None] * len(files), columns=columns)


def test_given_groups_hold_one_class_unless_labels_differ() -> None:
    groups = ("a", "a", "b", "b", "", "n/a")
    of_one = [0, 0, 1, 1, 2, 3]
    same = in_groups(*groups, labels=["x", None, "y", "y", None, None])
    torn = in_groups(*groups, labels=["x", "y", "z", "z", None, None])
    assert groups_of_one_class(same, "auto").of.tolist() == groups_of_one_class(same, "one").of.tolist() == of_one
    assert groups_of_one_class(same, "several").of.tolist() == [*range(6)]
    assert groups_of_one_class(torn, "auto").of.tolist() == [*range(6)]
    assert groups_of_one_class(torn, "one").of.tolist() == [0, 1, 2, 2, 3, 4]


def test_one_wrong_label_does_not_change_what_groups_hold() -> None:
    names = [f"{number // 2}" for number in range(40)]
    labels = [*("x", "y"), *["z"] * 38]
    images = in_groups(*names, labels=labels)
    assert what_groups_hold(images, "auto") == "one"
    assert groups_of_one_class(images, "auto").sizes.tolist() == [1, 1, *[2] * 19]  # only the torn one is split
    more = in_groups(*names, labels=["x", "y"] * 3 + ["z"] * 34)
    assert what_groups_hold(more, "auto") == "several"
    assert what_groups_hold(more, "one") == "one"
    assert what_groups_hold(in_groups("", ""), "one") is None


def test_a_burst_is_sorted_as_one_image_and_keeps_its_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = tiny.as_array()
    free = np.flatnonzero(images.unlabelled)
    labelled = int(np.flatnonzero(images.labelled)[0])
    together = np.arange(len(images))
    together[free[1]] = together[free[0]]
    together[free[-1]] = together[labelled]
    monkeypatch.setattr(bursts, "burst_groups", lambda *_: together)
    notes: list[str] = []
    with tiny.quickly():
        run = tiny.sort(images, tmp_path / "run", runtime=replace(CPU, note=notes.append))
    a = run.assignments
    assert "4 images are near-duplicates of others (2 groups); each group counts once." in notes
    assert a.moments == len(a) - 2
    assert a.group[free[0]] == a.group[free[1]]
    assert a.category_id[free[0]] == a.category_id[free[1]]
    assert a.labels[free[-1]] is None
    assert a.category_id[free[-1]] == a.category_id[labelled]


@pytest.mark.thorough
def test_without_bursts_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tiny.quickly():
        with monkeypatch.context() as comparing:
            comparing.setattr(bursts, "MOST_GREY", 1000)
            first = tiny.sort(tiny.as_array(), tmp_path / "first")
        monkeypatch.setattr("sortal.discovery.stages.find_moments", lambda _, images, *__: Moments.single(len(images)))
        again = tiny.sort(tiny.as_array(), tmp_path / "again")
    assert first.assignments.moments == len(first.assignments)
    assert first.facts.hashes == again.facts.hashes
    assert first.assignments.category_id.tolist() == again.assignments.category_id.tolist()
    assert first.assignments.confidence.tobytes() == again.assignments.confidence.tobytes()


def test_pictures_of_vectors_decide_nothing(tmp_path: Path) -> None:
    pictures = stored(tmp_path, [scene(0), cropped(scene(0), 0.05, 0.05, 0.9), scene(1), scene(2)])
    store = replace(pictures, digests=np.array([b"a", b"b", b"c", b"c"]), vectors=Vectors(np.eye(4, dtype=np.float32)))
    images = image_set([*"abcd"], paths=[""] * 4, labels=[None] * 4)
    settings = SimpleNamespace(groups="auto", k="auto")
    job: Any = SimpleNamespace(recipe=SimpleNamespace(losses=Rounds()), settings=settings)
    assert find_moments(job, images, store, CPU).of.tolist() == [0, 1, 2, 2]
