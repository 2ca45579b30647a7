"""The command that opens the start page: app."""

import os
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from sortal.errors import InputError
from sortal.system.signals import handling

APP_EXAMPLES = """\
Examples:
  sortal app
  sortal app /data/photos      choose from the folders there
  sortal app --no-browser --port 8000
"""
TOP_HELP = "Folder whose folders can be chosen; your home by default."


def start_page(
    folder: Annotated[Path | None, Parameter(help=TOP_HELP)] = None,
    *,
    port: Annotated[int, Parameter(help="Port to listen on; 0 takes a free one.")] = 0,
    browser: Annotated[bool, Parameter(help="Open the page in the browser.")] = True,
) -> None:
    """Do everything in the browser: choose images, sort, review, export.

    sortal alone does the same, in a terminal on a computer with a screen.

    Sorting goes on when the page is closed; opened again, it shows how far it
    is. Ctrl-C, or closing the terminal, ends the page and what it started;
    sorting resumes from there. The link is for one use, by you; Enter in the terminal prints another.
    """
    from sortal.discovery.reviewing.open import serve
    from sortal.web.app.server import Server
    from sortal.web.start.children import Children
    from sortal.web.start.home import Home
    from sortal.web.start.start_routes import start_application

    top = Path(os.path.realpath(Path.home() if folder is None else folder))
    if not top.is_dir():
        raise InputError(f"The folder to choose from must exist, got {str(folder or top)!r}.")
    children = Children()
    with ExitStack() as held:
        held.callback(children.close)
        server = Server(start_application(Home(top), children, shows=browser and has_screen()), port=port)
        server.hold(held.pop_all())
    # Closing the terminal is a way to end, unless that is ignored, as after nohup; so is Ctrl-C.
    with handling("SIGHUP", lambda *_: server.stop()), suppress(KeyboardInterrupt), server:
        serve(server, browser=browser, say=lambda text: print(text, flush=True), what="start page")


def has_screen() -> bool:
    """Tell whether a browser can be shown on this computer."""
    if sys.platform in ("win32", "darwin"):
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


def is_for_page() -> bool:
    """Tell whether a command line without words is for the start page: somebody is there, and has a screen."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    there = all(stream is not None and stream.isatty() for stream in streams)
    return there and has_screen() and "SSH_CONNECTION" not in os.environ
