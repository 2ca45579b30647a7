"""Presets: a recipe for every row of the paper's tables, of Sortal's own method and of later ones, with versions."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from typing import Any

from sortal.config import (
    BACKBONE,
    METHODS,
    Contrast,
    Debiasing,
    Discovery,
    Distillation,
    Losses,
    Ranks,
    Recipe,
    Reciprocity,
    Retention,
    registration_of,
)
from sortal.config.rivals import MeanShift, SelfExpertise
from sortal.discovery.defaults import FEW_IMAGES, recipe_for
from sortal.errors import InputError, quoted
from sortal.errors import listing as first_few
from sortal.research.benchmark.records import RequestedK

DATASET_TITLES = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "imagenet100": "ImageNet-100",
    "cub": "CUB-200-2011",
    "stanford_cars": "Stanford Cars",
    "herbarium19": "Herbarium-19",
    "fgvc_aircraft": "FGVC-Aircraft",
}
PAPER_METHODS = ("kmeans", "rankstats", "uno", "gcd", "simgcd", "sortal")  # the rows of its tables, and our own
RIVAL_METHODS = ("legogcd", "rlcd", "debgcd", "cms", "selex")  # published later, in a table of their own
HYP_SELEX = "hyp-selex"  # SelEx with losses in hyperbolic space: a row of that table, too
RIVAL_TITLES = {**{each: METHODS[each].title for each in RIVAL_METHODS}, HYP_SELEX: "Hyp-SelEx"}
ACCURACY_TABLES = {  # data sets of the tables of methods
    "table2": ("cifar10", "cifar100", "imagenet100"),
    "table3": ("cub", "stanford_cars", "herbarium19"),
    "table6": ("fgvc_aircraft",),
}
COUNTED = ("cifar10", "cifar100", "imagenet100", "cub", "stanford_cars", "herbarium19")  # table4
RIVALRY = ("cub", "stanford_cars", "fgvc_aircraft", "cifar100", "imagenet100", "herbarium19")  # rivals
GENERIC = ("cifar100", "imagenet100")  # those of them that are not fine-grained
ABLATED = ("cifar100", "herbarium19")  # table5
# Incremented when the recipes of a method change.
VERSIONS = {**dict.fromkeys((*PAPER_METHODS, *RIVAL_METHODS), 1), "simgcd": 2, "sortal": 7, "cms": 2, "selex": 2}
N_INIT = 100
RESNET_WEIGHTS = "dino_resnet50_pretrain.pth, from github.com/facebookresearch/dino"
PAPER_LOSSES: dict[str, Losses] = {  # where they are not the default
    "gcd": Contrast(output="prototypes"),
    "simgcd": Distillation(entropy_weight=1),
}
SPECIAL_LOSSES: dict[tuple[str, str], Losses] = {  # on single data sets
    ("rankstats", "cifar10"): Ranks(consistency=5, ramp=50 / 200),
    ("simgcd", "cifar100"): Distillation(entropy_weight=4),  # from the scripts of SimGCD's authors
    ("simgcd", "cub"): Distillation(entropy_weight=2),
    # From the scripts of their authors; RLCD has none for aircraft and ImageNet-100, and DebGCD none for Herbarium-19
    ("legogcd", "cub"): Retention(),
    ("legogcd", "stanford_cars"): Retention(entropy_weight=1, confidence=0.85),
    ("legogcd", "fgvc_aircraft"): Retention(entropy_weight=1, confidence=0.9),
    ("legogcd", "cifar100"): Retention(confidence=0.85),
    ("legogcd", "imagenet100"): Retention(entropy_weight=1, confidence=0.8),
    ("legogcd", "herbarium19"): Retention(entropy_weight=1),
    ("rlcd", "cub"): Reciprocity(block_rate=0.1),
    ("rlcd", "stanford_cars"): Reciprocity(distinction_weight=1),
    ("rlcd", "cifar100"): Reciprocity(block_rate=0.1),
    ("rlcd", "herbarium19"): Reciprocity(distinction_weight=1),
    ("debgcd", "cub"): Debiasing(debiased_weight=4, confidence=0.65),
    ("debgcd", "stanford_cars"): Debiasing(entropy_weight=1),
    ("debgcd", "fgvc_aircraft"): Debiasing(entropy_weight=1, confidence=0.85, detector_weight=0.01),
    ("debgcd", "cifar100"): Debiasing(entropy_weight=4, debiased_weight=0.5, confidence=0.55, detector_weight=0.001),
    ("debgcd", "imagenet100"): Debiasing(entropy_weight=1, confidence=0.85),
    **{("cms", dataset): MeanShift(temperature=0.3) for dataset in GENERIC},
    **{("selex", dataset): SelfExpertise(smoothing=0.1) for dataset in GENERIC},
}
# From the script of its authors; it has none of the generic sets, for which SelEx's smoothing is taken
HYPERBOLIC_LOSSES = {
    "cub": SelfExpertise(curvature=0.1),
    "stanford_cars": SelfExpertise(curvature=0.1, smoothing=0.5),
    "fgvc_aircraft": SelfExpertise(curvature=0.1, smoothing=0.5, curved=0.5),
    **{dataset: SelfExpertise(curvature=0.1, smoothing=0.1) for dataset in GENERIC},
}
SPECIAL_TRAINING: dict[tuple[str, str], dict[str, Any]] = {
    ("debgcd", "cifar100"): {"batch_size": 256, "lr": 0.2},
    **{("cms", dataset): {"lr": 0.01, "final_lr": 1e-3} for dataset in GENERIC},
}
SPECIAL_BLOCKS = {("debgcd", dataset): 2 for dataset in ("cub", "stanford_cars", "fgvc_aircraft")}  # trained


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A recipe on a data set, without a seed."""

    name: str  # table3/cub/gcd
    version: int | None  # of the recipe; None outside the paper's presets
    dataset: str  # for sortal.images.datasets.load
    backbone: str
    weights: str | None  # a file, "random", or None for those of the hub
    k: RequestedK
    n_init: int
    recipe: Recipe
    title: str  # for people
    trained: int | None = None  # last blocks of the backbone; None for the method's own
    needs: str | None = None  # a weights file that is not on the hub, and its source

    def settings(self) -> dict[str, Any]:
        """Return the recipe without its seed, and n_init."""
        recipe = asdict(self.recipe)
        del recipe["training"]["seed"]
        return {**recipe, "n_init": self.n_init}


