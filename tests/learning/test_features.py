"""Features: row i belongs to image i, as with Pillow and torchvision; nothing is computed twice."""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.numpy import load_file, save_file
from support.fork_server import KILLED, ForkServer, die
from support.processes import run_two
from support.rounding import rounding
from support.runtimes import CPU
from support.stores import noise, small_store, store_of
from torch import Tensor

from sortal.errors import InputError
from sortal.images.decoding import Quarantined
from sortal.images.image_set import ImageSet
from sortal.images.reading import read_images
from sortal.images.store import packing
from sortal.images.store.packing import Settings, pack
from sortal.images.store.pixel_store import PixelStore
from sortal.learning import features, frozen
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.backbones.registry import load_backbone
from sortal.learning.features import extract
from sortal.learning.frozen import FrozenEncoder, KeptTokens
from sortal.system.workers import finish

Features = NDArray[np.float32]
SIZE = 32  # input pixels of the transformer
SHAPES = ((60, 45), (45, 60), (37, 37), (90, 41), (38, 39), (20, 31), (41, 140))  # heights and widths; one is small


@pytest.fixture(scope="module")
def vit() -> Backbone:
    return load_backbone("test_vit", weights="random", image_size=SIZE)


def tiny() -> Backbone:
    return load_backbone("convnet", weights="random", image_size=8)


def found(backbone: Backbone, images: ImageSet | PixelStore, **options: Any) -> Features:
    """Extract features on the CPU in float32."""
    return extract(backbone, images, **{"runtime": CPU, "precision": "float32", **options})


def alone(backbone: Backbone, image: NDArray[np.uint8]) -> Features:
    """Compute the features of one image's centre crop from the definitions."""
    size, (height, width, _) = backbone.spec.image_size, image.shape
    top, left = round((height - size) / 2), round((width - size) / 2)
    piece = image[top : top + size, left : left + size]
    scaled = (piece / 255 - backbone.spec.mean) / backbone.spec.std
    with torch.no_grad():
        row: Features = backbone(torch.from_numpy(scaled.transpose(2, 0, 1)[None]).float())[0].numpy()
        return row


def assert_rows(got: Features, wanted: Sequence[Features] | Features) -> None:
    np.testing.assert_allclose(got, np.stack([*wanted]), rtol=1e-3, atol=1e-4)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """List the sizes of the computed batches."""
    sizes: list[int] = []
    run = FrozenEncoder.__call__

    def counted(self: FrozenEncoder, pixels: Tensor, *drawn: Tensor) -> Tensor:
        sizes.append(len(pixels))
        return run(self, pixels, *drawn)

    monkeypatch.setattr(FrozenEncoder, "__call__", counted)
    return sizes


def taken(sizes: list[int]) -> int:
    """Count the images computed since the last call."""
    total = sum(sizes)
    sizes.clear()
    return total


# Rows


@pytest.mark.parametrize(("batch_size", "sizes"), [(1, [1] * 7), (3, [3, 3, 1]), (1000, [7])])
def test_row_i_is_that_of_image_i_for_any_batch_size(
    vit: Backbone, seen: list[int], batch_size: int, sizes: list[int]
) -> None:
    reports: list[tuple[str, int, int]] = []
    images = noise(7, SIZE)
    runtime = replace(CPU, progress=lambda *report: reports.append(report))
    x = found(vit, store_of(images), batch_size=batch_size, runtime=runtime)
    assert seen == sizes
    assert reports == [("Computing features", int(done), 7) for done in np.cumsum(sizes)]
    assert x.shape == (7, vit.spec.width)
    assert x.dtype == np.float32
    assert x.flags.c_contiguous
    assert x.flags.writeable
    assert_rows(x, [alone(vit, image) for image in images])
    assert min(np.abs(x[i] - x[j]).max() for i in range(7) for j in range(i)) > 0.1  # no two are equal
    rough = found(vit, store_of(images), precision="bf16")
    assert rough.dtype == np.float32
    assert 0 < np.linalg.norm(rough - x) / np.linalg.norm(x) < 0.05


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Write a folder of images."""
    place = tmp_path / "pictures"
    place.mkdir()
    for number, (height, width) in enumerate(SHAPES):
        coarse = Image.fromarray(np.random.default_rng(number).integers(0, 256, (6, 6, 3), dtype=np.uint8))
        coarse.resize((width, height), Image.Resampling.BILINEAR).save(place / f"{number}.png")
    return place


@pytest.fixture
def folder(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the same folder, to be packed by this process, which is faster."""

    def run(store: Any, items: Any, *, options: Any, workers: Any, answer: Any) -> Iterator[tuple[int, Any]]:
        for item in items:
            yield item.row, finish(store(item.source, options), partial(answer, item.row))

    monkeypatch.setattr(packing, "run_workers", run)
    return pictures


