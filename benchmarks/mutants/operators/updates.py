"""Mistakes in the update of the parameters: clearing gradients, stepping, clipping and accumulation."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from benchmarks.mutants.operator import operator
from benchmarks.mutants.queries import (
    Step,
    accumulation_conditions,
    ancestor_in_block,
    argument,
    backward_of,
    backwards,
    called,
    clears,
    clips,
    dotted,
    keyword,
    last_part,
    loops,
    loss_expressions,
    models,
    optimizers,
    origins,
    parameters_of,
    parts,
    schedulers,
    scope,
    steps,
)
from benchmarks.mutants.script import Edit, Script

# Clearing


def _clears_of(script: Script, step: Step) -> list[ast.Expr]:
    """The statements that clear the gradients for a step: of its optimizer, or of a model in the same function."""
    names = {last_part(name) for name in models(script)}
    own = [statement for name, statement in clears(script) if last_part(name) == last_part(step.optimizer)]
    of_models = [
        statement
        for name, statement in clears(script)
        if last_part(name) in names and scope(script, statement) is scope(script, step.statement)
    ]
    return own or of_models


def _near_clears(script: Script, step: Step) -> list[ast.Expr]:
    """Those in the innermost loop of the step."""
    inner = loops(script, step.statement)[:1]
    return [
        statement
        for statement in _clears_of(script, step)
        if scope(script, statement) is scope(script, step.statement) and loops(script, statement)[:1] == inner
    ]


def _removed(script: Script, statements: Sequence[ast.stmt]) -> list[Edit]:
    return [script.remove(statement) for statement in statements]


@operator("clearing", "gradients-not-cleared")
def zero_grad_removed(script: Script) -> Iterator[Sequence[Edit]]:
    """The gradients are not cleared between steps."""
    receivers = list(dict.fromkeys(name for name, _ in clears(script)))
    for receiver in receivers:
        yield _removed(script, [statement for name, statement in clears(script) if name == receiver])


@operator("clearing", "optimizer-changes-nothing", "all-gradients-zero", "calls-in-wrong-order")
def zero_grad_after_backward(script: Script) -> Iterator[Sequence[Edit]]:
    """The gradients are cleared between the backward pass and the step."""
    for step in steps(script):
        backward = backward_of(script, step)
        if backward is None or step.scaler:
            continue  # a gradient scaler raises an error when there are no gradients
        for statement in _near_clears(script, step):
            if not backward.statement.lineno < statement.lineno < step.statement.lineno:
                yield script.move_before(statement, step.statement)


@operator("clearing", "gradients-not-cleared")
def zero_grad_once_per_epoch(script: Script) -> Iterator[Sequence[Edit]]:
    """The gradients are cleared before the loop over the batches, and not in it."""
    for step in steps(script):
        around = loops(script, step.statement)
        if around and (statements := _near_clears(script, step)):
            yield [*_removed(script, statements), script.insert_before(around[0], script.lines(statements[0]))]


@operator("clearing", "gradients-not-cleared")
def zero_grad_of_other_optimizer(script: Script) -> Iterator[Sequence[Edit]]:
    """One of two optimizers is cleared in the place of the other."""
    receivers = [name for name, _ in clears(script)]
    for name, statement in clears(script):
        others = [other for other in dict.fromkeys(receivers) if other != name]
        assert isinstance(statement.value, ast.Call) and isinstance(statement.value.func, ast.Attribute)
        if others and receivers.count(name) == 1:
            yield [script.replace(statement.value.func.value, others[0])]


@operator("clearing", "gradients-not-cleared")
def zero_grad_of_one_part(script: Script) -> Iterator[Sequence[Edit]]:
    """Only the gradients of one part of the model are cleared."""
    for step in steps(script):
        for optimizer in optimizers(script):
            if last_part(optimizer.name) != last_part(step.optimizer):
                continue
            model = parameters_of(optimizer.parameters)
            for statement in _near_clears(script, step):
                name = _name_here(script, model, statement)
                for part in parts(script, name, statement)[-1:] if name else ():
                    yield [script.replace(statement, f"{name}{part}.zero_grad()")]


def _name_here(script: Script, model: str, region: ast.stmt) -> str:
    """The name of a model at another place of the script: its own, or one whose origin it is."""
    here = scope(script, region)
    names = [dotted(node) for node in script.walk(ast.Name, ast.Attribute, inside=here)]  # type: ignore[arg-type]
    for name in dict.fromkeys(entry for entry in names if entry):
        if model and (name == model or model in origins(script, name, region)):
            return name
    return ""


@operator("clearing", "gradients-not-cleared")
def zero_grad_when_logging(script: Script) -> Iterator[Sequence[Edit]]:
    """The gradients are cleared only in the steps that also print the loss."""
    for step in steps(script):
        for rare in _rare_branches(script, step):
            for statement in _near_clears(script, step):
                yield [script.remove(statement), script.insert_before(rare.body[0], script.lines(statement))]


def _rare_branches(script: Script, step: Step) -> Iterator[ast.If]:
    """The `if` with a count of steps in the innermost loop around a step that follows it: for logging."""
    for loop in loops(script, step.statement)[:1]:
        for statement in loop.body:
            if isinstance(statement, ast.If) and statement.lineno > step.statement.lineno:
                has_count = any(isinstance(node, ast.Mod) for node in ast.walk(statement.test))
                if has_count and statement.body[0].lineno > statement.lineno and not statement.orelse:
                    yield statement


# Stepping


@operator("stepping", "model-not-updated", "parameters-never-updated", "gradients-never-used")
def step_of_one_optimizer_removed(script: Script) -> Iterator[Sequence[Edit]]:
    """One of several optimizers never steps."""
    names = {step.optimizer for step in steps(script)}
    for name in dict.fromkeys(step.optimizer for step in steps(script)):
        if len(names) > 1 and not any(step.scaler for step in steps(script) if step.optimizer == name):
            yield _removed(script, [step.statement for step in steps(script) if step.optimizer == name])


@operator("stepping", "gradients-never-used")
def step_removed(script: Script) -> Iterator[Sequence[Edit]]:
    """The optimizer never steps."""
    all_steps = steps(script)
    if all_steps and len({step.optimizer for step in all_steps}) == 1 and not all_steps[0].scaler:
        yield _removed(script, [step.statement for step in all_steps])


@operator("stepping", "gradients-never-used", "run-stops-early", "gradients-lost")
def step_when_logging(script: Script) -> Iterator[Sequence[Edit]]:
    """The step is indented into the branch that prints the loss, so it runs only now and then."""
    for step in steps(script):
        if isinstance(script.statement(step.call), ast.Expr) and not step.scaler:
            for rare in _rare_branches(script, step):
                yield [script.remove(step.statement), script.insert_before(rare.body[0], script.lines(step.statement))]


@operator("stepping", "calls-in-wrong-order", "step-without-backward", "optimizer-changes-nothing")
def step_before_backward(script: Script) -> Iterator[Sequence[Edit]]:
    """The optimizer steps after the gradients are cleared and before the backward pass that computes them."""
    for step in steps(script):
        backward = backward_of(script, step)
        if not backward or step.scaler or script.block(backward.statement) is not script.block(step.statement):
            continue
        before = [entry for entry in _near_clears(script, step) if entry.lineno < backward.statement.lineno]
        # with gradients of another backward pass, the step would change weights that this one still needs: an error
        others = [
            entry
            for entry in backwards(script)
            if before and before[-1].lineno < entry.statement.lineno < backward.statement.lineno
        ]
        if before and not others:
            yield script.move_before(step.statement, backward.statement)


@operator("stepping")
def step_twice(script: Script) -> Iterator[Sequence[Edit]]:
    """The optimizer steps twice with the same gradients."""
    for step in steps(script):
        if not step.scaler and not step.call.args:
            yield [script.insert_after(step.statement, script.lines(step.statement))]


@operator("stepping", "gradients-never-used")
def step_after_loop(script: Script) -> Iterator[Sequence[Edit]]:
    """The step stands one indent too far left: it runs once after the loop over the batches."""
    for step in steps(script):
        around = loops(script, step.statement)
        backward = backward_of(script, step)
        outer = around[0] if around and not around[0].orelse else None
        is_in = outer and backward and outer in loops(script, backward.call) and _near_clears(script, step)
        if outer and is_in and not step.scaler:
            yield script.move_after(step.statement, outer)


@operator("stepping", "model-not-updated", "parameters-never-updated", "gradients-never-used")
def step_of_other_optimizer(script: Script) -> Iterator[Sequence[Edit]]:
    """One of two optimizers steps in the place of the other."""
    for step in steps(script):
        others = [
            other.optimizer for other in steps(script) if other.optimizer != step.optimizer and other.scaler == ""
        ]
        if others and not step.scaler and not step.call.args:
            assert isinstance(step.call.func, ast.Attribute)
            yield [script.replace(step.call.func.value, others[0])]


@operator("stepping", "optimizer-state-lost")
def optimizer_built_each_epoch(script: Script) -> Iterator[Sequence[Edit]]:
    """The optimizer is built again in each epoch, so its momentum is lost."""
    for optimizer in optimizers(script):
        is_plain = last_part(called(optimizer.call)) == "SGD" and not keyword(optimizer.call, "momentum")
        if is_plain and not schedulers(script):
            continue  # there is nothing to lose
        block = script.block(optimizer.statement)
        later = [entry for entry in block if entry.lineno > optimizer.statement.lineno]
        for loop in later:
            if isinstance(loop, ast.For) and any(True for name in _names(loop) if name == optimizer.name):
                yield [script.insert_before(loop.body[0], script.lines(optimizer.statement))]


def _names(node: ast.AST) -> Iterator[str]:
    for entry in ast.walk(node):
        if isinstance(entry, ast.Name | ast.Attribute):
            yield dotted(entry)


# Clipping


@operator("clipping", "calls-in-wrong-order", "clipping-has-no-effect")
def clip_before_backward(script: Script) -> Iterator[Sequence[Edit]]:
    """The gradients are clipped before the backward pass that computes them."""
    for _, statement in clips(script):
        region = scope(script, statement)
        for backward in reversed(backwards(script)):
            if scope(script, backward.call) is region and backward.statement.lineno < statement.lineno:
                if not backward.is_scaled:
                    yield script.move_before(statement, backward.statement)
                break


@operator("clipping", "calls-in-wrong-order", "clipping-has-no-effect")
def clip_after_step(script: Script) -> Iterator[Sequence[Edit]]:
    """The gradients are clipped after the step that used them."""
    for _, statement in clips(script):
        block = script.block(statement)
        for step in steps(script):
            anchor = ancestor_in_block(script, step.statement, block)
            if anchor is not None and anchor.lineno > statement.lineno:
                yield script.move_after(statement, anchor)
                break


@operator("clipping", "clipping-skips-gradients")
def clip_one_part(script: Script) -> Iterator[Sequence[Edit]]:
    """Only the gradients of one part of the model are clipped."""
    for call, _ in clips(script):
        expression = argument(call, 0, "parameters")
        model = parameters_of(expression)
        for part in parts(script, model, call)[-1:] if model and expression else ():
            yield [script.replace(expression, f"{model}{part}.parameters()")]  # type: ignore[arg-type]


@operator("clipping", "clipping-skips-gradients", "clipping-has-no-effect")
def clip_other_model(script: Script) -> Iterator[Sequence[Edit]]:
    """The gradients of another model are clipped."""
    clipped = [parameters_of(argument(call, 0, "parameters")) for call, _ in clips(script)]
    trained = [parameters_of(optimizer.parameters) for optimizer in optimizers(script)]
    for call, _ in clips(script):
        expression = argument(call, 0, "parameters")
        model = parameters_of(expression)
        others = [other for other in dict.fromkeys([*clipped, *trained]) if other and other != model]
        if expression is not None and model and model in trained and others:
            yield [script.replace(expression, f"{others[0]}.parameters()")]


@operator("clipping", "clipping-skips-gradients")
def clip_values_for_norm(script: Script) -> Iterator[Sequence[Edit]]:
    """Each value of the gradients is clipped with the limit that was meant for their norm."""
    for call, statement in clips(script):
        if called(call).endswith(("utils.clip_grad_norm_", "utils.clip_grad_norm")) and isinstance(statement, ast.Expr):
            limit = argument(call, 1, "max_norm")
            parameters = argument(call, 0, "parameters")
            if limit is not None and parameters is not None:
                function = called(call).rpartition(".")[0] + ".clip_grad_value_"
                yield [script.replace(call, f"{function}({script.source(parameters)}, {script.source(limit)})")]


@operator("clipping", "setting-changed")
def clip_limit_too_small(script: Script) -> Iterator[Sequence[Edit]]:
    """The limit for the norm of the gradients is a hundredth of the right one."""
    for call, _ in clips(script):
        limit = argument(call, 1, "max_norm")
        if isinstance(limit, ast.Constant) and isinstance(limit.value, int | float) and limit.value:
            yield [script.replace(limit, f"{limit.value / 100:g}")]
        elif isinstance(limit, ast.Name | ast.Attribute):
            yield [script.replace(limit, f"{script.source(limit)} / 100")]


@operator("clipping", "clipping-has-no-effect", "clipping-skips-gradients")
def clip_used_up_generator(script: Script) -> Iterator[Sequence[Edit]]:
    """Clipping gets the generator of parameters that the optimizer has already used up."""
    for call, _ in clips(script):
        expression = argument(call, 0, "parameters")
        for optimizer in optimizers(script):
            given = optimizer.parameters
            same_place = scope(script, call) is scope(script, optimizer.statement)
            if expression is None or given is None or not same_place or not isinstance(given, ast.Call):
                continue
            if parameters_of(expression) and script.source(given) == script.source(expression):
                yield [
                    script.insert_before(optimizer.statement, f"trainable = {script.source(given)}"),
                    script.replace(given, "trainable"),
                    script.replace(expression, "trainable"),
                ]


@operator("clipping", "clipping-has-no-effect")
def clip_each_micro_batch(script: Script) -> Iterator[Sequence[Edit]]:
    """The gradients are clipped after each micro-batch, and not only before the step."""
    for _, statement in clips(script):
        for branch, _ in accumulation_conditions(script):
            if ancestor_in_block(script, statement, branch.body) is statement:
                yield script.move_before(statement, branch)
                break


# Accumulation


def _accumulates(script: Script, loss_statement: ast.AST) -> bool:
    """Whether the script accumulates gradients: its steps are in a branch that counts, or a loop around the
    backward pass does not hold the step."""
    if any(True for _ in accumulation_conditions(script)):
        return True
    for backward in backwards(script):
        inner = loops(script, backward.call)[:1]
        same = [step for step in steps(script) if scope(script, step.call) is scope(script, backward.call)]
        if inner and same and not any(inner[0] in loops(script, step.call) for step in same):
            return True
    return False


def _divisions(script: Script) -> Iterator[tuple[ast.expr, ast.expr | ast.stmt, str]]:
    """Each division of a loss by the number of micro-batches: what is divided, the division, the divisor's text."""
    for backward in backwards(script):
        if not _accumulates(script, backward.statement):
            continue
        for value in [backward.loss, *loss_expressions(script, backward)]:
            if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Div):
                continue
            is_count = isinstance(value.right, ast.Constant) and value is backward.loss
            if dotted(value.right) or is_count:
                yield value.left, value, script.source(value.right)
        for node in script.walk(ast.AugAssign, inside=scope(script, backward.call)):
            assert isinstance(node, ast.AugAssign)
            is_division = isinstance(node.op, ast.Div) and dotted(node.value)
            if is_division and dotted(node.target) == dotted(backward.loss):
                yield node.target, node, script.source(node.value)


