"""Finds layers of a model whose results are random, or depend on the batch, and normalisation without statistics."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from traincheck.sources.modules.live_modules import plain_name
from traincheck.sources.tensors.reading import local_tensor
from traincheck.vocab.builtin_rules import ACTIVE_DROPOUT, ACTIVE_NORMALISATION

_WITH_DROPOUT = (nn.RNNBase, nn.MultiheadAttention)


def active_layers(model: nn.Module) -> str:
    """Which layers in training mode are active in a model: dropout, normalisation over the batch, or none (an empty
    text). Dropout comes first. A rate of zero drops nothing."""
    found = ""
    for module in model.modules():
        if not module.training:
            continue
        if (isinstance(module, _DropoutNd) and module.p) or (isinstance(module, _WITH_DROPOUT) and module.dropout):
            return ACTIVE_DROPOUT
        if isinstance(module, _NormBase) and module.track_running_stats:
            found = ACTIVE_NORMALISATION
    return found


def without_statistics(model: nn.Module) -> Iterator[str]:
    """The paths of trained layers that normalise with the mean 0 and the variance 1 that they were built with: they are
    in evaluation mode, and no batch has set their statistics. Call inside `hidden_from_modes()`."""
    for path, module in model.named_modules():
        if not isinstance(module, _NormBase) or module.training or not module.track_running_stats:
            continue
        is_trained = module.weight is not None and module.weight.requires_grad
        if is_trained and _are_all(module.running_mean, 0.0) and _are_all(module.running_var, 1.0):
            yield plain_name(path)


def _are_all(statistics: torch.Tensor | None, value: float) -> bool:
    memory = None if statistics is None else local_tensor(statistics)
    return memory is not None and bool((memory == value).all())
