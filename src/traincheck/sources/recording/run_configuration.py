"""Reads the configuration of this process: global settings of torch, packages, and variables of numerical libraries."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch

from traincheck.vocab.run_configuration import RunConfiguration

PREFIXES = (
    *("ATEN_", "CUBLAS_", "CUDA_", "CUDNN_", "DNNL_", "HIPBLASLT_", "HSA_", "KMP_", "MIOPEN_", "MKL_", "NCCL_"),
    *("NVIDIA_TF32_", "NVTE_", "OMP_", "ONEDNN_", "OPENBLAS_", "PYTORCH_", "ROCBLAS_", "TORCHINDUCTOR_", "TRITON_"),
    *("TORCH_ALLOW_", "TORCH_BLAS_", "TORCH_CUDNN_", "TORCH_LINALG_", "TORCH_ROCM_", "XLA_"),
)
"""Prefixes of environment variables that can change a number. Others of torch (`TORCH_NCCL_`, `TORCH_LOGS`) do not."""

LONGEST = 200
"""Characters of a value."""

_SETTINGS: tuple[tuple[str, Callable[[], Any]], ...] = (
    ("device", lambda: _device()),
    ("CUDA", lambda: torch.version.cuda),
    ("ROCm", lambda: torch.version.hip),
    ("cuDNN", lambda: torch.backends.cudnn.version() if torch.cuda.is_initialized() else None),
    ("CPU instructions", lambda: torch.backends.cpu.get_cpu_capability()),
    ("threads", torch.get_num_threads),
    ("default dtype", torch.get_default_dtype),
    ("deterministic algorithms", torch.are_deterministic_algorithms_enabled),
    ("precision of matmul on CUDA", lambda: _precision(torch.backends.cuda.matmul)),
    ("precision of cuDNN", lambda: _precision(torch.backends.cudnn)),
    ("reduced precision of fp16 sums", lambda: torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction),
    ("reduced precision of bf16 sums", lambda: torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction),
    ("cudnn.deterministic", lambda: torch.backends.cudnn.deterministic),
    ("cudnn.benchmark", lambda: torch.backends.cudnn.benchmark),
    ("flash attention", torch.backends.cuda.flash_sdp_enabled),
    ("memory-efficient attention", torch.backends.cuda.mem_efficient_sdp_enabled),
    ("math attention", torch.backends.cuda.math_sdp_enabled),
    ("oneDNN", lambda: torch.backends.mkldnn.enabled),
)


def read_configuration() -> RunConfiguration:
    """Return the configuration of this process. Settings that this release of torch does not know are missing.

    Call it on the training thread: some settings belong to a thread.
    """
    return RunConfiguration(
        settings=dict(_settings()), packages=dict(sorted(_packages())), environment=dict(sorted(_environment()))
    )


def _settings() -> Iterator[tuple[str, str]]:
    for name, read in _SETTINGS:
        with suppress(Exception):  # a release without it, or with two interfaces of it that contradict each other
            value = read()
            if value is not None:
                yield name, str(value).removeprefix("torch.")[:LONGEST]


def _device() -> str:
    """The name of the accelerator that the program uses, or `cpu`. It initialises none."""
    if torch.cuda.is_initialized():
        return str(torch.cuda.get_device_name())
    xpu = getattr(torch, "xpu", None)
    if xpu is not None and xpu.is_initialized():
        return str(xpu.get_device_name())
    return "cpu"


def _precision(backend: Any) -> str:
    """The precision of products of float32 numbers, from the newer interface of torch if it has one."""
    precision = getattr(getattr(backend, "conv", backend), "fp32_precision", None)
    if precision is None:
        precision = "tf32" if backend.allow_tf32 else "ieee"
    return "ieee" if precision == "none" else str(precision)


def _packages() -> Iterator[tuple[str, str]]:
    """The versions of imported packages. Reading them executes no code of a package."""
    for name, module in list(sys.modules.items()):
        if "." in name or name in sys.stdlib_module_names or name.startswith("_") or name == "traincheck":
            continue
        version = getattr(module, "__dict__", {}).get("__version__")
        if isinstance(version, str):
            yield name, str(version)[:LONGEST]


def _environment() -> Iterator[tuple[str, str]]:
    """Variables of numerical libraries. A path differs between machines and changes no number, so it is missing."""
    for name, value in list(os.environ.items()):
        if (name.startswith(PREFIXES) or name == "PYTHONHASHSEED") and os.sep not in value:
            yield name, value[:LONGEST]
