"""Conformance of diagnoses: proves that an entry for the catalogue is complete and explains the rules that you mean.

For the tests of a package that adds a diagnosis::

    from traincheck.testing.diagnoses import check_diagnosis

    def test_my_diagnosis() -> None:
        check_diagnosis(STALE_FEATURES, rules=[rule])
"""

from __future__ import annotations

from collections.abc import Iterable

from traincheck.diagnoses.catalogue import catalogue, flaw
from traincheck.diagnoses.diagnosis import Diagnosis
from traincheck.diagnoses.page import page
from traincheck.vocab.events import NO_CALL, TRAIN
from traincheck.vocab.finding import Violation
from traincheck.vocab.invariant import Invariant


class NotConforming(AssertionError):
    """A diagnosis cannot be used. The message says why and what to do."""


def check_diagnosis(entry: Diagnosis, rules: Iterable[Invariant] = ()) -> str:
    """Check that the entry is complete, that its slug is free, and that it explains each rule more precisely than ours.

    Returns the page that `traincheck explain SLUG` prints. Raises NotConforming.
    """
    if problem := flaw(entry):
        raise NotConforming(f"{getattr(entry, 'slug', entry)!r}: {problem}")
    others = [other for other in catalogue().values() if other is not entry]
    if any(other.slug == entry.slug for other in others):
        raise NotConforming(f"{entry.slug!r}: another diagnosis has this slug; choose another one")
    for rule in rules:
        violation = _violation_of(rule)
        own = entry.specificity_for(violation)
        if own < 0:
            raise NotConforming(f"{entry.slug!r} does not explain the rule {rule.sentence!r}; look at its `explains`")
        for other in others:
            if other.specificity_for(violation) >= own:
                raise NotConforming(
                    f"{entry.slug!r}: {other.slug!r} explains the rule {rule.sentence!r} at least as precisely; "
                    "set more fields of the Match"
                )
    return page(entry)


def _violation_of(rule: Invariant) -> Violation:
    return Violation(
        rule, step=1, rank=0, process=0, window=0, stage=TRAIN, seq=NO_CALL, site=None, receiver="", variables=()
    )
