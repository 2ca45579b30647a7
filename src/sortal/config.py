"""The settings of each stage: frozen records that are checked when they are made and saved as they are."""

import sys
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from sortal.errors import InputError, quoted

Auto = Literal["auto"]
AUTO: Auto = "auto"
Precision = Literal["auto", "bf16", "float32"]
Output = Literal["bottleneck", "prototypes"]
MethodName = Literal["gcd", "kmeans", "rankstats", "simgcd", "uno"]
Schedule = Literal["cosine", "step"]
Clustering = Literal["semi-supervised", "kmeans", "head"]
CLASSIFIERS: tuple[MethodName, ...] = ("rankstats", "simgcd", "uno")  # methods that train a head of k outputs
BACKBONE = "vit_base_patch16_224.dino"  # the paper's
CONVNET = "convnet"  # the small network's name


@dataclass(frozen=True)
class Rule:
    """What a setting must be: a number between two bounds, one of some words, or any text."""

    kind: type = float
    least: float | None = None
    above: float | None = None
    most: float | None = None
    words: tuple[Any, ...] = ()
    text: bool = False

    def holds(self, value: Any) -> bool:
        if any(type(value) is type(word) and value == word for word in self.words):
            return True
        if self.text:
            return isinstance(value, str) and value != ""
        if self.kind not in (int, float):
            return False
        if not isinstance(value, (int, float) if self.kind is float else int) or isinstance(value, bool):
            return False
        return (
            abs(value) <= sys.float_info.max  # also not where it is no number
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
        )

    def __str__(self) -> str:
        bounds = [
            f"{word} {bound}"
            for word, bound in (("of at least", self.least), ("above", self.above), ("at most", self.most))
            if bound is not None
        ]
        number = f"a {'whole ' if self.kind is int else ''}number {' and '.join(bounds)}" if bounds else ""
        return " or ".join([*([number] if number else []), *(["text"] if self.text else []), *map(repr, self.words)])


def _setting(default: Any, **rule: Any) -> Any:
    return field(default=default, metadata={"rule": Rule(**rule)})


def _check(settings: Any) -> None:
    for each in fields(settings):
        rule, value = each.metadata["rule"], getattr(settings, each.name)
        if not rule.holds(value):
            raise InputError(f"{each.name} must be {rule}, got {quoted(value)}.")
        if rule.kind is float and not isinstance(value, str):  # 1 and 1.0 are one setting
            object.__setattr__(settings, each.name, float(value))


@dataclass(frozen=True, kw_only=True)
class Training:
    """How any method is trained; the defaults are the paper's, but for `views`.

    `batch_size` counts images over all processes; each gives two views. `views` is how many views of an image the
    frozen trunk sees, once; "auto" takes the default where it fits the budget, and None computes new views in every
    epoch. `chunks` cuts a batch into parts that go through the network one after the other, for less memory and the
    same result; where memory runs out it is doubled. Times are shares of the epochs, so that shorter training is the
    same in short.
    """

    epochs: int = _setting(200, kind=int, least=0)
    batch_size: int = _setting(128, kind=int, least=1)
    lr: float = _setting(0.1, above=0)
    schedule: Schedule = _setting("cosine", kind=str, words=get_args(Schedule))
    final_lr: float = _setting(1e-3, least=0, most=1)  # where the cosine ends, or what the step leaves, of lr
    warmup: float = _setting(0.0, least=0, most=1)  # before it, lr rises in a line from final_lr · lr
    drop_at: float = _setting(0.85, least=0, most=1)  # where the step is
    momentum: float = _setting(0.9, least=0, most=1)
    weight_decay: float = _setting(5e-5, least=0)
    views: int | Auto | None = _setting(AUTO, kind=int, least=2, words=(AUTO, None))
    flip: bool = _setting(True, kind=bool, words=(True, False))
    balanced: bool = _setting(True, kind=bool, words=(True, False))  # half of a batch labelled, in expectation
    validate_every: int = _setting(1, kind=int, least=1)  # epochs
    chunks: int = _setting(1, kind=int, least=1)
    seed: int = _setting(0, kind=int, least=0, most=2**32 - 1)
    precision: Precision = _setting(AUTO, kind=str, words=get_args(Precision))
    compile: bool | Auto = _setting(AUTO, kind=bool, words=(AUTO, True, False))

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """The paper's two losses and the head they are taken on."""

    temperature: float = _setting(1.0, least=1e-3)  # of the unsupervised loss
    supervised_temperature: float = _setting(0.07, least=1e-3)
    supervised_weight: float = _setting(0.35, least=0, most=1)  # λ; the unsupervised loss has 1 − λ
    hidden: int = _setting(2048, kind=int, least=1)
    bottleneck: int = _setting(256, kind=int, least=1)
    output: Output = _setting("bottleneck", kind=str, words=get_args(Output))  # "prototypes" is the paper's
    prototypes: int = _setting(65_536, kind=int, least=1)

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """RankStats+ (after Han et al., ICLR 2020): which images go together is told by their largest features."""

    top: int = _setting(5, kind=int, least=1)  # features whose set must be the same
    consistency: float = _setting(50.0, least=0)  # ω: the weight of the two views' agreement, when it has risen
    ramp: float = _setting(0.75, above=0, most=1)  # the share of training over which it rises; 150 of 200 epochs

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, kw_only=True)
class Swaps:
    """UNO+ (after Fini et al., ICCV 2021): each view is told by the other what it is, in even shares.

    `queue` is how many recent unlabelled views take part in sharing out; "auto" is four for each category, or none
    where half a batch is as many.
    """

    temperature: float = _setting(0.1, least=1e-3)
    epsilon: float = _setting(0.05, least=1e-3)  # how soft the shares are
    iterations: int = _setting(3, kind=int, least=1)
    queue: int | Auto = _setting(AUTO, kind=int, least=0, words=(AUTO,))
    heads: int = _setting(1, kind=int, least=1)
    overclustering: int = _setting(0, kind=int, least=0)  # heads with so many times the new categories beside; 0: none

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, kw_only=True)
class Distillation:
    """SimGCD (Wen et al., ICCV 2023): the losses of `contrast`, and a classifier that learns from its other view."""

    student_temperature: float = _setting(0.1, least=1e-3)
    first_teacher_temperature: float = _setting(0.07, least=1e-3)
    teacher_temperature: float = _setting(0.04, least=1e-3)
    sharpening: float = _setting(0.15, above=0, most=1)  # the share of training until the second; 30 of 200 epochs
    entropy_weight: float = _setting(2.0, least=0)  # of the entropy of the mean prediction, which is made large
    supervised_weight: float = _setting(0.35, least=0, most=1)  # λ, of both supervised losses
    temperature: float = _setting(1.0, least=1e-3)  # of the unsupervised contrastive loss
    supervised_temperature: float = _setting(0.07, least=1e-3)
    hidden: int = _setting(2048, kind=int, least=1)
    bottleneck: int = _setting(256, kind=int, least=1)

    def __post_init__(self) -> None:
        _check(self)


