"""Several processes sort together what one would, and end together if one of them fails."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from support import tiny_folder as tiny
from support.processes import run_two
from support.runtimes import CPU
from support.tiny_methods import double_precision

from sortal.errors import SortalError
from sortal.learning.step import TrainingStep
from sortal.reviews.loading import load_run
from sortal.runs.run import Run

# A method that trains in rounds and estimates k, one with a classifier, and one that does not train.
RUNS: dict[str, dict[str, Any]] = {
    "sortal": {"k": "auto", "epochs": 4},
    "simgcd": {"method": "simgcd", "epochs": 2},
    "kmeans": {"method": "kmeans", "k": "auto"},
}
BROKEN = "unlabelled/035.png"


def sort(name: str, folder: Path, out: Path, **options: Any) -> Run:
    """Compute in float64, so that the order of sums does not matter."""
    with double_precision(), tiny.quickly():
        return tiny.sort(folder / "images", out, **{**RUNS[name], **options})


def attempt(work: Callable[[], object]) -> str:
    try:
        work()
    except SortalError as error:
        return f"{type(error).__name__}: {error}"
    return "done"


def work(rank: int, folder: Path) -> None:
    """Sort as one of two processes in the environment of torchrun, and note what happened."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    said: list[str] = []
    noted = replace(CPU, note=said.append)
    counts = {}
    for name in RUNS:
        run = sort(name, folder, folder / "two" / name, runtime=noted)
        counts[name] = (len(run.assignments), run.k.k, [each.file for each in run.quarantine])
    sort("sortal", folder, folder / "interrupted")
    found: dict[str, Any] = {"counts": counts, "said": said}
    found["missing"] = attempt(lambda: tiny.sort(folder / "nothing", folder / "x"))
    found["not shared"] = attempt(lambda: sort("kmeans", folder, folder / "own" / str(rank)))
    with patch("sortal.discovery.stages.cluster", fail) if rank else nullcontext():  # last: it leaves the first alone
        found["failed"] = attempt(lambda: sort("kmeans", folder, folder / "failed"))
    (folder / f"{rank}.json").write_text(json.dumps(found))
    os._exit(0)  # without the barrier at the end of other tests


def fail(*_: object) -> None:
    raise SortalError("out of luck")


Together = tuple[Path, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images, one of which is broken."""
    folder = tmp_path_factory.mktemp("together")
    tiny.write(folder / "images", tiny.planted(10, 6))
    tiny.break_some(folder / "images", [BROKEN])
    return folder


@pytest.fixture(scope="module")
def together(folder: Path) -> Together:
    """Two processes; one of their runs was begun by a single process, which was interrupted while it trained."""

    def stop(what: str, done: int, _: int) -> None:
        if "Learning 6 categories" in what or ("categories: Training" in what and done == 2):
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        sort("sortal", folder, folder / "interrupted", runtime=replace(CPU, progress=stop))
    assert not (folder / "interrupted/run.json").exists()
    run_two(work, folder)
    return folder, [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.thorough
@pytest.mark.parametrize("name", RUNS)
def test_two_processes_sort_like_one(together: Together, name: str, tmp_path: Path) -> None:
    """All return the run, and one writes it; a single process finds everything cached."""
    folder, found = together
    one = sort(name, folder, tmp_path / "one")
    tiny.assert_same_tables(folder / "two" / name, one.folder)
    assert found[0]["counts"][name] == found[1]["counts"][name] == [59, one.k.k, [BROKEN]]
    np.testing.assert_allclose(np.load(folder / "two" / name / "features.npy"), one.features, atol=1e-6)
    shutil.copytree(folder / "two" / name, tmp_path / "again")
    with patch("sortal.clustering.lloyd.lloyd", tiny.never), patch.object(TrainingStep, "__call__", tiny.never):
        again = sort(name, folder, tmp_path / "again")
    assert tiny.tables(again.folder) == tiny.tables(folder / "two" / name)


@pytest.mark.thorough
def test_two_processes_resume_a_run_of_one(together: Together) -> None:
    tiny.assert_same_tables(together[0] / "interrupted", together[0] / "two/sortal")


@pytest.mark.thorough
def test_only_the_first_process_reports(together: Together) -> None:
    first, second = together[1]
    assert any("could not be read" in text for text in first["said"])
    assert second["said"] == []


@pytest.mark.thorough
def test_an_error_ends_all_processes_and_leaves_no_run(together: Together) -> None:
    folder, (first, second) = together
    assert first["missing"].startswith("InputError: The image folder")
    assert second["missing"] == "ElsewhereError: The first process of this run failed. Its own message says why."
    assert first["not shared"].startswith("InputError: The folder of the run must be on storage that all hosts share")
    assert second["not shared"] == second["missing"]
    assert second["failed"] == "SortalError: out of luck"
    assert first["failed"].startswith("ElsewhereError: Another process of this run ended, or cannot be reached")
    assert not (folder / "failed/run.json").exists()


def torchrun(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "sortal"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*command, *words], env=environment, capture_output=True, text=True, timeout=300)


def test_torchrun_sorts_with_the_command_line_which_writes_one_result(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = ["--method=gcd", "--epochs=1", "--backbone=convnet", "--k=6", "--device=cpu", "--json"]
    done = torchrun("discover", folder / "images", "--out", out, *options)
    assert done.returncode == 0, done.stderr  # torchrun would take 3, for files left out, for a crash
    assert json.loads(done.stdout)["folder"] == str(out)
    assert done.stderr.count("could not be read") == 1
    assert len(load_run(out).assignments) == 59
    assert sorted(path.name for path in out.glob("cache/pixels/*/*")) == [
        ".lock",
        "1",
        "index.jsonl",
        "pixels.bin",
        "settings.json",
    ]
