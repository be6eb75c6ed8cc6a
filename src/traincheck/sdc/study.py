"""Study: three ways to compare a suspect worker with a trusted one that executes the same training.

After Ma et al., "Understanding Silent Data Corruption in LLM Training" (ACL 2025):

1. *submodule*: in lock step. After each submodule, in forward and backward, the suspect's result is compared and then
   overwritten with the trusted one, so that each difference is of this submodule alone.
2. *step*: within one optimizer step differences grow as they will; then gradients are compared, and the parameters
   (and what the optimizer keeps) are copied over.
3. *period*: nothing is copied; losses, the distance of the parameters, and an evaluation at the end.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from traincheck.sdc.fault import Fault
from traincheck.sdc.graph import put_in_place, with_input_gradients
from traincheck.sdc.inject import Injected, inject
from traincheck.sdc.mismatch import Distance, Mismatch, worst
from traincheck.sdc.pair import Pair
from traincheck.sdc.plan import LEVELS, PERIOD, STEP, SUBMODULE
from traincheck.sdc.workload import Workload, evaluation, submodules_of
from traincheck.sources.tensors import fingerprints, unseen

FORWARD, BACKWARD, GRADIENT, UPDATE = "forward", "backward", "gradient", "update"
"""What is compared: outputs, gradients of inputs, gradients of parameters, parameters after the optimizer's step."""

Progress = Callable[[str, int, int], object]


class _Tally:
    """Mismatches by kind of submodule and direction, and by submodule; since the start and of this step."""

    def __init__(self) -> None:
        self.by_kind: dict[tuple[str, str], Mismatch] = {}
        self.by_name: dict[tuple[str, str], Mismatch] = {}
        self.of_step: dict[str, Mismatch] = {}

    def add(self, name: str, kind: str, direction: str, trusted: torch.Tensor, suspect: torch.Tensor) -> bool:
        for table, key in ((self.by_kind, (kind, direction)), (self.by_name, (name, direction))):
            table.setdefault(key, Mismatch()).add(trusted, suspect)
        return self.of_step.setdefault(direction, Mismatch()).add(trusted, suspect)

    def end_step(self) -> dict[str, float]:
        """The frequencies of this step by direction."""
        found = {direction: one.frequency for direction, one in self.of_step.items()}
        self.of_step = {}
        return found

    def data(self) -> dict[str, Any]:
        return {
            "by_kind": [{"kind": kind, "direction": way, **one.data()} for (kind, way), one in self.by_kind.items()],
            "by_module": [
                {"module": name, "direction": way, **one.data()} for (name, way), one in self.by_name.items()
            ],
        }


