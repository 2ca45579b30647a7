"""The frozen encoder: the rows of the backbone whatever fits into memory, and prefetching in order."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from support.stores import noise, small_store, store_of
from torch import Tensor

from sortal.errors import SortalError
from sortal.learning import frozen, views
from sortal.learning.backbones import int8
from sortal.learning.backbones import vit as of_vit
from sortal.learning.backbones.backbone import Backbone, digest
from sortal.learning.backbones.registry import load_backbone
from sortal.learning.frozen import (
    MOST_STREAMS,
    READER_THREADS,
    SPARE,
    FrozenEncoder,
    in_streams,
    load_crops,
    prefetch,
    streams_of,
)
from sortal.learning.views import Crops
from sortal.system.device import Compute, multiplies_int8

CPU = Compute(torch.device("cpu"))
COMPILED = Compute(torch.device("cpu"), compiled=True)
BF16 = Compute(torch.device("cpu"), bf16=True)
PATIENCE = 60.0  # seconds that a thread waits for another


def vit(**options: Any) -> Backbone:
    return load_backbone("test_vit", weights="random", image_size=32, **options)


def tiny() -> Backbone:
    """Make a backbone without a trunk, so that its tokens are exactly the normalised pixels."""
    return load_backbone("convnet", weights="random", image_size=8)


def crops(n: int, size: int) -> tuple[Tensor, Tensor]:
    """Make random pixels, every third of them to be mirrored."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (n, size, size, 3), dtype=torch.uint8, generator=generator)
    return pixels, torch.arange(n) % 3 == 1


def by_hand(backbone: Backbone, pixels: Tensor, flipped: Tensor) -> Tensor:
    """Mirror and normalise crops in NumPy."""
    images = [image.numpy() for image in pixels]
    images = [image[:, ::-1] if mirror else image for image, mirror in zip(images, flipped.tolist(), strict=True)]
    spec = backbone.spec
    scaled = (np.stack(images) / 255 - spec.mean) / spec.std
    return torch.from_numpy(scaled.transpose(0, 3, 1, 2).copy()).float()


# Rows


@pytest.mark.parametrize("whole", [False, True])
def test_rows_are_those_of_the_trunk_or_of_the_whole_backbone(whole: bool) -> None:
    backbone = vit(trained=6)
    pixels, flipped = crops(5, 32)
    rows = FrozenEncoder(backbone, CPU, whole=whole)(pixels, flipped)
    assert rows.shape == ((5, backbone.spec.width) if whole else (5, 5, 64))
    part = backbone if whole else backbone.trunk
    assert torch.equal(rows, part(backbone.normalise(pixels, flipped)))
    torch.testing.assert_close(rows, part(by_hand(backbone, pixels, flipped)).detach(), rtol=1e-4, atol=1e-5)
    assert rows.grad_fn is None
    assert torch.is_grad_enabled()


def test_bfloat16_casts_a_copy_of_the_trunk_and_uses_the_tail_of_the_backbone() -> None:
    backbone, given = vit(), crops(6, 32)
    before, trained = digest(dict(backbone.state_dict())), [weight.requires_grad for weight in backbone.parameters()]
    exact = FrozenEncoder(backbone, CPU)(*given)
    rows = FrozenEncoder(backbone, BF16)(*given)
    assert rows.dtype == torch.bfloat16
    assert 0 < (rows.float() - exact).norm() / exact.norm() < 0.02
    whole = FrozenEncoder(backbone, BF16, whole=True)
    untrained = whole(*given)
    assert {weight.dtype for weight in backbone.parameters()} == {torch.float32}
    assert digest(dict(backbone.state_dict())) == before
    assert [weight.requires_grad for weight in backbone.parameters()] == trained
    with torch.no_grad():
        backbone.blocks[-1].get_parameter("mlp.fc2.bias")[:9] += 1
    exact = FrozenEncoder(backbone, CPU, whole=True)(*given)
    after = whole(*given)
    assert (after.float() - exact).norm() / exact.norm() < 0.05
    assert (after - untrained).norm() / exact.norm() > 0.5


# Memory


def limited(backbone: Backbone, fits: Callable[[int], bool], error: Exception | None = None) -> list[int]:
    """Let the trunk run out of memory unless so many rows fit; list the sizes it is called with."""
    asked: list[int] = []
    real = backbone.trunk

    def trunk(images: Tensor) -> Tensor:
        asked.append(len(images))
        if not fits(len(images)):
            raise error or torch.OutOfMemoryError
        return real(images)

    backbone.trunk = trunk  # type: ignore[method-assign]
    return asked