Losses = Contrast | Ranks | Swaps | Distillation
LOSSES: dict[str, type[Losses]] = {"gcd": Contrast, "rankstats": Ranks, "simgcd": Distillation, "uno": Swaps}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a method learns and sorts: everything that is not the data.

    `clustering` says what puts images into categories: k-means, semi-supervised or plain, or the head that was
    trained. `estimate_on` says on which features k is estimated, where it is not given: those of the backbone as it
    came, by the paper's rule, or the learned ones. `select` keeps the epoch that is best on validation images, where
    there are any; else the last.
    """

    method: MethodName
    training: Training
    losses: Losses | None  # None: nothing is learned
    clustering: Clustering
    estimate_on: Literal["raw", "learned"]
    select: bool = False

    def __post_init__(self) -> None:
        for name, words in (
            ("method", get_args(MethodName)),
            ("clustering", get_args(Clustering)),
            ("estimate_on", ("raw", "learned")),
        ):
            if getattr(self, name) not in words:
                raise InputError(f"{name} must be {Rule(kind=str, words=words)}, got {quoted(getattr(self, name))}.")
        if (self.losses is None) != (self.method == "kmeans") or not isinstance(
            self.losses, LOSSES.get(self.method, type(None))
        ):
            raise InputError(f"The losses of {self.method} must be {_name_of(self.method)}, got {self.losses!r}.")
        if (self.clustering == "head") != (self.method in CLASSIFIERS):
            raise InputError(f"clustering must be 'head' for {', '.join(CLASSIFIERS)} alone, got {self.clustering!r}.")
        if self.method in CLASSIFIERS and self.estimate_on != "raw":
            raise InputError(f"k must be known before {self.method} learns: estimate_on must be 'raw'.")
        if self.method in CLASSIFIERS and not self.training.epochs:
            raise InputError(f"epochs must be at least 1 for {self.method}, whose classifier must be trained, got 0.")

    @property
    def learns(self) -> bool:
        return self.losses is not None and self.training.epochs > 0


def _name_of(method: str) -> str:
    return LOSSES[method].__name__ if method in LOSSES else "None"


@dataclass(frozen=True, kw_only=True)
class Discovery:
    """How a collection is sorted. "auto" is what suits the data and the machine, and what that is gets said.

    `method` "kmeans" takes the backbone's features as they are. `held_out` is the share of the labelled images whose
    labels are kept from learning and clustering, to calibrate confidence on; `unsure_below` the confidence below
    which an image is unsure.
    """

    k: int | Auto = _setting(AUTO, kind=int, least=1, words=(AUTO,))
    method: MethodName = _setting("gcd", kind=str, words=get_args(MethodName))
    backbone: str = _setting(BACKBONE, kind=str, text=True)
    weights: str | None = _setting(None, kind=str, text=True, words=(None,))
    epochs: int | Auto = _setting(AUTO, kind=int, least=0, words=(AUTO,))
    lr: float | Auto = _setting(AUTO, above=0, words=(AUTO,))
    views: int | Auto | None = _setting(AUTO, kind=int, least=2, words=(AUTO, None))
    seed: int = _setting(0, kind=int, least=0, most=2**31 - 1)
    k_max: int = _setting(1000, kind=int, least=2)
    n_init: int = _setting(20, kind=int, least=1)
    held_out: float = _setting(0.2, least=0, most=0.5)
    unsure_below: float = _setting(0.5, least=0, most=1)

    def __post_init__(self) -> None:
        _check(self)
        if self.method in CLASSIFIERS and self.epochs == 0:
            raise InputError(f"epochs must be at least 1 for {self.method}, whose classifier must be trained, got 0.")


# What each method is trained with; docs/methods tells where from.
TRAININGS: dict[str, Training] = {
    "gcd": Training(),
    "kmeans": Training(),
    "rankstats": Training(schedule="step", final_lr=0.1, weight_decay=1e-4),
    "simgcd": Training(),
    "uno": Training(warmup=0.05, final_lr=2.5e-3, weight_decay=1.5e-4),
}
# What the small network learns tiny images with, from scratch (benchmarks/digits.py): a temperature at which unknown
# classes are pushed apart, and no mirrored digits.
TINY: dict[str, Any] = {"epochs": 40, "lr": 0.05, "flip": False, "precision": "float32"}
TINY_TRAINING = Training(**TINY)
TINY_CONTRAST = Contrast(temperature=0.3, hidden=256)
TINY_DISTILLATION = Distillation(temperature=0.3, hidden=256)
