"""The features that new images are compared with: those of a run's images, or of a model handed over without them."""

import os
from pathlib import Path

import numpy as np

from sortal.errors import InputError
from sortal.images.moments import Moments
from sortal.runs import arrays
from sortal.runs.confidence import Features
from sortal.runs.run import DOUBTFUL_STATUSES, Run
from sortal.system.open_folder import own_folder

REFERENCE = "reference.npy"  # of a run that was handed over without its images


def is_handed_over(run: Run) -> bool:
    """Tell whether a run is a model that was exported without the images it was made of."""
    return os.path.lexists(run.folder / REFERENCE)  # a link, which is refused, must not pass for a run with its images


def check_has_images(folder: Path) -> None:
    """Raise InputError if the folder of a run is a model that was exported without images."""
    if os.path.lexists(folder / REFERENCE):
        raise InputError(
            f"The model in {str(folder)!r} holds no images, as it was exported without them: it can only sort new "
            "ones, with predict. Use the run that it was made of."
        )


def reference_of(run: Run) -> Features:
    """Return the features (m, d) of a run, one for each moment, without doubtful images that came later.

    Those may be of a class that it does not have, as may what is in no category, and must not make it seem familiar.
    """
    if is_handed_over(run):
        return _read(run)
    a = run.assignments
    sure = (a.folders < run.confidence.later_from) | ~np.isin(a.status, DOUBTFUL_STATUSES)
    kept = sure & (a.category_id >= 0)
    return Moments.grouped(a.group[kept]).means(run.features if kept.all() else run.features[kept])


def _read(run: Run) -> Features:
    try:
        with np.errstate(over="ignore"):
            found = arrays.read_finite(own_folder(run.folder) / REFERENCE).astype(np.float32, copy=False)
        if not np.isfinite(found).all():
            raise ValueError(f"{REFERENCE} has numbers that are too large")
        if found.shape[1] != run.centres.shape[1]:
            raise ValueError(f"{REFERENCE} must have as many columns as the centres")
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"The model in {str(run.folder)!r} is damaged: {error}. Export it again.") from error
    return found
