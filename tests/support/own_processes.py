"""Commands in processes of their own: what Python does before and after Sortal counts too."""

from __future__ import annotations

import signal
import subprocess
import sys

from support.world import Done

SECONDS = 300  # for a process to end, on a slow machine


def ended(process: subprocess.Popen[bytes]) -> Done:
    out, err = process.communicate(timeout=SECONDS)
    return Done(process.returncode, (out or b"").decode(errors="replace"), (err or b"").decode(errors="replace"))


def usual_signals() -> None:
    """Set signals as a shell does: what starts the tests may ignore some."""
    hangup = () if sys.platform == "win32" else (signal.SIGHUP,)
    for number in (signal.SIGINT, signal.SIGTERM, *hangup):
        signal.signal(number, signal.SIG_DFL)
