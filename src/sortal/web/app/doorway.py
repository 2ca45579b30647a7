"""Hand a link to the browser in a file that only its owner can read, because all users can read the process list."""

import os
import shutil
import stat
import tempfile
import webbrowser
from contextlib import suppress
from html import escape
from pathlib import Path

LINK_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={link}">
<title>Sortal</title>
<p><a href="{link}">Open the review</a>
"""


class Doorway:
    """A file with a link, which is removed when it is closed; it is not written where others could read it.

    It is in a folder of its own in the home directory, which is not hidden: browsers that are installed as a snap can
    read neither temporary files nor hidden folders.
    """

    def __init__(self, link: str) -> None:
        self.page: Path | None = None
        with suppress(OSError, RuntimeError):  # no home
            folder = Path(tempfile.mkdtemp(prefix="sortal-review-", dir=Path.home().absolute()))
            self.page = folder / "review.html"
            with open(os.open(self.page, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                if _is_private(folder) and _is_private(self.page):
                    file.write(LINK_PAGE.format(link=escape(link)))
                    return
        self.close()

    def open(self) -> bool:
        """Show the page in the browser; return whether that worked."""
        page = self.page
        with suppress(OSError, ValueError, webbrowser.Error):  # such as that BROWSER is no command
            if page is not None and webbrowser.open(page.as_uri()):
                return True
        self.close()
        return False

    def close(self) -> None:
        """Remove the page."""
        page, self.page = self.page, None
        if page is not None:
            shutil.rmtree(page.parent, ignore_errors=True)


def _is_private(path: Path) -> bool:
    """Tell whether nobody else may read a path; some file systems do not restrict access at all."""
    return os.name != "posix" or not stat.S_IMODE(path.stat().st_mode) & 0o077
