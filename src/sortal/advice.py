"""What suits the images and the machine: defaults that are said aloud, and suggestions that are never acted upon."""

from sortal.config import AUTO, BACKBONE, CONVNET, TINY_CONTRAST, TINY_TRAINING, Contrast, Discovery, Training

EPOCHS, FEWER_EPOCHS = 200, 100  # the paper's, and what is taken where they would be too many
FEW = 2000  # images
SMALLER = "vit_small_patch16_224.dino"


def training_for(settings: Discovery, n_images: int, *, on_gpu: bool) -> Training:
    """How to train, with every "auto" but that of views decided."""
    start = TINY_TRAINING if settings.backbone == CONVNET else Training()
    epochs = settings.epochs
    if isinstance(epochs, str):
        if settings.backbone == CONVNET:
            epochs = TINY_TRAINING.epochs
        else:
            epochs = EPOCHS if on_gpu and n_images >= FEW else FEWER_EPOCHS
    return Training(**{**vars(start), "epochs": epochs, "views": settings.views, "seed": settings.seed})


def notes(settings: Discovery, training: Training, *, mostly_tiny: bool, labelled: int, on_gpu: bool) -> list[str]:
    """Sentences for people: what was chosen for them, and what they could choose."""
    said = []
    if settings.method == "gcd" and settings.epochs == AUTO and settings.backbone != CONVNET:
        why = "as in the paper"
        if training.epochs != EPOCHS:
            why = "no GPU is in use" if not on_gpu else f"there are fewer than {FEW:,} images"
            why += f"; --epochs {EPOCHS} is the paper's"
        said.append(f"Learning for {training.epochs} epochs: {why}.")
    if mostly_tiny and settings.backbone != CONVNET and settings.method == "gcd":  # it knows nothing until it learns
        said.append(f"Most images are tiny: --backbone {CONVNET} learns from them alone, which may be better.")
    elif not on_gpu and settings.backbone == BACKBONE:
        said.append(f"No GPU is in use: --backbone {SMALLER} is about four times as fast.")
    if settings.method == "gcd" and not labelled:
        said.append("No image is labelled: learning and clusters go by looks alone.")
    return said


def contrast_for(settings: Discovery) -> Contrast:
    """The losses' settings that go with a backbone."""
    return TINY_CONTRAST if settings.backbone == CONVNET else Contrast()
