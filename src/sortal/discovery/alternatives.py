"""Quicker ways to sort a collection, each with its price: the time it takes, and what it costs in accuracy."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from sortal.config import AUTO, CONVNET, FASTER, SMALLER, VECTORS
from sortal.discovery.defaults import architecture, recipe_for
from sortal.discovery.job import Job
from sortal.errors import InputError, Remedy
from sortal.system.text import duration, plural

LONG = 600  # seconds from which quicker ways are named
WORTH = 0.75  # share of the time that a way may take, at most, to be named
FEWEST_SUGGESTED, SUGGESTED_SHARE = 2000, 0.1  # images to learn on that are suggested: so many at least, or this share
SMALL_SIZE = 112  # pixels, about: of smaller images, patches are too few
# How much worse a way sorts where that was measured: by Sortal's own method with a ViT-S/14, on flowers, CIFAR-10 and
# imagenette (benchmarks/RESULTS.md; sizes of images: benchmarks/archive/runs.md). With 112 pixels, 1,000 images were
# sorted 3.4 points worse than by full training, and with 224 pixels 2.4; with 168, 1.8.
COSTS = {
    "learn_on": "about 5 points worse (measured with 1,000 of 3,000 images)",
    "image_size": "one or two points worse (measured with 1,000 images, within the noise)",
    "method": "40 to 57 points worse (measured with other weights)",
}
UNMEASURED = "worse, by how much was not measured"


def quicker(job: Job, took: float, small: int | None, price: Callable[[Job], float]) -> list[Remedy]:
    """Return the settings that make a job quicker, by what `price` says that it takes with them, in seconds.

    `small` is a size of images that the network could see instead of its own; None if there is none.
    """
    ways = []
    for action, change in _ways(job, small):
        settings = replace(job.settings, **change)
        if "backbone" in change:
            settings = replace(settings, image_size=AUTO)  # that of one network is not that of another
        n = min(settings.learn_on or len(job.images), len(job.images))
        try:
            recipe = recipe_for(settings, n, on_gpu=job.on_gpu)
            seconds = price(replace(job, settings=settings, recipe=recipe))
        except InputError:  # of another setting that does not go together with it, or weights that cannot be had
            continue
        if seconds <= WORTH * took:
            about = "an estimated" if "backbone" in change else "about"
            costs = f"takes {about} {duration(seconds)} and sorts {_cost(job, next(iter(change)))}"
            ways.append(Remedy(f"{action}, which {costs}", **change))
    return ways


def _cost(job: Job, name: str) -> str:
    """Say how much worse a job sorts with another setting."""
    same = job.settings.method == "sortal" and architecture(job.settings.backbone) == architecture(SMALLER)
    return COSTS.get(name, UNMEASURED) if same else UNMEASURED


def _ways(job: Job, small: int | None) -> Iterator[tuple[str, dict[str, Any]]]:
    settings, n, epochs = job.settings, len(job.images), job.recipe.training.epochs
    sample = max(FEWEST_SUGGESTED, 1000 * round(SUGGESTED_SHARE * n / 1000))
    if settings.learn_on is None and sample <= n // 2:
        yield f"learn on {plural(sample, 'image')} and predict the others", {"learn_on": sample}
    if small is not None:
        yield "see smaller images", {"image_size": small}
    if settings.weights is None and settings.backbone not in (CONVNET, VECTORS, FASTER):
        yield "use a smaller network", {"backbone": FASTER}
    if not job.recipe.learns:
        return
    if epochs > 1 and settings.backbone in (CONVNET, VECTORS):
        yield "train for fewer epochs", {"epochs": max(epochs // 4, 1)}
    yield "do not train at all", {"method": "kmeans"}
