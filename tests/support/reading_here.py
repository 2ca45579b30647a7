"""Read images in this process: to start a Python for each run of a test takes longer than to read its few images."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest.mock import patch

from sortal.errors import SortalError
from sortal.images.check import examine
from sortal.images.store.crops import crop_image
from sortal.images.store.packing import store_image
from sortal.system import workers
from sortal.system.workers import Conversation, JsonObject, PathOrPixels, WorkFunction, WorkItem

READS_IMAGES: tuple[WorkFunction, ...] = (examine, store_image, crop_image)  # what reads Parquet limits its memory
_Worker = workers._Worker


class _Here:
    """What a thread of `run_workers` sees as a worker: results are what JSON makes of them."""

    def __init__(self, function: WorkFunction, options: Mapping[str, Any]) -> None:
        self.function, self.options = function, dict(options)
        self.sources: deque[PathOrPixels] = deque()
        self.conversation: Conversation | None = None
        self.reply: JsonObject = {}
        self.process = SimpleNamespace(kill=lambda: None)

    def write(self, message: Any) -> None:
        if "reply" in message:
            self.reply = json.loads(json.dumps(message["reply"]))
        else:
            self.sources.append(message["source"])

    def receive(self, item: WorkItem) -> JsonObject:
        try:
            result = self._next()
        except Exception as error:
            self.conversation = None
            result = json.loads(workers._process(_raising(error), "", {}, lambda _: {}))
        if "failure" in result:
            raise SortalError(result["failure"])
        if "bug" in result:
            raise RuntimeError(f"A worker process failed on {item.source!r}:\n{result['bug']}")
        return result

    def _next(self) -> JsonObject:
        try:
            if self.conversation is not None:
                found = {"question": self.conversation.send(self.reply)}
            else:
                done = self.function(self.sources.popleft(), self.options)
                if isinstance(done, dict):
                    found = done
                else:
                    self.conversation = done
                    found = {"question": next(done)}
        except StopIteration as end:
            self.conversation, found = None, end.value
        result: JsonObject = json.loads(json.dumps(found))
        return result

    def close(self) -> None:
        if self.conversation is not None:
            self.conversation.close()


def _raising(error: Exception) -> WorkFunction:
    def fail(*_: object) -> NoReturn:
        raise error

    return fail


@contextmanager
def reading_here() -> Iterator[None]:
    """Start no process to read images."""

    def start(function: WorkFunction, options: Mapping[str, Any], running: set[Any]) -> Any:
        return _Here(function, options) if function in READS_IMAGES else _Worker(function, options, running)

    with patch.object(workers, "_Worker", start):
        yield
