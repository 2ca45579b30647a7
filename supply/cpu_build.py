"""Print the pinned versions with CPU builds of torch in the place of the pinned one, of any index that pip knows.

    python supply/cpu_build.py > pins.txt

For machines without an NVIDIA GPU whose indexes have CPU builds (`+cpu`) of other versions than `constraints-cpu.txt`
names: takes the one nearest to the pinned version of torch, and the torchvision that is made for it. If there is no
such pair, says on standard error what is missing, and exits with 1. A torchvision built for CUDA does not do: beside a
torch that is not, it cannot be imported.
"""

import re
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

PINS = Path(__file__).parents[1] / "constraints.txt"
BUILD = re.compile(r"\b(\d+)\.(\d+)\.(\d+)\+cpu\b")
OLDEST, APART = 6, 15  # minor version of torch that Sortal needs; torchvision 0.(x + 15) is made for torch 2.x
Version = tuple[int, ...]


def cpu_builds(listing: str) -> set[Version]:
    """Return the CPU builds in what `pip index versions` prints."""
    return {tuple(map(int, found)) for found in BUILD.findall(listing)}


def nearest_pair(torch: Collection[Version], vision: Collection[Version], pinned: Version) -> tuple[Version, Version]:
    """Return the pair that belongs together and is nearest to the pinned version of torch, of two the newer one."""
    pairs = [
        (one, other)
        for one in torch
        for other in vision
        if one[0] == 2 and one[1] >= OLDEST and other == (0, one[1] + APART, one[2])
    ]
    return min(pairs, key=lambda pair: (abs(pair[0][1] - pinned[1]), -pair[0][1], -pair[0][2]))


def missing(torch: Collection[Version]) -> str:
    """Say which CPU build is missing, where no pair belongs together."""
    new = sorted(each for each in torch if each[:2] >= (2, OLDEST))
    if not new:
        return f"pip finds no CPU build of torch 2.{OLDEST} or later."
    pairs = [f"torch {_text(each)}, but none of torchvision {_text((0, each[1] + APART, each[2]))}" for each in new]
    return f"pip finds a CPU build of {', and of '.join(pairs)}, which belongs to it."


def _text(version: Version) -> str:
    return ".".join(map(str, version))


def pins_with(text: str, torch: Version, vision: Version) -> str:
    """Return pins with these CPU builds."""
    for name, version in (("torch", torch), ("torchvision", vision)):
        text = re.sub(rf"^{name}==.*$", f"{name}=={_text(version)}+cpu", text, flags=re.MULTILINE)
    return text


def listed(name: str) -> str:
    """Ask pip for the versions of a package that its indexes have for this platform."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "index", "versions", name]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def main() -> int:
    text = PINS.read_text()
    pinned = tuple(map(int, re.findall(r"^torch==(\d+)\.(\d+)\.(\d+)", text, re.MULTILINE)[0]))
    torch = cpu_builds(listed("torch"))
    try:
        pair = nearest_pair(torch, cpu_builds(listed("torchvision")), pinned)
    except ValueError:
        print(missing(torch), file=sys.stderr)
        return 1
    print(pins_with(text, *pair), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