class Study:
    """One rank's part in it. What is found, the suspect ones find; `run` returns it on all."""

    def __init__(
        self,
        pair: Pair,
        workload: Workload,
        steps: int,
        faults: Sequence[Fault],
        progress: Progress,
        wanted: Callable[[], bool],
    ) -> None:
        """`wanted` says whether to go on; it is asked before each step, and counts on the leader."""
        self._pair, self._workload, self._steps, self._faults = pair, workload, steps, tuple(faults)
        self._progress, self._wanted = progress, wanted
        self._tally = _Tally()
        self._injected: list[Injected] = []
        self.interrupted = False

    def run(self, levels: Sequence[str]) -> list[dict[str, Any]]:
        """What each rank of the suspect host has found on each level.

        Raises NotTheSameWork where the workload is not the same on both hosts.
        """
        bodies = {SUBMODULE: self._submodule, STEP: self._step, PERIOD: self._period}
        found: dict[str, Any] = {}
        for level in levels:
            if self.interrupted:
                break
            self._tally = _Tally()
            found[level] = bodies[level]()
        return self._pair.told(found)[self._pair.size :]

    # -- what the levels have in common ---------------------------------------------------------------------------

    def _begin(self) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = self._workload.build_model()
        optimizer = self._workload.build_optimizer(model)
        self._copy_state(model, optimizer)
        return model, optimizer

    @contextmanager
    def _faulty(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        with ExitStack() as stack:
            faults = () if self._pair.trusted else self._faults
            rank = self._pair.host.rank if self._pair.size > 1 else None
            self._injected = [stack.enter_context(inject(model, optimizer, fault, rank)) for fault in faults]
            yield

    def _batches(self, level: str) -> Iterator[tuple[int, Any]]:
        """Number and batch of each step, until enough or until asked to stop."""
        for step in range(1, self._steps + 1):
            if not self._pair.goes_on(self._wanted()):
                self.interrupted = True
                return
            batch = self._workload.batch(step)
            with unseen():
                found = fingerprints([one.cpu() for one in tree_leaves(batch) if isinstance(one, torch.Tensor)])
            self._pair.same(f"the batch of step {step}", functools.reduce(lambda a, b: a ^ (b or 0), found, 0) >> 1)
            yield step, batch
            self._progress(f"level {LEVELS.index(level) + 1} ({level})", step, self._steps)

    def _loss(self, loss: torch.Tensor) -> dict[str, float]:
        trusted = self._pair.shared("the loss", loss)
        return {"loss": float(trusted), "suspect_loss": float(loss)}

    def _copy_state(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Parameters, buffers and what the optimizer keeps become the trusted ones."""
        self._copy({**dict(model.named_parameters()), **dict(model.named_buffers())})
        for number, parameter in enumerate(one for group in optimizer.param_groups for one in group["params"]):
            kept = optimizer.state.get(parameter, {})
            values = {name: kept[name] for name in sorted(kept) if isinstance(kept[name], torch.Tensor)}
            self._copy({f"{name} of parameter {number}": value for name, value in values.items()})

    def _copy(self, tensors: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            self._overwrite(tensor, self._pair.shared(name, tensor))

    def _overwrite(self, tensor: torch.Tensor, trusted: torch.Tensor) -> None:
        if not self._pair.trusted:
            with torch.no_grad():
                tensor.copy_(trusted)

    def _compared(self, name: str, kind: str, direction: str, tensor: torch.Tensor) -> torch.Tensor:
        """The trusted worker's value on the CPU; on the suspect its own was compared with it."""
        trusted = self._pair.shared(f"{direction} of {name}", tensor)
        if not self._pair.trusted:
            self._tally.add(name, kind, direction, trusted, tensor.detach().cpu())
        return trusted

    def _kind_of(self, parameter: str, kinds: Mapping[str, str]) -> str:
        homes = [name for name in kinds if parameter.startswith(f"{name}.")]
        return kinds[max(homes, key=len)] if homes else "other"

    def _end(self, series: list[dict[str, Any]], **found: Any) -> dict[str, Any]:
        strokes = [{"fault": one.fault.text, "times": one.times} for one in self._injected]
        return {"steps": len(series), "injected": strokes, **found, **self._tally.data(), "series": series}

    # -- the levels -----------------------------------------------------------------------------------------------

    def _submodule(self) -> dict[str, Any]:
        model, optimizer = self._begin()
        kinds = submodules_of(self._workload, model)
        series: list[dict[str, Any]] = []
        with self._faulty(model, optimizer), self._in_lock_step(model, kinds):
            for step, batch in self._batches(SUBMODULE):
                optimizer.zero_grad()
                loss = self._workload.loss(model, batch)
                told = self._loss(loss)
                loss.backward()
                for name, parameter in model.named_parameters():
                    if parameter.grad is not None:
                        kind = self._kind_of(name, kinds)
                        self._overwrite(parameter.grad, self._compared(name, kind, GRADIENT, parameter.grad))
                optimizer.step()
                for name, parameter in model.named_parameters():
                    self._compared(name, self._kind_of(name, kinds), UPDATE, parameter)
                self._copy_state(model, optimizer)
                series.append({"step": step, **told, **self._tally.end_step()})
        return self._end(series)

    @contextmanager
    def _in_lock_step(self, model: torch.nn.Module, kinds: Mapping[str, str]) -> Iterator[None]:
        """After those of the faults, on the way forward and back: what is compared is what the fault made of it."""
        with ExitStack() as undo:
            for name, kind in kinds.items():
                module = model.get_submodule(name)
                pre, post = functools.partial(self._enter, name, kind), functools.partial(self._leave, name, kind)
                undo.callback(module.register_forward_pre_hook(pre, prepend=True, with_kwargs=True).remove)
                undo.callback(module.register_forward_hook(post).remove)
            yield

    def _enter(self, name: str, kind: str, _module: Any, args: Any, kwargs: Any) -> Any:
        def seen(_number: int, gradient: torch.Tensor) -> torch.Tensor | None:
            trusted = self._compared(name, kind, BACKWARD, gradient)
            return None if self._pair.trusted else trusted.to(gradient.device)

        return with_input_gradients(args, kwargs, seen)

    def _leave(self, name: str, kind: str, _module: Any, _args: Any, output: Any) -> Any:
        def compared(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            trusted = self._compared(name, kind, FORWARD, value)
            return value if self._pair.trusted else put_in_place(value, trusted.to(value.device))

        return tree_map(compared, output)

    def _step(self) -> dict[str, Any]:
        model, optimizer = self._begin()
        kinds = submodules_of(self._workload, model)
        series: list[dict[str, Any]] = []
        with self._faulty(model, optimizer):
            for step, batch in self._batches(STEP):
                optimizer.zero_grad()
                loss = self._workload.loss(model, batch)
                told: dict[str, Any] = dict(self._loss(loss))
                loss.backward()
                whole, noises = Distance(), {}
                for name, parameter in model.named_parameters():
                    if parameter.grad is not None:
                        trusted = self._compared(name, self._kind_of(name, kinds), GRADIENT, parameter.grad)
                        noises[name] = whole.add(trusted, parameter.grad.cpu())
                optimizer.step()
                for name, parameter in model.named_parameters():
                    self._compared(name, self._kind_of(name, kinds), UPDATE, parameter)
                self._copy_state(model, optimizer)
                loudest = max(noises, key=lambda name: worst([noises[name]]), default="")
                told |= {"noise_to_signal": whole.relative, "worst_parameter": loudest}
                told["worst_noise_to_signal"] = noises.get(loudest, 0.0)
                series.append({"step": step, **told, **self._tally.end_step()})
        found = {
            "worst_noise_to_signal": worst(one["noise_to_signal"] for one in series),
            "worst_noise_to_signal_of_a_parameter": worst(one["worst_noise_to_signal"] for one in series),
        }
        return self._end(series, **found)

    def _period(self) -> dict[str, Any]:
        model, optimizer = self._begin()
        series: list[dict[str, Any]] = []
        with self._faulty(model, optimizer):
            for step, batch in self._batches(PERIOD):
                optimizer.zero_grad()
                loss = self._workload.loss(model, batch)
                told = self._loss(loss)
                loss.backward()
                optimizer.step()
                apart = Distance()
                for name, parameter in model.named_parameters():
                    apart.add(self._pair.shared(name, parameter), parameter.detach().cpu())
                distances = {"parameter_distance": apart.absolute, "relative_distance": apart.relative}
                series.append({"step": step, **told, **distances})
        # Without the fault: how good the weights are that came out, not how well the device can still evaluate.
        value = torch.tensor(evaluation(self._workload, model), dtype=torch.float64)
        trusted = self._pair.shared("the evaluation", value)
        return self._end(series, evaluation={"trusted": float(trusted), "suspect": float(value)})
