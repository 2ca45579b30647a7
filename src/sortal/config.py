"""Settings: frozen records, each setting declared once.

A record checks its values when it is made. The command line takes its options, defaults and help from these fields,
`discover` checks the names of its keyword arguments against them, and a run saves them as JSON.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from operator import ge, gt, le
from types import NoneType, UnionType
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints

from sortal.errors import InputError, quoted

Auto = Literal["auto"]
AUTO: Auto = "auto"
LIVE: Literal["live"] = "live"  # new views every epoch
Precision = Literal["auto", "bf16", "float32"]
MethodName = Literal["gcd", "kmeans", "rankstats", "simgcd", "sortal", "uno"]
Granularity = Literal["finer", "usual", "coarser"]
Clustering = Literal["semi-supervised", "kmeans", "head"]
EstimateOn = Literal["raw", "learned"]
Unlisted = Literal["error", "unlabelled", "ignore"]
ExtraColumns = Literal["error", "ignore"]
FoldersMean = Literal["classes", "reviewed", "ignore"]
Placeholders = Literal["error", "unlabelled", "classes"]
CLASSIFIERS: tuple[MethodName, ...] = ("rankstats", "simgcd", "uno")  # methods that train a head of k outputs
BACKBONE = "vit_base_patch16_224.dino"  # the paper's
SMALLER = "vit_small_patch16_224.dino"  # about four times as fast
CONVNET = "convnet"  # the small network's name
VIEWS = 8  # cached views of an image for views="auto", where they fit
MAX_PIXELS = 80_000_000  # larger images are refused before decoding: a 12 KB file can claim more
UNLABELLED_FOLDER = "unlabelled"  # the folder of images without a label
BOUNDS = {"least": (ge, "of at least"), "above": (gt, "above"), "most": (le, "at most")}  # of numbers, also in words


@dataclass(frozen=True)
class Rule:
    """The values a setting may take: a number within bounds, one of some words, or any text."""

    number: type | None  # int or float
    text: bool
    words: tuple[Any, ...]
    bounds: Mapping[str, float]  # by name in BOUNDS

    @classmethod
    def of(cls, hint: Any, **bounds: float) -> Self:
        """Derive the rule from a type such as `int | Literal["auto"]`."""
        parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        words: list[Any] = []
        for part in parts:
            words += (True, False) if part is bool else (None,) if part is NoneType else get_args(part)
        number = next((part for part in parts if part in (int, float)), None)
        return cls(number, str in parts, tuple(words), bounds)

    def holds(self, value: Any) -> bool:
        if any(type(value) is type(word) and value == word for word in self.words):
            return True
        if self.text:
            return isinstance(value, str) and value != ""
        numbers = (int, float) if self.number is float else (int,)
        if self.number is None or isinstance(value, bool) or not isinstance(value, numbers):
            return False
        finite = bool(abs(value) <= sys.float_info.max)  # false for NaN, too
        return finite and all(BOUNDS[name][0](value, bound) for name, bound in self.bounds.items())

    def __str__(self) -> str:
        kinds = ["text"] if self.text else []
        if self.number is not None:
            limits = " and ".join(f"{BOUNDS[name][1]} {bound}" for name, bound in self.bounds.items())
            kinds.append(f"a {'whole ' if self.number is int else ''}number {limits}".rstrip())
        *others, last = [*kinds, *map(repr, self.words)]
        return f"{', '.join(others)} or {last}" if others else last


def rules_of(record: type["SettingsGroup"]) -> Mapping[str, Rule]:
    """Return the rule of each setting of a record, from its type and bounds."""
    hints = get_type_hints(record)
    return {each.name: Rule.of(hints[each.name], **each.metadata["bounds"]) for each in fields(record)}


def _setting(default: Any, help: str = "", **bounds: float) -> Any:
    return field(default=default, metadata={"help": help, "bounds": bounds})


@dataclass(frozen=True, kw_only=True)
class SettingsGroup:
    """Base of every record: checks each value against its rule."""

    def __post_init__(self) -> None:
        for name, rule in rules_of(type(self)).items():
            value = getattr(self, name)
            if rule.text and isinstance(value, os.PathLike):
                value = os.fspath(value)
            if not rule.holds(value):
                raise InputError(f"{name} must be {rule}, got {quoted(value)}.")
            if rule.number is float and not isinstance(value, str | NoneType):  # 1 and 1.0 are one setting
                value = float(value)
            object.__setattr__(self, name, value)


def from_keywords(given: Mapping[str, Any], *records: type[SettingsGroup]) -> tuple[Any, ...]:
    """Make one of each record from keyword arguments, and refuse a name that none of them declares."""
    home = {each.name: record for record in records for each in fields(record)}
    for name in given:
        if name not in home:
            from difflib import get_close_matches

            near = get_close_matches(name, home)
            hint = f"Did you mean {near[0]!r}?" if near else f"The settings are {', '.join(home)}."
            raise InputError(f"{quoted(name)} is not a setting. {hint}")
    return tuple(record(**{name: value for name, value in given.items() if home[name] is record}) for record in records)


def describe(*records: type[SettingsGroup]) -> str:
    """Return a line for each setting: its name, default and meaning."""
    return "\n".join(f"{each.name} = {each.default!r}: {each.metadata['help']}" for r in records for each in fields(r))


@dataclass(frozen=True, kw_only=True)
class Discovery(SettingsGroup):
    """How a collection is sorted; "auto" chooses a value that suits the data and the machine, and reports it."""

    k: int | Auto = _setting(AUTO, "Number of classes, including the known ones; auto estimates it.", least=1)
    granularity: Granularity = _setting("usual", "finer or coarser categories than usual, without training again.")
    method: MethodName = _setting(
        "sortal",
        "sortal, gcd, rankstats, simgcd and uno train on the images; kmeans clusters the backbone's features as is.",
    )
    backbone: str = _setting(
        AUTO,
        "A vision transformer or ResNet from timm; convnet, a small network for tiny images; or a saved model.json. "
        "auto is the paper's ViT-B/16 with a GPU, and a ViT-S/16 without.",
    )
    weights: str | None = _setting(None, "File of the backbone's weights; downloaded from the hub by default.")
    epochs: int | Auto = _setting(AUTO, "Epochs to train for; auto suits the images and the machine.", least=0)
    lr: float | Auto = _setting(AUTO, "Learning rate; auto is the method's own. Lower it if training fails.", above=0)
    views: int | Literal["auto", "live"] = _setting(
        AUTO, "Augmented views cached per image; live computes new ones every epoch, which is slower.", least=2
    )
    seed: int = _setting(0, "Seed of every random choice.", least=0, most=2**31 - 1)
    k_max: int = _setting(1000, "Largest k the estimate considers.", least=2)
    n_init: int = _setting(20, "Restarts of k-means; the best result is used.", least=1)
    held_out: float = _setting(
        0.2, "Share of the labelled images held out from training, to calibrate confidence.", least=0, most=0.5
    )
    learn_on: int | None = _setting(
        None,
        "Images to learn on, a random sample; the others are sorted by prediction, and their pixels are not stored.",
        least=2,
    )
    unsure_below: float = _setting(0.5, "Confidence below which an image is unsure.", least=0, most=1)
    max_pixels: int = _setting(MAX_PIXELS, "Leave out images with more pixels.", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_epochs(self.method, self.epochs)


@dataclass(frozen=True, kw_only=True)
class Reading(SettingsGroup):
    """How the labels of a folder of images are read."""

    folders: FoldersMean = _setting(
        "classes",
        "Whether each folder is a class, folders are ignored, or, in an export, only what was reviewed is labelled.",
    )
    unlabelled: str = _setting(UNLABELLED_FOLDER, "Name of the folder whose images have no label.")
    unlisted: Unlisted = _setting("error", "How to treat images missing from the table.")
    extra_columns: ExtraColumns = _setting("error", "How to treat other columns of the table.")
    placeholders: Placeholders = _setting("error", 'How to treat labels such as "unknown", "none", "n/a" or "?".')


@dataclass(frozen=True, kw_only=True)
class Overrides(SettingsGroup):
    """Settings of a benchmark that replace a preset's; None keeps the preset's own."""

    k: int | Literal["true", "auto"] | None = _setting(
        None, "Number of classes: true, auto (estimated on the raw features) or a number.", least=1
    )
    backbone: str | None = _setting(None, "As in sortal discover; the paper's by default.")
    weights: str | None = _setting(
        None, "File of the backbone's weights; goes to the presets that require one, if any of them does."
    )
    epochs: int | None = _setting(None, "Epochs to train for; 200 by default.", least=0)
    lr: float | None = _setting(None, "Learning rate; the method's own by default.", above=0)
    views: int | Literal["auto", "live"] | None = _setting(
        None, "Augmented views cached per image, or live; auto without a preset.", least=2
    )


def _check_epochs(method: str, epochs: int | Auto) -> None:
    if method in CLASSIFIERS and epochs == 0:
        raise InputError(f"epochs must be at least 1 for {method}, which trains a classifier, got 0.")


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

    epochs: int = _setting(200, least=0)
    batch_size: int = _setting(128, least=1)
    lr: float = _setting(0.1, above=0)
    schedule: Literal["cosine", "step"] = _setting("cosine")
    final_lr: float = _setting(1e-3, least=0, most=1)  # fraction of lr at the end of the cosine or after the step
    warmup: float = _setting(0.0, least=0, most=1)  # rises linearly from final_lr · lr
    warmup_by: Literal["epoch", "step"] = _setting("epoch")  # how often it rises
    drop_at: float = _setting(0.85, least=0, most=1)  # time of the step
    momentum: float = _setting(0.9, least=0, most=1)
    weight_decay: float = _setting(5e-5, least=0)
    decay_biases: bool = _setting(True)
    clip: float | None = _setting(None, above=0)
    views: int | Auto | None = _setting(AUTO, least=2)
    flip: bool = _setting(True)
    patches: float = _setting(1.0, above=0, most=1)  # share of the patches of a cached view that a step sees
    balanced: bool = _setting(True)  # half of each batch is labelled, in expectation
    repeats: float | None = _setting(None, least=1)  # of a labelled image for each of another, at most, if balanced
    validate_every: int = _setting(1, least=1)  # epochs
    chunks: int = _setting(1, least=1)
    seed: int = _setting(0, least=0, most=2**32 - 1)
    precision: Precision = _setting(AUTO)
    compile: bool | Auto = _setting(AUTO)


@dataclass(frozen=True, kw_only=True)
class Contrast(SettingsGroup):
    """The paper's two contrastive losses and their projection head."""

    temperature: float = _setting(1.0, least=1e-3)  # of the unsupervised loss
    supervised_temperature: float = _setting(0.07, least=1e-3)
    supervised_weight: float = _setting(0.35, least=0, most=1)  # λ; the unsupervised loss has 1 − λ
    hidden: int = _setting(2048, least=1)
    bottleneck: int = _setting(256, least=1)
    output: Literal["bottleneck", "prototypes"] = _setting("bottleneck")  # "prototypes" is the paper's
    prototypes: int = _setting(65_536, least=1)


