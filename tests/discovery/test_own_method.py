"""A method outside the package, from the page on how to write one: sorted with, killed, resumed, compared."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import tiny_folder as tiny
from support.command_line import invoke, refused
from support.fork_server import ForkServer
from support.reviews import session_of
from support.runtimes import CPU
from support.tiny_methods import batch_of, convnet, cross_entropy, double_precision, softmax, values

from sortal import load_run, predict
from sortal.cli import app
from sortal.config import METHODS, REFERENCES, Retention, load_method
from sortal.config.plugins import load_object
from sortal.learning.methods import LegoGcd, SimGcd
from sortal.learning.step import TrainingStep
from sortal.research.benchmark import comparison, records, typesetting

PAGE = Path(__file__).parents[2] / "docs" / "methods" / "own.md"
COMMON = ("--backbone", "convnet", "--epochs", "2", "--k", "6", "--device", "cpu")
OF_PAGE = ("--set", "losses.hidden=16", "--set", "losses.threshold=0.3")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Be in a folder with the code of the page, and forget it afterwards."""
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]
    assert code.count("\n") <= 70
    (tmp_path / "lego.py").write_text(code)
    tables: list[dict[str, Any]] = [METHODS, REFERENCES]
    before = [dict(table) for table in tables]
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for table, names in zip(tables, before, strict=True):
        for name in table.keys() - names.keys():
            del table[name]
    sys.modules.pop("lego", None)


def test_its_loss_is_that_of_the_formula() -> None:
    load_method("lego.py:LegoGcd")
    settings = load_object("lego.py:Lego")(hidden=8, bottleneck=3, threshold=0.4)
    with double_precision():
        method = load_object("lego.py:LegoGcd")(convnet(), 4, [0, 1], settings)
        labels = [0, -1, -1, 1, -1]
        outputs = torch.randn(10, 7, generator=torch.Generator().manual_seed(1)).double() / 4
        usual = [0.1, 0.2, 0.3, 0.4]
        method.usual.copy_(torch.tensor(usual))
        batch = batch_of(outputs, labels)
        found = values(method.losses(batch))
        costs = []
        for row, label in zip(outputs[:, 3:].tolist(), labels * 2, strict=True):
            p = softmax(row, 0.1)
            sure = label < 0 and p.index(max(p)) < 2 and max(p) >= 0.4
            shifted = softmax([x / 0.05 + 0.4 * np.log(q) for x, q in zip(row, usual, strict=True)])
            costs.append(cross_entropy(softmax(row, 0.05), shifted) if sure else 0.0)
        assert 1 <= sum(cost > 0 for cost in costs) < 6
        assert found.pop("known") == pytest.approx(2 * sum(costs) / len(costs), rel=1e-9)
        assert found == pytest.approx(values(SimGcd.losses(method, batch)), rel=1e-12)
        ours = LegoGcd(convnet(), 4, [0, 1], Retention(hidden=8, bottleneck=3, confidence=0.4))
        ours.mean_prediction.copy_(method.usual)
        gradients: list[torch.Tensor] = []
        for name, each in {"known": method, "retention": ours}.items():
            leaf = outputs.clone().requires_grad_()
            gradients += torch.autograd.grad(each.losses(batch_of(leaf, labels))[name], leaf)
        torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)
        method.after_step(batch)
        mean = torch.tensor([softmax(row) for row in outputs[:, 3:].tolist()]).mean(0)
        torch.testing.assert_close(method.usual, 0.999 * torch.tensor(usual) + 0.001 * mean)


# In a child process


def sort(words: list[str], stop: int) -> int:
    """Run the command, and be killed at a step of training, if any."""
    step, taken = TrainingStep.__call__, []

    def stopping(self: TrainingStep, *given: Any) -> Any:
        taken.append(1)
        if len(taken) == stop:
            raise KeyboardInterrupt
        return step(self, *given)

    setattr(TrainingStep, "__call__", stopping)  # noqa: B010
    with tiny.quickly():
        return app.main(words)


