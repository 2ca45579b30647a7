"""What tests of the start page share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.reviews import Client, serving

from sortal.web.start.children import Children
from sortal.web.start.home import Home
from sortal.web.start.start_routes import start_application


@contextmanager
def serving_start(top: Path, *, shows: bool = False) -> Iterator[Client]:
    """Serve a start page in a thread of this process."""
    children = Children()
    served: Any = start_application(Home(top), children, shows=shows)
    try:
        with serving(served) as client:
            yield client
    finally:
        children.close()
