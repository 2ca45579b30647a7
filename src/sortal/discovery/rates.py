"""Three rates, measured on a sample of the images: reading an image, a view through the network, a training step.

Each is measured with the load that the machine has at that moment.
"""

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import torch

from sortal.config import Precision
from sortal.discovery.job import Job
from sortal.images import near_duplicates
from sortal.images.check import check_stored
from sortal.images.image_set import ImageSet
from sortal.images.store.packing import Settings, pack, select_readable, store_pictures
from sortal.images.store.pixel_store import PixelStore
from sortal.images.store.vector_rows import digests_of
from sortal.learning import token_cache
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.frozen import CROPS_AT_ONCE, FrozenEncoder, in_streams, streams_of, views_at_once
from sortal.learning.methods import Method
from sortal.learning.optimiser import Optimiser
from sortal.learning.step import WARM, TrainingStep
from sortal.learning.training_inputs import patterns_of
from sortal.learning.views import Crops, RowNumbers, centre_crop_batches, content_keys, random_crops
from sortal.system.device import choose_compute, quick_threads
from sortal.system.progress import Runtime
from sortal.system.resources import Load

SAMPLED_IMAGES, SAMPLED_BYTES, FEWEST_SAMPLED = 256, 2**25, 8  # so many, or so large, but at least these
OTHER_IMAGES = 8  # at once, through a network that is only compared with that of the run
TIMED = 1.0  # seconds that the last timing of a rate takes, at least


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """Seconds of one unit of each kind of work, and sizes in bytes, as measured on a sample."""

    decode: float  # an image, read and stored
    view: float  # through the whole network
    crop: float  # a view to learn from through the trunk, perhaps a window
    step: float  # of training, on cached tokens where the backbone has a frozen part
    stored: float  # bytes of an image's pixels
    base: int  # peak memory before the network ran
    working: int  # memory that the network added to it
    tiny: bool  # most images
    unreadable: tuple[str, ...]
    threads: int  # with which all of that was measured
    others: float | None = None  # cores that other programs used meanwhile


def measure(
    images: ImageSet,
    backbone: Backbone,
    precision: Precision,
    runtime: Runtime,
    *,
    max_pixels: int,
    patterns: RowNumbers | None = None,
    step: Callable[[], float] | None = None,
) -> Measurements:
    """Measure the three rates on a sample of images, that of training steps by a function, if there are any.

    Views to learn from have one of the `patterns` of patches each.
    """
    sample, times, load = choose_sample(images), list[float](), Load()
    on_cpu = backbone.device.type == "cpu"
    with quick_threads(on_cpu), TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        runtime.progress("Measuring how fast images are read", 0, 3)
        quiet = Runtime(workers=runtime.workers, progress=lambda *_: times.append(perf_counter()))
        settings = Settings.of(backbone.spec, max_pixels)
        if sample.features is None:
            packed = pack(sample, Path(folder), settings=settings, runtime=quiet)
            tiny = len(check_stored(sample, packed).tiny)
        else:
            contents, tiny = digests_of(sample.features), 0
            packed = store_pictures(sample, contents, Path(folder), settings=settings, runtime=quiet)
            times = times or [0.0]  # without a picture
        _, store = select_readable(sample, packed)
        base = _peak_memory()
        runtime.progress("Measuring how fast the network is", 1, 3)
        view = measure_view(backbone, store, precision)
        crop = view if patterns is None else measure_view(backbone, store, precision, patterns)
        runtime.progress("Measuring how fast the network is trained", 2, 3)
        trained = 0.0 if step is None else step()
        runtime.progress("Measuring how fast the network is trained", 3, 3)
        return Measurements(
            # From the first image that was done: the processes that read images have started by then.
            decode=(times[-1] - times[0]) / max(len(times) - 1, 1),
            view=view,
            crop=crop,
            step=trained,
            stored=float((3 * store.heights * store.widths).mean()) + near_duplicates.LENGTH,
            base=base,
            working=_peak_memory() - base,
            tiny=2 * tiny > len(sample),
            unreadable=tuple(bad.file for bad in packed.quarantine),
            threads=torch.get_num_threads(),
            others=load.others(),
        )


