"""The facts of a run: where its images came from, how it was made, how k was chosen, how accurate it is."""

import os
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from sortal.config import OWN_K, Discovery, GroupsHold, Interpolation, MethodSource, Precision, Reading, Recipe
from sortal.metrics import Accuracy, Scores
from sortal.system.text import plural


@dataclass(frozen=True, kw_only=True)
class ImageSource:
    """A folder that images of a run were read from; without a folder, they were given as an array."""

    folder: str | None
    images: int
    paths: dict[str, str]  # file to path, for files that do not open under their name in the folder; "" without one

    def path_of(self, file: str) -> str:
        """Return the path of a file; it is empty for an image that was given as an array, or has no picture."""
        return "" if self.folder is None else self.paths.get(file, os.path.join(self.folder, file))


@dataclass(frozen=True, kw_only=True)
class Update:
    """Images that were added to a finished run."""

    folder: str
    images: int
    finished: str  # ISO 8601
    features: str | None = None  # as of a run


@dataclass(frozen=True, kw_only=True)
class Spec:
    """Input and output of a backbone; saved along with its weights."""

    name: str
    image_size: int  # height and width of its input
    shorter_side: int  # images are resized to this before they are cropped
    width: int  # d, the length of a feature
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)  # ImageNet's, like std
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    interpolation: Interpolation = "bicubic"  # by which images are resized
    architecture: str = ""  # JSON that describes a network, if its name does not

    def described(self) -> dict[str, Any]:
        """Return its values for a digest: without those that earlier versions did not have, where they are usual."""
        usual = {"interpolation": "bicubic", "architecture": ""}
        return {name: value for name, value in asdict(self).items() if name not in usual or value != usual[name]}


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """Summary of a training run."""

    epochs: int
    selected: int | None  # the epoch whose weights were selected; None without training
    validation: float | None  # accuracy of that epoch on the validation images
    losses: dict[str, float]  # means over the last epoch
    views: int | None  # cached views per image; None if every epoch has new views
    seconds: float
    images_per_second: float
    devices: tuple[str, ...]  # that held the weights while they were trained, in order; several if it was resumed
    setbacks: tuple[str, ...] = ()  # epochs that failed and were repeated at a lower learning rate, in words


