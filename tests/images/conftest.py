"""Miniatures of the published data sets."""

from pathlib import Path

import pytest
from support import layouts


@pytest.fixture(scope="session")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write the miniature data sets, which tests must not change."""
    made = {name: tmp_path_factory.mktemp(name) for name in layouts.BUILDERS}
    for name, root in made.items():
        layouts.BUILDERS[name](root)
    return made