def test_batches_are_halved_until_they_fit_with_warnings(caplog: pytest.LogCaptureFixture) -> None:
    backbone = tiny()
    asked = limited(backbone, lambda rows: rows <= 3)
    encoder, given = FrozenEncoder(backbone, CPU), crops(13, 8)
    assert torch.equal(encoder(*given), tiny().normalise(*given))
    assert asked == [13, 6, 3, 3, 3, 3, 1]
    assert caplog.messages == [
        "Out of memory with 13 images per batch; continuing with 6.",
        "Out of memory with 6 images per batch; continuing with 3.",
    ]
    asked.clear()
    assert torch.equal(encoder(*given), tiny().normalise(*given))
    assert asked == [3, 3, 3, 3, 1]  # sizes that did not fit are not tried again
    assert len(caplog.messages) == 2


def test_running_out_of_memory_halfway_loses_no_row() -> None:
    backbone, calls = tiny(), count()
    limited(backbone, lambda _: next(calls) not in (0, 3))  # in the first call, and later in the third part
    given, encoder = crops(8, 8), FrozenEncoder(backbone, CPU)
    encoder.largest = 4
    assert torch.equal(encoder(*given), tiny().normalise(*given))
    assert encoder.largest == 1


def test_a_single_image_that_does_not_fit_is_reported_and_other_errors_are_raised_at_once() -> None:
    backbone = tiny()
    asked = limited(backbone, lambda _: False)
    with pytest.raises(SortalError, match=r"Out of memory with a single image. Use a smaller backbone or image_size."):
        FrozenEncoder(backbone, CPU)(*crops(5, 8))
    assert asked == [5, 2, 1]
    for error in (RuntimeError("sizes do not match"), KeyError("can't allocate")):
        backbone = tiny()
        asked = limited(backbone, lambda _: False, error)
        with pytest.raises(type(error)) as caught:
            FrozenEncoder(backbone, CPU)(*crops(5, 8))
        assert caught.value is error
        assert asked == [5]


# Compiled


