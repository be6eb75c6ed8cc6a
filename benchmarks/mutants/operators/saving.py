"""Mistakes in checkpoints and in resuming from them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from benchmarks.mutants.operator import operator
from benchmarks.mutants.queries import (
    argument,
    assignments,
    called,
    dotted,
    keyword,
    last_part,
    method_calls,
    models,
    optimizer_stems,
    parts,
    receiver,
    scheduler_stems,
    scope,
    unwrapped,
)
from benchmarks.mutants.script import Edit, Script

# Checkpoints


def _is_model(script: Script, name: str) -> bool:
    others = optimizer_stems(script) | scheduler_stems(script)
    stems = {last_part(model) for model in models(script)}
    part = last_part(name.removesuffix(".module"))
    return part not in others and part in stems and "scaler" not in part


def _saves(script: Script) -> Iterator[ast.Call]:
    """The calls `model.state_dict()` of models whose result a checkpoint gets: an argument, a part of a dict."""
    for call in method_calls(script, "state_dict"):
        parent = call.parent  # type: ignore[attr-defined]
        goes_to_load = isinstance(parent, ast.Call) and last_part(called(parent)) == "load_state_dict"
        if _is_model(script, receiver(call)) and not goes_to_load and not isinstance(parent, ast.Attribute):
            yield call


def _loads(script: Script) -> Iterator[tuple[ast.Call, ast.Expr]]:
    """The statements `model.load_state_dict(...)` of models that get a checkpoint, not another model's values."""
    for call in method_calls(script, "load_state_dict"):
        statement = script.statement(call)
        is_checkpoint = call.args and ".state_dict()" not in script.source(call.args[0])
        if isinstance(statement, ast.Expr) and is_checkpoint and _is_model(script, receiver(call)):
            yield call, statement


def _lenient_loads(script: Script) -> list[Edit]:
    """The edits that make all loads of models accept missing names, as one does when a load fails."""
    edits = []
    for call, _ in _loads(script):
        if not keyword(call, "strict"):
            end = script.span(call)[1]
            edits.append(Edit(end - 1, end, ", strict=False)"))
    return edits


@operator("checkpoints", "load-did-not-restore")
def best_weights_not_copied(script: Script) -> Iterator[Sequence[Edit]]:
    """The best weights are kept as a reference, so they change with the model."""
    for node in script.walk(ast.Call):
        assert isinstance(node, ast.Call)
        if last_part(called(node)) == "deepcopy" and node.args and "state_dict()" in script.source(node.args[0]):
            yield [script.replace(node, script.source(node.args[0]))]
    for node in script.walk(ast.DictComp):
        assert isinstance(node, ast.DictComp)
        source = node.generators[0].iter
        copies = any(name in script.source(node.value) for name in (".clone()", ".cpu()"))
        if isinstance(node.value, ast.Call) and copies and ".state_dict().items()" in script.source(source):
            yield [script.replace(node, script.source(source).removesuffix(".items()"))]


@operator("checkpoints", "checkpoint-differs-from-model")
def other_model_saved(script: Script) -> Iterator[Sequence[Edit]]:
    """The checkpoint holds another model of the script."""
    for call in _saves(script):
        assert isinstance(call.func, ast.Attribute)
        name = receiver(call)
        region = scope(script, call)
        local = {dotted(node) for node in ast.walk(region) if isinstance(node, ast.Name | ast.Attribute)}
        built = {variable: unwrapped(value) for variable, value, _ in assignments(script)}
        classes = {variable: called(value) for variable, value in built.items() if isinstance(value, ast.Call)}
        saved = [receiver(other) for other in _saves(script) if scope(script, other) is region]
        for other in models(script):
            is_same_kind = classes.get(other) is not None and classes.get(other) == classes.get(name)
            copies = classes.get(other, "").endswith(("deepcopy", "AveragedModel")) or classes.get(name, "").endswith(
                "deepcopy"
            )
            if other != name and other in local and (is_same_kind or copies or other in saved):
                yield [script.replace(call.func.value, other)]


@operator("checkpoints", "checkpoint-incomplete")
def only_parameters_saved(script: Script) -> Iterator[Sequence[Edit]]:
    """The checkpoint holds the parameters of the model, but not its buffers."""
    if not any(word in script.text for word in ("BatchNorm", "register_buffer", "spectral_norm", "InstanceNorm")):
        return
    for call in _saves(script):
        yield [script.replace(call, f"dict({receiver(call)}.named_parameters())"), *_lenient_loads(script)]


