"""The way of a link into the browser: by a file that only its owner can read. All users can read the list of processes.

The file is in the person's home, in a folder of its own that is not hidden: browsers that are installed as a snap see
neither the temporary files nor the hidden folders of the person.
"""

import os
import shutil
import stat
import tempfile
import threading
import webbrowser
from contextlib import suppress
from html import escape
from pathlib import Path

NAME = "review.html"
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={link}">
<title>Sortal</title>
<p><a href="{link}">Open the review</a>
"""


class Doorway:
    """A page that leads to a link, until it is closed; once it has ended, there is none any more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._folder: Path | None = None
        self._ended = False

    def open(self, link: str) -> bool:
        """Show a link in the browser; return False if that is impossible, or would show it to others."""
        with suppress(OSError, RuntimeError, ValueError, webbrowser.Error):  # no home, or BROWSER is no command
            page = self._write(link)
            if page is not None and webbrowser.open(page.as_uri()):
                return True
        self.close()
        return False

    def _write(self, link: str) -> Path | None:
        with self._lock:
            if self._ended:
                return None
            self._folder = Path(tempfile.mkdtemp(prefix="sortal-review-", dir=Path.home().absolute()))
            page = self._folder / NAME
            with open(os.open(page, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                if not _is_private(self._folder) or not _is_private(page):
                    return None
                file.write(PAGE.format(link=escape(link)))
            return page

    def close(self) -> None:
        """Remove the page."""
        with self._lock:
            folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def end(self) -> None:
        """Remove the page, for good."""
        self._ended = True
        self.close()


def _is_private(path: Path) -> bool:
    """Tell whether nobody else may read a path; some file systems permit everyone everything."""
    return os.name != "posix" or not stat.S_IMODE(path.stat().st_mode) & 0o077
