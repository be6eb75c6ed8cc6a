"""Mistakes in training on several ranks: samplers, averaging of gradients, process groups, wrappers and buffers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from benchmarks.mutants.operator import operator
from benchmarks.mutants.queries import (
    FUNCTIONS,
    argument,
    assignments,
    called,
    calls_of,
    clips,
    dotted,
    drop_keyword,
    functions,
    is_evaluation,
    keyword,
    last_part,
    loops,
    method_calls,
    origins,
    parameters_of,
    parts,
    receiver,
    scheduler_steps,
    scope,
    steps,
)
from benchmarks.mutants.script import Edit, Script


def _has_ranks(script: Script) -> bool:
    return "torch.distributed" in script.text or "DistributedSampler" in script.text or "get_rank" in script.text


def _calls(script: Script, *names: str) -> Iterator[ast.Call]:
    """The calls of functions with these last parts of their names."""
    for node in script.walk(ast.Call):
        assert isinstance(node, ast.Call)
        if last_part(called(node)) in names:
            yield node


RANK = re.compile(r"\b(local_rank|rank|dist\.get_rank\(\)|torch\.distributed\.get_rank\(\)|gpu_id)")

# Samplers


@operator("samplers", "same-order-every-epoch")
def set_epoch_removed(script: Script) -> Iterator[Sequence[Edit]]:
    """The sampler does not know the epoch, so the data comes in the same order in every epoch."""
    for call in method_calls(script, "set_epoch"):
        statement = script.statement(call)
        if isinstance(statement, ast.Expr) and statement.value is call and len(call.args) == 1:
            yield [script.remove(statement)]


@operator("samplers", "ranks-train-on-same-batch")
def sampler_for_one_rank(script: Script) -> Iterator[Sequence[Edit]]:
    """The sampler deals out the samples as if there were one rank, so all ranks get the same ones."""
    for call in _calls(script, "DistributedSampler"):
        replicas, rank = argument(call, 1, "num_replicas"), argument(call, 2, "rank")
        if keyword(call, "shuffle") and script.source(keyword(call, "shuffle").value) == "False":  # type: ignore[union-attr]
            continue  # an evaluation
        if rank is not None:
            yield [script.replace(rank, "0")]
        elif replicas is None and call.args:
            end = script.span(call.args[0])[1]
            yield [Edit(end, end, ", num_replicas=1, rank=0")]


@operator("samplers", "ranks-train-on-same-batch")
def sampler_not_passed(script: Script) -> Iterator[Sequence[Edit]]:
    """The loader gets no sampler, so each rank goes through all samples."""
    made = {name for name, value, _ in assignments(script) if "DistributedSampler(" in script.source(value)}
    for call in _calls(script, "DataLoader"):
        entry = keyword(call, "sampler")
        if entry is None or "shuffle=False" in script.source(entry.value):
            continue
        if dotted(entry.value) in made or "DistributedSampler(" in script.source(entry.value):
            edits = [script.replace(entry, "shuffle=True")]
            if not dotted(entry.value):
                uses = [use for use in method_calls(script, "set_epoch") if ".sampler" in receiver(use)]
                edits += [script.remove(script.statement(use)) for use in uses]
            shuffle = drop_keyword(script, call, "shuffle")
            yield [*edits, *([shuffle] if shuffle else [])]


@operator("samplers", "ranks-train-on-same-batch")
def seed_without_rank(script: Script) -> Iterator[Sequence[Edit]]:
    """All ranks draw their data with the same seed, and nothing else divides the data among them."""
    if _divides_data(script):
        return
    for node in script.walk(ast.Call):
        assert isinstance(node, ast.Call)
        seeds = node.args[:1] if last_part(called(node)) in ("manual_seed", "seed", "default_rng", "Random") else []
        is_generator = isinstance(node.func, ast.Attribute) and "Generator()" in script.source(node.func.value)
        seeds = (
            node.args[:1]
            if is_generator and isinstance(node.func, ast.Attribute) and node.func.attr == "manual_seed"
            else seeds
        )
        seeds = [*seeds, *(entry.value for entry in node.keywords if entry.arg == "seed")]
        for seed in seeds:
            if isinstance(seed, ast.BinOp) and isinstance(seed.op, ast.Add) and _has_ranks(script):
                sides = [side for side in (seed.left, seed.right) if not RANK.search(script.source(side))]
                if len(sides) == 1:
                    yield [script.replace(seed, script.source(sides[0]))]


def _divides_data(script: Script) -> bool:
    """Whether each rank takes its part of the data (or of the model, as the stages of a pipeline do)."""
    subscripts = (script.source(node.slice) for node in script.walk(ast.Subscript) if isinstance(node, ast.Subscript))
    ranges = (script.source(call) for call in _calls(script, "range"))
    return (
        "DistributedSampler" in script.text
        or any(RANK.match(text) for text in subscripts)
        or any(RANK.search(text) for text in ranges)
        or any(True for _ in _calls(script, "send", "recv", "isend", "irecv"))
    )


@operator("samplers", "ranks-train-on-same-batch")
def part_of_first_rank(script: Script) -> Iterator[Sequence[Edit]]:
    """All ranks take the part of the data that is meant for the first rank."""
    if not _has_ranks(script):
        return
    for node in script.walk(ast.Subscript):
        assert isinstance(node, ast.Subscript)
        if isinstance(script.statement(node), ast.FunctionDef) or is_evaluation(script, node):
            continue
        index = node.slice
        if isinstance(index, ast.Slice) and index.lower is not None and index.step is not None:
            if RANK.fullmatch(last_part(script.source(index.lower))):
                yield [script.replace(index.lower, "0")]
        elif isinstance(node.value, ast.Call) and last_part(called(node.value)) in ("chunk", "split", "tensor_split"):
            inside_model = any(isinstance(parent, ast.ClassDef) for parent in script.parents(node))
            of_samples = len(node.value.args) == 1 and not keyword(node.value, "dim")
            if RANK.fullmatch(script.source(index)) and of_samples and not inside_model:
                yield [script.replace(index, "0")]


# Averaging of gradients


def _averaging(script: Script) -> Iterator[ast.For]:
    """The loops over parameters that reduce their gradients over the ranks."""
    for node in script.walk(ast.For):
        assert isinstance(node, ast.For)
        text = script.source(node)
        if re.search(r"all_reduce\([^)]*\bgrad\b", text) and "parameters" in script.source(node.iter):
            yield node


@operator("gradient-averaging")
def gradients_summed(script: Script) -> Iterator[Sequence[Edit]]:
    """The gradients are summed over the ranks, and not averaged."""
    for loop in _averaging(script):
        for node in script.walk(ast.AugAssign, ast.Assign, ast.Expr, inside=loop):
            assert isinstance(node, ast.AugAssign | ast.Assign | ast.Expr)
            text = script.source(node)
            if re.search(r"\bgrad(\.data)?( /= | = .* / |\.div_\()", text) and "all_reduce" not in text:
                yield [script.remove(node)]
    for call in _calls(script, "all_reduce"):
        mode = argument(call, 1, "op")
        of_gradient = call.args and re.search(r"\bgrad", script.source(call.args[0]))
        if of_gradient and mode is not None and script.source(mode).endswith("ReduceOp.AVG"):
            yield [script.replace(mode, script.source(mode).replace("AVG", "SUM"))]


@operator("gradient-averaging", "gradients-differ-between-ranks", "ranks-diverged", "replicas-updated-differently")
def gradients_not_reduced(script: Script) -> Iterator[Sequence[Edit]]:
    """The gradients are not averaged over the ranks."""
    for loop in _averaging(script):
        function = scope(script, loop)
        if isinstance(function, FUNCTIONS):
            for call in calls_of(script, function):
                statement = script.statement(call)
                if isinstance(statement, ast.Expr) and statement.value is call:
                    yield [script.remove(statement)]
        if not isinstance(function, FUNCTIONS) or any(scope(script, step.call) is function for step in steps(script)):
            yield [script.remove(loop)]


@operator("gradient-averaging", "gradients-differ-between-ranks", "ranks-diverged")
def only_matrices_reduced(script: Script) -> Iterator[Sequence[Edit]]:
    """The gradients of biases and normalization layers are not averaged over the ranks."""
    for loop in _averaging(script):
        if isinstance(loop.target, ast.Name):
            skip = f"if {loop.target.id}.dim() < 2:\n    continue"
            yield [script.insert_before(loop.body[0], skip)]


@operator("gradient-averaging", "gradients-differ-between-ranks", "ranks-diverged")
def one_part_reduced(script: Script) -> Iterator[Sequence[Edit]]:
    """The gradients of one part of the model are averaged over the ranks, the others are not."""
    for loop in _averaging(script):
        model = parameters_of(loop.iter)
        for part in parts(script, model, loop)[-1:] if model else ():
            yield [script.replace(loop.iter, f"{model}{part}.parameters()")]


def _averaging_statements(script: Script) -> Iterator[ast.stmt]:
    """The statements of training steps that average the gradients: a loop, or a call of the function with the loop."""
    for loop in _averaging(script):
        function = scope(script, loop)
        if any(scope(script, step.call) is function for step in steps(script)):
            yield loop
        elif isinstance(function, FUNCTIONS):
            for call in calls_of(script, function):
                statement = script.statement(call)
                if isinstance(statement, ast.Expr) and statement.value is call:
                    yield statement


@operator("gradient-averaging", "calls-in-wrong-order", "ranks-diverged", "gradients-differ-between-ranks")
def gradients_reduced_after_step(script: Script) -> Iterator[Sequence[Edit]]:
    """The gradients are averaged over the ranks after the step that used them."""
    for statement in _averaging_statements(script):
        for step in steps(script):
            if step.statement.lineno > statement.lineno and script.block(step.statement) is script.block(statement):
                yield script.move_after(statement, step.statement)
                break


@operator("gradient-averaging", "calls-in-wrong-order")
def clipped_before_averaging(script: Script) -> Iterator[Sequence[Edit]]:
    """Each rank clips its own gradients before they are averaged."""
    for statement in _averaging_statements(script):
        for _, clip in clips(script):
            if clip.lineno > statement.lineno and script.block(clip) is script.block(statement):
                yield script.move_before(clip, statement)
                break


def _rank_name(script: Script, region: ast.stmt) -> str:
    """How the code at a place asks for its rank."""
    here = script.source(scope(script, region)) if isinstance(scope(script, region), FUNCTIONS) else script.text  # type: ignore[arg-type]
    if re.search(r"\brank\b *(,.*)?= |\(rank\b|\brank[,:)]|\brank ==", here):
        return "rank"
    return "dist.get_rank()" if "distributed as dist" in script.text else "torch.distributed.get_rank()"


@operator("gradient-averaging", "replicas-updated-differently", "ranks-diverged", "gradients-differ-between-ranks")
def only_first_rank_clips(script: Script) -> Iterator[Sequence[Edit]]:
    """Only the first rank clips the gradients."""
    # sharded gradients are clipped by a collective call, which must run on all ranks
    is_sharded = any(
        word in script.text for word in ("FSDP", "FullySharded", "fully_shard", "DTensor", "distribute_tensor")
    )
    if "torch.distributed" in script.text and not is_sharded:
        for call, statement in clips(script):
            if isinstance(statement, ast.Expr) and called(call).endswith("utils.clip_grad_norm_"):
                yield [script.wrap(f"if {_rank_name(script, statement)} == 0:", statement)]


@operator("gradient-averaging", "replicas-updated-differently", "ranks-diverged", "scheduler-rate-not-used")
def only_first_rank_steps_scheduler(script: Script) -> Iterator[Sequence[Edit]]:
    """Only the first rank steps the scheduler, so the ranks train with different rates."""
    if "torch.distributed" in script.text:
        for _, statement in scheduler_steps(script):
            yield [script.wrap(f"if {_rank_name(script, statement)} == 0:", statement)]


# Process groups


COLLECTIVES = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor",
    "all_to_all_single", "all_gather_object", "broadcast",
)  # fmt: skip


@operator(
    "process-groups", "collectives-for-different-purposes", "collective-calls-differ", "ranks-compute-different-results"
)
def group_not_passed(script: Script) -> Iterator[Sequence[Edit]]:
    """A collective call gets no group, so it runs over all ranks."""
    for call in _calls(script, *COLLECTIVES):
        edit = drop_keyword(script, call, "group")
        if edit and last_part(called(call)) in ("all_reduce", "broadcast"):
            yield [edit]


@operator(
    "process-groups", "collectives-for-different-purposes", "collective-calls-differ", "ranks-compute-different-results"
)
def other_group_passed(script: Script) -> Iterator[Sequence[Edit]]:
    """A collective call gets another group of the script."""
    groups = [keyword(call, "group") for call in _calls(script, *COLLECTIVES)]
    names = list(dict.fromkeys(dotted(group.value) for group in groups if group and dotted(group.value)))
    for group in groups:
        for other in names if group else ():
            here = scope(script, group)  # type: ignore[arg-type]
            is_local = other in {dotted(node) for node in ast.walk(here) if isinstance(node, ast.Name | ast.Attribute)}
            if group and is_local and other != dotted(group.value):
                yield [script.replace(group.value, other)]


@operator("process-groups", "ranks-compute-different-results", "gradients-combined-wrongly")
def maximum_for_sum(script: Script) -> Iterator[Sequence[Edit]]:
    """A collective call in the forward or backward pass takes the maximum of what it must sum."""
    for call in _calls(script, "all_reduce"):
        mode = argument(call, 1, "op")
        function = scope(script, call)
        in_pass = isinstance(function, FUNCTIONS) and function.name in ("forward", "backward")
        if in_pass and mode is None and call.args:
            end = script.span(call.args[0])[1]
            prefix = called(call).rpartition(".")[0]
            yield [Edit(end, end, f", op={prefix}.ReduceOp.MAX")]


@operator("process-groups", "ranks-compute-different-results", "ranks-diverged", "gradients-differ-between-ranks")
def result_not_reduced(script: Script) -> Iterator[Sequence[Edit]]:
    """The parts of a result that the ranks computed are not summed in the forward or backward pass."""
    for call in _calls(script, "all_reduce"):
        function = scope(script, call)
        statement = script.statement(call)
        in_pass = isinstance(function, FUNCTIONS) and function.name in ("forward", "backward")
        if in_pass and isinstance(statement, ast.Expr) and statement.value is call:
            yield [script.remove(statement)]


# The wrapper of replicas

DATA_PARALLEL = ("DDP", "DistributedDataParallel", "NativeDDP")


def _wrapped(script: Script) -> Iterator[tuple[str, ast.Call, ast.stmt]]:
    """The names of models behind a data-parallel wrapper, with the wrapper's call and statement."""
    for name, value, statement in assignments(script):
        if isinstance(value, ast.Call) and last_part(called(value)) in DATA_PARALLEL and value.args:
            yield name, value, statement


