"""Operators on dropout, normalization layers and residual connections."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from benchmarks.mutants.model_queries import (
    append_keyword,
    calls,
    constructor_of,
    function_name,
    mentions,
    module_kind,
    number,
    replace_argument,
)
from benchmarks.mutants.operator import Mutants, operator
from benchmarks.mutants.queries import (
    argument,
    assignments,
    dotted,
    drop_keyword,
    is_evaluation,
    keyword,
    method,
    method_calls,
    module_classes,
)
from benchmarks.mutants.script import Edit, Script

DROPOUTS = ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout")
NORMS = ("LayerNorm", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "GroupNorm", "InstanceNorm2d", "RMSNorm")
BATCH_NORMS = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d")


def dropout_calls(script: Script) -> Iterator[ast.Call]:
    """The calls of dropout modules that the class holds: `self.dropout(x)`."""
    for node in script.walk(ast.Call):
        if isinstance(node, ast.Call) and len(node.args) == 1 and module_kind(script, node) in DROPOUTS:
            yield node


# Dropout


@operator("dropout", "call-ignores-module-mode", "dropout-active-in-evaluation")
def dropout_without_mode(script: Script) -> Mutants:
    """A functional dropout ignores the mode of the module, so it also drops in evaluation."""
    for call in calls(script, "dropout", "dropout2d", "alpha_dropout"):
        training = keyword(call, "training")
        if training is not None and not isinstance(training.value, ast.Constant):
            if edit := drop_keyword(script, call, "training"):
                yield [edit]
        elif len(call.args) == 3 and mentions(call.args[2], "training"):
            yield [Edit(script.span(call.args[1])[1], script.span(call.args[2])[1], "")]
    for node in script.walk(ast.IfExp):
        if isinstance(node, ast.IfExp) and mentions(node.test, r"^training$") and number(node.orelse) == 0:
            yield [script.replace(node, script.source(node.body))]


@operator("dropout", "call-ignores-module-mode", "dropout-active-in-evaluation")
def functional_dropout_for_module(script: Script) -> Mutants:
    """`F.dropout(x, p)` replaces the dropout module, and its default drops in evaluation, too."""
    for call in dropout_calls(script):
        functional = re.search(r"import torch\.nn\.functional as F|from torch\.nn import functional as F", script.text)
        function = "F.dropout" if functional else "torch.nn.functional.dropout"
        if not functional and not re.search(r"^import torch$|^import torch\n", script.text, re.MULTILINE):
            continue
        yield [script.replace(call, f"{function}({script.source(call.args[0])}, {script.source(call.func)}.p)")]


@operator("dropout", "call-ignores-module-mode", "dropout-active-in-evaluation")
def dropout_made_in_forward(script: Script) -> Mutants:
    """`forward` makes a new dropout module in each call, which `eval()` does not reach."""
    for call in dropout_calls(script):
        made = constructor_of(script, dotted(call.func), call)
        assert made is not None
        arguments = [*made.args, *(entry.value for entry in made.keywords)]
        if all(number(entry) is not None or _is_global(script, entry) for entry in arguments):
            yield [script.replace(call.func, script.source(made))]


def _is_global(script: Script, expression: ast.expr) -> bool:
    """Whether an expression only reads names of the module, or attributes of `self`."""
    names = {name for name, _, statement in assignments(script) if statement in script.tree.body} | {"self"}
    return all(node.id in names for node in ast.walk(expression) if isinstance(node, ast.Name))


@operator("dropout", "setting-changed")
def dropout_of_keep_probability(script: Script) -> Mutants:
    """The dropout rate is given as the probability to keep a value."""
    for call in calls(script, *DROPOUTS):
        rate = argument(call, 0, "p")
        value = number(rate)
        if rate is None or value in (0.5, 0, 0.0):
            continue
        text = f"{1 - value:.6g}" if value is not None else f"1 - {script.source(rate)}"
        yield [script.replace(rate, text)]


@operator("dropout")
def dropout_on_output(script: Script) -> Mutants:
    """Dropout is applied to the output of the model, so it sets scores of classes to zero."""
    classes = module_classes(script)
    for owner in classes.values():
        if any(True for other in classes.values() for _ in calls(script, owner.name, inside=other)):
            continue  # a part of a model
        forward = method(owner, "forward")
        held = [
            name
            for name, value, _ in assignments(script, owner)
            if isinstance(value, ast.Call) and function_name(value) == "Dropout" and name.startswith("self.")
        ]
        returns = list(script.walk(ast.Return, inside=forward)) if forward and held else []
        if len(returns) != 1 or not isinstance(returns[0], ast.Return):
            continue
        result = returns[0].value
        if isinstance(result, ast.Call) and module_kind(script, result) == "Linear":
            yield [script.replace(result, f"{held[0]}({script.source(result)})")]


@operator("dropout")
def dropout_result_unused(script: Script) -> Mutants:
    """The result of dropout is not assigned, so dropout has no effect."""
    for call in (*dropout_calls(script), *calls(script, "dropout")):
        statement = script.statement(call)
        if (
            isinstance(statement, ast.Assign)
            and statement.value is call
            and call.args
            and dotted(statement.targets[0])
            and dotted(statement.targets[0]) == dotted(call.args[0])
        ):
            yield [script.replace(statement, script.source(call))]


# Normalization


@operator("normalization", "training-in-evaluation-mode")
def batch_norm_kept_in_evaluation(script: Script) -> Mutants:
    """The batch norm layers stay in evaluation mode, as for a pretrained model, but the model trains from scratch."""
    kinds = [kind for kind in BATCH_NORMS if any(True for _ in calls(script, kind))]
    if not kinds or "pretrained" in script.text:
        return
    layers = f"nn.{kinds[0]}" if re.search(r"\bnn\.", script.text) else f"torch.nn.{kinds[0]}"
    for call in method_calls(script, "train"):
        statement = script.statement(call)
        assert isinstance(call.func, ast.Attribute)
        model = dotted(call.func.value)
        if isinstance(statement, ast.Expr) and not call.args and model and not is_evaluation(script, call):
            text = f"for layer in {model}.modules():\n    if isinstance(layer, {layers}):\n        layer.eval()"
            yield [script.insert_after(statement, text)]


@operator("normalization", "setting-changed")
def batch_statistics_in_evaluation(script: Script) -> Mutants:
    """Batch norm keeps no running statistics, so evaluation normalizes with those of its batch."""
    edits = [
        append_keyword(script, call, "track_running_stats", "False")
        for call in calls(script, *BATCH_NORMS)
        if argument(call, 4, "track_running_stats") is None
    ]
    if edits:
        yield edits


@operator("normalization", "setting-changed")
def batch_norm_momentum_of_keras(script: Script) -> Mutants:
    """The momentum of batch norm follows the convention of TensorFlow, so it only keeps the last batch."""
    edits = [
        replace_argument(script, call, 2, "momentum", "0.99")
        for call in calls(script, *BATCH_NORMS)
        if (number(argument(call, 2, "momentum")) or 0.1) <= 0.3
    ]
    if edits:
        yield edits


@operator("normalization", "norm-layer-does-not-normalize", "setting-changed")
def norm_epsilon_huge(script: Script) -> Mutants:
    """The minus sign in the epsilon of a normalization layer is missing (1e6 for 1e-6), so it scales by 1e-3."""
    for call in calls(script, *NORMS):
        entry = keyword(call, "eps")
        if entry is not None and re.fullmatch(r"\d+e-0?[4-9]", script.source(entry.value)):
            yield [script.replace(entry.value, re.sub(r"e-0?", "e", script.source(entry.value)))]


@operator("normalization", "parameters-never-updated", "layer-never-called")
def norm_not_applied(script: Script) -> Mutants:
    """A normalization layer is made, but `forward` does not call it."""
    for node in script.walk(ast.Call):
        if (
            isinstance(node, ast.Call)
            and len(node.args) == 1
            and not node.keywords
            and module_kind(script, node) in NORMS
            and dotted(node.func).startswith("self.")
        ):
            statement = script.statement(node)
            if (
                isinstance(statement, ast.Assign)
                and statement.value is node
                and dotted(statement.targets[0]) == dotted(node.args[0]) != ""
            ):
                yield [script.remove(statement)]
                continue
            yield [script.replace(node, script.source(node.args[0]))]


@operator("normalization", "parameters-never-updated")
def norm_result_unused(script: Script) -> Mutants:
    """The result of a normalization layer is not assigned, so the layer has no effect."""
    for node in script.walk(ast.Call):
        if isinstance(node, ast.Call) and len(node.args) == 1 and module_kind(script, node) in NORMS:
            statement = script.statement(node)
            if (
                isinstance(statement, ast.Assign)
                and statement.value is node
                and dotted(statement.targets[0]) == dotted(node.args[0]) != ""
            ):
                yield [script.replace(statement, script.source(node))]


@operator("normalization")
def residual_dropped(script: Script) -> Mutants:
    """A block lacks its residual connection: the result replaces the input instead of being added to it."""
    for owner in module_classes(script).values():
        forward = method(owner, "forward")
        if forward is None:
            continue
        for node in script.walk(ast.Assign, ast.AugAssign, ast.Return, inside=forward):
            if isinstance(node, ast.AugAssign):
                computed = any(_is_layer(call) for call in ast.walk(node.value))
                if isinstance(node.op, ast.Add) and computed and isinstance(node.target, ast.Name):
                    yield (
                        [script.remove(node)]
                        if mentions(node.value, "short|skip|downsample|identity")
                        else [script.replace(node, f"{node.target.id} = {script.source(node.value)}")]
                    )
                continue
            assert isinstance(node, ast.Assign | ast.Return)
            value = node.value
            if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
                continue
            if (
                isinstance(value.left, ast.Name)
                and isinstance(value.right, ast.Call)
                and _is_layer(value.right)
                and mentions(value.right, rf"^{value.left.id}$")
            ):
                yield [script.replace(value, script.source(value.right))]


def _is_layer(node: ast.AST) -> bool:
    """Whether a node is a call of a module of the class: `self.attention(x)`."""
    return isinstance(node, ast.Call) and dotted(node.func).startswith("self.")
