"""Settings: frozen records, each setting declared once.

A record checks its values when it is made. The command line takes its options, defaults and help from these fields,
`discover` checks the names of its keyword arguments against them, and a run saves them as JSON.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal

from sortal.config.methods import BUILT_IN, Clustering, registered, registration_of
from sortal.config.rules import AUTO, Auto, Rule, SettingsGroup, option
from sortal.config.training import Rounds, Training
from sortal.errors import InputError, quoted

LIVE: Literal["live"] = "live"  # new views every epoch
Granularity = Literal["finer", "usual", "coarser"]
Interpolation = Literal["bicubic", "bilinear"]
EstimateOn = Literal["raw", "learned"]
Unlisted = Literal["error", "unlabelled", "ignore"]
ExtraColumns = Literal["keep", "ignore", "error"]
GroupsHold = Literal["auto", "one", "several"]
FoldersMean = Literal["classes", "reviewed", "ignore"]
Placeholders = Literal["error", "unlabelled", "classes"]
Losses = Any  # of a method: the frozen dataclass that it registered
BACKBONE = "vit_base_patch16_224.dino"  # the paper's, and that of benchmarks
LARGER = "vit_base_patch14_dinov2.lvd142m"  # with a GPU
SMALLER = "vit_small_patch14_dinov2.lvd142m"  # without; about four times as fast
FASTER = "tf_efficientnet_lite0.in1k"  # several times as fast as that
HUB_PREFIX, OPEN_CLIP_PREFIX = "hf-hub:", "open_clip:"  # of names of networks that files describe
CONVNET = "convnet"  # the small network's name
VECTORS = "vectors"  # in place of a network's name, where features were given
VIEWS = 8  # cached views of an image for views="auto", where they fit
MAX_PIXELS = 80_000_000  # larger images are refused before decoding: a 12 KB file can claim more
UNLABELLED_FOLDER = "unlabelled"  # the folder of images without a label


@dataclass(frozen=True, kw_only=True)
class Discovery(SettingsGroup):
    """How a collection is sorted; "auto" chooses a value that suits the data and the machine, and reports it."""

    k: int | Literal["auto", "own"] = option(
        AUTO,
        "Number of classes, including the known ones; auto estimates it, own leaves it to a method that can.",
        least=1,
    )
    granularity: Granularity = option("usual", "finer or coarser categories than usual, without training again.")
    method: str = option(
        "sortal",
        "sortal, gcd, rankstats, simgcd, uno, legogcd, rlcd, debgcd, cms, selex and mgce train on the images; kmeans "
        "and umap-hdbscan cluster the backbone's features as is. Your own is FILE.py:CLASS or MODULE:CLASS.",
    )
    backbone: str = option(
        AUTO,
        "A network of timm; hf-hub:OWNER/NAME; open_clip:NAME/WEIGHTS; a folder of such a model; convnet, for tiny "
        "images; a saved model.json; or your own, FILE.py:NAME. auto is a DINOv2: ViT-B/14 with a GPU, or ViT-S/14.",
    )
    weights: str | None = option(None, "File of the backbone's weights; downloaded from the hub by default.")
    image_size: int | Auto = option(
        AUTO,
        "Pixels of the width and height that the network sees; auto: its own, or 168 without a GPU. Fewer are quicker.",
        least=8,
    )
    epochs: int | Auto = option(AUTO, "Epochs to train for; auto suits the images and the machine.", least=0)
    lr: float | Auto = option(AUTO, "Learning rate; auto is the method's own. Lower it if training fails.", above=0)
    views: int | Literal["auto", "live"] = option(
        AUTO, "Augmented views cached per image; live computes new ones every epoch, which is slower.", least=2
    )
    trained: int | Auto = option(
        AUTO, "Last blocks of the backbone to train; auto is the method's own, mostly 1, and all of convnet.", least=1
    )
    set: tuple[str, ...] = option(
        (), "Another setting, such as training.batch_size=64; --help --method NAME lists a method's. May be repeated."
    )
    seed: int = option(0, "Seed of every random choice.", least=0, most=2**31 - 1)
    k_max: int | Auto = option(
        AUTO,
        "Largest k the estimate considers; auto is 1000, or four times the labelled classes if that is more.",
        least=2,
    )
    n_init: int = option(20, "Restarts of k-means; the best result is used.", least=1)
    held_out: float = option(
        0.2, "Share of the labelled images held out from training, to calibrate confidence.", least=0, most=0.5
    )
    learn_on: int | None = option(
        None,
        "Images to learn on, a random sample; the others are sorted by prediction, and their pixels are not stored.",
        least=2,
    )
    groups: GroupsHold = option(
        AUTO,
        "Whether images of a group are of one class, as of a specimen, or may be of several, as of a site; auto takes "
        "several if the labels of more than a tenth of them differ.",
    )
    unsure_below: float = option(0.5, "Confidence below which an image is unsure.", least=0, most=1)
    max_pixels: int = option(MAX_PIXELS, "Leave out images with more pixels.", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_epochs(self.method, self.epochs)


@dataclass(frozen=True, kw_only=True)
class Reading(SettingsGroup):
    """How the labels of a folder of images are read."""

    folders: FoldersMean = option(
        "classes",
        "Whether each folder is a class, folders are ignored, or, in an export, only what was reviewed is labelled.",
    )
    unlabelled: str = option(UNLABELLED_FOLDER, "Name of the folder whose images have no label.")
    unlisted: Unlisted = option("error", "How to treat images missing from the table.")
    extra_columns: ExtraColumns = option("keep", "How to treat other columns of the table.")
    placeholders: Placeholders = option("error", 'How to treat labels such as "unknown", "none", "n/a" or "?".')
    exif: bool = option(False, "Keep when, with which camera and where images were taken, from their EXIF data.")
    group_by_time: float | None = option(
        None, "Group images that one camera took within so many seconds of the one before, by their EXIF data.", above=0
    )


@dataclass(frozen=True, kw_only=True)
class Overrides(SettingsGroup):
    """Settings of a benchmark that replace a preset's; None keeps the preset's own."""

    k: int | Literal["true", "auto", "own"] | None = option(
        None, "Number of classes: true, auto (estimated on the raw features), own (the method's) or a number.", least=1
    )
    backbone: str | None = option(None, "As in sortal discover; the paper's by default.")
    weights: str | None = option(
        None, "File of the backbone's weights; goes to the presets that require one, if any of them does."
    )
    epochs: int | None = option(None, "Epochs to train for; 200 by default.", least=0)
    lr: float | None = option(None, "Learning rate; the method's own by default.", above=0)
    views: int | Literal["auto", "live"] | None = option(
        None, "Augmented views cached per image, or live; auto without a preset.", least=2
    )
    trained: int | None = option(None, "Last blocks of the backbone to train; the method's own by default.", least=1)
    set: tuple[str, ...] = option(
        (), "As in sortal discover; with several values, as in losses.temperature=0.1,0.3, a run each. May be repeated."
    )


def _check_epochs(method: str, epochs: int | Auto) -> None:
    found = registered(method)
    if found is not None and found.classifies and epochs == 0:
        raise InputError(f"epochs must be at least 1 for {found.name}, which trains a classifier, got 0.")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a method trains and sorts: everything except the data.

    `clustering` assigns images to categories: k-means, semi-supervised or plain, or the trained head. `estimate_on` is
    the features k is estimated on if it is not given: the pretrained backbone's, by the paper's rule, or the trained
    ones. `neighbours` is how many nearest images each feature is averaged with before clustering. `select` keeps the
    epoch that is best on the validation images, if there are any, instead of the last.
    """

    method: str  # its name
    training: Training
    losses: Losses | None  # None: the method has no settings; a dict where a run was read whose method is not Sortal's
    clustering: Clustering
    estimate_on: EstimateOn
    neighbours: int = 0
    select: bool = False

    def __post_init__(self) -> None:
        for name, hint in (("clustering", Clustering), ("estimate_on", EstimateOn)):
            rule, value = Rule.of(hint), getattr(self, name)
            if not rule.holds(value):
                raise InputError(f"{name} must be {rule}, got {quoted(value)}.")
        if isinstance(self.losses, dict) or (self.losses is None and registered(self.method) is None):
            return  # nothing of its method is needed before it is run again
        of = registration_of(self.method)
        losses = of.losses or NoneType
        if type(self.losses) is not losses:  # a subclass would be trained as its parent
            expected = "None" if losses is NoneType else losses.__name__
            raise InputError(f"The losses of {self.method} must be {expected}, got {self.losses!r}.")
        others = ["semi-supervised", "kmeans"]
        allowed = ["head"] if of.classifies else ["own", *others] if of.cluster is not None else others
        if self.clustering not in allowed:
            *others, last = map(repr, allowed)
            words = f"{', '.join(others)} or {last}" if others else last
            raise InputError(f"clustering must be {words} for {self.method}, got {self.clustering!r}.")
        if of.needs_k and self.estimate_on != "raw":
            raise InputError(
                f"estimate_on must be 'raw' for {self.method}, which needs k before training, got {self.estimate_on!r}."
            )
        if self.select and isinstance(self.losses, Rounds):
            raise InputError(
                f"select must be False for {self.method}, which keeps the last epoch of each round, got True."
            )
        _check_epochs(self.method, self.training.epochs)

    @classmethod
    def types_in(cls, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Return the types of fields that depend on others, for reading JSON; no code of a method is loaded for it."""
        own = BUILT_IN.get(str(saved.get("method", "")))  # which may be anything
        return {"losses": dict[str, Any] | None if own is None else own.losses or NoneType}

    @property
    def learns(self) -> bool:
        of = registered(self.method)
        return self.losses is not None and self.training.epochs > 0 and (of is None or of.learner is not None)
