"""Finds layers of a model whose results are random, or depend on the batch, in training mode."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

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
