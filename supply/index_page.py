"""Hatch metadata hook: the README as the page of a package index, and the addresses of the project.

On a code host the README's links and pictures are relative to it; elsewhere they would be broken. The address of the
repository is set nowhere but in SORTAL_REPOSITORY, when a release is built (`make release`, .github/workflows). Without
it links stay as they are, which does not matter to an installation.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

ADDRESS = "SORTAL_REPOSITORY"  # such as https://code.example/sortal, without a slash at the end
CODE = r"^```.*?^```$|`[^`]+`"
LINK = r"(!?\[[^\]]*\]\()([^)#\s:]+)((?:#[^)\s]*)?\))"  # without a colon or a leading #: relative ones
TAG = r"""(<(?:img|source|a)\b[^>]*?\b(?:src|srcset|href)=")([^"#\s:]+)((?:#[^"]*)?")"""
PICTURE = re.compile(r"\.(png|jpe?g|gif|svg|webp)$")


def absolute(text: str, repository: str, tag: str) -> str:
    """Return Markdown whose links and pictures lead to the files of one version in a repository."""

    def resolve(found: re.Match[str]) -> str:
        before, path, after = (each for each in found.groups() if each is not None)
        view = "raw" if PICTURE.search(path) else "blob"
        return f"{before}{repository}/{view}/{tag}/{path}{after}"

    whole = re.compile(f"{CODE}|{LINK}|{TAG}", flags=re.MULTILINE | re.DOTALL)
    return whole.sub(lambda found: resolve(found) if found.lastindex else found[0], text)


def addresses(repository: str, tag: str) -> dict[str, str]:
    """Return what an index links to beside the page."""
    return {
        "Repository": repository,
        "Documentation": f"{repository}/tree/{tag}/docs",
        "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }


class IndexPage(MetadataHookInterface):
    """Fill in the fields that pyproject.toml calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        if repository := os.environ.get(ADDRESS, "").rstrip("/"):
            found = re.search('__version__ = "(.+)"', (Path(self.root) / "src/sortal/__init__.py").read_text("utf-8"))
            assert found is not None
            tag = f"v{found[1]}"
            text, metadata["urls"] = absolute(text, repository, tag), addresses(repository, tag)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
