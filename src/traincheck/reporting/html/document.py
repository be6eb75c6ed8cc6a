"""Render HTML pages: template files, content policy, escaping."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from importlib.resources import files

import jinja2
from markupsafe import Markup

from traincheck.reporting import phrases

Assets = Callable[[str], str]


def assets_of(package: str) -> Assets:
    """Return a reader for the folder `templates` of a package."""
    folder = files(package).joinpath("templates")
    return lambda name: folder.joinpath(name).read_text(encoding="utf-8")


def policy(style: str, script: str) -> str:
    """Return a content policy that admits only this style and script, by their digests."""

    def digest(text: str) -> str:
        return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"

    admitted = f"style-src {digest(style)}; script-src {digest(script)}; img-src data:"
    return f"default-src 'none'; {admitted}; base-uri 'none'; form-action 'none'"


def environment(assets: Assets, **names: object) -> jinja2.Environment:
    """Return a template environment that escapes all text and defines `names`."""
    templates = jinja2.Environment(
        loader=jinja2.FunctionLoader(assets),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_printable,
    )
    templates.globals.update(words=phrases, **names)
    return templates


def _printable(value: object) -> object:
    """Return the text with invisible and direction characters written out. Markup of TrainCheck stays unchanged."""
    return value if isinstance(value, Markup) else phrases.plain(str(value))
