"""What `import sortal` gives, and that it is quick."""

import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import sortal

PUBLIC = {  # every name users may import from `sortal`, and where it lives
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
MODULES = {"datasets": "sortal.images.datasets", "metrics": "sortal.metrics"}


def test_public_names_are_those_of_their_modules() -> None:
    assert set(sortal.__all__) == {*PUBLIC, *MODULES, "__version__"}
    assert dir(sortal) == sorted(sortal.__all__)
    for name, module in PUBLIC.items():
        assert getattr(sortal, name) is getattr(importlib.import_module(module), name)
        if name not in ("KEstimate", "SortalError"):  # made by others, not by users
            assert re.search(r">>> |    run = sortal\.", getattr(sortal, name).__doc__), f"{name} has an example"
    for name, module in MODULES.items():
        assert getattr(sortal, name) is importlib.import_module(module)
    names: dict[str, object] = {}
    exec("from sortal import *", names)
    assert set(sortal.__all__) <= set(names)
    with pytest.raises(AttributeError, match="module 'sortal' has no attribute 'kmedians'"):
        _ = sortal.kmedians


def documented() -> Iterator[tuple[str, Any]]:
    """Yield the public functions and classes, and their methods, by name."""
    for name in sortal.__all__:
        found = getattr(sortal, name)
        if inspect.ismodule(found):
            own = {key: each for key, each in vars(found).items() if getattr(each, "__module__", "") == found.__name__}
            yield from ((f"{name}.{key}", each) for key, each in own.items() if key[0] != "_" and callable(each))
        elif callable(found):
            yield name, found
            own = dict(vars(found)) if inspect.isclass(found) else {}
            yield from (
                (f"{name}.{key}", each) for key, each in own.items() if inspect.isfunction(each) and key[0] != "_"
            )


def test_help_explains_every_parameter() -> None:
    names = {name for name, _ in documented()}
    assert {
        "discover",
        "Run",
        "Run.to_pandas",
        "SemiSupervisedKMeans.fit",
        "metrics.evaluate",
        "datasets.load",
    } <= names
    for name, found in documented():
        doc = inspect.getdoc(found) or ""
        if name == "SortalError":  # raised by Sortal alone
            continue
        for each in inspect.signature(found).parameters.keys() - {"self"}:
            assert re.search(rf"`{each}`|`{each}=|^{each} : ", doc, flags=re.MULTILINE), f"{name} explains {each}"


def test_importing_sortal_loads_nothing_heavy_and_names_come_one_at_a_time() -> None:
    light = "sortal.SortalError, sortal.ImageSet, sortal.load_run, sortal.Run, sortal.export, sortal.metrics"
    heavy = "print(*{'PIL', 'numpy', 'scipy', 'sklearn', 'torch'} & set(sys.modules))"
    code = f"import sys, sortal; {heavy}; {light}; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines() == ["", "False"]


def test_sorting_imports_neither_scikit_learn_nor_the_compiler_of_pytorch() -> None:
    """Each takes seconds; only the estimator needs the one, and only long training the other."""
    code = (
        "import sys, numpy as np, sortal; from sortal.discovery import pipeline; "
        "from sortal.discovery.grouping import shared_kmeans; "
        "from sortal.system.distributed import alone; "
        "x = np.repeat(np.eye(4, dtype=np.float32), 2, axis=0); "
        "shared_kmeans.fit(x, None, 2, n_init=1, seed=0, processes=alone('cpu')); "
        "sortal.estimate_k(x, [0, 0, 1, 1, -1, -1, -1, -1], k_max=4, device='cpu'); "
        "from sortal.learning.backbones.registry import load_backbone; load_backbone('test_vit', weights='random'); "
        "print(*(each in sys.modules for each in ('torch', 'timm', 'sklearn', 'torch._dynamo')))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["True", "True", "False", "False"]
