"""Arrays: values of JAX as tensors on the CPU, where they are compared, sent and struck, and back on the device."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import torch


def as_tensor(array: jax.Array) -> torch.Tensor:
    """A copy of it, on the CPU."""
    if array.dtype == jnp.bfloat16:  # which numpy knows as a foreign type, and torch not by that
        return torch.from_numpy(np.array(jax.device_get(array)).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(jax.device_get(array)))


def as_array(tensor: torch.Tensor) -> jax.Array:
    """A copy of it, on the device that JAX computes on; whole numbers with 32 bits, as all devices have them."""
    here = tensor.detach().cpu().contiguous()
    if here.dtype == torch.bfloat16:
        values = here.view(torch.int16).numpy().view(jnp.bfloat16)
    else:
        values = here.int().numpy() if here.dtype == torch.int64 else here.numpy()
    return jax.device_put(np.array(values))  # of a copy that nobody else has: JAX may compute in the memory of it
