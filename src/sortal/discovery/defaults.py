"""Defaults that suit the images and the machine, and the notes that report them or suggest others."""

from collections.abc import Sequence
from dataclasses import fields, replace

from sortal import config
from sortal.config import (
    AUTO,
    BACKBONE,
    CONVNET,
    FASTER,
    LARGER,
    OWN_K,
    SMALLER,
    VECTORS,
    VIEWS,
    Discovery,
    Losses,
    Recipe,
    Registration,
    Rounds,
    Training,
    changed,
    registration_of,
)
from sortal.system.text import plural

EPOCHS, FEWER_EPOCHS = 200, 100  # the paper's, and the default where they would take too long
# Sortal's own method takes so many images in all, and no more epochs than the paper: 2,500 photographs of cars need
# those, 5,000 thumbnails only half of them, and more than 8,189 were not measured (benchmarks/archive/runs.md).
FEWEST_EPOCHS, STEPS_ON_GPU = 40, 600_000
# Without a GPU, views are few, and a step sees a quarter of their patches, which takes half of the time and sorts no
# worse (benchmarks/RESULTS.md). With two views, which are learned by heart, 1,000 images are sorted 3 points worse than
# with four (at 224 pixels).
VIEWS_ON_CPU, PATCHES_ON_CPU = 4, 0.25
EPOCHS_ON_CPU, STEPS_ON_CPU = (40, 80), 180_000  # the fewest and the most epochs, and images in all
# Fewer than 1,000 images take more epochs, as their steps are few: no more of them in all than with 1,000.
EPOCHS_OF_FEW, STEPS_OF_FEW = 150, 80_000  # the most epochs, and images in all
HIDDEN_ON_CPU = 512  # width of the projection head; the usual one takes nearly half of a step, and sorts no better
# Pixels that the default networks see without a GPU: they take about half of the time of 224 in frozen layers, and a
# loss cannot be told from noise (benchmarks/archive/runs.md).
SIZE_ON_CPU = 168
FEW_IMAGES = 2000  # below which the other methods take fewer epochs
SMOOTHING_NEIGHBOURS = 8  # that Sortal's method averages features with
TINY_LOSSES = (config.TINY_CONTRAST, config.TINY_DISTILLATION, config.TINY_ROUNDS)  # of the small network
VECTOR_LOSSES = (config.VECTOR_CONTRAST, config.VECTOR_DISTILLATION, config.VECTOR_ROUNDS)  # of feature vectors


def resolved(settings: Discovery, *, on_gpu: bool, features: bool = False) -> Discovery:
    """Choose the backbone and the size of images where they are "auto", and leave k to a method that finds it.

    Weights that were given are for the paper's backbone. With `features`, there is no network.
    """
    if settings.k == AUTO and settings.granularity == "usual" and registration_of(settings.method).finds_k:
        settings = replace(settings, k=OWN_K)
    if features:
        return replace(settings, backbone=VECTORS)
    if settings.backbone == AUTO:
        given = settings.weights is not None
        settings = replace(settings, backbone=BACKBONE if given else LARGER if on_gpu else SMALLER)
    small = not on_gpu and settings.image_size == AUTO and is_default_network(settings.backbone)
    return replace(settings, image_size=SIZE_ON_CPU) if small else settings


def is_default_network(backbone: str) -> bool:
    """Tell whether a backbone has the architecture of a default one, whatever its weights."""
    return architecture(backbone) in (architecture(SMALLER), architecture(LARGER))


def architecture(backbone: str) -> str:
    """Return the name of a backbone without that of its weights."""
    return backbone.partition(".")[0]


def trained_blocks(settings: Discovery) -> int | None:
    """Return how many of the last blocks are trained; None for what is usual for the backbone."""
    if settings.trained != AUTO:
        return settings.trained
    usual = settings.backbone in (CONVNET, VECTORS)  # of which all is trained
    return None if usual else registration_of(settings.method).trained


def recipe_for(settings: Discovery, n_images: int, *, on_gpu: bool) -> Recipe:
    """Resolve settings to a recipe, with every "auto" decided except that of views."""
    of = registration_of(settings.method)
    losses = of.usual_losses()
    if settings.backbone == CONVNET:
        losses = _suited(losses, TINY_LOSSES)
    elif settings.backbone == VECTORS:
        losses = _suited(losses, VECTOR_LOSSES)
    elif not on_gpu:
        losses = _suited(losses, (Rounds(hidden=HIDDEN_ON_CPU),))
    recipe = Recipe(
        method=of.name,
        training=_training(settings, of, n_images, on_gpu),
        losses=losses,
        clustering=of.clustering,
        estimate_on="raw" if of.needs_k or of.learner is None else "learned",
        neighbours=SMOOTHING_NEIGHBOURS if isinstance(losses, Rounds) else 0,
    )
    return changed(recipe, settings.set)


