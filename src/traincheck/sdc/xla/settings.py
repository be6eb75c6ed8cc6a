"""Make XLA compute the same bits in each process, and select the device."""

from __future__ import annotations

import os
from collections.abc import Mapping

import jax
import jaxlib
import torch

from traincheck.errors import BadOption
from traincheck.sdc.determinism import make_deterministic
from traincheck.sdc.screening.devices import processor

CPU = "cpu"
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"
ON_ACCELERATORS = "--xla_gpu_deterministic_ops=true"
"""Use kernels without atomic sums. XLA must not select kernels by timing them, as two processes may select differently.
"""


def make_xla_deterministic(seed: int, threads: int, device: str, wide: bool) -> tuple[jax.Device, dict[str, str]]:
    """Set everything that is known to change results between runs; return the device, and the settings by name.

    `wide` enables fp64. The user's XLA_FLAGS stay. Call this before JAX computes anything in this process. Raises
    BadOption for a device that JAX does not have here.
    """
    seeds = "seeds of random, numpy and torch"  # torch draws the weights and the batches
    settings = {seeds: make_deterministic(seed, threads)[seeds]}
    platform = device.partition(":")[0]
    for name, value in variables(threads, platform, os.environ).items():
        os.environ[name] = settings[name] = value
    # Otherwise devices with fast TF32 or bf16 units multiply fp32 with fewer bits.
    for option, setting in {"jax_default_matmul_precision": "highest", "jax_enable_x64": wide}.items():
        jax.config.update(option, setting)
        settings[option] = str(setting)
    if platform == CPU:
        jax.config.update("jax_platforms", CPU)  # do not reserve the memory of an unused accelerator
    jax_device = _device(device)
    jax.config.update("jax_default_device", jax_device)
    return jax_device, settings


def variables(threads: int, platform: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that XLA reads at its start; the user's own settings stay."""
    defaults = [ONE_THREAD] if threads == 1 else []
    defaults += [] if platform == CPU else [ON_ACCELERATORS]
    user_flags = environ.get("XLA_FLAGS", "").split()
    names = {flag.partition("=")[0] for flag in user_flags}
    flags = [*user_flags, *(flag for flag in defaults if flag.partition("=")[0] not in names)]
    return {"NPROC": str(threads), **({"XLA_FLAGS": " ".join(flags)} if flags else {})}


def _device(text: str) -> jax.Device:
    platform, _, number = text.partition(":")
    if not platform or (number and not number.isdigit()):
        raise BadOption("--device", text, "the name of a device of JAX, such as cpu, cuda, tpu or cuda:1")
    try:
        devices = jax.local_devices(backend=platform)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise BadOption("--device", text, f"a device that JAX has here ({reason}); cpu always is") from None
    # Without a device number, each worker of a launcher takes its own device.
    index = int(number or ("0" if platform == CPU else os.environ.get("LOCAL_RANK", "0")))
    if index >= len(devices):
        raise BadOption("--device", text, f"one of the {len(devices)} that JAX has here, {platform}:0 being the first")
    device: jax.Device = devices[index]
    return device


def software(device: jax.Device, threads: int) -> dict[str, str]:
    """Return the versions and hardware that results depend on, like `devices.software` for torch."""
    return {
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "torch": str(torch.__version__),
        "device": device.platform,
        "threads": str(threads),
        "name": processor() if device.platform == CPU else device.device_kind,
    }
