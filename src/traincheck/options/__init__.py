"""The option table: every option of the commands, stated once.

From a row come the flag with its help, the name of an environment variable, the key in `[tool.traincheck]` of
pyproject.toml, and the line in the reference. An option without `shared` is one of a single command line (the folder
to write, say): it has neither variable nor key. The value of a `secret` one is never shown.
"""

from __future__ import annotations

from collections.abc import Mapping

from traincheck.options.configurable import CONFIGURABLE
from traincheck.options.corruption import CORRUPTION
from traincheck.options.one_command import ONE_COMMAND
from traincheck.options.row import ENVIRONMENT, Kind, Option, Value
from traincheck.vocab.option_values import (
    ALL,
    AUTO,
    EXCHANGE,
    FILES,
    FOUND,
    LOCAL,
    NO_PACKS,
    OFF,
    RAY,
    RECORDED_WHOLE,
    SHIPPED_PACKS,
)

OPTIONS: Mapping[str, Option] = {option.name: option for option in (*CONFIGURABLE, *ONE_COMMAND, *CORRUPTION)}

__all__ = [
    "ALL",
    "AUTO",
    "ENVIRONMENT",
    "EXCHANGE",
    "FILES",
    "FOUND",
    "Kind",
    "LOCAL",
    "NO_PACKS",
    "OFF",
    "OPTIONS",
    "Option",
    "RAY",
    "RECORDED_WHOLE",
    "SHIPPED_PACKS",
    "Value",
]
