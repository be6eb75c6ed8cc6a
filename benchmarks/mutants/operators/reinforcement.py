"""Operators on target networks, moving averages, bootstrapped targets, returns and replay buffers."""

from __future__ import annotations

import ast
import re

from benchmarks.mutants.model_queries import (
    averaged,
    calls,
    enclosing_class,
    function_name,
    is_method,
    mentions,
    number,
    same,
    text_of,
    unindented_body,
    without_factor,
)
from benchmarks.mutants.operator import Mutants, operator
from benchmarks.mutants.queries import assignments, dotted, is_evaluation, method, method_calls, scope
from benchmarks.mutants.script import Edit, Script

GAMMA = r"^(gamma|discount|discount_factor)$"
DONE = r"done|terminal|terminated|nonterminal|not_done"


# Targets


@operator("targets")
def target_never_updated(script: Script) -> Mutants:
    """The target network (or moving average) is never updated, so it keeps the initial weights."""
    loops = [statement for _, _, statement in averaged(script)]
    if loops:
        yield [script.remove(statement) for statement in loops]
    for call in method_calls(script, "update_parameters"):
        statement = script.statement(call)
        if isinstance(statement, ast.Expr) and len(call.args) == 1:
            yield [script.remove(statement)]


@operator("targets", "average-does-not-average")
def target_decay_swapped(script: Script) -> Mutants:
    """The weights of the moving average are swapped, so the target nearly equals the network after each update."""
    for _, _, loop in averaged(script):
        for node in script.walk(ast.BinOp, inside=loop):
            if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
                continue
            first, second = _weighted(node.left), _weighted(node.right)
            if first is not None and second is not None:
                yield [script.replace(first, script.source(second)), script.replace(second, script.source(first))]
        for call in calls(script, "lerp_", inside=loop):
            weight = call.args[1] if len(call.args) == 2 else None
            complement = weight is not None and _complement(weight)
            if weight is not None:
                text = script.source(complement) if complement else f"1 - {script.source(weight)}"
                yield [script.replace(weight, text)]
        for call in calls(script, "add_", inside=loop):
            inner = call.func.value if isinstance(call.func, ast.Attribute) else None
            alpha = next((entry.value for entry in call.keywords if entry.arg == "alpha"), None)
            if isinstance(inner, ast.Call) and function_name(inner) == "mul_" and inner.args and alpha is not None:
                decay = inner.args[0]
                yield [script.replace(decay, script.source(alpha)), script.replace(alpha, script.source(decay))]


def _complement(node: ast.expr) -> ast.expr | None:
    """`x` for `1 - x`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and number(node.left) == 1:
        return node.right
    return None


def _weighted(node: ast.expr) -> ast.expr | None:
    """The tensor of a product such as `tau * p` and `(1 - tau) * p.data`."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return None
    for weight, tensor in ((node.left, node.right), (node.right, node.left)):
        if _complement(weight) is not None or (
            dotted(weight) and mentions(weight, r"tau|decay|beta|momentum|alpha|polyak|^m$")
        ):
            return tensor
    return None


@operator("targets")
def target_update_reversed(script: Script) -> Mutants:
    """The update of the target runs in the wrong direction: the trained network is overwritten by the target."""
    for target, online, statement in averaged(script):
        owner = enclosing_class(script, statement)
        if owner is not None and method(owner, "forward") is not None and ".data" not in script.source(statement):
            continue  # autograd notices that the update changes the weights between forward and backward
        if isinstance(statement, ast.For):
            assert isinstance(statement.iter, ast.Call)
            first, second = statement.iter.args
            yield [script.replace(first, script.source(second)), script.replace(second, script.source(first))]
        else:
            yield [script.replace(statement, f"{online}.load_state_dict({target}.state_dict())")]


@operator("targets")
def target_computed_by_trained_network(script: Script) -> Mutants:
    """The targets are computed by the network that is trained instead of by its slow copy."""
    for target, online in dict.fromkeys((target, online) for target, online, _ in averaged(script)):
        for node in script.walk(ast.Call):
            if isinstance(node, ast.Call) and node.args and dotted(node.func) == target:
                yield [script.replace(node.func, online)]


