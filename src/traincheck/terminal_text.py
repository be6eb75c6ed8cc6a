"""Escapes foreign text for a terminal.

It writes out control characters: escape sequences, changes of the writing direction, invisible characters. So a foreign
book or trace cannot change a title, hide a line or imitate other text.
"""

from __future__ import annotations

import re


def plain(text: str) -> str:
    """`text` on one line, with control characters written out."""
    if text.isprintable():
        return text
    return "".join(map(_harmless, text))


def lines(text: str) -> str:
    """`plain` for each line of a text."""
    if text.isprintable():
        return text
    return "\n".join("\t".join(map(plain, line.split("\t"))) for line in text.split("\n"))


def json_text(text: str) -> str:
    """JSON with control characters escaped, so that it has the same meaning and can be printed."""
    return text if text.isascii() else _UNSEEN.sub(lambda match: _escaped(match[0]), text)


_UNSEEN = re.compile(r"[^\x00-\x7e\u00a0-\U0010ffff]|[\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
"""Control and formatting characters beyond ASCII, which JSON has only inside texts."""


def _escaped(character: str) -> str:
    return f"\\u{ord(character):04x}"


def _harmless(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else repr(character)[1:-1]
