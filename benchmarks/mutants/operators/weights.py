"""Operators on the initialization of weights, on shared modules and parameters, and on recurrent state."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from benchmarks.mutants.model_queries import (
    blocks,
    calls,
    constructor_of,
    function_name,
    mentions,
    module_kind,
    number,
    without_factor,
)
from benchmarks.mutants.operator import Mutants, operator
from benchmarks.mutants.queries import (
    assignments,
    dotted,
    is_evaluation,
    keyword,
    loops,
    method,
    method_calls,
    module_classes,
    scope,
)
from benchmarks.mutants.script import Edit, Script


def initializers(script: Script) -> Iterator[ast.FunctionDef]:
    """The functions that are applied to each module of a model: `self.apply(self._init_weights)`."""
    names = {dotted(call.args[0]).rpartition(".")[2] for call in method_calls(script, "apply") if len(call.args) == 1}
    for node in script.walk(ast.FunctionDef):
        if isinstance(node, ast.FunctionDef) and (
            node.name in names or re.search(r"init_?weights|weights_?init", node.name)
        ):
            yield node


def initializations(script: Script, *names: str) -> Iterator[ast.Call]:
    """The calls of functions of `nn.init`, and of methods such as `normal_` on the data of a weight."""
    for call in calls(script, *names):
        receiver = dotted(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        if receiver.endswith("init") or receiver.endswith(".data"):
            yield call


# Initialization


@operator("initialization", "parameter-skipped-at-initialization")
def initialization_skips_kind(script: Script) -> Mutants:
    """The initialization skips one kind of layer, which keeps the default of its constructor."""
    for function in initializers(script):
        for call in calls(script, "isinstance", inside=function):
            kinds = call.args[1] if len(call.args) == 2 else None
            if isinstance(kinds, ast.Tuple) and len(kinds.elts) >= 2 and not mentions(kinds.elts[-1], "Norm"):
                rest = [script.source(entry) for entry in kinds.elts[:-1]]
                yield [script.replace(kinds, rest[0] if len(rest) == 1 else f"({', '.join(rest)})")]
        for node in script.walk(ast.If, inside=function):
            assert isinstance(node, ast.If)
            branch = node.orelse[0] if len(node.orelse) == 1 else None
            # the initial weights of a norm layer are those of its constructor
            if isinstance(branch, ast.If) and not mentions(branch.test, "Norm"):
                yield [Edit(script.span(node.body[-1])[1], script.span(branch.body[-1])[1], "")]


@operator("initialization", "parameter-skipped-at-initialization")
def initialization_before_last_layer(script: Script) -> Mutants:
    """The weights are initialized before the last layer is made, which keeps the default of its constructor."""
    for call in method_calls(script, "apply"):
        statement = script.statement(call)
        init = scope(script, call)
        if not isinstance(statement, ast.Expr) or dotted(call.func) != "self.apply" or isinstance(init, ast.Module):
            continue
        layers = [
            made
            for name, value, made in assignments(script, init)
            if name.startswith("self.")
            and _makes_weights(value)
            and made.lineno < statement.lineno
            and made in init.body
        ]
        if len(layers) >= 2:
            yield script.move_before(statement, layers[-1])


def _makes_weights(value: ast.expr) -> bool:
    return any(
        isinstance(node, ast.Call) and function_name(node) in ("Linear", "Embedding", "Conv2d", "Conv1d")
        for node in ast.walk(value)
    )


@operator("initialization", "some-gradients-always-zero", "all-gradients-zero")
def weights_of_zeros(script: Script) -> Mutants:
    """The weights of a kind of layer are initialized with zeros, like its biases."""
    spread = ("normal_", "trunc_normal_", "uniform_", "xavier_uniform_", "xavier_normal_", "kaiming_normal_")
    for call in initializations(script, *spread, "kaiming_uniform_", "orthogonal_"):
        assert isinstance(call.func, ast.Attribute)
        base = script.source(call.func.value)
        if base.endswith(".data"):
            yield [script.replace(call, f"{base}.zero_()")]
        elif call.args:
            yield [script.replace(call, f"{base}.zeros_({script.source(call.args[0])})")]


@operator("initialization")
def deviation_passed_as_mean(script: Script) -> Mutants:
    """`normal_` gets the standard deviation as its first number, which is the mean; the deviation is 1."""
    for call in initializations(script, "normal_", "trunc_normal_"):
        deviation = keyword(call, "std")
        mean = keyword(call, "mean")
        data = dotted(call.func).endswith(".data.normal_")
        tensor = "" if data else f"{script.source(call.args[0])}, " if len(call.args) == 1 else None
        if deviation is not None and tensor is not None and (mean is None or number(mean.value) == 0):
            yield [script.replace(call, f"{script.source(call.func)}({tensor}{script.source(deviation.value)})")]


@operator("initialization", "parameters-treated-differently", "layers-start-alike")
def same_seed_for_each_layer(script: Script) -> Mutants:
    """The seed is set in the constructor of a layer, so all layers start with the same weights."""
    classes = module_classes(script)
    names = [dotted(call.func) for _, call, _ in blocks(script)]
    for name in dict.fromkeys(names):
        init = method(classes[name], "__init__") if name in classes else None
        supers = [node for node in init.body if "super" in script.source(node)] if init else []
        if supers and re.search(r"^import torch\b", script.text, re.MULTILINE):
            yield [script.insert_after(supers[0], "torch.manual_seed(0)")]


@operator("initialization", "weights-initialized-repeatedly", "load-did-not-restore")
def initialization_after_load(script: Script) -> Mutants:
    """The weights are initialized again after the checkpoint was loaded."""
    functions = list(initializers(script))
    for call in method_calls(script, "load_state_dict"):
        statement = script.statement(call)
        assert isinstance(call.func, ast.Attribute)
        model = dotted(call.func.value)
        if (
            not isinstance(statement, ast.Expr | ast.Assign)
            or re.search(r"optim|sched|scaler|opt\b", model)
            or not model
        ):
            continue
        for function in functions:
            owner = function.parent  # type: ignore[attr-defined]
            if isinstance(owner, ast.ClassDef):
                made = constructor_of(script, model, call)
                if made is None or dotted(made.func) != owner.name:
                    continue
                yield [script.insert_after(statement, f"{model}.apply({model}.{function.name})")]
            elif isinstance(owner, ast.Module):
                yield [script.insert_after(statement, f"{model}.apply({function.name})")]


@operator("initialization")
def embedding_not_scaled(script: Script) -> Mutants:
    """The embeddings are not multiplied by the square root of their size."""
    for node in script.walk(ast.BinOp):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            for factor, other in ((node.right, node.left), (node.left, node.right)):
                embeds = isinstance(other, ast.Call) and (
                    module_kind(script, other) == "Embedding" or mentions(other, "emb")
                )
                if (
                    embeds
                    and re.search(r"sqrt|\*\* ?0\.5|scale", script.source(factor))
                    and (edit := without_factor(script, factor))
                ):
                    yield [edit]


# Tying


def ties(script: Script) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Both sides of the statements `self.head.weight = self.embedding.weight`."""
    for node in script.walk(ast.Assign):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = dotted(node.targets[0]), dotted(node.value)
            if target.endswith(".weight") and value.endswith(".weight") and target != value:
                yield node.targets[0], node.value