def choose_sample(images: ImageSet) -> ImageSet:
    """Return a few images from all over the set to read, and fewer if their files are large."""
    few = _spread(images, SAMPLED_IMAGES)
    size = sum(map(os.path.getsize, filter(os.path.exists, few.paths)))
    fitting = int(len(few) * SAMPLED_BYTES / max(size, 1))
    return few if fitting >= len(few) else _spread(images, max(fitting, FEWEST_SAMPLED))


def _spread(images: ImageSet, count: int) -> ImageSet:
    mask = np.zeros(len(images), dtype=bool)
    mask[np.linspace(0, len(images) - 1, min(count, len(images))).round().astype(int)] = True
    return images.select(mask)


def measure_view(
    backbone: Backbone, store: PixelStore, precision: Precision, patterns: RowNumbers | None = None
) -> float:
    """Return the seconds of a view through the whole network, or of one to learn from with a pattern of patches."""
    compute = choose_compute(backbone.device, precision=precision, worthwhile=False)
    encoder = FrozenEncoder(backbone, compute, whole=patterns is None, patterns=patterns)
    size, batch_size = backbone.spec.image_size, views_at_once(backbone, CROPS_AT_ONCE)
    draw = partial(random_crops, store, content_keys(store), size=size, flip=True, seed=0, epoch=0)

    def encode(count: int) -> None:
        rows = np.arange(count) % len(store)
        crops: Iterable[Crops] = centre_crop_batches(store, rows, size=size, batch_size=batch_size)
        if patterns is not None:
            crops = (
                draw(rows[i : i + batch_size], np.arange(i, min(i + batch_size, count)))
                for i in range(0, count, batch_size)
            )
        for _ in encoder.stream(store, crops):
            pass

    streams = streams_of(backbone)
    views = streams * batch_size if streams > 1 else 1  # that keep all streams busy
    return seconds_each(lambda count: encode(count * views), backbone.device) / views


def measure_network(backbone: Backbone, measured: Measurements) -> Measurements:
    """Measure the rate of views of another network than was measured, on empty images.

    By the number of its operations, a network of convolutions would seem several times as fast as it is.
    """
    images = torch.zeros(OTHER_IMAGES, 3, backbone.spec.image_size, backbone.spec.image_size, device=backbone.device)

    @torch.inference_mode()
    def encode(_: int) -> None:
        backbone(images)

    def work(count: int) -> None:
        for _ in in_streams(encode, range(count * streams), streams):
            pass

    with quick_threads(backbone.device.type == "cpu"):
        streams = streams_of(backbone)
        view = seconds_each(work, backbone.device) / (streams * OTHER_IMAGES)
    return replace(measured, view=view, crop=view)


def measure_step(job: Job, method: Method) -> float:
    """Return the seconds of a training step on arbitrary tokens."""
    training, known, device = job.recipe.training, job.images.known, job.device
    compute = choose_compute(device, precision=training.precision, worthwhile=False)
    weights = {name: value for name, value in method.named_parameters() if value.requires_grad}
    optimiser = Optimiser(weights, lr=1e-9, momentum=training.momentum, clip=training.clip)  # too slow to diverge
    step = TrainingStep(job.processes, method, compute, optimiser, training.chunks)
    numbers = torch.arange(training.batch_size, device=device).repeat(method.views)
    labels = torch.where(numbers % 2 == 0, int(known[0]) if len(known) else -1, -1)
    method.prepare(labels[: training.batch_size])
    method.to(device)
    shape = token_cache.token_shape(method.backbone, patterns_of(method.backbone, training))
    tokens = torch.randn(len(numbers), *shape, device=device).to(torch.bfloat16)
    progress = torch.tensor(0.0, device=device)

    def work(count: int) -> None:
        for _ in range(count):
            step(tokens, numbers, labels, progress)

    return seconds_each(work, device)


def seconds_each(work: Callable[[int], object], device: torch.device) -> float:
    """Time work on a number of items, which is doubled until that takes long enough; return the seconds of an item."""
    work(1 + WARM if device.type == "cuda" else 1)  # allocates memory, and records CUDA graphs
    count = 1
    while True:
        started = perf_counter()
        work(count)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        took = perf_counter() - started
        if took >= TIMED:
            return took / count
        count *= 2


def _peak_memory() -> int:
    """Return the peak memory of this process in bytes."""
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
