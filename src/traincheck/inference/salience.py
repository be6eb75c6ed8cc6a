"""Salience: which candidates are worth a rule at all, whatever the evidence for them.

Note [Salience]
Three kinds of truths teach nothing, and each is told by what was observed, never by a list of names:

* *dull calls*: a function that was never seen to return a tensor or to change a state (`is_available`, a logger) does
  nothing that training could miss;
* *taste*: an argument that had one value in every call of every run. With nothing to contrast it with, it cannot be
  told why it has that value, and another program may well choose another;
* *settings*: what a relation itself calls a matter of configuration. They are no rules about programs in general, but
  of one program they say what somebody changed, so they are kept for that program alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.inference.tally import Tally
from traincheck.vocab.occasion import Property


def reason_to_skip(prop: Property, argument: tuple[str, str] | None, tallies: Sequence[Tally]) -> str | None:
    """Why a candidate is not worth weighing, None when it is; `argument` is what its relation says that it rests on."""
    if _does_nothing(prop.object, tallies):
        return f"{prop.object} is dull: it was never seen to return a tensor or to change a state"
    if argument is not None and not any_varied(*argument, tallies):
        return f"the argument {argument[1]} never had another value: a matter of taste, or a coincidence"
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
