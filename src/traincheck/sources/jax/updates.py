"""Reports updates of jitted functions: what they changed, counters, rates, keys and batches.

Note [What the last update changed]
TrainCheck compares the state that a step takes with the state that the step before took, which shows what the program
did with the results of that step: an update whose result is dropped changes nothing. So a change is reported with the
step after it, and the last update of a run is not judged. See Note [Read one step late] in digests.py.

A function may update several models in turn. The state of a call continues that of an earlier call if an array of it is
an array that the earlier call took or returned; otherwise it is another state, with a name of its own.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from traincheck.sources.jax.digests import ArrayDigest, Digester, PendingDigests
from traincheck.sources.jax.trees import Parameter, Roles, Tree
from traincheck.sources.recording.call_stack import OpenCall
from traincheck.sources.recording.context_facts import context_facts_with
from traincheck.sources.recording.descriptions import Descriptions
from traincheck.sources.recording.listener import RecorderListener
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.recording.step_tracker import Cut
from traincheck.vocab.builtin_rules import DIFFERENT_COPIES, PARAMETER
from traincheck.vocab.demand import BATCH, FORM, MODEL, PARAMETERS, WITH_GRADIENTS, Demand
from traincheck.vocab.events import LIFECYCLE, LIVE, NO_CALL, Change, Reading, without_positions
from traincheck.vocab.facts import Facts, FactValue, facts, merged

SOURCE = "jax"
LEVELS = ("jax.update", "torch.optim.Optimizer.step")
DATA = "parameter.data"
SOME, ZERO, NONE, UNUSED = "some", "zero", "none", "unused"

RANDOM, KEY = "random", "key"
MODULE, CONTENT = "module", "content"
HYPERPARAMETER, OPTIMIZER, STATE = "hyperparameter", "optimizer", "optimizer_state"
RATE = {"learning_rate": "lr"}
"""Names of optax for settings that have another name in the rules."""

PATIENCE = 10
"""Updates in a row that change nothing before TrainCheck reports them as such. A rate may begin at zero."""

MAX_STATES = 16
"""States that one function updates. A function whose state is another one in each call cannot be followed."""

MIN_ELEMENTS, MAX_ELEMENTS = 8, 4_000_000
"""Smaller batches may be equal by chance, and larger ones cost too much to read in each step."""


class UpdateFunction:
    """A jitted function that makes updates, with arguments of one structure; and the states that it updates."""

    def __init__(self, name: str, tree: Tree, roles: Roles, *, in_place: bool) -> None:
        self.name = name
        self.tree = tree
        self.roles = roles
        self.in_place = in_place
        self.described = False
        self.makes_several = False  # several updates in one call
        self.states: list[UpdatedState] = []


class UpdatedState:
    """The state of one training: the arrays of the last call by identity, the digests of those that went into it
    (`last`), and for how many updates in a row no parameter has changed (`unchanged`)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.arrays: dict[int, weakref.ref[Any]] = {}
        self.last: PendingDigests | None = None
        self.unchanged = 0

    def continues(self, leaves: Iterable[Any]) -> bool:
        """Whether one of these arrays went into the last call, or came out of it."""
        arrays = self.arrays
        return any((reference := arrays.get(id(leaf))) is not None and reference() is leaf for leaf in leaves)

    def remember(self, leaves: Iterable[Any]) -> None:
        """These arrays went into a call, or came out of it."""
        self.arrays = {id(leaf): weakref.ref(leaf) for leaf in leaves if hasattr(leaf, "dtype")}


class RunningUpdate(NamedTuple):
    """An update under way. `running` is emptied when it ends; `call` is None in a step that is not recorded."""

    function: UpdateFunction
    state: UpdatedState
    running: list[bool]
    leaves: Sequence[Any]
    call: OpenCall | None
    before: PendingDigests | None
    now: PendingDigests | None


class _Ended(NamedTuple):
    """An update whose digests are not fetched: the positions that are reserved for its events, and for its end."""

    update: RunningUpdate
    seqs: list[int]
    end: int


