"""Processes of the program in which no connection can be made. Imports nothing heavy: each worker loads it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

LOCAL = ("127.0.0.1", "::1", "localhost")
ONLINE = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.sendmsg")
# Workers import a module of this name when they start, from a folder in their PYTHONPATH.
HOOK = "from support.offline import forbid; forbid({log!r})"


def forbid(log: str) -> None:
    """Note each attempt to reach another machine, and refuse it."""

    def hook(event: str, values: tuple[Any, ...]) -> None:
        if event in ONLINE:
            place = values[0] if event in ONLINE[1:3] else values[1]
            host = place[0] if isinstance(place, tuple) else place
            if isinstance(host, str | bytes) and not str(host).startswith("/") and host not in LOCAL:
                with open(log, "a") as file:
                    file.write(json.dumps(str(host)) + "\n")
                raise OSError(f"a connection to {host!r} was attempted")

    sys.addaudithook(hook)


def forbid_everywhere(log: str, folder: str) -> None:
    """Forbid connections here and in the processes that this one starts."""
    place = Path(folder, "site")
    place.mkdir()
    (place / "sitecustomize.py").write_text(HOOK.format(log=log))
    sys.path[:0] = [str(place), str(Path(__file__).parents[1])]
    forbid(log)
