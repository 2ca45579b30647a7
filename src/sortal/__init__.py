"""Sort partly labelled images into classes: the ones you have named and the ones nobody has named yet."""

from importlib import import_module

TYPE_CHECKING = False  # that of `typing` might come from the current folder, where `python -m sortal` looks first
if TYPE_CHECKING:
    from sortal import metrics
    from sortal.clustering.estimate_k import KEstimate, estimate_k
    from sortal.clustering.kmeans import SemiSupervisedKMeans
    from sortal.discovery.exporting import export
    from sortal.discovery.pipeline import discover
    from sortal.discovery.prediction import load, predict
    from sortal.discovery.reviewing.open import review
    from sortal.errors import SortalError
    from sortal.exchange.importing import import_annotations
    from sortal.images import datasets
    from sortal.images.image_set import ImageSet
    from sortal.images.reading import read_images
    from sortal.reviews.loading import load_run
    from sortal.runs.run import Run
    from sortal.system.progress import Runtime

__version__ = "1.0.0rc2"

__all__ = [
    "ImageSet",
    "KEstimate",
    "Run",
    "Runtime",
    "SemiSupervisedKMeans",
    "SortalError",
    "__version__",
    "datasets",
    "discover",
    "estimate_k",
    "export",
    "import_annotations",
    "load",
    "load_run",
    "metrics",
    "predict",
    "read_images",
    "review",
]

_MODULES = {"datasets": "sortal.images.datasets", "metrics": "sortal.metrics"}
_HOME = {
    "ImageSet": "sortal.images.image_set",
    "KEstimate": "sortal.clustering.estimate_k",
    "Run": "sortal.runs.run",
    "Runtime": "sortal.system.progress",
    "SemiSupervisedKMeans": "sortal.clustering.kmeans",
    "SortalError": "sortal.errors",
    "discover": "sortal.discovery.pipeline",
    "estimate_k": "sortal.clustering.estimate_k",
    "export": "sortal.discovery.exporting",
    "import_annotations": "sortal.exchange.importing",
    "load": "sortal.discovery.prediction",
    "load_run": "sortal.reviews.loading",
    "predict": "sortal.discovery.prediction",
    "read_images": "sortal.images.reading",
    "review": "sortal.discovery.reviewing.open",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for (PEP 562), so that `import sortal` loads nothing heavy."""
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name not in _HOME:
        raise AttributeError(f"module 'sortal' has no attribute {name!r}")
    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
