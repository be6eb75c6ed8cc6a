"""Names the leaves of the trees (pytrees) that a jitted function takes, and says what each of them is for.

Note [Roles of leaves]
JAX has no parameters and no optimizer objects: a step takes and returns trees of arrays. TrainCheck recognises

* *optimizer state*: leaves inside a named tuple of optax, such as `ScaleByAdamState(count, mu, nu)`;
* *parameters*: floating point leaves of another tree that have the path and shape of leaves in such a state (`mu` of
  `Dense_0.kernel`), and the other leaves of that tree, as a mask may leave them out of the state;
* without such a state (plain SGD), floating point leaves that the function returns under the same path and shape;
* *keys* by their type, and *the batch*: the arrays that are none of these and do not come back.

A name begins with the name of the argument: `state.params.Dense_0.kernel`.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from traincheck.sources.jax.digests import is_key

Path = tuple[str, ...]

BOXED = "value"
"""The only child of a box around an array: a variable of Flax NNX, or a partitioned parameter of Linen."""

_ACCUMULATION, _CONDITION = "MultiStepsState", "ApplyIfFiniteState"
_RESTARTING = "ReduceLROnPlateauState"
"""States of optax that skip updates on purpose, and one whose counter begins again."""


class Leaf(NamedTuple):
    """A leaf: its path, the class of the box around it, and the innermost state of optax around it, if there is one.

    Of that state it has the class, and how many entries of the path lead to the field that holds the leaf.
    """

    path: Path
    box: str = ""
    state: str = ""
    depth: int = 0

    @property
    def field(self) -> str:
        """The field of the state, such as `mu`."""
        return self.path[self.depth - 1] if self.depth else ""

    @property
    def inside(self) -> Path:
        """The path inside the field."""
        return self.path[self.depth :]


class Tree(NamedTuple):
    """A tree: its leaves in the order of `jax.tree_util.tree_flatten`, and the classes of the states of optax in it, of
    which some have no leaves."""

    leaves: Sequence[Leaf]
    states: Sequence[str]


class Parameter(NamedTuple):
    """A parameter: the position of its `leaf`, and those of the optimizer state kept for it, by field.

    `gradient` is the position of its gradient, -1 if the call computes it. `low_precision` means fewer bits than single
    precision, and `scalar` a single number.
    """

    leaf: int
    name: str
    state: Mapping[str, int]
    gradient: int
    low_precision: bool
    scalar: bool

    @property
    def read_with_it(self) -> list[int]:
        """The leaves that show whether the parameter got a gradient: that gradient, or one array of the state."""
        return [self.gradient] if self.gradient >= 0 else list(self.state.values())[:1]


class Roles(NamedTuple):
    """What the leaves of an update's arguments are for, by their positions. `counters` count updates; `accumulated` and
    `applied` are those of a state that skips updates on purpose: a counter of those that it made, and a flag."""

    optimizer: str
    parameters: Sequence[Parameter]
    counters: Sequence[int]
    accumulated: Sequence[int]
    applied: Sequence[int]
    rates: Mapping[int, str]
    keys: Mapping[int, str]
    batch: Mapping[int, str]

    @property
    def followed(self) -> list[int]:
        """The positions of all leaves whose values describe the state of the training."""
        of_parameters = [(parameter.leaf, *parameter.read_with_it) for parameter in self.parameters]
        others = (*self.counters, *self.accumulated, *self.applied, *self.rates)
        return sorted({*others, *(index for indices in of_parameters for index in indices)})


def argument_names(function: Callable[..., Any], count: int) -> list[str]:
    """The names of the first `count` positional arguments of a function."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [parameter.name for parameter in parameters if parameter.kind is not inspect.Parameter.VAR_POSITIONAL]
    return [names[position] if position < len(names) else f"argument{position + 1}" for position in range(count)]


def tree_of(args: Sequence[Any], keywords: Mapping[str, Any], names: Sequence[str]) -> Tree:
    """The arguments of a call."""
    states: list[str] = []
    leaves: list[Leaf] = []
    for name, value in zip(names, args, strict=True):
        leaves += _leaves(value, Leaf((name,)), states)
    for name in sorted(keywords):
        leaves += _leaves(keywords[name], Leaf((name,)), states)
    return Tree(leaves, states)


