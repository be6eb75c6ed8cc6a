"""Select devices by name, and describe the hardware and software that results depend on."""

from __future__ import annotations

import platform

import torch

from traincheck.errors import BadOption


def device_of(text: str, option: str = "--device") -> torch.device:
    """Return the device; raises BadOption for an invalid name or a device that does not exist."""
    try:
        device = torch.device(text)
    except RuntimeError:
        raise BadOption(option, text, "the name of a device, such as cpu, cuda or cuda:1") from None
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0]
        raise BadOption(option, text, f"a device that is here ({reason}); cpu always is") from None
    return device


def software(device: torch.device) -> dict[str, str]:
    """What the bits of a result depend on besides the work itself: releases, the kind of device, what it can do."""
    description = {"torch": str(torch.__version__), "device": device.type, "threads": str(torch.get_num_threads())}
    if device.type == "cuda":
        description["name"] = torch.cuda.get_device_name(device)
        description["cuda"] = str(torch.version.cuda or torch.version.hip)
        description["cudnn"] = str(torch.backends.cudnn.version())
    elif device.type == "cpu":
        description["name"] = processor()
        description["instructions"] = torch.backends.cpu.get_cpu_capability()
    return description


def processor() -> str:
    """Return the model of the CPU: libraries select their kernels by it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
