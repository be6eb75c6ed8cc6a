"""Source `modules`: observes the calls of modules, their training mode and their buffers."""

from __future__ import annotations

import functools
import inspect
import math
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from traincheck.sources.base import replace, wrapping
from traincheck.sources.data.batches import BatchReadings
from traincheck.sources.gradients.gradients import Gradients, Snapshot
from traincheck.sources.modules.live_modules import CHILD_BY_WRAPPER, has_parameters, unwrap_compiled
from traincheck.sources.modules.module_calls import ModuleCalls
from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.recording.api_names import levels, parameter_names
from traincheck.sources.recording.context_facts import (
    CallContext,
    context_facts_with,
    module_context_facts,
    result_facts,
)
from traincheck.sources.recording.frames import keywords_of_module_call
from traincheck.sources.recording.listener import RecorderListener
from traincheck.sources.recording.patches import UndoStack, without_our_references
from traincheck.sources.recording.recorder import OpenCall, Recorder
from traincheck.sources.recording.sampling_gate import EVALUATION_MODE, WITHOUT_GRADIENTS
from traincheck.sources.tensors.call_summaries import CallRequest, CallSummaries, StateBeforeCall, call_request
from traincheck.sources.tensors.deferred_values import DeferredValue, is_on_host, not_equal
from traincheck.sources.tensors.device_transfers import NextSeq
from traincheck.sources.tensors.reading import SOME, Fingerprint, deferred_fingerprints, hidden_from_modes
from traincheck.sources.tensors.spread_elements import MEASURED_STEPS
from traincheck.sources.tensors.value_facts import readable_memory
from traincheck.vocab.bounded_cache import BoundedCache
from traincheck.vocab.call_kinds import kinds_of_module
from traincheck.vocab.demand import BATCH, FORM, MAGNITUDES, MODEL, Demand
from traincheck.vocab.events import LIFECYCLE, MODULE, TRAIN, Change
from traincheck.vocab.facts import Facts, facts, merged

BUFFER_DATA, PARAMETER_GRAD = "buffer.data", "parameter.grad"
NAMING = "variables"
"""The source name for faults in finding modules. All sources need names, even if module calls cannot be observed."""


if TYPE_CHECKING:
    from traincheck.sources.data.batch_forms import BatchForms
    from traincheck.sources.modules.output_sizes import OutputSizes
    from traincheck.sources.recording.step_tracker import Cut

_TRAINING = {flag: facts(training=flag) for flag in (False, True)}
"""One object for each flag, because the trace stores equal objects once."""


class _ClassRequest(NamedTuple):
    """What TrainCheck records for a class of modules. `argument_count` is the number of positional arguments of
    `forward`; -1 if it takes others or is unknown."""

    levels: tuple[str, ...]
    records_calls: bool
    request: CallRequest | None
    reads_buffers: bool
    argument_count: int


_OpenModule = tuple[OpenCall | None, _ClassRequest | None, StateBeforeCall | None, list[Fingerprint] | None, int]
"""A module call under way (None if not recorded): its call, its class, its arguments and buffers before the call, and
the id of the exception that the program was handling at its begin."""

_NOT_RECORDED: _OpenModule = (None, None, None, None, 0)


_NESTED_SWITCH = OpenCall(-1, -1, "", (), "", "", (), ())
"""Stands for a mode switch inside another one, or one that is not recorded."""


class _Depth(threading.local):
    def __init__(self) -> None:
        self.modules: list[_OpenModule] = []
        self.switching = 0


