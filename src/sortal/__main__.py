"""python -m sortal: the command line in a process of its own, from its first moment to its last."""

import os
import signal
import sys
from contextlib import suppress
from types import FrameType

INTERRUPTED = 130  # the exit code
DEFAULTS = (signal.default_int_handler, signal.SIG_DFL)


def run() -> int:
    """Run the command line, and return its exit code.

    Before and after it there is nothing to save, so a signal ends the process at once, without a traceback.
    """
    ours = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) in DEFAULTS]
    for number in ours:
        signal.signal(number, _end)
    from sortal.cli.app import main  # takes a while

    try:
        for number in ours:
            signal.signal(number, signal.default_int_handler)
        code = main()
    except KeyboardInterrupt:  # another signal came while the first was being answered
        code = INTERRUPTED
    finally:
        for number in ours:
            signal.signal(number, _end)
    if code == INTERRUPTED:  # unloading libraries takes a second, in which a signal would be the end of the process
        for stream in filter(None, (sys.stdout, sys.stderr)):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    return code


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(run())
