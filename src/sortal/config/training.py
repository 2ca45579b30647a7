"""How methods are trained: what all of them share, and the losses of Sortal's own."""

from dataclasses import dataclass, fields
from typing import Any, Literal

from sortal.config.rules import AUTO, Auto, SettingsGroup, option

Precision = Literal["auto", "bf16", "float32"]


@dataclass(frozen=True, kw_only=True)
class Training(SettingsGroup):
    """How any method is trained; the defaults are the paper's, except `views`.

    `batch_size` counts images over all processes; each gives two views. `views` is the number of views of an image the
    frozen trunk sees, once; "auto" takes the default if it fits the budget, and None computes new views every epoch.
    `chunks` splits a batch into parts that pass through the network one by one: less memory, and the same result
    but for rounding; it is doubled when memory runs out. Times are fractions of the epochs, so shorter training
    keeps its shape. `clip` is the largest norm of the gradient of all weights together; None does not limit it. Without
    `decay_biases`, biases and other one-dimensional weights do not decay.
    """

    epochs: int = option(200, least=0)
    batch_size: int = option(128, least=1)
    lr: float = option(0.1, above=0)
    schedule: Literal["cosine", "step"] = option("cosine")
    final_lr: float = option(1e-3, least=0, most=1)  # fraction of lr at the end of the cosine or after the step
    warmup: float = option(0.0, least=0, most=1)  # rises linearly from final_lr · lr
    warmup_by: Literal["epoch", "step"] = option("epoch")  # how often it rises
    drop_at: float = option(0.85, least=0, most=1)  # time of the step
    momentum: float = option(0.9, least=0, most=1)
    weight_decay: float = option(5e-5, least=0)
    decay_biases: bool = option(True)
    clip: float | None = option(None, above=0)
    views: int | Auto | None = option(AUTO, least=2)
    flip: bool = option(True)
    patches: float = option(1.0, above=0, most=1)  # share of the patches of a cached view that a step sees
    windows: bool = option(False)  # whether the trunk does without the others, too: views that cost and show less
    balanced: bool = option(True)  # half of each batch is labelled, in expectation
    repeats: float | None = option(None, least=1)  # of a labelled image for each of another, at most, if balanced
    validate_every: int = option(1, least=1)  # epochs
    chunks: int = option(1, least=1)
    seed: int = option(0, least=0, most=2**32 - 1)
    precision: Precision = option(AUTO)
    compile: bool | Auto = option(AUTO)


@dataclass(frozen=True, kw_only=True)
class Contrast(SettingsGroup):
    """The paper's two contrastive losses and their projection head."""

    temperature: float = option(1.0, least=1e-3)  # of the unsupervised loss
    supervised_temperature: float = option(0.07, least=1e-3)
    supervised_weight: float = option(0.35, least=0, most=1)  # λ; the unsupervised loss has 1 − λ
    hidden: int = option(2048, least=1)
    bottleneck: int = option(256, least=1)
    output: Literal["bottleneck", "prototypes"] = option("bottleneck")  # "prototypes" is the paper's
    prototypes: int = option(65_536, least=1)


@dataclass(frozen=True, kw_only=True)
class Ranks(SettingsGroup):
    """RankStats+ (after Han et al., ICLR 2020): images with the same largest features form a pair."""

    top: int = option(5, least=1)  # features whose set must agree
    consistency: float = option(50.0, least=0)  # ω: final weight of the two views' agreement
    ramp: float = option(0.75, above=0, most=1)  # fraction of training over which ω rises; 150 of 200 epochs


@dataclass(frozen=True, kw_only=True)
class Swaps(SettingsGroup):
    """UNO+ (after Fini et al., ICCV 2021): each view predicts the other's balanced assignment.

    `queue` is the number of recent unlabelled views that take part in the balancing; "auto" is four per category, or 0
    if half a batch has as many.
    """

    temperature: float = option(0.1, least=1e-3)
    epsilon: float = option(0.05, least=1e-3)  # softness of the assignment
    iterations: int = option(3, least=1)
    queue: int | Auto = option(AUTO, least=0)
    heads: int = option(1, least=1)
    overclustering: int = option(0, least=0)  # extra heads with this many times the new categories; 0: no such heads


@dataclass(frozen=True, kw_only=True)
class SelfDistillation(SettingsGroup):
    """A classifier that learns from labels, and from the sharpened prediction for the other view."""

    student_temperature: float = option(0.1, least=1e-3)
    first_teacher_temperature: float = option(0.07, least=1e-3)
    teacher_temperature: float = option(0.04, least=1e-3)
    sharpening: float = option(0.15, above=0, most=1)  # fraction of training between the two; 30 of 200 epochs
    entropy_weight: float = option(2.0, least=0)  # of the mean prediction's entropy, which is maximised
    supervised_weight: float = option(0.35, least=0, most=1)  # λ, of both supervised losses


@dataclass(frozen=True, kw_only=True)
class Distillation(SelfDistillation):
    """SimGCD (Wen et al., ICCV 2023): the losses of `Contrast`, and a classifier distilled from the other view."""

    temperature: float = option(1.0, least=1e-3)  # of the unsupervised contrastive loss
    supervised_temperature: float = option(0.07, least=1e-3)
    hidden: int = option(2048, least=1)
    bottleneck: int = option(256, least=1)


