"""Images by what is seen in them, with a model that sees colours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.reviews import wait_for
from support.stores import store_of

from sortal.discovery.reviewing import advice
from sortal.discovery.reviewing.advice import Sight

COLOURS = {"red": 0, "green": 1, "blue": 2}


class Colours:
    """Embeds a picture as its mean colour, and the word for a colour as that."""

    def __init__(self) -> None:
        self.looked = 0

    def embed_images(self, pictures: Sequence[NDArray[np.uint8]]) -> NDArray[np.float32]:
        self.looked += len(pictures)
        means = np.array([each.reshape(-1, 3).mean(axis=0) for each in pictures], dtype=np.float32)
        return np.asarray(means / np.linalg.norm(means, axis=1, keepdims=True), dtype=np.float32)

    def embed_words(self, words: Sequence[str]) -> NDArray[np.float32]:
        return np.eye(3, dtype=np.float32)[[COLOURS[word] for word in words]]


def pictures() -> list[NDArray[np.uint8]]:
    """Nine pictures of three colours in turn, each with a little more grey than the one before."""
    return [np.full((8, 8, 3), 10 * at, np.uint8) + np.eye(3, dtype=np.uint8)[at % 3] * 150 for at in range(9)]


def seeing(place: Path) -> tuple[Sight, Any]:
    model: Any = Colours()
    return Sight(model, store_of(pictures()), place, seed=0), model


def test_all_pictures_are_looked_at_once_and_the_best_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advice, "PICTURES_AT_ONCE", 2)
    place = tmp_path / "seen.safetensors"
    first, model = seeing(place)
    assert {*first.find("green").tolist()} <= {*range(9)}, "those of which it knows by now"
    wait_for(lambda: len(first.find("green")) == 9 and place.exists())
    assert first.find("green").tolist()[:3] == [1, 4, 7]
    assert first.find("blue").tolist()[:3] == [2, 5, 8]
    assert model.looked == 9
    again, other = seeing(place)
    assert again.find("green").tolist() == first.find("green").tolist()
    assert other.looked == 0, "what was seen is kept"
