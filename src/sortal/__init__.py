"""Sort partly labelled images into classes: the ones you have named and the ones nobody has named yet."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sortal import datasets, metrics
    from sortal.errors import SortalError
    from sortal.estimate import KEstimate, estimate_k
    from sortal.images import ImageSet
    from sortal.kmeans import SemiSupervisedKMeans
    from sortal.pipeline import discover
    from sortal.reading import read_images

__version__ = "0.1.0"

__all__ = [
    "ImageSet",
    "KEstimate",
    "SemiSupervisedKMeans",
    "SortalError",
    "__version__",
    "datasets",
    "discover",
    "estimate_k",
    "metrics",
    "read_images",
]

_MODULES = ("datasets", "metrics")
_HOME = {
    "ImageSet": "sortal.images",
    "KEstimate": "sortal.estimate",
    "SemiSupervisedKMeans": "sortal.kmeans",
    "SortalError": "sortal.errors",
    "discover": "sortal.pipeline",
    "estimate_k": "sortal.estimate",
    "read_images": "sortal.reading",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for (PEP 562), so that `import sortal` loads nothing heavy."""
    if name in _MODULES:
        return import_module(f"sortal.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'sortal' has no attribute {name!r}")
    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
