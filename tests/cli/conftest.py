"""What the tests of commands share."""

import importlib
from inspect import signature
from pathlib import Path

import pytest
from support import tiny_folder
from support.command_line import QUICK, Asked, Benchmarked, Real, Stub, invoke


@pytest.fixture(autouse=True)
def terminal_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the output independent of the terminal the tests run in."""
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Create two classes, an unlabelled image and a file that is not an image."""
    folder = tmp_path / "pets"
    for seed, name in enumerate(("cat/1.png", "cat/2.png", "dog/1.png", "unlabelled/x.png")):
        tiny_folder.save(folder / name, tiny_folder.noise(seed, side=40))
    (folder / "notes.txt").touch()
    return folder


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Stub:
    """Replace a function of the library by one that records its arguments and returns or raises the given result."""

    def replace_by(name: str, result: object) -> Asked:
        module, _, function = name.rpartition(".")
        real = signature(getattr(importlib.import_module(module), function))
        seen: Asked = []

        def noted(*values: object, **options: object) -> object:
            asked = dict(real.bind(*values, **options).arguments)
            if "runtime" in asked:
                runtime = asked.pop("runtime")
                runtime.progress("[3/7] Working", 1, 2)
                runtime.note("A note.")
                where = {"device": runtime.device, "workers": runtime.workers}
                asked |= {name: value for name, value in where.items() if value not in ("auto", None)}
            seen.append(asked)
            if isinstance(result, BaseException):
                raise result
            return result

        vars(noted)["__signature__"] = real  # for a stub of this stub
        monkeypatch.setattr(name, noted)
        return seen

    return replace_by


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Real:
    folder = tmp_path_factory.mktemp("real")
    tiny_folder.write(folder / "photos", tiny_folder.planted(6, 3))
    (folder / "photos" / "ash" / "broken.png").write_bytes(b"")
    (folder / "run").mkdir()
    (folder / "run" / ".lock").touch()  # left by a run that was killed at once
    done = invoke("discover", folder / "photos", "--out", folder / "run", *QUICK)
    return Real(folder / "photos", folder / "run", done)


@pytest.fixture(scope="session")
def benchmarked(tmp_path_factory: pytest.TempPathFactory) -> Benchmarked:
    folder = tmp_path_factory.mktemp("benchmarked")
    for name in tiny_folder.CLASSES:
        for number in range(10):
            tiny_folder.save(folder / "trees" / name / f"{number}.png", tiny_folder.picture(name, number))
    options = "--method kmeans,uno --backbone convnet --epochs 1 --seeds 0 --device cpu --workers 1"
    words = ("benchmark", "folder", "--root", folder / "trees", "--out", folder / "out", *options.split())
    with tiny_folder.quickly():
        return Benchmarked(words, folder / "out", invoke(*words))