@dataclass(frozen=True, kw_only=True)
class Hashes:
    """Digests of the model, of the images with their labels in any order, and of the features row by row."""

    model: str
    images: str
    features: str


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The contents of run.json."""

    images: tuple[ImageSource, ...]
    folders: tuple[str, ...] = ()  # that were given; `images` has the one they are all in
    features: str | None = None  # the file of feature vectors that were sorted; "" for an array, None for images
    labels: str | None = None  # the table of labels, if one was given
    reading: Reading = Reading()
    groups_hold: GroupsHold | None = None  # what groups that were given hold, one class or several; None without any
    settings: Discovery
    recipe: Recipe
    method_source: MethodSource | None = None  # of a method that is not Sortal's own; nothing is imported by it
    command: str
    backbone: Spec
    weights: str
    precision: Precision
    int8: bool = False  # whether frozen layers computed in 8-bit integers
    training: TrainingResult | None
    device: str  # that held the network when features were computed
    machine: str
    versions: dict[str, str]
    hashes: Hashes
    finished: str  # ISO 8601
    next_id: int  # of the next category: an id is never used twice
    updates: tuple[Update, ...] = ()
    notes: tuple[str, ...] = ()
    timings: dict[str, float]  # seconds of each stage

    def __repr__(self) -> str:
        count = plural(sum(each.images for each in self.images), "image")
        return f"<RunFacts: {count}, {self.settings.method} on {self.backbone.name}, {self.finished}>"


@dataclass(frozen=True, kw_only=True)
class TriedK:
    """One k that was tried."""

    k: int
    score: float
    each: tuple[float, ...]  # of every restart, or of the first ones where they are clearly worse than the best


FEWEST_TO_HIDE = 3  # known classes, below which none is hidden
RESTS_ON = {OWN_K: "the groups that the method forms", "brent": "how well the categories agree with your labels"}
CLEARNESS = "how clearly the categories are set apart"
ENOUGH_HIDDEN = 5  # hidden classes, below which a trial says little


class Trial(NamedTuple):
    """How many known classes were hidden from the method while it counted, and how many of them it found."""

    hidden: int
    found: int


@dataclass(frozen=True, kw_only=True)
class KChoice:
    """The contents of k.json: the number of categories, and how it was chosen."""

    k: int
    estimated: bool
    known: int  # labelled classes
    interval: tuple[int, int] | None = None  # that is likely, without a wish; None where k was given
    method: str | None = None
    curve: tuple[TriedK, ...] = field(default=(), repr=False)
    trial: Trial | None = None  # None where no class was hidden
    usual: int | None = None  # k without the wish for finer or coarser categories, if there was one

    @property
    def wish(self) -> str | None:
        """What was wished for and granted: "finer", "coarser" or None."""
        return None if self.usual is None else "finer" if self.k > self.usual else "coarser"

    @property
    def basis(self) -> str:
        """How far the estimate can be trusted, in a sentence; empty where k was given."""
        if not self.estimated:
            return ""
        of = plural(self.known, "known class", "known classes")
        if self.trial is None:
            rests_on = RESTS_ON.get(self.method or "", CLEARNESS)
            return f"{self._untried(of)}, so k is untested: it rests only on {rests_on}."
        hidden, found = self.trial
        were = f"{hidden:,} of your {of} {'was' if hidden == 1 else 'were'} hidden"
        counted = f"As a trial, {were} from the method while it counted"
        if hidden == 1:
            result = "found it" if found else "did not find it"
        elif found == hidden:
            result = "found both" if hidden == 2 else "found all of them"
        else:
            result = f"found {found or 'none'} of them"
        weight = "" if hidden >= ENOUGH_HIDDEN else ": too few classes to tell how far k can be trusted"
        return f"{counted}, and it {result}{weight}."

    def _untried(self, of: str) -> str:
        """Say why no class was hidden as a trial."""
        if not self.known:
            return "No class is known that could be hidden from the method as a trial"
        if self.known < FEWEST_TO_HIDE:
            return f"{of} {'is' if self.known == 1 else 'are'} too few to hide one from the method as a trial"
        return f"None of your {of} was hidden from the method as a trial"


class CoveragePoint(NamedTuple):
    """The share of images taken, the surest first; the accuracy on them; and the least confidence among them."""

    coverage: float
    accuracy: float
    confidence: float


@dataclass(frozen=True, kw_only=True)
class RiskCoverage:
    """Accuracy against coverage; empty for a part without images."""

    all: tuple[CoveragePoint, ...]
    old: tuple[CoveragePoint, ...]
    new: tuple[CoveragePoint, ...]


@dataclass(frozen=True, kw_only=True)
class ReliabilityBin:
    """Mean confidence and accuracy of the images whose confidence lies in an interval."""

    low: float
    high: float
    images: int
    confidence: float
    accuracy: float


@dataclass(frozen=True, kw_only=True)
class CalibrationError:
    """Mean |confidence − accuracy| over the images; None for a part without images."""

    all: float | None
    old: float | None
    new: float | None


class Confused(NamedTuple):
    """Images of a known class in a category."""

    truth: str
    category_id: int
    images: int


@dataclass(frozen=True, kw_only=True)
class SplitScores:
    """Scores on images whose true classes are known: fractions, None where undefined."""

    images: int
    accuracy: Accuracy
    legacy: Accuracy
    nmi: float | None
    ari: float | None
    known_accuracy: float | None
    class_mean: float | None = None  # of the accuracy; also None in files of earlier versions

    @staticmethod
    def of(images: int, found: Scores) -> "SplitScores":
        """Return the scores of so many images."""
        same: dict[str, Any] = {
            name: getattr(found, name) for name in ("accuracy", "legacy", "nmi", "ari", "class_mean")
        }
        return SplitScores(images=images, known_accuracy=found.known, **same)


@dataclass(frozen=True, kw_only=True)
class Metrics(SplitScores):
    """The contents of metrics.json: figures on the unlabelled images whose true class is known."""

    k_true: int
    risk_coverage: RiskCoverage = field(repr=False)
    reliability: tuple[ReliabilityBin, ...] = field(repr=False)
    calibration_error: CalibrationError
    confusion: tuple[Confused, ...] = field(repr=False)
