"""Random fills: the functions of torch that overwrite a tensor with random numbers, and who calls them."""

from __future__ import annotations

BY_LIBRARY = "by_library"
"""The fact that code of a library made such a call."""

_INIT, _TENSOR = "torch.nn.init", "torch.Tensor"
_OF_INIT = (
    "kaiming_normal_ kaiming_uniform_ normal_ orthogonal_ sparse_ trunc_normal_ uniform_ xavier_normal_ xavier_uniform_"
)
_OF_TENSOR = "bernoulli_ cauchy_ exponential_ geometric_ log_normal_ normal_ random_ uniform_"
FILLS = frozenset(f"{_INIT}.{name}" for name in _OF_INIT.split()) | {f"{_TENSOR}.{n}" for n in _OF_TENSOR.split()}
"""All functions of torch that overwrite a tensor with random numbers (to fill it with ones once more changes nothing).
They are one subject: what was learned of `kaiming_normal_` is meant for `trunc_normal_` as well."""
