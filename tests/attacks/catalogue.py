"""All attacks, by area: the rows of the table that `make attack` prints."""

from __future__ import annotations

from attacks import kills, run_folders, weights
from attacks.attack import Attack

ATTACKS: tuple[Attack, ...] = (*kills.ATTACKS, *run_folders.ATTACKS, *weights.ATTACKS)