def select(name: str) -> tuple[Preset, ...]:
    """Return the preset of a name, or all whose names start with it: "table2" or "table2/cifar10"."""
    asked = name.rstrip("/")
    found = tuple(preset for own, preset in PRESETS.items() if f"{own}/".startswith(f"{asked}/"))
    if found and asked:
        return found
    parts = [*dict.fromkeys(own.rsplit("/", depth)[0] for own in PRESETS for depth in (1, 2)), *PRESETS]
    near = [part for part in parts if asked == part.rsplit("/", 1)[-1]] or get_close_matches(asked, parts)
    hint = f" Did you mean {first_few(near)}?" if near else ""
    raise InputError(f"Unknown preset {quoted(name)}.{hint} List them with: sortal benchmark presets.")


def ad_hoc(dataset: str, method: str, *, name: str | None = None, backbone: str = BACKBONE) -> Preset:
    """Return a method with Sortal's own defaults on any data set, named dataset/method by default."""
    of, settings = registration_of(method), Discovery(method=method, backbone=backbone)
    recipe = recipe_for(settings, FEW_IMAGES, on_gpu=True)  # the epochs of a large set on a GPU
    return Preset(
        name=name or f"{dataset}/{of.name}",
        version=None,
        dataset=dataset,
        backbone=backbone,
        weights=None,
        k="true",
        n_init=N_INIT,
        recipe=replace(
            recipe,
            clustering="kmeans" if of.name == "kmeans" else of.clustering,
            estimate_on="learned" if of.name == "sortal" else "raw",
            select=of.name == "gcd",
        ),
        title=f"{DATASET_TITLES.get(dataset, dataset)}, {of.title}",
    )


def _preset(name: str, method: str, title: str, **changes: Any) -> Preset:
    """Return a method with the paper's recipe, 200 epochs with new views in each, except for `changes`.

    Sortal's own method keeps its defaults.
    """
    dataset = name.split("/")[1]
    usual = ad_hoc(dataset, method, name=name)
    if method == "sortal":
        return replace(usual, version=VERSIONS[method])
    on, published = (method, dataset), {"epochs": 200, "batch_size": 128, "views": None}
    training = replace(METHODS[method].training, **published | SPECIAL_TRAINING.get(on, {}))
    losses = SPECIAL_LOSSES.get(on) or PAPER_LOSSES.get(method) or usual.recipe.losses
    settings: dict[str, Any] = {"training": training, "losses": losses, **changes}
    title = f"{DATASET_TITLES[dataset]}, {title}"
    recipe, blocks = replace(usual.recipe, **settings), SPECIAL_BLOCKS.get(on)
    return replace(usual, version=VERSIONS[method], recipe=recipe, title=title, trained=blocks)


def _ablation(start: str) -> Iterator[Preset]:
    unsupervised, supervised = (Contrast(output="prototypes", supervised_weight=weight) for weight in (0, 1))
    resnet = _preset(f"{start}/1", "kmeans", "ResNet-50, k-means")
    yield replace(resnet, backbone="resnet50", needs=RESNET_WEIGHTS)
    yield _preset(f"{start}/2", "kmeans", "ViT, k-means")
    yield _preset(f"{start}/3", "gcd", "unsupervised loss, k-means", losses=unsupervised, clustering="kmeans")
    yield _preset(f"{start}/4", "gcd", "supervised loss, k-means", losses=supervised, clustering="kmeans")
    yield _preset(f"{start}/5", "gcd", "both losses, k-means", clustering="kmeans")
    yield _preset(f"{start}/6", "gcd", "both losses, semi-supervised k-means")


def _paper() -> Iterator[Preset]:
    for table, datasets in ACCURACY_TABLES.items():
        for dataset in datasets:
            for method in PAPER_METHODS:
                yield _preset(f"{table}/{dataset}/{method}", method, METHODS[method].title)
    for dataset in COUNTED:
        yield replace(_preset(f"table4/{dataset}", "kmeans", "how many classes"), k="auto")
    for dataset in ABLATED:
        yield from _ablation(f"table5/{dataset}")


def _rivals() -> Iterator[Preset]:
    for dataset in RIVALRY:
        for method in RIVAL_METHODS:
            yield _preset(f"rivals/{dataset}/{method}", method, RIVAL_TITLES[method])
        if (losses := HYPERBOLIC_LOSSES.get(dataset)) is not None:
            yield _preset(f"rivals/{dataset}/{HYP_SELEX}", "selex", RIVAL_TITLES[HYP_SELEX], losses=losses)


_BY_TABLE = [*sorted(_paper(), key=lambda preset: preset.name.partition("/")[0]), *_rivals()]
PRESETS: Mapping[str, Preset] = {preset.name: preset for preset in _BY_TABLE}
