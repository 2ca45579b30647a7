"""What becomes of a hostile image, in a worker process that imports little and is held to limits."""

from __future__ import annotations

import resource
import sys
from functools import cache

from sortal.errors import UnreadableError
from sortal.images import check, decoding
from sortal.system.workers import JsonObject, PathOrPixels

MEMORY = 6 * 2**30  # bytes of address space of a worker
OUTSIDE = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "socket.connect", "ctypes.dlopen")

_outside: list[str] = []


def examine(source: PathOrPixels, options: JsonObject) -> JsonObject:
    """Decode an image as `check` does and at full size, within limits; return each outcome, and what it took."""
    _limit()
    _outside.clear()
    assert isinstance(source, str)
    found: JsonObject = {**outcomes(source, options["max_pixels"]), "outside": [*_outside]}
    return {**found, "peak": peak()}


def peak() -> int:
    """Return the peak memory of this process in bytes; getrusage would count what its parent had when it started it."""
    try:
        with open("/proc/self/status") as file:
            (line,) = (line for line in file if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@cache
def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    sys.addaudithook(lambda event, _: _outside.append(event) if event in OUTSIDE else None)


def outcomes(path: str, max_pixels: int) -> JsonObject:
    """Return why `check` and decoding refuse a file, if they do, else the size it claims and what its pixels are."""
    found: JsonObject = {"check": "", "refused": ""}
    try:
        check.examine(path, {"max_pixels": max_pixels})
    except UnreadableError as error:
        found["check"] = error.reason
    try:
        data = decoding.read(path)
        picture = decoding.decode(data, max_pixels=max_pixels)
        claimed = decoding.size(data, max_pixels=max_pixels)
    except UnreadableError as error:
        return {**found, "refused": error.reason}
    shape = list(picture.rgb.shape)
    assert shape == [picture.height, picture.width, 3], "the facts contradict the pixels"
    return {**found, "shape": shape, "claimed": sorted(claimed), "pixels": decoding.digest(picture.rgb)}
