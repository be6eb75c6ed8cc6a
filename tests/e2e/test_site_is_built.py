"""The documentation is built as a site without a warning, and a reader's browser fetches nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Fetched(HTMLParser):
    """The files that a browser fetches automatically to show a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag in ("script", "img", "iframe", "source", "video", "audio"):
            self.addresses.append(attributes.get("src") or "")
        elif tag == "link" and attributes.get("rel") not in ("prev", "next", "canonical", "alternate"):
            self.addresses.append(attributes.get("href") or "")


@pytest.mark.slow
def test_the_site_is_built_and_fetches_nothing(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
    pytest.importorskip("material", reason="the extra `docs` is not installed")
    words = ["build", "--strict", "--config-file", str(ROOT / "mkdocs.yml"), "--site-dir", str(tmp_path)]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run([sys.executable, "-m", "mkdocs", *words], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert {"index.html", "tutorial.html", "changelog.html"} <= {page.name for page in pages}
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert "<p>|" not in text, f"a table of {page.name} is none"
        parser = Fetched()
        parser.feed(text)
        assert [address for address in parser.addresses if "//" in address] == [], page.name
    for style in tmp_path.rglob("*.css"):
        assert not re.search(r"url\(.?http|@import", style.read_text(encoding="utf-8")), style.name
    assert (tmp_path / "search" / "search_index.json").stat().st_size > 100_000
    assert (tmp_path / "tutorial" / "suspect.py").is_file()
