"""Operators on values that are computed once and reused, and on tensors that are changed in place."""

from __future__ import annotations

import ast
import re

from benchmarks.mutants.model_queries import (
    calls,
    function_name,
    is_method,
    mentions,
    sample_methods,
    seeds_of_drawn,
    tensor_of,
    training_loaders,
)
from benchmarks.mutants.operator import Mutants, operator
from benchmarks.mutants.queries import (
    assignments,
    dotted,
    is_evaluation,
    last_part,
    loops,
    method_calls,
    models,
    optimizers,
    scope,
)
from benchmarks.mutants.script import Edit, Script

# Caches


@operator("caches", "same-order-every-epoch")
def batches_cached(script: Script) -> Mutants:
    """The batches are made once and kept in a list, so order and augmentation are the same in all epochs."""
    for name, call, statement in training_loaders(script):
        if dotted(statement.targets[0]) != name if isinstance(statement, ast.Assign) else True:
            continue
        assert isinstance(statement, ast.Assign)
        if (
            statement.value is call
            and not re.search(rf"{re.escape(last_part(name))}\.(dataset|sampler|batch_size|batch_sampler)", script.text)
            and not re.search(r"prepare\(|Distributed|\bloader\.dataset", script.text)
        ):
            yield [script.replace(call, f"list({script.source(call)})")]


@operator("caches")
def samples_cached(script: Script) -> Mutants:
    """The samples are cached with their random augmentation, which is the same in all epochs."""
    for node in sample_methods(script):
        if seeds_of_drawn(script, node) and not node.decorator_list:
            first = next(entry for entry in script.tree.body if isinstance(entry, ast.Import | ast.ImportFrom))
            edits = [script.insert_before(node, "@functools.lru_cache(maxsize=None)")]
            if not re.search(r"^import functools", script.text, re.MULTILINE):
                edits.append(script.insert_before(first, "import functools"))
            yield edits


@operator("caches", "evaluated-copy-is-stale")
def stale_copy_evaluated(script: Script) -> Mutants:
    """The evaluation uses a copy of the model from before the training."""
    first = next((entry for entry in script.tree.body if isinstance(entry, ast.Import | ast.ImportFrom)), None)
    if first is None or script.source(first).startswith("from __future__"):
        return
    names = models(script)
    for optimizer in optimizers(script):
        statement = optimizer.statement
        place = scope(script, statement)
        evaluated: dict[str, list[Edit]] = {}
        for node in script.walk(ast.Call, inside=place):
            assert isinstance(node, ast.Call)
            if not re.search(r"eval|valid|test|accuracy", function_name(node)) or node.lineno < statement.lineno:
                continue
            for entry in node.args:
                if isinstance(entry, ast.Name) and entry.id in names and scope(script, node) is place:
                    evaluated.setdefault(entry.id, []).append(script.replace(entry, "eval_model"))
        for name, edits in evaluated.items():
            if not re.search(r"^import copy\b", script.text, re.MULTILINE):
                edits.append(script.insert_before(first, "import copy"))
            yield [script.insert_after(statement, f"eval_model = copy.deepcopy({name})"), *edits]


