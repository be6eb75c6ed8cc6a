"""Mistakes in which parameters are trained, and with which settings: freezing and parameter groups."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence

from benchmarks.mutants.operator import operator
from benchmarks.mutants.queries import (
    argument,
    assignments,
    called,
    dotted,
    drop_keyword,
    keyword,
    last_part,
    method,
    method_calls,
    module_classes,
    optimizers,
    parameters_of,
    parts,
    scope,
    unwrapped,
)
from benchmarks.mutants.script import Edit, Script

# Freezing


@operator("freezing", "backward-leaves-no-gradient", "optimizer-changes-nothing")
def part_frozen(script: Script) -> Iterator[Sequence[Edit]]:
    """The first part of the model is frozen, as one does for a pretrained one."""
    for optimizer in optimizers(script):
        model = parameters_of(optimizer.parameters)
        for part in parts(script, model, optimizer.call)[:1] if model else ():
            freeze = f"for param in {model}{part}.parameters():\n    param.requires_grad = False"
            yield [script.insert_before(optimizer.statement, freeze)]


def _freezes(script: Script) -> Iterator[tuple[ast.stmt, ast.expr, bool]]:
    """The statements that set `requires_grad` of parameters: statement, owner of the attribute, value."""
    for node in script.walk(ast.Assign):
        assert isinstance(node, ast.Assign)
        target = node.targets[0]
        is_constant = isinstance(node.value, ast.Constant) and isinstance(node.value.value, bool)
        if isinstance(target, ast.Attribute) and target.attr == "requires_grad" and is_constant:
            yield node, target.value, node.value.value  # type: ignore[attr-defined]
    for call in method_calls(script, "requires_grad_"):
        statement = script.statement(call)
        value = argument(call, 0, "requires_grad")
        if (
            isinstance(statement, ast.Expr)
            and statement.value is call
            and (value is None or isinstance(value, ast.Constant))
        ):
            assert isinstance(call.func, ast.Attribute)
            yield statement, call.func.value, value is None or bool(value.value)


def _whole(script: Script, statement: ast.stmt) -> ast.stmt:
    """The loop over parameters that a statement is the only one of, else the statement."""
    parent = statement.parent  # type: ignore[attr-defined]
    return parent if isinstance(parent, ast.For) and len(parent.body) == 1 else statement


@operator("freezing", "state-changed-between-steps", "setting-changed")
def freezing_removed(script: Script) -> Iterator[Sequence[Edit]]:
    """Parameters that must stay as they are, are trained."""
    for statement, owner, value in _freezes(script):
        if not value and _is_trained(script, statement, owner):
            yield [script.remove(_whole(script, statement))]


def _is_trained(script: Script, statement: ast.stmt, owner: ast.expr) -> bool:
    """Whether an optimizer may hold the parameters that a statement freezes: one gets the model by its name, or all
    parameters that require a gradient, or the frozen ones belong to a module of the script."""
    loop = _whole(script, statement)
    frozen = parameters_of(loop.iter) if isinstance(loop, ast.For) else dotted(owner)
    texts = [script.source(entry.parameters) for entry in optimizers(script) if entry.parameters is not None]
    root = frozen.partition(".")[0]
    return root in ("self", "") or any(root in text or "requires_grad" in text for text in texts)


@operator("freezing", "backward-leaves-no-gradient", "optimizer-changes-nothing", "setting-changed")
def unfreezing_removed(script: Script) -> Iterator[Sequence[Edit]]:
    """Parameters that must be trained stay frozen."""
    if any(not value for _, _, value in _freezes(script)):
        for statement, _, value in _freezes(script):
            if value:
                yield [script.remove(_whole(script, statement))]


@operator("freezing", "setting-changed", "flag-without-effect")
def requires_grad_misspelled(script: Script) -> Iterator[Sequence[Edit]]:
    """The attribute is called `require_grad`, which Python accepts and torch does not read."""
    for statement, owner, _ in _freezes(script):
        if isinstance(statement, ast.Assign) and dotted(owner) and _is_trained(script, statement, owner):
            yield [script.replace(statement.targets[0], f"{script.source(owner)}.require_grad")]


@operator("freezing", "setting-changed", "flag-without-effect")
def requires_grad_of_module(script: Script) -> Iterator[Sequence[Edit]]:
    """`requires_grad` is set as an attribute of the module, which changes none of its parameters."""
    for statement, owner, value in _freezes(script):
        loop = _whole(script, statement)
        if not _is_trained(script, statement, owner):
            continue
        if isinstance(loop, ast.For) and dotted(owner) == dotted(loop.target) and parameters_of(loop.iter):
            yield [script.replace(loop, f"{parameters_of(loop.iter)}.requires_grad = {value}")]
        elif isinstance(statement, ast.Expr) and dotted(owner) and not value:
            yield [script.replace(statement, f"{dotted(owner)}.requires_grad = False")]


@operator("freezing", "gradient-flow-stops", "weights-not-registered")
def parameter_is_plain_tensor(script: Script) -> Iterator[Sequence[Edit]]:
    """A tensor that must be learned is no `nn.Parameter`, so nothing trains it."""
    for module in module_classes(script).values():
        init = method(module, "__init__")
        for name, value, _ in assignments(script, init) if init else ():
            if isinstance(value, ast.Call) and last_part(called(value)) == "Parameter" and name.count(".") == 1:
                rest = script.text.replace(script.source(value), "")
                is_named = any(f"{name[5:]}{suffix}" in rest for suffix in (".requires_grad", ".grad"))
                frozen = keyword(value, "requires_grad")
                if len(value.args) == 1 and not frozen and not is_named:
                    yield [script.replace(value, script.source(value.args[0]))]


# Groups


@operator("groups", "model-not-updated", "parameters-never-updated")
def optimizer_of_one_part(script: Script) -> Iterator[Sequence[Edit]]:
    """The optimizer gets the parameters of one part of the model only."""
    for optimizer in optimizers(script):
        given = optimizer.parameters
        model = parameters_of(given)
        for part in reversed(parts(script, model, optimizer.call)) if model and given is not None else ():
            yield [script.replace(given, f"{model}{part}.parameters()")]  # type: ignore[arg-type]


@operator("groups", "model-not-updated", "parameters-never-updated")
def second_model_not_in_optimizer(script: Script) -> Iterator[Sequence[Edit]]:
    """The optimizer of two models gets the parameters of the first only."""
    for optimizer in optimizers(script):
        given: ast.expr | None = optimizer.parameters
        if isinstance(given, ast.Name):
            values = [value for name, value, _ in assignments(script, scope(script, given)) if name == given.id]
            given = values[-1] if values else given
        if isinstance(given, ast.BinOp) and isinstance(given.op, ast.Add):
            yield [script.replace(given, script.source(given.left))]
        elif isinstance(given, ast.Call) and last_part(called(given)) == "chain" and len(given.args) > 1:
            yield [script.replace(given, script.source(given.args[0]))]


def _groups(script: Script) -> Iterator[tuple[ast.List, list[ast.Dict]]]:
    """The lists of parameter groups."""
    for node in script.walk(ast.List):
        assert isinstance(node, ast.List)
        groups = [entry for entry in node.elts if isinstance(entry, ast.Dict) and "params" in _options(entry)]
        if len(groups) > 1 and len(groups) == len(node.elts):
            yield node, groups


def _options(group: ast.Dict) -> dict[str, ast.expr]:
    return {
        str(key.value): value
        for key, value in zip(group.keys, group.values, strict=True)
        if isinstance(key, ast.Constant)
    }


@operator("groups", "model-not-updated", "parameters-never-updated")
def group_missing(script: Script) -> Iterator[Sequence[Edit]]:
    """One of the parameter groups is missing."""
    for _, groups in _groups(script):
        for before, group in itertools.pairwise(groups):
            yield [Edit(script.span(before)[1], script.span(group)[1], "")]
        yield [Edit(script.span(groups[0])[0], script.span(groups[1])[0], "")]


@operator("groups", "setting-changed", "weight-decay-misplaced")
def settings_of_groups_swapped(script: Script) -> Iterator[Sequence[Edit]]:
    """The settings of two parameter groups are swapped."""
    for _, groups in _groups(script):
        first, second = _options(groups[0]), _options(groups[1])
        for name in ("weight_decay", "lr"):
            values = [group[name] for group in (first, second) if name in group]
            if len(values) == 2 and script.source(values[0]) != script.source(values[1]):
                yield [
                    script.replace(values[0], script.source(values[1])),
                    script.replace(values[1], script.source(values[0])),
                ]
            elif len(values) == 1:
                yield [
                    script.replace(first["params"], script.source(second["params"])),
                    script.replace(second["params"], script.source(first["params"])),
                ]


@operator("groups", "setting-changed", "weight-decay-misplaced")
def weight_decay_for_all(script: Script) -> Iterator[Sequence[Edit]]:
    """Biases and normalization layers get weight decay, too."""
    for _, groups in _groups(script):
        values = [_options(group).get("weight_decay") for group in groups]
        for value, other in zip(values, reversed(values), strict=True):
            if isinstance(value, ast.Constant) and not value.value and other is not None and other is not value:
                yield [script.replace(value, script.source(other))]


@operator("groups", "setting-changed")
def rate_of_group_lost(script: Script) -> Iterator[Sequence[Edit]]:
    """A parameter group has lost its own learning rate and uses that of the others."""
    for node, groups in _groups(script):
        call = node.parent  # type: ignore[attr-defined]
        has_default = not isinstance(call, ast.Call) or keyword(call, "lr") is not None or len(call.args) > 1
        for group in groups:
            value = _options(group).get("lr")
            if value is not None and has_default:
                keys = [key for key in group.keys if key is not None]
                index = group.values.index(value)
                if index:
                    yield [Edit(script.span(group.values[index - 1])[1], script.span(value)[1], "")]
                elif len(keys) > 1:
                    yield [Edit(script.span(keys[0])[0], script.span(keys[1])[0], "")]


@operator("groups", "setting-changed")
def weight_decay_lost(script: Script) -> Iterator[Sequence[Edit]]:
    """The optimizer is made without the weight decay of the recipe."""
    for optimizer in optimizers(script):
        entry = keyword(optimizer.call, "weight_decay")
        edit = drop_keyword(script, optimizer.call, "weight_decay")
        default = 0.01 if last_part(called(optimizer.call)) == "AdamW" else 0
        is_default = entry is not None and isinstance(entry.value, ast.Constant) and entry.value.value == default
        if edit and not is_default:
            yield [edit]


@operator("groups", "setting-changed")
def adam_for_adamw(script: Script) -> Iterator[Sequence[Edit]]:
    """Adam, whose weight decay is a term of the gradient, stands in the place of AdamW."""
    for optimizer in optimizers(script):
        function = optimizer.call.func
        from_torch = called(optimizer.call).startswith(("torch.optim.", "optim."))
        decay = keyword(optimizer.call, "weight_decay")
        without_decay = decay is not None and isinstance(decay.value, ast.Constant) and not decay.value.value
        if last_part(called(optimizer.call)) == "AdamW" and from_torch and not without_decay:
            end = script.span(function)[1]
            yield [Edit(end - 1, end, "")]


@operator("groups", "model-not-updated", "parameters-never-updated")
def layers_in_plain_list(script: Script) -> Iterator[Sequence[Edit]]:
    """Layers are kept in a Python list, and not in a ModuleList, so the model does not know their parameters."""
    for node in script.walk(ast.Call):
        assert isinstance(node, ast.Call)
        if last_part(called(node)) == "ModuleList" and not node.keywords:
            content = node.args[0] if node.args else None
            is_list = isinstance(content, ast.List | ast.ListComp)
            text = script.source(content) if content is not None else "[]"
            if isinstance(content, ast.GeneratorExp):
                text = text[1:-1] if text.startswith("(") else text
                text = f"[{text}]"
            elif content is not None and not is_list:
                text = f"list({text})"
            yield [script.replace(node, text)]


@operator(
    "groups",
    "optimizer-changes-nothing",
    "gradients-never-used",
    "model-not-updated",
    "weights-initialized-repeatedly",
)
def model_built_after_optimizer(script: Script) -> Iterator[Sequence[Edit]]:
    """The model is built again after the optimizer, which still holds the parameters of the first one."""
    for optimizer in optimizers(script):
        model = parameters_of(optimizer.parameters)
        block = script.block(optimizer.statement)
        built = [
            statement
            for name, value, statement in assignments(script, scope(script, optimizer.statement))
            if name == model and isinstance(unwrapped(value), ast.Call) and any(entry is statement for entry in block)
        ]
        before = [statement for statement in built if statement.lineno < optimizer.statement.lineno]
        names_itself = before and any(dotted(node) == model for node in _loads(before[-1]))
        is_scaled = "GradScaler" in script.text  # it raises an error when there are no gradients
        if before and not names_itself and not is_scaled:
            yield [script.insert_after(optimizer.statement, script.lines(before[-1]))]


def _loads(statement: ast.stmt) -> list[ast.expr]:
    return [
        node
        for node in ast.walk(statement)
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)
    ]
