"""Encoding: how facts and levels are told as the text of a column, and read back exactly."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from traincheck.vocab.facts import Facts, FactValue

LEVELS_JOINED_BY = " < "

_encoder = msgspec.json.Encoder(enc_hook=str)  # a value outside the vocabulary is told by its text; no run ends over it
_decoder = msgspec.json.Decoder(dict[str, Any])


def valid(text: str) -> str:
    """`text` as it can be stored: code points that are not Unicode characters (as in the undecodable name of a file)
    become backslash escapes."""
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode()


def facts_to_text(facts: Facts) -> str:
    """Facts as a compact JSON object, in their order; True, 1 and 1.0 stay three things.

    JSON has no number for nan and the infinities: they are told as {"float": "nan"}.
    """
    try:
        text = _encoder.encode(dict(facts)).decode()
    except UnicodeEncodeError:
        text = "null"
    if "null" in text:  # None, but perhaps a float that JSON cannot tell: msgspec writes null for both
        text = _encoder.encode({valid(name): _storable(value) for name, value in facts}).decode()
    return text


def _storable(value: FactValue) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return valid(value) if isinstance(value, str) else value


def text_to_facts(text: str) -> Facts:
    """The facts that `facts_to_text` told. Raises msgspec.DecodeError or ValueError for any other text."""
    found = _decoder.decode(text)
    if '{"float":' in text:
        found = {name: float(value["float"]) if isinstance(value, dict) else value for name, value in found.items()}
    return tuple(found.items())


def levels_to_text(levels: tuple[str, ...]) -> str:
    """The names of a call, most specific first, in one text."""
    return valid(LEVELS_JOINED_BY.join(levels))


def text_to_levels(text: str) -> tuple[str, ...]:
    """The names that `levels_to_text` told."""
    return tuple(text.split(LEVELS_JOINED_BY))
