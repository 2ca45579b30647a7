"""Every command where no connection can be made: none is attempted, but to the hub when its weights are asked for."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from urllib.request import urlopen

import cyclopts
import pytest
from support.commands import on_run
from support.offline import forbid_everywhere
from support.thorough import thorough_but
from support.world import OPTIONS, Trial, Words

from sortal.cli.app import app

HUB = "huggingface.co"
FEW_DIGITS = 300  # that the demo sorts
COMMANDS = (
    *("discover", "predict", "export", "figures", "review", "decisions", "import", "report"),
    *("benchmark", "check", "sample", "demo", "features", "app"),
)


def words_of(name: str, trial: Trial) -> Words:
    """Return a command line of a command."""
    run, images, out = trial.world.copy_run(trial.folder / "run"), trial.world.images, trial.folder / "out"
    out.mkdir()
    lines: dict[str, Words] = {
        **on_run(trial.world, run, out),
        "discover": ("discover", images, "--out", out / "new", *OPTIONS),
        "export": ("export", run, "--format", "folders", "--out", out / "sorted"),
        "review": ("review", run, "--workers", "1"),
        "app": ("app", images),
        "benchmark": ("benchmark", "presets"),
        "check": ("check", images, "--workers", "1"),
        "features": ("features", images, "--out", out / "x.npz", "--backbone", "convnet", "--device", "cpu"),
        "sample": ("sample", "digits", out / "digits"),
        "demo": ("demo", "--out", out / "demo", "--epochs", "0", "--k", "8", "--device", "cpu"),
    }
    return lines[name]


@pytest.mark.attack(most=1)
@pytest.mark.parametrize("name", thorough_but([name for name in COMMANDS if name != "demo"], COMMANDS))
def test_every_command(trial: Trial, name: str) -> None:
    """Run one command: it works, and attempts no connection."""
    log = trial.folder / "log"
    before = {"review": visit, "app": visit, "demo": take_few_digits}.get(name, forbid_everywhere)
    trial.world.sortal(*words_of(name, trial), before=before, given=(str(log), str(trial.folder))).check(0)
    assert not log.exists(), log.read_text()


def test_every_command_is_tried() -> None:
    names = {name for name in app if isinstance(app[name], cyclopts.App) and not name.startswith("-")}
    assert names == {*COMMANDS}


@pytest.mark.attack(most=1)
@pytest.mark.parametrize("offline", [False, True])
def test_only_the_hub_is_asked(trial: Trial, offline: bool) -> None:
    """Ask for weights that are not here: only the hub is asked, and with HF_HUB_OFFLINE not even that."""
    log = trial.folder / "log"
    words = ("discover", trial.world.images, "--out", trial.folder / "run", "--device", "cpu")
    done = trial.world.sortal(*words, before=without_weights, given=(str(log), str(trial.folder), offline)).check(2)
    assert "weights" in done.err, done.err
    asked = {json.loads(line) for line in log.read_text().splitlines()} if log.exists() else set()
    assert asked == (set() if offline else {HUB}), asked
    assert not (trial.folder / "run" / "run.json").exists()


# In a child


def without_weights(log: str, folder: str, offline: bool) -> None:
    """In a child: forbid connections, and have no weights of the hub on this machine."""
    from huggingface_hub import constants

    forbid_everywhere(log, folder)
    # It has read HF_HOME and HF_HUB_OFFLINE when it was imported.
    constants.HF_HUB_CACHE, constants.HF_HUB_OFFLINE = str(Path(folder, "hub")), offline


def take_few_digits(log: str, folder: str) -> None:
    """In a child of `demo`: forbid connections, and sort a sixth of the digits."""
    import sklearn.datasets

    grey, numbers = sklearn.datasets.load_digits(return_X_y=True)
    sklearn.datasets.load_digits = lambda *, return_X_y: (grey[:FEW_DIGITS], numbers[:FEW_DIGITS])  # noqa: N803
    forbid_everywhere(log, folder)


def visit(log: str, folder: str) -> None:
    """In a child of `review` or `app`: look at its page as soon as it is served, then end it."""
    from sortal.web.app.server import Server

    forbid_everywhere(log, folder)
    run = Server.run

    def served(self: Server, *, browser: str = "") -> None:
        def look() -> None:
            while not self.started:
                threading.Event().wait(0.01)
            with urlopen(self.link(), timeout=60) as answer:
                page.append(answer.read())
            self.stop()

        page: list[bytes] = []
        threading.Thread(target=look, daemon=True).start()
        run(self)
        assert b"<script" in page[0]

    setattr(Server, "run", served)  # noqa: B010
