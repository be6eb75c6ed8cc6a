"""The configuration: the shared options of the table, each from the nearest place that says anything about it.

A flag wins over an environment variable, that over `[tool.traincheck]` in the nearest pyproject.toml, that over the
default of the table. Lists are not joined: the nearest place says all of it.
"""

from __future__ import annotations

import os
import re
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
    packs: tuple[str, ...]
    packages: tuple[str, ...]
    on_violation: str
    callback: str
    look_closer: int
    snapshot: bool
    record: str
    keep_recording: int
    fail_on: str
    compare_ranks: str
    sample_every: int
    warm_up: int
    budget: float
    replay_every: int
    runs: str
    as_program: str | None = None
    reports: tuple[str, ...] = ()
    trackers: tuple[str, ...] = ()
    webhook: str | None = field(default=None, repr=False)
    alert_command: str | None = None
    alert_on: str = "error"
    silent_after: str = "60"
    metrics_port: str | None = None
    metrics_host: str = "127.0.0.1"
    metrics_token: str | None = field(default=None, repr=False)
    otlp: str | None = None
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
    for name in ("look_closer", "replay_every"):
        values[name] = int(values[name])
    if origins["keep_recording"] == DEFAULT:
        values["keep_recording"] = checked_number(OPTIONS["keep_recording"], values["keep_recording"], DEFAULT)
    values["callback"] = _function(values["callback"], origins["callback"])
    return Config(**values, origins=origins)


def _function(place: str | None, origin: str) -> str:
    """The place of a function, `package.module:function`; empty for none."""
    home, _, name = (place or "").partition(":")
    if place and not all(part.isidentifier() for part in (*home.split("."), *name.split("."))):
        raise BadOption(origin, place, "a function as package.module:function")
    return place or ""


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
    if option.kind in ("number", "count", "share", "size"):
        return checked_number(option, given, origin)
    if option.kind == "text" and isinstance(given, int | float) and not isinstance(given, bool):
        value = str(given)  # a port in a file, say
    if isinstance(given, str) and option.several:
        separator = os.pathsep if option.is_path else ","
        value = tuple(part.strip() for part in given.split(separator) if part.strip())
    if isinstance(value, list | tuple) and option.several and all(isinstance(part, str) for part in value):
        return tuple(value)
    if isinstance(value, str) and option.kind in ("text", "path") and (not option.choices or value in option.choices):
        return value
    if option.kind == "switch" and str(value).lower() in ("true", "false", "1", "0"):
        return str(value).lower() in ("true", "1")
    raise BadOption(origin, "(a secret)" if option.secret else given, option.expected)


_SHARE = re.compile(r"(\d+(?:\.\d*)?|\.\d+) ?%")
_SIZE = re.compile(r"(\d{1,15}(?:\.\d*)?|\.\d+) ?(?:([kKMGT])(i?)B)", re.ASCII)
_LEAST_SIZE = 10**6
"""Bytes: a sixteenth of it still holds some steps of a small model."""
_COUNT = re.compile(r"\d{1,18}")


def checked_number(option: Option, given: object, origin: str) -> int | float:
    """The number that was given for an option whose kind is one. Raises BadOption that names `origin`."""
    number = _number(option, given)
    if number is None:
        raise BadOption(origin, given, option.expected)
    return number


def _number(option: Option, given: object) -> int | float | None:
    """The number that was given, a share in percent as a fraction of one; None where it is none of the option's
    kind."""
    if option.kind == "share":
        found = _SHARE.fullmatch(given.strip()) if isinstance(given, str) else None
        share = float(found[1]) / 100 if found else 1.0
        return share if share < 1 else None
    if option.kind == "size":
        return _size(given)
    if isinstance(given, str) and _COUNT.fullmatch(given.strip()):
        given = int(given)
    least = 1 if option.kind == "number" else 0
    return given if type(given) is int and given >= least else None


def _size(given: object) -> int | None:
    """A size in bytes, 0 for no limit."""
    if not isinstance(given, str):
        return None
    if given.strip().lower() == "all":
        return 0
    found = _SIZE.fullmatch(given.strip())
    if not found:
        return None
    power = "kmgt".index(found[2].lower()) + 1
    size = int(float(found[1]) * (1024 if found[3] else 1000) ** power)
    return size if size >= _LEAST_SIZE else None


def _beside(file: Path, value: Value) -> Value:
    """Paths in a file are meant relative to its folder."""
    if isinstance(value, tuple):
        return tuple(str(file.parent / part) for part in value)
    return str(file.parent / value) if isinstance(value, str) else value
