"""Rates: a sample from all over the images, and timings that are long enough."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from support.costs import measurements

from sortal.discovery import rates
from sortal.discovery.rates import choose_sample, measure_network, seconds_each
from sortal.images.image_set import image_set


def test_work_doubles_until_it_takes_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first item, which warms up, takes ten times as long."""
    now, tried = 0.0, list[int]()

    def work(items: int) -> None:
        nonlocal now
        now += 0.3 * items if tried else 3.0
        tried.append(items)

    monkeypatch.setattr(rates, "perf_counter", lambda: now)
    assert seconds_each(work, torch.device("cpu")) == pytest.approx(0.3)
    assert tried == [1, 1, 2, 4]


def test_of_another_network_views_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the network that was measured, a view takes 0.25 s; of the other, so many images 1 s."""
    seen = list[tuple[int, ...]]()

    def seconds(work: Callable[[int], object], _: torch.device) -> float:
        work(2)
        return 1.0

    backbone = Mock(side_effect=lambda images: seen.append(tuple(images.shape)), device=torch.device("cpu"))
    backbone.spec = SimpleNamespace(image_size=16)
    monkeypatch.setattr(rates, "seconds_each", seconds)
    found = measure_network(backbone, measurements())
    assert seen == [(8, 3, 16, 16)] * 2
    assert found == measurements(view=0.125, crop=0.125)


def test_fewer_images_are_read_where_files_are_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [str(tmp_path / f"{i}.png") for i in range(100)]
    for path in paths[:99]:  # the last is missing
        Path(path).write_bytes(bytes(1000))
    images = image_set([f"{i}" for i in range(100)], paths=paths, labels=[None] * 100)
    for room, count in ((10**6, 100), (50_000, 50), (10, rates.FEWEST_SAMPLED)):
        monkeypatch.setattr(rates, "SAMPLED_BYTES", room)
        assert len(choose_sample(images)) == count


def test_a_sample_is_spread_over_the_whole_set() -> None:
    images = image_set([str(i) for i in range(1000)], paths=["x"] * 1000, labels=[None] * 1000)
    rows = [int(file) for file in choose_sample(images).files]
    assert (len(rows), rows[0], rows[-1]) == (rates.SAMPLED_IMAGES, 0, 999)
    assert np.diff(rows).max() <= 4
