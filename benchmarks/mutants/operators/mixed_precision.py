"""Mistakes in training with low precision: the gradient scaler and the dtypes of a computation."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from benchmarks.mutants.operator import operator
from benchmarks.mutants.queries import (
    assignments,
    backwards,
    called,
    clips,
    dotted,
    is_evaluation,
    last_part,
    loops,
    loss_calls,
    method_calls,
    optimizers,
    parameters_of,
    scope,
    steps,
)
from benchmarks.mutants.script import Edit, Script

# The gradient scaler


def _statements(script: Script, name: str) -> list[ast.Expr]:
    """The statements `receiver.name(...)`."""
    statements = [(call, script.statement(call)) for call in method_calls(script, name)]
    return [entry for call, entry in statements if isinstance(entry, ast.Expr) and entry.value is call]


@operator("scaler", "clipping-has-no-effect", "calls-in-wrong-order")
def unscale_missing(script: Script) -> Iterator[Sequence[Edit]]:
    """Gradients are clipped while they are still multiplied by the scale of the loss."""
    for statement in _statements(script, "unscale_"):
        if any(scope(script, clip) is scope(script, statement) for _, clip in clips(script)):
            yield [script.remove(statement)]


@operator("scaler", "calls-in-wrong-order", "clipping-has-no-effect", "gradients-still-scaled")
def unscale_after_clipping(script: Script) -> Iterator[Sequence[Edit]]:
    """Gradients are divided by the scale after they were clipped."""
    for statement in _statements(script, "unscale_"):
        for _, clip in clips(script):
            if script.block(clip) is script.block(statement) and clip.lineno > statement.lineno:
                yield script.move_after(statement, clip)
                break


@operator("scaler", "float16-without-loss-scaling")
def scaler_not_used(script: Script) -> Iterator[Sequence[Edit]]:
    """Training in float16 runs without the gradient scaler."""
    edits: list[Edit] = []
    for backward in backwards(script):
        if backward.is_scaled and "scale(" in script.source(backward.call):
            assert isinstance(backward.call.func, ast.Attribute)
            edits.append(script.replace(backward.call.func.value, _in_brackets(script, backward.loss)))
    edits += [script.replace(step.call, f"{step.optimizer}.step()") for step in steps(script) if step.scaler]
    names = {step.scaler for step in steps(script) if step.scaler}
    for name in ("unscale_", "update"):
        for statement in _statements(script, name):
            assert isinstance(statement.value, ast.Call) and isinstance(statement.value.func, ast.Attribute)
            if dotted(statement.value.func.value) in names:
                edits.append(script.remove(statement))
    if names and edits:
        yield edits


def _in_brackets(script: Script, value: ast.expr) -> str:
    text = script.source(value)
    return text if isinstance(value, ast.Name | ast.Attribute | ast.Call) else f"({text})"


@operator("scaler", "gradients-still-scaled")
def scaled_gradients_applied(script: Script) -> Iterator[Sequence[Edit]]:
    """The optimizer steps with gradients that are still multiplied by the scale of the loss."""
    for step in steps(script):
        if not step.scaler or last_part(step.scaler) == "accelerator":
            continue
        edits = [script.replace(step.call, f"{step.optimizer}.step()")]
        for name in ("unscale_", "update"):
            edits += [
                script.remove(statement)
                for statement in _statements(script, name)
                if step.scaler == dotted(statement.value.func.value)  # type: ignore[attr-defined]
            ]
        if len([other for other in steps(script) if other.scaler]) == 1:
            yield edits


@operator("scaler")
def scaler_built_each_epoch(script: Script) -> Iterator[Sequence[Edit]]:
    """The gradient scaler is built again in each epoch and forgets its scale."""
    for name, value, statement in assignments(script):
        if not isinstance(value, ast.Call) or last_part(called(value)) != "GradScaler":
            continue
        for entry in script.block(statement):
            uses = [
                node for node in ast.walk(entry) if isinstance(node, ast.Name | ast.Attribute) and dotted(node) == name
            ]
            if isinstance(entry, ast.For | ast.While) and entry.lineno > statement.lineno and uses:
                yield [script.remove(statement), script.insert_before(entry.body[0], script.lines(statement))]
                break


@operator("scaler")
def one_loss_not_scaled(script: Script) -> Iterator[Sequence[Edit]]:
    """One of several losses is not scaled."""
    scaled = [
        backward for backward in backwards(script) if backward.is_scaled and "scale(" in script.source(backward.call)
    ]
    for backward in scaled[1:]:
        assert isinstance(backward.call.func, ast.Attribute)
        yield [script.replace(backward.call.func.value, _in_brackets(script, backward.loss))]


# Precision


def _autocasts(script: Script) -> Iterator[tuple[ast.With, ast.Call]]:
    """The `with torch.autocast(...)` blocks of training code."""
    for node in script.walk(ast.With):
        assert isinstance(node, ast.With)
        for item in node.items:
            call = item.context_expr
            if isinstance(call, ast.Call) and last_part(called(call)) == "autocast" and not is_evaluation(script, node):
                yield node, call


@operator("precision", "setting-changed", "autocast-not-applied")
def forward_outside_autocast(script: Script) -> Iterator[Sequence[Edit]]:
    """The forward pass stands before the autocast block, which holds only the loss."""
    for block, _ in _autocasts(script):
        if len(block.body) > 1 and isinstance(block.body[0], ast.Assign) and len(block.items) == 1:
            first = block.body[0]
            if isinstance(first.value, ast.Call):
                yield [script.remove(first), script.insert_before(block, script.lines(first))]


@operator("precision", "setting-changed", "autocast-not-applied")
def autocast_removed(script: Script) -> Iterator[Sequence[Edit]]:
    """The training step runs without autocast, which the evaluation uses."""
    for block, _ in _autocasts(script):
        if len(block.items) == 1:
            yield [script.unwrap(block)]


@operator("precision", "float16-without-loss-scaling", "autocast-not-applied")
def float16_for_bfloat16(script: Script) -> Iterator[Sequence[Edit]]:
    """Training runs in float16 without a gradient scaler, and not in bfloat16."""
    if "GradScaler" not in script.text:
        for _, call in _autocasts(script):
            for node in ast.walk(call):
                if isinstance(node, ast.Attribute) and dotted(node) == "torch.bfloat16":
                    yield [script.replace(node, "torch.float16")]


@operator("precision", "setting-changed")
def weights_in_low_precision(script: Script) -> Iterator[Sequence[Edit]]:
    """The weights are cast to bfloat16, so small updates are lost: nothing keeps them in float32."""
    if "GradScaler" in script.text or not any(True for _ in _autocasts(script)):
        return
    trained = {parameters_of(optimizer.parameters) for optimizer in optimizers(script)}
    for name, value, statement in assignments(script):
        is_plain = isinstance(statement, ast.Assign) and statement.value is value and isinstance(value, ast.Call)
        has_own_name = is_plain and dotted(statement.targets[0]) == name  # type: ignore[attr-defined]
        if name in trained and has_own_name and not loops(script, statement):
            end = script.span(value)[1]
            yield [Edit(end, end, ".to(torch.bfloat16)")]


@operator("precision", "setting-changed")
def loss_in_low_precision(script: Script) -> Iterator[Sequence[Edit]]:
    """The loss is computed from scores in low precision, because they are not cast to float32 before."""
    if not any(word in script.text for word in ("autocast", "bfloat16", "float16", ".half()")):
        return
    for call in method_calls(script, "float"):
        assert isinstance(call.func, ast.Attribute)
        # a loss of predictions and targets in float32 is computed in float32 anyway
        losses = loss_calls(script, "cross_entropy", "nll_loss")
        inside = [loss for loss in losses if call in list(ast.walk(loss.call.args[0]))]
        parent = call.parent  # type: ignore[attr-defined]
        is_scores = isinstance(parent, ast.Assign) and dotted(parent.targets[0]) in (
            "logits",
            "output",
            "outputs",
            "scores",
        )
        # autocast itself computes losses in float32
        in_autocast = any(block in script.parents(call) for block, _ in _autocasts(script))
        is_effective = (inside or is_scores) and not in_autocast
        if is_effective and not call.args and not is_evaluation(script, call):
            yield [script.replace(call, script.source(call.func.value))]