def test_a_compiled_trunk_gets_batches_of_one_size_with_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []

    def compile(function: Callable[..., Tensor], **_: Any) -> Callable[..., Tensor]:
        def compiled(pixels: Tensor, flipped: Tensor, *others: Tensor) -> Tensor:
            seen.append((len(pixels), len(flipped)))
            return function(pixels, flipped, *others)

        return compiled

    monkeypatch.setattr(torch, "compile", compile)
    store = small_store(8, 8)
    batches = [views.centre_crops(store, np.arange(n), size=8) for n in (8, 8, 3, 1)]
    plain = list(FrozenEncoder(tiny(), CPU).stream(store, batches))
    assert [len(rows) for rows in plain] == [8, 8, 3, 1]
    assert seen == []
    encoder = FrozenEncoder(tiny(), COMPILED)
    for rows, expected in zip(encoder.stream(store, batches), plain, strict=True):
        assert torch.equal(rows, expected)
    assert seen == [(8, 8)] * 4
    list(encoder.stream(store, batches[2:]))  # another stream of smaller batches is not padded to the old size
    assert seen[4:] == [(3, 3)] * 2


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own, from 2.11 on
def test_a_traced_backbone_gives_the_same_features(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager", fullgraph=True))
    given = crops(4, 32)
    rows = FrozenEncoder(vit(), COMPILED, whole=True)(*given)
    torch.testing.assert_close(rows, FrozenEncoder(vit(), CPU, whole=True)(*given), rtol=1e-4, atol=1e-5)
    assert [record for record in caplog.records if record.name.startswith("sortal")] == []  # no fallback
    torch.compiler.reset()


# Crops


def test_crops_are_loaded_batch_by_batch_in_order() -> None:
    images = noise(9, 12)
    batches = [
        Crops(np.array(rows), np.full(len(rows), 2), np.full(len(rows), 1), np.full(len(rows), False))
        for rows in ([3], [0, 8, 1], [], [5, 5], *([i] for i in range(9)))
    ]
    loaded = list(load_crops(store_of(images), batches, size=8, device=torch.device("cpu")))
    assert len(loaded) == len(batches)
    for batch, (pixels, flipped, *_) in zip(batches, loaded, strict=True):
        assert pixels.shape == (len(batch.rows), 8, 8, 3)
        assert (pixels.dtype, flipped.dtype) == (torch.uint8, torch.bool)
        assert flipped.tolist() == [False] * len(batch.rows)
        for piece, row in zip(pixels, batch.rows.tolist(), strict=True):
            np.testing.assert_array_equal(piece, images[row][2:10, 1:9])


def test_streaming_a_store_gives_the_rows_of_its_crops() -> None:
    store, backbone = small_store(6, 9), tiny()
    keys, numbers = views.content_keys(store), np.arange(4)
    batches = [
        views.random_crops(store, keys, np.arange(4) + start, numbers, size=8, flip=True, seed=5, epoch=0)
        for start in (0, 2)
    ]
    assert {bool(mirror) for batch in batches for mirror in batch.flipped} == {True, False}
    streamed = list(FrozenEncoder(backbone, CPU).stream(store, batches))
    assert len(streamed) == 2
    for batch, rows in zip(batches, streamed, strict=True):
        pixels = torch.from_numpy(store.crops(batch.rows, batch.tops, batch.lefts, 8))
        torch.testing.assert_close(rows, by_hand(backbone, pixels, torch.from_numpy(batch.flipped)))


# Readers


def test_results_are_in_order_even_if_later_items_finish_first() -> None:
    later = threading.Event()

    def work(item: int) -> int:
        assert threading.current_thread().name.startswith("prefetch")
        if item == 0:
            assert later.wait(PATIENCE)
        if item == 3:
            later.set()
        return item

    assert list(prefetch(work, range(20), threads=4)) == list(range(20))
    assert list(prefetch(work, [])) == []


@pytest.mark.parametrize(("threads", "streams", "each"), [(1, 1, 1), (3, 3, 1), (5, 2, 2)])
def test_streams_share_the_threads_of_the_caller_who_keeps_as_many(threads: int, streams: int, each: int) -> None:
    before, main = torch.get_num_threads(), threading.current_thread()
    busy = threading.Barrier(streams, timeout=PATIENCE)

    def work(item: int) -> tuple[int, int, bool]:
        busy.wait()  # until so many work at a time
        return item, torch.get_num_threads(), threading.current_thread() is main

    torch.set_num_threads(threads)
    try:
        found = list(in_streams(work, range(6), streams))
        assert found == [(item, each, streams == 1) for item in range(6)]
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


INT8 = pytest.param(
    Compute(torch.device("cpu"), int8=True),
    marks=pytest.mark.skipif(not multiplies_int8(), reason="the processor or PyTorch has no such products"),
)


@pytest.mark.parametrize("compute", [CPU, BF16, COMPILED, INT8])
def test_rows_of_a_stream_are_in_order_and_the_same_however_many_are_encoded_at_a_time(
    compute: Compute, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, store, found = torch.get_num_threads(), small_store(23, 32), list[Tensor]()
    for module in (int8, of_vit):
        monkeypatch.setattr(module, "FEWEST_FEATURES", 1)
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            encoder = FrozenEncoder(vit(), compute)
            assert encoder.int8 == compute.int8
            found.append(torch.cat([*encoder.centre_crops(store, np.arange(23)[::-1].copy(), batch_size=4)]))
    finally:
        torch.set_num_threads(before)
    bound = 0.05 if compute.bf16 else 1e-5
    torch.testing.assert_close(found[1], found[0], rtol=bound, atol=bound)


def test_only_backbones_that_say_so_are_encoded_by_several_threads() -> None:
    before = torch.get_num_threads()
    try:
        for threads, streams in ((1, 1), (3, 3), (MOST_STREAMS, MOST_STREAMS), (15, 7), (16, 8), (20, 6)):
            torch.set_num_threads(threads)
            assert (streams_of(vit()), streams_of(tiny())) == (streams, 1)
    finally:
        torch.set_num_threads(before)


def test_only_a_few_items_are_taken_in_advance() -> None:
    take = Mock(side_effect=count())
    results = prefetch(lambda item: item, iter(take, None))
    assert not take.called  # nothing happens before the first next()
    for asked in range(1, 10):
        assert next(results) == asked - 1
        assert take.call_count == READER_THREADS + SPARE + asked
    results.close()  # type: ignore[attr-defined]
    assert take.call_count == READER_THREADS + SPARE + 9


def test_an_error_of_the_work_or_of_the_items_is_raised_in_order_and_nothing_hangs() -> None:
    def work(item: int) -> int:
        if item == 4:
            raise KeyError("four")
        return item

    results = prefetch(work, range(20))
    assert [next(results) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(KeyError, match="four"):
        next(results)
    assert list(results) == []  # exhausted

    def items() -> Iterator[int]:
        yield from range(4)
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        list(prefetch(lambda item: item, items()))
    assert threads() == []


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("prefetch")]


@pytest.mark.parametrize("n", [1, 4])
def test_stopping_early_starts_no_more_work_and_leaves_no_thread(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    started: list[int] = []
    waited: list[bool] = []
    busy, stopping = threading.Barrier(n + 1, timeout=PATIENCE), threading.Event()

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            waited.append(wait)
            stopping.set()
            super().shutdown(wait, cancel_futures=cancel_futures)

    def work(item: int) -> int:
        started.append(item)
        if item > 0:  # all readers are busy until the pool shuts down
            busy.wait()
            assert stopping.wait(PATIENCE)
        return item

    monkeypatch.setattr(frozen, "ThreadPoolExecutor", Pool)
    results = prefetch(work, count(), threads=n)
    assert next(results) == 0
    busy.wait()
    results.close()  # type: ignore[attr-defined]
    assert waited == [False], "the garbage collector may do this in a thread that must not wait for another"
    for thread in threading.enumerate():
        if thread.name.startswith("prefetch"):
            thread.join(PATIENCE)
    assert sorted(started) == list(range(n + 1))
    assert threads() == []