class Updates(RecorderListener):
    """Reports updates to the recorder."""

    def __init__(self, digester: Digester) -> None:
        self._digester = digester
        self._ended: list[_Ended] = []

    def attach(self, undo: ExitStack, demand: Demand, recorder: Recorder) -> None:
        """Report what `demand` holds, until `undo` is closed."""
        self._recorder = recorder
        self._records_calls = demand.records_call(LEVELS)
        self._records_changes = demand.observes_state(LEVELS, DATA)
        self._counters = [name for name in ("step", "lowest_step") if demand.takes_reading(STATE, name)]
        self._reads_rates = demand.takes_readings(HYPERPARAMETER)
        self._reads_class = demand.takes_reading(OPTIMIZER, "class")
        self._reads_keys = demand.takes_reading(RANDOM, KEY)
        self._reads_copies = demand.takes_reading(PARAMETER, DIFFERENT_COPIES)
        self._reads_values = (
            self._records_changes or bool(self._counters) or self._reads_rates or self._reads_copies or self._reads_keys
        )
        self._reads_content = demand.takes_reading(MODULE, CONTENT)
        self._describes = demand.takes_reading(MODEL, PARAMETERS), demand.takes_reading(BATCH, FORM)
        if not recorder.reattaching:
            self._descriptions = Descriptions(recorder, MODEL), Descriptions(recorder, BATCH)
            self._classes: set[str] = set()
        recorder.add_listener(self)
        recorder.on_detach(undo, self._ended.clear)
        self._conclude = recorder.guarded(SOURCE, self._conclude_all)
        recorder.at_end(self._conclude)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def read_first(self, leaves: Sequence[Any]) -> PendingDigests | None:
        """Start the digests of all arguments of a call that may be the first update of a function."""
        arrays = {index: leaf for index, leaf in enumerate(leaves) if hasattr(leaf, "dtype") and hasattr(leaf, "shape")}
        return self._digester.start(arrays) if self._reads_values else None

    def first(
        self,
        function: UpdateFunction,
        leaves: Sequence[Any],
        seq: int,
        site: str,
        returned: Sequence[Any],
        now: PendingDigests | None,
    ) -> None:
        """A call that began at `seq` with these digests was the first one that made an update. Nothing is known of the
        state before it."""
        state = self._state_of(function, leaves)
        if state is not None:
            self._recorder.steps.update_begins(state.name, seq)
            call = self._open_call(function, state, leaves, site)
            self.ends(RunningUpdate(function, state, [], leaves, call, None, now), returned)

    def confirmed(self, function: UpdateFunction, leaves: Sequence[Any], seq: int) -> None:
        """A call that began at `seq` was an update, which shows now: what it returned is passed to the next call."""
        state = self._state_of(function, leaves)
        if state is not None:
            self._recorder.steps.update_begins(state.name, seq)
            self._remember(function, state, leaves, ())
            self._recorder.steps.update_ends(state.name)

    def begins(self, function: UpdateFunction, leaves: Sequence[Any], site: str) -> RunningUpdate | None:
        """A call that makes an update begins."""
        state = self._state_of(function, leaves)
        if state is None:
            return None
        recorder = self._recorder
        running = [True]
        recorder.steps.update_begins(state.name, recorder.next_seq(), lambda: bool(running))
        now = self._digests(function.roles, leaves)
        call = self._open_call(function, state, leaves, site)
        return RunningUpdate(function, state, running, leaves, call, state.last, now)

    def ends(self, update: RunningUpdate, returned: Sequence[Any]) -> None:
        """The call returned these arrays."""
        recorder, state, roles = self._recorder, update.state, update.function.roles
        update.running.clear()
        state.last = update.now
        self._remember(update.function, state, update.leaves, returned)
        if update.call is not None:
            events = 2 * len(roles.parameters) + len(roles.rates) + len(roles.keys) + len(self._counters) + 2
            seqs = [recorder.next_seq() for _ in range(events)]
            self._ended.append(_Ended(update._replace(leaves=()), seqs, recorder.next_seq()))
        recorder.steps.update_ends(state.name)

    def fails(self, update: RunningUpdate) -> None:
        """The call raised, and has changed nothing."""
        update.running.clear()
        self._recorder.steps.update_failed()

    def _open_call(
        self, function: UpdateFunction, state: UpdatedState, leaves: Sequence[Any], site: str
    ) -> OpenCall | None:
        """A call that is recorded when its window closes, None if it is not recorded."""
        recorder = self._recorder
        if not recorder.watching or not self._records_calls:
            return None
        around = recorder.innermost_call()
        parent = NO_CALL if around is None else around.seq
        context = context_facts_with(closure=False, lr=NONE)
        call = OpenCall(recorder.next_seq(), parent, LIFECYCLE, LEVELS, state.name, site, context, ())
        if not function.described:
            function.described = True
            self._describe(call.seq, function, leaves)
        return call

    def _digests(self, roles: Roles, leaves: Sequence[Any]) -> PendingDigests | None:
        followed: list[int] = []
        if self._reads_values:
            followed += roles.followed
        if self._reads_keys:
            followed += roles.keys
        if self._reads_content:
            followed += self._readable_batch(roles, leaves)
        return self._digester.start({index: leaves[index] for index in followed}) if followed else None

    def _readable_batch(self, roles: Roles, leaves: Sequence[Any]) -> list[int]:
        """The leaves of the batch, if all of it can be read."""
        elements = sum(leaves[index].size for index in roles.batch)
        return list(roles.batch) if MIN_ELEMENTS <= elements <= MAX_ELEMENTS else []

    def _remember(
        self, function: UpdateFunction, state: UpdatedState, leaves: Sequence[Any], returned: Sequence[Any]
    ) -> None:
        followed = [leaves[index] for index in function.roles.followed]
        state.remember(itertools.chain(followed, () if function.in_place else returned))

    def _state_of(self, function: UpdateFunction, leaves: Sequence[Any]) -> UpdatedState | None:
        """The state that a call continues, or a new one; None if there are too many."""
        states = function.states
        if function.in_place and states:
            return states[0]
        followed = [leaves[index] for index in function.roles.followed]
        for state in states:
            if state.continues(followed):
                return state
        if len(states) >= MAX_STATES:
            self._recorder.report_unobservable(
                f"updates by {function.name}: the program passes other arrays than the last call took or returned"
            )
            return None
        name = function.name if not states else f"{function.name}#{len(states) + 1}"
        states.append(UpdatedState(name))
        return states[-1]

    # -- descriptions --------------------------------------------------------------------------------------------------

    def _describe(self, call: int, function: UpdateFunction, leaves: Sequence[Any]) -> None:
        """Report how the parameters are treated, and what the function is called with."""
        roles, tree = function.roles, function.tree
        if self._reads_class and roles.optimizer and function.name not in self._classes:
            self._classes.add(function.name)
            self._read(self._recorder.next_seq(), call, function.name, OPTIMIZER, "class", f"optax.{roles.optimizer}")
        if self._describes[0] and roles.parameters:
            lines = {_treatment(parameter, tree) for parameter in roles.parameters}
            self._descriptions[0].report(call, function.name, PARAMETERS, "\n".join(sorted(lines)))
        if self._describes[1] and roles.batch:
            forms = {f"{name} is {_form(leaves[index])}" for index, name in roles.batch.items()}
            self._descriptions[1].report(call, function.name, FORM, "\n".join((WITH_GRADIENTS, *sorted(forms))))

    # -- conclusions ---------------------------------------------------------------------------------------------------

    def window_closing(self, cut: Cut) -> None:
        self._conclude()

    def window_closed(self, cut: Cut) -> None:
        self._ended.clear()

    def _conclude_all(self) -> None:
        """Fetch the digests of the updates in the window, and record what they show."""
        ended, self._ended[:] = list(self._ended), ()
        for update, seqs, end in ended:
            self._conclude_update(update, iter(seqs), end)

    def _conclude_update(self, update: RunningUpdate, positions: Iterator[int], end: int) -> None:
        call, state, roles = update.call, update.state, update.function.roles
        assert call is not None
        now = update.now.fetch() if update.now is not None else {}
        before = update.before.fetch() if update.before is not None else {}
        if any(before[index].parts != now[index].parts for index in before.keys() & now.keys()):
            before = {}  # the program has divided its arrays in another way, so they cannot be compared
        rate = self._read_rates(call.seq, update, now, positions)
        extra: dict[str, FactValue] = {"lr": rate}
        if self._was_applied(roles, before, now):
            if self._records_changes and before:
                extra.update(self._record_changes(call.seq, update, before, now, rate, positions))
            self._read_counters(call.seq, update, before, now, positions)
        if self._reads_copies:
            self._read_copies(call.seq, update, now, positions)
        for index, name in roles.keys.items():
            if self._reads_keys and index in now:
                variable = f"{state.name}({name})"
                self._read(next(positions), call.seq, variable, RANDOM, KEY, _signed(now[index].digest.fingerprint))
        content = [now[index].digest.fingerprint for index in roles.batch if index in now]
        if self._reads_content and content:
            self._read(next(positions), call.seq, state.name, MODULE, CONTENT, hash(tuple(content)) & (1 << 63) - 1)
        call.context = merged(call.context, **extra)
        self._recorder.leave(call, end=end)

    def _was_applied(self, roles: Roles, before: Mapping[int, ArrayDigest], now: Mapping[int, ArrayDigest]) -> bool:
        """Whether the last call made an update: optax may accumulate gradients, or skip those that are not finite."""
        if not now or not before:
            return True
        accumulates = roles.accumulated and all(_same(before[index], now[index]) for index in roles.accumulated)
        return not accumulates and all(now[index].digest.first & 1 for index in roles.applied)

    def _record_changes(
        self,
        call: int,
        update: RunningUpdate,
        before: Mapping[int, ArrayDigest],
        now: Mapping[int, ArrayDigest],
        rate: str,
        positions: Iterator[int],
    ) -> dict[str, FactValue]:
        """Record which parameters changed; returns facts of the update as a whole."""
        state, parameters = update.state, update.function.roles.parameters
        keeps_state = any(parameter.state for parameter in parameters)
        counted = any(not _same(before[index], now[index]) for index in update.function.roles.counters)
        shows = keeps_state and (counted or not update.function.roles.counters)
        gradients = [
            _gradient(parameter, before, now, keeps_state=keeps_state, shows=shows) for parameter in parameters
        ]
        changed = [not _same(before[parameter.leaf], now[parameter.leaf]) for parameter in parameters]
        state.unchanged = 0 if any(changed) else state.unchanged + 1
        lost = 0 < state.unchanged < PATIENCE
        changes = []
        for parameter, gradient, is_changed in zip(parameters, gradients, changed, strict=True):
            context = merged(_facts_of(parameter), grad=gradient, lr=rate, lost=lost and not is_changed)
            changes.append(
                Change(
                    next(positions),
                    call,
                    _variable(state, update.function, parameter),
                    "parameter",
                    "data",
                    SOME,
                    SOME,
                    is_changed,
                    state.name,
                    context,
                    now[parameter.leaf].digest.fingerprint,
                )
            )
        self._recorder.record_changes(changes)
        present = set(gradients)
        return {"lost": lost, "grads": present.pop() if len(present) == 1 else "mixed" if present else NONE}

    def _read_copies(
        self, call: int, update: RunningUpdate, now: Mapping[int, ArrayDigest], positions: Iterator[int]
    ) -> None:
        """Report the parameters of which the devices hold different copies."""
        for parameter in update.function.roles.parameters:
            if parameter.leaf in now and not now[parameter.leaf].copies_agree:
                name = _variable(update.state, update.function, parameter)
                self._read(next(positions), call, name, PARAMETER, DIFFERENT_COPIES, value=True)

    def _read_counters(
        self,
        call: int,
        update: RunningUpdate,
        before: Mapping[int, ArrayDigest],
        now: Mapping[int, ArrayDigest],
        positions: Iterator[int],
    ) -> None:
        """Read the lowest and the highest step count, except of a function that makes several updates in a call."""
        state, function, roles = update.state, update.function, update.function.roles
        if not roles.counters or not now:
            return
        counts = [now[index].digest.first_as_integer for index in roles.counters]
        if before and max(counts) > 1 + max(before[index].digest.first_as_integer for index in roles.counters):
            function.makes_several = True
        if function.makes_several:
            return
        for name, value in (("step", max(counts)), ("lowest_step", min(counts))):
            if name in self._counters:
                self._read(next(positions), call, state.name, STATE, name, value)

    def _read_rates(
        self, call: int, update: RunningUpdate, now: Mapping[int, ArrayDigest], positions: Iterator[int]
    ) -> str:
        """Read the settings that the state holds (`optax.inject_hyperparams`); the learning rate as a fact."""
        rate = NONE
        for index, name in update.function.roles.rates.items():
            if index not in now:
                continue
            value = now[index].digest.first_as_float
            if RATE.get(name) == "lr":
                rate = "positive" if value else ZERO
            if self._reads_rates:
                variable = f"{update.state.name}.hyperparams"
                self._read(next(positions), call, variable, HYPERPARAMETER, RATE.get(name, name), value)
        return rate

    def _read(self, seq: int, call: int, variable: str, kind: str, attribute: str, value: FactValue) -> None:
        self._recorder.record_reading(Reading(seq, call, variable, kind, attribute, value, LIVE, facts(kind=kind)))


