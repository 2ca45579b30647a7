"""Quicker ways to sort a collection, each with its price: the time it takes, and what it costs in accuracy."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from sortal.config import AUTO, CONVNET, VECTORS
from sortal.discovery.defaults import recipe_for
from sortal.discovery.job import Job
from sortal.errors import Remedy
from sortal.system.text import duration

LONG = 600  # seconds from which quicker ways are named
WORTH = 0.75  # share of the time that a way may take, at most, to be named
FEWEST_SUGGESTED, SUGGESTED_SHARE = 2000, 0.1  # images to learn on that are suggested: so many at least, or this share
SMALL_SIZE = 112  # pixels: of smaller images, patches are too few
# How much worse each way sorts, on flowers, CIFAR-10 and imagenette (benchmarks/RESULTS.md): 1,000 images instead of
# 3,000, a third of the epochs or less, and none; that of small images was not measured by itself.
COSTS = {
    "learn_on": "about 5 points worse",
    "image_size": "worse, by how much was not measured",
    "epochs": "4 to 12 points worse",
    "method": "40 to 57 points worse",
}


def quicker(job: Job, took: float, patched: bool, price: Callable[[Job], float]) -> list[Remedy]:
    """Return the settings that make a job quicker, by what `price` says that it takes with them, in seconds.

    The network sees patches if it is `patched`, and so fewer of them in smaller images.
    """
    ways = []
    for action, change in _ways(job, patched):
        settings = replace(job.settings, **change)
        n = min(settings.learn_on or len(job.images), len(job.images))
        seconds = price(replace(job, settings=settings, recipe=recipe_for(settings, n, on_gpu=job.on_gpu)))
        if seconds <= WORTH * took:
            costs = f"takes about {duration(seconds)} and sorts {COSTS[next(iter(change))]}"
            ways.append(Remedy(f"{action}, which {costs}", **change))
    return ways


def _ways(job: Job, patched: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    settings, n, epochs = job.settings, len(job.images), job.recipe.training.epochs
    sample = max(FEWEST_SUGGESTED, 1000 * round(SUGGESTED_SHARE * n / 1000))
    if settings.learn_on is None and sample <= n // 2:
        yield f"learn on {sample:,} images and predict the others", {"learn_on": sample}
    size = settings.image_size if settings.image_size != AUTO else job.image_size
    if patched and (size is None or size > SMALL_SIZE):
        yield "see smaller images", {"image_size": SMALL_SIZE}
    if not job.recipe.learns:
        return
    if epochs > 1 and settings.backbone in (CONVNET, VECTORS):
        yield "train for fewer epochs", {"epochs": max(epochs // 4, 1)}
    yield "do not train at all", {"method": "kmeans"}