class ModuleSource(RecorderListener):
    """Observes module calls through torch's global module hooks, and wraps `Module.train` and `Module.zero_grad`."""

    name = "modules"

    def __init__(
        self,
        calls: ModuleCalls,
        catalog: VariableCatalog,
        gradients: Gradients,
        summaries: CallSummaries,
        call_context: CallContext,
    ) -> None:
        self._calls = calls
        self._catalog = catalog
        self._gradients = gradients
        self._summaries = summaries
        self._call_context = call_context
        self._depth = _Depth()
        self._classes: BoundedCache[type, _ClassRequest] = BoundedCache()
        self._batches: BatchReadings
        self._forms: BatchForms | None = None
        self._outputs: OutputSizes | None = None
        self._measured = ""  # the outermost module that is called, if the outputs in it are measured

    def offers(self) -> str | None:
        return None

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        self._demand = demand
        self._recorder = recorder
        self._classes.clear()
        if recorder.reattaching:
            self._batches.set_demand(demand)
        else:
            self._batches = BatchReadings(demand, recorder)
        undo = UndoStack()
        replace(undo, torch.utils, "weakref", without_our_references)
        recorder.on_detach(undo, self._summaries.forget)
        self._describes_inputs = demand.takes_reading(BATCH, FORM)
        self._measures_outputs = demand.takes_reading(MODEL, MAGNITUDES)
        recorder.after_gap(self.name, self._report_inputs_again, undo=undo, repeatable=True)
        if not recorder.reattaching:
            recorder.add_listener(self)
        guarded = recorder.guarded
        self._catalog.live_modules.attach(
            undo, functools.partial(guarded, NAMING, always=True), again=recorder.reattaching
        )
        self._calls.attach(undo, recorder, self._begins, self._ends, self._reset)
        replace(
            undo,
            nn.Module,
            "train",
            wrapping(
                guarded(self.name, self._switch_begins, always=True),
                guarded(self.name, self._switch_ends, always=True),
                guarded(self.name, self._switch_failed, always=True),
            ),
        )
        replace(
            undo,
            nn.Module,
            "zero_grad",
            wrapping(
                guarded(self.name, self._clear_begins),
                guarded(self.name, self._clear_ends),
                guarded(self.name, self._clear_failed),
            ),
        )
        return undo

    # -- forward ---------------------------------------------------------------------------------------------------

    def _begins(self, module: nn.Module, args: Any, depth: int) -> None:
        recorder, flags, opened = self._recorder, self._call_context.training_flags, self._depth.modules
        outermost, parametric, training = depth == 1, False, module.training
        learns = torch.is_grad_enabled()
        if outermost:
            if opened:
                self._abandon_innermost(opened, len(opened))
            if recorder.transfers.late and not learns:
                recorder.finish_late_window()  # no backward follows soon
            flags.clear()
            # A loss without parameters never enters evaluation mode, so it does not show what the program does.
            parametric = has_parameters(module)
            if parametric:
                self._catalog.ensure_named(module)
                if not learns:
                    recorder.rare_event(WITHOUT_GRADIENTS)
                recorder.steps.forward(recorder.next_seq(), training, learns)
                opened = self._depth.modules  # another list, if a recording gap ends here
        flags.append(training)
        if not recorder.watching:
            opened.append(_NOT_RECORDED)
            return
        if learns and (parametric or module._parameters):
            self._gradients.module_called(module)
            if parametric and training and self._gradients.samples is not None:
                self._read_samples(module, args, keywords_of_call(recorder))
        cls = type(module)
        if cls is nn.Sequential and not module._modules:
            cls = nn.Identity  # an empty one returns its input, and calls no layer
        of_class = self._classes.get(cls) or self._class_request(cls)
        if not of_class.records_calls:
            opened.append(_NOT_RECORDED)
            return
        context = module_context_facts(grad=learns, training=training, outermost=outermost, parametric=parametric)
        name, site = self._catalog.module_name(module), recorder.sites.above(sys._getframe(_OWN_FRAMES))
        call = recorder.enter(MODULE, of_class.levels, name, context, _TRAINING[training], site)
        request, before, buffers = of_class.request, None, None
        if request is not None:
            keywords = None if _has_no_keywords(of_class, module, args) else keywords_of_call(recorder)
            before = self._summaries.record_arguments(call, request, args, keywords)
        model = name
        if parametric and type(module).__name__ in CHILD_BY_WRAPPER:
            model = self._catalog.model_name(module)
        if parametric and training and learns and self._batches.should_read:
            self._batches.read(call.seq, model, module, args, keywords_of_call(recorder))
        if parametric and self._describes_inputs:
            forms = self._forms or self._begin_forms()
            if forms.should_read(model, learns=learns):
                forms.read(call.seq, model, args, keywords_of_call(recorder), learns=learns)
        if outermost:
            if learns:
                with torch._C.DisableTorchFunction():  # no mode of the program sees it
                    for value in args:
                        if type(value) is torch.Tensor and value.requires_grad and value.is_leaf:
                            self._gradients.has_leaf_input = torch._C._current_graph_task_id() < 0
            measures = self._measures_outputs and learns and training and recorder.steps.step in MEASURED_STEPS
            self._measured = model if measures else ""
        if of_class.reads_buffers and module._buffers:
            buffers = self._read_buffers(module)
        opened.append((call, of_class, before, buffers, id(sys.exc_info()[1])))

    def _read_samples(self, model: nn.Module, args: Any, keywords: Mapping[str, Any]) -> None:
        samples = self._gradients.samples
        assert samples is not None
        samples.read(model, args, keywords)
        if samples.is_over:
            self._gradients.samples = None

    def _begin_forms(self) -> BatchForms:
        from traincheck.sources.data.batch_forms import BatchForms  # not before the first call of a model

        self._forms = BatchForms(self._recorder)
        return self._forms

    def _measure_output(self, module: nn.Module, call: OpenCall, output: Any, *, outermost: bool) -> None:
        """Measure the output of a module with parameters of its own, and report all outputs at the end of the call of
        the outermost module."""
        if self._outputs is None:
            from traincheck.sources.modules.output_sizes import OutputSizes  # not before the first call of a model

            self._outputs = OutputSizes(self._recorder)
        if module._parameters:
            self._outputs.add(call.receiver, output)
        if outermost:
            self._outputs.report(call.seq, self._measured)
            self._measured = ""

    def _report_inputs_again(self) -> None:
        if self._forms is not None:
            self._forms.forget_reported()

    def _ends(self, module: nn.Module, args: Any, output: Any, ended: int) -> None:
        opened, flags, recorder = self._depth.modules, self._call_context.training_flags, self._recorder
        if ended > 1:
            self._abandon_innermost(opened, ended - 1)
        if not opened:
            return
        call, of_class, before, buffers, handled = opened.pop()
        if flags:
            flags.pop()
        if call is None or of_class is None or not recorder.watching:
            return
        request = of_class.request
        if output is None and id(sys.exc_info()[1]) != handled:  # torch calls the hook while it handles an exception
            if request is not None and _has_no_keywords(of_class, module, args):
                keywords = keywords_of_call(recorder)
                if keywords:  # the call raised because of them
                    self._summaries.record_arguments(call, request, args, keywords)
            recorder.abandon(call)
            return
        if self._measured:
            self._measure_output(module, call, output, outermost=not opened)
        if buffers is not None:
            self._record_buffers(module, call, buffers)
        if request is None:
            recorder.leave(call, result_facts(output))
            return
        facts_of_result = self._summaries.record_result(call, request, before, output)
        if not has_parameters(module):
            facts_of_result = _without_parameters(facts_of_result)
        if before is not None and request.values.numbers and kinds_of_module(type(module).__name__):
            call.result = facts_of_result
            self._record_scales(call, module, args)
            facts_of_result = call.result
        recorder.leave(call, facts_of_result)

    def _record_scales(self, call: OpenCall, module: nn.Module, args: Any) -> None:
        """Record the root mean square that a normalizing layer gives its result by its parameters: `scale`, and
        `shifted_scale` if the layer adds one to the weight. `deviation` is that of its input."""
        first = next((argument for argument in args if isinstance(argument, torch.Tensor)), None)

        def conclude(fetched: list[float | None], _: NextSeq) -> None:
            weight, shifted, *rest, deviation = fetched
            offsets = sum(square for square in rest if square is not None)
            scale, shifted_scale = (math.sqrt((square or 0.0) + offsets) for square in (weight, shifted))
            of_input = {} if deviation is None else {"deviation": deviation}
            call.result = merged(call.result, scale=scale, shifted_scale=shifted_scale, **of_input)

        with hidden_from_modes():
            squares = mean_squares(module)
            if squares:
                read = [*squares, None if first is None else smallest_deviation(first)]
                self._recorder.transfers.when_ready(self.name, read, conclude, call=call)

    def window_closing(self, cut: Cut) -> None:
        """After the first step, report models that it called unseen: a class may define `__call__` itself."""
        if cut.stage != TRAIN:
            return
        self._recorder.remove_listener(self)
        for model in self._catalog.models():
            cls = type(model)
            definer = next((base for base in cls.__mro__ if "__call__" in vars(base)), nn.Module)
            if cls not in self._classes and not definer.__module__.startswith("torch.") and has_parameters(model):
                reason = f"{definer.__name__} defines __call__ itself, so torch runs no hooks"
                self._recorder.report_unobservable(f"own calls: those of {cls.__name__} cannot be seen: {reason}")

    def _reset(self, *, everywhere: bool) -> None:
        """Drop the open calls of this thread, or of all threads: their ends will not be reported."""
        if everywhere:
            self._depth = _Depth()
        self._depth.modules.clear()
        self._call_context.training_flags.clear()

    def _abandon_innermost(self, opened: list[_OpenModule], count: int) -> None:
        """Abandon the innermost `count` calls, which never ended, see Note [Calls that never end]."""
        for _ in range(min(count, len(opened))):
            call = opened.pop()[0]
            if self._call_context.training_flags:
                self._call_context.training_flags.pop()
            if call is not None:
                self._recorder.abandon(call)

    def _class_request(self, cls: type) -> _ClassRequest:
        """What to record for the calls of modules of this class."""
        call_levels, kinds = levels(cls, "forward", nn.Module), kinds_of_module(cls.__name__)
        forward = getattr(cls, "forward", None)  # classes of scripted modules have none
        names = parameter_names(forward)[1:]
        request = call_request(self._demand, call_levels, names)
        of_kind = call_request(self._demand, kinds, names) if kinds else None
        if of_kind is not None and request is not None and request.values:
            request = request._replace(values=request.values | of_kind.values)
        elif of_kind is not None:
            # A model has many such modules, and later steps show no more than the first ones.
            request = of_kind._replace(arguments=request is not None and request.arguments, sampled=True)
        records_calls = self._demand.records_call((*call_levels, *kinds))
        reads_buffers = self._demand.observes_state(call_levels, BUFFER_DATA)
        return self._classes.put(
            cls, _ClassRequest(call_levels, records_calls, request, reads_buffers, _argument_count(forward))
        )

    def _read_buffers(self, module: nn.Module) -> list[Fingerprint]:
        with hidden_from_modes():
            return deferred_fingerprints([buffer for buffer in module._buffers.values() if buffer is not None])

    def _record_buffers(self, module: nn.Module, call: OpenCall, before: list[Fingerprint]) -> None:
        """Record the module's own buffers. The buffers of children are recorded around the children's calls."""
        after = self._read_buffers(module)
        names = [name for name, buffer in module._buffers.items() if buffer is not None]
        if not len(names) == len(before) == len(after):
            return  # the call registered or dropped a buffer
        recorder = self._recorder

        def conclude(fetched: list[Any], next_seq: NextSeq) -> None:
            changes = []
            for index, name in enumerate(names):
                changed, new = fetched[index], fetched[index + len(names)]
                seq, variable = next_seq(), sys.intern(f"{call.receiver}.{name}")
                changes.append(Change(seq, call.seq, variable, "buffer", "data", SOME, SOME, changed, fingerprint=new))
            recorder.record_changes(changes)

        with hidden_from_modes():
            differ = map(not_equal, before, after)
            recorder.transfers.when_ready(self.name, [*differ, *after], conclude, events=len(names))

    # -- train and eval --------------------------------------------------------------------------------------------

    def _switch_begins(self, module: nn.Module, mode: bool = True) -> OpenCall | None:
        depth = self._depth
        depth.switching += 1
        module = unwrap_compiled(module)
        if not mode and depth.switching == 1:
            self._recorder.rare_event(EVALUATION_MODE)
        call_levels = levels(type(module), "train" if mode else "eval", nn.Module)
        if depth.switching > 1 or not self._recorder.watching or not self._demand.records_call(call_levels):
            return _NESTED_SWITCH
        context = context_facts_with(training=module.training)
        return self._recorder.enter(LIFECYCLE, call_levels, self._catalog.module_name(module), context)

    def _switch_ends(self, call: OpenCall, result: Any) -> None:
        self._depth.switching -= 1
        if call.seq >= 0:
            self._recorder.leave(call)

    def _switch_failed(self, call: OpenCall) -> None:
        self._depth.switching -= 1
        if call.seq >= 0:
            self._recorder.abandon(call)

    # -- zero_grad -------------------------------------------------------------------------------------------------

    def _clear_begins(self, module: nn.Module, set_to_none: bool = True) -> tuple[OpenCall, Snapshot] | None:
        self._recorder.between_calls()
        module = unwrap_compiled(module)
        call_levels = levels(type(module), "zero_grad", nn.Module)
        if not self._demand.records_call(call_levels) and not self._demand.observes_state(call_levels, PARAMETER_GRAD):
            return None
        name = self._catalog.module_name(module)
        own = {id(param) for param in module.parameters()}
        with hidden_from_modes():
            held = [(v, t) for v, t in self._catalog.living() if id(t) in own]
            snapshot = self._gradients.read(held, values=False)
        call = self._recorder.enter(LIFECYCLE, call_levels, name, context_facts_with(set_to_none=bool(set_to_none)))
        self._gradients.record_states(call, snapshot)
        return call, snapshot

    def _clear_ends(self, token: tuple[OpenCall, Snapshot], result: Any) -> None:
        with hidden_from_modes():
            self._gradients.compare(token[1], token[0].seq)
        self._recorder.leave(token[0])

    def _clear_failed(self, token: tuple[OpenCall, Snapshot]) -> None:
        self._recorder.abandon(token[0])