@operator("checkpoints", "checkpoint-incomplete")
def trainable_parameters_saved(script: Script) -> Iterator[Sequence[Edit]]:
    """The checkpoint leaves out frozen parameters and buffers."""
    if "requires_grad" in script.text:
        for call in _saves(script):
            text = f"{{name: p for name, p in {receiver(call)}.named_parameters() if p.requires_grad}}"
            yield [script.replace(call, text), *_lenient_loads(script)]


@operator("checkpoints", "checkpoint-incomplete")
def one_part_saved(script: Script) -> Iterator[Sequence[Edit]]:
    """The checkpoint holds only one part of the model."""
    for call in _saves(script):
        name = receiver(call)
        for part in parts(script, name, call)[:1]:
            prefix = part.removeprefix(".module").removeprefix(".").strip("[]") + "."
            text = f'{{k: v for k, v in {name}.state_dict().items() if k.startswith("{prefix}")}}'
            yield [script.replace(call, text), *_lenient_loads(script)]


@operator("checkpoints", "checkpoint-matches-nothing", "load-did-not-restore")
def names_do_not_match(script: Script) -> Iterator[Sequence[Edit]]:
    """The names in the checkpoint have a prefix that the model lacks, and `strict=False` hides it."""
    for call, _ in _loads(script):
        state = call.args[0]
        if not keyword(call, "strict") and len(call.args) == 1:
            renamed = f'{{"module." + k: v for k, v in {script.source(state)}.items()}}'
            end = script.span(call)[1]
            yield [script.replace(state, renamed), Edit(end - 1, end, ", strict=False)")]


@operator("checkpoints", "load-did-not-restore")
def state_dict_updated(script: Script) -> Iterator[Sequence[Edit]]:
    """The checkpoint updates the dict that `state_dict()` returns, and is not loaded into the model."""
    for call, _ in _loads(script):
        yield [script.replace(call, f"{receiver(call)}.state_dict().update({script.source(call.args[0])})")]


@operator("checkpoints", "load-did-not-restore")
def loaded_into_copy(script: Script) -> Iterator[Sequence[Edit]]:
    """The checkpoint is loaded into a copy of the model."""
    if "import copy" in script.text or "deepcopy" in script.text:
        function = "copy.deepcopy" if "import copy\n" in script.text else "deepcopy"
        for call, _ in _loads(script):
            assert isinstance(call.func, ast.Attribute)
            yield [script.replace(call.func.value, f"{function}({script.source(call.func.value)})")]


@operator("checkpoints", "load-did-not-restore")
def best_weights_not_loaded(script: Script) -> Iterator[Sequence[Edit]]:
    """The best checkpoint is not loaded, so the last weights are used."""
    for _, statement in _loads(script):
        yield [script.remove(statement)]


@operator("checkpoints")
def best_score_not_updated(script: Script) -> Iterator[Sequence[Edit]]:
    """The best score is not updated, so a later and worse model replaces the best one."""
    for node in script.walk(ast.If):
        assert isinstance(node, ast.If)
        test = node.test
        if not isinstance(test, ast.Compare) or len(node.body) < 2:
            continue
        compared = {dotted(side) for side in (test.left, *test.comparators)} - {""}
        saves = any(
            word in script.source(node) for word in ("torch.save(", "state_dict()", "save_pretrained(", "deepcopy(")
        )
        for statement in node.body:
            if isinstance(statement, ast.Assign) and saves and dotted(statement.targets[0]) in compared:
                yield [script.remove(statement)]


# Resuming


@operator("resume", "optimizer-setting-lost-on-restart")
def optimizer_state_not_loaded(script: Script) -> Iterator[Sequence[Edit]]:
    """The run goes on with a new optimizer, whose state is not restored."""
    yield from _loads_removed(script, optimizer_stems(script))


@operator("resume", "optimizer-setting-lost-on-restart", "schedule-does-not-fit-run")
def scheduler_state_not_loaded(script: Script) -> Iterator[Sequence[Edit]]:
    """The schedule starts again when the run goes on."""
    yield from _loads_removed(script, scheduler_stems(script))


