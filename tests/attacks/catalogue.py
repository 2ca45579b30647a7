"""All attacks, by area: the rows of the table that `make attack` prints."""

from __future__ import annotations

from attacks import disk, environment, kills, offline, text
from attacks.attack import Attack

ATTACKS: tuple[Attack, ...] = (
    *kills.ATTACKS,
    *disk.ATTACKS,
    *environment.ATTACKS,
    *offline.ATTACKS,
    *text.ATTACKS,
)
