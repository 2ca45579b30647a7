"""What the processes of test_workers.py are told to do."""

import os
import resource
import sys
import time
from pathlib import Path

import numpy as np

from sortal.errors import InputError, UnreadableError
from sortal.images import decoding
from sortal.system.workers import Conversation, JsonObject, PathOrPixels


def act(source: PathOrPixels, options: JsonObject) -> JsonObject:
    """Do what the name of the file says, or say what came in, and who says so. Black pixels are deadly."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not isinstance(source, str):
        if not source.any():
            os._exit(3)
        return {"shape": list(source.shape), "digest": decoding.digest(source)}
    if source == "exit":
        os.write(2, b"a line before\nthe last words\n")
        os._exit(3)
    if source.startswith("signal"):
        os.kill(os.getpid(), int(source.split()[1]))
    if source == "unreadable":
        raise UnreadableError("truncated", "half of it is missing")
    if source == "pointless":
        raise InputError("shorter_side must be at least 1, got 0.")
    if source == "mistake":
        return {"value": 1 // 0}
    if source == "nonsense":
        return {"value": np.int64(3)}  # which JSON cannot hold
    if source == "noisy":
        print("{}\n" * 1000, flush=True)  # noqa: T201
        os.write(1, b'{"reason": "damaged", "detail": "not so"}\n' * 1000)
        sys.stderr.write("warning: so what\n" * 1000)
    return {"path": source, "options": options, "pid": os.getpid()}


def answer_at_length(source: PathOrPixels, options: JsonObject) -> JsonObject:
    return {"text": "x" * 1_000_000}


def meet(source: PathOrPixels, options: JsonObject) -> JsonObject:
    """Come to a place, and wait there for another process."""
    (Path(str(source)) / str(os.getpid())).touch()
    while len(os.listdir(str(source))) < 2:
        time.sleep(0.01)
    return {"pid": os.getpid()}


def act_or_hang(source: PathOrPixels, options: JsonObject) -> JsonObject:
    """Where a path is given, note there who is at work, and stay as long as the parent lives."""
    if not str(source).startswith("/"):
        while "after" in options and not os.path.exists(options["after"]):
            time.sleep(0.01)
        return act(source, options)
    parent = os.getppid()
    Path(f"{source}.new").write_text(str(os.getpid()))
    os.replace(f"{source}.new", str(source))
    while os.getppid() == parent:
        time.sleep(0.05)
    return {}


def ask_and_answer(source: PathOrPixels, options: JsonObject) -> Conversation:
    """Ask two questions, and tell the replies; die after the first one if that is the reply."""
    first = yield {"about": source}
    if first.get("die"):
        os._exit(3)
    second = yield {"after": first}
    return {"replies": [first, second]}
