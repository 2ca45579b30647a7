"""Numbers at and beyond their limits as options of commands."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from support.limits import end_reviews
from support.world import OPTIONS, Trial, Words

from sortal.errors import SortalError

EXTREMES = ("0", "-1", "nan", "inf", "-inf", "1e308", str(10**30), "", "1e-320", "½", "0x10", "\u0661")
VALUES = {
    "discover": (
        *("k", "epochs", "lr", "views", "trained", "set", "seed", "n-init"),
        *("k-max", "held-out", "workers", "max-pixels", "learn-on"),
    ),
    "check": ("tiny", "max-pixels", "workers"),
    "predict": ("max-pixels", "workers"),
    "figures": ("seed", "workers"),
    "review": ("port", "workers"),
    "demo": ("k", "labelled", "epochs", "seed"),
    "benchmark": ("k", "epochs", "lr", "views", "trained", "set", "seeds", "processes", "workers"),
}
CASES = [(command, option) for command, options in VALUES.items() for option in options]


@pytest.mark.attack(most=2 * len(CASES))
def test_options(trial: Trial) -> None:
    """Give every numeric option every extreme value: it is refused with a sentence, or carried out correctly."""
    command, option = trial.case(CASES)
    run, images, out = trial.world.run, trial.world.images, trial.folder / "out"
    start: dict[str, Words] = {
        "discover": ["discover", images, "--out", out, *OPTIONS, "--dry-run", "--json"],
        "check": ["check", images, "--json"],
        "predict": ["predict", run, images, "--json", "--dry-run"],
        "figures": ["figures", run, "--out", out, "--which", "k-curve"],
        "review": ["review", run, "--no-browser"],
        "demo": ["demo", "--out", out],
        "benchmark": ["benchmark", "folder", "--root", images, "--out", out],
    }
    values = [trial.random.choice(EXTREMES)] if command == "discover" else trial.random.sample(EXTREMES, 3)
    for value in values:
        done = trial.world.sortal(*start[command], f"--{option}={value}", before=stop_early)
        done.check(0, 1, 2, 3)
        assert done.code != 1 or "sortal: error: " in done.err, (value, done)
        assert done.code != 2 or done.err.startswith("sortal: error: "), (value, done)
        assert "NaN" not in done.out, (value, done)
        assert "Infinity" not in done.out, (value, done)


def stop_early() -> None:
    """In a child: leave out what takes long once the values were accepted."""
    accepted = SortalError("The values were accepted.")
    end_reviews()
    patch("sortal.discovery.demo.discover", side_effect=accepted).start()
    patch("sortal.research.benchmark.sweep._attempt", side_effect=accepted).start()
    patch("sortal.research.benchmark.sweep._in_parallel", side_effect=accepted).start()
