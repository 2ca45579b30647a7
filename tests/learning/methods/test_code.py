"""The code that a training run depends on: edited losses train again, and Sortal's own methods have versions."""

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from support.stores import small_store
from support.tiny_methods import NAMES, TRANSFORMED, batch_of, convnet, double_precision, small, start_epoch, values
from support.tiny_run import named
from torch import Tensor, nn

from sortal.config import Contrast, Training
from sortal.errors import InputError
from sortal.learning.checkpoint import changed_parts, run_key
from sortal.learning.methods import learner_of
from sortal.learning.methods.code import code_of
from sortal.learning.train import train
from sortal.system.progress import Runtime

METHOD = """
import functools
from torch import Tensor, nn
from sortal.config import Contrast
from sortal.learning.methods import Contrastive
from sortal.learning.losses import contrastive
import {package}.losses
from {package}.losses import scaled

WEIGHT = 0.5
FIRST, SECOND = 1.0, 2.0
TABLE = {{"a": scaled, "b": [nn.Linear]}}
def decorated(function):
    @functools.wraps(function)
    def call(*values):
        return function(*values)
    return call

class Head(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs)

class Mine(Contrastive):
    def __init__(self, backbone):
        super().__init__(backbone, Contrast(hidden=16, bottleneck=8))
        self.extra = Head(8, 8)

    @decorated
    def losses(self, batch):
        found, factor = super().losses(batch), WEIGHT * FIRST / SECOND
        return {{name: factor * TABLE["a"]({package}.losses.shifted(value)) for name, value in found.items()}}
"""
LOSSES = """
FACTOR = 2.0

def scaled(value):
    return FACTOR * value

def shifted(value):
    def inner():
        return value + 1
    return inner()
"""


@pytest.fixture
def edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Write a package with a method, with some text replaced, import it anew, and return the code of its method."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def edit(*changes: tuple[str, str], package: str = "my_methods") -> str:
        folder = tmp_path / package
        folder.mkdir(exist_ok=True)
        for name, text in (("__init__", ""), ("losses", LOSSES), ("mine", METHOD.format(package=package))):
            for old, new in changes:
                text = text.replace(old, new)
            (folder / f"{name}.py").write_text(text)
        for name in [each for each in sys.modules if each.partition(".")[0] == package]:
            del sys.modules[name]
        importlib.invalidate_caches()
        return code_of(importlib.import_module(f"{package}.mine").Mine(convnet()))

    yield edit
    for name in [each for each in sys.modules if each.startswith("my_methods")]:
        del sys.modules[name]


def test_what_a_method_refers_to_is_part_of_its_code(edited: Callable[..., str]) -> None:
    code = edited()
    assert code == edited()
    assert code.startswith("loop 1, Contrastive 1, ")
    changes = {
        "a constant": ("WEIGHT = 0.5", "WEIGHT = 0.25"),
        "constants swapped": ("FIRST, SECOND", "SECOND, FIRST"),
        "a table": ('"b"', '"c"'),
        "the method": ("super().losses(batch), WEIGHT", "{**super().losses(batch)}, WEIGHT"),
        "a module of it": ("return super().forward(inputs)", "return -super().forward(inputs)"),
        "a decorator": ("return function(*values)", "return function(*values[:2])"),
        "a loss in another file": ("FACTOR * value", "value * FACTOR"),
        "a constant in another file": ("FACTOR = 2.0", "FACTOR = 3.0"),
        "a function within a function": ("return value + 1", "return value + 2"),
    }
    for what, change in changes.items():
        assert edited(change) != code, what


