"""The navigation of the site holds every page, and links name anchors that GitHub and the site give to headings."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from repository import DOCUMENTS, ROOT, shown_path

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]*#[^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LISTED = re.compile(r"decisions/\d{4}-|findings/(?!index\.md)")
"""docs/pages.py puts these pages into the navigation; tests/house/test_documents.py looks at their lists."""


def settings() -> Any:
    """mkdocs.yml, which names nothing that only mkdocs could read."""
    return yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def hook() -> Any:
    """docs/pages.py as a module; it needs mkdocs only when it is called."""
    spec = importlib.util.spec_from_file_location("pages", ROOT / "docs" / "pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def entries(nav: Any) -> Iterator[str]:
    """The pages of a part of the navigation."""
    for entry in nav:
        value = next(iter(entry.values())) if isinstance(entry, dict) else entry
        if isinstance(value, str):
            yield value
        else:
            yield from entries(value)


def test_navigation_holds_every_page_once() -> None:
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    expected = {page for page in pages if not LISTED.match(page)} | set(hook().OUTSIDE)
    listed = list(entries(settings()["nav"]))
    assert sorted(expected - set(listed)) == [], "put these pages into `nav` of mkdocs.yml"
    assert sorted(set(listed) - expected) == [], "`nav` of mkdocs.yml names what is not there"
    assert len(listed) == len(set(listed))


def test_the_hook_adds_every_decision_and_every_finding() -> None:
    class Config:
        nav = settings()["nav"]

    pages = [entry for entry in entries(hook().on_config(Config).nav) if LISTED.match(entry)]
    files = (path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md"))
    assert sorted(pages) == sorted(file for file in files if LISTED.match(file))
    assert len(pages) == len(set(pages))


def test_pages_from_outside_are_there() -> None:
    for path in hook().OUTSIDE.values():
        assert (ROOT / path).is_file()


@pytest.mark.parametrize(
    ("link", "path", "target", "turned"),
    [
        ("../examples/README.md", "docs/packs.md", "packs.md", "examples/README.md"),
        ("../../CHANGELOG.md#added", "docs/extend/x.md", "extend/x.md", "../project/changelog.md#added"),
        ("docs/decisions/README.md", "CONTRIBUTING.md", "project/contributing.md", "../decisions/README.md"),
        ("messages.md#plugin", "docs/packs.md", "packs.md", "messages.md#plugin"),
        ("#here", "CHANGELOG.md", "project/changelog.md", "#here"),
        ("https://example.com/a.md", "CHANGELOG.md", "project/changelog.md", "https://example.com/a.md"),
    ],
)
def test_links_that_leave_docs_are_turned(link: str, path: str, target: str, turned: str) -> None:
    assert hook().site_link(link, path, target) == turned


def anchors(text: str) -> set[str]:
    """The anchors of the headings of a document, as GitHub makes them and the site does."""
    ids: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", FENCED.sub("", text), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        ids.add(re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-"))
    return ids


@pytest.mark.parametrize("path", DOCUMENTS, ids=shown_path)
def test_anchors_lead_to_headings(path: Any) -> None:
    for link in LINK.findall(FENCED.sub("", path.read_text(encoding="utf-8"))):
        file, _, anchor = link.partition("#")
        if "://" not in link:
            target = path.parent / file if file else path
            assert anchor in anchors(target.read_text(encoding="utf-8")), f"{shown_path(path)} links to {link}"
