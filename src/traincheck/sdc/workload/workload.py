"""Load the workload that a screening or study executes: a built-in decoder or a user's own training."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import torch

from traincheck.errors import BadOption, TrainCheckError, WorkloadUnusable
from traincheck.sdc.study.host import Host
from traincheck.sdc.workload.decoder import DTYPES, DecoderWorkload
from traincheck.sdc.workload.parallel import ParallelDecoderWorkload
from traincheck.sdc.workload.sizes import BUILT_IN, SIZES

HELD_OUT = 1_000_000
"""Batches from this number on are held out for evaluation."""
EVALUATED = 4
"""Batches of an evaluation, unless the workload defines its own."""


class Workload(Protocol):
    """A training, split into parts. Everything must depend on the seed alone.

    Optional methods: `evaluate(model) -> float`, where lower is better (default: the mean loss of held-out batches);
    `submodules(model) -> {name: kind}`, the modules to compare (default: those without child modules, by class);
    `tensor_parallel(host) -> Workload`, the part that a rank of a host executes.
    """

    def build_model(self) -> torch.nn.Module:
        """Return the initial model on its device."""

    def build_optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer of the model's parameters."""

    def batch(self, step: int) -> Any:
        """Return the batch of a training step, counted from 1; batches from `HELD_OUT` on are for evaluation."""

    def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        """Return the loss of a batch, a single number."""


PARALLEL = "tensor_parallel"
"""The method of a workload that returns the part for one rank of a host."""

METHODS = ("build_model", "build_optimizer", "batch", "loss")


def load_workload(named: str, seed: int, device: torch.device, host: Host | None = None) -> Workload:
    """Load the workload `decoder-SIZE[-DTYPE]`, or the result of `module:function` or `file.py:function`.

    The function is called as `function(seed=..., device=...)`. With a host of several ranks, the result is the part of
    this rank. Raises BadOption for an unknown name, or for a workload that cannot be split. Raises WorkloadUnusable if
    the workload cannot be imported or lacks a method of `Workload`.
    """
    parallel = host if host is not None and host.size > 1 else None
    if ":" not in named:
        return _built_in(named, seed, device, parallel)
    workload = _own(named, seed, device)
    if parallel is None:
        return workload
    made = getattr(workload, PARALLEL, None)
    if not callable(made):
        raise BadOption(
            "--tensor-parallel",
            parallel.size,
            f"a workload with a parallel variant, and {named} has no method {PARALLEL}(host); leave the option out, "
            f"give it that method (docs/sdc.md), or take one of --workload {BUILT_IN}...",
        )
    with workload_errors(named):
        return _checked(named, PARALLEL, made(parallel))


def _own(named: str, seed: int, device: torch.device) -> Workload:
    home, _, name = named.rpartition(":")
    made = _function(named, home, name)
    try:
        workload = made(seed=seed, device=device)
    except Exception as error:
        raise WorkloadUnusable(named, f"{name}(seed=..., device=...) raised {_describe(error)}") from error
    return _checked(named, name, workload)


def _checked(named: str, name: str, candidate: Any) -> Workload:
    missing = [method for method in METHODS if not callable(getattr(candidate, method, None))]
    if missing:
        raise WorkloadUnusable(
            named, f"what {name} returns, a {type(candidate).__name__}, has no {' and no '.join(missing)}"
        )
    workload: Workload = candidate
    return workload


def _built_in(named: str, seed: int, device: torch.device, host: Host | None) -> Workload:
    size, _, dtype = named.removeprefix(BUILT_IN).partition("-")
    if not named.startswith(BUILT_IN) or size not in SIZES or (dtype or "fp32") not in DTYPES:
        sizes, dtypes = "|".join(SIZES), "|".join(DTYPES)
        raise BadOption("--workload", named, f"decoder-{sizes}, with -{dtypes} or without, or FILE.py:FUNCTION")
    config, kind = SIZES[size], DTYPES[dtype or "fp32"]
    if host is None:
        return DecoderWorkload(config, seed, device, kind)
    return ParallelDecoderWorkload(config, seed, device, kind, host)


def _function(named: str, home: str, name: str) -> Callable[..., Any]:
    try:
        module = _of_file(Path(home)) if home.endswith(".py") else _of_name(home)
    except WorkloadUnusable:
        raise
    except Exception as error:
        raise WorkloadUnusable(named, f"{home} cannot be imported: {_describe(error)}") from error
    attribute = getattr(module, name, None)
    if not callable(attribute):
        there = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        hint = f" (it has {', '.join(there[:8])})" if there else ""
        raise WorkloadUnusable(named, f"{home} has no function {name!r}{hint}")
    function: Callable[..., Any] = attribute
    return function


def _of_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise WorkloadUnusable(str(path), "there is no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # it ends with .py
    module = importlib.util.module_from_spec(spec)
    # As for a script: what lies beside the file can be imported, and classes of it can be found by their module.
    sys.path.insert(0, str(path.parent.resolve()))
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _of_name(name: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does it
    return importlib.import_module(name)


@contextmanager
def workload_errors(named: str) -> Iterator[None]:
    """Raise errors of the block as WorkloadUnusable, with the line of the user's code."""
    try:
        yield
    except TrainCheckError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        others = [frame for frame in frames if f"{os.sep}torch{os.sep}" not in frame.filename]
        last = ([frame for frame in others if f"{os.sep}traincheck{os.sep}" not in frame.filename] or others or frames)[
            -1
        ]
        raise WorkloadUnusable(named, f"it raised {_describe(error)} ({last.filename}, line {last.lineno})") from error


def _describe(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def submodules_of(workload: Workload, model: torch.nn.Module) -> Mapping[str, str]:
    """Return the compared modules by name, each with its kind."""
    own = getattr(workload, "submodules", None)
    if own is not None:
        named: Mapping[str, str] = own(model)
        modules = dict(model.named_modules())
        unknown = [name for name in named if name not in modules]
        if unknown:
            raise WorkloadUnusable(type(workload).__name__, f"its model has no module {unknown[0]!r} of its submodules")
        return named
    return {
        name: type(module).__name__ for name, module in model.named_modules() if name and not any(module.children())
    }


def evaluation(workload: Workload, model: torch.nn.Module) -> float:
    """Return the result of the workload's `evaluate`, or the mean loss of held-out batches."""
    was_training = model.training
    model.train(False)
    try:
        with torch.no_grad():
            own = getattr(workload, "evaluate", None)
            if own is not None:
                return float(own(model))
            losses = [float(workload.loss(model, workload.batch(HELD_OUT + offset))) for offset in range(EVALUATED)]
            return sum(losses) / len(losses)
    finally:
        model.train(was_training)
