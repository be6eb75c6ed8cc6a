"""Finds in a training script what operators need: optimizers, models, losses, loops, modes."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from benchmarks.mutants.script import Edit, Script


def method_calls(script: Script, *names: str, inside: ast.AST | None = None) -> Iterator[ast.Call]:
    """Calls `receiver.name(...)` with one of the given method names."""
    for node in script.walk(ast.Call, inside=inside):
        assert isinstance(node, ast.Call)
        if isinstance(node.func, ast.Attribute) and node.func.attr in names:
            yield node


def dotted(node: ast.expr) -> str:
    """`torch.optim.AdamW` for such an expression, "" for any that is no name with attributes."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else ""
    return ""


def called(node: ast.Call) -> str:
    """The dotted name of what is called, "" where it is no name."""
    return dotted(node.func)


# Names and places

Result = TypeVar("Result")


def cached(query: Callable[[Script], Result]) -> Callable[[Script], Result]:
    """Remember the answer of a query in the script itself: its nodes are those of this script's tree."""

    @functools.wraps(query)
    def answer(script: Script) -> Result:
        if query.__name__ not in script.__dict__:
            script.__dict__[query.__name__] = query(script)
        return script.__dict__[query.__name__]  # type: ignore[no-any-return]

    return answer


Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOPS = (ast.For, ast.AsyncFor, ast.While)


def last_part(name: str) -> str:
    """`optimizer` for `self.optimizer`: a script rarely uses one attribute name for two kinds of objects."""
    return name.rpartition(".")[2]


def scope(script: Script, node: ast.AST) -> Function | ast.Module:
    """The function that `node` stands in, else the module."""
    for parent in script.parents(node):
        if isinstance(parent, FUNCTIONS):
            return parent
    return script.tree


def loops(script: Script, node: ast.AST) -> list[ast.For | ast.AsyncFor | ast.While]:
    """The loops around `node` in its function, the innermost first."""
    matches: list[ast.For | ast.AsyncFor | ast.While] = []
    for parent in script.parents(node):
        if isinstance(parent, FUNCTIONS):
            break
        if isinstance(parent, LOOPS):
            matches.append(parent)
    return matches


@cached
def functions(script: Script) -> dict[str, Function]:
    """The functions and methods of the script by name; of several with one name, the first."""
    by_name: dict[str, Function] = {}
    for node in script.walk(*FUNCTIONS):
        assert isinstance(node, FUNCTIONS)
        by_name.setdefault(node.name, node)
    return by_name


def calls_of(script: Script, function: Function) -> Iterator[ast.Call]:
    """The calls `function(...)` and `receiver.function(...)` in the script; for `__init__`, those of its class."""
    name = function.name
    if name == "__init__":
        name = next((parent.name for parent in script.parents(function) if isinstance(parent, ast.ClassDef)), name)
    for node in script.walk(ast.Call):
        assert isinstance(node, ast.Call)
        if last_part(called(node)) == name:
            yield node


def ancestor_in_block(script: Script, node: ast.AST, block: Sequence[ast.stmt]) -> ast.stmt | None:
    """The statement of `block` that `node` is or stands in."""
    for candidate in (node, *script.parents(node)):
        for statement in block:
            if candidate is statement:
                return statement
    return None


def assignments(script: Script, inside: ast.AST | None = None) -> Iterator[tuple[str, ast.expr, ast.stmt]]:
    """Each `name = value` as dotted name, value and statement. Tuples are paired where both sides are tuples."""
    for node in script.walk(ast.Assign, ast.AnnAssign, inside=inside):
        assert isinstance(node, ast.Assign | ast.AnnAssign)
        if node.value is None:
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple):
                values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value] * len(target.elts)
                pairs = list(zip(target.elts, values, strict=False))
            for name, value in pairs:
                if dotted(name):
                    yield dotted(name), value, node


WRAPPERS = ("DataParallel", "DistributedDataParallel", "DDP", "FSDP", "FullyShardedDataParallel", "compile", "prepare")


def unwrapped(value: ast.expr) -> ast.expr:
    """`Net()` for `DDP(Net().to(device))`: the expression without moves, casts and wrappers."""
    while isinstance(value, ast.Call):
        if isinstance(value.func, ast.Attribute) and value.func.attr in (
            "to",
            "cuda",
            "cpu",
            "float",
            "double",
            "train",
        ):
            value = value.func.value
        elif last_part(called(value)) in WRAPPERS and value.args:
            value = value.args[0]
        else:
            break
    return value


