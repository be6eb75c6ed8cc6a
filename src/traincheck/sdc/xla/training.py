"""Train the built-in decoder with XLA, and pass values to a study between its programs.

Weights and batches come from the torch workload. The same seed therefore starts with the same numbers, and the losses
of both frameworks are comparable. Forward, backward and updates are XLA programs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase

import jax
import torch

from traincheck.sdc.faults.fault import BACKWARD, FORWARD, GRADIENT, OPTIMIZER, Fault
from traincheck.sdc.faults.inject import Injected, none_matches, own_rank
from traincheck.sdc.frameworks import XLA, check_executable
from traincheck.sdc.workload.decoder import DecoderWorkload
from traincheck.sdc.workload.sizes import BUILT_IN
from traincheck.sdc.workload.training import Seen, SeenInside
from traincheck.sdc.workload.workload import EVALUATED, HELD_OUT
from traincheck.sdc.xla.arrays import as_array, as_tensor
from traincheck.sdc.xla.decoder import Compiled, Pull, Submodule, submodules


class XlaWorkload:
    """A decoder and its compiled programs, which all its trainings share."""

    def __init__(self, workload: DecoderWorkload) -> None:
        """`workload` is on the CPU: it draws the weights and the batches."""
        self.drawn = workload
        self.submodules = submodules(workload.config)
        placeholder = torch.nn.Parameter(torch.zeros(1))
        self.compiled = Compiled(
            workload.config, workload.build_optimizer(torch.nn.ParameterList([placeholder])).defaults
        )

    def begin(self) -> XlaTraining:
        """Return a new training."""
        return XlaTraining(self)


class XlaTraining:
    """A `Training` of the decoder."""

    def __init__(self, workload: XlaWorkload) -> None:
        self._drawn, self._compiled, self._submodules = workload.drawn, workload.compiled, workload.submodules
        model = self._drawn.build_model()
        named = dict(model.named_parameters())
        self._values = {name: as_array(value) for name, value in named.items()}
        self._means = {name: as_array(torch.zeros_like(value)) for name, value in named.items()}
        self._squares = {name: as_array(torch.zeros_like(value)) for name, value in named.items()}
        self._gradients: dict[str, jax.Array] = {}
        self._pulls: dict[str, Pull] = {}
        self._of_logits: jax.Array | None = None
        self._steps = 0
        self._injected: list[Injected] = []
        self._seen: SeenInside | None = None

    @property
    def kinds(self) -> Mapping[str, str]:
        return {name: submodule.kind for name, submodule in self._submodules.items()}

    # -- faults and observation -----------------------------------------------------------------------------

    @contextmanager
    def faulty(self, faults: Sequence[Fault], rank: int | None = None) -> Iterator[list[Injected]]:
        check_executable(XLA, BUILT_IN, faults)
        for fault in faults:
            names = list(self._values if fault.of_parameters else self._submodules)
            if not any(self._hits(fault, name) for name in names):
                raise none_matches(fault, names)
        injected = [Injected(fault) for fault in faults]
        own = own_rank() if rank is None else rank
        self._injected = [injection for injection in injected if injection.fault.rank in (None, own)]
        try:
            yield injected
        finally:
            self._injected = []

    def _hits(self, fault: Fault, name: str) -> bool:
        """Return whether the fault's pattern matches `name`: a submodule (by name or torch class) or a parameter."""
        label = self._submodules[name].label if name in self._submodules else name
        return fnmatchcase(name, fault.pattern) or fnmatchcase(label, fault.pattern)

    def _struck(self, site: str, name: str, array: jax.Array) -> jax.Array:
        """Return the array after faults. The code for torch applies them, so a fault hits the same elements."""
        for injection in self._injected:
            if injection.fault.site == site and self._hits(injection.fault, name):
                draws = injection.comes(name)
                array = array if draws is None else as_array(injection.struck(name, as_tensor(array), draws))
        return array

    @contextmanager
    def watched(self, seen: SeenInside) -> Iterator[None]:
        self._seen = seen
        try:
            yield
        finally:
            self._seen = None

    def _passed(self, name: str, direction: str, array: jax.Array) -> jax.Array:
        """Return the output of a submodule, forward or backward, in the form that the next one receives."""
        array = self._struck(direction, name, array)
        other = self._seen(name, direction, as_tensor(array)) if self._seen is not None else None
        return array if other is None else as_array(other)

    # -- a step ---------------------------------------------------------------------------------------------------

    def batch(self, step: int) -> torch.Tensor:
        return self._drawn.batch(step)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        logits = self._logits(as_array(batch[:, :-1]))
        loss, self._of_logits = self._compiled.loss(logits, as_array(batch[:, 1:]))
        return as_tensor(loss)

    def _logits(self, tokens: jax.Array) -> jax.Array:
        call, add = self._call, self._compiled.add
        x = call("embedding", tokens)
        for layer in self._layers():
            x = add(x, call(f"{layer}.attention", call(f"{layer}.attention_norm", x)))
            x = add(x, call(f"{layer}.feed_forward", call(f"{layer}.feed_forward_norm", x)))
        return call("head", call("norm", x))

    def backward(self) -> None:
        assert self._of_logits is not None, "backward comes after forward"
        back, add = self._back, self._compiled.add
        gradient = back("norm", back("head", self._of_logits))
        for layer in reversed(self._layers()):
            gradient = add(gradient, back(f"{layer}.feed_forward_norm", back(f"{layer}.feed_forward", gradient)))
            gradient = add(gradient, back(f"{layer}.attention_norm", back(f"{layer}.attention", gradient)))
        self._back_to_parameters("embedding", gradient)
        self._of_logits = None
        # In the order of the parameters, the order in which both workers report them.
        self._gradients = {name: self._struck(GRADIENT, name, self._gradients[name]) for name in self._values}

    def _layers(self) -> list[str]:
        return [f"layers.{number}" for number in range(self._drawn.config.layers)]

    def _named(self, name: str) -> tuple[Submodule, dict[str, str]]:
        """Return a submodule, and its parameters' local names with their names in the model."""
        submodule = self._submodules[name]
        return submodule, {inner: f"{name}.{inner}" for inner in submodule.parameters}

    def _call(self, name: str, x: jax.Array) -> jax.Array:
        submodule, names = self._named(name)
        parameters = {inner: self._values[whole] for inner, whole in names.items()}
        output, self._pulls[name] = self._compiled.forward(submodule, parameters, x)
        return self._passed(name, FORWARD, output)

    def _back(self, name: str, gradient: jax.Array) -> jax.Array:
        input_gradient = self._back_to_parameters(name, gradient)
        assert input_gradient is not None, "only tokens have no gradient"
        return self._passed(name, BACKWARD, input_gradient)

    def _back_to_parameters(self, name: str, gradient: jax.Array) -> jax.Array | None:
        _, names = self._named(name)
        of_parameters, of_input = self._compiled.backward(self._pulls.pop(name), gradient)
        self._gradients |= {names[inner]: value for inner, value in of_parameters.items()}
        return of_input

    def gradients(self, seen: Seen) -> None:
        _hand_out(self._gradients, seen)

    def update(self) -> None:
        self._steps += 1
        step = as_array(torch.tensor(float(self._steps)))
        for name in self._values:
            state = self._gradients.pop(name), self._means[name], self._squares[name]
            updated = self._compiled.adamw(self._values[name], *state, step)
            self._values[name], self._means[name], self._squares[name] = updated
        for name in self._values:
            self._values[name] = self._struck(OPTIMIZER, name, self._values[name])
        for injection in self._injected:
            injection.next_step()

    # -- state --------------------------------------------------------------------------------------------

    def parameters(self) -> Iterable[tuple[str, torch.Tensor]]:
        return ((name, as_tensor(value)) for name, value in self._values.items())

    def state(self, seen: Seen) -> None:
        _hand_out(self._values, seen)
        for moment, kept in (("mean", self._means), ("square", self._squares)):
            _hand_out(kept, lambda name, value, moment=moment: seen(f"{moment} of {name}", value))  # type: ignore[misc]

    def evaluate(self) -> float:
        losses = [float(self.forward(self.batch(HELD_OUT + offset))) for offset in range(EVALUATED)]
        self._pulls.clear()
        self._of_logits = None
        return sum(losses) / len(losses)


def _hand_out(arrays: dict[str, jax.Array], seen: Seen) -> None:
    for name, array in arrays.items():
        other = seen(name, as_tensor(array))
        if other is not None:
            arrays[name] = as_array(other)
