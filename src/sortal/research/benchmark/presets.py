"""Presets: the recipe of every row of the paper's tables, under a name and with a version."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from typing import Any, Literal

from sortal.advice import FEW, recipe_for
from sortal.config import (
    BACKBONE,
    TRAININGS,
    Clustering,
    Contrast,
    Discovery,
    Distillation,
    Losses,
    MethodName,
    Ranks,
    Recipe,
    Swaps,
)
from sortal.errors import InputError, quoted
from sortal.errors import listing as first_few

K = Literal["true", "auto"] | int  # "true" is the number of classes that the data set has; "auto" estimates it

DATASETS = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "imagenet100": "ImageNet-100",
    "cub": "CUB-200-2011",
    "stanford_cars": "Stanford Cars",
    "herbarium19": "Herbarium-19",
    "fgvc_aircraft": "FGVC-Aircraft",
}
METHODS: dict[MethodName, str] = {
    "kmeans": "k-means",
    "rankstats": "RankStats+",
    "uno": "UNO+",
    "gcd": "GCD",
    "simgcd": "SimGCD",
}
ACCURACY = {  # tables of methods on data sets
    "table2": ("cifar10", "cifar100", "imagenet100"),
    "table3": ("cub", "stanford_cars", "herbarium19"),
    "table6": ("fgvc_aircraft",),
}
COUNTED = ("cifar10", "cifar100", "imagenet100", "cub", "stanford_cars", "herbarium19")  # table4
ABLATED = ("cifar100", "herbarium19")  # table5

VERSIONS: dict[MethodName, int] = dict.fromkeys(METHODS, 1)  # raised when the recipes of a method change

CLUSTERINGS: dict[MethodName, Clustering] = {"kmeans": "kmeans", "gcd": "semi-supervised"}  # of all others: "head"
N_INIT = 100
RESNET = "resnet50"
RESNET_WEIGHTS = "dino_resnet50_pretrain.pth, from github.com/facebookresearch/dino"
# Where SimGCD's authors' scripts have another weight than 1.
ENTROPY_WEIGHTS = {"cifar100": 4.0, "cub": 2.0}


@dataclass(frozen=True, kw_only=True)
class Preset:
    """What is run on a data set; the seed is not a part of it."""

    name: str  # table3/cub/gcd
    version: int | None  # of the recipe; None for one that is no preset
    dataset: str  # for sortal.datasets.load
    backbone: str
    weights: str | None  # None: the hub's
    k: K
    n_init: int
    recipe: Recipe
    title: str  # for people
    needs: str | None = None  # the file of weights that must be given, as no hub has it, and where it comes from

    def settings(self) -> dict[str, Any]:
        """How it learns and sorts: the recipe and n_init, less the seed."""
        recipe = asdict(self.recipe)
        del recipe["training"]["seed"]
        return {**recipe, "n_init": self.n_init}


def select(name: str) -> tuple[Preset, ...]:
    """The preset of a name, or all below a part of one: "table2" or "table2/cifar10"."""
    asked = name.rstrip("/")
    found = tuple(preset for own, preset in PRESETS.items() if f"{own}/".startswith(f"{asked}/"))
    if found and asked:
        return found
    parts = [*dict.fromkeys(own.rsplit("/", depth)[0] for own in PRESETS for depth in (1, 2)), *PRESETS]
    near = [part for part in parts if asked == part.rsplit("/", 1)[-1]] or get_close_matches(asked, parts)
    hint = f" Did you mean {first_few(near)}?" if near else ""
    raise InputError(f"There is no preset {quoted(name)}.{hint} sortal benchmark presets lists them.")


def listing() -> tuple[tuple[str, int | None, str, str], ...]:
    """Name, version, data set and title of every preset."""
    return tuple((each.name, each.version, each.dataset, each.title) for each in PRESETS.values())


def ad_hoc(
    dataset: str,
    method: MethodName,
    k: K = "true",
    *,
    name: str | None = None,
    backbone: str = BACKBONE,
    weights: str | None = None,
    n_init: int = N_INIT,
) -> Preset:
    """A method with Sortal's own defaults on any data set; it is called dataset/method unless told."""
    if k not in ("true", "auto") and (isinstance(k, bool) or not isinstance(k, int) or k < 1):
        raise InputError(f"k must be 'true', 'auto' or a whole number of at least 1, got {quoted(k)}.")
    settings = Discovery(method=method, backbone=backbone, weights=weights, n_init=n_init)
    recipe = recipe_for(settings, FEW, on_gpu=True)  # epochs as where there is enough of everything
    return Preset(
        name=name or f"{dataset}/{method}",
        version=None,
        dataset=dataset,
        backbone=backbone,
        weights=weights,
        k=k,
        n_init=n_init,
        recipe=replace(recipe, clustering=CLUSTERINGS.get(method, "head"), estimate_on="raw", select=method == "gcd"),
        title=f"{DATASETS.get(dataset, dataset)}, {METHODS[method]}",
    )


