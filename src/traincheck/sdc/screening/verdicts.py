"""Decide from the fingerprints of several rounds and devices whether a device computes correctly. Imports no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from traincheck.sdc.screening.reference_fingerprints import ReferenceFingerprints

CLEAN, CORRUPT, UNDECIDED = "clean", "corrupt", "undecided"
OVER_TIME, REFERENCE, OTHERS = (
    "differs between rounds",
    "differs from the reference",
    "differs from other devices",
)

MAX_LISTED = 20
"""Wrong results to list individually; all are counted."""


@dataclass
class Rounds:
    """The rounds of a device: how often each part of the work had each fingerprint, and its first round."""

    device: str
    software: Mapping[str, str]
    number: int = 0
    seconds: float = 0.0
    undetermined: tuple[str, ...] = ()
    values: dict[str, Counter[str]] = field(default_factory=dict)
    _first: dict[tuple[str, str], int] = field(default_factory=dict)

    def add(self, fingerprints: Mapping[str, str]) -> None:
        """Add the fingerprints of a round."""
        for key, value in fingerprints.items():
            self.values.setdefault(key, Counter())[value] += 1
            self._first.setdefault((key, value), self.number)
        self.number += 1

    def usual(self, key: str) -> str:
        """Return the most frequent fingerprint, the earlier one of a tie."""
        return max(self.values[key].items(), key=lambda item: (item[1], -self._first[key, item[0]]))[0]

    def first(self, key: str, value: str) -> int:
        """Return the first round, counted from 1, with this fingerprint."""
        return self._first[key, value] + 1


def judge(devices: Sequence[Rounds], reference: ReferenceFingerprints | None) -> list[dict[str, Any]]:
    """Return the verdict on each device as JSON objects.

    Differences between rounds prove nothing if torch reports nondeterministic operations: the verdict is then
    undecided. Without reference fingerprints, devices of one kind are compared with each other. The fingerprint of more
    than half of the devices is taken as correct, or, without such a majority, that of any other device.
    """
    results = []
    for rounds in devices:
        right = dict(reference.fingerprints) if reference is not None else _by_majority(rounds, devices)
        wrong = _over_time(rounds)
        by_itself = bool(wrong)
        wrong += _against(rounds, right, REFERENCE if reference is not None else OTHERS)
        verdict = CORRUPT if wrong else CLEAN
        if by_itself and len({mismatch["reason"] for mismatch in wrong}) == 1 and rounds.undetermined:
            verdict = UNDECIDED
        wrong.sort(key=lambda mismatch: mismatch["round"])
        results.append(
            {
                "device": rounds.device,
                "software": dict(rounds.software),
                "verdict": verdict,
                "rounds": rounds.number,
                "seconds": round(rounds.seconds, 1),
                "compared": rounds.number * len(rounds.values),
                "against": "known fingerprints" if reference is not None else "itself" + (", others" if right else ""),
                "wrong": len(wrong),
                "first_wrong": wrong[:MAX_LISTED],
                "undetermined": list(rounds.undetermined),
            }
        )
    return results


def _over_time(rounds: Rounds) -> list[dict[str, Any]]:
    return [
        {"what": key, "reason": OVER_TIME, "round": rounds.first(key, value), "times": times}
        for key, values in rounds.values.items()
        for value, times in values.items()
        if len(values) > 1 and value != rounds.usual(key)
    ]


def _against(rounds: Rounds, right: Mapping[str, str], reason: str) -> list[dict[str, Any]]:
    """Return the parts in which a device usually differs from `right`. `_over_time` reports single differences."""
    return [
        {
            "what": key,
            "reason": reason,
            "round": rounds.first(key, rounds.usual(key)),
            "times": values[rounds.usual(key)],
        }
        for key, values in rounds.values.items()
        if key in right and rounds.usual(key) != right[key]
    ]


def _by_majority(rounds: Rounds, devices: Sequence[Rounds]) -> dict[str, str]:
    """Return the expected results by devices of the same kind; without a majority, the device itself has no vote."""
    same_kind = [other for other in devices if other.software == rounds.software]
    if len(same_kind) < 2:
        return {}
    right = {}
    for key in rounds.values:
        (value, times), *_ = Counter(other.usual(key) for other in same_kind if key in other.values).most_common(1)
        others = [other.usual(key) for other in same_kind if other is not rounds and key in other.values]
        if 2 * times > len(same_kind):
            right[key] = value
        elif others:
            right[key] = next((other for other in others if other != rounds.usual(key)), others[0])
    return right
