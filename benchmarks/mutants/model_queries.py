"""Finds in a training script the parts that operators on models, targets and data change: attention, masks, copies."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from benchmarks.mutants.queries import argument, assignments, dotted, functions, keyword, last_part, scope
from benchmarks.mutants.script import Edit, Script

FUNCTIONAL = ("F", "torch", "nn.functional", "torch.nn.functional", "functional", "np", "numpy")
"""The names of modules whose functions take the tensor as their first argument."""

# Calls


def function_name(call: ast.Call) -> str:
    """`view` for `x.view(...)` and for `f(x).view(...)`, "" where neither a name nor an attribute is called."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def calls(script: Script, *names: str, inside: ast.AST | None = None) -> Iterator[ast.Call]:
    """The calls of functions or methods with one of the given names, whatever their receiver."""
    for node in script.walk(ast.Call, inside=inside):
        assert isinstance(node, ast.Call)
        if function_name(node) in names:
            yield node


def is_method(call: ast.Call) -> bool:
    """Whether a call is `tensor.name(...)`, not `F.name(tensor, ...)`."""
    return isinstance(call.func, ast.Attribute) and dotted(call.func.value) not in FUNCTIONAL


def tensor_of(call: ast.Call) -> ast.expr | None:
    """`x` for `x.softmax(1)` and for `F.softmax(x, 1)`."""
    if is_method(call):
        assert isinstance(call.func, ast.Attribute)
        return call.func.value
    return call.args[0] if call.args else None


def dimension_of(call: ast.Call) -> ast.expr | None:
    """The argument `dim` of such a call."""
    return argument(call, 0 if is_method(call) else 1, "dim")


def replace_argument(script: Script, call: ast.Call, position: int, name: str, text: str) -> Edit:
    """Put `text` in the place of an argument; one that the call lacks is added as a keyword."""
    value = argument(call, position, name)
    if value is not None:
        return script.replace(value, text)
    return append_keyword(script, call, name, text)


def append_keyword(script: Script, call: ast.Call, name: str, text: str) -> Edit:
    """Add a keyword argument behind the last argument."""
    ends = [script.span(entry)[1] for entry in call.args] + [script.span(entry)[1] for entry in call.keywords]
    if not ends:
        end = script.span(call)[1] - 1
        return Edit(end, end, f"{name}={text}")
    end = max(ends)
    while script.text[end] == ")" and end < script.span(call)[1] - 1:  # an argument in parentheses
        end += 1
    return Edit(end, end, f", {name}={text}")


