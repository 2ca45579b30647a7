"""MkDocs hook: include pages from outside docs/ in the site, and redirect links that leave docs/ to them.

On a code host, links are relative to the file that contains them. Here they are resolved through the repository: to the
page that a file became, or to plain text if it became none (a program, a licence). A link to a missing file fails the
build.
"""

import logging
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

INCLUDED = {  # file of the repository -> page of the site
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/RESULTS.md": "results.md",
}
ARCHIVE = "benchmarks/archive"
CODE = r"^```.*?^```$|`[^`]+`"
LINK = r"(!?)\[([^\]]*)\]\(([^)#\s:]+)(#[^)\s]*)?\)"  # without a colon: links to other hosts stay as they are
CODE_OR_LINK = re.compile(f"{CODE}|{LINK}", flags=re.MULTILINE | re.DOTALL)
logger = logging.getLogger("mkdocs.hooks.docs")  # a child of MkDocs' logger, whose warnings strict mode counts


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    for measured in sorted((_root(config) / ARCHIVE).glob("*.md")):
        INCLUDED[f"{ARCHIVE}/{measured.name}"] = f"archive/{measured.name}"
    for file, page in INCLUDED.items():
        files.append(File.generated(config, page, abs_src_path=str(_root(config) / file)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    here = page.file.src_uri
    source = {included: file for file, included in INCLUDED.items()}.get(here, f"docs/{here}")

    def resolve(found: re.Match[str]) -> str:
        image, text, link, anchor = found.groups(default="")
        if not link:
            return found[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
        if not (_root(config) / target).exists():
            logger.warning("%s links to %s, which does not exist.", source, link)
        path = target.removeprefix("docs/") if target.startswith("docs/") else INCLUDED.get(target)
        if path and files.get_file_from_path(path):
            return f"{image}[{text}]({posixpath.relpath(path, posixpath.dirname(here) or '.')}{anchor})"
        return found[0] if image else text

    return CODE_OR_LINK.sub(resolve, markdown)


def _root(config: MkDocsConfig) -> Path:
    return Path(config.config_file_path).parent
