"""Multi-head self-attention with two implementations that a configuration chooses from."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class MultiHeadAttention(nn.Module):
    """`implementation`: "eager" keeps the attention weights, "sdpa" is fused."""

    def __init__(self, dim, heads, dropout=0.0, implementation="sdpa"):
        super().__init__()
        if dim % heads:
            raise ValueError(f"dim {dim} is not a multiple of heads {heads}")
        self.heads, self.dropout = heads, dropout
        self.attend = {"eager": self.eager_attention, "sdpa": self.sdpa_attention}[implementation]
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.output = nn.Linear(dim, dim)

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def eager_attention(self, q, k, v, mask):
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        weights = F.dropout(scores.softmax(-1), p=self.dropout, training=self.training)
        return weights @ v

    def sdpa_attention(self, q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=self.dropout)

    def forward(self, x, padding_mask=None):
        """`padding_mask` (batch, length) is true where there is something to attend to."""
        mask = None if padding_mask is None else padding_mask[:, None, None, :]
        mixed = self.attend(self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x)), mask)
        return self.output(mixed.transpose(1, 2).flatten(2))
