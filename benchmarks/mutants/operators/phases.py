"""Mistakes in what changes over a run: training and evaluation mode, and the learning rate schedule."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from benchmarks.mutants.operator import operator
from benchmarks.mutants.queries import (
    FUNCTIONS,
    Optimizer,
    Step,
    argument,
    arguments_for,
    called,
    calls_of,
    clears,
    depends_on_mode,
    dotted,
    is_evaluation,
    keyword,
    last_part,
    loops,
    method_calls,
    optimizers,
    parts,
    receiver,
    scheduler_steps,
    schedulers,
    scope,
    steps,
    trains,
)
from benchmarks.mutants.script import Edit, Script

# Modes


def _switches(script: Script, name: str) -> list[tuple[str, ast.Expr]]:
    """The statements `model.train()` or `model.eval()` outside of module methods, with the model."""
    matches = []
    for call in method_calls(script, name):
        statement = script.statement(call)
        is_switch = isinstance(statement, ast.Expr) and statement.value is call and not call.args and not call.keywords
        if is_switch and receiver(call) not in ("", "self", "super", "trainer", "optimizer"):
            assert isinstance(statement, ast.Expr)
            matches.append((receiver(call), statement))
    return matches


def _has_evaluation(script: Script) -> bool:
    """Whether the script puts a model into evaluation mode, or loads it in that mode."""
    return bool(_switches(script, "eval")) or ".from_pretrained(" in script.text


@operator("modes", "training-in-evaluation-mode")
def train_mode_not_restored(script: Script) -> Iterator[Sequence[Edit]]:
    """The model stays in evaluation mode after the first evaluation."""
    if not depends_on_mode(script) or not _has_evaluation(script):
        return
    evaluated = {last_part(name) for name, _ in _switches(script, "eval")}
    switches = _switches(script, "train")
    for name in dict.fromkeys(name for name, _ in switches):
        if last_part(name) in evaluated or ".from_pretrained(" in script.text:
            yield [script.remove(statement) for other, statement in switches if other == name]


@operator("modes", "training-in-evaluation-mode")
def train_mode_once(script: Script) -> Iterator[Sequence[Edit]]:
    """Training mode is set once before the epochs, and not after each evaluation."""
    if not depends_on_mode(script) or not _switches(script, "eval"):
        return
    switches = _switches(script, "train")
    for name, statement in switches:
        others = [script.remove(entry) for other, entry in switches if other == name and entry is not statement]
        around = loops(script, statement)
        if around:
            yield [*others, script.remove(statement), script.insert_before(around[-1], script.lines(statement))]
            continue
        function = scope(script, statement)
        if not isinstance(function, FUNCTIONS) or not trains(script, function):
            continue
        for call in calls_of(script, function):
            outer = loops(script, call)
            models = arguments_for(script, function, name) if "." not in name else []
            here = dotted(models[0]) if models else name if name.startswith("self.") else ""
            if outer and here:
                yield [*others, script.remove(statement), script.insert_before(outer[-1], f"{here}.train()")]
                break


@operator("modes", "training-in-evaluation-mode")
def evaluation_mode_for_training(script: Script) -> Iterator[Sequence[Edit]]:
    """The code of the training loop was copied from the evaluation, with its `eval()`."""
    if depends_on_mode(script):
        for _, statement in _switches(script, "train"):
            region = scope(script, statement)
            after = [step for step in steps(script) if scope(script, step.call) is region]
            if any(step.statement.lineno > statement.lineno for step in after):
                start = script.span(statement)[0]
                position = script.text.rindex(".train", start, script.span(statement)[1])
                yield [Edit(position, position + len(".train"), ".eval")]


@operator("modes", "training-in-evaluation-mode")
def train_mode_of_one_part(script: Script) -> Iterator[Sequence[Edit]]:
    """Only the last part of the model returns to training mode after an evaluation."""
    if not depends_on_mode(script) or not _switches(script, "eval"):
        return
    for name, statement in _switches(script, "train"):
        for part in parts(script, name, statement)[-1:]:
            yield [script.replace(statement, f"{name}{part}.train()")]


@operator("modes", "dropout-active-in-evaluation")
def evaluation_mode_missing(script: Script) -> Iterator[Sequence[Edit]]:
    """The model is evaluated in training mode."""
    if depends_on_mode(script):
        for _, statement in _switches(script, "eval"):
            yield [script.remove(statement)]


# Schedules


def _epoch_steps(script: Script) -> Iterator[tuple[str, ast.Expr, ast.For]]:
    """The scheduler steps that are made once per epoch, with the loop over the batches of the same function."""
    for name, statement in scheduler_steps(script):
        around = loops(script, statement)
        for step in steps(script):
            inner = loops(script, step.statement)
            if around and inner and inner[0] is not around[0] and around[0] in inner and isinstance(inner[0], ast.For):
                yield name, statement, inner[0]
                break


def _batch_steps(script: Script) -> Iterator[tuple[str, ast.Expr]]:
    """The scheduler steps that are made with each optimizer step."""
    for name, statement in scheduler_steps(script):
        around = loops(script, statement)
        for step in steps(script):
            if scope(script, step.call) is scope(script, statement) and loops(script, step.statement)[:1] == around[:1]:
                yield name, statement
                break


@operator("schedule", "schedule-does-not-fit-run")
def scheduler_never_stepped(script: Script) -> Iterator[Sequence[Edit]]:
    """The scheduler is never stepped, so the learning rate stays as it is."""
    entries = scheduler_steps(script)
    for name in dict.fromkeys(name for name, _ in entries):
        yield [script.remove(statement) for other, statement in entries if other == name]


@operator("schedule", "epoch-scheduler-stepped-per-batch", "schedule-does-not-fit-run")
def scheduler_stepped_per_batch(script: Script) -> Iterator[Sequence[Edit]]:
    """A scheduler that counts epochs is stepped after each batch."""
    for _, statement, loop in _epoch_steps(script):
        assert isinstance(statement.value, ast.Call)
        if not statement.value.args:
            for step in steps(script):
                if loop in loops(script, step.statement):
                    yield script.move_after(statement, step.statement)
                    break
    for name, statement in scheduler_steps(script):
        around = loops(script, statement)
        for step in _called_in(script, around[0]) if around else ():
            function = scope(script, step.call)
            edits = [script.remove(statement), script.insert_after(step.statement, script.lines(statement))]
            is_global = any(entry.name == name and entry.statement.col_offset == 0 for entry in schedulers(script))
            assert isinstance(function, FUNCTIONS)
            calls = list(calls_of(script, function))
            if statement.value.args:  # type: ignore[attr-defined]
                continue  # it gets the result of an evaluation, which is not there yet
            if name.startswith("self.") or is_global:
                yield edits
            elif len(calls) == 1 and calls[0].args and function.args.args and dotted(calls[0].func) == function.name:
                first, last = script.span(calls[0].args[0])[0], script.span(function.args.args[0])[0]
                yield [*edits, Edit(first, first, f"{name}, "), Edit(last, last, f"{name}, ")]


def _called_in(script: Script, loop: ast.AST) -> list[Step]:
    """The last steps of the functions with a loop over batches that a loop over epochs calls."""
    names = {last_part(called(node)) for node in ast.walk(loop) if isinstance(node, ast.Call)}
    last: dict[str, Step] = {}
    for step in steps(script):
        function = scope(script, step.call)
        if isinstance(function, FUNCTIONS) and function.name in names and loops(script, step.call):
            last[function.name] = step
    return list(last.values())


@operator("schedule", "schedule-does-not-fit-run")
def scheduler_stepped_per_epoch(script: Script) -> Iterator[Sequence[Edit]]:
    """A scheduler that counts batches is stepped once per epoch."""
    for _, statement in _batch_steps(script):
        around = loops(script, statement)
        if len(around) > 1 and isinstance(around[0], ast.For) and not around[0].orelse:
            yield script.move_after(statement, around[0])


@operator("schedule", "calls-in-wrong-order")
def scheduler_before_optimizer(script: Script) -> Iterator[Sequence[Edit]]:
    """The scheduler is stepped before the optimizer, which skips the first value of the schedule."""
    for _, statement in _batch_steps(script):
        before = [step for step in steps(script) if step.statement.lineno < statement.lineno]
        if before and script.block(before[-1].statement) is script.block(statement):
            yield script.move_before(statement, before[-1].statement)
    for _, statement, loop in _epoch_steps(script):
        assert isinstance(statement.value, ast.Call)
        if script.block(loop) is script.block(statement) and not statement.value.args:
            yield script.move_before(statement, loop)


TOTALS = ("T_max", "total_steps", "num_training_steps", "steps_per_epoch", "total_iters", "step_size", "t_initial")


@operator("schedule", "schedule-does-not-fit-run")
def total_steps_in_wrong_unit(script: Script) -> Iterator[Sequence[Edit]]:
    """The length of the schedule counts epochs in the place of batches, or leaves out the accumulation."""
    for scheduler in schedulers(script):
        kind = last_part(called(scheduler.call))
        for entry in scheduler.call.keywords:
            value = entry.value
            if entry.arg in TOTALS and isinstance(value, ast.BinOp) and dotted(value.left):
                shrinks = isinstance(value.op, ast.Mult)
                if not shrinks or kind != "OneCycleLR":  # which raises an error when it gets too many steps
                    yield [script.replace(value, script.source(value.left))]
    for scheduler in schedulers(script):
        for entry in scheduler.call.keywords:
            if entry.arg in TOTALS and isinstance(entry.value, ast.Name | ast.Attribute | ast.Constant):
                yield [script.replace(entry.value, f"{script.source(entry.value)} * 10")]


@operator("schedule", "schedule-does-not-fit-run", "scheduler-rate-not-used")
def warm_up_too_long(script: Script) -> Iterator[Sequence[Edit]]:
    """The warm-up is ten times too long."""
    for scheduler in schedulers(script):
        for name, position in (("num_warmup_steps", 1), ("warmup_t", -1), ("warmup_steps", -1)):
            value = argument(scheduler.call, position, name)
            entry = keyword(scheduler.call, name)
            if value is not None and (entry or last_part(called(scheduler.call)).startswith("get_")):
                if isinstance(value, ast.Constant) and not value.value:
                    continue
                source = script.source(value)
                yield [script.replace(value, f"({source}) * 10" if isinstance(value, ast.BinOp) else f"{source} * 10")]


@operator("schedule", "scheduler-rate-not-used")
def schedule_returns_rate(script: Script) -> Iterator[Sequence[Edit]]:
    """The function of a LambdaLR returns the learning rate, although the scheduler expects a factor of it."""
    rates = {last_part(optimizer.name): keyword(optimizer.call, "lr") for optimizer in optimizers(script)}
    for scheduler in schedulers(script):
        function = argument(scheduler.call, 1, "lr_lambda")
        owner = scheduler.parameters
        rate = rates.get(last_part(dotted(owner))) if owner is not None else None
        if last_part(called(scheduler.call)) != "LambdaLR" or function is None or rate is None:
            continue
        text = script.source(rate.value)
        if isinstance(function, ast.Lambda):
            yield [script.replace(function.body, f"{text} * ({script.source(function.body)})")]
        elif dotted(function):
            yield [script.replace(function, f"lambda step: {text} * {script.source(function)}(step)")]


@operator("schedule", "scheduler-rate-not-used")
def scheduler_of_other_optimizer(script: Script) -> Iterator[Sequence[Edit]]:
    """The scheduler was built with another optimizer."""
    built: list[Optimizer] = optimizers(script)
    for scheduler in schedulers(script):
        owner = scheduler.parameters
        near = [entry for entry in built if scope(script, entry.call) is scope(script, scheduler.call)]
        earlier = [entry for entry in near if entry.statement.lineno < scheduler.statement.lineno]
        others = [entry for entry in earlier if owner is not None and entry.name != dotted(owner)]
        if owner is not None and dotted(owner) in [entry.name for entry in near] and others:
            yield [script.replace(owner, others[0].name)]


def _rate_writes(script: Script) -> Iterator[tuple[ast.Assign, ast.Subscript]]:
    """The assignments `group["lr"] = ...`."""
    for node in script.walk(ast.Assign):
        assert isinstance(node, ast.Assign)
        target = node.targets[0]
        if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant) and target.slice.value == "lr":
            yield node, target


@operator("schedule", "scheduler-rate-not-used", "flag-without-effect")
def rate_written_to_unused_attribute(script: Script) -> Iterator[Sequence[Edit]]:
    """The new learning rate is written to `optimizer.lr`, which the optimizer does not read."""
    names = {last_part(entry.name) for entry in optimizers(script)} | {last_part(name) for name, _ in clears(script)}
    for node, target in _rate_writes(script):
        parent = node.parent  # type: ignore[attr-defined]
        value = script.source(node.value)
        groups = target.value
        if isinstance(parent, ast.For) and isinstance(parent.iter, ast.Attribute) and len(parent.body) == 1:
            if parent.iter.attr == "param_groups" and "group" not in value:
                yield [script.replace(parent, f"{script.source(parent.iter.value)}.lr = {value}")]
        elif isinstance(groups, ast.Subscript) and isinstance(groups.value, ast.Attribute):
            owner = groups.value.value
            if groups.value.attr == "param_groups" and last_part(dotted(owner)) in names:
                yield [script.replace(target, f"{script.source(owner)}.lr")]


@operator("schedule", "scheduler-rate-not-used")
def rate_of_first_group_only(script: Script) -> Iterator[Sequence[Edit]]:
    """The new learning rate is written to the first parameter group only."""
    groups = [entry for entry in optimizers(script) if isinstance(entry.parameters, ast.List | ast.Name)]
    for node, _ in _rate_writes(script):
        parent = node.parent  # type: ignore[attr-defined]
        is_loop = isinstance(parent, ast.For) and isinstance(parent.iter, ast.Attribute)
        if is_loop and parent.iter.attr == "param_groups" and (groups or "configure" in script.text):
            end = script.span(parent.iter)[1]
            yield [Edit(end, end, "[:1]")]


@operator("schedule")
def plateau_of_wrong_direction(script: Script) -> Iterator[Sequence[Edit]]:
    """A scheduler that waits for a plateau gets an accuracy, but takes lower values for better."""
    for scheduler in schedulers(script):
        mode = argument(scheduler.call, 1, "mode")
        if last_part(called(scheduler.call)) == "ReduceLROnPlateau" and isinstance(mode, ast.Constant):
            yield [script.replace(mode, {"max": '"min"', "min": '"max"'}.get(str(mode.value), '"min"'))]


@operator("schedule", "schedule-does-not-fit-run")
def scheduler_stepped_in_evaluation(script: Script) -> Iterator[Sequence[Edit]]:
    """The scheduler is stepped only when the model is evaluated or saved."""
    for _, statement in _batch_steps(script):
        block = script.block(statement)
        for entry in block[block.index(statement) + 1 :]:
            counts = isinstance(entry, ast.If) and any(isinstance(node, ast.Mod) for node in ast.walk(entry.test))
            if isinstance(entry, ast.If) and counts and not is_evaluation(script, entry):
                yield [script.remove(statement), script.insert_before(entry.body[0], script.lines(statement))]
                break
