"""Observes calls of jitted functions, and recognises those that make updates.

Note [Calls of jitted functions]
A jitted function runs its Python code only once, while JAX traces it. So updates are seen where the program calls the
jitted function: `jax.jit`, `jax.pmap` and `flax.nnx.jit` return a callable that hands each call on, and that has every
attribute of the function of JAX. Calls inside other jitted functions, and those of other threads, pass at once.

A call is an update

* if it takes states of optax and returns them; or
* if JAX differentiated a function while it traced the call, the call returns floating point arrays under the paths of
  its arguments, and the program passes them to the next call (an update written by hand); or
* if it takes an optimizer of Flax NNX, and JAX differentiated a function in it. NNX changes its objects in place.

The first call of a function with arguments of one structure decides. Known limitations: TrainCheck sees no update that
a program makes outside jitted functions, several updates in one call count as one (`lax.scan` over batches), and a
function that was jitted before TrainCheck began is not seen.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import Any, NamedTuple

from traincheck.sources.base import replace
from traincheck.sources.compile.compiled_calls import WhenImported
from traincheck.sources.jax.digests import Digester, PendingDigests
from traincheck.sources.jax.trees import Roles, Tree, argument_names, matched, result_tree, roles_of, tree_of
from traincheck.sources.jax.updates import RunningUpdate, UpdateFunction, Updates
from traincheck.sources.recording.patches import UndoStack
from traincheck.sources.recording.recorder import Recorder
from traincheck.vocab.demand import Demand

SOURCE = "jax"
FLAX = "flax.nnx.transforms.compilation"
"""The module of Flax with the classes behind `nnx.jit`."""

MAX_STRUCTURES = 64
"""Structures of arguments that are told apart for each function. A function with more of them makes no updates."""


MAX_IDLE_CALLS = 100
"""Calls of a function that makes no update, after which its calls pass at once. A program may call a small function
thousands of times in a step."""


class ObservedFunction:
    """A jitted function that hands its calls on through `JittedFunctions`. Every attribute is that of the function."""

    def __init__(self, function: Any, calls: JittedFunctions) -> None:
        self.__dict__.update(vars(function))  # with the names, and `__wrapped__`
        self.__dict__.update(_function=function, _call=functools.partial(calls.call, _Observed(function), function))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(args, kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_function"], name)

    def __repr__(self) -> str:
        return repr(self._function)

    def __reduce__(self) -> Any:
        return _same, (self._function,)


def _same(function: Any) -> Any:
    return function


class _Observed:
    """What is known of a function: for each structure of its arguments, the update that it makes, or None. `idle_calls`
    counts calls that made none."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.name = str(getattr(function, "__qualname__", "update"))
        self.updates: dict[Any, UpdateFunction | _Candidate | None] = {}
        self.idle_calls = 0

    @property
    def makes_updates(self) -> bool:
        """Whether some call of the function was an update."""
        return any(type(update) is UpdateFunction for update in self.updates.values())


class _FirstCall(NamedTuple):
    """The first call of a function with this structure of arguments, and the position where it began."""

    structure: Any
    tree: Tree
    leaves: Sequence[Any]
    seq: int
    site: str
    in_place: bool
    now: PendingDigests | None


class _Candidate:
    """A function that may make updates by hand. `seq` is where its first call began, `pairs` holds the parameters that
    it returns, with their positions in the result, and `last` the arrays that it returned last."""

    def __init__(self, tree: Tree, roles: Roles, pairs: Mapping[int, int], seq: int) -> None:
        self.tree, self.roles, self.pairs, self.seq = tree, roles, pairs, seq
        self.last: dict[int, weakref.ref[Any]] = {}

    def call_ends(self, returned: Sequence[Any]) -> None:
        self.last = {index: weakref.ref(returned[position]) for index, position in self.pairs.items()}

    def is_confirmed_by(self, leaves: Sequence[Any]) -> bool:
        """Whether the program passes back what the last call returned."""
        return any(reference() is leaves[index] for index, reference in self.last.items())


