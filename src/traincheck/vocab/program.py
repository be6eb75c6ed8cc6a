"""The identity of a program: derived from its source text, whatever its name and its folder.

Note [Program identity]
The name of a script is no identity: scripts are renamed, moved and called from other folders, and different scripts are
called `train.py`. So an identity holds sketches of two sets of features (see runtime/launching/program_identity.py):
those of the entry script, and those of the program's own modules that it imports. Two programs are the same if both
sets are similar. Scripts of one project share modules and differ in the entry script; thin entry scripts of two
projects are similar and import different modules.

A sketch holds the smallest `SKETCH_SIZE` hashes of a set. So it estimates the share of common features (Jaccard):
exactly for small sets, else with a standard error of 0.044 at most. It holds no words of the program.

`SAME` is one half: a program is the learned one while half of the features of both texts are common. Edits of a script
stay far above it, and different programs far below: see docs/decisions for the measured distance.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath

SKETCH_SIZE = 128
_DIGITS = 8
SAME = 0.5
"""The least share of common features of the same program, see Note [Program identity]."""


@dataclass(frozen=True, slots=True)
class ProgramIdentity:
    """The name of the entry module, and the sketches of the entry script and of the modules that it imports.

    Both sketches are empty if the text is unknown or the user gave a name: then names are compared.
    """

    main: str = ""
    entry: str = ""
    modules: str = ""

    @classmethod
    def of_features(cls, main: str, entry: Iterable[str], modules: Iterable[str]) -> ProgramIdentity:
        """The identity of a program with these features."""
        return cls(main, sketch(entry), sketch(modules))

    @classmethod
    def parse(cls, text: str) -> ProgramIdentity:
        """The identity that `str` has written; for another text, an unknown one."""
        parts = text.rsplit(":", 2)
        return cls(*parts) if len(parts) == 3 and all(map(_is_sketch, parts[1:])) else cls()

    def __str__(self) -> str:
        return f"{self.main}:{self.entry}:{self.modules}" if self.main or self.entry else ""

    def similarity(self, other: ProgramIdentity) -> float:
        """The share of common features: of the entry scripts or of the modules, whichever is smaller."""
        return min(jaccard(self.entry, other.entry), jaccard(self.modules, other.modules))

    def same_as(self, other: ProgramIdentity) -> bool | None:
        """Whether both are the same program; None if the text of one of them is unknown."""
        if not (self.entry and other.entry):
            return None
        return self.similarity(other) >= SAME


UNKNOWN = ProgramIdentity()
"""The identity of an unknown program."""


def main_of_name(script: str) -> str:
    """The name of `__main__` in a program with this name in run.json: `train` for `torchrun dir/train.py`."""
    last = script.split(" ")[-1]
    return last if script.startswith("-m ") else PurePath(last).stem


def sketch(features: Iterable[str]) -> str:
    """The smallest hashes of the features in hex digits, sorted and joined."""
    hashes = {hashlib.sha256(feature.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS] for feature in features}
    return "".join(sorted(hashes)[:SKETCH_SIZE])


def jaccard(a: str, b: str) -> float:
    """The share of the features of either sketch that both have; 1 for two empty ones."""
    first, second = _hashes(a), _hashes(b)
    union = sorted(first | second)[:SKETCH_SIZE]
    return (
        sum(feature_hash in first and feature_hash in second for feature_hash in union) / len(union) if union else 1.0
    )


def _hashes(text: str) -> frozenset[str]:
    return frozenset(text[start : start + _DIGITS] for start in range(0, len(text), _DIGITS))


def _is_sketch(text: str) -> bool:
    return len(text) % _DIGITS == 0 and len(text) <= _DIGITS * SKETCH_SIZE and set(text) <= set("0123456789abcdef")
