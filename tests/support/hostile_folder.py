"""A folder of a stranger, in which commands are run: what Python or a library takes from there leaves a trace."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

# Files that some programs read from the current folder: here each is a pipe, so that whoever opens one waits for ever.
SETTINGS = (
    *(
        "matplotlibrc",
        ".env",
        ".netrc",
        ".condarc",
        "pip.conf",
        "setup.cfg",
        "tox.ini",
        "pyproject.toml",
        "uvicorn.json",
    ),
    *("logging.conf", ".numba_config.yaml", ".pdbrc", "pyvenv.cfg", "openssl.cnf", "fonts.conf", "nccl.conf"),
)
COMMAND = "import sys\nfrom sortal.__main__ import run\nif __name__ == '__main__':\n    sys.exit(run())\n"
TRAP = "import os\nos.close(os.open({marks!r} + '/' + __name__, os.O_CREAT | os.O_WRONLY))\n"


def write(folder: Path, *, but: Collection[str] = ()) -> Path:
    """Fill a folder with modules by all names that Python and this environment have, and with settings that block."""
    (marks := folder / "marks").mkdir(parents=True)
    for name in names() - {*but}:
        (folder / f"{name}.py").write_text(TRAP.format(marks=str(marks)))
    for name in SETTINGS if hasattr(os, "mkfifo") else ():
        os.mkfifo(folder / name)
    return folder


def command(folder: Path) -> list[str]:
    """Write the command that an installation makes, in a folder of its own, and return how to start it."""
    (folder / "sortal").write_text(COMMAND)
    return [sys.executable, str(folder / "sortal")]


def taken(folder: Path) -> set[str]:
    """Return the names of the modules that were imported from a folder."""
    return {path.name for path in (folder / "marks").iterdir()}


@cache
def names() -> frozenset[str]:
    """Return the names of all modules that could be imported at the top."""
    installed = {name for name in packages_distributions() if name.isidentifier()}
    return frozenset({*sys.stdlib_module_names, *installed, "sitecustomize", "usercustomize"})


@cache
def before_us() -> frozenset[str]:
    """Return the modules that `python -m` imports before a line of the package runs, and the package itself."""
    code = "import runpy, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return frozenset({"sortal", *(module.partition(".")[0] for module in done.stdout.split())})
