"""Verdict: what the fingerprints of several rounds, on several devices, say of each. Knows nothing of torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from traincheck.sdc.screening.reference_fingerprints import Known

CLEAN, CORRUPT, UNDECIDED = "clean", "corrupt", "undecided"
OVER_TIME, KNOWN, OTHERS = "not what it was in other rounds", "not what is known to be right", "not as on other devices"

TOLD = 20
"""Wrong results that are told one by one; all are counted."""


@dataclass
class Rounds:
    """The rounds of a device: how often each part of the work had which fingerprint, and in which round first."""

    device: str
    software: Mapping[str, str]
    number: int = 0
    seconds: float = 0.0
    undetermined: tuple[str, ...] = ()
    values: dict[str, Counter[str]] = field(default_factory=dict)
    _first: dict[tuple[str, str], int] = field(default_factory=dict)

    def add(self, found: Mapping[str, str]) -> None:
        """Take in a round."""
        for key, value in found.items():
            self.values.setdefault(key, Counter())[value] += 1
            self._first.setdefault((key, value), self.number)
        self.number += 1

    def usual(self, key: str) -> str:
        """The fingerprint that most rounds had, the earlier one of two."""
        return max(self.values[key].items(), key=lambda item: (item[1], -self._first[key, item[0]]))[0]

    def first(self, key: str, value: str) -> int:
        """The first round, from 1 on, in which it was."""
        return self._first[key, value] + 1


def judge(devices: Sequence[Rounds], known: Known | None) -> list[dict[str, Any]]:
    """The verdict on each device, as JSON holds it.

    What differs from round to round where torch has operations that are not deterministic is no proof: undecided.
    Without known fingerprints devices of one kind are held against each other: against what more than half of them
    have, or, where there is no such majority, against any other.
    """
    found = []
    for one in devices:
        right = dict(known.fingerprints) if known is not None else _by_majority(one, devices)
        wrong = _over_time(one)
        by_itself = bool(wrong)
        wrong += _against(one, right, KNOWN if known is not None else OTHERS)
        verdict = CORRUPT if wrong else CLEAN
        if by_itself and len({told["reason"] for told in wrong}) == 1 and one.undetermined:
            verdict = UNDECIDED
        wrong.sort(key=lambda told: told["round"])
        found.append(
            {
                "device": one.device,
                "software": dict(one.software),
                "verdict": verdict,
                "rounds": one.number,
                "seconds": round(one.seconds, 1),
                "compared": one.number * len(one.values),
                "against": "known fingerprints" if known is not None else "itself" + (", others" if right else ""),
                "wrong": len(wrong),
                "first_wrong": wrong[:TOLD],
                "undetermined": list(one.undetermined),
            }
        )
    return found


def _over_time(one: Rounds) -> list[dict[str, Any]]:
    return [
        {"what": key, "reason": OVER_TIME, "round": one.first(key, value), "times": times}
        for key, values in one.values.items()
        for value, times in values.items()
        if len(values) > 1 and value != one.usual(key)
    ]


def _against(one: Rounds, right: Mapping[str, str], reason: str) -> list[dict[str, Any]]:
    """Where a device is usually wrong; what it computed only once is told as such."""
    return [
        {"what": key, "reason": reason, "round": one.first(key, one.usual(key)), "times": values[one.usual(key)]}
        for key, values in one.values.items()
        if key in right and one.usual(key) != right[key]
    ]


def _by_majority(one: Rounds, devices: Sequence[Rounds]) -> dict[str, str]:
    """What results should be by devices of the same kind, this one being no witness where there is no majority."""
    alike = [other for other in devices if other.software == one.software]
    if len(alike) < 2:
        return {}
    right = {}
    for key in one.values:
        (value, times), *_ = Counter(other.usual(key) for other in alike if key in other.values).most_common(1)
        others = [other.usual(key) for other in alike if other is not one and key in other.values]
        if 2 * times > len(alike):
            right[key] = value
        elif others:
            right[key] = next((other for other in others if other != one.usual(key)), others[0])
    return right