def test_an_installed_package_that_brings_a_method_counts_and_its_libraries_do_not(
    edited: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_library.py").write_text("FACTOR = 1.0")
    using = ("import functools", "import functools\nimport my_library")
    monkeypatch.setattr("sortal.learning.methods.code.INSTALLED", {tmp_path.name, "site-packages"})
    code = edited(using)
    assert edited(using, ("FACTOR = 2.0", "FACTOR = 3.0")) != code
    (tmp_path / "my_library.py").write_text("FACTOR = 2.0")
    assert edited(using) == code
    monkeypatch.setattr("sortal.learning.methods.code.INSTALLED", {"site-packages"})
    assert edited(using) != code


def test_methods_that_were_typed_in_are_told_apart() -> None:
    """Without a file, there is no source, but what was compiled from it."""

    def typed(number: float, factor: float = 1.0, constant: float = 1.0) -> str:
        space: dict[str, Any] = {"__name__": "__main__", "CONSTANT": constant}
        exec(
            "from sortal.learning.methods import Contrastive\n"
            f"def scaled(value): return {factor} * value * CONSTANT\n"
            "class Mine(Contrastive):\n"
            "    def losses(self, batch):\n"
            f"        return {{name: scaled({number} * value) for name, value in super().losses(batch).items()}}",
            space,
        )
        return code_of(space["Mine"](convnet(), Contrast(hidden=16, bottleneck=8)))

    assert typed(2.0) == typed(2.0)
    assert len({typed(2.0), typed(3.0), typed(2.0, factor=2.0), typed(2.0, constant=2.0)}) == 4


def test_an_edited_loss_is_not_given_the_weights_of_the_former_one(edited: Callable[..., str], tmp_path: Path) -> None:
    images, store, notes = named(["x", "y", None, None]), small_store(4, 8), list[str]()
    runtime = Runtime(device="cpu", note=notes.append)

    def trained() -> None:
        torch.manual_seed(0)
        method = importlib.import_module("my_methods.mine").Mine(convnet())
        train(method, images, store, Training(epochs=1, batch_size=4), folder=tmp_path / "run", runtime=runtime)

    edited()
    trained()
    trained()
    assert notes[-1] == "Training is already complete."
    edited(("FACTOR = 2.0", "FACTOR = 3.0"))
    with pytest.raises(InputError, match="it holds one with different code"):
        trained()


# Sortal's own methods: losses and norms of gradients, summed over the weights, of made-up weights and images. Whoever
# changes what a method computes changes these, and must raise its version, or old weights pass for new ones.
RECORDED: dict[str, tuple[int, dict[str, float], float]] = {
    "cms": (2, {"unsupervised": 1.2658074888925537, "supervised": 0.3966181313001868}, 78.1168343724951),
    "gcd": (1, {"unsupervised": 1.2658086661255854, "supervised": 0.3966181313001868}, 77.80011830729849),
    "mgce": (
        1,
        {
            "classification": 0.2812577602919982,
            "unsupervised": 1.2658086661255854,
            "supervised": 0.3966181313001868,
            "communities": 0.035678595473250176,
        },
        160.52016011042687,
    ),
    "rankstats": (
        1,
        {"classification": 0.70272441589362, "pairs": 0.7335106268593249, "consistency": 3.648045531094726e-05},
        26.163881003736932,
    ),
    "selex": (
        2,
        {
            "unsupervised": 1.2658086661255854,
            "supervised": 0.1983090656500934,
            "level_0": 0.17632107208763415,
            "level_1": 0.0850483374804346,
        },
        77.0892649489883,
    ),
    "simgcd": (
        1,
        {
            "distillation": 0.7034145523085168,
            "balance": 0.1692842299068319,
            "classification": 0.4761269470518881,
            "unsupervised": 1.2658086661255854,
            "supervised": 0.3966181313001868,
        },
        270.80855804644017,
    ),
    "sortal": (
        1,
        {
            "distillation": 0.7034145523085168,
            "balance": 0.07625073086822869,
            "classification": 0.4761269470518881,
            "unsupervised": 1.2684620143245733,
            "supervised": 0.3966181313001868,
        },
        232.46831952792877,
    ),
    "legogcd": (
        1,
        {
            "distillation": 0.7034145523085168,
            "balance": 0.1692842299068319,
            "classification": 0.4761269470518881,
            "unsupervised": 1.2658086661255854,
            "supervised": 0.3966181313001868,
            "retention": 1.0940344498247245,
        },
        414.2921876248751,
    ),
    "debgcd": (
        1,
        {
            "distillation": 0.7034145523085168,
            "balance": 0.1692842299068319,
            "classification": 0.4761269470518881,
            "unsupervised": 1.2658086661255854,
            "supervised": 0.3966181313001868,
            "debiased_labels": 1.2281246430120971,
            "debiased_predictions": 1.5480918170762585,
            "detection": 0.0327320232199802,
            "ambiguity": 1.3992210198987245e-05,
            "consistency": 1.9679989414659114e-08,
        },
        1393.3185399075737,
    ),
    "rlcd": (
        1,
        {
            "distillation": 0.6094601533576817,
            "balance": 0.3071171045512743,
            "distinction": 0.21128456476772695,
            "classification": 0.7097979954718135,
            "supervised": 0.38713126861683655,
            "old_agreement": 0.00042705306760964764,
            "old_distinction": 0.06951438586148977,
            "old_classification": 0.5045711283018085,
            "old_supervised": 0.5437151460868823,
            "exchange": 0.21035809000755135,
        },
        339.44390176113876,
    ),
    "uno": (1, {"unsupervised": 0.7249311404667562, "supervised": 0.8168056714663945}, 388.99817864051613),
}


def drawn(shape: Sequence[int], number: int) -> Tensor:
    """Return numbers between −½ and ½ that look random, and are the same on every machine: by integers."""
    return ((torch.arange(prod(shape)) * 7919 + 104729 * (number + 1)) ** 2 % 10007 / 10007 - 0.5).view(*shape)


def filled(module: nn.Module) -> None:
    """Give all weights values that are the same on every machine, about as large as they usually are."""
    with torch.no_grad():
        for number, value in enumerate(module.parameters()):
            value.copy_(drawn(value.shape, number) * (12 / max(value[0].numel(), 1)) ** 0.5)


@pytest.mark.parametrize("name", [*NAMES, *TRANSFORMED])
def test_a_method_that_computes_something_else_has_another_version(name: str) -> None:
    with double_precision():
        method = small(name)
        filled(method)
        start_epoch(method, drawn((6, method.backbone.spec.width), 50), [0, 1, -1, -1, 0, 1])
        side, labels = method.backbone.spec.image_size, [0, 1, -1, -1]
        pixels = 3 * drawn((8, 3, side, side), -1)
        batch = batch_of(method(method.backbone.trunk(pixels)), labels, progress=0.25)
        losses = method.losses(batch)
        sum(losses.values()).backward()
        size = sum(float(value.grad.abs().sum()) for value in method.parameters() if value.grad is not None)
    version, wanted, gradient = RECORDED[name]
    now = (type(method).version, values(losses), size)
    assert type(method).version == version, f"record what it computes now: {now}"
    # Thousands of operations in float64, the errors of which a small temperature multiplies by tens.
    assert values(losses) == pytest.approx(wanted, rel=1e-9, abs=1e-12), f"raise its version, and record {now}"
    assert size == pytest.approx(gradient, rel=1e-8), f"raise its version, and record {now}"


def test_a_training_of_the_first_version_has_the_key_that_it_had() -> None:
    """Recorded before settings were added and small batches balanced over recent views; they need not train again."""
    images, store = named(["x", None]), small_store(2, 8)
    method = small("sortal")
    filled(method)
    key = run_key(method, images, store, Training(batch_size=4))
    assert key["code"] == "loop 1, SimGcd 1, Sortal 1"
    assert key["weights"] == "d56f243c90a0a4984f93e5626b7a9fe8010b73cc8ee587cdcc9cfad84f5fce69"
    assert (
        sha256(key["settings"].encode()).hexdigest()
        == "f3e8cdece3a0fd11008c0693bcb405207f2b7b1f17c008897be6eada3472ad45"
    )
    windows = run_key(method, images, store, Training(batch_size=4, windows=True))
    assert changed_parts(windows, key) == ["settings (windows was True, is False)"]
    balanced = small("sortal", k=9)  # more categories than the eight views of a batch
    assert "recent" in dict(balanced.named_buffers())
    assert "recent views" in run_key(balanced, images, store, Training(batch_size=4))["settings"]


def test_versions_are_part_of_a_key() -> None:
    images, store = named(["x", None]), small_store(2, 8)
    for name in (*NAMES, *TRANSFORMED):
        code = run_key(small(name), images, store, Training())["code"]
        learner = learner_of(name)
        assert learner is not None
        assert f"{learner.__name__} {learner.version}" in code