@operator("targets", "average-does-not-average")
def average_follows_itself(script: Script) -> Mutants:
    """The moving average is updated with its own weights instead of those of the trained model."""
    for call in method_calls(script, "update_parameters"):
        statement = script.statement(call)
        assert isinstance(call.func, ast.Attribute)
        name = dotted(call.func.value)
        if isinstance(statement, ast.Expr) and len(call.args) == 1 and name:
            yield [script.replace(call.args[0], f"{name}.module")]
    for target, online, statement in averaged(script):
        if isinstance(statement, ast.For):
            for node in script.walk(ast.Name, ast.Attribute, inside=statement.iter):
                if isinstance(node, ast.Name | ast.Attribute) and dotted(node) == online:
                    yield [script.replace(node, target)]


@operator("targets")
def average_not_evaluated(script: Script) -> Mutants:
    """The evaluation of the moving average gets the trained model, so the average is never used."""
    pairs = {
        name: value.args[0]
        for name, value, _ in assignments(script)
        if isinstance(value, ast.Call) and function_name(value) == "AveragedModel" and value.args
    }
    for name, model in pairs.items():
        for node in script.walk(ast.Call):
            if isinstance(node, ast.Call) and function_name(node) not in ("update_parameters", "update_bn"):
                for entry in node.args:
                    if dotted(entry) == name:
                        yield [script.replace(entry, script.source(model))]


@operator("targets")
def gradient_into_target(script: Script) -> Mutants:
    """The bootstrapped target of the network is not detached, so the gradient also moves the target."""
    for node in script.walk(ast.With):
        assert isinstance(node, ast.With)
        if len(node.items) != 1 or "no_grad" not in script.source(node.items[0].context_expr):
            continue
        slow = mentions(node, r"target_|_target|^target$|targ$")
        if (
            mentions(node, GAMMA)
            and not slow
            and not any(isinstance(child, ast.For | ast.Subscript) and _stores(child) for child in ast.walk(node))
        ):
            yield [unindented_body(script, node)]
    for call in method_calls(script, "detach"):
        assert isinstance(call.func, ast.Attribute)
        statement = script.statement(call)
        if not isinstance(statement, ast.Assign) or mentions(call, r"target_|_target|^target$|cpu|numpy"):
            continue  # the gradient into a slow copy of the network does nothing
        assigned = statement.targets[0]
        parent = call.parent  # type: ignore[attr-defined]
        bootstraps = mentions(statement, GAMMA) or mentions(assigned, r"^(td_)?target|advantage|^adv$|returns?$")
        if bootstraps and not isinstance(parent, ast.Attribute):
            yield [script.replace(call, text_of(script, call.func.value))]


def _stores(node: ast.AST) -> bool:
    return isinstance(node, ast.For) or (isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store))


@operator("targets")
def end_of_episode_ignored(script: Script) -> Mutants:
    """The bootstrapped target adds the value of the next state also where the episode has ended."""
    for node in script.walk(ast.BinOp):
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
            continue
        for factor in (node.right, node.left):
            ended = _complement(factor)
            mask = (ended is not None and mentions(ended, DONE)) or (
                dotted(factor) and mentions(factor, r"not_?done|nonterminal|^masks?$")
            )
            if mask and mentions(script.statement(node), GAMMA) and (edit := without_factor(script, factor)):
                yield [edit]
                break


@operator("targets")
def discount_missing(script: Script) -> Mutants:
    """The value of the next state is not discounted."""
    for factor in script.walk(ast.Name, ast.Attribute):
        if (
            isinstance(factor, ast.Name | ast.Attribute)
            and mentions(factor, GAMMA)
            and dotted(factor)
            and (dotted(factor).rpartition(".")[2] in ("gamma", "discount"))
            and (edit := without_factor(script, factor))
        ):
            yield [edit]


@operator("targets")
def reward_discounted_too(script: Script) -> Mutants:
    """The discount is applied to the sum of reward and next value, so the reward of the step is discounted, too."""
    for node in script.walk(ast.BinOp):
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add) or not isinstance(node.right, ast.BinOp):
            continue
        first: ast.expr = node.right
        while isinstance(first, ast.BinOp) and isinstance(first.op, ast.Mult):
            first = first.left
        if first is not node.right and dotted(first) and mentions(first, GAMMA):
            text = script.text[script.span(first)[1] : script.span(node.right)[1]].lstrip(" *")
            text = f"{script.source(first)} * ({script.source(node.left)} + {text})"
            parent = next(script.parents(node))
            yield [script.replace(node, f"({text})" if isinstance(parent, ast.Attribute | ast.BinOp) else text)]


# Replay, returns and policy gradients


