"""Summaries: what goes into a call and what comes out, told in few words.

Note [What is read of a call]
Plain arguments, and dtype, shape and storage of tensors, are told of every call that it is asked of: that reads no
element. Values are read where a rule asks for them; a full collection, which asks for everything, reads a sample of a
fixed schedule (`MOST_READ`, `FIRST_STEPS`, `EVERY`), so that two runs of one program, and two ranks of one run, read
the same. What goes in is read before the call, what comes out after it.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from traincheck.sources.modules.variables import Catalog
from traincheck.sources.recording.context_facts import facts_of_tensor, result_facts
from traincheck.sources.recording.recorder import OpenCall, Recorder
from traincheck.sources.tensors.call_arguments import MOST_INSIDE as MOST_INSIDE
from traincheck.sources.tensors.call_arguments import PLAIN_TENSORS, sort_value, sorted_arguments
from traincheck.sources.tensors.deferred_values import Pending, unlike
from traincheck.sources.tensors.device_transfers import NextSeq
from traincheck.sources.tensors.reading import Computed, computed, unseen
from traincheck.sources.tensors.storages import Storages, version_of
from traincheck.sources.tensors.value_facts import Reads, readable, readable_memory, values_in
from traincheck.vocab.bounded_cache import Kept
from traincheck.vocab.demand import ARGUMENTS, TENSORS, VALUES, Demand
from traincheck.vocab.events import MODULE, PROJECT, RESULT, TensorSummary
from traincheck.vocab.facts import Facts, FactValue

MOST_READ = 2
"""Calls of one API whose values a full collection reads in a window."""

MOST_AT_START = 16
"""The same of functions of the user's during set-up, which is once in a run: what fills the weights is called for each
of them, and the first ones say nothing of the others."""

FIRST_STEPS, EVERY = 6, 8
"""The steps in which it does: the first, where most errors show and nothing is known yet, and each eighth."""


def in_schedule(step: int) -> bool:
    """Whether it reads values in this step."""
    return step <= FIRST_STEPS or step % EVERY == 0


_MOST_KEPT = 8192
"""Summaries kept, so that equal ones are one object: more than a step of a large model has, see `Kept`."""

_LATER = ("async_op", "non_blocking")
"""Arguments that say that the result is not there yet when the call returns."""


_Unseen = torch._C.DisableTorchFunction
"""Looking at a tensor in here is seen by no function mode of the program."""

_traced = torch._C._get_tracing_state


class Asked(NamedTuple):
    """What is to be told of the calls of one API. `names` are those of its positional parameters.

    `read` is what is read of values, `sampled` True when it is read of some calls only; `unfilled` when nobody has
    written to what is returned (`torch.empty`), so that its values, and those of whatever shares its memory until
    somebody does, say nothing.
    """

    names: tuple[str, ...]
    arguments: bool
    tensors: bool
    read: Reads
    sampled: bool
    unfilled: bool


def asked(demand: Demand, levels: Sequence[str], names: tuple[str, ...]) -> Asked | None:
    """What `demand` asks of the calls known under `levels`, None when it is nothing."""
    arguments, tensors = (demand.wants_state(levels, what) for what in (ARGUMENTS, TENSORS))
    read = Reads.of(demand, levels)
    if not (arguments or tensors or read):
        return None
    unfilled = "empty" in levels[0].rsplit(".", 1)[-1].split("_")
    # What a rule rests on is read of each call, also where everything is asked for besides.
    sampled = demand.everything and not any((level, what) in demand.states for level in levels for what in VALUES)
    return Asked(names, arguments, tensors or bool(read), read, sampled, unfilled)


class WasRead(NamedTuple):
    """What was read of the values of a tensor, each of which may be pending: its fingerprint, the facts of its numbers,
    and whether a call changed it."""

    fingerprint: Computed
    facts: dict[str, FactValue] | Pending
    changed: bool | Pending | None = None


class _Argument(NamedTuple):
    """What an argument was before the call; `place` is that of its summary."""

    place: int
    tensor: weakref.ref[torch.Tensor]
    readable: bool
    version: int | None
    was: WasRead


class Before(NamedTuple):
    """What was read before a call; `later` is True when its results are not there yet when it returns."""

    arguments: list[_Argument]
    read: Reads
    later: bool


Named = Sequence[tuple[str, torch.Tensor]]
"""Tensors by role."""


class Summaries:
    """Tells what goes into the calls of one recorder and what comes out; the sources that see calls share it.

    Its methods do not raise: after a fault it tells nothing more.
    """

    name = "summaries"

    def __init__(self, catalog: Catalog, recorder: Recorder) -> None:
        self._recorder = recorder
        self._storages = Storages(catalog, recorder)
        self._kept_facts: Kept[tuple[object, ...], Facts] = Kept(_MOST_KEPT)
        self._kept: Kept[tuple[object, ...], tuple[TensorSummary, Facts]] = Kept(_MOST_KEPT)
        self._window = -1
        self._scheduled = False  # whether values are read in the open window
        self._reads: dict[str, int] = {}  # in the open window, by API
        self._off = False
        recorder.after_gap(self.name, self._begin_anew)
        recorder.late_names = recorder.guarded(self.name, self._storages.late_names)

    def begins(
        self,
        call: OpenCall,
        what: Asked,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None = None,
        *,
        later: bool = False,
    ) -> Before | None:
        """Tell what goes into `call`. Hand what is returned to `ends`. `later` is for calls that only start work."""
        if self._off:
            return None
        try:
            told: dict[str, FactValue] = {}
            if len(args) == 1 and not kwargs and type(args[0]) in PLAIN_TENSORS:  # so it is with most modules
                tensors: Named = ((what.names[0] if what.names else "arg0", args[0]),)
            else:
                told, tensors = sorted_arguments(what.names, args, kwargs)
            if what.arguments and told:
                told.update(call.args)
                call.args = self._facts(told)
            # While a graph is traced, even a look at a shape would become part of it.
            if not tensors or not what.tensors or _traced() is not None:
                return None
            if self._recorder.window != self._window:
                self._renew()
            with _Unseen():
                call.tensors = self._summaries(tensors)
            if not what.read or len(call.tensors) != len(tensors):
                return None
            if what.sampled and not self._in_sample(call):
                return None
            later = later or any(told.get(name) is True for name in _LATER)
            return Before(self._read_arguments(tensors, what.read), what.read, later)
        except Exception as error:
            self._fails(error)
            return None

    def ends(self, call: OpenCall, what: Asked, before: Before | None, result: Any, written: Any = None) -> Facts:
        """Tell what came out of `call`, and return the facts of its result for `Recorder.leave`.

        `written` are arguments that hold the result (of a collective that works in place).
        """
        if self._off:
            return result_facts(result)
        try:
            plain = type(result) in PLAIN_TENSORS and written is None and what.tensors and not what.unfilled
            with _Unseen():
                # So it is with most calls: of its values nothing is read.
                if plain and before is None and (call.tensors or not what.read) and _traced() is None:
                    if self._recorder.window != self._window:
                        self._renew()
                    found = self._told_of(RESULT, result)
                    call.tensors += () if found is None else (found[0],)
                    return facts_of_tensor(result) if found is None else found[1]
                facts = result_facts(result)
                if what.tensors and _traced() is None:
                    self._tell_results(call, what, before, result, written)
            return facts
        except Exception as error:
            self._fails(error)
            return ()

    def forget(self) -> None:
        """Let go of what was held of the open window."""
        self._storages.forget()

    def _fails(self, error: Exception) -> None:
        self._off = True
        self._recorder.fault(self.name, error)

    # -- windows ---------------------------------------------------------------------------------------------------

    def _begin_anew(self) -> None:
        self._window = -1

    def _renew(self) -> None:
        """Begin a new window."""
        self._window = self._recorder.window
        self._scheduled = in_schedule(self._recorder.steps.coming)
        self._reads.clear()
        with _Unseen():
            self._storages.renew()

    def _in_sample(self, call: OpenCall) -> bool:
        """Whether this call is one of those of which a full collection reads values."""
        if not self._scheduled and not self._recorder.steps.evaluating:
            return False
        name = call.levels[0]
        count = self._reads.get(name, 0)
        most = MOST_AT_START if call.kind == PROJECT and self._recorder.steps.setting_up else MOST_READ
        if count >= most or self._recorder.updating:
            return False
        self._reads[name] = count + 1
        return True

    # -- before the call -------------------------------------------------------------------------------------------

    def _read_without(self, call: OpenCall, what: Asked) -> bool:
        """Whether to read what a call returns that was given no tensor (`torch.randn`)."""
        return not what.sampled or self._in_sample(call)

    def _read_arguments(self, tensors: Named, read: Reads) -> list[_Argument]:
        with unseen():
            memory = [readable_memory(tensor) if self._storages.filled(tensor) else None for _, tensor in tensors]
            told = _measure(memory, read)
            return [
                _Argument(place, weakref.ref(tensor), memory[place] is not None, version_of(tensor), told[place])
                for place, (_, tensor) in enumerate(tensors)
            ]

    # -- after the call --------------------------------------------------------------------------------------------

    def _tell_results(self, call: OpenCall, what: Asked, before: Before | None, result: Any, written: Any) -> None:
        if type(result) in PLAIN_TENSORS and written is None:
            tensors: Named = ((RESULT, result),)
        else:
            found: list[tuple[str, torch.Tensor]] = []
            tensors = found
            for value in (result, written):
                sort_value(RESULT, value, {}, found)
        if self._recorder.window != self._window:
            self._renew()
        outcome = self._summaries(tensors)
        if what.unfilled:
            self._storages.not_filled([tensor for _, tensor in tensors])
        sampled = before is not None or (not call.tensors and what.read and self._read_without(call, what))
        later = before is not None and before.later
        read: list[tuple[int, WasRead]] = []  # by the places among all that is told of the call
        if before is not None:
            # A module hardly ever changes what it is given, and no rule says so: that is not looked for.
            looks = before.read.contents and call.kind != MODULE and not later
            read = _changes(before.arguments) if looks else [(one.place, one.was) for one in before.arguments]
        if sampled and not later and len(outcome) == len(tensors) and not what.unfilled:
            with unseen():
                memory = [readable_memory(tensor) for _, tensor in tensors]
                measured = _measure(memory, what.read)
            place = len(call.tensors)
            read += [(place + at, one) for at, one in enumerate(measured) if memory[at] is not None]
        call.tensors += outcome
        if read:
            self._tell_read(call, read)

    def _tell_read(self, call: OpenCall, read: Sequence[tuple[int, WasRead]]) -> None:
        """Add to what is told of the tensors of a call what was read of their values."""
        places = [place for place, _ in read]

        def conclude(known: list[Any], _: NextSeq) -> None:
            told = list(call.tensors)
            for number, place in enumerate(places):
                fingerprint, values, changed = known[3 * number : 3 * number + 3]
                role, dtype, shape, grad, storage, *_others = told[place]
                facts = tuple(sorted((values if changed is None else {**values, "changed": changed}).items()))
                told[place] = TensorSummary(role, dtype, shape, grad, storage, fingerprint, facts)
            call.tensors = tuple(told)

        values = [value for _, one in read for value in one]
        self._recorder.transfers.when(self.name, values, conclude, call=call)

    # -- in few objects --------------------------------------------------------------------------------------------

    def _facts(self, told: dict[str, FactValue]) -> Facts:
        """`told`, sorted; equal ones are one object (and 1, 1.0 and True are not equal)."""
        key = (*told.items(), *map(type, told.values()))
        found = self._kept_facts.get(key)
        if found is None:
            found = self._kept_facts.put(key, tuple(sorted(told.items())))
        return found

    def _summaries(self, tensors: Named) -> tuple[TensorSummary, ...]:
        """Dtype, shape and storage of each tensor that tells them; equal ones are one object."""
        found = []
        for role, tensor in tensors:
            told = self._told_of(role, tensor)
            if told is not None:
                found.append(told[0])
        return tuple(found)

    def _told_of(self, role: str, tensor: torch.Tensor) -> tuple[TensorSummary, Facts] | None:
        """The summary of a tensor, and the facts of one that is returned; None where it does not tell them."""
        try:
            memory = tensor.untyped_storage()
            storage = self._storages.names.get(memory._cdata)
        except (RuntimeError, NotImplementedError):
            memory = storage = None
        if storage is None:
            storage = self._storages.name(tensor, memory)
        try:
            key = (role, tensor.dtype, tensor.shape, tensor.requires_grad, storage)
            found = self._kept.get(key)
        except (RuntimeError, NotImplementedError, TypeError):
            return None  # a nested tensor has no shape, and one that stands for an unknown size none that is known
        if found is None:
            if not all(type(size) is int for size in key[2]):
                return None
            summary = TensorSummary(role, str(key[1]).removeprefix("torch."), tuple(key[2]), key[3], storage)
            found = self._kept.put(key, (summary, facts_of_tensor(tensor)))
        return found


# -- values ------------------------------------------------------------------------------------------------------------


def _measure(memory: Sequence[torch.Tensor | None], read: Reads) -> list[WasRead]:
    """What is read of tensors by their readable memory; nothing of None. Call under `unseen`."""
    facts = values_in(memory, read)
    if not read.contents:
        return [WasRead(None, told) for told in facts]
    digests = iter(computed([dense for dense in memory if dense is not None]))
    return [WasRead(None if dense is None else next(digests), told) for dense, told in zip(memory, facts, strict=True)]


def _changes(before: list[_Argument]) -> list[tuple[int, WasRead]]:
    """What was read of the arguments, by their places, and whether the call changed them."""
    with unseen():
        alive = [(argument, argument.tensor()) for argument in before]
        again = [(a, tensor) for a, tensor in alive if a.readable and tensor is not None and readable(tensor)]
        after = dict(zip((a.place for a, _ in again), computed([tensor for _, tensor in again]), strict=True))
        found = []
        for argument, tensor in alive:
            was = argument.was
            if after.get(argument.place) is not None:
                was = was._replace(changed=unlike(was.fingerprint, after[argument.place]))
            elif tensor is not None and argument.version is not None:
                was = was._replace(changed=version_of(tensor) != argument.version)
            found.append((argument.place, was))
    return found