def _suited(losses: Losses, to: Sequence[Losses]) -> Losses:
    """Return what suits another network; settings derived from ours follow them, but for defaults of their own."""
    for suited in to:
        if isinstance(losses, kind := type(suited)):
            usual, names = kind(), [field.name for field in fields(kind)]
            kept = [name for name in names if getattr(losses, name) == getattr(usual, name)]
            losses = replace(losses, **{name: getattr(suited, name) for name in kept})
    return losses


def _training(settings: Discovery, of: Registration, n_images: int, on_gpu: bool) -> Training:
    usual = replace(of.training, **config.ROBUST)
    if settings.backbone == CONVNET:
        usual = replace(usual, **config.TINY_SETTINGS)
    elif settings.backbone == VECTORS:
        usual = replace(usual, **config.VECTOR_SETTINGS)
    elif not on_gpu:
        patches = PATCHES_ON_CPU if of.losses is Rounds else usual.patches
        usual = replace(usual, epochs=_epochs_on_cpu(n_images), views=VIEWS_ON_CPU, patches=patches)
    elif of.losses is Rounds:
        usual = replace(usual, epochs=_epochs_within(STEPS_ON_GPU, FEWEST_EPOCHS, EPOCHS, n_images))
    else:
        usual = replace(usual, epochs=FEWER_EPOCHS if n_images < FEW_IMAGES else EPOCHS)
    return replace(
        usual,
        epochs=usual.epochs if settings.epochs == AUTO else settings.epochs,
        lr=usual.lr if settings.lr == AUTO else settings.lr,
        views=usual.views if settings.views == AUTO else None if settings.views == config.LIVE else settings.views,
        seed=settings.seed,
    )


def _epochs_on_cpu(n_images: int) -> int:
    of_few = _epochs_within(STEPS_OF_FEW, 0, EPOCHS_OF_FEW, n_images)
    return max(of_few, _epochs_within(STEPS_ON_CPU, *EPOCHS_ON_CPU, n_images))


def _epochs_within(images: int, fewest: int, most: int, n_images: int) -> int:
    """Return how many epochs show so many images in all, within limits."""
    return min(max(images // max(n_images, 1), fewest), most)


def suited_to_network(recipe: Recipe, settings: Discovery, *, has_trunk: bool) -> Recipe:
    """Return the recipe with new views in every epoch for a network that is trained as a whole, if views are "auto".

    Views are cached as what frozen blocks make of them, which such a network has none of.
    """
    if has_trunk or settings.views != AUTO or not isinstance(recipe.training.views, int):
        return recipe
    return replace(recipe, training=replace(recipe.training, views=AUTO))


def notes(settings: Discovery, recipe: Recipe, *, mostly_tiny: bool, labelled: int, on_gpu: bool) -> list[str]:
    """Report the defaults that were chosen, and suggest settings that may suit better."""
    of, training = registration_of(recipe.method), recipe.training
    found, trains = list[str](), of.learner is not None
    network = settings.backbone not in (CONVNET, VECTORS)
    chosen = trains and settings.epochs == AUTO and network
    if chosen and not on_gpu and settings.views == AUTO:
        if isinstance(training.views, int):
            size, more = settings.image_size, f"{VIEWS} views may sort better, and take longer."
            which = f"{training.views} views of each image{'' if size == AUTO else f', of {size} pixels'}"
        else:
            which, more = "new views in every epoch", "The backbone is trained as a whole, so no views can be cached."
        short = f"{plural(training.epochs, 'epoch')} on {which}"
        found.append(f"Without a GPU, training is short: {short}. {more}")
    elif chosen and on_gpu and of.losses is not Rounds:
        few = f"for fewer than {FEW_IMAGES:,} images (the paper: {EPOCHS})"
        why = "as in the paper" if training.epochs == EPOCHS else few
        found.append(f"Training for {plural(training.epochs, 'epoch')}, {why}.")
    if mostly_tiny and network and trains:  # untrained, it is useless
        found.append(f"Most images are tiny; the backbone {CONVNET}, trained on them alone, may sort them better.")
    elif not on_gpu and settings.backbone == SMALLER:
        found.append(
            f"The backbone is {SMALLER}; {LARGER} may sort better, and takes about four times as long, and {FASTER} "
            "computes features in a fraction of it, and may sort worse."
        )
    elif not on_gpu and settings.backbone in (BACKBONE, LARGER):
        found.append(f"No GPU is in use; the backbone {SMALLER} is several times as fast.")
    if trains and not labelled:
        found.append("No image is labelled, so categories follow appearance alone.")
    return found
