"""JAX and XLA: the built-in decoder as compiled functions, one for each submodule. Only this folder imports jax."""
