"""SIGKILL at random moments, and before each file operation, of every command that writes."""

from __future__ import annotations

from attacks.attack import OPTIONS, Attack, Trial


def smoke(trial: Trial) -> None:
    trial.world.sortal("discover", trial.world.images, "--out", trial.folder / "run", *OPTIONS).check(0)


ATTACKS = (Attack("kills", "undisturbed", smoke),)