def read(folder: Path) -> ImageSet:
    return read_images(folder, need_labels=False)


def test_features_of_files_match_torchvision(pictures: Path, vit: Backbone) -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    spec = vit.spec
    way = transforms.Compose(
        [
            transforms.Resize(spec.shorter_side, interpolation=transforms.InterpolationMode.BICUBIC),
            transforms.CenterCrop(spec.image_size),
            transforms.ToTensor(),
            transforms.Normalize(spec.mean, spec.std),
        ]
    )
    images = read(pictures)
    rows = []
    for path in images.paths:
        with Image.open(path) as image, torch.no_grad():
            rows.append(vit(way(image.convert("RGB"))[None])[0].numpy())
    assert_rows(found(vit, images), rows)


def test_files_are_packed_temporarily(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    x = found(tiny(), read(folder))
    assert list((tmp_path / "temporary").iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pictures", "temporary"]
    store = pack(read(folder), tmp_path / "store", settings=Settings(shorter_side=10))
    np.testing.assert_array_equal(found(tiny(), store), x)


def test_normalised_rows_have_unit_length(vit: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    store = small_store(5, SIZE)
    plain, unit = found(vit, store), found(vit, store, normalise=True)
    assert unit.dtype == np.float32
    lengths, off = (
        np.linalg.norm(plain.astype(np.float64), axis=1, keepdims=True),
        rounding(plain.shape[1] + 3, np.float32),
    )
    np.testing.assert_allclose(unit * lengths, plain, rtol=off)
    backbone = tiny()
    monkeypatch.setattr(backbone, "tail", lambda inputs: inputs.new_zeros(len(inputs), backbone.spec.width))
    np.testing.assert_array_equal(found(backbone, small_store(3, 8), normalise=True), np.zeros((3, 512)))


def test_no_images_give_no_rows(tmp_path: Path) -> None:
    for options in ({}, {"folder": tmp_path}, {"normalise": True}):
        assert found(tiny(), store_of([]), **options).shape == (0, 512)


@pytest.mark.parametrize("limit", [2**30, 1000])
def test_the_trunk_computes_tokens_once_for_several_tails(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With too little memory it does so every time; the features are those of the whole network in any case."""
    vit, store, runs = load_backbone("test_vit", weights="random", image_size=SIZE), small_store(9, 40), list[int]()
    trunk, kept = type(vit).trunk, KeptTokens(limit)

    def counted(backbone: Backbone, images: Tensor) -> Tensor:
        runs.append(len(images))
        return trunk(backbone, images)

    monkeypatch.setattr(type(vit), "trunk", counted)
    for step in range(3):
        with torch.no_grad():
            for weight in vit.parameters():
                if weight.requires_grad:
                    weight.add_(0.01 * step)
        runs.clear()
        x = found(vit, store, kept=kept, batch_size=4)
        assert sum(runs) == (9 if step == 0 or limit == 1000 else 0)
        np.testing.assert_array_equal(x, found(vit, store, batch_size=4))
    fewer = store.select(np.arange(9) < 5)
    np.testing.assert_allclose(found(vit, fewer, kept=kept, batch_size=4), x[:5], atol=1e-4)


def test_kept_tokens_stay_while_features_are_cached(tmp_path: Path) -> None:
    vit, store, kept = (
        load_backbone("test_vit", weights="random", image_size=SIZE),
        small_store(5, 40),
        KeptTokens(2**30),
    )
    for _ in range(2):
        found(vit, store, kept=kept, folder=tmp_path)
        assert kept.rows is not None
        assert len(kept.rows) == 5


def test_copies_are_computed_once(seen: list[int]) -> None:
    images, order = noise(3, 8), (2, 0, 2, 1, 0, 2)
    x = found(tiny(), store_of([images[i] for i in order]))
    assert taken(seen) == 3
    assert_rows(x, [alone(tiny(), images[i]) for i in order])
    np.testing.assert_array_equal(x[[0, 0, 1]], x[[2, 5, 4]])


def test_invalid_input_is_refused() -> None:
    images = noise(3, 8)
    unknown = replace(small_store(3, 8), digests=np.zeros(3, "S32"))  # by which all would be taken for the same image
    unread = replace(small_store(3, 8), quarantine=(Quarantined("b.png", "truncated", ""),))
    unread.heights[1] = unread.widths[1] = 0
    short = store_of([images[0], images[1][:7], images[2]])
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (short, {"batch_size": 0}, "^batch_size must be a whole number of at least 1, got 0.$"),
        (small_store(3, 8), {"precision": "fp16"}, "precision must be"),
        (unknown, {}, "The store must hold a digest of each image"),
        (unread, {}, r"1 could not be read: 'b.png'. Leave them out"),
        (short, {}, r"must be at least 8 × 8 pixels .* 1 are smaller, the first in row 1 \(7 × "),
    ]
    for given, options, message in cases:
        with pytest.raises(InputError, match=message):
            found(tiny(), given, **options)


# The cache


def cached(folder: Path) -> list[Path]:
    return sorted((folder / "features").rglob("*.safetensors"))


def test_only_new_images_are_computed(tmp_path: Path, seen: list[int]) -> None:
    """The cache holds features before normalisation."""
    images = noise(8, 8)
    found(tiny(), store_of(images[2:5]), folder=tmp_path, normalise=True)
    assert taken(seen) == 3
    x = found(tiny(), store_of(images), folder=tmp_path)
    assert taken(seen) == 5
    assert_rows(x, [alone(tiny(), image) for image in images])
    for part in (slice(None, None, -2), slice(0, 1), slice(1, 2)):  # the cache knows more digests
        np.testing.assert_array_equal(found(tiny(), store_of(images[part]), folder=tmp_path), x[part])
    assert taken(seen) == 0


@pytest.mark.parametrize("change", ["weight", "mean", "size", "precision"])
def test_everything_that_determines_features_is_part_of_their_key(tmp_path: Path, seen: list[int], change: str) -> None:
    store = small_store(3, 9)
    backbone = load_backbone("convnet", weights="random", image_size=9 if change == "size" else 8)
    precision = "bf16" if change == "precision" else "float32"
    if change == "weight":
        with torch.no_grad():
            next(backbone.parameters()).view(-1)[0] += 0.5
    if change == "mean":
        backbone.spec = replace(backbone.spec, mean=(0.4, 0.5, 0.6))
    before = found(tiny(), store, folder=tmp_path)
    taken(seen)
    x = found(backbone, store, folder=tmp_path, precision=precision)
    assert taken(seen) == 3
    np.testing.assert_array_equal(x, found(backbone, store, precision=precision))
    assert not np.array_equal(x, before)
    np.testing.assert_array_equal(found(tiny(), store, folder=tmp_path), before)  # still cached


def test_pixels_packed_with_other_settings_have_their_own_features(folder: Path, tmp_path: Path) -> None:
    images, backbone = read(folder), tiny()
    for side in (10, 16):
        store = pack(images, tmp_path / "store", settings=Settings(shorter_side=side))
        np.testing.assert_array_equal(found(backbone, store, folder=tmp_path), found(backbone, store))


def test_files_read_again_renamed_or_packed_reuse_pixels_and_features(
    folder: Path, tmp_path: Path, seen: list[int]
) -> None:
    stages: list[str] = []
    runtime = replace(CPU, progress=lambda what, *_: stages.append(what))
    options: dict[str, Any] = {"folder": str(tmp_path / "cache"), "runtime": runtime}
    x = found(tiny(), read(folder), **options)
    assert stages == ["Reading images"] * 7 + ["Computing features"]
    assert taken(seen) == 7
    np.testing.assert_array_equal(found(tiny(), read(folder), **options), x)
    assert len(stages) == 8
    for number in range(7):
        (folder / f"{number}.png").rename(folder / f"turned {9 - number}.png")
    np.testing.assert_array_equal(found(tiny(), read(folder), **options), x[::-1])
    store = pack(read(folder), tmp_path / "cache/pixels", settings=Settings(shorter_side=10))
    np.testing.assert_array_equal(found(tiny(), store, **options), x[::-1])
    assert taken(seen) == 0


def rewrite(path: Path, **arrays: NDArray[Any]) -> None:
    """Replace some of the arrays in a file."""
    save_file({**load_file(path), **arrays}, path)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "nearly whole": lambda path: os.truncate(path, int(0.999 * path.stat().st_size)),
    "without digests": lambda path: save_file({"features": np.zeros((5, 512), np.float32)}, path),
    "too few rows": lambda path: rewrite(path, features=np.ones((4, 512))),
    "too narrow": lambda path: rewrite(path, features=np.ones((5, 1))),
    "digests of another length": lambda path: rewrite(path, digests=np.zeros((5, 7), np.uint8)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_is_recomputed_with_a_warning(
    tmp_path: Path, seen: list[int], caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    store = small_store(5, 8)
    x = found(tiny(), store, folder=tmp_path)
    taken(seen)
    (path,) = cached(tmp_path)
    DAMAGES[damage](path)
    np.testing.assert_array_equal(found(tiny(), store, folder=tmp_path), x)
    assert taken(seen) == 5
    (message,) = caplog.messages
    assert message.startswith(f"Recomputing the damaged features in {path}: ")
    caplog.clear()
    np.testing.assert_array_equal(found(tiny(), store, folder=tmp_path), x)  # the file was repaired
    assert taken(seen) == 0
    assert caplog.messages == []


def test_features_are_saved_periodically_and_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 4.0, 11.0, 11.5, 15.0, 22.0, 22.5, 23.0, 24.0])
    monkeypatch.setattr(features, "monotonic", lambda: next(clock))
    rows: list[int] = []

    def look(*_: object) -> None:
        rows.append(sum(len(load_file(path)["features"]) for path in cached(tmp_path)))

    found(tiny(), small_store(9, 8), folder=tmp_path, batch_size=2, runtime=replace(CPU, progress=look))
    assert rows == [0, 4, 4, 8, 9]


def found_until_killed(folder: str) -> None:
    """In a child: extract into a folder, and die once six of nine images are done."""
    frozen.COMMIT_SECONDS = -1.0  # save every batch
    runtime = replace(CPU, progress=lambda _, done, __: die() if done == 6 else None)
    found(tiny(), small_store(9, 8), folder=folder, batch_size=2, runtime=runtime)


def test_a_killed_call_resumes_where_it_stopped(fork_server: ForkServer, tmp_path: Path, seen: list[int]) -> None:
    fork_server.run(found_until_killed, str(tmp_path), codes=[KILLED])
    whole = cached(tmp_path)[0]
    whole.with_name(f"{whole.name}.123.tmp").write_bytes(whole.read_bytes()[:99])  # as if killed while writing
    x = found(tiny(), small_store(9, 8), folder=tmp_path, batch_size=2)
    assert taken(seen) == 3
    np.testing.assert_array_equal(x, found(tiny(), small_store(9, 8), batch_size=2))


# Two processes


NOISE = noise(7, 8)
SHARED: dict[str, tuple[list[int], dict[str, Any], tuple[int, int]]] = {  # images, options, images for each process
    "all": ([*range(7)], {}, (3, 4)),
    "one": ([0], {}, (0, 1)),
    "none": ([], {}, (0, 0)),
    "some cached": ([0, 1, 2, 2], {"folder": "cache"}, (1, 2)),
    "more cached": ([*range(7)], {"folder": "cache", "normalise": True}, (2, 2)),
    "nothing new": ([*range(7)], {"folder": "cache"}, (0, 0)),
}


def both(rank: int, folder: Path) -> None:
    """Extract as one of two processes of torchrun, and save the results."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    os.chdir(folder)
    results = {}
    for name, (images, options, _) in SHARED.items():
        reports: list[tuple[str, int, int]] = []
        runtime = replace(CPU, progress=lambda *report, reports=reports: reports.append(report))
        x = found(tiny(), store_of([NOISE[i] for i in images]), batch_size=2, runtime=runtime, **options)
        results[name] = (x, reports)
    torch.save(results, f"{rank}.pt")


def test_two_processes_share_the_work_and_both_get_all_rows(tmp_path: Path) -> None:
    run_two(both, tmp_path)
    results = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in (0, 1)]
    rows = np.stack([alone(tiny(), image) for image in NOISE])
    for name, (images, options, shares) in SHARED.items():
        wanted = rows[images]
        if "normalise" in options:
            wanted = wanted / np.linalg.norm(wanted, axis=1, keepdims=True)
        np.testing.assert_array_equal(results[0][name][0], results[1][name][0])
        for (x, reports), share in zip((result[name] for result in results), shares, strict=True):
            assert (x.dtype, x.shape) == (np.float32, wanted.shape)
            np.testing.assert_allclose(x, wanted, rtol=1e-3, atol=1e-4, err_msg=name)
            assert reports[-1:] == ([("Computing features", share, share)] if share else [])
