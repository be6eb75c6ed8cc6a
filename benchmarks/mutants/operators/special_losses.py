"""Operators on shifted labels and on the losses of distillation, GANs, VAEs and contrastive learning."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from benchmarks.mutants.model_queries import (
    calls,
    function_name,
    is_method,
    mentions,
    number,
    same,
    sources,
    tensor_of,
    without_factor,
)
from benchmarks.mutants.operator import Mutants, operator
from benchmarks.mutants.queries import argument, assignments, dotted, is_evaluation, loss_calls, scope
from benchmarks.mutants.script import Edit, Script


def last_slice(node: ast.Subscript) -> ast.Slice | None:
    """The slice of the last axis: `1:` of `x[1:]` and of `x[:, 1:]`."""
    part = node.slice.elts[-1] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
    return part if isinstance(part, ast.Slice) else None


def shifts(script: Script) -> Iterator[tuple[ast.Subscript, ast.Slice]]:
    """The slices `[1:]` that are the labels of `[:-1]` of the same tensor in the same function."""
    slices = [
        (node, part)
        for node in script.walk(ast.Subscript)
        if isinstance(node, ast.Subscript) and (part := last_slice(node))
    ]
    for node, part in slices:
        if number(part.lower) != 1 or part.upper is not None or part.step is not None or _is_zipped(script, node):
            continue
        for other, front in slices:
            if (
                front.lower is None
                and number(front.upper) == -1
                and same(other.value, node.value)
                and not mentions(node.value, "mask")
                and scope(script, other) is scope(script, node)
            ):
                yield node, part
                break


def _is_zipped(script: Script, node: ast.AST) -> bool:
    """Whether it is an argument of `zip`, as in `zip(sizes[:-1], sizes[1:])`: neighbours of a list are no labels."""
    return any(isinstance(parent, ast.Call) and function_name(parent) == "zip" for parent in script.parents(node))


def shifted_windows(script: Script) -> Iterator[tuple[ast.Slice, ast.Slice]]:
    """The slices `i : i + n` and `i + 1 : i + 1 + n` of one tensor, as the inputs and labels of a language model."""
    slices = [
        node
        for node in script.walk(ast.Subscript)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice)
    ]
    for node in slices:
        part = node.slice
        assert isinstance(part, ast.Slice)
        if (
            not isinstance(part.lower, ast.BinOp)
            or number(part.lower.right) != 1
            or not isinstance(part.lower.op, ast.Add)
        ):
            continue
        for other in slices:
            front = other.slice
            if (
                isinstance(front, ast.Slice)
                and front.lower is not None
                and same(front.lower, part.lower.left)
                and same(other.value, node.value)
                and scope(script, other) is scope(script, node)
                and front.upper is not None
            ):
                yield front, part
                break


@operator("loss")
def labels_not_shifted(script: Script) -> Mutants:
    """The labels of a language model are its inputs, not the next tokens."""
    for _, part in shifts(script):
        start, end = _slice_span(script, part)
        yield [Edit(start, end, ":-1")]
    for front, part in shifted_windows(script):
        start, end = _slice_span(script, part)
        first, last = _slice_span(script, front)
        yield [Edit(start, end, script.text[first:last])]


@operator("loss")
def labels_shifted_twice(script: Script) -> Mutants:
    """The labels are shifted by the data and again by the loss, so the model predicts the token after the next."""
    if not any(True for _ in shifts(script)) and not any(True for _ in shifted_windows(script)):
        return
    for loss in loss_calls(script, "cross_entropy"):
        logits, labels = loss.call.args[:2]
        flat = _flattened(logits), _flattened(labels)
        if flat[0] is None or flat[1] is None:
            continue
        rows, targets = script.source(flat[0]), script.source(flat[1])
        yield [
            script.replace(logits, f"{rows}[:, :-1].reshape(-1, {rows}.size(-1))"),
            script.replace(labels, f"{targets}[:, 1:].reshape(-1)"),
        ]


def _flattened(node: ast.expr) -> ast.expr | None:
    """The name `x` in `x.view(-1, x.size(-1))`, `x.view(-1)`, `x.flatten(0, 1)` and `x.flatten()`."""
    if isinstance(node, ast.Call) and function_name(node) in ("view", "reshape", "flatten") and is_method(node):
        tensor = tensor_of(node)
        first = number(node.args[0]) if node.args else None
        if isinstance(tensor, ast.Name) and (first == -1 or (function_name(node) == "flatten" and first in (None, 0))):
            return tensor
    return None


def _slice_span(script: Script, part: ast.Slice) -> tuple[int, int]:
    """The offsets of a slice. (`ast` gives slices a position like expressions.)"""
    return script.span(part)


# Divergences


@operator("loss", "unexpected-loss-input")
def divergence_of_probabilities(script: Script) -> Mutants:
    """`kl_div` gets probabilities as its input, and expects their logarithm."""
    for call in calls(script, "kl_div", "KLDivLoss", *_modules(script, "KLDivLoss")):
        if not call.args:
            continue
        for value in sources(script, call.args[0], depth=1):
            if isinstance(value, ast.Call) and function_name(value) == "log_softmax":
                yield [_renamed(script, value, "log_softmax", "softmax")]


@operator("loss")
def divergence_reversed(script: Script) -> Mutants:
    """The arguments of the divergence are swapped, so student and teacher change their roles."""
    for call in calls(script, "kl_div", *_modules(script, "KLDivLoss")):
        if len(call.args) < 2:
            continue
        first, second = call.args[:2]
        if isinstance(first, ast.Call) and isinstance(second, ast.Call):
            inner = tensor_of(first), tensor_of(second)
            if (
                function_name(first) == "log_softmax"
                and function_name(second) in ("softmax", "log_softmax")
                and inner[0] is not None
                and inner[1] is not None
            ):
                yield [
                    script.replace(inner[0], script.source(inner[1])),
                    script.replace(inner[1], script.source(inner[0])),
                ]
    for call in calls(script, "kl_divergence"):
        if len(call.args) == 2:
            first, second = call.args
            yield [script.replace(first, script.source(second)), script.replace(second, script.source(first))]


def _modules(script: Script, kind: str) -> list[str]:
    """The names that the script gives to modules of a kind."""
    return [
        name.rpartition(".")[2]
        for name, value, _ in assignments(script)
        if isinstance(value, ast.Call) and function_name(value) == kind
    ]


def _renamed(script: Script, call: ast.Call, old: str, new: str) -> Edit:
    """The edit that calls another function of the same module."""
    start, end = script.span(call.func)
    text = script.source(call.func)
    return Edit(start, end, text[: text.rindex(old)] + new)


@operator("loss")
def divergence_sign(script: Script) -> Mutants:
    """The divergence of the VAE has the wrong sign, so the posterior is pushed away from the prior."""
    for node in script.walk(ast.UnaryOp):
        if isinstance(node, ast.UnaryOp) and number(node) == -0.5:
            statement = script.statement(node)
            if mentions(statement, r"log_?(var|sigma|std)"):
                yield [script.replace(node, script.source(node.operand))]


@operator("loss")
def variance_as_deviation(script: Script) -> Mutants:
    """The reparameterization takes the variance as the standard deviation: the factor 0.5 is missing."""
    for call in calls(script, "exp"):
        value = tensor_of(call)
        if value is None or not mentions(value, r"log_?var"):
            continue
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult | ast.Div):
            half = [side for side in (value.left, value.right) if number(side) in (0.5, 2)]
            other = [side for side in (value.left, value.right) if number(side) is None]
            if half and other:
                start, end = script.span(value)
                grouped = script.text[start - 1] == "(" and is_method(call) and not isinstance(other[0], ast.BinOp)
                yield [Edit(start - grouped, end + grouped, script.source(other[0]))]
    for call in calls(script, "mul", "div"):
        tensor, factor = tensor_of(call), argument(call, 0, "other")
        if is_method(call) and tensor is not None and mentions(tensor, r"log_?var") and number(factor) in (0.5, 2):
            yield [script.replace(call, script.source(tensor))]


# Adversarial losses


def adversarial_losses(script: Script) -> list[ast.Call]:
    """The calls of losses with a prediction and a label."""
    return [
        call
        for call in script.walk(ast.Call)
        if isinstance(call, ast.Call)
        and len(call.args) == 2
        and re.search(r"loss|criterion|bce|cross_entropy", function_name(call))
    ]


@operator("loss")
def generator_learns_fake_label(script: Script) -> Mutants:
    """The generator is trained with the label for fake samples, so it helps the discriminator."""
    entries = adversarial_losses(script)
    for call in entries:
        detached = [
            node for node in ast.walk(call.args[0]) if isinstance(node, ast.Call) and function_name(node) == "detach"
        ]
        if not detached or not dotted(call.args[1]):
            continue
        fake = tensor_of(detached[0])
        if fake is None or not dotted(fake):
            continue
        for other in entries:
            if other is call or not same(other.func, call.func) or not dotted(other.args[1]):
                continue
            values = list(sources(script, other.args[0], depth=1))
            uses = any(mentions(value, rf"^{re.escape(dotted(fake).rpartition('.')[2])}$") for value in values)
            if uses and not same(other.args[1], call.args[1]) and "detach" not in script.source(other.args[0]):
                yield [script.replace(other.args[1], script.source(call.args[1]))]


@operator("loss")
def real_and_fake_with_one_label(script: Script) -> Mutants:
    """The discriminator gets the same label for real and for fake samples."""
    entries = adversarial_losses(script)
    for call in entries:
        if "detach()" not in script.source(call.args[0]) or not dotted(call.args[1]):
            continue
        for other in entries:
            if (
                other is not call
                and same(other.func, call.func)
                and dotted(other.args[1])
                and not same(other.args[1], call.args[1])
            ):
                yield [script.replace(call.args[1], script.source(other.args[1]))]
                break


# Contrastive losses


@operator("loss")
def contrastive_positive_misplaced(script: Script) -> Mutants:
    """The positive stands last among the logits, but the labels say that it is the first."""
    for call in calls(script, "cat", "concat"):
        parts = call.args[0].elts if call.args and isinstance(call.args[0], ast.List | ast.Tuple) else []
        if len(parts) == 2 and mentions(parts[0], "pos") and mentions(parts[1], "neg"):
            dimension = argument(call, 1, "dim")
            if number(dimension) in (1, -1):
                yield [
                    script.replace(parts[0], script.source(parts[1])),
                    script.replace(parts[1], script.source(parts[0])),
                ]


@operator("loss")
def temperature_missing(script: Script) -> Mutants:
    """The similarities or logits are not divided by the temperature."""
    for node in script.walk(ast.Name, ast.Attribute):
        if not isinstance(node, ast.Name | ast.Attribute) or is_evaluation(script, node):
            continue
        name = dotted(node).rpartition(".")[2]
        if (
            re.fullmatch(r"temperature|temp|T|tau_?c?|logit_scale", name)
            and _divides(node)
            and (edit := without_factor(script, node))
        ):
            yield [edit]


def _divides(node: ast.expr) -> bool:
    parent = node.parent  # type: ignore[attr-defined]
    return isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Div) and parent.right is node
