"""Adds to the site: decisions and findings in the navigation, and pages from outside of docs/.

A hook of mkdocs (see mkdocs.yml). Links are written for the repository, where GitHub shows them; those that leave docs/
or come from outside are turned here into links of the site. What leads to no page of it fails `mkdocs build --strict`.
"""

from __future__ import annotations

import os.path
import re
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = {
    "project/changelog.md": "CHANGELOG.md",
    "project/contributing.md": "CONTRIBUTING.md",
    "examples/README.md": "examples/README.md",
}
"""Pages of the site that are files elsewhere in the repository."""
LISTED = {"Decisions": "decisions/[0-9]*.md", "Findings": "findings/*.md"}
"""Entries of the navigation, and the pages that belong below each of them."""
SCRIPTS = "examples/**/*.py"
"""What the list of examples links to."""
FENCED_OR_LINK = re.compile(r"^```.*?^```|(?P<before>\]\()(?P<link>[^)\s]+)(?=\))", re.MULTILINE | re.DOTALL)


def on_config(config: Any) -> Any:
    """Put every decision and every finding into the navigation, below their list."""
    for section in config.nav:
        for entry in next(iter(section.values())) if isinstance(next(iter(section.values())), list) else []:
            for name, pattern in LISTED.items():
                if name in entry:
                    listed = set(entry[name])
                    pages = (path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").glob(pattern))
                    entry[name] += sorted(page for page in pages if page not in listed)
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages from outside, and the example scripts."""
    from mkdocs.structure.files import File

    scripts = {path.relative_to(ROOT).as_posix(): path for path in ROOT.glob(SCRIPTS)}
    for place, path in ({page: ROOT / path for page, path in OUTSIDE.items()} | scripts).items():
        files.append(File.generated(config, place, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn links from or to a page outside docs/ into links of the site."""
    place = page.file.src_uri
    path = OUTSIDE.get(place, f"docs/{place}")

    def turned(match: re.Match[str]) -> str:
        if not match["link"]:
            return match[0]
        return f"]({site_link(match['link'], path, place)}"

    return FENCED_OR_LINK.sub(turned, markdown)


def site_link(link: str, path: str, place: str) -> str:
    """A link of the file at `path` in the repository, as the page at `place` of the site has to write it."""
    file, _, anchor = link.partition("#")
    if not file or "://" in file:
        return link
    target = os.path.normpath(PurePosixPath(path).parent / file)
    pages = {path: page for page, path in OUTSIDE.items()}
    if target not in pages and path not in OUTSIDE.values():
        return link
    there = pages.get(target, target.removeprefix("docs/"))
    return os.path.relpath(there, PurePosixPath(place).parent) + (f"#{anchor}" if anchor else "")
