"""Every script in benchmarks/ explains itself and runs at its smallest size: what makes figures must not rot."""

from __future__ import annotations

import hashlib
import io
import re
import runpy
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from support import tiny_folder
from support.reviews import saved_run

import sortal
from sortal.cli import app

# PyTorch's own compiler uses what PyTorch 2.11 has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

FOLDER = Path(__file__).parents[1] / "benchmarks"
FILES = sorted(path.name for path in FOLDER.glob("*.py"))
MODULES = ("peers.py",)  # without a command line: others import them
FEW = 300  # digits
NETWORK = ["--backbone", "convnet", "--epochs", "1"]
SORT = ["--backbone", "convnet", "--method", "kmeans", "--k", "4", "--device", "cpu"]


@dataclass(frozen=True)
class Case:
    """A call of a script, and what it then prints."""

    script: str
    words: str  # calls after each other, between semicolons; Inputs.fill replaces names in capitals
    says: str
    apart: bool = False  # in a process of its own, as it starts processes that import it
    needs: str | None = None  # a module that not every system has

    def __str__(self) -> str:
        return " ".join([self.script, *self.words.split()[:1]])


CASES = [
    Case("bursts.py", "variants IMAGES --count 10 ; untouched IMAGES", r"(?s)\| structure \|.*images, \d+ moments"),
    Case(
        "bursts.py",
        "calibration --count 4 --seeds 1 --method kmeans --k 10",
        r"(?s)\| given \| 0 \| 10.*\| not given \| 0",
    ),
    Case("labels.py", "RUN --each 0 4", r"\| run \| \d+ \|( \d+\.\d \|){7}"),
    Case("calibration.py", "RUN --held 0 3 --draws 1", r"\| run \| \d+\.\d \| \d+\.\d \|"),
    Case(
        "clustering.py",
        "speed starts equal limit growth estimate mixtures --scale tiny --n-init 1 --budget 1 --threads THREADS",
        r"(?s)### .*same starts.*growth with d.*estimate of k.*mixtures",
    ),
    Case("digits.py", "--seeds 0 --epochs 1 --n-init 2", r"pixels: .*\nlr 0\.05, temperature 0\.3: "),
    Case("discover.py", "table IMAGES NEW.csv", ""),
    Case("discover.py", f"sort IMAGES --seeds 0 --device cpu {' '.join(NETWORK)}", r'"given": "auto"(.|\n)*"given": 4'),
    Case(
        "discover.py",
        f"update IMAGES --seeds 0 --device cpu --unseen 1 {' '.join(NETWORK)}",
        '"of_unseen_classes": {"images": [1-9]',
    ),
    Case("later.py", "VECTORS --methods kmeans --runs NEW", r"\| vectors-kmeans-0 \| with \|( \d+\.\d \|){5} \d"),
    Case(
        "vectors.py",
        "VECTORS --mixture 40 4 6 --methods kmeans --runs NEW",
        r"vectors kmeans seed 0: \d+\.\d/.*, k \d(.|\n)*mixture-40-4 kmeans seed 0: \d+\.\d/.*, k \d",
    ),
    Case(
        "wild.py",
        "IMAGES --weights random --conditions F --methods sortal gcd --seeds 0 --device cpu --out NEW --images 32 "
        f"--labels 2 --k 5 --lr 0.01 --set training.batch_size=16 {' '.join(NETWORK)}",
        r'"method": "sortal".*"images": 32.*"all": .*"k": 5,(.|\n)*"method": "gcd".*"all": .*"k": 5,',
    ),
    Case("end_to_end.py", "make IMAGES NEW --count 48", "", apart=True),
    Case("end_to_end.py", f"run MADE --times 1 -- {' '.join(SORT)}", r"\| 1 \| \d", apart=True, needs="pty"),
    Case(
        "flowers.py",
        f"IMAGES random --views live --outputs bottleneck --seeds 0 {' '.join(NETWORK)}",
        '"what": "fine-tuned"',
    ),
    Case(
        "backbones.py",
        "test_convnext --seconds 0.01",
        r"\| `test_convnext` \| 160 \| 64 \| 0\.2 M \| 0\.1 M \| 10 kB \| ",
    ),
    Case("forecast.py", f"discover MADE --out NEW {' '.join(SORT)}", r"\| \d+\.\d s \| \d+\.\d s \| "),
    Case("gate.py", "--tiny", r"(?s)\| cached step \|.*\| help \|( [\w ]+ \|) \d", needs="resource"),
    Case("growth.py", "--count 60 --runs kmeans --device cpu --scratch NEW", r"\| kmeans \| 60 \|", apart=True),
    Case("hosts.py", f"MADE --ways two\0processes -- {' '.join(SORT)}", r"\| two processes \| .* 40 of 40 \| 0 \|"),
    Case("map.py", "--count 200 --seeds 0 --peers sortal openTSNE", r"\| sortal \| \d"),
    Case("mutations.py", "--count 1 --jobs 1 --tests TESTS", "1 of 1 caught"),
    *(
        Case("pixels.py", f"{mode} --count 4 --size 64 48 --workers 1", r"1 workers\n\S", apart=True, needs="resource")
        for mode in ("crops", "first")
    ),
    Case(
        "review.py",
        "simulate RUN --looks 0.1 --misses 0 --minutes 1 --policies one ours --out NEW ; table NEW",
        r"Intervals of all that hold the truth: \d",
    ),
    Case("review.py", "merges RUN --factors 1.5", ""),
    Case("review.py", "likely RUN --factors 1.5", r"\| merge \| as sorted \| 0.0 \| 0.1 \| \d+ \|"),
    Case("review.py", "label RUN --policies ours --minutes 1 --out NEW", "run ours "),
    Case(
        "sort_again.py",
        "VECTORS --methods kmeans --seeds 0 --reviews structure --classes 4 --images 40 --out NEW ; --table NEW",
        r"\| vectors \| kmeans \| structure \| 2 \| \d",
    ),
    Case("review_load.py", "--clients 1 --seconds 1 --images 400", r'"codes": \{"200": \d+\}\}\nlist of a', apart=True),
    *(
        Case(
            "training.py",
            f"{what} --backbone test_vit --images 16 --steps 6 --epochs 1 --size 64 --outputs bottleneck --device cpu",
            says,
        )
        for what, says in (
            ("steps --no-plain --batch 4", "live"),
            ("features", "GFLOP"),
            ("run", "bottleneck: 1 epochs"),
            ("limit", "FLOP/s"),
        )
    ),
]


