"""Define the work of one screening round, and compute its fingerprints.

A round multiplies matrices of the model's shapes in several types, forward and backward. It then trains some steps of
the workload, to cover attention, norms and optimizer. Each round must compute the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
import xxhash
from torch import nn

from traincheck.sdc.determinism import make_deterministic
from traincheck.sdc.faults.fault import Fault
from traincheck.sdc.faults.inject import Injected, inject
from traincheck.sdc.fingerprint_log import Entry
from traincheck.sdc.recording import record
from traincheck.sdc.workload.decoder import DecoderWorkload
from traincheck.sdc.workload.workload import Workload

ROWS = 128
"""Rows of the multiplied matrices: enough to fill the blocks of the kernels."""

ON_CPU = (torch.float32, torch.bfloat16)
ON_ACCELERATORS = (torch.float32, torch.bfloat16, torch.float16)
"""Each type has units or kernels of its own. A CPU computes fp16 as fp32."""

SEED_STRIDE = 1_000_003
"""Distance between the seeds of the inputs of two trainings, so that they share no step's inputs."""


class Products:
    """A workload that only multiplies matrices of the shapes of a model's linear layers."""

    def __init__(self, model: nn.Module, seed: int, device: torch.device) -> None:
        linear = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
        shapes = sorted({(layer.in_features, layer.out_features) for layer in linear})
        dtypes = ON_CPU if device.type == "cpu" else ON_ACCELERATORS
        self._cases = [(width, out, dtype) for width, out in shapes for dtype in dtypes]
        self._seed, self._device = seed, device

    def build_model(self) -> nn.Module:
        """Build a layer for each shape and type, named by them."""
        torch.manual_seed(self._seed)
        layers = {
            f"{width}x{out}-{str(dtype).removeprefix('torch.')}": nn.Linear(width, out, bias=False, dtype=dtype)
            for width, out, dtype in self._cases
        }
        return nn.ModuleDict(layers).to(self._device)

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Build an SGD optimizer."""
        return torch.optim.SGD(model.parameters(), lr=0.01)

    def batch(self, step: int) -> list[torch.Tensor]:
        """Draw the inputs of each layer."""
        draws = torch.Generator().manual_seed(self._seed * SEED_STRIDE + step)
        return [
            torch.randn(ROWS, width, generator=draws).to(self._device, dtype).requires_grad_()
            for width, _, dtype in self._cases
        ]

    def loss(self, model: Any, batch: list[torch.Tensor]) -> torch.Tensor:
        """Return a number that depends on every product."""
        losses = [layer(x).float().pow(2).mean() for layer, x in zip(model.values(), batch, strict=True)]
        return torch.stack(losses).sum()


class _Again:
    """A built-in workload that draws its model once and resets it later: drawing billions of weights takes minutes."""

    def __init__(self, workload: DecoderWorkload) -> None:
        self._model = workload.build_model()
        self._begins = {name: value.detach().clone() for name, value in self._model.state_dict().items()}
        self.build_optimizer, self.batch, self.loss = workload.build_optimizer, workload.batch, workload.loss

    def build_model(self) -> nn.Module:
        self._model.load_state_dict(self._begins)
        return self._model


class Exercise:
    """The work of each round."""

    def __init__(
        self, workload: Workload, steps: int, seed: int, device: torch.device, threads: int, faults: Sequence[Fault]
    ) -> None:
        """`faults` strike in the training, each round otherwise; lasting defects stay at their places."""
        self._steps, self._seed, self._threads, self._faults = steps, seed, threads, tuple(faults)
        self.injected: list[Injected] = []
        """What the faults did in the last round."""
        make_deterministic(seed, threads)
        training = _Again(workload) if isinstance(workload, DecoderWorkload) else workload
        products = Products(training.build_model(), seed, device)
        self._parts: list[tuple[str, Workload]] = [("products", products), ("training", training)]

    def round(self, number: int, stepped: Callable[[], object]) -> dict[str, str]:
        """Run a round and return its fingerprints by name."""
        hashers: dict[str, xxhash.xxh3_64] = {}
        for part, workload in self._parts:
            make_deterministic(self._seed, self._threads)

            def emit(entry: Entry, part: str = part) -> None:
                inside = f" {entry.module}" if entry.module else ""
                key = f"{part}, step {entry.step}, {entry.direction}{inside}"
                hashers.setdefault(key, xxhash.xxh3_64()).update(f"{entry.operation}={entry.fingerprint};".encode())

            prepared = self._striking(number) if part == "training" and self._faults else None
            record(workload, self._steps, emit, lambda _step: stepped(), operations=False, prepared=prepared)
        return {key: hasher.hexdigest() for key, hasher in hashers.items()}

    def _striking(self, number: int) -> Callable[[nn.Module, torch.optim.Optimizer], ExitStack]:
        def prepared(model: nn.Module, optimizer: torch.optim.Optimizer) -> ExitStack:
            stack = ExitStack()
            self.injected = [
                stack.enter_context(inject(model, optimizer, fault, repetition=number)) for fault in self._faults
            ]
            return stack

        return prepared
