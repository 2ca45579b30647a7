"""What the processes of test_workers.py are told to do."""

import os
import resource
import signal
import sys
import time
from pathlib import Path

import numpy as np

from sortal import pixels
from sortal.errors import InputError, SortalError
from sortal.images import Source
from sortal.pixels import UnreadableError
from sortal.workers import Values


def echo(source: Source, options: Values) -> Values:
    """Say what came in, and who says so."""
    found = {"options": options, "pid": os.getpid()}
    if isinstance(source, str):
        return {"path": source, **found}
    return {"shape": list(source.shape), "digest": pixels.digest(source), **found}


def meet(source: Source, options: Values) -> Values:
    """Come to a place, and wait there for another process."""
    (Path(str(source)) / str(os.getpid())).touch()
    while len(os.listdir(str(source))) < 2:
        time.sleep(0.01)
    return {"pid": os.getpid()}


def die(source: Source, options: Values) -> Values:
    """Die in the way the name of the file says, if it does."""
    assert isinstance(source, str)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if source.startswith("exit"):
        os.write(2, b"a line before\nthe last words\n")
        os._exit(3)
    if source.startswith("signal"):
        os.kill(os.getpid(), int(source.split()[1]))
    return {"path": source}


def die_of_black(source: Source, options: Values) -> Values:
    assert isinstance(source, np.ndarray)
    if not source.any():
        os._exit(3)
    return {"digest": pixels.digest(source)}


def refuse(source: Source, options: Values) -> Values:
    """Some files cannot be read."""
    if source == "bad":
        raise UnreadableError("truncated", "half of it is missing")
    return {"path": source}


def give_up(source: Source, options: Values) -> Values:
    """One file makes the whole run pointless."""
    if source == "bad":
        raise InputError("shorter_side must be at least 1, got 0.")
    return {"path": source}


def stumble(source: Source, options: Values) -> Values:
    """A mistake in the code of a task."""
    return {"value": 1 // int(str(source))}


def answer_nonsense(source: Source, options: Values) -> Values:
    """A result that JSON cannot hold, which is a mistake as well."""
    return {"value": np.int64(3)}


def answer_at_length(source: Source, options: Values) -> Values:
    return {"text": "x" * 1_000_000}


def chatter(source: Source, options: Values) -> Values:
    """Print a lot on the way."""
    print("{}\n" * 1000, flush=True)  # noqa: T201
    os.write(1, b'{"reason": "damaged", "detail": "not so"}\n' * 1000)
    sys.stderr.write("warning: so what\n" * 1000)
    return {"path": source}


def wait_for_a_path(source: Source, options: Values) -> Values:
    """Where a path is given, note there who is at work, and never come back."""
    if source == "bad":
        while not os.path.exists(options["after"]):
            time.sleep(0.01)
        raise InputError("That is enough.")
    if "/" in str(source):
        Path(f"{source}.new").write_text(str(os.getpid()))
        os.replace(f"{source}.new", str(source))
        time.sleep(600)
    return {"pid": os.getpid()}


def hang(source: Source, options: Values) -> Values:
    """Never comes to an end on the file "stuck"."""
    while source == "stuck":
        time.sleep(1)
    return {"source": source}


def complain_then_die(source: Source, options: Values) -> Values:
    """Complains about the file "noisy", and dies of the file "deadly" without a word."""
    if source == "noisy":
        os.write(2, b"something is odd about noisy")
    if source == "deadly":
        os.kill(os.getpid(), signal.SIGKILL)
    return {}


def fail_or_hang(source: Source, options: Values) -> Values:
    if source == "fail":
        raise SortalError("no more")
    return hang(source, options)