@dataclass(frozen=True, kw_only=True)
class Ranks(SettingsGroup):
    """RankStats+ (after Han et al., ICLR 2020): images with the same largest features form a pair."""

    top: int = _setting(5, least=1)  # features whose set must agree
    consistency: float = _setting(50.0, least=0)  # ω: final weight of the two views' agreement
    ramp: float = _setting(0.75, above=0, most=1)  # fraction of training over which ω rises; 150 of 200 epochs


@dataclass(frozen=True, kw_only=True)
class Swaps(SettingsGroup):
    """UNO+ (after Fini et al., ICCV 2021): each view predicts the other's balanced assignment.

    `queue` is the number of recent unlabelled views that take part in the balancing; "auto" is four per category, or 0
    if half a batch has as many.
    """

    temperature: float = _setting(0.1, least=1e-3)
    epsilon: float = _setting(0.05, least=1e-3)  # softness of the assignment
    iterations: int = _setting(3, least=1)
    queue: int | Auto = _setting(AUTO, least=0)
    heads: int = _setting(1, least=1)
    overclustering: int = _setting(0, least=0)  # extra heads with this many times the new categories; 0: no such heads


@dataclass(frozen=True, kw_only=True)
class Distillation(SettingsGroup):
    """SimGCD (Wen et al., ICCV 2023): the losses of `Contrast`, and a classifier distilled from the other view."""

    student_temperature: float = _setting(0.1, least=1e-3)
    first_teacher_temperature: float = _setting(0.07, least=1e-3)
    teacher_temperature: float = _setting(0.04, least=1e-3)
    sharpening: float = _setting(0.15, above=0, most=1)  # fraction of training between the two; 30 of 200 epochs
    entropy_weight: float = _setting(2.0, least=0)  # of the mean prediction's entropy, which is maximised
    supervised_weight: float = _setting(0.35, least=0, most=1)  # λ, of both supervised losses
    temperature: float = _setting(1.0, least=1e-3)  # of the unsupervised contrastive loss
    supervised_temperature: float = _setting(0.07, least=1e-3)
    hidden: int = _setting(2048, least=1)
    bottleneck: int = _setting(256, least=1)


