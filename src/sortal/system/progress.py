"""Where work runs, and how it reports."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from sortal.config import AUTO

Progress: TypeAlias = Callable[[str, int, int], None]  # (task, done, total); a total of 0 is unknown


def ignore(what: str, done: int, total: int) -> None:
    """Report no progress."""


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """The device to compute on, the processes that read images, and where progress and notes go.

    >>> Runtime(device="cuda:1", workers=4, note=print)  # doctest: +SKIP
    """

    device: str = AUTO
    workers: int | None = None  # one per core by default
    progress: Progress = ignore
    note: Callable[[str], None] = logging.getLogger("sortal").info

    def prefixed(self, prefix: str) -> "Runtime":
        """Return a runtime that reports each task with a prefix."""
        return replace(self, progress=lambda what, done, total: self.progress(f"{prefix}{what}", done, total))
