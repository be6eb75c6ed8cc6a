"""A complaint: one line on stderr from inside the observed program. Imports next to nothing: every child loads it."""

from __future__ import annotations

import sys


def log_warning(text: str) -> None:
    """One line on stderr, if there is one. Raises nothing: the program goes on, whatever its stderr is."""
    try:
        from traincheck import redaction, terminal_text  # here: every child loads this file

        line = terminal_text.plain(" ".join(redaction.text(text).split()))
        sys.stderr.write(f"traincheck: {line}\n")
        sys.stderr.flush()
    except Exception:  # no stderr, a broken or a closed one, one of the program's own that fails, no memory
        return


def in_words(error: BaseException) -> str:
    """What went wrong, in one line. Raises nothing, whatever the error makes of itself."""
    try:
        text = str(error)
        return f"{type(error).__name__}: {text}" if text else type(error).__name__
    except Exception:
        return type(error).__name__