@operator("replay")
def advantages_not_normalized(script: Script) -> Mutants:
    """The advantages or returns are not normalized."""
    for node in script.walk(ast.BinOp):
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div) or not isinstance(node.left, ast.BinOp):
            continue
        values = node.left.left
        centred = isinstance(node.left.op, ast.Sub) and dotted(values) and "mean" in script.source(node.left.right)
        if not centred or "std" not in script.source(node.right) or not mentions(values, r"adv|return|reward|^r$|gae"):
            continue
        statement = script.statement(node)
        if isinstance(statement, ast.Assign) and statement.value is node and same(statement.targets[0], values):
            yield [script.remove(statement)]
        else:
            yield [script.replace(node, script.source(values))]


@operator("replay")
def ratio_of_new_policy(script: Script) -> Mutants:
    """The ratio of PPO compares the new policy with itself, so it is always one and nothing is clipped."""
    for call in calls(script, "exp"):
        operand = (
            call.func.value if is_method(call) and isinstance(call.func, ast.Attribute) else next(iter(call.args), None)
        )
        if operand is None:
            continue
        place = scope(script, call)
        values = [operand, *(value for name, value, _ in assignments(script, place) if name == dotted(operand) != "")]
        for value in values:
            difference = isinstance(value, ast.BinOp) and isinstance(value.op, ast.Sub)
            if difference and mentions(value, r"log_?(prob|p)"):
                assert isinstance(value, ast.BinOp)
                yield [script.replace(value.right, f"{text_of(script, value.left)}.detach()")]


@operator("replay")
def returns_accumulated_forwards(script: Script) -> Mutants:
    """The returns are accumulated from the first step to the last instead of backwards."""
    for node in script.walk(ast.For):
        assert isinstance(node, ast.For)
        source = node.iter
        if not mentions(ast.Module(body=node.body, type_ignores=[]), r"^(gamma|discount|gae_lambda|lam)$"):
            continue
        if isinstance(source, ast.Call) and function_name(source) == "reversed" and len(source.args) == 1:
            yield [script.replace(source, script.source(source.args[0]))]
        elif isinstance(source, ast.Subscript) and script.source(source).endswith("[::-1]"):
            yield [script.replace(source, script.source(source.value))]


@operator("replay")
def entropy_punished(script: Script) -> Mutants:
    """The entropy enters the loss with the wrong sign, so the policy is pushed to one action."""
    for node in script.walk(ast.BinOp):
        if (
            not isinstance(node, ast.BinOp)
            or not isinstance(node.op, ast.Sub)
            or not mentions(node.right, "entropy|^ent$")
        ):
            continue
        if mentions(node.left, "loss") or mentions(script.statement(node), "loss"):
            start, end = script.span(node.left)[1], script.span(node.right)[0]
            yield [Edit(start, end, script.text[start:end].replace("-", "+", 1))]


@operator("replay")
def policy_gradient_sign(script: Script) -> Mutants:
    """The minus sign of the policy gradient is missing, so the policy learns to avoid good actions."""
    for node in script.walk(ast.UnaryOp):
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            pays = mentions(node.operand, r"log_?prob|logp") and mentions(node.operand, r"return|reward|adv|^R$|^G$")
            if pays and not is_evaluation(script, node):
                yield [script.replace(node, script.source(node.operand))]


@operator("replay")
def buffer_index_stays_at_end(script: Script) -> Mutants:
    """The position in the replay buffer does not wrap around, so the last entry is overwritten again and again."""
    for node in script.walk(ast.Assign):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.BinOp) or not dotted(node.targets[0]):
            continue
        value = node.value
        if (
            isinstance(value.op, ast.Mod)
            and isinstance(value.left, ast.BinOp)
            and isinstance(value.left.op, ast.Add)
            and same(value.left.left, node.targets[0])
            and not re.search(r"epoch|step|iter", dotted(node.targets[0]))
        ):
            text = f"min({script.source(value.left)}, {script.source(value.right)} - 1)"
            yield [script.replace(value, text)]


@operator("replay")
def rewards_of_old_episodes(script: Script) -> Mutants:
    """The rewards of finished episodes are not deleted, so the next update pairs them with other actions."""
    for node in script.walk(ast.Delete, ast.Expr):
        if isinstance(node, ast.Delete) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Subscript):
            if mentions(node.targets[0].value, "reward"):
                yield [script.remove(node)]
        elif (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Call)
            and function_name(node.value) == "clear"
            and mentions(node.value.func, "reward")
        ):
            yield [script.remove(node)]
    for name, value, statement in assignments(script):
        if isinstance(value, ast.List) and not value.elts and re.search(r"reward", name):
            around = [parent for parent in script.parents(statement) if isinstance(parent, ast.For)]
            if around and isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                yield script.move_before(statement, around[0])
