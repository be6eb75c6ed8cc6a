"""Document: what every page of ours has in common: its files, its policy, and how text gets into it."""

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
    """Reads what lies in the folder `templates` of a package."""
    folder = files(package).joinpath("templates")
    return lambda name: folder.joinpath(name).read_text(encoding="utf-8")


def policy(style: str, script: str) -> str:
    """Admits this style and script alone, by their digests: a browser runs nothing else even if it stands there."""

    def digest(text: str) -> str:
        return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"

    admitted = f"style-src {digest(style)}; script-src {digest(script)}; img-src data:"
    return f"default-src 'none'; {admitted}; base-uri 'none'; form-action 'none'"


def environment(assets: Assets, **names: object) -> jinja2.Environment:
    """Templates in which all text is escaped, and `names` are known."""
    made = jinja2.Environment(
        loader=jinja2.FunctionLoader(assets),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_printable,
    )
    made.globals.update(words=phrases, **names)
    return made


def _printable(value: object) -> object:
    """What cannot be seen, or turns the direction of writing, is written out; our own style and script stay."""
    return value if isinstance(value, Markup) else phrases.plain(str(value))
