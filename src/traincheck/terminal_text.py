"""Printable: text that others have written, as it may be shown on a terminal without steering it.

Characters that steer (escape sequences, those that turn the direction of writing, those that cannot be seen) are
written out instead. So a book or a trace of a stranger cannot change a title, hide a line or pass one thing for
another.
"""

from __future__ import annotations

import re


def plain(text: str) -> str:
    """`text` on one line, without characters that would steer a terminal: those are written out instead."""
    if text.isprintable():
        return text
    return "".join(map(_harmless, text))


def lines(text: str) -> str:
    """The same of a text of several lines, which stay lines."""
    if text.isprintable():
        return text
    return "\n".join("\t".join(map(plain, line.split("\t"))) for line in text.split("\n"))


def json_text(text: str) -> str:
    """JSON in which such characters are escaped, so that it means the same and can be printed."""
    return text if text.isascii() else _UNSEEN.sub(lambda found: _escaped(found[0]), text)


_UNSEEN = re.compile(r"[^\x00-\x7e\u00a0-\U0010ffff]|[\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
"""Control characters beyond ASCII, and those that format: none of them stands in JSON but inside a text."""


def _escaped(character: str) -> str:
    return f"\\u{ord(character):04x}"


def _harmless(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else repr(character)[1:-1]
