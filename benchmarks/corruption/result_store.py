"""Stores the outcome of each run as one line, so that an interrupted benchmark can resume."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class ResultStore:
    """The stored outcomes of a file, by group and task."""

    def __init__(self, file: Path, *, go_on: bool) -> None:
        """Without `go_on`, the store starts empty."""
        file.parent.mkdir(parents=True, exist_ok=True)
        if not go_on:
            file.unlink(missing_ok=True)
        self._file = file
        self._outcomes: dict[tuple[str, str], dict[str, Any]] = {}
        for line in file.read_text().splitlines() if file.exists() else ():
            try:
                entry = json.loads(line)
            except ValueError:  # the last line of a killed run
                continue
            self._outcomes[entry["group"], _key(entry["of"])] = entry["found"]

    def add(self, group: str, of: Mapping[str, Any], outcome: dict[str, Any]) -> None:
        """Store an outcome."""
        self._outcomes[group, _key(of)] = outcome
        with self._file.open("a") as lines:
            print(json.dumps({"group": group, "of": of, "found": outcome}), file=lines)

    def get(self, group: str, of: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the stored outcome of a task, or None."""
        return self._outcomes.get((group, _key(of)))


def _key(of: Mapping[str, Any]) -> str:
    return json.dumps(of, sort_keys=True)
