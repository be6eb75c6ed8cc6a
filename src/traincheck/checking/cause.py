"""A cause: one kind of trouble, which violations it explains, and what to look at first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from traincheck.vocab.finding import Violation


@dataclass(frozen=True, slots=True)
class Cause:
    """One kind of trouble. `rank` orders causes that appear together: the lower is nearer to the root.

    A cause that `stands_alone` neither follows from other trouble in a model nor leads to it (which data is read), so
    it is a finding of its own where another begins in the same step.
    """

    rank: int
    title: str
    cause: str
    advice: tuple[str, ...]
    fits: Callable[[Violation], bool]
    stands_alone: bool = False


def says(verb: str, *, about: str = "", detail: str = "") -> Callable[[Violation], bool]:
    """Fits rules with this verb whose object or subject contains `about`, and whose detail contains `detail`."""

    def fits(violation: Violation) -> bool:
        rule = violation.invariant
        named = f"{rule.subject.api} {rule.property.object}"
        return rule.property.verb == verb and about in named and detail in rule.property.detail

    return fits
