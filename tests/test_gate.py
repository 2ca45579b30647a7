"""The gate of speed: which bound a processor must keep, and that a release runs it."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import release
import torch

from sortal.system.device import Compute

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Any:
    if not FOLDER.exists():
        pytest.skip("the benchmarks are not here")
    pytest.importorskip("resource")
    monkeypatch.syspath_prepend(FOLDER)
    spec = importlib.util.spec_from_file_location("benchmarks_gate", FOLDER / "gate.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, script)
    spec.loader.exec_module(script)
    return script


@pytest.mark.parametrize(
    ("machine", "bf16", "least"),
    [
        ("x86_64", False, {"without": 2, "with": 2}),
        ("x86_64", True, {"without": 2, "with": 5}),
        ("aarch64", False, {"without": 3, "with": 3}),
        ("arm64", True, {"without": 3, "with": 5}),
    ],
)
def test_bounds_follow_the_processor(
    gate: Any, machine: str, bf16: bool, least: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = Compute(torch.device("cpu"), bf16=bf16)
    monkeypatch.setattr(gate, "choose_compute", lambda *_, **__: compute)
    monkeypatch.setattr(gate.platform, "machine", lambda: machine)
    ratios = [gate.Ratio("without", "", 2, 3, None), gate.Ratio("with", "", 2, 3, None, bfloat16=5)]
    assert {each.name: each.least for each in ratios} == least


def test_a_release_runs_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = list[tuple[str, ...]]()
    monkeypatch.setattr(release, "run", lambda *words: ran.append(words))
    release.STEPS["speed"](release.Release("", ""))
    assert ran == [(sys.executable, "benchmarks/gate.py")]
    assert (release.ROOT / ran[0][1]).is_file()
