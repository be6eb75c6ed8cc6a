"""Gradients that are always zero, or that no update uses: which findings they give, and when."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from observed_process import observing
from sample_windows import UPDATE, Script
from traincheck.checking.engine import Engine
from traincheck.diagnoses.catalogue import diagnose
from traincheck.invariants import builtin_rules
from traincheck.invariants.book import Book, merge_books
from traincheck.relations.consistent.builtin_rules import of_verification
from traincheck.relations.periodic.zero_gradients import FIRST, LONG, NOT_ALL_ZERO, NOT_ZERO_FOR_LONG, ZeroGradients
from traincheck.vocab.events import Window
from traincheck.vocab.finding import Violation
from traincheck.vocab.occasion import Property

BACKWARD = "torch.autograd.backward"


def windows(steps: int, after: Callable[[int, str], str], *, update: bool = True) -> list[Window]:
    """Windows of steps in which a backward leaves the gradients of `a` and `b` as `after(step, name)` says."""
    script = Script()
    for step in range(1, steps + 1):
        changes = [
            {"variable": name, "attribute": "grad", "before": "none", "after": after(step, name)} for name in ("a", "b")
        ]
        script.window().call(BACKWARD, changes=changes)
        if update:
            script.call(UPDATE, receiver="SGD")
    return script.windows


def failures(those: list[Window]) -> list[tuple[Property, int, tuple[str, ...]]]:
    """Return the violations with step and variables."""
    relation = ZeroGradients()
    return [
        (prop, window.step, occasion.variables)
        for window in those
        for occasion in relation.occasions(window)
        for prop in occasion.failed or ()
    ]


def test_all_gradients_are_zero_in_each_of_the_first_steps() -> None:
    assert failures(windows(2 * FIRST, lambda step, name: "zero")) == [(NOT_ALL_ZERO, FIRST, ("a", "b"))]


def test_one_gradient_that_is_not_zero_once_is_enough() -> None:
    assert failures(windows(FIRST, lambda step, name: "some" if (step, name) == (FIRST, "b") else "zero")) == []
    assert failures(windows(2 * FIRST, lambda step, name: "some" if step == 1 else "zero")) == []


def test_a_short_run_is_not_judged() -> None:
    assert failures(windows(FIRST - 1, lambda step, name: "zero")) == []


def test_parameters_without_updates_are_not_judged() -> None:
    assert failures(windows(2 * FIRST, lambda step, name: "zero", update=False)) == []


def test_parameters_without_gradients_are_not_spoken_of() -> None:
    assert failures(windows(2 * LONG, lambda step, name: "none" if name == "a" else "some")) == []
    assert failures(windows(2 * FIRST, lambda step, name: "none")) == []


def test_one_parameter_is_zero_for_long_while_others_are_not() -> None:
    failed = failures(windows(2 * LONG, lambda step, name: "zero" if name == "a" else "some"))
    assert failed == [(NOT_ZERO_FOR_LONG, LONG, ("a",))]


def test_a_late_first_gradient_is_not_reported() -> None:
    assert failures(windows(2 * LONG, lambda step, name: "zero" if name == "a" and step < LONG else "some")) == []


def test_a_gap_ends_the_first_steps() -> None:
    relation = ZeroGradients()
    those = windows(3 * FIRST, lambda step, name: "zero")
    occasions = [occasion for window in those[: FIRST - 1] for occasion in relation.occasions(window)]
    relation.forget()
    occasions += [occasion for window in those[FIRST - 1 :] for occasion in relation.occasions(window)]
    assert occasions == []


def violations(program: Callable[[], None]) -> list[Violation]:
    """Return the verdicts of the built-in rules on a program."""
    with observing() as seen:
        program()
    assert seen.faults == []
    engine = Engine(builtin_rules.of_training())
    return [violation for window in seen.windows for violation in engine.feed(window)]


def trained(model: nn.Module, loss: Callable[[torch.Tensor], torch.Tensor], steps: int = 12) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(torch.randn(4, 3))).backward()
        optimizer.step()


def test_a_softmax_over_one_class() -> None:
    (violation,) = violations(
        lambda: trained(nn.Linear(3, 1), lambda out: nn.functional.cross_entropy(out, torch.zeros(4, dtype=torch.long)))
    )
    assert violation.invariant.severity == "error"
    assert violation.variables == ("Linear.weight", "Linear.bias")
    assert diagnose(violation).slug == "all-gradients-zero"


def test_a_layer_of_zeros_and_an_adapter_are_silent() -> None:
    class Adapter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.up = nn.Linear(3, 2), nn.Linear(2, 3)
            nn.init.zeros_(self.up.weight)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.up(self.down(x))

    assert violations(lambda: trained(Adapter(), lambda out: (out - 1).square().mean())) == []


def test_an_optimizer_that_never_steps() -> None:
    def program() -> None:
        model = nn.Linear(3, 1)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(12):
            optimizer.zero_grad()
            model(torch.randn(4, 3)).mean().backward()

    (violation,) = violations(program)
    assert violation.invariant.severity == "error"
    assert "12 backwards" in violation.note and "Adam" in violation.note
    assert diagnose(violation).slug == "gradients-never-used"


def test_the_rules_are_reported_only_if_they_are_violated() -> None:
    rules = builtin_rules.of_training()
    assert len({rule.id for rule in rules}) == len(rules)
    assert all(map(builtin_rules.is_always_deployed, rules))
    assert not any(map(builtin_rules.is_always_deployed, of_verification()))
    merged = merge_books([("one", Book(rules)), ("other", Book(rules))])
    assert len(merged.invariants) == len(rules)
