"""A reward for completions, for programs that are given one by its name."""

from typing import Any


def letters(completions: list[Any], **_: Any) -> list[float]:
    """How many different letters each completion has."""
    texts = [part if isinstance(part, str) else part[0]["content"] for part in completions]
    return [float(len(set(text))) for text in texts]
