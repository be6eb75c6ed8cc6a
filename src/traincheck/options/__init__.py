"""The option table: each option of the commands is stated in one row.

A row gives the flag with its help, the environment variable, the key in `[tool.traincheck]` of pyproject.toml, and
the line in the reference. Options that are not `shared` have neither variable nor key.
"""

from __future__ import annotations

from collections.abc import Mapping

from traincheck.options.configurable import CONFIGURABLE
from traincheck.options.corruption import CORRUPTION
from traincheck.options.one_command import ONE_COMMAND
from traincheck.options.row import ENVIRONMENT, GROUPS, Kind, Option, Value
from traincheck.vocab.option_values import (
    ALL,
    AROUND_FINDINGS,
    AUTO,
    EXCHANGE,
    FILES,
    NO_PACKS,
    OFF,
    OPERATIONS,
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
    "AROUND_FINDINGS",
    "OPERATIONS",
    "GROUPS",
    "Kind",
    "NO_PACKS",
    "OFF",
    "OPTIONS",
    "Option",
    "RECORDED_WHOLE",
    "SHIPPED_PACKS",
    "Value",
]
