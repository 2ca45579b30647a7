"""All attacks, by area: the rows of the table that `make attack` prints."""

from __future__ import annotations

from attacks import (
    arithmetic,
    browser,
    concurrency,
    current_folder,
    degenerate,
    disk,
    environment,
    hostile_files,
    kills,
    moving,
    names,
    offline,
    pictures,
    racing,
    rebuilding,
    run_folders,
    text,
    unsteady,
    weights,
)
from attacks.attack import Attack

ATTACKS: tuple[Attack, ...] = (
    *kills.ATTACKS,
    *disk.ATTACKS,
    *moving.ATTACKS,
    *unsteady.ATTACKS,
    *racing.ATTACKS,
    *names.ATTACKS,
    *pictures.ATTACKS,
    *text.ATTACKS,
    *hostile_files.ATTACKS,
    *browser.ATTACKS,
    *run_folders.ATTACKS,
    *rebuilding.ATTACKS,
    *weights.ATTACKS,
    *concurrency.ATTACKS,
    *environment.ATTACKS,
    *current_folder.ATTACKS,
    *arithmetic.ATTACKS,
    *degenerate.ATTACKS,
    *offline.ATTACKS,
)
