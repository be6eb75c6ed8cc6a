"""A sample rule for the tests of books and reports."""

from __future__ import annotations

from traincheck.vocab.invariant import Clause, Invariant, Precondition, Support
from traincheck.vocab.occasion import Property, Subject

STEP = "torch.optim.Optimizer.step"


CHANGES = Property("contains change", "parameter.data", "changes")
CALL = Subject(STEP)
SUPPORT = Support(1200, 300, 4, 3)


def make_invariant(
    prop: Property = CHANGES,
    clauses: tuple[Clause, ...] = (),
    sentence: str = f"A call of {STEP} changes a parameter.",
    relation: str = "EventContain",
    subject: Subject = CALL,
    support: Support = SUPPORT,
    **others: object,
) -> Invariant:
    fields = {"confidence": 0.99987, "severity": "error", "scope": "general", "origin": ("mnist.py",), **others}
    return Invariant(relation, subject, prop, Precondition(clauses), support, sentence=sentence, **fields)  # type: ignore[arg-type]
