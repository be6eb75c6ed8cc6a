"""Programs of JAX: updates made by jitted functions, and the parameters, optimizer states and keys that they take."""
