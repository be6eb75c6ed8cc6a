"""Frameworks: what can execute a training that is looked at, and what has to be there for it.

Knows nothing of either of them, so that a wrong option is told before anything is imported.
"""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.errors import BadOption
from traincheck.sdc.environment import needs_jax, needs_torch
from traincheck.sdc.faults.fault import COMMUNICATION, SITES, Fault
from traincheck.sdc.workload.sizes import BUILT_IN

TORCH, XLA = "torch", "xla"
FRAMEWORKS = (TORCH, XLA)


def framework_of(named: str, command: str) -> str:
    """The framework of this name. Raises BadOption, and MissingExtra where its packages are not installed.

    `what` is the command that asks, for the message.
    """
    if named not in FRAMEWORKS:
        raise BadOption("--framework", named, f"one of {', '.join(FRAMEWORKS)}")
    needs_torch(command)  # for both: with XLA, too, it draws what a training begins with and compares what came out
    if named == XLA:
        needs_jax(f"{command} --framework xla")
    return named


def must_be_executable(framework: str, workload: str, faults: Sequence[Fault] = (), tensor_parallel: int = 1) -> None:
    """Raises BadOption for a workload or a fault that this framework has not, and for a model that it cannot split."""
    if framework != XLA:
        return
    if tensor_parallel != 1:
        raise BadOption("--tensor-parallel", tensor_parallel, "1 with --framework xla, whose decoder is not split")
    if not workload.startswith(BUILT_IN) or ":" in workload:
        raise BadOption("--workload", workload, "with --framework xla a built-in one, decoder-tiny to decoder-8b")
    for fault in faults:
        if fault.site == COMMUNICATION:
            others = ", ".join(site for site in SITES if site != COMMUNICATION)
            expected = f"with --framework xla a fault in one of {others}: its training calls no collectives"
            raise BadOption("--fault", fault.text, expected)
