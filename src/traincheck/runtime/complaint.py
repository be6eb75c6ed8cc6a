"""A complaint: one line on stderr from inside the observed program. Imports next to nothing: every child loads it."""

from __future__ import annotations

import sys


def complain(text: str) -> None:
    """One line on stderr, if there is one."""
    line = " ".join(text.split())
    try:
        sys.stderr.write(f"traincheck: {line}\n")
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):  # no stderr, a broken or a closed one: the program goes on
        return