def result_tree(result: Any) -> Tree:
    """The result of a call."""
    states: list[str] = []
    return Tree(list(_leaves(result, Leaf(()), states)), states)


def _leaves(node: Any, at: Leaf, states: list[str]) -> Iterator[Leaf]:
    children = _children(node)
    if children is None:
        yield at
        return
    cls = type(node)
    of_optax = hasattr(cls, "_fields") and cls.__module__.partition(".")[0] == "optax"
    if of_optax:
        states.append(cls.__name__)
    for name, child in children:
        if child is None:  # a node without leaves
            continue
        if len(children) == 1 and name == BOXED and _children(child) is None:
            yield at._replace(box=cls.__name__)
            continue
        path = (*at.path, name)
        yield from _leaves(
            child, Leaf(path, "", cls.__name__, len(path)) if of_optax else at._replace(path=path), states
        )


def _children(node: Any) -> list[tuple[str, Any]] | None:
    """The named children of a node, None for a leaf."""
    flatten = sys.modules["jax"].tree_util.tree_flatten_with_path
    children = flatten(node, is_leaf=lambda child: child is not node)[0]
    if len(children) == 1 and not children[0][0]:
        return None
    return [(_entry(path[0]), child) for path, child in children]


def _entry(key: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


# -- roles -----------------------------------------------------------------------------------------------------------


def roles_of(tree: Tree, arrays: Sequence[Any], returned: Mapping[int, int]) -> Roles:
    """The roles of the leaves of an update's arguments. `returned` holds the leaves that come back, see `matched`."""
    state = [index for index, leaf in enumerate(tree.leaves) if leaf.state and _is_array(arrays[index])]
    kept = {index: tree.leaves[index] for index in state if _is_floating(arrays[index])}
    outside = [index for index, leaf in enumerate(tree.leaves) if not leaf.state and _is_array(arrays[index])]
    keys = {index: ".".join(tree.leaves[index].path) for index in outside if is_key(arrays[index])}
    floating = [index for index in outside if _is_floating(arrays[index])]
    parameters = _parameters(tree, arrays, kept, floating, returned)
    named = {index for parameter in parameters for index in (parameter.leaf, parameter.gradient)}
    batch = {
        index: ".".join(tree.leaves[index].path)
        for index in outside
        if index not in keys and index not in named and index not in returned
    }

    def fields(*names: str, states: str = "", without: str = "") -> list[int]:
        return [
            index
            for index in state
            if tree.leaves[index].field in names
            and not tree.leaves[index].inside
            and states in ("", tree.leaves[index].state)
            and tree.leaves[index].state != without
        ]

    return Roles(
        optimizer="+".join(name.removesuffix("State") for name in dict.fromkeys(tree.states) if name != "EmptyState"),
        parameters=parameters,
        counters=[index for index in fields("count", without=_RESTARTING) if not _is_floating(arrays[index])],
        accumulated=fields("gradient_step", states=_ACCUMULATION),
        applied=fields("last_finite", states=_CONDITION),
        rates={
            index: tree.leaves[index].path[-1]
            for index in kept
            if tree.leaves[index].field == "hyperparams" and not getattr(arrays[index], "shape", (1,))
        },
        keys=keys,
        batch=batch,
    )


def _parameters(
    tree: Tree,
    arrays: Sequence[Any],
    kept: Mapping[int, Leaf],
    floating: Sequence[int],
    returned: Mapping[int, int],
) -> list[Parameter]:
    """The parameters, see Note [Roles of leaves]."""
    by_place = {
        (leaf.inside, tuple(arrays[index].shape)): None for index, leaf in kept.items() if leaf.field != "hyperparams"
    }
    votes: Counter[Path] = Counter()
    for index in floating:
        path, shape = tree.leaves[index].path, tuple(arrays[index].shape)
        for inside, of_state in by_place:
            if shape == of_state and (shape or inside) and path[len(path) - len(inside) :] == inside:
                votes[path[: len(path) - len(inside)]] += 1
    roots, of_gradients = _roots(votes, tree, floating, returned)
    by_path = {tree.leaves[index].path: index for index in floating}
    if not roots and not votes:
        return [_parameter(tree, arrays, index, {}, -1) for index in floating if index in returned]
    parameters = []
    boxes = {tree.leaves[index].box for index in floating if _place(tree, arrays, index, roots) in by_place}
    for index in floating:
        path = tree.leaves[index].path
        if boxes and tree.leaves[index].box not in boxes:  # a running mean, say
            continue
        root = next((root for root in roots if path[: len(root)] == root), None)
        if root is not None:
            inside = path[len(root) :]
            state = {
                leaf.field: position
                for position, leaf in kept.items()
                if leaf.inside == inside and tuple(arrays[position].shape) == tuple(arrays[index].shape)
            }
            gradient = by_path.get((*of_gradients, *inside), -1) if of_gradients else -1
            parameters.append(_parameter(tree, arrays, index, state, gradient))
    return parameters


def _place(tree: Tree, arrays: Sequence[Any], index: int, roots: Sequence[Path]) -> tuple[Path, tuple[int, ...]] | None:
    """The path of a leaf inside its root, and its shape; None outside."""
    path = tree.leaves[index].path
    root = next((root for root in roots if path[: len(root)] == root), None)
    return None if root is None else (path[len(root) :], tuple(arrays[index].shape))


def _parameter(tree: Tree, arrays: Sequence[Any], index: int, state: Mapping[str, int], gradient: int) -> Parameter:
    array = arrays[index]
    name = ".".join(tree.leaves[index].path)
    return Parameter(index, name, state, gradient, array.dtype.itemsize < 4, array.size == 1)


def _roots(
    votes: Mapping[Path, int], tree: Tree, floating: Sequence[int], returned: Mapping[int, int]
) -> tuple[list[Path], Path]:
    """The trees of parameters, and the tree of gradients (empty for none).

    Gradients have the form of parameters, too. Parameters (and averages of them) come back from the function. If none
    does, the first tree holds the parameters.
    """
    if not votes:
        return [], ()
    most = max(votes.values())
    likely = [root for root, count in votes.items() if count == most]
    back = [
        root
        for root in likely
        if any(index in returned for index in floating if tree.leaves[index].path[: len(root)] == root)
    ]
    parameters = back or likely[:1]
    others = [root for root in likely if root not in parameters]
    return parameters, others[0] if len(others) == 1 else ()


def matched(tree: Tree, arrays: Sequence[Any], result: Tree, returned: Sequence[Any]) -> dict[int, int]:
    """The leaves of the arguments that come back in the result, and their positions there.

    Such a leaf has the same path in one member of the result, and the same shape and type. An argument that is an array
    by itself comes back as the member with its own number.
    """
    by_place: dict[tuple[Path, object], list[int]] = {}
    for position, leaf in enumerate(result.leaves):
        if _is_array(returned[position]):
            for path in {leaf.path, leaf.path[1:]} - {()}:
                by_place.setdefault((path, _form(returned[position])), []).append(position)
    whole = {leaf.path: position for position, leaf in enumerate(result.leaves) if len(leaf.path) < 2}
    arguments = list(dict.fromkeys(leaf.path[0] for leaf in tree.leaves))
    pairs: dict[int, int] = {}
    taken: set[int] = set()
    for index, leaf in enumerate(tree.leaves):
        if not _is_array(arrays[index]):
            continue
        places: Sequence[int] = by_place.get((leaf.path[1:], _form(arrays[index])), ())
        if len(leaf.path) == 1:
            number = arguments.index(leaf.path[0])
            member = whole.get((str(number),), whole.get(()) if not number else None)
            places = () if member is None or _form(returned[member]) != _form(arrays[index]) else (member,)
        free = next((place for place in places if place not in taken), None)
        if free is not None:
            taken.add(free)
            pairs[index] = free
    return pairs


def _is_array(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _is_floating(array: Any) -> bool:
    jax = sys.modules["jax"]
    return bool(jax.dtypes.issubdtype(array.dtype, sys.modules["numpy"].inexact))


def _form(array: Any) -> tuple[object, ...]:
    """The shape and the type of an array. (A state may be kept in another type than its parameter.)"""
    return (*array.shape, str(array.dtype))