def number(node: ast.expr | None) -> float | None:
    """The value of a number that is written out, with its sign."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = number(node.operand)
        return None if value is None else -value
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return node.value
    return None


# Expressions


def sources(script: Script, expression: ast.expr, depth: int = 5) -> Iterator[ast.expr]:
    """`expression`, and what its function assigned before it to the names in it, and to the names in that."""
    yield expression
    if not depth:
        return
    place = scope(script, expression)
    names = {dotted(node) for node in ast.walk(expression) if isinstance(node, ast.Name | ast.Attribute)} - {""}
    for name, value, statement in assignments(script, place):
        inside = any(node is expression for node in ast.walk(statement))
        if name in names and not inside and statement.lineno <= expression.lineno and scope(script, statement) is place:
            yield from sources(script, value, depth - 1)


def without_factor(script: Script, factor: ast.expr) -> Edit | None:
    """The edit that removes a factor of a product (or a divisor) from it."""
    parent = factor.parent  # type: ignore[attr-defined]
    if not isinstance(parent, ast.BinOp):
        return None
    divides = isinstance(parent.op, ast.Div) and parent.right is factor
    if not isinstance(parent.op, ast.Mult) and not divides:
        return None
    other = parent.left if parent.right is factor else parent.right
    outer = parent.parent  # type: ignore[attr-defined]
    start, end = script.span(parent)
    if isinstance(outer, ast.BinOp | ast.UnaryOp | ast.Attribute | ast.Subscript):
        grouped = script.text[start - 1] == "(" and script.text[end] == ")"
        if grouped and not isinstance(other, ast.BinOp):
            return Edit(start - 1, end + 1, script.source(other))
        product = isinstance(other, ast.BinOp) and not isinstance(other.op, ast.Add | ast.Sub)
        return Edit(start, end, script.source(other) if grouped or product else text_of(script, other))
    return Edit(start, end, script.source(other))


def text_of(script: Script, node: ast.expr) -> str:
    """The text of an expression, in parentheses where it is no name, call or subscript."""
    text = script.source(node)
    atom = isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript | ast.Constant | ast.List | ast.Tuple)
    return text if atom else f"({text})"


def mentions(node: ast.AST, pattern: str) -> bool:
    """Whether the names and attributes in `node` match a pattern."""
    return any(
        re.search(pattern, child.id if isinstance(child, ast.Name) else child.attr, re.IGNORECASE)
        for child in ast.walk(node)
        if isinstance(child, ast.Name | ast.Attribute)
    )


def same(first: ast.AST, second: ast.AST) -> bool:
    """Whether two expressions are written alike, one as a target or not."""
    return _shape(first) == _shape(second)


def _shape(node: ast.AST) -> str:
    return re.sub(r"ctx=\w+\(\)", "", ast.dump(node))


def unindented_body(script: Script, block: ast.With) -> Edit:
    """The edit that removes the head of a `with` block and moves its body to the left."""
    first, last = block.body[0], block.body[-1]
    text = script.text[script.span(first)[0] : script.span(last)[1]]
    text = text.replace("\n" + script.indent(first), "\n" + script.indent(block))
    return Edit(script.span(block)[0], script.span(last)[1], text)


# Modules


def enclosing_class(script: Script, node: ast.AST) -> ast.ClassDef | None:
    """The class that `node` stands in."""
    return next((parent for parent in script.parents(node) if isinstance(parent, ast.ClassDef)), None)


def constructor_of(script: Script, name: str, place: ast.AST) -> ast.Call | None:
    """The call that made `self.name` or `name`, looked up in the class of `place`, else in the script."""
    owner = enclosing_class(script, place) if name.startswith("self.") else None
    for target, value, _ in assignments(script, owner):
        if target == name and isinstance(value, ast.Call):
            return value
    return None


def module_kind(script: Script, call: ast.Call) -> str:
    """`Dropout` for the call of a module that the script made with `nn.Dropout(...)`, else ""."""
    made = constructor_of(script, dotted(call.func), call) if dotted(call.func) else None
    return last_part(dotted(made.func)) if made is not None else ""


def blocks(script: Script) -> Iterator[tuple[ast.ListComp | ast.GeneratorExp, ast.Call, ast.Call]]:
    """The expressions in comprehensions `Block(...) for _ in range(n)` that make the layers of a model.

    Each with the call of the constructor and that of `range`.
    """
    for node in script.walk(ast.ListComp, ast.GeneratorExp):
        assert isinstance(node, ast.ListComp | ast.GeneratorExp)
        source = node.generators[0].iter
        if isinstance(node.elt, ast.Call) and isinstance(source, ast.Call) and function_name(source) == "range":
            kind = last_part(dotted(node.elt.func))
            if kind[:1].isupper() and len(node.generators) == 1 and not node.generators[0].ifs:
                yield node, node.elt, source


# Attention


def attention_softmaxes(script: Script) -> Iterator[tuple[ast.Call, ast.expr]]:
    """The calls of softmax over scores that are a product of two tensors, with the argument `dim`."""
    for call in script.walk(ast.Call):
        assert isinstance(call, ast.Call)
        if function_name(call) == "softmax":
            scores, dimension = tensor_of(call), dimension_of(call)
        elif isinstance(call.func, ast.Call) and function_name(call.func) == "Softmax" and call.args:
            scores, dimension = call.args[0], argument(call.func, 0, "dim")
        else:
            continue
        if scores is not None and dimension is not None and is_score(script, scores):
            yield call, dimension


def is_score(script: Script, expression: ast.expr) -> bool:
    """Whether an expression comes from a product of two tensors."""
    return any(
        (isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult))
        or (isinstance(node, ast.Call) and function_name(node) in ("matmul", "bmm", "einsum", "baddbmm"))
        for source in sources(script, expression)
        for node in ast.walk(source)
    )


def triangles(script: Script, inside: ast.AST | None = None) -> Iterator[ast.Call]:
    """The calls of `tril` and `triu` on a tensor of ones (or of minus infinity): they make causal masks."""
    for call in calls(script, "tril", "triu", "tril_", "triu_", inside=inside):
        tensor = tensor_of(call)
        if isinstance(tensor, ast.Call) and function_name(tensor) in ("ones", "full", "ones_like", "new_ones"):
            yield call


_CAUSAL = r"causal|look_?ahead|subsequent|subseq|future|tril|triu"


def is_causal_mask(script: Script, mask: ast.expr) -> bool:
    """Whether a mask comes from a triangle, in the function or in the class around it."""
    if mentions(mask, _CAUSAL):
        return True
    owner = enclosing_class(script, mask)
    held = {dotted(node) for node in ast.walk(mask) if isinstance(node, ast.Attribute)} - {""}
    values = list(sources(script, mask))[1:]
    if owner is not None:
        values += [value for name, value, _ in assignments(script, owner) if name in held]
        values += [
            call.args[1]
            for call in calls(script, "register_buffer", inside=owner)
            if len(call.args) > 1 and isinstance(call.args[0], ast.Constant) and f"self.{call.args[0].value!s}" in held
        ]
    return any(mentions(value, _CAUSAL) for value in values)


def fills(script: Script) -> Iterator[tuple[ast.Call, ast.expr]]:
    """The calls of `masked_fill` on attention scores, with the mask."""
    for call in calls(script, "masked_fill", "masked_fill_"):
        tensor = tensor_of(call)
        mask = argument(call, 0 if is_method(call) else 1, "mask")
        value = argument(call, 1 if is_method(call) else 2, "value")
        if tensor is None or mask is None or value is None:
            continue
        if ("inf" in script.source(value) or (number(value) or 0) <= -1e3 or "finfo" in script.source(value)) and (
            is_score(script, tensor) or re.search(r"att|score|wei|energy|sim", script.source(tensor))
        ):
            yield call, mask


# Copies of networks


def averaged(script: Script) -> Iterator[tuple[str, str, ast.stmt]]:
    """The target networks and moving averages: name, name of the network that they follow, statement of the update.

    An update is a loop over both networks' parameters that writes to the one, or a load of the other's state in a loop
    or a condition.
    """
    for node in script.walk(ast.For, ast.Expr):
        if isinstance(node, ast.For) and isinstance(node.iter, ast.Call) and function_name(node.iter) == "zip":
            networks = [_network(entry) for entry in node.iter.args]
            if len(networks) != 2 or not all(networks) or not isinstance(node.target, ast.Tuple):
                continue
            function = scope(script, node)
            if isinstance(function, ast.FunctionDef) and re.search(r"hard|init|copy", function.name):
                continue  # the copy at the start
            names = [dotted(entry) for entry in node.target.elts]
            for index, name in enumerate(names):
                if name and _is_written(script, node, name):
                    yield networks[index], networks[1 - index], node
                    break
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            call = node.value
            if function_name(call) == "load_state_dict" and call.args and isinstance(call.args[0], ast.Call):
                other = call.args[0]
                if function_name(other) == "state_dict" and isinstance(node.parent, ast.If | ast.For | ast.While):  # type: ignore[attr-defined]
                    assert isinstance(call.func, ast.Attribute) and isinstance(other.func, ast.Attribute)
                    target, online = dotted(call.func.value), dotted(other.func.value)
                    if target and online and target != online:
                        yield target, online, node


def _network(expression: ast.expr) -> str:
    """`model` for `model.parameters()`, `model.state_dict().values()` and `model.buffers()`."""
    while isinstance(expression, ast.Call) and isinstance(expression.func, ast.Attribute):
        if expression.func.attr in ("parameters", "buffers", "state_dict"):
            return dotted(expression.func.value)
        expression = expression.func.value
    return ""


def _is_written(script: Script, loop: ast.For, name: str) -> bool:
    """Whether the loop changes `name`: by a method with a trailing underscore, or as `name.data = ...`."""
    for node in script.walk(ast.Call, ast.Assign, ast.AugAssign, inside=loop):
        if isinstance(node, ast.Call):
            if not isinstance(node.func, ast.Attribute) or not node.func.attr.endswith("_"):
                continue
            written = node.func.value
            while isinstance(written, ast.Call) and isinstance(written.func, ast.Attribute):
                written = written.func.value  # p.mul_(decay).add_(...)
        else:
            assert isinstance(node, ast.Assign | ast.AugAssign)
            written = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if dotted(written).split(".data")[0] == name:
            return True
    return False


# Data


def loaders(script: Script) -> Iterator[tuple[str, ast.Call, ast.stmt]]:
    """The data loaders that the script makes: name, call of the constructor, statement."""
    for name, value, statement in assignments(script):
        for node in ast.walk(value):
            if isinstance(node, ast.Call) and function_name(node) == "DataLoader":
                yield name, node, statement


def training_loaders(script: Script) -> Iterator[tuple[str, ast.Call, ast.stmt]]:
    """The loaders whose name or data set says that they train, or that shuffle."""
    for name, call, statement in loaders(script):
        if re.search(r"test|val|eval|dev", last_part(name)):
            continue
        shuffle = keyword(call, "shuffle")
        shuffles = shuffle is not None and not (isinstance(shuffle.value, ast.Constant) and not shuffle.value.value)
        if shuffles or re.search(r"train", name):
            yield name, call, statement


def sample_methods(script: Script) -> Iterator[ast.FunctionDef]:
    """The methods `__getitem__` of data sets."""
    for node in script.walk(ast.FunctionDef):
        if isinstance(node, ast.FunctionDef) and node.name == "__getitem__":
            yield node


RANDOM_LIBRARIES = {
    "numpy": (r"\bnp\.random\.(?!default_rng|Generator|seed|RandomState)|\bnumpy\.random\.", "np.random.seed"),
    "random": (r"(?<![.\w])random\.(?!seed|Random\b)", "random.seed"),
    "torch": (r"\btorch\.(rand|randn|randint|randperm|randn_like|rand_like|bernoulli|normal)\(", "torch.manual_seed"),
}
"""The global random generators: a pattern of the calls that draw from each, and the function that seeds it."""


def seeds_of_drawn(script: Script, node: ast.FunctionDef) -> list[str]:
    """The functions that seed the generators which a method of a data set (or one that it calls) draws from."""
    text = script.source(node)
    for call in script.walk(ast.Call, inside=node):
        assert isinstance(call, ast.Call)
        if dotted(call.func).startswith("self.") and (helper := functions(script).get(function_name(call))):
            text += script.source(helper)
    return [seed for pattern, seed in RANDOM_LIBRARIES.values() if re.search(pattern, text)]


def epoch_loops(script: Script) -> Iterator[ast.For]:
    """The loops whose variable counts epochs, or that run over a range around a loop over batches that trains."""
    for node in script.walk(ast.For):
        assert isinstance(node, ast.For)
        if not isinstance(node.iter, ast.Call) or function_name(node.iter) not in ("range", "trange", "tqdm"):
            continue
        if mentions(node.target, "epoch") or mentions(node.iter, "epoch"):
            yield node
