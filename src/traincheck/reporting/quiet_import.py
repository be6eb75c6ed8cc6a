"""Imports the terminal library without drawing a random number from the stream of the observed program."""

from __future__ import annotations

import random
import sys


def import_terminal() -> None:
    """Import the part of the terminal library that draws a random number at its import, from a stream of our own.

    Call it as late as possible: a program that imports the library first draws that number as without TrainCheck.
    """
    if "rich.style" not in sys.modules:
        draw = random.getrandbits
        random.getrandbits = random.Random().getrandbits
        try:
            import rich.style  # noqa: F401
        finally:
            random.getrandbits = draw
