"""The mutation score: equivalence, plausibility, verdicts, the plan and the figures."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from benchmarks.mutants.effects import BACKWARD, STEP, Effect, first_difference, is_plausible
from benchmarks.mutants.operator import KINDS, all_operators, reserved
from benchmarks.mutants.places import FAR, NEAR, NONE, edited_classes, judge_place
from benchmarks.mutants.plan import plan_mutants
from benchmarks.mutants.running import judge
from benchmarks.mutants.table import figures, page, wilson

from traincheck.vocab.finding import Counts, Finding, Report, Site

FINDING = Finding("error", 3, 0, "t", "c", None, (), "", "", (), ("rule",), 3, 1, diagnosis="gradients-not-cleared")


def effects(*values: float, kind: str = BACKWARD) -> list[Effect]:
    return [Effect(kind, step, (value,)) for step, value in enumerate(values, 1)]


def test_rounding_is_no_difference() -> None:
    assert first_difference(effects(1.0, 2.0), effects(1.0 + 1e-7, 2.0)) is None
    assert first_difference(effects(1.0, 2.0), effects(1.0, 2.001)) == 2
    assert first_difference(effects(math.nan), effects(math.nan)) is None
    assert first_difference(effects(1.0, 2.0, 3.0), effects(1.0, 2.0)) == 3
    assert first_difference(effects(1.0), effects(1.0, kind=STEP)) == 1
    assert first_difference([Effect("save", 4, (), ".a")], [Effect("save", 4, (), ".b")]) == 4


def test_a_loss_that_anybody_would_notice_is_implausible() -> None:
    assert is_plausible(effects(2.0, 1.0), effects(2.0, 5.0))
    assert not is_plausible(effects(2.0, 1.0), effects(2.0, 50.0))
    assert not is_plausible(effects(2.0, 1.0), effects(2.0, math.nan))


def test_an_error_counts_from_its_cause_to_one_step_after_its_effect() -> None:
    at_step_3 = Report((FINDING,), Counts())
    verdicts = {first: judge(at_step_3, frozenset(), first) for first in (1, 2, 3, 9)}
    assert {first: verdict.detected for first, verdict in verdicts.items()} == {1: False, 2: True, 3: True, 9: True}
    assert all(verdict.diagnosis == FINDING.identity for verdict in verdicts.values()) and verdicts[1].late == 2
    already = judge(at_step_3, frozenset(FINDING.invariants), 3)
    assert (already.detected, already.diagnosis, already.late, already.notices) == (False, "", None, 0)
    notice = Report((replace(FINDING, severity="notice"),), Counts())
    assert judge(notice, frozenset(), 1).notices == 1 and not judge(notice, frozenset(), 1).detected


MODEL = """
class Block:
    def forward(self, x):
        return x + self.layer(x)

class Net:
    def forward(self, x):
        return self.head(self.blocks(x))

net = Net()
"""
TREE = {"Net": "Net", "Net.blocks": "Sequential", "Net.blocks.0": "Block", "Net.blocks.0.layer": "Linear"}
TREE |= {"Net.head": "Head", "Net.head.last": "Linear"}


@pytest.mark.parametrize(
    ("variable", "verdict"),
    [
        ("Net.blocks.0.layer.weight", NEAR),  # the parent
        ("Net.blocks.0.scale", NEAR),
        ("Net#2.blocks.0", NEAR),
        ("Net.blocks", NEAR),  # the child
        ("Net.head.last.weight", FAR),
        ("Other.weight", NONE),
    ],
)
def test_a_finding_names_the_module_of_the_error_or_one_a_level_away(variable: str, verdict: str) -> None:
    mutant = MODEL.replace("x + self.layer(x)", "self.layer(x)")
    classes = edited_classes(MODEL, mutant)
    assert classes == {"Block"}
    assert judge_place(replace(FINDING, variables=(variable,)), [TREE], classes, mutant) == verdict


def test_a_finding_names_a_module_by_its_line() -> None:
    mutant = MODEL.replace("x + self.layer(x)", "self.layer(x)")
    for line, verdict in ((4, NEAR), (8, NONE)):
        finding = replace(FINDING, site=Site("train.py", line, "forward"))
        assert judge_place(finding, [TREE], {"Block"}, mutant) == verdict


def test_an_error_outside_of_modules_has_no_place_among_them() -> None:
    mutant = MODEL.replace("net = Net()", "net = Net().eval()")
    assert judge_place(FINDING, [TREE], edited_classes(MODEL, mutant), mutant) == ""


SCRIPT = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
"""


def test_the_plan_gives_operators_equal_shares() -> None:
    operators = [entry for entry in all_operators() if entry.kind in ("clearing", "stepping")]
    programs = {f"{number:05d}": SCRIPT for number in range(12)}
    plan = plan_mutants(programs, operators, 2)
    assert plan == plan_mutants(dict(reversed(programs.items())), operators, 2)
    counts: dict[str, int] = {}
    for mutants in plan.values():
        assert len(mutants) == 2
        for operator, _ in mutants:
            counts[operator.name] = counts.get(operator.name, 0) + 1
    assert max(counts.values()) - min(counts.values()) <= 1 and len(counts) > 5


def test_a_third_of_the_operators_is_reserved_in_many_kinds() -> None:
    operators = all_operators()
    held_back = reserved(operators)
    assert len(operators) >= 60
    assert abs(len(held_back) / len(operators) - 1 / 3) < 0.03
    assert {entry.kind for entry in operators} == set(KINDS)


@pytest.mark.parametrize(
    ("hits", "of", "low", "high"), [(0, 10, 0.0, 0.278), (5, 10, 0.237, 0.763), (10, 10, 0.722, 1.0)]
)
def test_intervals_are_those_of_wilson(hits: int, of: int, low: float, high: float) -> None:
    assert wilson(hits, of) == pytest.approx((low, high), abs=1e-3)


def test_figures_show_no_single_reserved_operator() -> None:
    operators = all_operators()
    held_back = sorted(reserved(operators))
    names = [held_back[0], next(entry.name for entry in operators if entry.name not in held_back)]
    verdict = {"detected": True, "named": True, "late": 0, "diagnosis": "x", "notices": 0}
    mutants = [
        {"operator": name, "variant": 0, "outcome": "counted", "first_effect": 1, "verdicts": {"packs": verdict}}
        for name in names
    ]
    program = {
        "name": "00001", "parts": {"program": "", "loop": "flat", "task": "mlp"}, "mutants": mutants,
        "problem": "", "untrained": False,
        "errors": {"packs": ["gradients-not-cleared"]}, "notices": {"packs": 0},
    }  # fmt: skip
    untrained = {
        **program,
        "name": "00002",
        "problem": "a printed number is not finite",
        "untrained": True,
        "mutants": [],
    }
    result = figures([program, untrained], operators)
    assert (result["failed"], result["untrained"]) == ([], ["00002"])
    assert result["false alarms"]["packs"]["programs"] == 1
    assert result["parts"]["reserved"]["packs"]["detected"] == result["parts"]["open"]["packs"]["detected"] == 1
    assert result["false alarms"]["packs"]["with an error"] == ["00001"]
    text = page(result)
    assert names[1] in text and names[0] not in text
