"""Compare a suspect worker with a trusted worker that executes the same training, at three levels.

After Ma et al., "Understanding Silent Data Corruption in LLM Training" (ACL 2025):

1. *submodule*: in lock step. After each submodule, forward and backward, the suspect's result is compared and then
  replaced by the trusted result. Each difference therefore belongs to this submodule alone.
2. *step*: differences accumulate within an optimizer step. Then gradients are compared, and parameters and optimizer
  state are copied from the trusted worker.
3. *period*: nothing is copied. Losses and the distance of the parameters are compared in each step, an evaluation at
  the end.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from traincheck.sdc.faults.fault import GRADIENT, Fault
from traincheck.sdc.faults.inject import Injected
from traincheck.sdc.study.mismatch import Distance, Mismatch, worst
from traincheck.sdc.study.plan import LEVELS, PERIOD, STEP, SUBMODULE
from traincheck.sdc.study.worker_pair import Pair
from traincheck.sdc.workload.training import Training
from traincheck.sources.tensors.reading import fingerprints, hidden_from_modes

UPDATE = "update"
"""The direction of parameters after an update. The others are sites of a fault: forward, backward and gradient."""

Progress = Callable[[str, int, int], object]


class _Tally:
    """Mismatches by direction, and by kind or name of submodule; in total and for the current step."""

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
        frequencies = {direction: mismatch.frequency for direction, mismatch in self.of_step.items()}
        self.of_step = {}
        return frequencies

    def data(self) -> dict[str, Any]:
        return {
            "by_kind": [
                {"kind": kind, "direction": way, **mismatch.data()} for (kind, way), mismatch in self.by_kind.items()
            ],
            "by_module": [
                {"module": name, "direction": way, **mismatch.data()} for (name, way), mismatch in self.by_name.items()
            ],
        }


class Study:
    """One rank's part in it. What is found, the suspect ones find; `run` returns it on all."""

    def __init__(
        self,
        pair: Pair,
        begin: Callable[[], Training],
        steps: int,
        faults: Sequence[Fault],
        progress: Progress,
        keep_going: Callable[[], bool],
    ) -> None:
        """`begin` creates a new training for each level. `keep_going` is called before each step; the leader's answer
        counts."""
        self._pair, self._make, self._steps, self._faults = pair, begin, steps, tuple(faults)
        self._progress, self._keep_going = progress, keep_going
        self._tally = _Tally()
        self._injected: list[Injected] = []
        self.interrupted = False

    def run(self, levels: Sequence[str]) -> list[dict[str, Any]]:
        """Return the results of each level, from each rank of the suspect host.

        Raises NotTheSameWork if the hosts execute different workloads.
        """
        bodies = {SUBMODULE: self._submodule, STEP: self._step, PERIOD: self._period}
        results: dict[str, Any] = {}
        for level in levels:
            if self.interrupted:
                break
            self._tally = _Tally()
            results[level] = bodies[level]()
        return self._pair.gather(results)[self._pair.size :]

    # -- what the levels have in common ---------------------------------------------------------------------------

    def _begin(self) -> Training:
        training = self._make()
        training.state(self._copied)
        return training

    @contextmanager
    def _faulty(self, training: Training) -> Iterator[None]:
        faults = () if self._pair.trusted else self._faults
        rank = self._pair.host.rank if self._pair.size > 1 else None
        with training.faulty(faults, rank) as self._injected:
            yield

    def _batches(self, training: Training, level: str) -> Iterator[tuple[int, Any]]:
        """Yield number and batch of each step, until the last step or until asked to stop."""
        for step in range(1, self._steps + 1):
            if not self._pair.agree_to_continue(self._keep_going()):
                self.interrupted = True
                return
            batch = training.batch(step)
            with hidden_from_modes():
                digests = fingerprints([leaf.cpu() for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)])
            self._pair.check_same(
                f"the batch of step {step}", functools.reduce(lambda a, b: a ^ (b or 0), digests, 0) >> 1
            )
            yield step, batch
            self._progress(f"level {LEVELS.index(level) + 1} ({level})", step, self._steps)

    def _loss(self, loss: torch.Tensor) -> dict[str, float]:
        trusted = self._pair.trusted_value("the loss", loss)
        return {"loss": float(trusted), "suspect_loss": float(loss)}

    def _copied(self, name: str, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the trusted worker's value, to replace the suspect's."""
        trusted = self._pair.trusted_value(name, tensor)
        return None if self._pair.trusted else trusted

    def _compared(self, name: str, kind: str, direction: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return the trusted worker's value on the CPU, after comparing the suspect's value with it."""
        trusted = self._pair.trusted_value(f"{direction} of {name}", tensor)
        if not self._pair.trusted:
            self._tally.add(name, kind, direction, trusted, tensor.detach().cpu())
        return trusted

    def _kind_of(self, parameter: str, kinds: Mapping[str, str]) -> str:
        homes = [name for name in kinds if parameter.startswith(f"{name}.")]
        return kinds[max(homes, key=len)] if homes else "other"

    def _end(self, series: list[dict[str, Any]], **extra: Any) -> dict[str, Any]:
        strokes = [{"fault": injected.fault.text, "times": injected.times} for injected in self._injected]
        return {"steps": len(series), "injected": strokes, **extra, **self._tally.data(), "series": series}

    # -- the levels -----------------------------------------------------------------------------------------------

    def _submodule(self) -> dict[str, Any]:
        training = self._begin()
        kinds = training.kinds
        series: list[dict[str, Any]] = []

        def synchronised(name: str, direction: str, value: torch.Tensor) -> torch.Tensor | None:
            trusted = self._compared(name, kinds[name], direction, value)
            return None if self._pair.trusted else trusted

        def of_parameter(name: str, value: torch.Tensor) -> torch.Tensor | None:
            trusted = self._compared(name, self._kind_of(name, kinds), GRADIENT, value)
            return None if self._pair.trusted else trusted

        with self._faulty(training), training.watched(synchronised):
            for step, batch in self._batches(training, SUBMODULE):
                measures = self._loss(training.forward(batch))
                training.backward()
                training.gradients(of_parameter)
                self._update(training)
                series.append({"step": step, **measures, **self._tally.end_step()})
        return self._end(series)

    def _update(self, training: Training) -> None:
        """Take an optimizer step, compare the parameters, then copy the trusted worker's state."""
        training.update()
        for name, parameter in training.parameters():
            self._compared(name, self._kind_of(name, training.kinds), UPDATE, parameter)
        training.state(self._copied)

    def _step(self) -> dict[str, Any]:
        training = self._begin()
        series: list[dict[str, Any]] = []
        with self._faulty(training):
            for step, batch in self._batches(training, STEP):
                measures: dict[str, Any] = dict(self._loss(training.forward(batch)))
                training.backward()
                measures |= self._noise(training)
                self._update(training)
                series.append({"step": step, **measures, **self._tally.end_step()})
        worst_noise = {
            "worst_noise_to_signal": worst(row["noise_to_signal"] for row in series),
            "worst_noise_to_signal_of_a_parameter": worst(row["worst_noise_to_signal"] for row in series),
        }
        return self._end(series, **worst_noise)

    def _noise(self, training: Training) -> dict[str, Any]:
        """Return the noise to signal of all gradients together, and of the gradient with the largest one."""
        whole, noises = Distance(), {}

        def of_parameter(name: str, value: torch.Tensor) -> None:
            trusted = self._compared(name, self._kind_of(name, training.kinds), GRADIENT, value)
            noises[name] = whole.add(trusted, value.cpu())

        training.gradients(of_parameter)
        loudest = max(noises, key=lambda name: worst([noises[name]]), default="")
        noise = {"noise_to_signal": whole.relative, "worst_parameter": loudest}
        return {**noise, "worst_noise_to_signal": noises.get(loudest, 0.0)}

    def _period(self) -> dict[str, Any]:
        training = self._begin()
        series: list[dict[str, Any]] = []
        with self._faulty(training):
            for step, batch in self._batches(training, PERIOD):
                measures = self._loss(training.forward(batch))
                training.backward()
                training.update()
                distance = Distance()
                for name, parameter in training.parameters():
                    distance.add(self._pair.trusted_value(name, parameter), parameter.detach().cpu())
                distances = {"parameter_distance": distance.absolute, "relative_distance": distance.relative}
                series.append({"step": step, **measures, **distances})
        # Without the fault: how good the weights are that came out, not how well the device can still evaluate.
        value = torch.tensor(training.evaluate(), dtype=torch.float64)
        trusted = self._pair.trusted_value("the evaluation", value)
        return self._end(series, evaluation={"trusted": float(trusted), "suspect": float(value)})