def keyword(call: ast.Call, name: str) -> ast.keyword | None:
    """The keyword argument of that name."""
    return next((entry for entry in call.keywords if entry.arg == name), None)


def argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    """The argument that a call passes by position or by name."""
    if 0 <= position < len(call.args):
        return call.args[position]
    entry = keyword(call, name)
    return entry.value if entry else None


def drop_keyword(script: Script, call: ast.Call, name: str) -> Edit | None:
    """The edit that removes a keyword argument and its comma."""
    entry = keyword(call, name)
    if entry is None:
        return None
    others: list[ast.expr | ast.keyword] = [*call.args, *(other for other in call.keywords if other is not entry)]
    before = [other for other in others if script.span(other)[1] <= script.span(entry)[0]]
    after = [other for other in others if script.span(other)[0] >= script.span(entry)[1]]
    start, end = script.span(entry)
    if before:
        start = max(script.span(other)[1] for other in before)
    elif after:
        end = min(script.span(other)[0] for other in after)
    return Edit(start, end, "")


def arguments_for(script: Script, function: Function, name: str) -> list[ast.expr]:
    """What the calls in the script pass for a parameter of a function, [] where it has no such parameter."""
    parameters = [entry.arg for entry in (*function.args.posonlyargs, *function.args.args)]
    if name not in (*parameters, *(entry.arg for entry in function.args.kwonlyargs)):
        return []
    values = []
    for call in calls_of(script, function):
        is_bound = parameters[:1] == ["self"]
        position = parameters.index(name) - is_bound if name in parameters else -1
        value = argument(call, position, name)
        values += [value] if value is not None else []
    return values


def origins(script: Script, name: str, region: ast.AST, depth: int = 3) -> set[str]:
    """The names that the object `name` has where it comes from: a parameter is followed to the callers' arguments."""
    function = scope(script, region)
    names = {name}
    if isinstance(function, FUNCTIONS) and "." not in name and depth:
        for value in arguments_for(script, function, name):
            if dotted(value):
                names |= origins(script, dotted(value), value, depth - 1)
    return names


def constructions(script: Script, name: str, region: ast.AST, depth: int = 4) -> list[tuple[ast.Call, bool]]:
    """The calls that build the object `name`, each with whether a wrapper for several ranks lies around it.

    They are looked for in assignments to the name anywhere in the script, and in the arguments of callers.
    """
    if not depth or not name:
        return []
    function = scope(script, region)
    values: list[tuple[ast.expr, ast.AST]] = []
    if isinstance(function, FUNCTIONS) and "." not in name:
        values += [(value, value) for value in arguments_for(script, function, name)]
    for variable, value, statement in assignments(script):
        is_same = scope(script, statement) is function or isinstance(scope(script, statement), ast.Module)
        if variable == name and ("." in name or is_same):
            values.append((value, statement))
    calls: list[tuple[ast.Call, bool]] = []
    for value, where in values:
        built = unwrapped(value)
        is_wrapped = isinstance(value, ast.Call) and last_part(called(value)) in WRAPPERS[:5]
        if isinstance(built, ast.Call):
            calls.append((built, is_wrapped))
        elif dotted(built) and (dotted(built) != name or scope(script, where) is not function):
            calls += [
                (call, is_wrapped or inner) for call, inner in constructions(script, dotted(built), where, depth - 1)
            ]
        elif is_wrapped and dotted(built) == name:
            calls = [(call, True) for call, _ in calls]
    return calls


# Models


@cached
def module_classes(script: Script) -> dict[str, ast.ClassDef]:
    """The classes of the script that derive from `nn.Module` or from one that does."""
    classes: dict[str, ast.ClassDef] = {}
    for node in script.walk(ast.ClassDef):
        assert isinstance(node, ast.ClassDef)
        bases = {last_part(dotted(base)) for base in node.bases}
        if bases & {"Module", "LightningModule", "PreTrainedModel", *classes}:
            classes[node.name] = node
    return classes


