"""Salience: which candidates deserve a rule at all, whatever the evidence for them.

Note [Salience]
Three kinds of true statements teach nothing. Observations reveal each kind, never a list of names:

* *inert calls*: a function that never returned a tensor or changed a state (`is_available`, a logger) does nothing that
  training could miss;
* *taste*: an argument with one value in every call of every run. Without a contrast, nothing shows why it has that
  value, and another program may choose another;
* *settings*: the configuration, as a relation declares it. These are no rules about programs in general. For one
  program, they show what somebody changed, so they are kept for that program alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.inference.tally import Tally
from traincheck.vocab.occasion import Property


def reason_to_skip(prop: Property, argument: tuple[str, str] | None, tallies: Sequence[Tally]) -> str | None:
    """Why a candidate is skipped, None if it is not; `argument` is the one that it depends on according to its
    relation."""
    if _does_nothing(prop.object, tallies):
        return f"{prop.object} is skipped: no call of it returned a tensor or changed a state"
    if argument is not None and not any_varied(*argument, tallies):
        return f"the argument {argument[1]} never had another value, so its value may be a coincidence"
    return None


def _does_nothing(api: str, tallies: Sequence[Tally]) -> bool:
    seen = [tally for tally in tallies if api in tally.reach]
    return bool(seen) and all(tally.is_inert(api) for tally in seen)


def any_varied(api: str, argument: str, tallies: Sequence[Tally]) -> bool:
    """Whether this argument of `api` had more than one value in the calls of all runs together."""
    values: set[object] = set()
    for tally in tallies:
        values.update(tally.arguments.get((api, argument), ()))
    return len(values) > 1
