"""Deployed rules: what is found by subject, context and property is what looking at every rule finds."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from traincheck.checking.deployed_rules import DeployedRules, RuleCounts
from traincheck.vocab.facts import Facts, facts
from traincheck.vocab.invariant import Clause, Invariant, Precondition, Support
from traincheck.vocab.occasion import Occasion, Property, Subject

SUBJECTS = tuple(Subject(api) for api in ("step", "backward", "forward"))
PROPERTIES = tuple(Property("does", name) for name in "abcd")
CONTEXTS: tuple[Facts, ...] = (facts(), facts(stage="train"), facts(stage="eval", closure=True), facts(closure=1))
CONDITIONS = (
    Precondition(),
    Precondition((Clause("stage", "train"),)),
    Precondition((Clause("closure", True),), ((Clause("stage", "train", negated=True),),)),
)

some = st.frozensets(st.sampled_from(PROPERTIES))
occasions = st.builds(
    Occasion, st.sampled_from(SUBJECTS), st.sampled_from(CONTEXTS), some, st.one_of(st.none(), some), st.just(1)
)
rules = st.builds(
    Invariant,
    st.just("Counting"),
    st.sampled_from(SUBJECTS[:2]),
    st.sampled_from(PROPERTIES),
    st.sampled_from(CONDITIONS),
    st.just(Support(1, 1, 1, 1)),
    st.just(0.5),
    st.just("notice"),
    st.just("general"),
    st.just("it does"),
    experience=st.sampled_from(CONDITIONS),
)


def looked_at(deployed: list[Invariant], occasion: Occasion) -> dict[str, bool]:
    """Every rule that is judged on the occasion, by its id, and whether its property held."""
    return {
        rule.id: rule.property in occasion.held
        for rule in deployed
        if rule.subject == occasion.subject
        and rule.applies(occasion.context)
        and (occasion.failed is None or rule.property in occasion.held or rule.property in occasion.failed)
    }


@given(st.lists(rules, max_size=30), st.lists(occasions, max_size=20))
def test_applicable_rules_are_judged(learned: list[Invariant], seen: list[Occasion]) -> None:
    deployed = DeployedRules()
    kept = [replace(rule, id=str(number)) for number, rule in enumerate(learned)]
    for rule in kept:
        deployed.add(rule, RuleCounts())
    assert deployed.subjects == {rule.subject for rule in kept}
    for occasion in seen:
        judged = [(rule.invariant.id, held) for rule, held in deployed.judged(occasion)]
        assert len(judged) == len(dict(judged)), "each rule once"
        assert dict(judged) == looked_at(kept, occasion)