@operator("caches")
def features_of_untrained_model(script: Script) -> Mutants:
    """The features of a trained network are computed once before the loop and not again after its updates."""
    trained = {last_part(name) for name in models(script)}
    for name, value, statement in assignments(script):
        around = loops(script, statement)
        block = next(script.parents(statement))
        if not around or not isinstance(value, ast.Call) or not isinstance(block, ast.With) or len(block.body) != 1:
            continue
        if last_part(dotted(value.func)) not in trained or not isinstance(statement, ast.Assign):
            continue
        bound = {
            node.id for node in ast.walk(around[0]) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        read = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
        in_loss = any(
            "loss" in other and mentions(source, rf"^{re.escape(last_part(name))}$")
            for other, source, _ in assignments(script, around[0])
        )
        if in_loss and not bound & read:
            yield script.move_before(block, around[0])


# In place


@operator("in-place")
def copy_forgotten(script: Script) -> Mutants:
    """A value is not copied before it is changed, so the original changes, too."""
    for call in calls(script, "copy", "clone", "deepcopy"):
        statement = script.statement(call)
        if (
            not isinstance(statement, ast.Assign)
            or statement.value is not call
            or not isinstance(statement.targets[0], ast.Name)
        ):
            continue
        original = (
            tensor_of(call) if is_method(call) and dotted(call.func) != "copy.deepcopy" else next(iter(call.args), None)
        )
        name = statement.targets[0].id
        if original is None or not dotted(original).replace(".", "").isidentifier() or is_evaluation(script, call):
            continue
        if _changed(script, name, statement) or _changed(script, dotted(original), statement):
            yield [script.replace(call, script.source(original))]


def _changed(script: Script, name: str, after: ast.stmt) -> bool:
    """Whether the function changes the value of `name` in place after a statement."""
    place = scope(script, after)
    for node in script.walk(ast.Subscript, ast.AugAssign, ast.Call, inside=place):
        if getattr(node, "lineno", 0) <= after.lineno:
            continue
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and dotted(node.value) == name:
            return True
        if isinstance(node, ast.AugAssign) and dotted(node.target) == name:
            return True
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and dotted(node.func.value) == name
            and re.fullmatch(r"[a-z]\w*[a-z]_", node.func.attr)
            and node.func.attr != "requires_grad_"
        ):
            return True
    return False


@operator("in-place")
def noise_added_in_place(script: Script) -> Mutants:
    """The noise is added to the clean sample in place, so input and target are the same tensor."""
    for name, value, statement in assignments(script):
        if (
            not isinstance(value, ast.BinOp)
            or not isinstance(value.op, ast.Add)
            or not isinstance(value.left, ast.Name)
        ):
            continue
        if name == value.left.id or not re.search(
            r"\b(randn|rand|randn_like|rand_like|normal)\b", script.source(value.right)
        ):
            continue
        if re.search(r"\bnp\.|numpy", script.source(value.right)) or is_evaluation(script, statement):
            continue
        place = scope(script, statement)
        later = [
            node
            for node in script.walk(ast.Name, inside=place)
            if isinstance(node, ast.Name) and node.id == value.left.id and node.lineno > statement.lineno
        ]
        if later:
            yield [script.replace(value, f"{value.left.id}.add_({script.source(value.right)})")]


@operator("in-place")
def data_set_changed_in_place(script: Script) -> Mutants:
    """A sample is augmented in place, which changes the stored data set from epoch to epoch."""
    for node in sample_methods(script):
        for name, value, statement in assignments(script, node):
            if (
                not isinstance(value, ast.BinOp)
                or not isinstance(statement, ast.Assign)
                or statement.value is not value
            ):
                continue
            operators = {ast.Add: "+=", ast.Sub: "-=", ast.Mult: "*="}
            symbol = operators.get(type(value.op))
            stored = value.left
            is_view = isinstance(stored, ast.Subscript) and dotted(stored.value).startswith("self.")
            held = isinstance(stored, ast.Name) and any(
                other == stored.id and isinstance(source, ast.Subscript) and dotted(source.value).startswith("self.")
                for other, source, _ in assignments(script, node)
            )
            if symbol and is_view:
                text = f"{name} = {script.source(stored)}\n{name} {symbol} {script.source(value.right)}"
                yield [script.replace(statement, text)]
            elif symbol and held and isinstance(stored, ast.Name):
                text = f"{stored.id} {symbol} {script.source(value.right)}"
                yield [script.replace(statement, text if stored.id == name else f"{text}\n{name} = {stored.id}")]


@operator("in-place")
def weights_clamped_for_gradients(script: Script) -> Mutants:
    """The weights are clamped after the backward pass instead of their gradients."""
    for call in method_calls(script, "clamp_"):
        assert isinstance(call.func, ast.Attribute)
        receiver = dotted(call.func.value)
        if re.search(r"\.grad(\.data)?$", receiver):
            yield [script.replace(call.func, f"{re.sub(r'[.]grad([.]data)?$', '', receiver)}.data.clamp_")]
