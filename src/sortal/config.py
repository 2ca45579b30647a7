"""The settings of each stage: frozen records that are checked when they are made and saved as they are."""

import sys
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from sortal.errors import InputError, quoted

Auto = Literal["auto"]
AUTO: Auto = "auto"
Precision = Literal["auto", "bf16", "float32"]
Output = Literal["bottleneck", "prototypes"]
MethodName = Literal["gcd", "kmeans"]
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
        if rule.kind is float:  # 1 and 1.0 are one setting
            object.__setattr__(settings, each.name, float(value))


@dataclass(frozen=True, kw_only=True)
class Training:
    """How any method is trained; the defaults are the paper's, but for `views`.

    `batch_size` counts images over all processes; each gives two views. `views` is how many views of an image the
    frozen trunk sees, once; "auto" takes the default where it fits the budget, and None computes new views in every
    epoch. `chunks` cuts a batch into parts that go through the network one after the other, for less memory and the
    same result; where memory runs out it is doubled.
    """

    epochs: int = _setting(200, kind=int, least=0)
    batch_size: int = _setting(128, kind=int, least=1)
    lr: float = _setting(0.1, above=0)
    final_lr: float = _setting(1e-3, least=0, most=1)  # where the cosine ends, as a fraction of lr
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
    views: int | Auto | None = _setting(AUTO, kind=int, least=2, words=(AUTO, None))
    seed: int = _setting(0, kind=int, least=0, most=2**31 - 1)
    k_max: int = _setting(1000, kind=int, least=2)
    n_init: int = _setting(20, kind=int, least=1)
    held_out: float = _setting(0.2, least=0, most=0.5)
    unsure_below: float = _setting(0.5, least=0, most=1)

    def __post_init__(self) -> None:
        _check(self)


# What the small network learns tiny images with, from scratch (benchmarks/digits.py): a temperature at which unknown
# classes are pushed apart, and no mirrored digits.
TINY_TRAINING = Training(epochs=40, lr=0.05, flip=False, precision="float32")
TINY_CONTRAST = Contrast(temperature=0.3, hidden=256)