WITHOUT_PARAMETERS = (
    "Dropout", "Dropout2d", "Dropout1d", "ReLU", "GELU", "SiLU", "Tanh", "Sigmoid", "Softmax", "LogSoftmax", "Flatten",
    "Unflatten", "Identity", "MaxPool2d", "MaxPool1d", "AvgPool2d", "AdaptiveAvgPool2d", "AdaptiveAvgPool1d", "ELU",
    "LeakyReLU", "Upsample", "CrossEntropyLoss", "MSELoss", "BCEWithLogitsLoss", "BCELoss", "NLLLoss", "Softplus",
    "PixelShuffle",
)  # fmt: skip


def method(module: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    """The method of that name which a class defines itself."""
    for statement in module.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == name:
            return statement
    return None


def parts_of_class(script: Script, module: ast.ClassDef) -> list[str]:
    """The attributes that hold submodules with parameters, in the order in which `__init__` makes them."""
    init = method(module, "__init__")
    names: list[str] = []
    for name, value, _ in assignments(script, init) if init else ():
        call = unwrapped(value)
        if not name.startswith("self.") or name.count(".") != 1 or not isinstance(call, ast.Call):
            continue
        constructor = called(call)
        kind = last_part(constructor)
        is_layer = constructor.startswith(("nn.", "torch.nn.")) and ".init." not in constructor and kind != "Parameter"
        is_layer &= kind[:1].isupper() and kind not in WITHOUT_PARAMETERS
        if (is_layer or kind in module_classes(script)) and name[5:] not in names:
            names.append(name[5:])
    return names


def parts(script: Script, model: str, region: ast.AST) -> list[str]:
    """What to append to the name of a model to get its parts with parameters: `.encoder`, `.module.head`, `[-1]`.

    Empty where the script does not show how the model is built, and where it has one part only.
    """
    classes = module_classes(script)
    enclosing = next((node for node in script.parents(region) if isinstance(node, ast.ClassDef)), None)
    if model == "self" and enclosing:
        names = [f".{name}" for name in parts_of_class(script, enclosing)]
        return names if len(names) > 1 else []
    for call, is_wrapped in constructions(script, model, region):
        kind = last_part(called(call))
        names = []
        if kind in classes:
            names = [f".{part}" for part in parts_of_class(script, classes[kind])]
        elif kind == "Sequential":
            for index, layer in enumerate(call.args):
                layer_kind = last_part(called(layer)) if isinstance(layer, ast.Call) else ""
                if layer_kind and layer_kind not in WITHOUT_PARAMETERS:
                    names.append(f"[{index}]")
        if len(names) > 1:
            return [f".module{name}" if is_wrapped else name for name in names]
    return []


@cached
def models(script: Script) -> list[str]:
    """The names of models: of each module that the script builds, switches between modes or takes parameters of."""
    names: list[str] = []
    classes = module_classes(script)
    for name, value, statement in assignments(script):
        built = unwrapped(value)
        inside_module = any(
            isinstance(parent, ast.ClassDef) and parent.name in classes for parent in script.parents(statement)
        )
        if isinstance(built, ast.Call) and not inside_module:
            kind = last_part(called(built))
            if (kind in classes or kind in ("Sequential", "from_pretrained")) and name not in names:
                names.append(name)
    for call in method_calls(script, "parameters", "named_parameters", "train", "eval"):
        name = dotted(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        if (
            name
            and not name.startswith(("self.", "super"))
            and name not in ("self", "trainer", "torch", "agent")
            and name not in names
        ):
            names.append(name)
    return names


def depends_on_mode(script: Script) -> bool:
    """Whether a module of the script computes differently in training and in evaluation mode."""
    return (
        re.search(r"Dropout|dropout|BatchNorm|batch_norm|from_pretrained|resnet|spectral_norm", script.text) is not None
    )


# Optimizers and schedulers

OPTIMIZERS = (
    "SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "LBFGS", "Rprop", "ASGD",
    "SparseAdam", "Adafactor", "Lion", "ZeroRedundancyOptimizer", "configure_optimizers", "create_optimizer",
    "create_optimizer_v2",
)  # fmt: skip


@dataclass(frozen=True)
class Optimizer:
    """A construction of an optimizer: its name, constructor call and statement."""

    name: str
    call: ast.Call
    statement: ast.stmt

    @property
    def parameters(self) -> ast.expr | None:
        """What the constructor gets as parameters."""
        return argument(self.call, 0, "params")


@cached
def optimizers(script: Script) -> list[Optimizer]:
    """The optimizers that the script makes and gives a name: of torch, of a library, or of a class of its own."""
    own = [
        node.name
        for node in script.walk(ast.ClassDef)
        if isinstance(node, ast.ClassDef)
        and any(last_part(dotted(base)) in ("Optimizer", *OPTIMIZERS) for base in node.bases)
    ]
    return [
        Optimizer(name, value, statement)
        for name, value, statement in assignments(script)
        if isinstance(value, ast.Call)
        and (last_part(called(value)) in (*OPTIMIZERS, *own) or last_part(called(value)).endswith("Optimizer"))
    ]


SCHEDULERS = re.compile(r"LR$|Scheduler$|LROnPlateau$|WarmRestarts$|^get_\w*schedule\w*$|^get_scheduler$")


@cached
def schedulers(script: Script) -> list[Optimizer]:
    """The learning rate schedulers that the script makes and gives a name; `parameters` is their optimizer."""
    return [
        Optimizer(name, value, statement)
        for name, value, statement in assignments(script)
        if isinstance(value, ast.Call) and SCHEDULERS.search(last_part(called(value)))
    ]


def _stems(names: Iterable[str]) -> set[str]:
    return {last_part(name) for name in names}


@cached
def optimizer_stems(script: Script) -> set[str]:
    """The last parts of the names under which the script steps optimizers."""
    stems = _stems(optimizer.name for optimizer in optimizers(script))
    receivers: dict[str, set[str]] = {"step": set(), "zero_grad": set()}
    for call in method_calls(script, *receivers):
        assert isinstance(call.func, ast.Attribute)
        receivers[call.func.attr].add(last_part(dotted(call.func.value)))
    likely = {name for name in receivers["step"] if "optim" in name.lower() or name.lower().startswith("opt_")}
    return (stems | likely | receivers["step"] & receivers["zero_grad"]) - scheduler_stems(script) - {""}


@cached
def scheduler_stems(script: Script) -> set[str]:
    """The last parts of the names under which the script steps schedulers."""
    return _stems(scheduler.name for scheduler in schedulers(script)) | {
        last_part(receiver(call))
        for call in method_calls(script, "step")
        if "sched" in last_part(receiver(call)).lower()
    }


def receiver(call: ast.Call) -> str:
    """`model` for `model.train()`, "" where the receiver is no name."""
    return dotted(call.func.value) if isinstance(call.func, ast.Attribute) else ""


@dataclass(frozen=True)
class Step:
    """A step of an optimizer, directly or by a gradient scaler (then `scaler` is its name)."""

    call: ast.Call
    statement: ast.stmt
    optimizer: str
    scaler: str


@cached
def steps(script: Script) -> list[Step]:
    """The optimizer steps outside of optimizer classes, in the order of the text."""
    stems = optimizer_stems(script)
    matches = []
    for call in method_calls(script, "step"):
        statement = script.statement(call)
        if not isinstance(statement, ast.Expr | ast.Assign) or statement.value is not call:
            continue
        if last_part(receiver(call)) in stems:
            matches.append(Step(call, statement, receiver(call), ""))
        elif len(call.args) == 1 and last_part(dotted(call.args[0])) in stems:
            matches.append(Step(call, statement, dotted(call.args[0]), receiver(call)))
    return matches


def scheduler_steps(script: Script) -> list[tuple[str, ast.Expr]]:
    """The statements that step a scheduler, with its name."""
    stems = scheduler_stems(script)
    matches = []
    for call in method_calls(script, "step"):
        statement = script.statement(call)
        if isinstance(statement, ast.Expr) and statement.value is call and last_part(receiver(call)) in stems:
            matches.append((receiver(call), statement))
    return matches


def clears(script: Script, inside: ast.AST | None = None) -> list[tuple[str, ast.Expr]]:
    """The statements `receiver.zero_grad()`, with the receiver: an optimizer or a model."""
    matches = []
    for call in method_calls(script, "zero_grad", inside=inside):
        statement = script.statement(call)
        if isinstance(statement, ast.Expr) and statement.value is call and receiver(call) and receiver(call) != "super":
            matches.append((receiver(call), statement))
    return matches


# Backward passes and losses


@dataclass(frozen=True)
class Backward:
    """A backward pass: its call, its statement and the loss that it is called on (without the scaler's `scale`)."""

    call: ast.Call
    statement: ast.stmt
    loss: ast.expr

    @property
    def is_scaled(self) -> bool:
        """Whether a gradient scaler scales the loss."""
        return (
            isinstance(self.call.func, ast.Attribute) and self.call.func.value is not self.loss and not self.call.args
        )


@cached
def backwards(script: Script) -> list[Backward]:
    """`loss.backward()`, `scaler.scale(loss).backward()` and `accelerator.backward(loss)`, in the order of the text."""
    matches = []
    for call in method_calls(script, "backward", "manual_backward"):
        assert isinstance(call.func, ast.Attribute)
        loss: ast.expr = call.func.value
        statement = script.statement(call)
        if dotted(loss) in ("super", "torch.autograd", "autograd", "dist_autograd") or not isinstance(
            statement, ast.Expr
        ):
            continue
        if isinstance(loss, ast.Call) and isinstance(loss.func, ast.Attribute) and loss.func.attr == "scale":
            loss = loss.args[0] if loss.args else loss
        elif len(call.args) == 1 and last_part(dotted(loss)).startswith(("accelerator", "fabric", "self", "engine")):
            loss = call.args[0]
        matches.append(Backward(call, statement, loss))
    return matches


def backward_of(script: Script, step: Step) -> Backward | None:
    """The backward pass whose gradients a step uses: the last one before it in its function."""
    before = [
        entry
        for entry in backwards(script)
        if scope(script, entry.call) is scope(script, step.call) and entry.statement.lineno < step.statement.lineno
    ]
    return before[-1] if before else None


def is_evaluation(script: Script, node: ast.AST) -> bool:
    """Whether `node` runs without gradients: below `no_grad`, or in a function that evaluates."""
    for parent in script.parents(node):
        heads: list[ast.expr] = []
        if isinstance(parent, FUNCTIONS):
            heads = parent.decorator_list
            if re.match(r"_?(eval|valid|test|predict|sample|generate|infer|accuracy)", parent.name) and not trains(
                script, parent
            ):
                return True
        elif isinstance(parent, ast.With):
            heads = [item.context_expr for item in parent.items]
        if any(re.search(r"\b(no_grad|inference_mode)\b", script.source(head)) for head in heads):
            return True
        switches = method_calls(script, "eval", inside=parent) if isinstance(parent, FUNCTIONS) else ()
        if any(receiver(call) for call in switches) and not trains(script, parent):
            return True
    return False


def trains(script: Script, function: ast.AST) -> bool:
    """Whether a function makes a backward pass or an optimizer step itself."""
    names = ("backward", "manual_backward")
    return any(True for _ in method_calls(script, *names, inside=function)) or any(
        step.statement in list(ast.walk(function)) for step in steps(script)
    )


LOSS_CLASSES = {
    "CrossEntropyLoss": "cross_entropy", "NLLLoss": "nll_loss", "BCELoss": "binary_cross_entropy",
    "BCEWithLogitsLoss": "binary_cross_entropy_with_logits", "MSELoss": "mse_loss", "L1Loss": "l1_loss",
    "SmoothL1Loss": "smooth_l1_loss", "HuberLoss": "huber_loss", "KLDivLoss": "kl_div",
}  # fmt: skip
"""The loss modules of torch, with the functions that they call."""


@dataclass(frozen=True)
class LossCall:
    """A call of a loss of torch: the function's name, the call, and the call that configures it.

    `options` is the constructor's call for a loss module, else the call itself.
    """

    kind: str
    call: ast.Call
    options: ast.Call


def loss_calls(script: Script, *kinds: str) -> list[LossCall]:
    """The calls of losses in training code: of functions and of modules that the script built."""
    modules: dict[str, ast.Call] = {}
    for variable, value, _ in assignments(script):
        built = unwrapped(value)
        if isinstance(built, ast.Call) and last_part(called(built)) in LOSS_CLASSES:
            modules[last_part(variable)] = built
    matches = []
    for node in script.walk(ast.Call):
        assert isinstance(node, ast.Call)
        name, options = last_part(called(node)), node
        if name in modules:
            options = modules[name]
            name = LOSS_CLASSES[last_part(called(options))]
        elif isinstance(node.func, ast.Call) and last_part(called(node.func)) in LOSS_CLASSES:
            options = node.func
            name = LOSS_CLASSES[last_part(called(options))]
        is_loss = name in LOSS_CLASSES.values() and (not kinds or name in kinds) and len(node.args) >= 2
        if is_loss and not is_evaluation(script, node):
            matches.append(LossCall(name, node, options))
    return matches


def loss_expressions(script: Script, backward: Backward) -> list[ast.expr]:
    """The expressions that the loss of a backward pass is computed by: what is assigned to its name in the function,
    and what a function of the script returns that computes it."""
    region = scope(script, backward.call)
    matches: list[ast.expr] = [] if dotted(backward.loss) else [backward.loss]
    names = {dotted(node) for node in ast.walk(backward.loss) if isinstance(node, ast.Name | ast.Attribute)} - {""}
    near = [entry for entry in assignments(script, region) if scope(script, entry[2]) is region]
    matches += [
        value for name, value, statement in near if name in names and statement.lineno <= backward.statement.lineno
    ]
    for value in list(matches):
        if isinstance(value, ast.Call) and (function := functions(script).get(last_part(called(value)))):
            for node in script.walk(ast.Return, inside=function):
                if isinstance(node, ast.Return) and node.value is not None:
                    first = node.value.elts[0] if isinstance(node.value, ast.Tuple) and node.value.elts else node.value
                    matches += [entry for name, entry, _ in assignments(script, function) if name == dotted(first)]
                    matches += [] if dotted(first) else [first]
    unique: list[ast.expr] = []
    for value in matches:
        if not any(value is other for other in unique):
            unique.append(value)
    return unique


def terms(expression: ast.expr) -> list[ast.expr]:
    """The terms of the sum that an expression is, without a division or factor around the whole sum."""
    while isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.Div | ast.Mult):
        sides = [side for side in (expression.left, expression.right) if isinstance(side, ast.BinOp)]
        if len(sides) != 1 or not isinstance(sides[0].op, ast.Add | ast.Sub):
            return [expression]
        expression = sides[0]
    if isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.Add | ast.Sub):
        return [*terms_of_sum(expression.left), *terms_of_sum(expression.right)]
    return [expression]