@dataclass(frozen=True, kw_only=True)
class Rounds(SettingsGroup):
    """Sortal's own method: contrastive learning, then classifiers whose categories and their sizes were counted.

    Trains with the losses of `Contrast` first, then with those of `Distillation`: a classifier for the number of
    categories counted, and others for `ratio` times as many or fewer. The likeliest of them is trained further.
    """

    contrastive: float = _setting(0.4, above=0, most=0.9)  # fraction of training of contrast, at most 40 epochs
    refinement: float = _setting(0.62, above=0, most=0.9)  # fraction of the rest that the last round takes
    ratio: float = _setting(1.2, least=1)  # between the numbers of categories tried; 1 tries only the one counted
    restart: bool = _setting(True)  # whether classifiers start from the pretrained weights again
    shrinkage: float = _setting(0.5, least=0, most=1)  # of the counted sizes towards equal ones, on a log scale
    prior_weight: float = _setting(1.0, least=0)  # of the divergence of the mean prediction from the counted shares
    student_temperature: float = _setting(0.1, least=1e-3)
    first_teacher_temperature: float = _setting(0.07, least=1e-3)
    teacher_temperature: float = _setting(0.04, least=1e-3)
    sharpening: float = _setting(0.15, above=0, most=1)  # fraction of a round between the two
    supervised_weight: float = _setting(0.35, least=0, most=1)  # λ, of both supervised losses
    temperature: float = _setting(0.3, least=1e-3)  # of the unsupervised contrastive loss
    supervised_temperature: float = _setting(0.07, least=1e-3)
    hidden: int = _setting(2048, least=1)
    bottleneck: int = _setting(256, least=1)

    def contrast(self) -> Contrast:
        """Return the losses of the rounds without a classifier."""
        same = ("temperature", "supervised_temperature", "supervised_weight", "hidden", "bottleneck")
        return Contrast(**{name: getattr(self, name) for name in same})

    def distillation(self) -> Distillation:
        """Return the losses of the other rounds."""
        same = {each.name for each in fields(Distillation)} & {each.name for each in fields(Rounds)}
        return Distillation(entropy_weight=self.prior_weight, **{name: getattr(self, name) for name in same})


