import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from sortal import segments, space
from sortal.errors import InputError


def plan(home: Path, name: str, sizes: list[tuple[int, int]], stored: int) -> None:
    """A segment of images, the first few of which are there."""
    home.mkdir(parents=True, exist_ok=True)
    digests = [f"{name}{number:031d}" for number in range(len(sizes))]
    segments.create(home, digests, sizes).mark(dict.fromkeys(range(stored), segments.STORED))


def test_the_budget_counts_what_is_there_under_all_settings(tmp_path: Path) -> None:
    one, other = tmp_path / "256px-a", tmp_path / "128px-b"
    plan(one, "a", [(10, 10), (10, 20), (50, 50)], stored=2)  # 300 and 600 bytes; the third is only planned
    plan(other, "b", [(1, 100)], stored=1)  # 300 bytes
    (tmp_path / "notes.txt").touch()  # what else lies there does not matter
    space.check(one, [500, 300], budget=2000)
    with pytest.raises(
        InputError, match=r"would take 2,000 bytes \(2 images more, .*; the budget is 1,999 bytes\. Raise"
    ):
        space.check(one, [500, 300], budget=1999)


def test_the_disk_keeps_a_margin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=space.MARGIN + 3_000_000))
    space.check(tmp_path, [1_000_000, 2_000_000], budget=None)
    expected = (
        r"needs 4\.0 MB more .* and 67\.1 MB must stay free: 71\.1 MB together; the disk has 70\.1 MB free\. Make room"
    )
    with pytest.raises(InputError, match=expected):
        space.check(tmp_path, [2_000_000, 2_000_000], budget=None)


@pytest.mark.parametrize(
    ("numbers", "texts"),
    [
        ((2_500_000_000, 1_200_000), ["2.5 GB", "1.2 MB"]),
        ((1_000_000_000, 1_000_000_001), ["1,000,000,000 bytes", "1,000,000,001 bytes"]),
        ((40_000,), ["40,000 bytes"]),
    ],
)
def test_sizes_for_people(numbers: tuple[int, ...], texts: list[str]) -> None:
    assert space.for_people(*numbers) == texts
