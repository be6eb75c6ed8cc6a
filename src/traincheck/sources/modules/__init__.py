"""Module calls, module state, buffers, and the names of parameters."""
