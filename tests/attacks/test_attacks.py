"""The fast part of the attacks, and the table of all."""

from __future__ import annotations

import pytest

from attacks.attack import Attack, World, perform
from attacks.catalogue import ATTACKS


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.id)
def test_sortal_withstands(attack: Attack, world: World) -> None:
    for number in range(attack.quick):
        perform(attack, number, 0, world)
