"""Operators on attention masks, padding and the axes of tensors."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from benchmarks.mutants.model_queries import (
    attention_softmaxes,
    calls,
    dimension_of,
    fills,
    function_name,
    is_causal_mask,
    is_method,
    mentions,
    number,
    replace_argument,
    sources,
    tensor_of,
    text_of,
    triangles,
    without_factor,
)
from benchmarks.mutants.operator import Mutants, operator
from benchmarks.mutants.queries import argument, assignments, dotted, drop_keyword, keyword, loss_calls
from benchmarks.mutants.script import Edit, Script

LOSSES = ("cross_entropy", "criterion", "nll_loss", "loss_fn")
MASK_ARGUMENTS = ("tgt_mask", "attn_mask", "src_mask", "mask")


def without_fill(script: Script, call: ast.Call) -> Edit:
    """Leave the scores as they are: without the call of `masked_fill`, or without its whole statement."""
    statement, tensor = script.statement(call), tensor_of(call)
    assert tensor is not None
    if isinstance(statement, ast.Expr) and statement.value is call:
        return script.remove(statement)
    if isinstance(statement, ast.Assign) and statement.value is call and dotted(statement.targets[0]) == dotted(tensor):
        return script.remove(statement)
    return script.replace(call, script.source(tensor))


# Masks


@operator("masks")
def causal_mask_not_applied(script: Script) -> Mutants:
    """The causal mask is not applied, so each position attends to the later ones that it should predict."""
    for call in calls(script, "scaled_dot_product_attention"):
        causal = keyword(call, "is_causal")
        if (
            causal is not None
            and not (isinstance(causal.value, ast.Constant) and not causal.value.value)
            and (edit := drop_keyword(script, call, "is_causal"))
        ):
            yield [edit]
    for call, mask in fills(script):
        if is_causal_mask(script, mask):
            yield [without_fill(script, call)]
    for node in script.walk(ast.Call):
        assert isinstance(node, ast.Call)
        for name in MASK_ARGUMENTS:
            entry = keyword(node, name)
            if entry is not None and is_causal_mask(script, entry.value) and (edit := drop_keyword(script, node, name)):
                yield [edit]


@operator("masks")
def causal_mask_of_wrong_triangle(script: Script) -> Mutants:
    """The causal mask is the wrong triangle, so each position attends to itself and the later ones only."""
    if "key_padding_mask" in script.text:
        return  # padding at the end would see only padding, which gives NaN
    for call in triangles(script):
        diagonal = argument(call, 0 if is_method(call) else 1, "diagonal")
        offset = 0 if diagonal is None else number(diagonal)
        assert isinstance(call.func, ast.Attribute | ast.Name)
        start, end = script.span(call.func)
        other = {"tril": "triu", "triu": "tril"}[function_name(call).rstrip("_")]
        name = Edit(start, end, re.sub(r"tri[lu](_?)$", rf"{other}\1", script.source(call.func)))
        if offset == 0 and other == "triu":
            yield [name]
        elif offset == 1 and other == "tril" and diagonal is not None:
            yield [name, script.replace(diagonal, "-1")]


@operator("masks")
def causal_mask_off_by_one(script: Script) -> Mutants:
    """The diagonal of the causal mask is off by one, so each position attends to the one that it should predict."""
    for call in triangles(script):
        diagonal = argument(call, 0 if is_method(call) else 1, "diagonal")
        offset = 0 if diagonal is None else number(diagonal)
        if offset == 1 and diagonal is not None and function_name(call).startswith("triu"):
            yield [script.replace(diagonal, "2")]
        elif offset == 0 and function_name(call).startswith("tril"):
            yield [replace_argument(script, call, 0 if is_method(call) else 1, "diagonal", "1")]


@operator("masks")
def padding_mask_not_passed(script: Script) -> Mutants:
    """The padding mask is not passed, so attention includes the padding of the shorter sequences."""
    library = re.search(r"^\s*(from|import) transformers\b", script.text, re.MULTILINE)
    for node in script.walk(ast.Call):
        assert isinstance(node, ast.Call)
        names = [entry.arg for entry in node.keywords if entry.arg and entry.arg.endswith("key_padding_mask")]
        mask = keyword(node, "attn_mask")
        if (
            function_name(node) == "scaled_dot_product_attention"
            and mask
            and not isinstance(mask.value, ast.Constant)
            and not is_causal_mask(script, mask.value)
        ):
            names.append("attn_mask")
        if (
            library
            and keyword(node, "attention_mask")
            and function_name(node)[:1].islower()
            and re.search(r"model|network|encoder", dotted(node.func))
            and keyword(node, "labels")
        ):
            names.append("attention_mask")
        for name in names:
            if edit := drop_keyword(script, node, name):
                yield [edit]
    for call, mask_expression in fills(script):
        if not is_causal_mask(script, mask_expression):
            yield [without_fill(script, call)]


@operator("masks")
def mask_inverted(script: Script) -> Mutants:
    """The mask is inverted, so attention sees the positions that it should ignore and ignores the others."""
    for call, mask in fills(script):
        value = argument(call, 1 if is_method(call) else 2, "value")
        if value is None or "inf" in script.source(value).replace("finfo", ""):
            continue  # whole rows of minus infinity become NaN, which nobody overlooks
        if isinstance(mask, ast.Compare) and isinstance(mask.ops[0], ast.Eq | ast.NotEq) and len(mask.ops) == 1:
            text = script.source(mask)
            pair = ("==", "!=") if isinstance(mask.ops[0], ast.Eq) else ("!=", "==")
            yield [script.replace(mask, text.replace(*pair, 1))]
        elif isinstance(mask, ast.UnaryOp) and isinstance(mask.op, ast.Invert):
            yield [script.replace(mask, script.source(mask.operand))]
        elif isinstance(mask, ast.Name | ast.Attribute):
            yield [script.replace(mask, f"~{script.source(mask)}")]
    for node in script.walk(ast.BinOp):
        if (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Mult)
            and isinstance(node.left, ast.BinOp)
            and isinstance(node.left.op, ast.Sub)
            and number(node.left.left) == 1
            and mentions(node.left.right, "mask")
            and ((number(node.right) or 0) <= -1e3 or "finfo" in script.source(node.right))
        ):
            yield [script.replace(node, f"{script.source(node.left.right)} * {script.source(node.right)}")]


@operator("masks", "unexpected-loss-input")
def padding_in_loss(script: Script) -> Mutants:
    """The loss includes the padding: `ignore_index` is not set."""
    for loss in loss_calls(script, "cross_entropy", "nll_loss"):
        index = keyword(loss.options, "ignore_index")
        if (
            index is not None
            and number(index.value) not in (-100, -1)
            and (edit := drop_keyword(script, loss.options, "ignore_index"))
        ):
            yield [edit]


@operator("masks", "unexpected-loss-input")
def ignored_labels_kept(script: Script) -> Mutants:
    """The labels of positions that do not count are not replaced by -100, so the loss includes them."""
    for call in calls(script, "masked_fill", "masked_fill_"):
        value = argument(call, 1 if is_method(call) else 2, "value")
        tensor = tensor_of(call)
        if number(value) == -100 and tensor is not None:
            yield [script.replace(call, f"{text_of(script, tensor)}.clone()")]
    for node in script.walk(ast.Assign):
        if isinstance(node, ast.Assign) and number(node.value) == -100 and isinstance(node.targets[0], ast.Subscript):
            yield [script.remove(node)]


@operator("masks")
def pooling_over_padding(script: Script) -> Mutants:
    """The mean over a sequence ignores the mask, so it depends on the padding."""
    for node in script.walk(ast.BinOp):
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div) or not isinstance(node.left, ast.Call):
            continue
        total = tensor_of(node.left)
        if (
            function_name(node.left) == "sum"
            and isinstance(total, ast.BinOp)
            and isinstance(total.op, ast.Mult)
            and mentions(total.right, "mask")
            and mentions(node.right, "mask")
            and (dimension := dimension_of(node.left)) is not None  # without one it is the mean of a loss
        ):
            yield [script.replace(node, f"{text_of(script, total.left)}.mean({script.source(dimension)})")]


# Axes


@operator("axes", "softmax-over-one-element")
def attention_over_queries(script: Script) -> Mutants:
    """The softmax of attention runs over the queries instead of the keys."""
    for _, dimension in attention_softmaxes(script):
        value = number(dimension)
        if value is not None and value in (-1, 2, 3):
            yield [script.replace(dimension, str(int(value) - 1))]


@operator("axes", "unexpected-loss-input")
def log_softmax_over_batch(script: Script) -> Mutants:
    """The log-softmax runs over the samples of the batch instead of the classes."""
    for call in calls(script, "log_softmax", "LogSoftmax"):
        dimension = argument(call, 0, "dim") if function_name(call) == "LogSoftmax" else dimension_of(call)
        if number(dimension) in (1, -1) and dimension is not None:
            yield [script.replace(dimension, "0")]


@operator("axes")
def features_normalized_over_batch(script: Script) -> Mutants:
    """Vectors are normalized over the samples of the batch, not each to length one."""
    for call in calls(script, "normalize"):
        dimension = argument(call, 2, "dim")
        tensor = tensor_of(call)
        if tensor is None or is_method(call) or not isinstance(call.func, ast.Attribute):
            continue
        if dimension is None and len(call.args) == 1:
            yield [replace_argument(script, call, 2, "dim", "0")]
        elif number(dimension) in (1, -1) and dimension is not None:
            yield [script.replace(dimension, "0")]


@operator("axes")
def statistics_over_batch(script: Script) -> Mutants:
    """A mean or deviation is taken over the batch instead of the features."""
    for call in calls(script, "mean", "std", "var"):
        dimension = dimension_of(call)
        kept = keyword(call, "keepdim")
        if (
            dimension is not None
            and number(dimension) in (-1, 1)
            and kept is not None
            and "True" in script.source(kept)
        ):
            yield [script.replace(dimension, "0")]


def spelled_out(call: ast.expr, count: int) -> bool:
    """Whether an expression is a view or reshape to at least so many sizes, one by one."""
    return (
        isinstance(call, ast.Call)
        and function_name(call) in ("view", "reshape")
        and is_method(call)
        and len(call.args) >= count
        and not any(isinstance(entry, ast.Starred) for entry in call.args)
    )


def swaps(call: ast.expr, first: int, second: int) -> bool:
    """Whether an expression is `tensor.transpose(first, second)`."""
    return (
        isinstance(call, ast.Call)
        and function_name(call) == "transpose"
        and is_method(call)
        and {number(entry) for entry in call.args} == {first, second}
    )


@operator("axes", "heads-merged-across-positions")
def heads_merged_without_transpose(script: Script) -> Mutants:
    """The heads are merged without moving them back behind the time axis, which mixes heads and positions."""
    for call in calls(script, "view", "reshape"):
        inner = call.func.value if isinstance(call.func, ast.Attribute) else None
        contiguous = isinstance(inner, ast.Call) and function_name(inner) == "contiguous"
        if contiguous:
            assert isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute)
            inner = inner.func.value
        if inner is None or not spelled_out(call, 3) or not swaps(inner, 1, 2):
            continue
        tensor = tensor_of(inner) if isinstance(inner, ast.Call) else None
        if tensor is not None and not spelled_out(tensor, 4):
            sizes = ", ".join(script.source(entry) for entry in call.args)
            yield [script.replace(call, f"{text_of(script, tensor)}.reshape({sizes})")]


@operator("axes")
def heads_split_without_transpose(script: Script) -> Mutants:
    """The heads are split by a view with the axes in the wrong order instead of a transpose, which mixes positions."""
    for call in calls(script, "transpose"):
        tensor = tensor_of(call)
        if tensor is not None and swaps(call, 1, 2) and spelled_out(tensor, 4):
            assert isinstance(tensor, ast.Call) and isinstance(tensor.func, ast.Attribute)
            sizes = [script.source(entry) for entry in tensor.args]
            sizes[1], sizes[2] = sizes[2], sizes[1]
            base = text_of(script, tensor.func.value)
            yield [script.replace(call, f"{base}.reshape({', '.join(sizes)})")]


@operator("axes")
def reshape_for_permute(script: Script) -> Mutants:
    """A reshape to the new shape replaces the permutation of axes, so the values end up in the wrong places."""
    for call in calls(script, "permute"):
        tensor, order = tensor_of(call), [number(entry) for entry in call.args]
        if (
            not isinstance(tensor, ast.Name)
            or not is_method(call)
            or sorted(map(str, order)) != [str(index) for index in range(len(order))]
        ):
            continue
        sizes = ", ".join(f"{tensor.id}.size({index})" for index in order)
        yield [script.replace(call, f"{tensor.id}.reshape({sizes})")]
    for call in calls(script, "transpose"):
        tensor = tensor_of(call)
        if isinstance(tensor, ast.Name) and swaps(call, 1, 2) and is_plain_sequence(script, call):
            name = tensor.id
            yield [script.replace(call, f"{name}.reshape({name}.size(0), {name}.size(2), {name}.size(1))")]


def is_plain_sequence(script: Script, call: ast.Call) -> bool:
    """Whether the swapped tensor has three axes, as far as the script shows: no heads are split or merged around it."""
    merges = ("view", "reshape", "flatten")
    parents = list(script.parents(call))[:4]
    if any(isinstance(parent, ast.Call) and function_name(parent) in merges for parent in parents):
        return False
    tensor = tensor_of(call)
    assert tensor is not None
    return not any(
        isinstance(node, ast.Call)
        and (function_name(node) in ("unflatten", "scaled_dot_product_attention", "matmul") or spelled_out(node, 4))
        for value in sources(script, tensor)
        for node in ast.walk(value)
    )


@operator("axes")
def streams_cut_by_view(script: Script) -> Mutants:
    """The token stream is viewed as columns instead of transposed rows, which scatters consecutive tokens."""
    for call in calls(script, "t"):
        tensor = tensor_of(call)
        if isinstance(tensor, ast.Call) and spelled_out(tensor, 2) and len(tensor.args) == 2 and not call.args:
            assert isinstance(tensor.func, ast.Attribute)
            first, second = (script.source(entry) for entry in tensor.args)
            base = text_of(script, tensor.func.value)
            yield [script.replace(call, f"{base}.{tensor.func.attr}({second}, {first})")]


@operator("axes")
def batch_first_forgotten(script: Script) -> Mutants:
    """`batch_first=True` is missing, so the layer runs over the samples of the batch as if they were time steps."""
    masks = re.search(r"padding_mask|_mask=|\bmask=|is_causal=|pack_padded|attn_mask", script.text)
    recurrent = ("LSTM", "GRU", "RNN")
    for name, value, _ in assignments(script):
        if not isinstance(value, ast.Call) or function_name(value) not in (
            *recurrent,
            "TransformerEncoderLayer",
            "MultiheadAttention",
        ):
            continue
        first = keyword(value, "batch_first")
        if first is None or "True" not in script.source(first) or masks:
            continue
        if function_name(value) in recurrent:
            used = [call for call in script.walk(ast.Call) if isinstance(call, ast.Call) and dotted(call.func) == name]
            if not used or any(len(call.args) != 1 or not _drops_state(script, call) for call in used):
                continue
        if edit := drop_keyword(script, value, "batch_first"):
            yield [edit]


def _drops_state(script: Script, call: ast.Call) -> bool:
    """Whether only the output of a recurrent layer is used, not its last hidden state."""
    parent = call.parent  # type: ignore[attr-defined]
    if isinstance(parent, ast.Subscript):
        return number(parent.slice if isinstance(parent.slice, ast.expr) else None) == 0
    if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Tuple):
        state = parent.targets[0].elts[-1]
        return isinstance(state, ast.Name) and (
            state.id.startswith("_") or script.text.count(state.id) == script.source(parent).count(state.id)
        )
    return False


@operator("axes", "result-size-differs", "unexpected-loss-input")
def loss_broadcasts(script: Script) -> Mutants:
    """Prediction and target differ by an axis of size one, so the loss compares each prediction with all targets."""
    for loss in loss_calls(script, "mse_loss", "smooth_l1_loss", "l1_loss", "huber_loss"):
        for operand in loss.call.args[:2]:
            for value in sources(script, operand, depth=1):
                flat = value
                if isinstance(flat, ast.Call) and isinstance(flat.func, ast.Attribute) and is_method(flat):
                    flattens = flat.func.attr in ("view", "reshape") and [number(e) for e in flat.args] == [-1]
                    squeezes = flat.func.attr == "squeeze" and (not flat.args or number(flat.args[0]) in (1, -1))
                    if (flattens or squeezes) and (value is operand or dotted(operand)):
                        yield [script.replace(value, script.source(flat.func.value))]


@operator("normalization")
def attention_not_scaled(script: Script) -> Mutants:
    """The attention scores are not divided by the square root of the size of a head."""
    for node in script.walk(ast.BinOp):
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult | ast.Div):
            continue
        for factor in (node.right, node.left):
            if isinstance(node.op, ast.Div) and factor is node.left:
                continue
            other = node.left if factor is node.right else node.right
            text = script.source(factor)
            scales = re.search(r"sqrt|\*\* ?\(?-?0\.5|scale\b", text) and not mentions(factor, "logit|loss|embed")
            scales = scales and not any(function_name(call) in LOSSES for call in enclosing_calls(script, node))
            if scales and _is_product(script, other, node) and (edit := without_factor(script, factor)):
                yield [edit]
                break


def enclosing_calls(script: Script, node: ast.AST) -> Iterator[ast.Call]:
    """The calls in whose arguments `node` stands."""
    for parent in script.parents(node):
        if isinstance(parent, ast.stmt):
            return
        if isinstance(parent, ast.Call):
            yield parent


def _is_product(script: Script, operand: ast.expr, node: ast.BinOp) -> bool:
    """Whether scores are scaled here: their product itself, or the query that goes into it."""
    if any(isinstance(child, ast.BinOp) and isinstance(child.op, ast.MatMult) for child in ast.walk(operand)):
        return True
    if isinstance(operand, ast.Call) and function_name(operand) in ("matmul", "bmm", "einsum"):
        return True
    parent = node.parent  # type: ignore[attr-defined]
    return isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.MatMult)
