"""Encode facts, values, levels and types as text for columns, and decode them exactly."""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Any, Literal

import msgspec

from traincheck.vocab.events import STAGES
from traincheck.vocab.facts import Facts, FactValue

LEVELS_JOINED_BY = " < "
REQUIRES_GRAD = " requires_grad"
NORM = "norm"
"""The fact of a tensor that changes in each step: it has a numeric column of its own."""
DATA = "data"
"""The attribute whose value is a fingerprint, in changes and in readings."""

TensorType = tuple[str, tuple[int, ...], bool]
"""Dtype, shape, and whether a gradient is required."""

MAX_DIGITS = 18
"""Maximum number of digits of a line number."""

Placed = tuple[str | None, float | None, int | None, int | None]
"""A value in one of the columns value, number, integer and fingerprint; None in the others."""

_encoder = msgspec.json.Encoder(enc_hook=str)  # a value outside the vocabulary becomes its text; no run fails over it


class _Float(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A float that JSON cannot represent."""

    float: Literal["nan", "inf", "-inf"]


_decoder = msgspec.json.Decoder(dict[str, FactValue | _Float])
_value_decoder: msgspec.json.Decoder[FactValue | _Float] = msgspec.json.Decoder(FactValue | _Float)


def valid(text: str) -> str:
    """Return `text` in a form that can be stored: code points that are not Unicode characters (as in an undecodable
    file name) become backslash escapes."""
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode()


def facts_to_text(facts: Facts) -> str:
    """Encode facts as a compact JSON object, in their order; True, 1 and 1.0 stay distinct.

    JSON has no number for nan and the infinities: they become {"float": "nan"}.
    """
    try:
        text = _encoder.encode(dict(facts)).decode()
    except UnicodeEncodeError:
        text = "null"
    if "null" in text:  # None, but perhaps a float that JSON cannot represent: msgspec writes null for both
        text = _encoder.encode({valid(name): _storable(value) for name, value in facts}).decode()
    return text


def _storable(value: FactValue) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return valid(value) if isinstance(value, str) else value


def text_to_facts(text: str) -> Facts:
    """Decode the text of `facts_to_text`. Raises msgspec.DecodeError or ValueError for any other text."""
    facts: dict[str, Any] = _decoder.decode(text)
    if '{"float":' in text:
        facts = {name: float(value.float) if isinstance(value, _Float) else value for name, value in facts.items()}
    return tuple(facts.items())


def value_to_text(value: FactValue) -> str:
    """Encode one value as JSON, as in facts."""
    return _encoder.encode(_storable(value)).decode()


def text_to_value(text: str) -> FactValue:
    """Decode the text of `value_to_text`. Raises msgspec.DecodeError or ValueError for any other text."""
    decoded = _value_decoder.decode(text)
    return float(decoded.float) if isinstance(decoded, _Float) else decoded


def placed(attribute: str, value: FactValue) -> Placed:
    """Put the value of a reading of `attribute` into the column for its type: numbers must not fill dictionaries."""
    if isinstance(value, float):
        return None, value, None, None
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64:
        return (None, None, None, value) if attribute == DATA else (None, None, value, None)
    return value_to_text(value), None, None, None


def split_norm(facts: Facts) -> tuple[Facts, float | None]:
    """Return the facts of a tensor without its norm, and the norm; `with_norm` joins them."""
    remaining = dict(facts)
    norm = remaining.get(NORM)
    if not isinstance(norm, float):
        return facts, None
    del remaining[NORM]
    return tuple(remaining.items()), norm


def with_norm(facts: Facts, norm: float | None) -> Facts:
    """Insert the norm into `facts`, in sorted order."""
    if norm is None:
        return facts
    at = bisect_left(facts, (NORM,))
    return *facts[:at], (NORM, norm), *facts[at:]


def shaped_to_text(dtype: str, shape: tuple[int, ...]) -> str:
    """Encode dtype and shape as `bfloat16[4,8]`; `float32[]` is a scalar."""
    return f"{valid(dtype)}[{','.join(map(str, shape))}]"


def text_to_shaped(text: str) -> tuple[str, tuple[int, ...]]:
    """Decode the text of `shaped_to_text`. Raises ValueError for any other text."""
    dtype, bracket, inside = text.rpartition("[")
    if not bracket or not inside.endswith("]"):
        raise ValueError(f"{text!r} is no dtype and shape")
    return dtype, tuple(map(int, inside[:-1].split(","))) if inside != "]" else ()


def type_to_text(of: TensorType) -> str:
    """Encode dtype, shape and requires_grad in one text."""
    dtype, shape, requires_grad = of
    return shaped_to_text(dtype, shape) + (REQUIRES_GRAD if requires_grad else "")


def text_to_type(text: str) -> TensorType:
    """Decode the text of `type_to_text`. Raises ValueError for any other text."""
    return *text_to_shaped(text.removesuffix(REQUIRES_GRAD)), text.endswith(REQUIRES_GRAD)


def levels_to_text(levels: tuple[str, ...]) -> str:
    """Join the names of a call, most specific first, into one text."""
    return valid(LEVELS_JOINED_BY.join(levels))


def text_to_levels(text: str) -> tuple[str, ...]:
    """Split the text of `levels_to_text`."""
    return tuple(text.split(LEVELS_JOINED_BY))


def text_to_site(text: str) -> str:
    """Check and return a site, `file:line:function` or empty. Raises ValueError for any other text."""
    if text:
        _, line, _ = text.rsplit(":", 2)
        if not line.isdecimal() or len(line) > MAX_DIGITS:
            raise ValueError(f"{text!r} is no site")
    return text


def text_to_stage(text: str) -> str:
    """Check and return a stage. Raises ValueError for an unknown one."""
    if text not in STAGES:
        raise ValueError(f"{text!r} is no stage")
    return text
