"""All attacks, by area: the rows of the table that `make attack` prints."""

from __future__ import annotations

from attacks import arithmetic, concurrency, environment, kills
from attacks.attack import Attack

ATTACKS: tuple[Attack, ...] = (
    *kills.ATTACKS,
    *concurrency.ATTACKS,
    *environment.ATTACKS,
    *arithmetic.ATTACKS,
)
