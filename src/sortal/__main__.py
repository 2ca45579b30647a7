"""python -m sortal: the command line in a process of its own, from its first moment to its last."""

import os
import sys

TYPE_CHECKING = False  # that of `typing`, like whatever is imported here, might come from the current folder
if TYPE_CHECKING:
    from types import FrameType

INTERRUPTED = 130  # the exit code


def run() -> int:
    """Run the command line, and return its exit code.

    Before and after it there is nothing to save, so a signal ends the process at once, without a traceback.
    """
    _leave_current_folder()
    import signal
    from contextlib import suppress

    defaults = (signal.default_int_handler, signal.SIG_DFL)
    ours = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) in defaults]
    for number in ours:
        signal.signal(number, _end)
    from sortal.cli.app import main  # takes a while

    try:
        for number in ours:
            signal.signal(number, signal.default_int_handler)
        code = main()
    except KeyboardInterrupt:  # another signal came while the first was being answered
        code = INTERRUPTED
    try:
        for number in ours:
            signal.signal(number, _end)
    except KeyboardInterrupt:  # yet another, just before there was nothing left to save
        code = INTERRUPTED
    if code == INTERRUPTED:  # unloading libraries takes a second, in which a signal would be the end of the process
        for stream in filter(None, (sys.stdout, sys.stderr)):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    return code


def _leave_current_folder() -> None:
    """Import nothing from the current folder, here or in any child, unless it is named on PYTHONPATH.

    It may be a stranger's. Empty entries on PYTHONPATH, which Python takes for the current folder, are dropped.
    """
    if __name__ == "__main__" and not sys.flags.safe_path:
        del sys.path[0]  # where `python -m` looks first
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    named = [entry for entry in given if entry]
    if len(named) < len(given) > 1 and not sys.flags.ignore_environment:
        try:
            here = os.getcwd()
        except OSError:  # it is gone
            here = ""
        if here in sys.path and here not in map(os.path.abspath, named):
            sys.path.remove(here)
        os.environ["PYTHONPATH"] = os.pathsep.join(named)
    os.environ["PYTHONSAFEPATH"] = "1"


def _end(number: int, frame: "FrameType | None") -> None:
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(run())
