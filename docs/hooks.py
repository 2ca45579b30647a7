"""For MkDocs: pages that lie outside docs/ become part of the site, and links that leave docs/ lead to them.

On a code host links are relative to the file they stand in. Here the same links are followed through the repository: to
the page of the site that a file became, or, where it became none (a program, a licence), to nothing but their text. A
link to a file that is not there fails the build.
"""

import logging
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

TAKEN_IN = {  # file of the repository -> page of the site
    "README.md": "overview.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/RESULTS.md": "results.md",
}
CODE = r"^```.*?^```$|`[^`]+`"
LINK = r"(!?)\[([^\]]*)\]\(([^)#\s:]+)(#[^)\s]*)?\)"  # links to other hosts have a colon
CODE_OR_LINK = re.compile(f"{CODE}|{LINK}", flags=re.MULTILINE | re.DOTALL)
logger = logging.getLogger("mkdocs.hooks.docs")  # below MkDocs' own, where warnings are counted


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    for file, page in TAKEN_IN.items():
        files.append(File.generated(config, page, abs_src_path=str(_root(config) / file)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    here = page.file.src_uri
    lies_at = {inside: file for file, inside in TAKEN_IN.items()}.get(here, f"docs/{here}")

    def led(found: re.Match[str]) -> str:
        image, text, link, anchor = found.groups(default="")
        if not link:
            return found[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(lies_at), link))
        if not (_root(config) / target).exists():
            logger.warning("%s has a link to %s, which is not there.", lies_at, link)
        inside = target.removeprefix("docs/") if target.startswith("docs/") else TAKEN_IN.get(target)
        if inside and files.get_file_from_path(inside):
            return f"{image}[{text}]({posixpath.relpath(inside, posixpath.dirname(here) or '.')}{anchor})"
        return found[0] if image else text

    return CODE_OR_LINK.sub(led, markdown)


def _root(config: MkDocsConfig) -> Path:
    return Path(config.config_file_path).parent
