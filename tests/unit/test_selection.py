"""Selection: which rules of a book are deployed on which program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from traincheck.invariants.selection import deployable
from traincheck.vocab.invariant import GENERAL, PIPELINE, Invariant
from traincheck.vocab.occasion import Property

Rules = Callable[..., Invariant]
LR = Property("is", "hyperparameter.lr", "0.01")


def test_a_general_rule_is_deployed_on_every_program(new_invariant: Rules) -> None:
    """Several programs bore it out, so it is known to transfer."""
    rule = new_invariant(scope=GENERAL, origin=("a.py", "b.py"))
    for script in ("a.py", "b.py", "never-seen.py", ""):
        assert deployable([rule], script) == (rule,)


def test_a_rule_of_a_pipeline_is_deployed_on_that_program_alone(new_invariant: Rules) -> None:
    """The behaviour of one program gives no evidence about others."""
    rule = new_invariant(scope=PIPELINE, origin=("a.py",))
    assert deployable([rule], "a.py") == (rule,)
    assert deployable([rule], "b.py") == deployable([rule], "") == deployable([rule], "not a.py") == ()


def test_a_setting_is_deployed_on_the_program_that_it_is_of(new_invariant: Rules) -> None:
    """Also where books of several programs were joined, and the rule is borne out by more than one."""
    rule = new_invariant(LR, scope=PIPELINE, origin=("a.py",), program="a.py")
    joined = replace(rule, scope=GENERAL, origin=("a.py", "b.py"), id="")
    for candidate in (rule, joined):
        assert deployable([candidate], "a.py") == (candidate,)
        assert deployable([candidate], "b.py") == ()


def test_a_muted_rule_is_not_deployed(new_invariant: Rules) -> None:
    for scope in (GENERAL, PIPELINE):
        assert deployable([new_invariant(scope=scope, origin=("a.py",), mute="we clear them by hand")], "a.py") == ()


def test_unselected_rules_keep_their_order(new_invariant: Rules) -> None:
    rules = [
        new_invariant(Property("p", name), scope=PIPELINE, origin=(f"{name[0]}.py",)) for name in ("b1", "a", "b2")
    ]
    assert deployable(rules, "b.py") == (rules[0], rules[2])
    assert deployable(iter(rules), "a.py") == (rules[1],)
