"""Summarizes the arguments and the results of observed calls.

Note [What is read of a call]
TrainCheck records plain arguments, and dtype, shape and storage of tensors, for every call that a rule needs. Doing so
reads no element. It reads tensor values where a rule needs them. A full collection needs everything, so it samples on a
fixed schedule (`MAX_READ_CALLS`, `FIRST_STEPS`, `READ_INTERVAL`). Two runs of one program, and two ranks of one run,
therefore read the same values. Arguments are read before the call, results after it.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.recording.context_facts import result_facts, tensor_facts
from traincheck.sources.recording.listener import RecorderListener
from traincheck.sources.recording.patches import TensorReference
from traincheck.sources.recording.recorder import OpenCall, Recorder
from traincheck.sources.tensors.call_arguments import MAX_NESTED_TENSORS as MAX_NESTED_TENSORS
from traincheck.sources.tensors.call_arguments import PLAIN_TENSORS, add_value, split_arguments
from traincheck.sources.tensors.deferred_values import DeferredValue, not_equal
from traincheck.sources.tensors.device_transfers import NextSeq
from traincheck.sources.tensors.reading import Fingerprint, deferred_fingerprints, hidden_from_modes
from traincheck.sources.tensors.storages import Storages, version_of
from traincheck.sources.tensors.value_facts import ValueRequest, readable, readable_memory, value_facts
from traincheck.vocab.bounded_cache import BoundedCache
from traincheck.vocab.demand import ARGUMENTS, TENSOR_VALUES, TENSORS, Demand
from traincheck.vocab.events import MODULE, PROJECT, RESULT, TensorSummary
from traincheck.vocab.facts import Facts, FactValue

MAX_READ_CALLS = 2
"""Maximum number of calls of one API whose values a full collection reads in a window."""

MAX_READ_CALLS_IN_SETUP = 16
"""The same limit for functions of the user during set-up. Set-up happens once in a run, and a function that initializes
weights is called for each of them, so the first calls do not represent the others."""

FIRST_STEPS, READ_INTERVAL = 6, 8
"""The steps in which a full collection reads values: the first ones, where most errors show, and then every eighth."""


def in_schedule(step: int) -> bool:
    """Whether a full collection reads values in this step."""
    return step <= FIRST_STEPS or step % READ_INTERVAL == 0


_MAX_CACHED = 8192
"""Maximum number of cached summaries, more than one step of a large model has. Equal summaries are one object, see
`BoundedCache`."""

_ASYNC_ARGUMENTS = ("async_op", "non_blocking")
"""Arguments that make a call return before its result exists."""


_NoTorchFunction = torch._C.DisableTorchFunction
"""Inside this context, no function mode of the program sees the operations of TrainCheck."""

_traced = torch._C._get_tracing_state


class CallRequest(NamedTuple):
    """What TrainCheck records for the calls of one API. `names` are its positional parameters.

    `values` says which facts of tensor values are read. With `sampled`, TrainCheck reads values of some calls only.
    `uninitialized` is True for functions that return memory without writing to it (`torch.empty`). Values in such
    memory mean nothing until the program writes to it.
    """

    names: tuple[str, ...]
    arguments: bool
    tensors: bool
    values: ValueRequest
    sampled: bool
    uninitialized: bool


def call_request(demand: Demand, levels: Sequence[str], names: tuple[str, ...]) -> CallRequest | None:
    """What `demand` requests for the calls known under `levels`; None if it requests nothing."""
    arguments, tensors = (demand.reads_values(levels, kind) for kind in (ARGUMENTS, TENSORS))
    values = ValueRequest.of(demand, levels)
    if not (arguments or tensors or values):
        return None
    uninitialized = "empty" in levels[0].rsplit(".", 1)[-1].split("_")
    # Values that a rule needs are read in every call, also in a full collection.
    sampled = demand.everything and not any(
        (level, kind) in demand.call_values for level in levels for kind in TENSOR_VALUES
    )
    return CallRequest(names, arguments, tensors or bool(values), values, sampled, uninitialized)


class TensorReading(NamedTuple):
    """The values read from one tensor: its fingerprint, the facts of its numbers, and whether a call changed it. Each
    of them may be deferred."""

    fingerprint: Fingerprint
    facts: dict[str, FactValue] | DeferredValue
    changed: bool | DeferredValue | None = None


class _Argument(NamedTuple):
    """A tensor argument before the call; `index` is the position of its summary."""

    position: int
    tensor: weakref.ref[torch.Tensor]
    readable: bool
    version: int | None
    reading: TensorReading


class StateBeforeCall(NamedTuple):
    """What was read before a call. With `is_async`, the call returns before its results exist."""

    arguments: list[_Argument]
    request: ValueRequest
    is_async: bool


NamedTensors = Sequence[tuple[str, torch.Tensor]]
"""Tensors with their roles in a call."""


class CallSummaries(RecorderListener):
    """Records the arguments and results of the calls of one recorder. All sources that observe calls share it.

    Its methods do not raise. After a fault it records nothing more.
    """

    name = "summaries"

    def __init__(self, catalog: VariableCatalog, recorder: Recorder) -> None:
        self._recorder = recorder
        self._storages = Storages(catalog, recorder)
        self._fact_cache: BoundedCache[tuple[object, ...], Facts] = BoundedCache(_MAX_CACHED)
        self._summary_cache: BoundedCache[tuple[object, ...], tuple[TensorSummary, Facts]] = BoundedCache(_MAX_CACHED)
        self._window = -1
        self._scheduled = False  # whether values are read in the open window
        self._reads: dict[str, int] = {}  # in the open window, by API
        self._disabled = False
        recorder.after_gap(self.name, self._forget_window)
        self._late_names = recorder.guarded(self.name, self._storages.late_names)
        recorder.add_listener(self)

    def storage_names(self, stage: str) -> dict[str, str] | None:
        return self._late_names(stage)

    def record_arguments(
        self,
        call: OpenCall,
        request: CallRequest,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None = None,
        *,
        is_async: bool = False,
    ) -> StateBeforeCall | None:
        """Record the arguments of `call`. Pass the return value on to `record_result`. With `is_async`, the call only
        starts its work."""
        if self._disabled:
            return None
        try:
            plain: dict[str, FactValue] = {}
            if len(args) == 1 and not kwargs and type(args[0]) in PLAIN_TENSORS:  # the case of most modules
                tensors: NamedTensors = ((request.names[0] if request.names else "arg0", args[0]),)
            else:
                plain, tensors = split_arguments(request.names, args, kwargs)
            if request.arguments and plain:
                plain.update(call.args)
                call.args = self._facts(plain)
            # While a graph is traced, even reading a shape would become part of it.
            if not tensors or not request.tensors or _traced() is not None:
                return None
            if self._recorder.window_index != self._window:
                self._begin_window()
            with _NoTorchFunction():
                call.tensors = self._summaries(tensors)
            if not request.values or len(call.tensors) != len(tensors):
                return None
            if request.sampled and not self._in_sample(call):
                return None
            is_async = is_async or any(plain.get(name) is True for name in _ASYNC_ARGUMENTS)
            return StateBeforeCall(self._read_arguments(tensors, request.values), request.values, is_async)
        except Exception as error:
            self._disable(error)
            return None

    def record_result(
        self, call: OpenCall, request: CallRequest, before: StateBeforeCall | None, result: Any, written: Any = None
    ) -> Facts:
        """Record the result of `call`, and return the facts of the result for `Recorder.leave`.

        `written` are arguments that hold the result, as in a collective that works in place.
        """
        if self._disabled:
            return result_facts(result)
        try:
            plain = type(result) in PLAIN_TENSORS and written is None and request.tensors and not request.uninitialized
            with _NoTorchFunction():
                # The case of most calls: no value is read.
                if plain and before is None and (call.tensors or not request.values) and _traced() is None:
                    if self._recorder.window_index != self._window:
                        self._begin_window()
                    summary = self._summary_of(RESULT, result)
                    call.tensors += () if summary is None else (summary[0],)
                    return tensor_facts(result) if summary is None else summary[1]
                facts = result_facts(result)
                if request.tensors and _traced() is None:
                    self._record_result_tensors(call, request, before, result, written)
            return facts
        except Exception as error:
            self._disable(error)
            return ()

    def forget(self) -> None:
        """Release everything held for the open window."""
        self._storages.forget()

    def _disable(self, error: Exception) -> None:
        self._disabled = True
        self._recorder.fault(self.name, error)

    # -- windows ---------------------------------------------------------------------------------------------------

    def _forget_window(self) -> None:
        self._window = -1

    def _begin_window(self) -> None:
        self._window = self._recorder.window_index
        self._scheduled = in_schedule(self._recorder.steps.window_step)
        self._reads.clear()
        with _NoTorchFunction():
            self._storages.begin_window()

    def _in_sample(self, call: OpenCall) -> bool:
        """Whether a full collection reads the values of this call."""
        if not self._scheduled and not self._recorder.steps.evaluating:
            return False
        name = call.levels[0]
        count = self._reads.get(name, 0)
        most = MAX_READ_CALLS_IN_SETUP if call.kind == PROJECT and self._recorder.steps.setting_up else MAX_READ_CALLS
        if count >= most or self._recorder.updating:
            return False
        self._reads[name] = count + 1
        return True

    # -- before the call -------------------------------------------------------------------------------------------

    def _reads_result_only(self, call: OpenCall, request: CallRequest) -> bool:
        """Whether to read the result of a call without tensor arguments (`torch.randn`)."""
        return not request.sampled or self._in_sample(call)

    def _read_arguments(self, tensors: NamedTensors, request: ValueRequest) -> list[_Argument]:
        with hidden_from_modes():
            memory = [
                readable_memory(tensor) if self._storages.is_initialized(tensor) else None for _, tensor in tensors
            ]
            arguments: list[_Argument] = []
            for index, reading in enumerate(_measure(memory, request)):
                tensor = tensors[index][1]
                if request.rows and tensor.grad_fn is not None:
                    reading = _with_origin(reading, tensor)
                is_readable = memory[index] is not None
                arguments.append(_Argument(index, TensorReference(tensor), is_readable, version_of(tensor), reading))
            return arguments

    # -- after the call --------------------------------------------------------------------------------------------

    def _record_result_tensors(
        self, call: OpenCall, request: CallRequest, before: StateBeforeCall | None, result: Any, written: Any
    ) -> None:
        if type(result) in PLAIN_TENSORS and written is None:
            tensors: NamedTensors = ((RESULT, result),)
        else:
            nested: list[tuple[str, torch.Tensor]] = []
            tensors = nested
            for value in (result, written):
                add_value(RESULT, value, {}, nested)
        if self._recorder.window_index != self._window:
            self._begin_window()
        results = self._summaries(tensors)
        if request.uninitialized:
            self._storages.mark_uninitialized([tensor for _, tensor in tensors])
        sampled = before is not None or (not call.tensors and request.values and self._reads_result_only(call, request))
        is_async = before is not None and before.is_async
        readings: list[tuple[int, TensorReading]] = []  # by the index of the summary
        if before is not None:
            # Modules hardly ever change their arguments and no rule covers it, so TrainCheck does not compare them.
            compares_contents = before.request.contents and call.kind != MODULE and not is_async
            readings = (
                _argument_changes(before.arguments)
                if compares_contents
                else [(argument.position, argument.reading) for argument in before.arguments]
            )
        if sampled and not is_async and len(results) == len(tensors) and not request.uninitialized:
            with hidden_from_modes():
                memory = [readable_memory(tensor) for _, tensor in tensors]
                measured = _measure(memory, request.values)
            first_result = len(call.tensors)
            readings += [
                (first_result + offset, reading)
                for offset, reading in enumerate(measured)
                if memory[offset] is not None
            ]
        call.tensors += results
        if readings:
            self._record_values(call, readings)

    def _record_values(self, call: OpenCall, readings: Sequence[tuple[int, TensorReading]]) -> None:
        """Add values that were read to the tensor summaries of a call."""
        indices = [index for index, _ in readings]

        def conclude(fetched: list[Any], _: NextSeq) -> None:
            summaries = list(call.tensors)
            for number, index in enumerate(indices):
                fingerprint, values, changed = fetched[3 * number : 3 * number + 3]
                role, dtype, shape, grad, storage, *_others = summaries[index]
                facts = tuple(sorted((values if changed is None else {**values, "changed": changed}).items()))
                summaries[index] = TensorSummary(role, dtype, shape, grad, storage, fingerprint, facts)
            call.tensors = tuple(summaries)

        values = [value for _, reading in readings for value in reading]
        self._recorder.transfers.when_ready(self.name, values, conclude, call=call)

    # -- shared objects --------------------------------------------------------------------------------------------

    def _facts(self, values: dict[str, FactValue]) -> Facts:
        """Return `values` as sorted facts. Equal facts are one object, and 1, 1.0 and True are not equal."""
        key = (*values.items(), *map(type, values.values()))
        cached = self._fact_cache.get(key)
        if cached is None:
            cached = self._fact_cache.put(key, tuple(sorted(values.items())))
        return cached

    def _summaries(self, tensors: NamedTensors) -> tuple[TensorSummary, ...]:
        """Return dtype, shape and storage of each tensor that has them. Equal summaries are one object."""
        summaries = []
        for role, tensor in tensors:
            summary = self._summary_of(role, tensor)
            if summary is not None:
                summaries.append(summary[0])
        return tuple(summaries)

    def _summary_of(self, role: str, tensor: torch.Tensor) -> tuple[TensorSummary, Facts] | None:
        """Return the summary of a tensor and its facts as a result; None for a tensor without dtype or shape."""
        try:
            memory = tensor.untyped_storage()
            storage = self._storages.names.get(memory._cdata)
        except (RuntimeError, NotImplementedError):
            memory = storage = None
        if storage is None:
            storage = self._storages.name(tensor, memory)
        try:
            key = (role, tensor.dtype, tensor.shape, tensor.requires_grad, storage)
            cached = self._summary_cache.get(key)
        except (RuntimeError, NotImplementedError, TypeError):
            return None  # a nested tensor has no shape, and symbolic sizes are unknown
        if cached is None:
            if not all(type(size) is int for size in key[2]):
                return None
            summary = TensorSummary(role, str(key[1]).removeprefix("torch."), tuple(key[2]), key[3], storage)
            cached = self._summary_cache.put(key, (summary, tensor_facts(tensor)))
        return cached


# -- values ------------------------------------------------------------------------------------------------------------


def _measure(memory: Sequence[torch.Tensor | None], request: ValueRequest) -> list[TensorReading]:
    """Read tensors by their readable memory; an entry of None yields no facts. Call inside `hidden_from_modes()`."""
    facts_by_tensor = value_facts(memory, request)
    if not request.contents:
        return [TensorReading(None, facts) for facts in facts_by_tensor]
    digests = iter(deferred_fingerprints([dense for dense in memory if dense is not None]))
    return [
        TensorReading(None if dense is None else next(digests), facts)
        for dense, facts in zip(memory, facts_by_tensor, strict=True)
    ]


def _with_origin(reading: TensorReading, tensor: torch.Tensor) -> TensorReading:
    """The reading of a result of autograd, with the facts of its origin."""
    from traincheck.sources.tensors.origins import origin_facts  # not before the first loss

    facts, added = reading.facts, origin_facts(tensor)
    if isinstance(facts, DeferredValue):
        interpret = facts.interpret
        return reading._replace(facts=facts._replace(interpret=lambda *numbers: {**interpret(*numbers), **added}))
    return reading._replace(facts={**facts, **added})  # also if the values are too many to be read


def _argument_changes(before: list[_Argument]) -> list[tuple[int, TensorReading]]:
    """Return the readings of the arguments by index, with whether the call changed each of them."""
    with hidden_from_modes():
        alive = [(argument, argument.tensor()) for argument in before]
        reread = [(a, tensor) for a, tensor in alive if a.readable and tensor is not None and readable(tensor)]
        after = dict(
            zip((a.position for a, _ in reread), deferred_fingerprints([tensor for _, tensor in reread]), strict=True)
        )
        readings = []
        for argument, tensor in alive:
            reading = argument.reading
            if after.get(argument.position) is not None:
                reading = reading._replace(changed=not_equal(reading.fingerprint, after[argument.position]))
            elif tensor is not None and argument.version is not None:
                reading = reading._replace(changed=version_of(tensor) != argument.version)
            readings.append((argument.position, reading))
    return readings