def _variable(state: UpdatedState, function: UpdateFunction, parameter: Parameter) -> str:
    """The name of a parameter, with the number of its state from the second on."""
    number = state.name.removeprefix(function.name)
    root, _, path = parameter.name.partition(".")
    return f"{root}{number}.{path}" if number and path else parameter.name + number


def _same(old: ArrayDigest, new: ArrayDigest) -> bool:
    return old.digest.fingerprint == new.digest.fingerprint


def _gradient(
    parameter: Parameter,
    before: Mapping[int, ArrayDigest],
    now: Mapping[int, ArrayDigest],
    *,
    keeps_state: bool,
    shows: bool,
) -> str:
    """The gradient that an update used: it was passed to the call, or the state that the optimizer keeps for the
    parameter shows whether there was one.

    Where it cannot show that (the optimizer keeps none, or the state did not count the update), each parameter is taken
    to get a gradient.
    """
    if parameter.gradient >= 0:
        return ZERO if before[parameter.gradient].digest.is_zero else SOME
    if keeps_state and not parameter.state:
        return UNUSED
    if not shows:
        return SOME
    (kept,) = parameter.read_with_it
    if now[kept].digest.is_zero:
        return ZERO
    return UNUSED if _same(before[kept], now[kept]) else SOME


def _signed(value: int) -> int:
    return value & (1 << 63) - 1


def _facts_of(parameter: Parameter) -> Facts:
    return facts(
        attributes="",
        requires_grad=True,
        tied=False,
        held="this",
        owned=True,
        precision="low" if parameter.low_precision else "full",
        scalar=parameter.scalar,
    )


def _treatment(parameter: Parameter, tree: Tree) -> str:
    """A line on a parameter: which state the optimizer keeps for it, and where."""
    path = without_positions(parameter.name)
    kept = sorted(
        f"{'.'.join(tree.leaves[index].path[1 : tree.leaves[index].depth])}" for index in parameter.state.values()
    )
    return f"{path} is trainable, with {', '.join(kept)}" if kept else f"{path} is trainable, without optimizer state"


def _form(array: Any) -> str:
    dimensions = len(array.shape)
    return f"{array.dtype} of {dimensions} dimension{'s' * (dimensions != 1)}"