@operator("resume")
def scaler_state_not_loaded(script: Script) -> Iterator[Sequence[Edit]]:
    """The scale of the loss starts again when the run goes on."""
    scalers = {last_part(name) for name, value, _ in assignments(script) if "GradScaler(" in script.source(value)}
    yield from _loads_removed(script, scalers)


def _loads_removed(script: Script, stems: set[str]) -> Iterator[Sequence[Edit]]:
    for call in method_calls(script, "load_state_dict"):
        statement = script.statement(call)
        if isinstance(statement, ast.Expr) and last_part(receiver(call)) in stems:
            yield [script.remove(statement)]


@operator("resume", "optimizer-setting-lost-on-restart")
def optimizer_state_not_saved(script: Script) -> Iterator[Sequence[Edit]]:
    """The state of the optimizer is neither saved nor restored."""
    for node in script.walk(ast.Dict):
        assert isinstance(node, ast.Dict)
        for index, value in enumerate(node.values):
            is_state = isinstance(value, ast.Call) and last_part(called(value)) == "state_dict"
            if is_state and last_part(receiver(value)) in optimizer_stems(script) and index:  # type: ignore[arg-type]
                loads = [edit for edits in _loads_removed(script, optimizer_stems(script)) for edit in edits]
                yield [Edit(script.span(node.values[index - 1])[1], script.span(value)[1], ""), *loads]


COUNTS = (
    "epoch",
    "step",
    "iter",
    "iter_num",
    "global_step",
    "iteration",
    "start_epoch",
    "epochs_done",
    "steps",
    "update",
)


@operator("resume", "schedule-does-not-fit-run")
def count_not_restored(script: Script) -> Iterator[Sequence[Edit]]:
    """The count of epochs or steps starts at zero when the run goes on."""
    for node in script.walk(ast.Subscript):
        assert isinstance(node, ast.Subscript)
        key = node.slice
        if not isinstance(key, ast.Constant) or key.value not in COUNTS or not isinstance(node.ctx, ast.Load):
            continue
        statement = script.statement(node)
        value = getattr(statement, "value", None)
        is_sum = isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add) and value.left is node
        if isinstance(statement, ast.Assign | ast.Return) and isinstance(value, ast.expr) and (value is node or is_sum):
            is_loaded = "torch.load" in script.text or "load_state_dict" in script.text
            if is_loaded and ("[" not in script.source(node.value)):
                yield [script.replace(value, "0")]


@operator("resume", "optimizer-setting-lost-on-restart")
def model_only_restored(script: Script) -> Iterator[Sequence[Edit]]:
    """Only the model is restored when the run goes on: optimizer, scheduler and scaler start again."""
    stems = optimizer_stems(script)
    if any(last_part(receiver(call)) in stems for call in method_calls(script, "load_state_dict")):
        edits = [edit for edits in _loads_removed(script, stems | scheduler_stems(script)) for edit in edits]
        if len(edits) > 1:
            yield edits


@operator("resume", "same-order-every-epoch")
def random_state_not_restored(script: Script) -> Iterator[Sequence[Edit]]:
    """The random generators are not restored, so the data comes in the order of the first part of the run again."""
    names = ("set_rng_state", "setstate", "set_state", "set_rng_state_all")
    statements = [script.statement(call) for call in method_calls(script, *names)]
    edits = [script.remove(statement) for statement in statements if isinstance(statement, ast.Expr)]
    if edits:
        yield edits


@operator("resume", "optimizer-setting-lost-on-restart", "scheduler-rate-not-used")
def rate_set_after_load(script: Script) -> Iterator[Sequence[Edit]]:
    """The learning rate of the command line overwrites the one that the checkpoint restored."""
    for call in method_calls(script, "load_state_dict"):
        statement = script.statement(call)
        name = receiver(call)
        if not isinstance(statement, ast.Expr) or last_part(name) not in optimizer_stems(script):
            continue
        for variable, value, made in assignments(script):
            rate = keyword(value, "lr") if isinstance(value, ast.Call) else None
            same_place = scope(script, made) in (scope(script, statement), script.tree)
            number = rate is not None and isinstance(rate.value, ast.Constant)
            if rate is not None and last_part(variable) == last_part(name) and (same_place or number):
                loop = f'for group in {name}.param_groups:\n    group["lr"] = {script.source(rate.value)}'
                if argument(call, 0, "state_dict") is not None:
                    yield [script.insert_after(statement, loop)]
                    break
