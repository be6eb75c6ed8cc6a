"""What a row of the option table says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Value: TypeAlias = str | bool | int | float | tuple[str, ...] | None
Kind: TypeAlias = Literal["text", "path", "texts", "paths", "switch", "number", "count", "share", "size"]

ENVIRONMENT = "TRAINCHECK_"


@dataclass(frozen=True, slots=True)
class Option:
    """One option. A `kind` in the plural takes several values: the flag is repeated, the variable holds a list."""

    name: str
    flags: tuple[str, ...]
    help: str
    kind: Kind = "text"
    metavar: str = ""
    default: Value = None
    choices: tuple[str, ...] = ()
    shared: bool = False
    secret: bool = False

    @property
    def flag(self) -> str:
        """The long flag, by which messages name the option."""
        return next(flag for flag in self.flags if flag.startswith("--"))

    @property
    def variable(self) -> str:
        """The environment variable, empty for an option of one command line only."""
        return ENVIRONMENT + self.name.upper() if self.shared else ""

    @property
    def key(self) -> str:
        """The key in `[tool.traincheck]`, empty for an option of one command line only."""
        return self.name.replace("_", "-") if self.shared else ""

    @property
    def several(self) -> bool:
        return self.kind in ("texts", "paths")

    @property
    def is_path(self) -> bool:
        return self.kind in ("path", "paths")

    @property
    def expected(self) -> str:
        """What a value should be, for a message."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        words = {
            "switch": "true or false",
            "texts": "a list of names",
            "paths": "a list of paths",
            "path": "a path",
            "number": "a whole number, 1 or more",
            "count": "a whole number, 0 or more",
            "size": "a size of 1 MB or more, such as 500 MB, 10GB or 2 GiB, or all for no limit",
            "share": "a share in percent, from 0% to less than 100%, such as 1% or 0.5%",
        }
        return words.get(self.kind, "a text")