def terms_of_sum(expression: ast.expr) -> list[ast.expr]:
    """The terms of a sum as they stand."""
    if isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.Add | ast.Sub):
        return [*terms_of_sum(expression.left), *terms_of_sum(expression.right)]
    return [expression]


def is_computed(term: ast.expr) -> bool:
    """Whether a term of a loss can hold a gradient: neither a number nor a plain number's name in a product."""
    return not isinstance(term, ast.Constant)


def accumulation_conditions(script: Script) -> Iterator[tuple[ast.If, ast.Compare]]:
    """Each `if` with a step of an optimizer in its body whose test counts micro-batches, with the comparison in it:
    `(i + 1) % n == 0`."""
    for step in steps(script):
        for parent in script.parents(step.statement):
            if isinstance(parent, FUNCTIONS):
                break
            if isinstance(parent, ast.If):
                for node in ast.walk(parent.test):
                    if isinstance(node, ast.Compare) and any(
                        isinstance(side, ast.BinOp) and isinstance(side.op, ast.Mod)
                        for side in (node.left, *node.comparators)
                    ):
                        yield parent, node


# Gradient clipping


def clips(script: Script) -> list[tuple[ast.Call, ast.stmt]]:
    """The calls that clip gradients by their norm, with their statement."""
    matches: list[tuple[ast.Call, ast.stmt]] = []
    for node in script.walk(ast.Call):
        assert isinstance(node, ast.Call)
        if last_part(called(node)) in ("clip_grad_norm_", "clip_grad_norm"):
            statement = script.statement(node)
            if isinstance(statement, ast.Expr | ast.Assign) and statement.value is node:
                matches.append((node, statement))
    return matches


def parameters_of(expression: ast.expr | None) -> str:
    """`model` for `model.parameters()` and `list(model.parameters())`, else ""."""
    if isinstance(expression, ast.Call) and dotted(expression.func) == "list" and expression.args:
        expression = expression.args[0]
    if (
        isinstance(expression, ast.Call)
        and isinstance(expression.func, ast.Attribute)
        and expression.func.attr == "parameters"
    ):
        return dotted(expression.func.value)
    return ""
