"""The configuration: the value of each shared option, from the nearest place that sets it.

A flag wins over an environment variable, the variable over `[tool.traincheck]` in the nearest pyproject.toml, and the
file over the default of the option table. TrainCheck does not join lists: the nearest place gives the whole list.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from traincheck.errors import BadOption
from traincheck.options import AROUND_FINDINGS, OPERATIONS, OPTIONS, Option, Value

TABLE = "[tool.traincheck]"
DEFAULT = "default"
SECRET = "(a secret)"
CALLBACK = "callback"

FIRST_STEPS = 20
"""Training steps at the start that are watched whatever the budget says."""


class Budget(NamedTuple):
    """The steps to watch: one of `every` steps, as many as fit into `share` of a step's time (0.0 is no limit), and
    the `first` steps in any case."""

    share: float = 0.0
    every: int = 1
    first: int = FIRST_STEPS

    @property
    def limits(self) -> bool:
        """Whether it leaves out any step."""
        return self.share > 0 or self.every > 1


@dataclass(frozen=True, slots=True)
class Config:
    """The values of the shared options.

    Paths out of a file are absolute, others are relative to the working directory. `callback` is the function that
    `on_violation` names, if it names one.
    """

    books: tuple[str, ...]
    packs: tuple[str, ...]
    packages: tuple[str, ...]
    on_violation: str
    record_after_finding: int
    snapshot: bool
    record: str
    keep_recording: int
    fail_on: str
    compare_ranks: str
    budget: Budget
    verify_every: int
    runs: str
    as_program: str | None = None
    reports: tuple[str, ...] = ()
    trackers: tuple[str, ...] = ()
    alerts: tuple[str, ...] = field(default=(), repr=False)
    heartbeat_timeout: str = "60"
    metrics: tuple[str, ...] = ()
    metrics_token: str | None = field(default=None, repr=False)
    callback: str = ""
    whole_values: str = ""
    origins: Mapping[str, str] = field(default_factory=dict)

    @property
    def watched(self) -> Budget:
        """The steps of a checked run to watch, see `steps_to_watch`."""
        return steps_to_watch(None if self.origin("budget") == DEFAULT else self.budget, self.record)

    def origin(self, name: str) -> str:
        """The place that set `name`: a flag, a variable, a file and its key, or `default`."""
        return self.origins.get(name, DEFAULT)


def load(flags: Mapping[str, object], environ: Mapping[str, str], start: Path) -> Config:
    """The configuration for the folder `start`; `flags` holds the values of the command line by the options' names.

    A flag that is None, False or an empty list was not given. Raises BadOption, which names the flag, variable or file.
    """
    file, table = project_table(start)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for option in (option for option in OPTIONS.values() if option.shared):
        value, origin = _nearest(option, flags, environ, file, table)
        origins[option.name] = origin
        values[option.name] = option.default if origin == DEFAULT else _checked(option, value, origin)
        if file is not None and origin.startswith(str(file)) and option.is_path:
            values[option.name] = _relative_to(file, values[option.name])
    for name in ("record_after_finding", "verify_every"):
        values[name] = int(values[name])
    if origins["keep_recording"] == DEFAULT:
        values["keep_recording"] = checked_number(OPTIONS["keep_recording"], values["keep_recording"], DEFAULT)
    if origins["budget"] == DEFAULT:
        values["budget"] = checked_budget(values["budget"], DEFAULT)
    if ":" in values["on_violation"]:
        values["callback"], values["on_violation"] = values["on_violation"], CALLBACK
    values["record"], _, values["whole_values"] = values["record"].partition(":")
    return Config(**values, origins=origins)


def project_table(start: Path) -> tuple[Path | None, Mapping[str, Any]]:
    """The nearest pyproject.toml at or above `start` and its `[tool.traincheck]`. Raises BadOption for a bad one."""
    for folder in (start, *start.parents):
        file = folder / "pyproject.toml"
        if file.is_file():
            table = _read(file)
            keys = [option.key for option in OPTIONS.values() if option.key]
            unknown = sorted(set(table) - set(keys))
            if unknown:
                raise BadOption(f"{file}, {TABLE}", unknown[0], f"one of the keys {', '.join(keys)}")
            return file, table
    return None, {}


def _read(file: Path) -> Mapping[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib  # type: ignore[import-not-found]
    try:
        text = file.read_text(encoding="utf-8")
        if "tool.traincheck" not in text:  # TrainCheck ignores errors in a file that it does not use
            return {}
        table = tomllib.loads(text).get("tool", {}).get("traincheck", {})
    except (OSError, ValueError) as error:
        raise BadOption(str(file), str(error), "a readable TOML file") from error
    if not isinstance(table, dict):
        raise BadOption(f"{file}, tool.traincheck", table, "a table")
    return table


def _nearest(
    option: Option,
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    file: Path | None,
    table: Mapping[str, Any],
) -> tuple[object, str]:
    """The value of the option and the place that sets it; the origin is `default` if no place does."""
    flag = flags.get(option.name)
    if flag is not None and flag is not False and flag != () and flag != []:
        return flag, option.flag
    if environ.get(option.variable):
        return environ[option.variable], option.variable
    if option.key and option.key in table:
        return table[option.key], f"{file}, {TABLE} {option.key}"
    return None, DEFAULT


def _checked(option: Option, value: object, origin: str) -> Any:
    """The value as the option's type. Raises BadOption that names `origin`."""
    if option.kind in ("number", "count", "size"):
        return checked_number(option, value, origin)
    if option.kind == "budget":
        return checked_budget(value, origin)
    if option.kind == "action":
        return checked_action(value, origin)
    if option.kind == "record":
        return checked_record(value, origin)
    if option.several:
        texts = _texts(option, value)
        if texts is not None:
            return texts
    elif option.kind == "switch":
        if str(value).lower() in ("true", "false", "1", "0"):
            return str(value).lower() in ("true", "1")
    else:
        text = _text(value)
        if text is not None and (not option.choices or text in option.choices):
            return text
    raise BadOption(origin, SECRET if option.secret else value, option.expected)


