"""What a run costs: time, memory and disk space, from how much it has to compute and from measured rates.

Whatever is not measured takes little time, which follows from the work by constants from `benchmarks/archive/runs.md`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sortal.discovery.rates import Measurements
from sortal.discovery.sampling import TABLE_BYTES
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.features import LARGEST_FEATURE_FILE
from sortal.learning.methods import Method
from sortal.learning.token_cache import TokenPlan
from sortal.system.mapped_arrays import LARGE_ARRAY
from sortal.web.report import report

CHECK_SECONDS = 5e-5  # to check an image
COMPARE_SECONDS_ON_CPU = 2.5e-3  # to find those of its moment, with two threads; Sortal's own method alone does
# To estimate k, and to cluster: in any case, and by rows · clusters · features. On a GPU, few images take nearly as
# long as many, as each of thousands of kernels takes microseconds. Two of each make a count of categories, and four
# counts took 8.0 s where training took 1.3 times as long as alone. Many take what 100,000 rows of 1,000 classes did.
K_SECONDS, CLUSTER_SECONDS = (0.6, 3e-10), (0.2, 1.8e-10)
K_SECONDS_ON_CPU, CLUSTER_SECONDS_ON_CPU = 2e-7, 3e-8  # by the same product, with two threads
EPOCH_SECONDS = 0.012  # of the end of an epoch on a GPU, nearly all of it to measure health: 240 of them took 2.9 s
SAVE_SECONDS = 3.3e-9  # to save and hash a byte of a round's model and checkpoints: 1.2 GB of six rounds took 4.0 s
REPORT_SECONDS = 1.0, 4e-4  # for a report, and for each of its images
FEATURE_BYTES = 4  # of each feature
RECORD_BYTES = 3000  # of memory for each image: names, digests, places, and the thumbnail to find near-duplicates by


@dataclass(frozen=True, kw_only=True)
class Work:
    """How much a run has to compute."""

    learned: int  # images that it learns on
    rest: int  # images whose category is predicted
    k: int
    estimates_k: bool
    clusters: bool  # by k-means; otherwise a classifier tells the categories
    width: int  # of features
    epochs: int  # of training
    steps: float
    through_trunk: int  # views, while training
    counts: int  # times that categories are counted between rounds of training
    pilot: bool  # whether there is a round of training to count on
    kept: bool  # whether the trunk's tokens are kept between rounds, so that features are nearly free
    on_gpu: bool

    @property
    def rounds(self) -> int:
        """The rounds of training, each of which leaves a model; one model without any."""
        return 1 + self.counts + self.pilot


def model_bytes(backbone: Backbone, method: Method | None) -> int:
    """Return the bytes of a saved model, and of two checkpoints of its trained part, with weights and momentum."""
    weights: list[torch.Tensor] = [*backbone.net.state_dict().values()]
    trained = [value for value in method.parameters() if value.requires_grad] if method is not None else []
    return sum(value.nbytes for value in weights) + 2 * 2 * sum(value.nbytes for value in trained)


def memory(work: Work, measured: Measurements, tokens: TokenPlan | None) -> int:
    """Return the peak memory: that of the process, and of the stage that adds most to it."""
    rows = FEATURE_BYTES * work.learned * work.width
    training = measured.working + (tokens.bytes if tokens is not None and tokens.where == "memory" else 0)
    # Features as computed, by content, and in order; large ones are in files.
    features = 3 * rows if rows < LARGE_ARRAY else 2 * LARGEST_FEATURE_FILE
    return measured.base + RECORD_BYTES * work.learned + max(training, features)


def disk(work: Work, measured: Measurements, model: int, tokens: TokenPlan | None) -> int:
    """Return the peak size of the run's folder, while it holds cached tokens; `model` are the bytes of each round."""
    rounds, row = work.rounds, FEATURE_BYTES * work.width
    pixels = round(work.learned * measured.stored)
    features = (rounds + 1) * work.learned * row + 2 * work.rest * row  # in the cache and in the run
    page = min(pixels, report.LARGEST_REPORT)  # its thumbnails are smaller than the pixels
    cached = tokens.bytes if tokens is not None and tokens.where == "file" else 0
    return pixels + features + rounds * model + page + (work.learned + work.rest) * TABLE_BYTES + cached


def seconds(order: Sequence[str], work: Work, measured: Measurements, model: int) -> dict[str, float]:
    """Return the time of each stage, in this order; `model` are the bytes that each round of training saves.

    Clusters are found twice, the second time to see how stable they are, and on the features of all rounds of training.
    Between rounds, categories are counted: each time on new features, with two estimates of k, and with clusters for
    that k and for another.
    """
    n, raw = work.learned, work.learned * measured.view
    again = 0.0 if work.kept else raw  # other features of the same images
    size = n * work.k * work.width * (2 if work.counts else 1)  # features of contrast beside those of a classifier
    if work.on_gpu:
        k, clusters = (fixed + size * rate for fixed, rate in (K_SECONDS, CLUSTER_SECONDS))
    else:
        k, clusters = (size * rate * 2 / measured.threads for rate in (K_SECONDS_ON_CPU, CLUSTER_SECONDS_ON_CPU))
    compare = 0.0 if work.on_gpu or not work.counts else COMPARE_SECONDS_ON_CPU * 2 / measured.threads
    saved = work.rounds * model * SAVE_SECONDS if work.epochs else 0.0
    each = {
        "pixels": n * measured.decode,
        "check": n * CHECK_SECONDS,
        "learn": n * compare
        + work.through_trunk * measured.crop
        + work.steps * measured.step
        + work.on_gpu * work.epochs * EPOCH_SECONDS
        + saved
        + (raw if work.counts else 0.0)
        + work.counts * (again + 2 * (k + clusters))
        + work.pilot * again,
        "features": again,
        "k": work.estimates_k * k + (raw if order.index("k") < order.index("learn") else 0.0),
        "clusters": work.clusters * (2 + work.counts) * clusters,
        "rest": work.rest * max(measured.decode, measured.view),  # images are read while others are in the network
        "report": seconds_to_report(n + work.rest),
    }
    return {stage: round(each[stage], 3) for stage in order}


def seconds_to_report(images: int) -> float:
    fixed, each = REPORT_SECONDS
    return fixed + each * min(images, report.NAMED_IMAGES)
