"""Every command where no connection can be made: none is attempted, but to the hub when its weights are asked for."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import cyclopts

from attacks.attack import OPTIONS, Attack, Trial, case

HUB = ("huggingface.co",)
LOCAL = ("127.0.0.1", "::1", "localhost")
ONLINE = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.sendmsg")
# Workers import a module of this name when they start, from a folder in their PYTHONPATH.
HOOK = "from attacks.offline import forbid; forbid({log!r})"


def forbid(log: str) -> None:
    """In a process of the program: note each attempt to reach another machine, and refuse it."""

    def hook(event: str, values: tuple[Any, ...]) -> None:
        if event in ONLINE:
            place = values[0] if event in ONLINE[1:3] else values[1]
            host = place[0] if isinstance(place, tuple) else place
            if isinstance(host, str | bytes) and not str(host).startswith("/") and host not in LOCAL:
                with open(log, "a") as file:
                    file.write(json.dumps(str(host)) + "\n")
                raise OSError(f"a connection to {host!r} was attempted")

    sys.addaudithook(hook)


def forbid_everywhere(log: str, folder: str) -> None:
    """In the child: forbid connections here and in the processes that it starts."""
    tests = str(Path(__file__).parents[1])
    place = Path(folder, "site")
    place.mkdir()
    (place / "sitecustomize.py").write_text(HOOK.format(log=log))
    sys.path[:0] = [str(place), tests]
    forbid(log)


def without_weights(log: str, folder: str, offline: bool) -> None:
    """In the child: forbid connections, and have no weights of the hub on this machine."""
    from huggingface_hub import constants

    forbid_everywhere(log, folder)
    # It has read HF_HOME and HF_HUB_OFFLINE when it was imported.
    constants.HF_HUB_CACHE, constants.HF_HUB_OFFLINE = str(Path(folder, "hub")), offline


def visit(log: str, folder: str) -> None:
    """In the child of `review`: look at its page as soon as it is served, then end it."""
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


Words = Callable[[Path, Path, Path], "list[str | Path]"]  # of a command, from images, a run, and a folder to write to
COMMANDS: dict[str, Words] = {
    "discover": lambda images, run, out: ["discover", images, "--out", out / "new", *OPTIONS],
    "predict": lambda images, run, out: ["predict", run, images, "--update", "--device", "cpu", "--workers", "1"],
    "export": lambda images, run, out: ["export", run, "--format", "folders", "--out", out / "sorted"],
    "figures": lambda images, run, out: ["figures", run, "--device", "cpu", "--workers", "1"],
    "review": lambda images, run, out: ["review", run, "--workers", "1"],
    "decisions": lambda images, run, out: ["decisions", run],
    "import": lambda images, run, out: ["import", run, out / "table.csv"],
    "report": lambda images, run, out: ["report", run, "--device", "cpu", "--workers", "1"],
    "benchmark": lambda images, run, out: ["benchmark", "presets"],
    "check": lambda images, run, out: ["check", images, "--workers", "1"],
    "sample": lambda images, run, out: ["sample", "digits", out / "digits"],
    "demo": lambda images, run, out: ["demo", "--out", out / "demo", "--epochs", "1", "--device", "cpu"],
}
QUICK = len(COMMANDS) - 1  # the demo is a sample that is sorted, and takes the longest


def commands() -> set[str]:
    """Return the names of all commands."""
    from sortal.cli.app import app

    return {name for name in app if isinstance(app[name], cyclopts.App) and not name.startswith("-")}


def stay_offline(trial: Trial) -> None:
    """Run one command, and see that it works and asks for nothing."""
    assert commands() == {*COMMANDS}, "every command must be tried"
    name = case(trial, [*COMMANDS])
    run, log = trial.world.copy_run(trial.folder / "run"), trial.folder / "log"
    shutil.copy(run / "assignments.csv", trial.folder / "table.csv")
    words = COMMANDS[name](trial.world.images, run, trial.folder)
    before = visit if name == "review" else forbid_everywhere
    trial.world.sortal(*words, before=before, given=(str(log), str(trial.folder))).check(0)
    assert not log.exists(), log.read_text()


def ask_only_the_hub(trial: Trial) -> None:
    """Ask for weights that are not here: only the hub is asked, and with HF_HUB_OFFLINE not even that."""
    offline, log = case(trial, [False, True]), trial.folder / "log"
    words: list[str | Path] = ["discover", trial.world.images, "--out", trial.folder / "run", "--device", "cpu"]
    done = trial.world.sortal(*words, before=without_weights, given=(str(log), str(trial.folder), offline)).check(2)
    assert "weights" in done.err, done.err
    asked = {json.loads(line) for line in log.read_text().splitlines()} if log.exists() else set()
    assert asked == (set() if offline else {*HUB}), asked
    assert not (trial.folder / "run" / "run.json").exists()


ATTACKS = (
    Attack("offline", "every command", stay_offline, quick=QUICK, least=len(COMMANDS)),
    Attack("offline", "weights of the hub", ask_only_the_hub, quick=2, least=2),
)