def _text(value: object) -> str | None:
    """The value as a text; a file may hold a number, such as a port or seconds."""
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if isinstance(value, str) or is_number else None


def _texts(option: Option, value: object) -> tuple[str, ...] | None:
    """The values of a list. A variable separates paths as `PATH` does, names by commas, and other texts by lines."""
    if isinstance(value, str):
        separator = os.pathsep if option.is_path else "\n" if option.kind == "lines" else ","
        return tuple(part.strip() for part in value.split(separator) if part.strip())
    values = list(value) if isinstance(value, list | tuple) else [value] if type(value) is int else None
    if values is None or (option.is_path and not all(isinstance(part, str | os.PathLike) for part in values)):
        return None
    texts = [_text(part) for part in values]
    return tuple(text for text in texts if text is not None) if None not in texts else None


def checked_action(value: object, origin: str) -> str:
    """The value of `on_violation`. Raises BadOption that names `origin`."""
    option = OPTIONS["on_violation"]
    if isinstance(value, str):
        module, colon, function = value.partition(":")
        names = [*module.split("."), *function.split(".")]
        if value in option.choices or (colon and all(name.isidentifier() for name in names)):
            return value
    raise BadOption(origin, value, option.expected)


def checked_record(value: object, origin: str) -> str:
    """The value of `record`. Raises BadOption that names `origin`."""
    option = OPTIONS["record"]
    if isinstance(value, str) and (value in option.choices or _WHOLE_VALUES.fullmatch(value)):
        return value
    raise BadOption(origin, value, option.expected)


_WHOLE_VALUES = re.compile(OPERATIONS + r":[^@]*@[1-9]\d{0,17}", re.ASCII)
_SHARE = re.compile(r"(\d+(?:\.\d*)?|\.\d+) ?%")
_FRACTION = re.compile(r"1/([1-9]\d{0,17})", re.ASCII)
_FIRST = re.compile(r"first=(\d{1,18})", re.ASCII)
_SIZE = re.compile(r"(\d{1,15}(?:\.\d*)?|\.\d+) ?(?:([kKMGT])(i?)B)", re.ASCII)
_LEAST_SIZE = 10**6
"""Bytes: a sixteenth of it still holds some steps of a small model."""
_COUNT = re.compile(r"\d{1,18}")


def checked_budget(value: object, origin: str) -> Budget:
    """The budget in a text such as `1%`, `1/10` or `1/10,first=50`. Raises BadOption that names `origin`."""
    budget = _budget(value) if isinstance(value, str) else None
    if budget is None:
        raise BadOption(origin, value, OPTIONS["budget"].expected)
    return budget


def steps_to_watch(budget: Budget | None, record: str) -> Budget:
    """The steps of a checked run to watch: those of the budget; without one those of the default, but all if all are to
    be recorded."""
    if budget is not None:
        return budget
    return checked_budget(OPTIONS["budget"].default, DEFAULT) if record == AROUND_FINDINGS else Budget()


def _budget(text: str) -> Budget | None:
    amount, comma, rest = (part.strip() for part in text.partition(","))
    first = _FIRST.fullmatch(rest) if comma else None
    if comma and not first:
        return None
    budget = Budget(first=int(first[1])) if first else Budget()
    fraction, share = _FRACTION.fullmatch(amount), _SHARE.fullmatch(amount)
    if fraction:
        return budget._replace(every=int(fraction[1]))
    if share and float(share[1]) < 100:
        return budget._replace(share=float(share[1]) / 100)
    return None


def checked_number(option: Option, value: object, origin: str) -> int:
    """The number of an option whose kind is one. Raises BadOption that names `origin`."""
    number = _size(value) if option.kind == "size" else _number(option, value)
    if number is None:
        raise BadOption(origin, value, option.expected)
    return number


def _number(option: Option, value: object) -> int | None:
    if isinstance(value, str) and _COUNT.fullmatch(value.strip()):
        value = int(value)
    least = 1 if option.kind == "number" else 0
    return value if type(value) is int and value >= least else None


def _size(value: object) -> int | None:
    """A size in bytes, 0 for no limit."""
    if not isinstance(value, str):
        return None
    if value.strip().lower() == "all":
        return 0
    match = _SIZE.fullmatch(value.strip())
    if not match:
        return None
    power = "kmgt".index(match[2].lower()) + 1
    size = int(float(match[1]) * (1024 if match[3] else 1000) ** power)
    return size if size >= _LEAST_SIZE else None


def _relative_to(file: Path, value: Value) -> Value:
    """Paths in a file are relative to its folder."""
    if isinstance(value, tuple):
        return tuple(str(file.parent / part) for part in value)
    return str(file.parent / value) if isinstance(value, str) else value
