"""Samples to learn on: their composition, and the advice to use one where the disk is too small."""

from collections import Counter, namedtuple
from pathlib import Path

import numpy as np
import pytest
from support import tiny_folder as tiny
from support.runtimes import CPU

from sortal.config import Discovery, Reading
from sortal.discovery.job import Job, prepare
from sortal.discovery.sampling import check_room, draw, learned_part, remedies
from sortal.errors import InputError, NoSpaceError
from sortal.images.image_set import ImageSet, image_set
from sortal.images.store.packing import DISK_RESERVE
from sortal.learning.backbones.registry import load_backbone

Usage = namedtuple("Usage", "total used free")


def images_of(sizes: dict[str, int], unlabelled: int) -> ImageSet:
    names = [name for name, count in sizes.items() for _ in range(count)] + [None] * unlabelled
    labels = [names[at] for at in np.random.default_rng(0).permutation(len(names))]
    files = [f"{number}.png" for number in range(len(names))]
    return image_set(files, paths=files, labels=labels)


def labels_in(images: ImageSet, mask: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Counter[str | None]:
    return Counter((*images.classes, None)[label] for label in images.labels[mask])


def test_all_labelled_images_are_learned_on_if_they_are_at_most_half() -> None:
    images = images_of({"a": 30, "b": 20}, 450)
    mask = draw(images, 100, seed=3)
    assert labels_in(images, mask) == {"a": 30, "b": 20, None: 50}
    assert (draw(images, 100, seed=3) == mask).all()
    assert (draw(images, 100, seed=4) != mask).any()
    assert labels_in(images, draw(images, 480, seed=0)) == {"a": 30, "b": 20, None: 430}


def test_of_more_labelled_images_half_of_the_sample_is_drawn_in_proportion_and_some_of_each_class() -> None:
    images = images_of({"a": 600, "b": 300, "rare": 1}, 200)
    counts = labels_in(images, draw(images, 100, seed=0))
    assert counts["rare"] == 1
    assert abs(counts["a"] - 2 * counts["b"]) <= 2
    assert (counts[None], sum(counts.values())) == (50, 100)
    assert labels_in(images, draw(images, 900, seed=0))[None] == 200, "all of the unlabelled ones, if they are few"
    assert set(labels_in(images, draw(images, 6, seed=0))) == {"a", "b", "rare", None}
    with pytest.raises(InputError, match=r"at least 6 \(twice the number of labelled classes\), got 5"):
        draw(images, 5, seed=0)


def job_of(folder: Path, learn_on: int | None = None) -> Job:
    return prepare(
        folder / "images",
        None,
        folder / "run",
        Discovery(backbone="convnet", k=6, learn_on=learn_on),
        Reading(),
        runtime=CPU,
        force=False,
    )


def test_a_sample_as_large_as_the_set_is_the_set(tmp_path: Path) -> None:
    tiny.write(tmp_path / "images")
    for n, learned in ((None, 120), (120, 120), (500, 120), (60, 60)):
        job, mask = learned_part(job_of(tmp_path, n))
        assert len(job.images) == mask.sum() == learned


def test_pixels_that_do_not_fit_the_disk_are_refused_with_a_sample_that_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.write(tmp_path / "images")
    job, backbone = job_of(tmp_path), load_backbone("convnet")
    side = backbone.spec.shorter_side
    each = 3 * side * side + 768
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(0, 0, DISK_RESERVE + 120 * each))
    check_room(job, backbone)
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(0, 0, DISK_RESERVE + 120 * each - 1))
    with pytest.raises(NoSpaceError, match=r"the pixels of 120 images need .* are free") as refused:
        check_room(job, backbone)
    assert "learn_on" not in str(refused.value), "a few images are no sample"
    free = DISK_RESERVE + 10**6 * (8 * 512 + 1024) + 50_000 * each
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(0, 0, free))
    (advice,) = remedies(job, backbone, 10**6)
    assert advice.settings == {"learn_on": 40_000}  # four fifths of what is left beside features and tables
    assert remedies(job, backbone, 30_000) == (), "no sample of more images than there are"
    (tmp_path / "run/cache/pixels/x").mkdir(parents=True)
    (tmp_path / "run/cache/pixels/x/pixels.bin").write_bytes(bytes(each))  # one is stored already
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(0, 0, DISK_RESERVE + 119 * each))
    check_room(job, backbone)