# The rows of the paper


def _losses(method: MethodName, dataset: str) -> Losses | None:
    if method == "gcd":
        return Contrast(output="prototypes")
    if method == "rankstats":
        return Ranks(consistency=5, ramp=50 / 200) if dataset == "cifar10" else Ranks(consistency=50, ramp=150 / 200)
    if method == "uno":
        return Swaps()
    if method == "simgcd":
        return Distillation(entropy_weight=ENTROPY_WEIGHTS.get(dataset, 1.0))
    return None


def _preset(
    name: str,
    dataset: str,
    method: MethodName,
    title: str,
    *,
    losses: Losses | None = None,
    clustering: Clustering | None = None,
    **others: Any,
) -> Preset:
    """A method as the paper has it, but for what is given: new views in every epoch, of all 200."""
    recipe = Recipe(
        method=method,
        training=replace(TRAININGS[method], epochs=200, batch_size=128, views=None),
        losses=losses or _losses(method, dataset),
        clustering=clustering or CLUSTERINGS.get(method, "head"),
        estimate_on="raw",
        select=method == "gcd",
    )
    usual: dict[str, Any] = {"backbone": BACKBONE, "weights": None, "k": "true", "n_init": N_INIT}
    return Preset(
        name=name,
        version=VERSIONS[method],
        dataset=dataset,
        recipe=recipe,
        title=f"{DATASETS[dataset]}, {title}",
        **{**usual, **others},
    )


def _ablation(dataset: str) -> Iterator[Preset]:
    def row(number: int, method: MethodName, title: str, **others: Any) -> Preset:
        return _preset(f"table5/{dataset}/{number}", dataset, method, title, **others)

    def weighted(supervised: float) -> Contrast:
        return Contrast(output="prototypes", supervised_weight=supervised)

    yield row(1, "kmeans", "ResNet-50, k-means", backbone=RESNET, needs=RESNET_WEIGHTS)
    yield row(2, "kmeans", "ViT, k-means")
    yield row(3, "gcd", "unsupervised loss, k-means", losses=weighted(0), clustering="kmeans")
    yield row(4, "gcd", "supervised loss, k-means", losses=weighted(1), clustering="kmeans")
    yield row(5, "gcd", "both losses, k-means", clustering="kmeans")
    yield row(6, "gcd", "both losses, semi-supervised k-means")


def _paper() -> Iterator[Preset]:
    for table, datasets in ACCURACY.items():
        for dataset in datasets:
            for method, title in METHODS.items():
                yield _preset(f"{table}/{dataset}/{method}", dataset, method, title)
    for dataset in COUNTED:
        yield _preset(f"table4/{dataset}", dataset, "kmeans", "how many classes", k="auto")
    for dataset in ABLATED:
        yield from _ablation(dataset)


PRESETS: Mapping[str, Preset] = {
    preset.name: preset for preset in sorted(_paper(), key=lambda preset: preset.name.partition("/")[0])
}