@dataclass(frozen=True, kw_only=True)
class Retention(Distillation):
    """LegoGCD (Cao et al., CVPR 2024): SimGCD that sharpens confident predictions of old classes."""

    retention_weight: float = option(2.0, least=0)
    retention_temperature: float = option(0.05, least=1e-3)  # of the predictions that are sharpened
    confidence: float = option(0.7, least=0, most=1)  # θ: of an unlabelled view, at least
    margin: float = option(0.4, least=0)  # weight of the logarithm of the mean prediction
    decay: float = option(0.999, least=0, most=1)  # of the moving average of the mean prediction, by step


@dataclass(frozen=True, kw_only=True)
class Reciprocity(SelfDistillation):
    """RLCD (Liu et al., ICML 2025): a second token and classifier for old classes, which teach the first ones."""

    supervised_temperature: float = option(0.1, least=1e-3)  # of the contrastive losses
    distinction_weight: float = option(0.5, least=0)  # w_d: of predictions that are distinct by class
    auxiliary_weight: float = option(0.5, least=0, most=1)  # of the second classifier's supervised losses
    exchange_weight: float = option(0.5, least=0)  # of what the second classifier teaches the first
    block_rate: float = option(1.0, above=0)  # factor of the learning rate of the trained blocks


@dataclass(frozen=True, kw_only=True)
class Debiasing(Distillation):
    """DebGCD (Liu and Han, ICLR 2025): SimGCD with a second classifier, and a detector of each old class."""

    debiased_weight: float = option(2.0, least=0)  # of the second classifier
    confidence: float = option(0.7, least=0, most=1)  # θ: of a prediction that the second classifier learns, at least
    pseudo_weight: float = option(0.5, least=0, most=1)  # of such predictions; labels have the rest
    detector_weight: float = option(0.005, least=0)
    ambiguity_weight: float = option(0.1, least=0)  # of the detector's entropy, which is minimised
    consistency_weight: float = option(1.0, least=0)  # of the detector's agreement on two views
    detector_layers: int = option(5, least=1)


@dataclass(frozen=True, kw_only=True)
class Rounds(SettingsGroup):
    """Sortal's own method: contrastive learning, then classifiers whose categories and their sizes were counted.

    Trains with the losses of `Contrast` first, then with those of `Distillation`: a classifier for the number of
    categories counted and, with a `ratio` above 1, others for so many times more or fewer. The likeliest of them is
    trained further.
    """

    contrastive: float = option(0.4, above=0, most=0.9)  # fraction of training of contrast, at most 40 epochs
    refinement: float = option(0.62, above=0, most=0.9)  # fraction of the rest that the last round takes, at least
    ratio: float = option(1.0, least=1)  # between the numbers of categories tried; 1 tries only the one counted
    restart: bool = option(True)  # whether classifiers start from the pretrained weights again
    shrinkage: float = option(0.5, least=0, most=1)  # of the counted sizes towards equal ones, on a log scale
    prior_weight: float = option(1.0, least=0)  # of the divergence of the mean prediction from the counted shares
    student_temperature: float = option(0.1, least=1e-3)
    first_teacher_temperature: float = option(0.07, least=1e-3)
    teacher_temperature: float = option(0.04, least=1e-3)
    sharpening: float = option(0.15, above=0, most=1)  # fraction of a round between the two
    supervised_weight: float = option(0.35, least=0, most=1)  # λ, of both supervised losses
    temperature: float = option(0.3, least=1e-3)  # of the unsupervised contrastive loss
    supervised_temperature: float = option(0.07, least=1e-3)
    hidden: int = option(2048, least=1)
    bottleneck: int = option(256, least=1)

    def contrast(self) -> Contrast:
        """Return the losses of the rounds without a classifier."""
        same = ("temperature", "supervised_temperature", "supervised_weight", "hidden", "bottleneck")
        return Contrast(**{name: getattr(self, name) for name in same})

    def distillation(self) -> Distillation:
        """Return the losses of the other rounds."""
        same = {each.name for each in fields(Distillation)} & {each.name for each in fields(Rounds)}
        return Distillation(entropy_weight=self.prior_weight, **{name: getattr(self, name) for name in same})


# What Sortal's own recipes change, lest the first steps at the full rate destroy pretrained features.
ROBUST: dict[str, Any] = {"clip": 1.0, "warmup": 0.05, "warmup_by": "step"}
# How the small network is trained from scratch on tiny images (benchmarks/digits.py): at a temperature that separates
# unknown classes, and without mirroring digits.
TINY_SETTINGS: dict[str, Any] = {"epochs": 40, "lr": 0.05, "flip": False, "precision": "float32"}
TINY_TRAINING = Training(**TINY_SETTINGS, **ROBUST)
TINY_CONTRAST = Contrast(temperature=0.3, hidden=256)
TINY_DISTILLATION = Distillation(temperature=0.3, hidden=256)
# Trained from random weights, so starting again would forget them.
TINY_ROUNDS = Rounds(refinement=0.5, restart=False, hidden=256)
# How the head on feature vectors is trained (benchmarks/vectors.py): on two cores, thousands of them take a minute.
VECTOR_SETTINGS: dict[str, Any] = {"epochs": 60, "lr": 0.1, "precision": "float32", "patches": 1.0}
VECTOR_CONTRAST = Contrast(temperature=0.3, hidden=256, bottleneck=128)
VECTOR_DISTILLATION = Distillation(temperature=0.3, hidden=256, bottleneck=128)
VECTOR_ROUNDS = Rounds(hidden=256, bottleneck=128)
