"""Texts of random words."""

from __future__ import annotations

import numpy as np

WORDS = (
    *(
        "the",
        "a",
        "one",
        "this",
        "that",
        "small",
        "large",
        "quiet",
        "old",
        "new",
        "river",
        "garden",
        "house",
        "teacher",
    ),
    *("captain", "letter", "window", "winter", "morning", "city", "road", "music", "story", "friend", "question"),
    *(
        "answer",
        "machine",
        "engine",
        "number",
        "picture",
        "walks",
        "runs",
        "opens",
        "finds",
        "keeps",
        "writes",
        "reads",
    ),
    *("sings", "builds", "makes", "takes", "sees", "before", "after", "under", "over", "near", "with", "without"),
    *("and", "or", "but", "when", "while", "because"),
)


def sentences(count: int, words: int = 12, seed: int = 0) -> list[str]:
    """Sentences of random words."""
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, size=words)) + " ." for _ in range(count)]