@dataclass(frozen=True)
class Inputs:
    """The folders that scripts get."""

    folder: Path

    def fill(self, words: str, new: Path) -> list[str]:
        names = {"IMAGES": "images", "MADE": "made", "RUN": "run", "TESTS": "tests", "VECTORS": "vectors.npz"}
        places = {name: str(self.folder / below) for name, below in names.items()} | {"NEW": str(new), "THREADS": "1"}
        pattern = re.compile("|".join(places))
        return [pattern.sub(lambda found: places[found[0]], word).replace("\0", " ") for word in words.split()]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    """Four classes of ten images, half of two of them labelled in `made`; a run; tests that catch any fault."""
    folder = tmp_path_factory.mktemp("benchmarks")
    for at, name in enumerate(tiny_folder.CLASSES[:4]):
        for number in range(10):
            pixels = tiny_folder.picture(name, number)
            tiny_folder.save(folder / "images" / name / f"{number}.png", pixels)
            known = at < 2 and number < 5
            tiny_folder.save(folder / "made" / (name if known else "unlabelled") / f"{name}{number}.png", pixels)
    classes = np.arange(40) % 4
    near = np.random.default_rng(0).standard_normal((40, 6)) + 9 * np.eye(6)[classes]
    np.savez(folder / "vectors.npz", features=near, label=classes)
    saved_run(folder / "run")
    (folder / "tests").mkdir()
    (folder / "tests" / "test_all.py").write_text(
        "import hashlib, pathlib, sortal\n\n\ndef test_the_package_is_as_it_was():\n"
        "    files = sorted(pathlib.Path(sortal.__file__).parent.rglob('*.py'))\n"
        "    digest = hashlib.sha256(b''.join(map(pathlib.Path.read_bytes, files))).hexdigest()\n"
        f"    assert digest == {digest_of_package()!r}\n"
    )
    return Inputs(folder)


def digest_of_package() -> str:
    files = sorted(Path(sortal.__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"".join(map(Path.read_bytes, files))).hexdigest()


def run_here(script: str, words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(FOLDER / script), *words])
    monkeypatch.syspath_prepend(FOLDER)
    runpy.run_path(str(FOLDER / script), run_name="__main__")


def run_sortal_here(words: Sequence[str], run: Any = subprocess.run, **options: Any) -> Any:
    """Replace subprocess.run: carry out commands of sortal in this process."""
    if [*words[:3]] != [sys.executable, "-m", "sortal"]:
        return run(words, **options)
    with redirect_stdout(io.StringIO()) as said:
        assert app.main([*words[3:]]) == 0
    return subprocess.CompletedProcess(words, 0, said.getvalue())


def start_sortal_here(words: Sequence[str], start: Any = subprocess.Popen, **options: Any) -> Any:
    """Replace subprocess.Popen: carry out commands of sortal in this process, alone where torchrun would start two.

    tests/discovery/test_processes.py starts it.
    """
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "sortal"]
    if [*words[: len(torchrun)]] == torchrun:
        words = [*torchrun[:2], *words[len(torchrun) - 1 :]]
    if [*words[:3]] != [sys.executable, "-m", "sortal"]:
        return start(words, **options)
    return SimpleNamespace(wait=lambda: run_sortal_here(words).returncode)


def test_every_script_has_a_case() -> None:
    assert {case.script for case in CASES} == {*FILES} - {*MODULES}
    for name in FILES:
        assert ('__name__ == "__main__"' in (FOLDER / name).read_text()) == (name not in MODULES)


@pytest.mark.parametrize("script", [name for name in FILES if name not in MODULES])
def test_a_script_explains_itself(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run_here(script, ["--help"], monkeypatch)
    said = capsys.readouterr()
    assert (ended.value.code, said.err) == (0, "")
    assert f"python benchmarks/{script}" in said.out


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_script_runs(
    case: Case,
    inputs: Inputs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if case.needs and find_spec(case.needs) is None:
        pytest.skip(f"{case.script} needs the module {case.needs}, which this system does not have.")
    monkeypatch.chdir(tmp_path)
    grey, numbers = load_digits(return_X_y=True)
    monkeypatch.setattr("sklearn.datasets.load_digits", lambda **_: (grey[:FEW], numbers[:FEW]))
    for call in case.words.split(" ; "):
        words = inputs.fill(call, tmp_path / "new")
        if case.apart:
            done = subprocess.run([sys.executable, str(FOLDER / case.script), *words], check=False)
            assert done.returncode == 0, capfd.readouterr().err
        else:
            monkeypatch.setattr(subprocess, "run", run_sortal_here)
            monkeypatch.setattr(subprocess, "Popen", start_sortal_here)
            monkeypatch.setattr("sortal.web.report.report.make_report", lambda *_, **__: tiny_folder.PAGE)
            run_here(case.script, words, monkeypatch)
    assert re.search(case.says, capfd.readouterr().out)