@operator("tying")
def tied_weight_copied(script: Script) -> Mutants:
    """The output layer gets a copy of the embedding's weight, so the two are not tied."""
    for _, value in ties(script):
        parameter = "nn.Parameter" if re.search(r"\bnn\.", script.text) else "torch.nn.Parameter"
        yield [script.replace(value, f"{parameter}({script.source(value)}.clone())")]


@operator("tying")
def tied_by_data(script: Script) -> Mutants:
    """Only the memory of the tied weights is shared, so they are two parameters and the optimizer updates it twice."""
    for target, value in ties(script):
        yield [
            script.replace(target, f"{script.source(target)}.data"),
            script.replace(value, f"{script.source(value)}.data"),
        ]


@operator("tying", "wrong-number-of-layers")
def layers_are_one_module(script: Script) -> Mutants:
    """The list of layers holds one module several times, so all layers share their weights."""
    for node, call, source in blocks(script):
        index = dotted(node.generators[0].target)
        if len(source.args) != 1 or (index and mentions(call, rf"^{index}$")):
            continue
        outer = next(script.parents(node))
        if isinstance(outer, ast.Starred) or (isinstance(outer, ast.Call) and function_name(outer) == "ModuleList"):
            text = f"[{script.source(call)}] * {script.source(source.args[0])}"
            if isinstance(source.args[0], ast.BinOp):
                text = f"[{script.source(call)}] * ({script.source(source.args[0])})"
            if isinstance(outer, ast.Starred) and isinstance(node, ast.GeneratorExp):
                text = f"({text})"
            start, end = script.span(node)
            in_call = isinstance(node, ast.GeneratorExp) and isinstance(outer, ast.Call) and script.text[start] == "("
            if in_call:  # the only argument of a call: its span has the parentheses of the call
                text = f"({text})"
            yield [Edit(start, end, text)]