@operator("accumulation")
def loss_not_divided(script: Script) -> Iterator[Sequence[Edit]]:
    """The loss of a micro-batch is not divided by the number of micro-batches."""
    for divided, division, _ in _divisions(script):
        if isinstance(division, ast.stmt):
            yield [script.remove(division)]
        else:
            statement = script.statement(division)
            target = statement.targets[0] if isinstance(statement, ast.Assign) else None
            is_same = target is not None and script.source(divided) == script.source(target)
            yield [script.remove(statement) if is_same else script.replace(division, script.source(divided))]


@operator("accumulation", "micro-batches-weigh-differently")
def loss_divided_twice(script: Script) -> Iterator[Sequence[Edit]]:
    """The loss of a micro-batch is divided twice by the number of micro-batches."""
    for _, division, divisor in _divisions(script):
        if isinstance(division, ast.stmt):
            yield [script.insert_after(division, script.lines(division))]
        else:
            end = script.span(division)[1]
            yield [Edit(end, end, f" / {divisor}")]


@operator("accumulation", "run-stops-early", "micro-batches-weigh-differently")
def step_condition_off_by_one(script: Script) -> Iterator[Sequence[Edit]]:
    """The condition for a step counts from zero, so the first step comes after one micro-batch."""
    for _, comparison in accumulation_conditions(script):
        left, right = comparison.left, comparison.comparators[0]
        if not isinstance(left, ast.BinOp):
            continue
        if isinstance(left.left, ast.BinOp) and isinstance(left.left.op, ast.Add) and dotted(left.left.left):
            end = script.text.index("%", script.span(left.left)[1])
            yield [Edit(script.span(left)[0], end, script.source(left.left.left) + " ")]
        elif isinstance(right, ast.BinOp) and isinstance(right.op, ast.Sub):
            yield [script.replace(right, "0")]


