"""Operators on the order of the data, the random state of loader workers, and augmentation."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from benchmarks.mutants.model_queries import (
    calls,
    epoch_loops,
    function_name,
    mentions,
    number,
    replace_argument,
    same,
    sample_methods,
    seeds_of_drawn,
    training_loaders,
)
from benchmarks.mutants.operator import Mutants, operator
from benchmarks.mutants.queries import (
    argument,
    assignments,
    dotted,
    drop_keyword,
    functions,
    is_evaluation,
    keyword,
    last_part,
    loops,
    method,
    scope,
)
from benchmarks.mutants.script import Edit, Script

# Order


@operator("data-order", "same-order-every-epoch")
def training_data_not_shuffled(script: Script) -> Mutants:
    """The training loader does not shuffle."""
    for _, call, _ in training_loaders(script):
        entry = keyword(call, "shuffle")
        if (
            entry is not None
            and isinstance(entry.value, ast.Constant)
            and entry.value.value is True
            and (edit := drop_keyword(script, call, "shuffle"))
        ):
            yield [edit]


@operator("data-order")
def inputs_shuffled_without_labels(script: Script) -> Mutants:
    """The inputs are shuffled and the labels are not, so each input gets the label of another."""
    if re.search(r"^import torch\b", script.text, re.MULTILINE):
        for call in calls(script, "TensorDataset"):
            if len(call.args) >= 2 and isinstance(call.args[0], ast.Name) and isinstance(call.args[1], ast.Name):
                if mentions(call.args[0], "test|val"):
                    continue
                name = call.args[0].id
                yield [script.replace(call.args[0], f"{name}[torch.randperm(len({name}))]")]
    for node in script.walk(ast.Subscript):
        order = node.slice if isinstance(node, ast.Subscript) else None
        if not isinstance(node, ast.Subscript) or not isinstance(order, ast.Subscript) or is_evaluation(script, node):
            continue
        if mentions(order.value, r"perm|shuffl|order|^idx$|indices") and isinstance(order.slice, ast.Slice):
            statement = script.statement(node)
            block = script.block(statement)
            others = [
                other
                for entry in block
                for other in script.walk(ast.Subscript, inside=entry)
                if isinstance(other, ast.Subscript) and same(other.slice, order) and not same(other, node)
            ]
            if others and script.span(others[0])[0] < script.span(node)[0]:
                yield [script.replace(order, script.source(order.slice))]


@operator("data-order", "same-order-every-epoch")
def permutation_drawn_once(script: Script) -> Mutants:
    """The permutation of the samples is drawn once before the first epoch."""
    for _, value, statement in assignments(script):
        around = loops(script, statement)
        if isinstance(value, ast.Call) and function_name(value) in ("randperm", "permutation") and around:
            bound = {
                node.id
                for node in ast.walk(around[-1])
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            }
            used = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
            if not bound & used and isinstance(statement, ast.Assign) and statement.value is value:
                yield script.move_before(statement, around[-1])


@operator("data-order", "same-order-every-epoch")
def first_batch_each_step(script: Script) -> Mutants:
    """Each step makes a new iterator of the loader and takes its first batch."""
    names = {last_part(name) for name, _, _ in training_loaders(script)}
    for node in script.walk(ast.For):
        assert isinstance(node, ast.For)
        source, target = node.iter, node.target
        if is_evaluation(script, node):
            continue
        if isinstance(source, ast.Call) and function_name(source) == "enumerate" and source.args:
            if not isinstance(target, ast.Tuple) or len(target.elts) != 2:
                continue
            source, counter, target = source.args[0], target.elts[0], target.elts[1]
        else:
            counter = None
        if not dotted(source) or not (
            last_part(dotted(source)) in names or re.search(r"train_?load|^loader$|dataloader", dotted(source))
        ):
            continue
        loader = script.source(source)
        head = f"{script.source(counter) if counter else '_'} in range(len({loader}))"
        yield [
            Edit(script.span(node.target)[0], script.span(node.iter)[1], head),
            script.insert_before(node.body[0], f"{script.source(target).strip('()')} = next(iter({loader}))"),
        ]


@operator("data-order")
def test_data_in_training(script: Script) -> Mutants:
    """The training set is the whole data set, with the samples of the test set."""
    for node in script.walk(ast.Assign):
        assert isinstance(node, ast.Assign)
        if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Call) and node.value.args:
            whole, portion = dotted(node.value.args[0]), dotted(node.targets[0].elts[0])
            if function_name(node.value) != "random_split" or not whole or not portion:
                continue
            for _, call, _ in training_loaders(script):
                data = argument(call, 0, "dataset")
                if data is not None and dotted(data) == portion:
                    yield [script.replace(data, whole)]
    slices = [
        node
        for node in script.walk(ast.Subscript)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice)
    ]
    edits: list[Edit] = []
    for node in slices:
        part = node.slice
        assert isinstance(part, ast.Slice)
        if part.lower is not None or part.upper is None or part.step is not None or number(part.upper) in (1, -1):
            continue
        held_out = [
            other
            for other in slices
            if isinstance(other.slice, ast.Slice)
            and other.slice.lower is not None
            and other.slice.upper is None
            and same(other.value, node.value)
            and same(other.slice.lower, part.upper)
        ]
        if held_out and dotted(node.value) and not is_evaluation(script, node) and not _in_method(script, node):
            edits.append(script.replace(node, script.source(node.value)))
    if edits:
        yield edits


def _in_method(script: Script, node: ast.AST) -> bool:
    """Whether `node` stands in a method, as of a model or a data set."""
    return any(isinstance(parent, ast.ClassDef) for parent in script.parents(node))


@operator("data-order", "same-order-every-epoch")
def seed_set_each_epoch(script: Script) -> Mutants:
    """The seed is set at the start of each epoch, so all epochs see the same order and the same noise."""
    seeds = [call for call in calls(script, "manual_seed") if dotted(call.func) == "torch.manual_seed"]
    for loop in epoch_loops(script):
        for seed in seeds:
            place = scope(script, seed)
            visible = place is scope(script, loop) or place is script.tree
            if visible and seed.lineno < loop.lineno and not is_evaluation(script, loop):
                yield [script.insert_before(loop.body[0], script.source(seed))]
                break


@operator("data-order", "computation-differs")
def batch_slice_too_short(script: Script) -> Mutants:
    """The slice of a batch ends one sample too early, so some samples are never used."""
    for node in script.walk(ast.Slice):
        if not isinstance(node, ast.Slice) or node.lower is None or node.upper is None or is_evaluation(script, node):
            continue
        upper = node.upper
        if isinstance(upper, ast.BinOp) and isinstance(upper.op, ast.Add) and mentions(upper.right, r"batch|^bs$|^B$"):
            if same(upper.left, node.lower) and loops(script, node):
                yield [script.replace(upper, f"{script.source(upper)} - 1")]
        elif (
            isinstance(upper, ast.BinOp)
            and isinstance(upper.op, ast.Mult)
            and mentions(upper, r"batch|^bs$|^B$")
            and loops(script, node)
            and "+ 1" in script.source(upper)
        ):
            yield [script.replace(upper, f"{script.source(upper)} - 1")]


# Workers


def random_data_sets(script: Script) -> Iterator[tuple[ast.FunctionDef, list[str]]]:
    """The methods `__getitem__` that draw random numbers, with the functions that seed their generators."""
    for node in sample_methods(script):
        if seeds := seeds_of_drawn(script, node):
            yield node, seeds


def uses_workers(call: ast.Call) -> bool:
    """Whether a loader has worker processes."""
    entry = keyword(call, "num_workers")
    double_star = any(other.arg is None for other in call.keywords)
    return double_star or (entry is not None and number(entry.value) != 0)


@operator("worker-seeds", "workers-share-random-state")
def workers_with_one_seed(script: Script) -> Mutants:
    """Each loader worker seeds its generator with the same number."""
    for _, seeds in random_data_sets(script):
        for _, call, _ in training_loaders(script):
            if not uses_workers(call):
                continue
            entry = keyword(call, "worker_init_fn")
            function = functions(script).get(dotted(entry.value)) if entry is not None else None
            if function is not None:
                constants = [
                    other
                    for other in script.walk(ast.Call, inside=function)
                    if isinstance(other, ast.Call) and function_name(other) in ("seed", "manual_seed") and other.args
                ]
                if constants:
                    yield [script.replace(other.args[0], "42") for other in constants]
            elif entry is None:
                yield [replace_argument(script, call, 99, "worker_init_fn", f"lambda worker: {seeds[0]}(42)")]


@operator("worker-seeds", "workers-share-random-state")
def seed_set_for_each_sample(script: Script) -> Mutants:
    """The data set seeds the generator for each sample, so all samples are augmented in the same way."""
    for node, seeds in random_data_sets(script):
        yield [script.insert_before(node.body[0], f"{seeds[0]}(42)")]


GENERATOR_METHODS = {
    "randint": "integers", "randn": "standard_normal", "rand": "random", "random": "random", "uniform": "uniform",
    "normal": "normal", "choice": "choice", "permutation": "permutation",
}  # fmt: skip


@operator("worker-seeds", "workers-share-random-state")
def generator_copied_to_workers(script: Script) -> Mutants:
    """The data set holds a random generator, of which each worker gets a copy in the same state."""
    if not any(uses_workers(call) for _, call, _ in training_loaders(script)):
        return
    for node, _ in random_data_sets(script):
        owner = node.parent  # type: ignore[attr-defined]
        init = method(owner, "__init__") if isinstance(owner, ast.ClassDef) else None
        if init is None:
            continue
        edits = []
        for call in script.walk(ast.Call, inside=owner):
            assert isinstance(call, ast.Call)
            prefix, _, name = dotted(call.func).rpartition(".")
            if prefix == "np.random" and name in GENERATOR_METHODS and call not in ast.walk(init):
                method_name = f"self.rng.{GENERATOR_METHODS[name]}"
                sizes = ", ".join(script.source(entry) for entry in call.args)
                if name in ("randn", "rand") and (len(call.args) > 1 or "*" in sizes):
                    comma = "," if len(call.args) == 1 else ""
                    edits.append(script.replace(call, f"{method_name}(({sizes}{comma}))"))
                else:
                    edits.append(script.replace(call.func, method_name))
        if edits:
            yield [script.insert_after(init.body[-1], "self.rng = np.random.default_rng(0)"), *edits]


# Augmentation


@operator("augmentation")
def evaluation_augmented(script: Script) -> Mutants:
    """The evaluation data is augmented like the training data."""
    for node in script.walk(ast.Call):
        assert isinstance(node, ast.Call)
        for name in ("augment", "augmentation", "train", "training", "is_train"):
            entry = keyword(node, name)
            if (
                entry is not None
                and isinstance(entry.value, ast.Constant)
                and entry.value.value is False
                and name.startswith("aug")
                and function_name(node)[:1].isupper()
            ):
                yield [script.replace(entry.value, "True")]
        entry = keyword(node, "transform")
        if entry is not None and isinstance(entry.value, ast.Name) and re.search(r"test|val|eval", entry.value.id):
            other = re.sub(r"test|val(idation)?|eval", "train", entry.value.id)
            if any(name == other for name, _, _ in assignments(script)):
                yield [script.replace(entry.value, other)]


@operator("augmentation")
def target_not_augmented(script: Script) -> Mutants:
    """An augmentation moves the input but not its mask or target."""
    for node in script.walk(ast.Assign):
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Tuple):
            continue
        values = node.value.elts if isinstance(node.value, ast.Tuple) else []
        names = node.targets[0].elts
        if len(values) != 2 or len(names) != 2 or not all(isinstance(value, ast.Call) for value in values):
            continue
        first, second = values
        assert isinstance(first, ast.Call) and isinstance(second, ast.Call)
        library = dotted(first.func).partition(".")[0] in ("np", "torch", "TF", "F", "functional", "self", "transform")
        if (
            library
            and same(first.func, second.func)
            and first.args
            and second.args
            and same(names[1], second.args[0])
            and [ast.dump(entry) for entry in first.args[1:]] == [ast.dump(entry) for entry in second.args[1:]]
            and same(names[0], first.args[0])
        ):
            yield [script.replace(node, f"{script.source(names[0])} = {script.source(first)}")]


@operator("augmentation")
def scaled_twice(script: Script) -> Mutants:
    """The pixels are divided by their largest value twice."""
    for node in script.walk(ast.BinOp):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(node.right, ast.Constant):
            images = mentions(node.left, r"image|pixel|^x|data|img|frames|obs|digits")
            if number(node.right) in (255, 255.0, 16, 16.0, 256, 256.0) and images:
                yield [script.replace(node, f"{script.source(node)} / {script.source(node.right)}")]


@operator("augmentation")
def evaluation_not_normalized(script: Script) -> Mutants:
    """The evaluation data lacks the normalization of the training data."""
    composed = [
        (name, value)
        for name, value, _ in assignments(script)
        if isinstance(value, ast.Call) and function_name(value) == "Compose" and re.search(r"test|val|eval", name)
    ]
    for _, value in composed:
        entries = value.args[0].elts if value.args and isinstance(value.args[0], ast.List) else []
        for index, entry in enumerate(entries):
            if isinstance(entry, ast.Call) and function_name(entry) == "Normalize" and index:
                yield [Edit(script.span(entries[index - 1])[1], script.span(entry)[1], "")]
