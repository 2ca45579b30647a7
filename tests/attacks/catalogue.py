"""All attacks, by area: the rows of the table that `make attack` prints."""

from __future__ import annotations

from attacks import browser, kills, text
from attacks.attack import Attack

ATTACKS: tuple[Attack, ...] = (
    *kills.ATTACKS,
    *text.ATTACKS,
    *browser.ATTACKS,
)