def test_it_sorts_resumes_predicts_and_loads_where_it_is_missing(here: Path, fork_server: ForkServer) -> None:
    tiny.write(here / "images")
    words = ["discover", str(here / "images"), *COMMON, "--trained", "2"]
    own = ["--method", str(here / "lego.py:LegoGcd"), *OF_PAGE]
    fork_server.run(sort, [*words, *own, "--out", str(here / "whole")], 0, codes=[0])
    fork_server.run(sort, [*words, *own, "--out", str(here / "killed")], 2, codes=[130])
    fork_server.run(sort, [*words, *own, "--out", str(here / "killed")], 0, codes=[0])
    for name in ("model.safetensors", "head.npy", "assignments.csv"):
        assert (here / "whole" / name).read_bytes() == (here / "killed" / name).read_bytes(), name
    assert "lego" not in METHODS, "only the children have loaded it"
    run = load_run(here / "whole")
    assert (run.facts.recipe.method, run.facts.settings.method) == ("lego", own[1])
    assert run.facts.recipe.losses["threshold"] == 0.3  # type: ignore[index]
    assert json.loads((here / "whole/model.json").read_text())["trained"] == 2, "of three blocks"
    assert run.head is not None
    assert run.head.shape[0] == 6
    assert json.loads((here / "whole/run.json").read_text())["settings"]["set"] == [*own[3::2]]
    new = tiny.save(here / "new" / "one.png", tiny.picture("ash", 99))
    found = predict(here / "whole", new.parent, runtime=CPU)
    assert len(found.assignments) == 1
    assert "lego" not in METHODS
    said = refused("discover", str(here / "whole"), "--k", "7")
    assert f"The method of this run, '{own[1]}', is not loaded" in said
    assert "Name it if you trust it (--method" in said
    (here / "lego.py").unlink()
    assert "does not exist" in refused("discover", str(here / "whole"), *own)
    assert invoke("decisions", str(here / "whole")).code == 0


OTHER = """
from sortal.config import register

def halves(features, labels, k, losses, seed):
    return (features[:, 0] > features[:, 0].mean()).astype(int)

HALVES = register("halves", None, clustering="own", cluster=halves, finds_k=True)
"""
TRAP = "raise SystemExit('the code that a run names was imported')\n"


