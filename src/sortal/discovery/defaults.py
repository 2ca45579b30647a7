"""What suits the images and the machine: defaults that are said aloud, and suggestions that are never acted upon."""

from dataclasses import replace

from sortal.config import (
    AUTO,
    BACKBONE,
    CLASSIFIERS,
    CONVNET,
    LOSSES,
    TINY,
    TINY_CONTRAST,
    TINY_DISTILLATION,
    TRAININGS,
    Discovery,
    Losses,
    Recipe,
    Training,
)

EPOCHS, FEWER_EPOCHS = 200, 100  # the paper's, and what is taken where they would be too many
FEW = 2000  # images
SMALLER = "vit_small_patch16_224.dino"
TINY_LOSSES: dict[str, Losses] = {"gcd": TINY_CONTRAST, "simgcd": TINY_DISTILLATION}


def recipe_for(settings: Discovery, n_images: int, *, on_gpu: bool) -> Recipe:
    """How to learn and sort, with every "auto" but that of views decided."""
    method, training = settings.method, _training(settings, n_images, on_gpu)
    if method in CLASSIFIERS:
        return Recipe(method=method, training=training, losses=_losses(settings), clustering="head", estimate_on="raw")
    learns = method != "kmeans"
    return Recipe(
        method=method,
        training=training,
        losses=_losses(settings) if learns else None,
        clustering="semi-supervised",
        estimate_on="learned" if learns else "raw",
    )


def _training(settings: Discovery, n_images: int, on_gpu: bool) -> Training:
    start = TRAININGS[settings.method]
    if settings.backbone == CONVNET:
        start = replace(start, **TINY)
    epochs = settings.epochs
    if isinstance(epochs, str):
        if settings.backbone == CONVNET:
            epochs = start.epochs
        else:
            epochs = EPOCHS if on_gpu and n_images >= FEW else FEWER_EPOCHS
    lr = start.lr if isinstance(settings.lr, str) else settings.lr
    return replace(start, epochs=epochs, lr=lr, views=settings.views, seed=settings.seed)


def _losses(settings: Discovery) -> Losses:
    default = LOSSES[settings.method]()
    return TINY_LOSSES.get(settings.method, default) if settings.backbone == CONVNET else default


def notes(settings: Discovery, recipe: Recipe, *, mostly_tiny: bool, labelled: int, on_gpu: bool) -> list[str]:
    """Sentences for people: what was chosen for them, and what they could choose."""
    said, learns = [], settings.method != "kmeans"
    if learns and settings.epochs == AUTO and settings.backbone != CONVNET:
        why = "as in the paper"
        if recipe.training.epochs != EPOCHS:
            why = "no GPU is in use" if not on_gpu else f"there are fewer than {FEW:,} images"
            why += f"; --epochs {EPOCHS} is the paper's"
        said.append(f"Learning for {recipe.training.epochs} epochs: {why}.")
    if mostly_tiny and settings.backbone != CONVNET and learns:  # it knows nothing until it learns
        said.append(f"Most images are tiny: --backbone {CONVNET} learns from them alone, which may be better.")
    elif not on_gpu and settings.backbone == BACKBONE:
        said.append(f"No GPU is in use: --backbone {SMALLER} is about four times as fast.")
    if learns and not labelled:
        said.append("No image is labelled: learning and clusters go by looks alone.")
    return said