Losses = Contrast | Ranks | Swaps | Distillation | Rounds
LOSSES: dict[str, type[Losses]] = {
    "gcd": Contrast,
    "rankstats": Ranks,
    "simgcd": Distillation,
    "sortal": Rounds,
    "uno": Swaps,
}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a method trains and sorts: everything except the data.

    `clustering` assigns images to categories: k-means, semi-supervised or plain, or the trained head. `estimate_on` is
    the features k is estimated on if it is not given: the pretrained backbone's, by the paper's rule, or the trained
    ones. `neighbours` is how many nearest images each feature is averaged with before clustering. `select` keeps the
    epoch that is best on the validation images, if there are any, instead of the last.
    """

    method: MethodName
    training: Training
    losses: Losses | None  # None: nothing is trained
    clustering: Clustering
    estimate_on: EstimateOn
    neighbours: int = 0
    select: bool = False

    def __post_init__(self) -> None:
        for name, hint in (("method", MethodName), ("clustering", Clustering), ("estimate_on", EstimateOn)):
            rule, value = Rule.of(hint), getattr(self, name)
            if not rule.holds(value):
                raise InputError(f"{name} must be {rule}, got {quoted(value)}.")
        losses = LOSSES.get(self.method, NoneType)
        if not isinstance(self.losses, losses):
            expected = "None" if losses is NoneType else losses.__name__
            raise InputError(f"The losses of {self.method} must be {expected}, got {self.losses!r}.")
        if (self.clustering == "head") != (self.method in CLASSIFIERS):
            raise InputError(
                f"clustering must be 'head' for {', '.join(CLASSIFIERS)} and for no other method, "
                f"got {self.clustering!r} for {self.method}."
            )
        if self.method in CLASSIFIERS and self.estimate_on != "raw":
            raise InputError(
                f"estimate_on must be 'raw' for {self.method}, which needs k before training, got {self.estimate_on!r}."
            )
        if self.select and isinstance(self.losses, Rounds):
            raise InputError(
                f"select must be False for {self.method}, which keeps the last epoch of each round, got True."
            )
        _check_epochs(self.method, self.training.epochs)

    @property
    def learns(self) -> bool:
        return self.losses is not None and self.training.epochs > 0


# How each method is trained; docs/methods gives the sources.
TRAININGS: dict[str, Training] = {
    **dict.fromkeys(("gcd", "kmeans"), Training()),
    "simgcd": Training(decay_biases=False),
    "sortal": Training(epochs=200, patches=0.5, repeats=8.0),
    "rankstats": Training(schedule="step", final_lr=0.1, weight_decay=1e-4),
    "uno": Training(warmup=0.05, final_lr=2.5e-3, weight_decay=1.5e-4),
}
# What Sortal's own recipes change, lest the first steps at the full rate destroy pretrained features.
ROBUST: dict[str, Any] = {"clip": 1.0, "warmup": 0.05, "warmup_by": "step"}
# How the small network is trained from scratch on tiny images (benchmarks/digits.py): at a temperature that separates
# unknown classes, and without mirroring digits.
TINY_SETTINGS: dict[str, Any] = {"epochs": 40, "lr": 0.05, "flip": False, "precision": "float32"}
TINY_TRAINING = Training(**TINY_SETTINGS, **ROBUST)
TINY_CONTRAST = Contrast(temperature=0.3, hidden=256)
TINY_DISTILLATION = Distillation(temperature=0.3, hidden=256)
# Trained from random weights, so starting again would forget them.
TINY_ROUNDS = Rounds(refinement=0.5, ratio=1.0, restart=False, hidden=256)
