"""Decides which operator mutates which program, so that each operator gets about as many mutants as the others."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Mapping, Sequence

from benchmarks.mutants.operator import Operator
from benchmarks.mutants.script import Script

MOST_VARIANTS = 3
"""Variants of an operator on one script that are drawn from: the first is the most likely mistake."""

Plan = dict[str, list[tuple[Operator, int]]]
"""By the name of a program: operators, each with the number of the variant."""


def plan_mutants(programs: Mapping[str, str], operators: Sequence[Operator], per_program: int) -> Plan:
    """Give each program (name and text) up to `per_program` mutants, of the operators that have had fewest so far.

    The same programs and operators give the same plan.
    """
    given: Counter[str] = Counter()
    plan: Plan = {}
    for name, text in sorted(programs.items()):
        draws = random.Random(f"plan {name}")
        order = {operator.name: draws.random() for operator in operators}
        script, chosen = Script(text), []
        for operator in sorted(operators, key=lambda entry: (given[entry.name], order[entry.name])):
            variants = len(list(itertools.islice(operator.mutants(script), MOST_VARIANTS)))
            if variants:
                chosen.append((operator, draws.randrange(variants)))
                given[operator.name] += 1
            if len(chosen) == per_program:
                break
        plan[name] = chosen
    return plan
