"""How a difference spreads over modules and steps."""

from __future__ import annotations

import pytest

from sample_operations import compared as compare
from sample_operations import network_step
from traincheck.comparison.report import data, lines, loss_text
from traincheck.comparison.run_comparison import CommonStep, Comparison
from traincheck.comparison.spread import (
    LOOP,
    MAX_STEPS,
    STEPS_OF_LOSS,
    Spread,
    first_different,
    first_losses,
    module_of,
    module_of_operation,
    modules_reached,
    spread_of,
)
from traincheck.vocab.operations import ACCUMULATED, BACKWARD, BEFORE, INPUT, Operation


def compared(errors: dict[int, float], steps: int = 4) -> tuple[Comparison, list[CommonStep]]:
    """Compare runs whose results differ by a relative error from block 1 on, in the steps of `errors`."""
    a = [network_step(number) for number in range(1, steps + 1)]
    b = [
        network_step(number, error=errors.get(number, 0.0), begins_in=1, settings="1.5" if number in errors else "1.0")
        for number in range(1, steps + 1)
    ]
    return compare(a, b)


def spread(errors: dict[int, float], steps: int = 4) -> Spread:
    return spread_of(*compared(errors, steps))


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("GPT.blocks.0.attention.q", "blocks.0"),
        ("GPT2.transformer.h.11.mlp", "transformer.h.11"),
        ("Net.encoder.first.second", "encoder.first"),
        ("Net.head", "head"),
        ("Net", "Net"),
        ("", LOOP),
    ],
)
def test_modules_are_shown_at_one_level(path: str, module: str) -> None:
    assert module_of(path) == module


def test_the_module_of_a_parameter_is_the_one_that_holds_it() -> None:
    assert module_of("GPT.head.weight", of_variable=True) == "head"
    assert module_of("GPT.blocks.0.weight", of_variable=True) == "blocks.0"
    assert module_of("scale", of_variable=True) == LOOP


def test_a_gradient_belongs_to_the_module_of_its_parameter() -> None:
    gradient = Operation(BACKWARD, ACCUMULATED, "GPT.head.weight")
    assert module_of_operation(gradient) == "head"
    assert module_of_operation(Operation(BEFORE, INPUT, "input 1")) == LOOP


def test_modules_come_in_the_order_in_which_the_difference_reaches_them() -> None:
    reached = modules_reached(compared({2: 0.01})[0])
    assert [(each.module, each.phase, each.operation, each.is_origin) for each in reached] == [
        ("blocks.1", "forward", "mul", True),
        ("blocks.2", "forward", "mul", False),
        (LOOP, "forward", "mean", False),
        ("blocks.0", "backward", "MulBackward0", False),
    ]
    assert all(each.distance == pytest.approx(0.0099, rel=0.01) and each.largest >= each.distance for each in reached)


def test_steps_behind_the_origin_are_compared_as_well() -> None:
    comparison, common = compared({2: 0.01, 3: 0.02, 4: 0.5})
    assert [step.step for step in comparison.steps] == [1, 2]
    rows = spread_of(comparison, common).steps
    assert [row.step for row in rows] == [1, 2, 3, 4]
    assert rows[0].different == 0 and rows[0].parameters == 0.0 and rows[0].modules == {}
    assert rows[1].same == comparison.steps[1].same and rows[1].different == comparison.steps[1].different > 0
    grown = [row.parameters for row in rows]
    assert grown == sorted(grown) and grown[3] == pytest.approx(1 / 3, rel=0.01)
    assert rows[3].farthest.startswith("Net.blocks.") and set(rows[3].modules) == {"blocks.1", "blocks.2", LOOP}


def test_of_many_steps_some_are_compared() -> None:
    found = spread({100: 0.01}, steps=300)
    rows = [row.step for row in found.steps]
    assert len(rows) <= MAX_STEPS + 2 and {1, 99, 100, 300} <= set(rows) and rows == sorted(set(rows))
    assert found.common == len(found.losses) == 300


def test_the_loss_is_the_root_of_the_backward() -> None:
    rows = spread({3: 0.01}).losses
    assert [row.step for row in rows] == [1, 2, 3, 4] and rows[0].a == rows[0].b == 2.0
    first = first_different(rows)
    assert first is not None and (first.step, first.a) == (3, 2.0) and first.b == pytest.approx(2.02)
    assert loss_text(rows) == "loss: differs from step 3 on, 2 / 2.02 (0.99%)"
    assert loss_text(spread({}).losses) == "loss: the same bits in 4 steps"
    assert loss_text(()) == ""


def test_an_update_alone_changes_the_loss_of_the_next_step() -> None:
    a = [network_step(1), network_step(2)]
    b = [network_step(1), network_step(2, error=0.01, begins_in=0)]
    (*operations, update) = b[0].operations
    changed = network_step(1, error=0.01).values[update.outputs[0]]
    values = (*b[0].values[:-1], changed)
    b[0] = type(b[0])(1, values, (*operations, update))
    comparison, common = compare(a, b)
    assert [each.operation.phase for each in comparison.origins] == ["update"]
    first = first_different(first_losses(comparison, common))
    assert first is not None and first.step == 2


def test_the_text_reads_steps_until_the_loss_differs() -> None:
    comparison, common = compared({2: 0.01, 3: 0.02})
    assert [loss.step for loss in first_losses(comparison, common)] == [1, 2]
    steps = STEPS_OF_LOSS + 10
    comparison, common = compared({1: 1e-5}, steps)  # too little for the loss
    assert len(first_losses(comparison, common)) == STEPS_OF_LOSS + 1


def test_text_and_data_show_the_spread() -> None:
    comparison, common = compared({2: 0.01})
    text = "\n".join(lines(comparison, "a", "b", (), first_losses(comparison, common)))
    assert "spread: forward blocks.1 (0.99%), blocks.2 (0.99%), the loop (0.99%); backward blocks.0 (0.99%)" in text
    assert "loss: differs from step 2 on" in text
    shown = data(comparison, "a", "b", (), spread_of(comparison, common))["spread"]
    assert [each["module"] for each in shown["modules"]] == ["blocks.1", "blocks.2", LOOP, "blocks.0"]
    assert len(shown["steps"]) == len(shown["losses"]) == 4


def test_the_spread_takes_few_lines() -> None:
    a, b = network_step(blocks=90), network_step(blocks=90, error=0.01, settings="1.5")
    comparison, common = compare([a], [b])
    text = list(lines(comparison, "a", "b", (), first_losses(comparison, common)))
    begin = next(index for index, line in enumerate(text) if line.startswith("  spread:"))
    end = next(index for index, line in enumerate(text) if line.startswith("  loss:"))
    assert end - begin <= 4 and "75 more modules" in " ".join(text[begin:end])
