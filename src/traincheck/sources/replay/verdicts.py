"""Repeated: what it says of a computation that it was executed again, and again where it differed.

Note [Who is to blame]
Correct hardware gives the same bits each time, and so does software, as far as all that it depends on was put back.
Whether it was is not known of a program that was never seen, so it has to be earned: until a computation was the same
`TRUSTED` times, one that differs says that it cannot be judged. Later a difference is a suspicion, and the next
`CONFIRMING` steps are repeated as well. Where all of them differ, the program may have begun to do something that
cannot be repeated (a term in the loss that the model's call knows nothing of), or a unit may have broken for good:
that is undecided. Where one of them is the same again, it was not the program. Operations that torch has no
deterministic implementation of are software, whatever happened.

Of three computations (the program's own, and two repetitions) one may be odd, or each: what comes and goes once is
*transient*; what gives something else each time it is tried is *persistent*.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from traincheck.vocab.replayed_computations import PERSISTENT, SAME, TRANSIENT, UNDECIDED

TRUSTED = 2
CONFIRMING = 3
HOPELESS = 3
"""Differences without trust after which a computation is given up; and attempts from which nothing came, after which it
is tried no more often than it has to be."""


class OddOneOut(Enum):
    """Which of three computations differed."""

    NONE = "none"
    ORIGINAL = "original"
    REPETITION = "repetition"
    ALL = "all"


class Attempt(NamedTuple):
    """What came of repeating a computation in a step: which was odd, and the part and name that differed first."""

    step: int
    odd_one_out: OddOneOut
    part: str = ""
    first: str = ""
    site: str = ""


class Verdict(NamedTuple):
    """What is to be told: SAME, TRANSIENT, PERSISTENT or UNDECIDED, and of which step."""

    kind: str
    attempt: Attempt


@dataclass
class ReplayHistory:
    """What is known of one computation: a model's call, or the updates of an optimizer."""

    same: int = 0
    differences: int = 0
    given_up: str = ""
    attempts: int = 0
    """Attempts of which nothing has come since it was judged last."""
    suspicion: list[Attempt] = field(default_factory=list)

    @property
    def confirming(self) -> bool:
        """Whether the next step is to be repeated because of a suspicion, or for want of trust."""
        return not self.given_up and self.attempts < HOPELESS and (bool(self.suspicion) or self.same < TRUSTED)

    def begin_attempt(self) -> bool:
        """Take in that it is to be repeated. False where nothing has ever come of it so far, once."""
        self.attempts += 1
        return self.attempts != HOPELESS + 1 or bool(self.same or self.differences)

    def judge(self, attempt: Attempt, nondeterministic: Callable[[], str]) -> Verdict | None:
        """Take in a step that was repeated; what is to be told by now. `nondeterministic` names an operation of which
        torch says that it is not deterministic, and is asked only where that matters."""
        self.attempts = 0
        if attempt.odd_one_out is OddOneOut.NONE:
            self.same += 1
            if self.suspicion:
                first, self.suspicion = self.suspicion[0], []
                return Verdict(PERSISTENT if first.odd_one_out is OddOneOut.ALL else TRANSIENT, first)
            return Verdict(SAME, attempt)
        name = nondeterministic()
        if name:
            self.given_up = f"{name} is not deterministic"
            return None
        if self.same < TRUSTED:
            self.differences += 1
            if self.differences >= HOPELESS:
                self.given_up = f"it never gave the same again ({attempt.part}: {attempt.first} differed first)"
            return None
        self.suspicion.append(attempt)
        if len(self.suspicion) <= CONFIRMING:
            return None
        first, kinds = self.suspicion[0], {suspect.odd_one_out for suspect in self.suspicion}
        self.suspicion = []
        if len(kinds) == 1:
            self.given_up = f"since step {first.step} it gives something else each time ({first.first} differs first)"
            return Verdict(UNDECIDED, first)
        return Verdict(PERSISTENT, first)