@operator("tying", "parameters-never-updated", "heads-are-one-module")
def second_module_is_first(script: Script) -> Mutants:
    """A line that should make a second module assigns the first one, so both share their weights."""
    classes = module_classes(script)
    shared_norms: list[Edit] = []  # their weights differ little, so these come last
    made: list[tuple[str, ast.Call, ast.AST]] = []
    for name, value, statement in assignments(script):
        core = value
        while isinstance(core, ast.Call) and isinstance(core.func, ast.Attribute) and core.func.attr in ("to", "cuda"):
            core = core.func.value
        if not isinstance(core, ast.Call) or not (
            dotted(core.func) in classes
            or re.fullmatch(r"(torch\.)?nn\.(Linear|Embedding|LayerNorm|Conv\dd)", dotted(core.func))
        ):
            continue
        block = statement.parent  # type: ignore[attr-defined]
        for first, call, place in made:
            if place is block and script.source(call) == script.source(value) and first != name:
                if "Norm" in script.source(value):
                    shared_norms.append(script.replace(value, first))
                else:
                    yield [script.replace(value, first)]
                break
        if isinstance(value, ast.Call) and isinstance(statement, ast.Assign) and statement.value is value:
            made.append((name, value, block))
    for edit in shared_norms:
        yield [edit]


# State


@operator("state")
def hidden_state_not_carried(script: Script) -> Mutants:
    """The hidden state of a chunk is not carried to the next, so each chunk starts from the first state."""
    for node in script.walk(ast.Assign):
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Tuple) or not loops(script, node):
            continue
        if not isinstance(node.value, ast.Call) or is_evaluation(script, node):
            continue
        given = {dotted(entry) for entry in node.value.args}
        for entry in node.targets[0].elts[1:]:
            if isinstance(entry, ast.Name) and entry.id in given and re.search(r"^h\d?$|hid|state|mem", entry.id):
                yield [script.replace(entry, "_")]


@operator("state")
def hidden_state_set_each_chunk(script: Script) -> Mutants:
    """The hidden state is set to zeros for each chunk instead of once for each epoch."""
    for name, value, statement in assignments(script):
        if not isinstance(value, ast.Call) or not re.search(
            r"init_?hidden|init_?state|zero_state", function_name(value)
        ):
            continue
        if is_evaluation(script, statement) or not isinstance(statement, ast.Assign):
            continue
        block = script.block(statement)
        for later in block[block.index(statement) + 1 :]:
            if isinstance(later, ast.For) and mentions(later, rf"^{re.escape(name)}$"):
                yield script.move_before(statement, later.body[0])
                break


@operator("state")
def hidden_state_not_reset(script: Script) -> Mutants:
    """The hidden state is made once before the first epoch, so each epoch starts with the last state of another."""
    for name, value, statement in assignments(script):
        around = loops(script, statement)
        if not around or not isinstance(value, ast.Call) or is_evaluation(script, statement):
            continue
        carried = any(other == name and place is not statement for other, _, place in assignments(script, around[0]))
        makes = re.search(r"init_?hidden|init_?state|zero_state|zeros", function_name(value))
        if (
            carried
            and makes
            and re.search(r"^h\d?$|hid|state|memory", name.rpartition(".")[2])
            and not mentions(value, rf"^({'|'.join(map(re.escape, _bound(around[0])))})$")
        ):
            yield script.move_before(statement, around[0])


def _bound(loop: ast.For | ast.AsyncFor | ast.While) -> list[str]:
    """The names that a loop binds."""
    nodes = [node for node in ast.walk(loop) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    return [node.id for node in nodes] or [""]


@operator("targets", "average-does-not-average")
def target_is_network_itself(script: Script) -> Mutants:
    """The target network or moving average is the network itself: `copy.deepcopy` is missing."""
    for call in calls(script, "deepcopy"):
        statement = script.statement(call)
        if isinstance(statement, ast.Assign) and call.args and dotted(call.args[0]):
            target = dotted(statement.targets[0])
            if (
                re.search(r"target|teacher|ema|ref|old|key|slow|averag|shadow", target.rpartition(".")[2])
                and "requires_grad_" not in script.source(statement)
                and "eval()" not in script.source(statement)
            ):
                yield [script.replace(call, script.source(call.args[0]))]
