"""The columns of the option table: what one row says about an option."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Value: TypeAlias = str | bool | int | float | tuple[str, ...] | None
Kind: TypeAlias = Literal[
    "text", "path", "texts", "paths", "lines", "switch", "number", "count", "size", "action", "budget", "record"
]

ENVIRONMENT = "TRAINCHECK_"

BASICS = "Basics"
CHECKED = "What is checked"
ON_FINDINGS = "What happens on a finding"
RECORDING = "Recording"
RANKS = "Ranks and monitoring"
GROUPS = (BASICS, CHECKED, ON_FINDINGS, RECORDING, RANKS)
"""The headings of a long --help, in their order."""

_EXPECTED: dict[Kind, str] = {
    "switch": "true or false",
    "texts": "a list of names",
    "paths": "a list of paths",
    "lines": "a list of texts",
    "path": "a path",
    "number": "a whole number, 1 or more",
    "count": "a whole number, 0 or more",
    "size": "a size of 1 MB or more, such as 500 MB, 10GB or 2 GiB, or all for no limit",
    "action": "warn, stop, callback, or a function as package.module:function",
    "record": "found, all, operations, or operations:MODULE@STEP for all elements of one module in one step",
    "budget": "a share such as 1% or 0.5%, or 1/K with a whole K; optionally ,first=N behind it",
}


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    An option of kind `texts`, `paths` or `lines` takes several values: the flag is repeated, the variable holds a
    list. A `shared` option has a variable and a key in pyproject.toml that are named like its flag. A `secret` option
    is never shown with its value; without a flag it can only be given as a variable.
    """

    name: str
    flags: tuple[str, ...]
    help: str
    kind: Kind = "text"
    metavar: str = ""
    default: Value = None
    choices: tuple[str, ...] = ()
    shared: bool = False
    secret: bool = False
    group: str = BASICS

    @property
    def flag(self) -> str:
        """The long flag, by which messages name the option; the variable where the option has no flag."""
        return next((flag for flag in self.flags if flag.startswith("--")), self.variable)

    @property
    def variable(self) -> str:
        """The environment variable, empty for an option of one command line only."""
        return ENVIRONMENT + self._stem.upper().replace("-", "_") if self.shared else ""

    @property
    def key(self) -> str:
        """The key in `[tool.traincheck]`, empty for an option of one command line only and for one without a flag."""
        return self._stem if self.shared and self.flags else ""

    @property
    def _stem(self) -> str:
        return next((flag[2:] for flag in self.flags if flag.startswith("--")), self.name)

    @property
    def several(self) -> bool:
        return self.kind in ("texts", "paths", "lines")

    @property
    def is_path(self) -> bool:
        return self.kind in ("path", "paths")

    @property
    def expected(self) -> str:
        """The expected values, as the end of an error message."""
        if self.kind not in _EXPECTED and self.choices:
            return "one of " + ", ".join(self.choices)
        return _EXPECTED.get(self.kind, "a text")
