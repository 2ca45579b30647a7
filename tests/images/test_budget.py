import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from sortal.errors import InputError
from sortal.images.store import packing
from sortal.system.text import byte_sizes


def test_a_store_is_all_its_pixel_files(tmp_path: Path) -> None:
    for name, size in (("256px-a/pixels.bin", 900), ("256px-a/pixels-1.bin", 100), ("128px-b/pixels.bin", 300)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(bytes(size))
    (tmp_path / "notes.txt").write_text("not counted")
    stored = packing.stored_bytes(tmp_path)
    assert stored == 1300
    packing.check_room(tmp_path, stored, 700, budget=2000)
    with pytest.raises(InputError, match=r"budget of 1,999 bytes, and needs at least 2,000 bytes\. Raise the budget,"):
        packing.check_room(tmp_path, stored, 700, budget=1999)


def test_the_disk_keeps_a_margin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=packing.MARGIN + 3_000_000))
    packing.check_room(tmp_path, 10**9, 3_000_000, budget=None)
    expected = (
        r"it needs at least 71\.1 MB of free space \(67\.1 MB of it as a reserve\), and 70\.1 MB are free\. Free some"
    )
    with pytest.raises(InputError, match=expected):
        packing.check_room(tmp_path, 0, 4_000_000, budget=None)


@pytest.mark.parametrize(
    ("numbers", "texts"),
    [
        ((2_500_000_000, 1_200_000), ["2.5 GB", "1.2 MB"]),
        ((1_000_000_000, 1_000_000_001), ["1,000,000,000 bytes", "1,000,000,001 bytes"]),
        ((40_000,), ["40,000 bytes"]),
    ],
)
def test_sizes_for_people(numbers: tuple[int, ...], texts: list[str]) -> None:
    assert byte_sizes(*numbers) == texts
