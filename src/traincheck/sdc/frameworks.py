"""Choose the framework that executes a training, torch or XLA, and check that it is installed.

Imports neither of them, so that a wrong option is reported at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.errors import BadOption
from traincheck.sdc.environment import require_jax, require_torch
from traincheck.sdc.faults.fault import COMMUNICATION, SITES, Fault
from traincheck.sdc.workload.sizes import BUILT_IN

TORCH, XLA = "torch", "xla"
FRAMEWORKS = (TORCH, XLA)


def framework_of(named: str, command: str) -> str:
    """Return the framework of this name. `command` is named in the error message.

    Raises BadOption, and MissingExtra if its packages are not installed.
    """
    if named not in FRAMEWORKS:
        raise BadOption("--framework", named, f"one of {', '.join(FRAMEWORKS)}")
    require_torch(command)  # for both: with XLA, too, it draws what a training begins with and compares what came out
    if named == XLA:
        require_jax(f"{command} --framework xla")
    return named


def check_executable(framework: str, workload: str, faults: Sequence[Fault] = (), tensor_parallel: int = 1) -> None:
    """Raise BadOption for a workload, fault or split that the framework does not support."""
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