class JittedFunctions:
    """Makes observed functions, and recognises updates in their calls."""

    def __init__(self, may_step: Callable[[], None]) -> None:
        self._jax = sys.modules["jax"]
        self._may_step = may_step
        self._thread = threading.get_ident()
        self._is_tracing = _tracing_test()
        self._digester = Digester(self._jax.jit)
        self._updates = Updates(self._digester)
        self._active = False
        self._inside = False  # a call under way
        self._differentiated = False  # in the call under way
        self._names: dict[str, int] = {}

    def attach(self, undo: UndoStack, demand: Demand, recorder: Recorder, when_imported: WhenImported) -> None:
        """Observe functions that are jitted from now on, and those that were jitted while it was attached before."""
        self._recorder = recorder
        self._updates.attach(undo, demand, recorder)
        self._begin = recorder.guarded(SOURCE, self._call_begins, always=True)
        self._end = recorder.guarded(SOURCE, self._call_ends, always=True)
        self._fail = recorder.guarded(SOURCE, self._call_failed, always=True)
        self._active = True
        undo.callback(self._detach)
        for name in ("jit", "pmap"):
            replace(undo, self._jax, name, self._observing)
        for name in ("grad", "value_and_grad"):
            replace(undo, self._jax, name, self._noting_derivatives)
        flax = recorder.guarded(SOURCE, lambda: self._observe_flax(undo), always=True)
        undo.callback(when_imported(FLAX, flax, None))

    def _detach(self) -> None:
        self._active = False

    # -- patches -------------------------------------------------------------------------------------------------------

    def _observing(self, transform: Callable[..., Any]) -> Callable[..., Any]:
        """`jax.jit` or `jax.pmap`, whose functions are observed."""

        @functools.wraps(transform)
        def transformed(*args: Any, **kwargs: Any) -> Any:
            function = transform(*args, **kwargs)
            if hasattr(function, "lower"):
                return ObservedFunction(function, self)
            if callable(function):  # a decorator that was given only options

                def decorate(*inner_args: Any, **inner_kwargs: Any) -> Any:
                    return ObservedFunction(function(*inner_args, **inner_kwargs), self)

                return decorate
            return function

        return transformed

    def _noting_derivatives(self, transform: Callable[..., Any]) -> Callable[..., Any]:
        """`jax.grad` or `jax.value_and_grad`, whose functions note that a derivative is computed."""

        @functools.wraps(transform)
        def transformed(*args: Any, **kwargs: Any) -> Any:
            function = transform(*args, **kwargs)

            @functools.wraps(function)
            def derivative(*inner_args: Any, **inner_kwargs: Any) -> Any:
                self._differentiated = True
                return function(*inner_args, **inner_kwargs)

            return derivative

        return transformed

    def _observe_flax(self, undo: UndoStack) -> None:
        module = sys.modules[FLAX]
        for name in ("JitWrapped", "SimpleJitWrapped"):
            cls = getattr(module, name, None)
            if cls is not None:
                replace(undo, cls, "__call__", self._observing_objects)

    def _observing_objects(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """The method that calls a function made by `nnx.jit`."""

        @functools.wraps(method)
        def call(jitted: Any, *args: Any, **kwargs: Any) -> Any:
            observed = jitted.__dict__.get("_traincheck")
            if observed is None:
                observed = _Observed(jitted)
                object.__setattr__(jitted, "_traincheck", observed)
            return self.call(observed, functools.partial(method, jitted), args, kwargs)

        return call

    # -- calls ---------------------------------------------------------------------------------------------------------

    def call(
        self, observed: _Observed, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call `function`, and report the update that it makes, if it makes one."""
        if observed.idle_calls >= MAX_IDLE_CALLS or not self._active or self._inside or self._is_tracing():
            return function(*args, **kwargs)
        if threading.get_ident() != self._thread:
            return function(*args, **kwargs)
        if observed.makes_updates:
            self._may_step()
        token = self._begin(observed, args, kwargs)
        self._inside, self._differentiated = True, False
        try:
            result = function(*args, **kwargs)
        except BaseException:
            self._fail(token)
            raise
        finally:
            self._inside = False
        if token is not None:
            self._end(observed, token, result)
        return result

    def _call_begins(
        self, observed: _Observed, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> _FirstCall | _Candidate | RunningUpdate | None:
        self._recorder.between_calls()
        leaves, structure = self._jax.tree_util.tree_flatten((args, kwargs))
        update = observed.updates.get(structure, self)
        if update is None or (update is self and len(observed.updates) >= MAX_STRUCTURES):
            observed.idle_calls += not observed.makes_updates
            return None
        if isinstance(update, _Candidate):
            if not update.is_confirmed_by(leaves):
                return update
            observed.updates[structure] = confirmed = self._update_function(observed, update.tree, update.roles)
            self._updates.confirmed(confirmed, leaves, update.seq)
            update = confirmed
        if isinstance(update, UpdateFunction):
            return self._updates.begins(update, leaves, self._recorder.sites.here())
        in_place = hasattr(observed.function, "__dict__") and "_traincheck" in observed.function.__dict__
        tree = tree_of(args, kwargs, argument_names(observed.function, len(args)))
        if len(tree.leaves) != len(leaves):  # a class of the program has children that come and go
            observed.updates[structure] = None
            return None
        now = self._updates.read_first(leaves) if tree.states else None
        seq = self._recorder.next_seq()
        return _FirstCall(structure, tree, leaves, seq, self._recorder.sites.here(), in_place, now)

    def _call_ends(self, observed: _Observed, token: _FirstCall | _Candidate | RunningUpdate, result: Any) -> None:
        returned = self._jax.tree_util.tree_leaves(result)
        if isinstance(token, _Candidate):
            token.call_ends(returned)
            return
        if isinstance(token, RunningUpdate):
            self._updates.ends(token, returned)
            return
        structure, tree, leaves, seq, site, in_place, now = token
        observed.updates[structure] = None
        results = result_tree(result)
        pairs = matched(tree, leaves, results, returned) if len(results.leaves) == len(returned) else {}
        if in_place:
            is_update = bool(tree.states) and self._differentiated
            pairs = {index: index for index, leaf in enumerate(tree.leaves) if leaf.box}
        else:
            is_update = bool(tree.states and results.states)
        by_hand = not is_update and not in_place and self._differentiated and bool(pairs)
        roles = roles_of(tree, leaves, pairs) if is_update or by_hand else None
        if roles is None or not (roles.parameters or roles.counters):
            return
        if by_hand:
            own = {parameter.leaf: pairs[parameter.leaf] for parameter in roles.parameters if parameter.leaf in pairs}
            observed.updates[structure] = candidate = _Candidate(tree, roles, own, seq)
            candidate.call_ends(returned)
            return
        observed.updates[structure] = update = self._update_function(observed, tree, roles, in_place=in_place)
        self._updates.first(update, leaves, seq, site, returned, now)

    def _update_function(
        self, observed: _Observed, tree: Tree, roles: Roles, *, in_place: bool = False
    ) -> UpdateFunction:
        return UpdateFunction(self._name(observed.name), tree, roles, in_place=in_place)

    def _call_failed(self, token: _FirstCall | _Candidate | RunningUpdate | None) -> None:
        if isinstance(token, RunningUpdate):
            self._updates.fails(token)

    def _name(self, function: str) -> str:
        """The name of an update function: that of the function, numbered from the second structure on."""
        name = function.rpartition("<locals>.")[2]
        count = self._names[name] = self._names.get(name, 0) + 1
        return name if count == 1 else f"{name}#{count}"


def _tracing_test() -> Callable[[], bool]:
    """A function that says whether JAX is tracing a function now."""
    core = sys.modules.get("jax._src.core") or sys.modules["jax"].core
    clean = core.trace_state_clean
    return lambda: not clean()