@operator("accumulation", "run-stops-early")
def last_micro_batches_dropped(script: Script) -> Iterator[Sequence[Edit]]:
    """The micro-batches after the last full group of an epoch make no step."""
    for branch, comparison in accumulation_conditions(script):
        if (
            isinstance(branch.test, ast.BoolOp)
            and isinstance(branch.test.op, ast.Or)
            and comparison in branch.test.values
        ):
            yield [script.replace(branch.test, script.source(comparison))]


@operator("accumulation", "gradients-lost")
def cleared_at_each_micro_batch(script: Script) -> Iterator[Sequence[Edit]]:
    """The gradients are cleared at each micro-batch, so only the last one counts."""
    for step in steps(script):
        for backward in backwards(script):
            inner = loops(script, backward.call)[:1]
            statements = [
                entry for entry in _clears_of(script, step) if scope(script, entry) is scope(script, backward.call)
            ]
            branches = [branch for branch, _ in accumulation_conditions(script)]
            in_branch = any(ancestor_in_block(script, step.statement, branch.body) for branch in branches)
            outside = inner and inner[0] not in loops(script, step.statement)
            if (
                inner
                and statements
                and scope(script, step.call) is scope(script, backward.call)
                and (in_branch or outside)
            ):
                yield [
                    *_removed(script, statements),
                    script.insert_before(inner[0].body[0], script.lines(statements[0])),
                ]


@operator("accumulation")
def accumulate_context_removed(script: Script) -> Iterator[Sequence[Edit]]:
    """The library's context for accumulation is missing, so it steps at each micro-batch with a divided loss."""
    for node in script.walk(ast.With):
        assert isinstance(node, ast.With)
        heads = [item.context_expr for item in node.items]
        if len(heads) == 1 and isinstance(heads[0], ast.Call) and last_part(called(heads[0])) == "accumulate":
            yield [script.unwrap(node)]
