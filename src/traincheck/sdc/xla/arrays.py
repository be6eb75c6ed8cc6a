"""Convert JAX arrays to CPU tensors for comparison, transfer and fault injection, and back."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import torch


def as_tensor(array: jax.Array) -> torch.Tensor:
    """Return a copy of the array as a CPU tensor."""
    if array.dtype == jnp.bfloat16:  # torch cannot read numpy's bfloat16 type
        return torch.from_numpy(np.array(jax.device_get(array)).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(jax.device_get(array)))


def as_array(tensor: torch.Tensor) -> jax.Array:
    """Return a copy of the tensor on JAX's device. Integers get 32 bits, which all devices support."""
    cpu_tensor = tensor.detach().cpu().contiguous()
    if cpu_tensor.dtype == torch.bfloat16:
        values = cpu_tensor.view(torch.int16).numpy().view(jnp.bfloat16)
    else:
        values = cpu_tensor.int().numpy() if cpu_tensor.dtype == torch.int64 else cpu_tensor.numpy()
    return jax.device_put(np.array(values))  # a private copy, because JAX may reuse its memory
