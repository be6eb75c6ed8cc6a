"""Write the results of a study to a file, and read and validate such files. Imports no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from traincheck.errors import OtherFile, StudyTooNew, StudyUnreadable
from traincheck.files import read_bounded, write_whole
from traincheck.sdc.study.plan import FORMAT, LEVELS, PERIOD, STEP, SUBMODULE, VERSION

TEXT, COUNT, NUMBER, TRUTH = "a text", "a whole number", "a number or null", "true or false"


MOST = 1 << 63
"""Upper limit of whole numbers: smaller ones can be drawn and summed."""


class _Maybe(dict[str, Any]):
    """Optional parts."""


_MISMATCH = {
    "direction": TEXT,
    **dict.fromkeys(("elements", "different", "not_finite"), COUNT),
    **dict.fromkeys(("frequency", "severity", "worst"), NUMBER),
}
_RANKS = _Maybe(ranks=[COUNT])
_OF_STEP = {"step": COUNT, "loss": NUMBER, "suspect_loss": NUMBER}
_FREQUENCIES = _Maybe(dict.fromkeys(("forward", "backward", "gradient", "update"), NUMBER))


def _level(series: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    of_ranks = {
        "steps": COUNT,
        "injected": [{"fault": TEXT, "times": COUNT, "": _Maybe(times_by_rank=[COUNT])}],
        "by_kind": [{"kind": TEXT, **_MISMATCH, "": _RANKS}],
        "by_module": [{"module": TEXT, **_MISMATCH, "": _RANKS}],
        "series": [{**_OF_STEP, **series, "": _Maybe(_FREQUENCIES, rank=COUNT)}],
        **more,
    }
    return {**of_ranks, "": _Maybe(by_rank=[{"rank": COUNT, **of_ranks}])}


_SHAPE = {
    "workload": TEXT,
    "seed": COUNT,
    "device": TEXT,
    "faults": [TEXT],
    "interrupted": TRUTH,
    "workers": {"trusted": {"host": TEXT, "device": TEXT}, "suspect": {"host": TEXT, "device": TEXT}},
    "levels": {
        "": _Maybe(
            {
                SUBMODULE: _level({}),
                STEP: _level(
                    {"noise_to_signal": NUMBER, "worst_parameter": TEXT, "worst_noise_to_signal": NUMBER},
                    worst_noise_to_signal=NUMBER,
                    worst_noise_to_signal_of_a_parameter=NUMBER,
                ),
                PERIOD: _level(
                    {"parameter_distance": NUMBER, "relative_distance": NUMBER},
                    evaluation={"trusted": NUMBER, "suspect": NUMBER},
                ),
            }
        )
    },
    "": _Maybe(tensor_parallel=COUNT),
}
"""The required parts for tables and pages; parts under the empty name are optional."""


def write_study(study: Mapping[str, Any], path: Path) -> None:
    """Write a study to a file. Raises OutputError."""
    write_whole(path, (json.dumps(study, indent=1, allow_nan=False) + "\n").encode())


def read_study(path: Path) -> dict[str, Any]:
    """Read and validate a study file.

    Raises StudyUnreadable for another or damaged file, and StudyTooNew.
    """
    data = _read(path)
    wrong = _wrong(data, _SHAPE, "") or next((f"levels has '{name}'" for name in set(data["levels"]) - set(LEVELS)), "")
    if wrong:
        raise StudyUnreadable(path, wrong)
    return data


def check_replaceable_study(path: Path) -> None:
    """Raise OtherFile if the file exists and is not a study."""
    if not path.exists() or (path.is_file() and path.stat().st_size == 0):
        return
    try:
        _read(path)
    except StudyUnreadable as error:
        raise OtherFile(path, "what a study has found", "-o") from error
    except StudyTooNew as error:
        raise OtherFile(path, "one that this TrainCheck has written", "-o") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(read_bounded(path), parse_constant=_not_json)
    except OSError as error:
        raise StudyUnreadable(path, error.strerror or str(error)) from None
    except (ValueError, RecursionError):
        raise StudyUnreadable(path, "it is not JSON") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise StudyUnreadable(path, "it is of another kind")
    version = data.get("version")
    if isinstance(version, bool) or not isinstance(version, int):
        raise StudyUnreadable(path, "its version is no whole number")
    if version > VERSION:
        raise StudyTooNew(path, version, VERSION)
    return data


def _not_json(word: str) -> None:
    raise ValueError(word)


def _wrong(value: Any, shape: Any, name: str) -> str:
    """Describe the first deviation from the shape; empty if there is none. Unknown names are ignored."""
    if isinstance(shape, str):
        return "" if _is(value, shape) else f"{name} is not {shape}"
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{name} is no list"
        return next(filter(None, (_wrong(item, shape[0], f"{name}[{n}]") for n, item in enumerate(value))), "")
    if not isinstance(value, dict):
        return f"{name} is no object"
    inside = f"{name}." if name else ""
    for part, of in shape.items():
        if part and part not in value:
            return f"{inside}{part} is missing"
        wrong = _wrong(value[part], of, f"{inside}{part}") if part else _wrong_where_there(value, of, inside)
        if wrong:
            return wrong
    return ""


def _wrong_where_there(value: Mapping[str, Any], shape: Mapping[str, Any], inside: str) -> str:
    parts = (_wrong(value[part], of, f"{inside}{part}") for part, of in shape.items() if part in value)
    return next(filter(None, parts), "")


def _is(value: Any, kind: str) -> bool:
    if kind == TEXT:
        return isinstance(value, str)
    if kind == TRUTH:
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    if kind == COUNT:
        return isinstance(value, int) and 0 <= value < MOST
    if value is None:
        return True
    try:
        return isinstance(value, (int, float)) and math.isfinite(value)
    except OverflowError:  # a whole number beyond all floating point ones
        return False


def differs(study: Mapping[str, Any]) -> bool:
    """Whether any result of the suspect differs from the trusted worker's."""
    levels = study["levels"].values()
    parameters = any(row["relative_distance"] != 0 for row in study["levels"].get(PERIOD, {}).get("series", []))
    losses = any(row["loss"] != row["suspect_loss"] for level in levels for row in level["series"])
    return parameters or losses or any(row["different"] for level in levels for row in level["by_kind"])
