import importlib
import subprocess
import sys

import pytest

import sortal

PUBLIC = {  # every name users may import from `sortal`, and where it lives
    "ImageSet": "sortal.images",
    "KEstimate": "sortal.estimate",
    "SemiSupervisedKMeans": "sortal.kmeans",
    "SortalError": "sortal.errors",
    "discover": "sortal.pipeline",
    "estimate_k": "sortal.estimate",
    "read_images": "sortal.reading",
}
MODULES = ("datasets", "metrics")


def test_public_names() -> None:
    assert set(sortal.__all__) == {*PUBLIC, *MODULES, "__version__"}
    assert dir(sortal) == sorted(sortal.__all__)
    assert len(sortal.__all__) <= 10, "no more than can be held in the head"


@pytest.mark.parametrize("name", PUBLIC)
def test_public_name_is_the_one_of_its_module(name: str) -> None:
    assert getattr(sortal, name) is getattr(importlib.import_module(PUBLIC[name]), name)


@pytest.mark.parametrize("name", MODULES)
def test_public_modules_are_the_submodules(name: str) -> None:
    assert getattr(sortal, name) is importlib.import_module(f"sortal.{name}")


def test_star_import_gives_every_public_name() -> None:
    names: dict[str, object] = {}
    exec("from sortal import *", names)
    assert set(sortal.__all__) <= set(names)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'sortal' has no attribute 'kmedians'"):
        _ = sortal.kmedians


def test_importing_sortal_loads_nothing_heavy() -> None:
    code = "import sys, sortal; print(*{'PIL', 'numpy', 'scipy', 'sklearn', 'torch'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


def test_names_come_one_at_a_time() -> None:
    light = "sortal.SortalError, sortal.ImageSet, sortal.read_images, sortal.datasets, sortal.metrics"
    code = f"import sys, sortal; {light}; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
