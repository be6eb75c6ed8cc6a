"""Mistakes in the loss and in the graph behind it: wrong inputs, wrong sums, detached parts."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence

from benchmarks.mutants.operator import operator
from benchmarks.mutants.queries import (
    FUNCTIONS,
    LossCall,
    argument,
    assignments,
    backwards,
    called,
    dotted,
    drop_keyword,
    is_evaluation,
    keyword,
    last_part,
    loss_calls,
    loss_expressions,
    method,
    method_calls,
    module_classes,
    parts_of_class,
    scope,
    steps,
    terms,
)
from benchmarks.mutants.script import Edit, Script

# Inputs of the loss


def _prediction(loss: LossCall) -> ast.expr | None:
    return argument(loss.call, 0, "input")


def _ends_in(script: Script, value: ast.expr, *functions: str) -> bool:
    """Whether the value is the result of one of these functions, here or where its name was assigned."""
    text = script.source(value)
    if isinstance(value, ast.Name):
        region = scope(script, value)
        text += "".join(script.source(entry) for name, entry, _ in assignments(script, region) if name == value.id)
    return any(function in text for function in functions)


def _normalizes_itself(script: Script) -> bool:
    """Whether a module of the script already ends in a softmax or sigmoid."""
    for module in module_classes(script).values():
        forward = method(module, "forward")
        for node in script.walk(ast.Return, inside=forward) if forward else ():
            assert isinstance(node, ast.Return)
            if node.value is not None and any(word in script.source(node.value) for word in ("softmax", "sigmoid")):
                return True
    return False


@operator("loss", "unexpected-loss-input")
def softmax_before_cross_entropy(script: Script) -> Iterator[Sequence[Edit]]:
    """Cross entropy gets probabilities, and not scores."""
    for loss in loss_calls(script, "cross_entropy"):
        scores = _prediction(loss)
        if scores is not None and not _ends_in(script, scores, "softmax"):
            yield [script.replace(scores, f"torch.softmax({script.source(scores)}, dim=1)")]


@operator("loss", "unexpected-loss-input")
def softmax_in_model(script: Script) -> Iterator[Sequence[Edit]]:
    """The model ends in a softmax, although cross entropy expects its scores."""
    if not any(True for _ in loss_calls(script, "cross_entropy")):
        return
    for module in module_classes(script).values():
        forward = method(module, "forward")
        returns = list(script.walk(ast.Return, inside=forward)) if forward else []
        used_by_parts = any(
            isinstance(node, ast.Call) and last_part(called(node)) == module.name
            for other in module_classes(script).values()
            for node in ast.walk(other)
        )
        if len(returns) != 1 or used_by_parts or len(parts_of_class(script, module)) < 2:
            continue
        assert isinstance(returns[0], ast.Return)
        value = returns[0].value
        linear = [name for name, entry, _ in assignments(script, module) if last_part(_name_of_call(entry)) == "Linear"]
        if isinstance(value, ast.Call) and called(value) in linear:
            yield [script.replace(value, f"torch.softmax({script.source(value)}, dim=-1)")]


def _name_of_call(value: ast.expr) -> str:
    return called(value) if isinstance(value, ast.Call) else ""


@operator("loss", "unexpected-loss-input")
def sigmoid_before_bce_with_logits(script: Script) -> Iterator[Sequence[Edit]]:
    """The binary cross entropy that expects scores gets probabilities."""
    for loss in loss_calls(script, "binary_cross_entropy_with_logits"):
        scores = _prediction(loss)
        if scores is not None and not _ends_in(script, scores, "sigmoid"):
            yield [script.replace(scores, f"torch.sigmoid({script.source(scores)})")]


@operator("loss", "unexpected-loss-input")
def softmax_for_log_softmax(script: Script) -> Iterator[Sequence[Edit]]:
    """A loss that expects log-probabilities gets probabilities."""
    if not loss_calls(script, "nll_loss", "kl_div"):
        return
    for node in script.walk(ast.Attribute, ast.Name):
        assert isinstance(node, ast.Attribute | ast.Name)
        name = node.attr if isinstance(node, ast.Attribute) else node.id
        if name in ("log_softmax", "LogSoftmax") and not is_evaluation(script, node):
            end = script.span(node)[1]
            yield [Edit(end - len(name), end, {"log_softmax": "softmax", "LogSoftmax": "Softmax"}[name])]


# Sums and weights


@operator("loss")
def loss_summed(script: Script) -> Iterator[Sequence[Edit]]:
    """The loss is the sum over the batch, and not its mean."""
    for loss in loss_calls(script):
        entry = keyword(loss.options, "reduction")
        if entry is None:
            start, end = script.span(loss.options)
            comma = "" if script.text[start:end].endswith("()") else ", "
            if script.text[start:end].rstrip(")").rstrip().endswith(","):
                comma = " "
            yield [Edit(end - 1, end, f'{comma}reduction="sum")')]
        elif isinstance(entry.value, ast.Constant) and entry.value.value in ("mean", "batchmean"):
            yield [script.replace(entry.value, '"sum"')]


@operator("loss")
def class_weights_dropped(script: Script) -> Iterator[Sequence[Edit]]:
    """The weights of the classes or the smoothing of the labels are missing in the loss."""
    for loss in loss_calls(script):
        for name in ("weight", "pos_weight", "label_smoothing"):
            edit = drop_keyword(script, loss.options, name)
            if edit:
                yield [edit]


@operator("loss")
def arguments_of_loss_swapped(script: Script) -> Iterator[Sequence[Edit]]:
    """The prediction and the target of an asymmetric loss are swapped."""
    for loss in loss_calls(script, "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div"):
        first, second = loss.call.args[:2]
        yield [script.replace(first, script.source(second)), script.replace(second, script.source(first))]


def _sums(script: Script) -> Iterator[tuple[ast.expr, list[ast.expr]]]:
    """The losses of backward passes that are sums, with their terms."""
    for backward in backwards(script) if steps(script) else ():
        for value in loss_expressions(script, backward):
            parts = terms(value)
            if len(parts) > 1 and not any(isinstance(part, ast.Constant) for part in parts):
                yield value, parts


@operator("loss")
def weight_of_term_dropped(script: Script) -> Iterator[Sequence[Edit]]:
    """A term of the loss has lost its weight."""
    for _, parts in _sums(script):
        for part in parts:
            if not isinstance(part, ast.BinOp) or not isinstance(part.op, ast.Mult):
                continue
            for weight, rest in ((part.left, part.right), (part.right, part.left)):
                is_number = isinstance(weight, ast.Constant) and weight.value not in (1, 1.0)
                is_name = any(word in last_part(dotted(weight)).lower() for word in _weights) and dotted(weight)
                if is_number or is_name:
                    yield [script.replace(part, script.source(rest))]
                    break


_weights = ("weight", "coef", "beta", "alpha", "lambda", "gamma", "scale", "lam", "_w", "w_", "factor")


@operator("loss")
def term_dropped(script: Script) -> Iterator[Sequence[Edit]]:
    """A term of the loss is missing."""
    for _, parts in _sums(script):
        last = parts[-1]
        parent = last.parent  # type: ignore[attr-defined]
        if isinstance(parent, ast.BinOp) and parent.right is last and not isinstance(parent.op, ast.Mult):
            yield [Edit(script.span(parent.left)[1], script.span(last)[1], "")]


@operator("loss")
def sign_of_term_flipped(script: Script) -> Iterator[Sequence[Edit]]:
    """A term of the loss has the wrong sign."""
    for _, parts in _sums(script):
        for part in reversed(parts[1:]):
            parent = part.parent  # type: ignore[attr-defined]
            if isinstance(parent, ast.BinOp) and parent.right is part and isinstance(parent.op, ast.Add | ast.Sub):
                start, end = script.span(parent.left)[1], script.span(part)[0]
                signs = {"+": "-", "-": "+"}
                yield [Edit(start, end, "".join(signs.get(letter, letter) for letter in script.text[start:end]))]


@operator("loss")
def total_overwritten(script: Script) -> Iterator[Sequence[Edit]]:
    """The total loss is overwritten by its last term, and not added to."""
    for backward in backwards(script):
        names = {dotted(node) for node in ast.walk(backward.loss) if isinstance(node, ast.Name)}
        for node in script.walk(ast.AugAssign, inside=scope(script, backward.call)):
            assert isinstance(node, ast.AugAssign)
            before = script.statement(backward.call).lineno > node.lineno
            if dotted(node.target) in names and isinstance(node.op, ast.Add) and before:
                yield [script.replace(node, f"{script.source(node.target)} = {script.source(node.value)}")]


@operator("loss", "some-gradients-always-zero", "step-without-backward")
def one_backward_removed(script: Script) -> Iterator[Sequence[Edit]]:
    """The backward pass of one of several losses is missing."""
    entries = backwards(script) if steps(script) else []
    for first, second in itertools.pairwise(entries):
        between = [
            step for step in steps(script) if first.statement.lineno < step.statement.lineno < second.statement.lineno
        ]
        if not between and script.block(first.statement) is script.block(second.statement):
            yield [script.remove(first.statement)]


# Detaching


def _has_gradient(script: Script, term: ast.expr) -> bool:
    text = script.source(term)
    return ".item()" not in text and ".detach()" not in text and not isinstance(term, ast.Constant)


@operator("detaching", "gradient-flow-stops", "some-gradients-always-zero", "backward-leaves-no-gradient")
def term_detached(script: Script) -> Iterator[Sequence[Edit]]:
    """A term of the loss is detached, so it has no influence on the training."""
    for _, parts in _sums(script):
        for part in reversed(parts):
            target = _factor(part)
            if _has_gradient(script, part) and any(
                _has_gradient(script, other) for other in parts if other is not part
            ):
                text = script.source(target)
                yield [
                    script.replace(
                        target, f"({text}).detach()" if isinstance(target, ast.BinOp) else f"{text}.detach()"
                    )
                ]


@operator("detaching", "gradient-flow-stops", "some-gradients-always-zero", "backward-leaves-no-gradient")
def term_as_number(script: Script) -> Iterator[Sequence[Edit]]:
    """A term of the loss is added as a number, as one does for logging."""
    for _, parts in _sums(script):
        for part in reversed(parts):
            target = _factor(part)
            others = [other for other in parts if other is not part]
            if dotted(target) and _has_gradient(script, part) and any(_has_gradient(script, other) for other in others):
                yield [script.replace(target, f"{script.source(target)}.item()")]


def _factor(term: ast.expr) -> ast.expr:
    """The factor of a weighted term that holds the gradient: the one that is no number and no weight."""
    if isinstance(term, ast.BinOp) and isinstance(term.op, ast.Mult):
        for side, other in ((term.left, term.right), (term.right, term.left)):
            is_weight = any(word in last_part(dotted(side)).lower() for word in _weights) and dotted(side)
            if isinstance(side, ast.Constant) or is_weight:
                return other
    return term


@operator("detaching", "gradient-flow-stops", "backward-leaves-no-gradient")
def features_detached(script: Script) -> Iterator[Sequence[Edit]]:
    """The features are detached before the last layer, so only that layer learns."""
    for module in reversed(module_classes(script).values()):
        forward = method(module, "forward")
        names = parts_of_class(script, module)
        if forward is None or len(names) < 2:
            continue
        calls = [
            node
            for node in script.walk(ast.Call, inside=forward)
            if isinstance(node, ast.Call) and called(node)[5:] in names and called(node).startswith("self.")
        ]
        inputs = {entry.arg for entry in forward.args.args}
        changed = {name for name, _, _ in assignments(script, forward)}
        for call in calls[-1:]:
            value = call.args[0] if call.args else None
            is_feature = isinstance(value, ast.Call) or (
                isinstance(value, ast.Name) and (value.id not in inputs or value.id in changed)
            )
            if value is not None and is_feature and len(calls) > 1:
                yield [script.replace(value, f"{script.source(value)}.detach()")]


@operator("detaching", "gradient-flow-stops", "backward-leaves-no-gradient")
def layer_under_no_grad(script: Script) -> Iterator[Sequence[Edit]]:
    """A part of the forward pass runs under `no_grad`, as one does for a frozen backbone."""
    for module in reversed(module_classes(script).values()):
        forward = method(module, "forward")
        for statement in forward.body[:-1] if forward else ():
            if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
                continue
            if any(called(node)[5:] in parts_of_class(script, module) for node in _calls(statement)):
                yield [script.wrap("with torch.no_grad():", statement)]
                break


def _calls(node: ast.AST) -> list[ast.Call]:
    return [entry for entry in ast.walk(node) if isinstance(entry, ast.Call)]


@operator("detaching", "backward-leaves-no-gradient", "optimizer-changes-nothing", "gradient-flow-stops")
def loss_wrapped_again(script: Script) -> Iterator[Sequence[Edit]]:
    """The loss is put into a new tensor that requires a gradient, which hides that it has no graph."""
    for backward in backwards(script):
        name = script.source(backward.loss)
        after = [entry for entry in _calls(backward.statement) if entry is not backward.call]
        if dotted(backward.loss) and not backward.is_scaled and not backward.call.args and not after:
            yield [
                script.insert_before(backward.statement, f"{name} = torch.tensor({name}.item(), requires_grad=True)")
            ]


@operator("detaching")
def detach_removed(script: Script) -> Iterator[Sequence[Edit]]:
    """Gradients flow through a value that must be a constant for the loss."""
    for call in method_calls(script, "detach"):
        assert isinstance(call.func, ast.Attribute)
        parent = call.parent  # type: ignore[attr-defined]
        leaves_torch = isinstance(parent, ast.Attribute)
        region = scope(script, call)
        learns = isinstance(region, FUNCTIONS) and (
            region.name == "forward" or any(scope(script, entry.call) is region for entry in backwards(script))
        )
        is_carried = isinstance(parent, ast.Assign) and script.source(parent.targets[0]) == script.source(
            call.func.value
        )
        is_loss = dotted(call.func.value) in [dotted(entry.loss) for entry in backwards(script)]
        if learns and not is_loss and not leaves_torch and not is_carried and not is_evaluation(script, call):
            yield [script.replace(call, script.source(call.func.value))]
