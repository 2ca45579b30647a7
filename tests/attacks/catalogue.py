"""All attacks, by area: the rows of the table that `make attack` prints."""

from __future__ import annotations

from attacks import kills, moving, names
from attacks.attack import Attack

ATTACKS: tuple[Attack, ...] = (
    *kills.ATTACKS,
    *moving.ATTACKS,
    *names.ATTACKS,
)
