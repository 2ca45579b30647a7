"""All attacks, by area: the rows of the table that `make attack` prints."""

from __future__ import annotations

from attacks import (
    arithmetic,
    browser,
    concurrency,
    degenerate,
    disk,
    environment,
    kills,
    moving,
    names,
    offline,
    pictures,
    run_folders,
    text,
    weights,
)
from attacks.attack import Attack

ATTACKS: tuple[Attack, ...] = (
    *kills.ATTACKS,
    *disk.ATTACKS,
    *moving.ATTACKS,
    *names.ATTACKS,
    *pictures.ATTACKS,
    *text.ATTACKS,
    *browser.ATTACKS,
    *run_folders.ATTACKS,
    *weights.ATTACKS,
    *concurrency.ATTACKS,
    *environment.ATTACKS,
    *arithmetic.ATTACKS,
    *degenerate.ATTACKS,
    *offline.ATTACKS,
)
