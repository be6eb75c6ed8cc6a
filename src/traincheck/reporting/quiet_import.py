"""Imports the terminal library without drawing a random number from the stream of the observed program."""

from __future__ import annotations

import random
import sys


def import_terminal() -> None:
    """Import of the terminal library what draws a random number then: from another stream than that of the program.

    A program that imports the library itself, and earlier, draws that number as it does without TrainCheck.
    """
    if "rich.style" not in sys.modules:
        draw = random.getrandbits
        random.getrandbits = random.Random().getrandbits
        try:
            import rich.style  # noqa: F401
        finally:
            random.getrandbits = draw
