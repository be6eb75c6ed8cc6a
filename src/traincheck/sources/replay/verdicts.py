"""Judges replayed computations: same, transient fault, persistent fault, or undecided.

Note [Program or device]
Correct hardware repeats a computation bit by bit, and so does software if all its inputs were restored. For a new
program that is uncertain, so a computation has to earn trust: until it repeated `TRUSTED` times, a difference only
shows that it cannot be judged. Later a difference is a suspicion, and the next `CONFIRMATIONS` steps are replayed.
* If all of them differ, the result is undecided. The program may do something that cannot be repeated (a loss term that
  the model's call does not see), or a unit may be permanently broken.
* If one of them repeats, the program is not the cause.
Operations without a deterministic implementation in torch are software in any case.

Each attempt has three computations: the original and two repetitions. One of them may be odd, or all may differ. A
difference that occurs once is *transient*; a difference in every attempt is *persistent*.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from traincheck.vocab.replayed_computations import PERSISTENT, SAME, TRANSIENT, UNDECIDED

TRUSTED = 2
CONFIRMATIONS = 3
MAX_FAILURES = 3
"""Differences without trust after which a computation is given up. After as many attempts without a result, it is
replayed only when due."""


class OddOneOut(Enum):
    """Which of three computations differed."""

    NONE = "none"
    ORIGINAL = "original"
    REPETITION = "repetition"
    ALL = "all"


class Attempt(NamedTuple):
    """The result of replaying a computation in a step: which one was odd, and the first part and name that differ."""

    step: int
    odd_one_out: OddOneOut
    part: str = ""
    first: str = ""
    site: str = ""


class Verdict(NamedTuple):
    """SAME, TRANSIENT, PERSISTENT or UNDECIDED, and the attempt it refers to."""

    kind: str
    attempt: Attempt


@dataclass
class ReplayHistory:
    """The replay history of one computation: a model call, or the updates of an optimizer."""

    same: int = 0
    differences: int = 0
    disabled_reason: str = ""
    attempts: int = 0
    """Attempts without a result since the last judgement."""
    suspicion: list[Attempt] = field(default_factory=list)

    @property
    def confirming(self) -> bool:
        """Whether the next step is replayed to confirm a suspicion, or to establish trust."""
        return (
            not self.disabled_reason and self.attempts < MAX_FAILURES and (bool(self.suspicion) or self.same < TRUSTED)
        )

    def begin_attempt(self) -> bool:
        """Count an attempt. Returns False once, where no attempt has ever had a result."""
        self.attempts += 1
        return self.attempts != MAX_FAILURES + 1 or bool(self.same or self.differences)

    def judge(self, attempt: Attempt, nondeterministic: Callable[[], str]) -> Verdict | None:
        """Add an attempt; return a verdict where it allows one.

        `nondeterministic` names an operation that torch reports as nondeterministic; it is called only after a
        difference.
        """
        self.attempts = 0
        if attempt.odd_one_out is OddOneOut.NONE:
            self.same += 1
            if self.suspicion:
                first, self.suspicion = self.suspicion[0], []
                return Verdict(PERSISTENT if first.odd_one_out is OddOneOut.ALL else TRANSIENT, first)
            return Verdict(SAME, attempt)
        name = nondeterministic()
        if name:
            self.disabled_reason = f"{name} is not deterministic"
            return None
        if self.same < TRUSTED:
            self.differences += 1
            if self.differences >= MAX_FAILURES:
                self.disabled_reason = f"it never repeated ({attempt.part}: {attempt.first} differed first)"
            return None
        self.suspicion.append(attempt)
        if len(self.suspicion) <= CONFIRMATIONS:
            return None
        first, kinds = self.suspicion[0], {suspect.odd_one_out for suspect in self.suspicion}
        self.suspicion = []
        if len(kinds) == 1:
            self.disabled_reason = f"since step {first.step} its result differs each time ({first.first} differs first)"
            return Verdict(UNDECIDED, first)
        return Verdict(PERSISTENT, first)