def _argument_count(forward: Any) -> int:
    """How many arguments a method takes; -1 if the number is variable or it has keyword-only arguments."""
    code = forward.__code__ if type(forward) is FunctionType else None
    if code is None or code.co_kwonlyargcount or code.co_flags & _VARIADIC:
        return -1
    return code.co_argcount - 1


_VARIADIC = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


def _has_no_keywords(of_class: _ClassRequest, module: nn.Module, args: Any) -> bool:
    """Whether the call has no arguments except `args`. Finding keyword arguments is slow."""
    return (
        len(args) == of_class.argument_count
        and "forward" not in module.__dict__
        and not module._forward_pre_hooks_with_kwargs
    )


@functools.lru_cache(maxsize=4096)
def _without_parameters(base: Facts) -> Facts:
    """The facts of a result with the fact that the module has no parameters. Equal facts are one object."""
    return merged(base, parameters=False)


def mean_squares(module: nn.Module) -> list[Any]:
    """The mean squares of a normalizing layer's weight, of the weight plus one, and of its offsets. Each may be
    deferred.

    Returns nothing for a layer without a weight for each element. Call inside `hidden_from_modes()`.
    """
    readable = {name: readable_memory(tensor) for name, tensor in module.named_parameters(recurse=False)}
    weights = {
        name: t.float() for name, t in readable.items() if t is not None and t.numel() > 1 and t.is_floating_point()
    }
    weight = next((tensor for name, tensor in weights.items() if "bias" not in name), None)
    if weight is None:
        return []
    offsets = (tensor for name, tensor in weights.items() if "bias" in name)
    squares = [(tensor * tensor).mean() for tensor in (weight, weight + 1, *offsets)]
    return [float(square) if is_on_host(square) else DeferredValue((square,), float) for square in squares]


def smallest_deviation(tensor: torch.Tensor) -> float | DeferredValue | None:
    """The deviation of a tensor along its last dimension, or along all but the second one if that is smaller; perhaps
    deferred, and None if it cannot be read. Call inside `hidden_from_modes()`."""
    memory = readable_memory(tensor)
    if memory is None or not memory.is_floating_point() or not memory.dim() or not memory.numel():
        return None
    dense = memory.float()
    normalized = [[-1], [i for i in range(dense.dim()) if i != 1]][: dense.dim()]
    # `Tensor.var` takes 10 to 30 times as long on the host
    variances = [(dense - dense.mean(dimensions, keepdim=True)).square_().mean() for dimensions in normalized]
    smallest = torch.stack(variances).amin().sqrt()
    return float(smallest) if is_on_host(smallest) else DeferredValue((smallest,), float)


_OWN_FRAMES = 2
"""Frames of TrainCheck above the hook. Skipping them makes finding the call site faster."""


def keywords_of_call(recorder: Recorder) -> Mapping[str, Any]:
    """The keyword arguments of the module call whose hook is running."""
    keywords = recorder.hooks.keywords
    return keywords_of_module_call() if keywords is None else keywords