@operator("wrapper", "gradients-differ-between-ranks", "ranks-diverged", "replicas-updated-differently")
def forward_through_inner_module(script: Script) -> Iterator[Sequence[Edit]]:
    """The training step calls the module inside the wrapper, which then averages no gradients."""
    names = {name for name, _, _ in _wrapped(script)}
    for node in script.walk(ast.Call):
        assert isinstance(node, ast.Call)
        name = dotted(node.func)
        if name and names & origins(script, name, node) and not is_evaluation(script, node):
            end = script.span(node.func)[1]
            yield [Edit(end, end, ".module")]
    for node in script.walk(ast.Call):  # passed to a function that computes the loss
        assert isinstance(node, ast.Call)
        function = functions(script).get(called(node))
        for value in node.args if function and not is_evaluation(script, node) else ():
            if names & (origins(script, dotted(value), node) if dotted(value) else set()) and loops(script, node):
                end = script.span(value)[1]
                if not _mentions_wrapper(script, function):  # type: ignore[arg-type]
                    yield [Edit(end, end, ".module")]


def _mentions_wrapper(script: Script, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    text = script.source(function)
    return ".module" in text or "no_sync" in text or any(".step(" in line for line in text.splitlines())


@operator("wrapper", "gradients-differ-between-ranks", "ranks-diverged", "replicas-updated-differently")
def no_sync_everywhere(script: Script) -> Iterator[Sequence[Edit]]:
    """No micro-batch averages the gradients over the ranks, not even the last one of a step."""
    for node in script.walk(ast.IfExp):
        assert isinstance(node, ast.IfExp)
        for side in (node.body, node.orelse):
            if "no_sync" in script.source(side):
                yield [script.replace(node, script.source(side))]
    for node in script.walk(ast.Assign):
        assert isinstance(node, ast.Assign)
        target = node.targets[0]
        if isinstance(target, ast.Attribute) and target.attr in ("require_backward_grad_sync", "require_grad_sync"):
            yield [script.replace(node.value, "False")]


@operator("wrapper", "gradients-differ-between-ranks", "ranks-diverged", "replicas-start-differently")
def wrapper_missing(script: Script) -> Iterator[Sequence[Edit]]:
    """The model is not wrapped, so each rank trains a model of its own."""
    for name, call, statement in _wrapped(script):
        is_same = script.source(call.args[0]) == name
        edits = [script.remove(statement) if is_same else script.replace(call, script.source(call.args[0]))]
        for node in script.walk(ast.Attribute):
            assert isinstance(node, ast.Attribute)
            inner = dotted(node.value)
            if node.attr == "module" and inner and name in origins(script, inner, node):
                edits.append(script.replace(node, inner))
        if not any(word in script.text for word in ("no_sync", "Join(", "register_comm_hook")):
            yield edits


@operator("wrapper", "replicas-start-differently", "ranks-diverged")
def first_weights_not_broadcast(script: Script) -> Iterator[Sequence[Edit]]:
    """The ranks start with different weights, because the first rank does not broadcast its own."""
    for node in script.walk(ast.For):
        assert isinstance(node, ast.For)
        text = script.source(node)
        of_model = re.search(r"parameters\(\)|state_dict\(\)", script.source(node.iter))
        if not of_model or not re.search(r"broadcast\(", text):
            continue
        function = scope(script, node)
        is_helper = isinstance(function, FUNCTIONS) and len(function.body) < 4
        calls = list(calls_of(script, function)) if is_helper and isinstance(function, FUNCTIONS) else []
        statements = [script.statement(call) for call in calls]
        yield from ([script.remove(statement)] for statement in statements if isinstance(statement, ast.Expr))
        if not calls:
            yield [script.remove(node)]


@operator("wrapper", "ranks-diverged", "replica-changed-between-updates", "replicas-start-differently")
def loaded_on_first_rank_after_wrapping(script: Script) -> Iterator[Sequence[Edit]]:
    """Only the first rank loads the pretrained weights, and does so after the wrapper has synchronised the replicas."""
    for name, call, statement in _wrapped(script):
        inner = dotted(call.args[0])
        block = script.block(statement)
        for entry in block[: block.index(statement)]:
            load = entry.value if isinstance(entry, ast.Expr) else None
            is_load = isinstance(load, ast.Call) and last_part(called(load)) == "load_state_dict"
            if isinstance(load, ast.Call) and is_load and inner and receiver(load).startswith(inner):
                head = f"if {_rank_name(script, statement)} == 0:"
                text = f"{head}\n    {name}.module{script.source(load)[len(inner) :]}"
                yield [script.remove(entry), script.insert_after(statement, text)]


# Buffers


@operator("buffers", "buffers-differ-between-ranks")
def buffers_not_broadcast(script: Script) -> Iterator[Sequence[Edit]]:
    """Each rank keeps the statistics of its own batches, because the wrapper does not broadcast buffers."""
    if any(word in script.text for word in ("BatchNorm", "register_buffer", "resnet")):
        for _, call, _ in _wrapped(script):
            entry = keyword(call, "broadcast_buffers")
            end = script.span(call)[1]
            yield [
                script.replace(entry, "broadcast_buffers=False")
                if entry
                else Edit(end - 1, end, ", broadcast_buffers=False)")
            ]


@operator("buffers", "buffers-differ-between-ranks")
def batch_norm_not_synchronised(script: Script) -> Iterator[Sequence[Edit]]:
    """Batch norms are not converted, so each rank normalizes with its own statistics."""
    for call in _calls(script, "convert_sync_batchnorm"):
        statement = script.statement(call)
        if call.args and isinstance(statement, ast.Assign):
            text = script.source(call.args[0])
            is_same = text == script.source(statement.targets[0]) and statement.value is call
            yield [script.remove(statement) if is_same else script.replace(call, text)]


def _buffers(script: Script) -> Iterator[tuple[str, ast.expr, ast.Call, ast.Expr]]:
    """The statements `self.register_buffer("name", tensor)`: name, tensor, call and statement."""
    for call in method_calls(script, "register_buffer"):
        statement = script.statement(call)
        name, value = argument(call, 0, "name"), argument(call, 1, "tensor")
        if (
            isinstance(statement, ast.Expr)
            and isinstance(name, ast.Constant)
            and value is not None
            and receiver(call) == "self"
        ):
            yield str(name.value), value, call, statement


@operator("buffers", "checkpoint-incomplete", "load-did-not-restore")
def buffer_is_plain_attribute(script: Script) -> Iterator[Sequence[Edit]]:
    """A buffer is a plain attribute, so checkpoints lack it and moves of the model leave it behind."""
    for name, value, _, statement in _buffers(script):
        yield [script.replace(statement, f"self.{name} = {script.source(value)}")]


@operator("buffers", "checkpoint-incomplete", "load-did-not-restore")
def buffer_not_persistent(script: Script) -> Iterator[Sequence[Edit]]:
    """A buffer that the model updates is not persistent, so checkpoints lack it."""
    for name, _, call, _ in _buffers(script):
        writes = re.search(rf"self\.{name}(\.copy_|\.data|\[|\.mul_|\.add_|\.lerp_| [-+*/]?= )", script.text)
        if writes and not keyword(call, "persistent") and len(call.args) == 2:
            end = script.span(call)[1]
            yield [Edit(end - 1, end, ", persistent=False)")]


@operator("buffers")
def buffer_is_trained(script: Script) -> Iterator[Sequence[Edit]]:
    """A constant of the model is a parameter, so the optimizer changes it."""
    for name, value, _, statement in _buffers(script):
        uses = re.findall(rf"self\.{name}\b(.?[\w]*)", script.text)
        text = script.source(value)
        is_float = (
            any(word in text for word in ("rand", "zeros", "ones", "linspace", "exp", "sin", "eye", "cos"))
            or dotted(value) == "pe"
        )
        is_integer = any(word in text for word in ("long", "int", "bool", "tril", "mask", "triu")) or "mask" in name
        writes = re.search(rf"self\.{name}(\.\w+_\(|\[[^]]*\] [-+*/]?=| [-+*/]?= )", script.text)
        if uses and is_float and not is_integer and not writes:
            yield [script.replace(statement, f"self.{name} = nn.Parameter({text})")]
