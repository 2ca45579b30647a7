"""Defaults that suit the images and the machine, and the notes that report them or suggest others."""

from dataclasses import replace

from sortal import config
from sortal.config import AUTO, BACKBONE, CONVNET, Discovery, Losses, Recipe, Training

EPOCHS, FEWER_EPOCHS = 200, 100  # the paper's, and the default where they would take too long
EPOCHS_ON_CPU = 150  # of Sortal's method without a GPU
FEW = 2000  # images
SMALLER = "vit_small_patch16_224.dino"
NEIGHBOURS = 8  # that Sortal's method averages features with
TINY_LOSSES: dict[str, Losses] = {
    "gcd": config.TINY_CONTRAST,
    "simgcd": config.TINY_DISTILLATION,
    "sortal": config.TINY_ROUNDS,
}


def recipe_for(settings: Discovery, n_images: int, *, on_gpu: bool) -> Recipe:
    """Resolve settings to a recipe, with every "auto" decided except that of views."""
    method = settings.method
    losses: dict[str, Losses] = {name: default() for name, default in config.LOSSES.items()}
    if settings.backbone == CONVNET:
        losses |= TINY_LOSSES
    return Recipe(
        method=method,
        training=_training(settings, n_images, on_gpu),
        losses=losses.get(method),
        clustering="head" if method in config.CLASSIFIERS else "semi-supervised",
        estimate_on="learned" if method in ("gcd", "sortal") else "raw",
        neighbours=NEIGHBOURS if method == "sortal" else 0,
    )


def _training(settings: Discovery, n_images: int, on_gpu: bool) -> Training:
    usual = replace(config.TRAININGS[settings.method], **config.ROBUST)
    if settings.backbone == CONVNET:
        usual = replace(usual, **config.TINY)
    elif settings.method == "sortal":
        usual = replace(usual, epochs=usual.epochs if on_gpu else EPOCHS_ON_CPU)
    else:
        usual = replace(usual, epochs=EPOCHS if on_gpu and n_images >= FEW else FEWER_EPOCHS)
    return replace(
        usual,
        epochs=usual.epochs if settings.epochs == AUTO else settings.epochs,
        lr=usual.lr if settings.lr == AUTO else settings.lr,
        views=None if settings.views == config.LIVE else settings.views,
        seed=settings.seed,
    )


def notes(settings: Discovery, recipe: Recipe, *, mostly_tiny: bool, labelled: int, on_gpu: bool) -> list[str]:
    """Report the defaults that were chosen, and suggest settings that may suit better."""
    found, trains = [], settings.method != "kmeans"
    if trains and settings.method != "sortal" and settings.epochs == AUTO and settings.backbone != CONVNET:
        why = "as in the paper"
        if recipe.training.epochs != EPOCHS:
            why = "without a GPU" if not on_gpu else f"for fewer than {FEW:,} images"
            why += f" (the paper: {EPOCHS})"
        found.append(f"Training for {recipe.training.epochs} epochs, {why}.")
    if mostly_tiny and settings.backbone != CONVNET and trains:  # untrained, it is useless
        found.append(f"Most images are tiny; the backbone {CONVNET}, trained on them alone, may sort them better.")
    elif not on_gpu and settings.backbone == BACKBONE:
        found.append(f"No GPU is in use; the backbone {SMALLER} is about four times as fast.")
    if trains and not labelled:
        found.append("No image is labelled, so categories follow appearance alone.")
    return found