@pytest.fixture
def uninstalled(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run whose method came from a package that is not installed any more."""
    site = here / "site"
    for path, text in {
        "paper.py": OTHER,
        "paper-2.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: paper\nVersion: 2.1\n",
        "paper-2.1.dist-info/entry_points.txt": "[sortal.methods]\nsplit-in-two = paper:HALVES\n",
    }.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
    tiny.write(here / "images")
    words = ["discover", here / "images", "--out", here / "run", "--backbone", "convnet", "--device", "cpu"]
    with monkeypatch.context() as installed:
        installed.syspath_prepend(site)
        done = invoke(*words, "--method", "split-in-two")
        assert done.code == 0, done.err
    for table in (METHODS, REFERENCES):
        for name in [name for name, of in table.items() if "halves" in (name, of)]:
            del table[name]
    del sys.modules["paper"]
    (here / "paper.py").write_text(TRAP)
    return here / "run"


def test_a_run_whose_method_is_not_installed_says_which_package_is_missing(uninstalled: Path) -> None:
    told = "'split-in-two', is 'paper:HALVES' of the package 'paper 2.1', which is not installed"
    way = "Install that package if you trust it, then name the method (--method paper:HALVES)."
    config = ("images", "--config", uninstalled / "run.json", "--out", "again")
    for words in ((uninstalled, "--k", "7"), (uninstalled, "--k", "7", "--method", "split-in-two"), config):
        said = refused("discover", *words)
        assert told in said
        assert way in said
    facts = json.loads((uninstalled / "run.json").read_text())
    assert facts["method_source"] == {"code": "paper:HALVES", "package": "paper", "version": "2.1"}
    facts["method_source"] = None  # as of a version that did not record it
    (uninstalled / "run.json").write_text(json.dumps(facts))
    assert "the run does not say where its code is" in refused("discover", uninstalled, "--k", "7")
    assert "paper" not in sys.modules


def test_all_but_sorting_works_where_the_method_of_a_run_is_not_installed(uninstalled: Path, here: Path) -> None:
    run = load_run(uninstalled)
    assert run.facts.settings.method == "split-in-two"
    (uninstalled / "report.html").unlink()
    assert invoke("report", uninstalled).code == 0
    assert b"split-in-two" in (uninstalled / "report.html").read_bytes()
    session = session_of(run)
    named = session.decide(0, {"do": "rename", "category": run.categories[-1].id, "name": "fern"})
    assert named["words"] == f"Renamed {run.categories[-1].name!r} to 'fern'"
    assert load_run(uninstalled).categories[-1].name == "fern"
    done = invoke("export", uninstalled, "--format", "csv", "--out", here / "table.csv")
    assert done.code == 0, done.err
    assert "fern" in (here / "table.csv").read_text()
    new = tiny.save(here / "new" / "one.png", tiny.picture("ash", 99))
    assert len(predict(uninstalled, new.parent, runtime=CPU).assignments) == 1
    assert "paper" not in sys.modules


def test_its_settings_are_in_the_help_of_commands_that_name_it(here: Path) -> None:
    text = " ".join(invoke("discover", "--help", "--method", "lego.py:LegoGcd").out.split())
    assert "Settings of Lego, for --set NAME=VALUE:" in text
    assert "losses.threshold = 0.7: Confidence from which an image is sure to be known." in text, "its own"
    assert "losses.student_temperature = 0.1: " in text, "its parent's"
    assert "training.decay_biases = False: " in text, "as it is registered"
    assert "losses.threshold" not in invoke("discover", "--help").out
    both = invoke("benchmark", "--help", "--method", "uno,lego.py:LegoGcd").out
    assert both.index("Settings of UNO+") < both.index("Settings of Lego") < both.index("losses.threshold")
    said = refused("discover", "--help", "--method", "lego.py:Other")
    assert "'lego.py' must define 'Other'" in said


def test_it_has_a_row_for_each_setting_beside_the_methods_of_the_package(here: Path) -> None:
    root = here / "data"
    for name in tiny.CLASSES:
        for number in range(6):
            tiny.save(root / name / f"{number}.png", tiny.picture(name, number))
    words = ["benchmark", "folder", "--root", str(root), *COMMON[:2], "--epochs", "1", "--device", "cpu"]
    words += ["--seeds", "0", "1"]
    done = invoke(*words, "--method", "lego.py:LegoGcd", "--set", "losses.hidden=8,16", "--out", "out")
    assert done.code == 0, done.err
    found = records.find([Path("out")])
    names = {f"data/lego losses.hidden={hidden}" for hidden in (8, 16)}
    assert sorted((each.name, each.seed) for each in found) == sorted((name, seed) for name in names for seed in (0, 1))
    text = typesetting.document(comparison.tables(found))
    for name in names:
        assert f"| {name.replace('data/lego', 'Lego')} |" in text, "by its title"
    again = invoke(*words, "--method", "lego.py:LegoGcd", "--set", "losses.hidden=8", "--out", "out")
    assert "2 of 2 runs are already recorded." in again.err
    Path("lego.py").write_text(Path("lego.py").read_text().replace("def after_step", "def unused"))
    shutil.rmtree("__pycache__", ignore_errors=True)
    changed = invoke(*words, "--method", "lego.py:LegoGcd", "--set", "losses.hidden=8", "--out", "out")
    assert "already recorded" not in changed.err
    assert "will be replaced" in changed.err
    Path("lego.py").write_text(Path("lego.py").read_text().replace("usual.log()", "usual.logs()"))
    shutil.rmtree("__pycache__", ignore_errors=True)
    broken = invoke(*words, "--method", "lego.py:LegoGcd", "--set", "losses.hidden=8", "--out", "out")
    line = 1 + Path("lego.py").read_text().split("usual.logs()")[0].count("\n")
    where = f"AttributeError: 'Tensor' object has no attribute 'logs', in line {line} of '{here / 'lego.py'}'"
    assert broken.code == 1
    assert where in broken.err
