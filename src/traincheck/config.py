"""The configuration: the shared options of the table, each from the nearest place that says anything about it.

A flag wins over an environment variable, that over `[tool.traincheck]` in the nearest pyproject.toml, that over the
default of the table. Lists are not joined: the nearest place says all of it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from traincheck.errors import BadOption
from traincheck.options import OPTIONS, Option, Value

TABLE = "[tool.traincheck]"
DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Config:
    """What was asked for. Paths out of a file are absolute, others are relative to the working directory."""

    books: tuple[str, ...]
    packages: tuple[str, ...]
    on_violation: str
    fail_on: str
    compare_ranks: str
    runs: str
    origins: Mapping[str, str] = field(default_factory=dict)

    def origin(self, name: str) -> str:
        """Where the value of `name` came from: a flag, a variable, a file and its key, or `default`."""
        return self.origins.get(name, DEFAULT)


def load(flags: Mapping[str, Value], environ: Mapping[str, str], start: Path) -> Config:
    """The configuration for the folder `start`; `flags` holds what the command line said, by the options' names.

    A flag that is None or an empty list was not given. Raises BadOption, which names the flag, variable or file.
    """
    file, table = project_table(start)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for option in (option for option in OPTIONS.values() if option.shared):
        given, origin = _nearest(option, flags, environ, file, table)
        origins[option.name] = origin
        values[option.name] = option.default if origin == DEFAULT else _checked(option, given, origin)
        if file is not None and origin.startswith(str(file)) and option.is_path:
            values[option.name] = _beside(file, values[option.name])
    return Config(**values, origins=origins)


def project_table(start: Path) -> tuple[Path | None, Mapping[str, Any]]:
    """The nearest pyproject.toml at or above `start` and its `[tool.traincheck]`. Raises BadOption for a bad one."""
    for folder in (start, *start.parents):
        file = folder / "pyproject.toml"
        if file.is_file():
            table = _read(file)
            unknown = sorted(set(table) - {option.key for option in OPTIONS.values() if option.shared})
            if unknown:
                known = ", ".join(option.key for option in OPTIONS.values() if option.shared)
                raise BadOption(f"{file}, {TABLE}", unknown[0], f"one of the keys {known}")
            return file, table
    return None, {}


def _read(file: Path) -> Mapping[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib  # type: ignore[import-not-found]
    try:
        text = file.read_text(encoding="utf-8")
        if "tool.traincheck" not in text:  # another tool's troubles with the file are none of ours
            return {}
        table = tomllib.loads(text).get("tool", {}).get("traincheck", {})
    except (OSError, ValueError) as error:
        raise BadOption(str(file), str(error), "a readable TOML file") from error
    if not isinstance(table, dict):
        raise BadOption(f"{file}, tool.traincheck", table, "a table")
    return table


def _nearest(
    option: Option,
    flags: Mapping[str, Value],
    environ: Mapping[str, str],
    file: Path | None,
    table: Mapping[str, Any],
) -> tuple[object, str]:
    """The value of the option as it was given, and where; the origin is `default` when it was given nowhere."""
    flag = flags.get(option.name)
    if flag is not None and flag != ():
        return flag, option.flag
    if environ.get(option.variable):
        return environ[option.variable], option.variable
    if option.key in table:
        return table[option.key], f"{file}, {TABLE} {option.key}"
    return None, DEFAULT


def _checked(option: Option, given: object, origin: str) -> Value:
    """The value as the option's type. Raises BadOption that names `origin`."""
    value = given
    if isinstance(given, str) and option.several:
        separator = os.pathsep if option.is_path else ","
        value = tuple(part.strip() for part in given.split(separator) if part.strip())
    if isinstance(value, list | tuple) and option.several and all(isinstance(part, str) for part in value):
        return tuple(value)
    if isinstance(value, str) and not option.several and (not option.choices or value in option.choices):
        return value
    raise BadOption(origin, given, option.expected)


def _beside(file: Path, value: Value) -> Value:
    """Paths in a file are meant relative to its folder."""
    if isinstance(value, tuple):
        return tuple(str(file.parent / part) for part in value)
    return str(file.parent / value) if isinstance(value, str) else value
