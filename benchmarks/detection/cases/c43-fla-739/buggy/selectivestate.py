"""Selective state-space layers: a linear recurrence whose memory each step chooses, computed for all steps at once."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class SelectiveStateMixer(nn.Module):
    """Mixes a sequence, [batch, length, width] to the same, by a state for each head.

    The state of a head decays by exp(A dt) in a step and takes in dt times the input, where the time step dt depends on
    the input around a bias of its own. Time steps start between `dt_min` and `dt_max`, so that heads remember for
    different lengths.
    """

    def __init__(self, width, heads=4, state=8, dt_min=0.01, dt_max=0.3):
        super().__init__()
        self.heads = heads
        self.state = state
        self.head_width = 2 * width // heads
        self.inner = heads * self.head_width
        self.dt_min = dt_min
        self.dt_max = dt_max
        self.in_proj = nn.Linear(width, 2 * self.inner + 2 * state + heads, bias=False)
        self.A_log = nn.Parameter(torch.zeros(heads))
        self.D = nn.Parameter(torch.ones(heads))
        self.dt_bias = nn.Parameter(torch.ones(heads))
        self.out_proj = nn.Linear(self.inner, width, bias=False)

    def initial_dt_bias(self):
        """What softplus turns into time steps that are spread evenly, by their logarithm, over the range."""
        low, high = math.log(self.dt_min), math.log(self.dt_max)
        dt = torch.exp(low + (high - low) * torch.rand(self.heads))
        return dt + torch.log(-torch.expm1(-dt))

    def forward(self, x):
        batch, length, _ = x.shape
        sizes = [self.inner, self.inner, self.state, self.state, self.heads]
        value, gate, key, query, dt = self.in_proj(x).split(sizes, dim=-1)
        value = value.view(batch, length, self.heads, self.head_width)
        dt = F.softplus(dt + self.dt_bias)
        passed = torch.cumsum(-self.A_log.exp() * dt, dim=1).transpose(1, 2)
        causal = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        decay = (passed[..., :, None] - passed[..., None, :]).masked_fill(~causal, -torch.inf).exp()
        weights = decay * (query @ key.transpose(1, 2))[:, None]
        mixed = torch.einsum("bhts,bsh,bshd->bthd", weights, dt, value)
        mixed = mixed + self.D[:, None] * value
        return self.out_proj(mixed.flatten(2) * F.silu(gate))


class SelectiveStateModel(nn.Module):
    """A stack of mixers with residual connections and norms, initialised as a whole."""

    def __init__(self, width, layers, **options):
        super().__init__()
        self.mixers = nn.ModuleList(SelectiveStateMixer(width, **options) for _ in range(layers))
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(layers))
        self.apply(self.init_weights)

    @torch.no_grad()
    def init_weights(self, module):
        if isinstance(module, SelectiveStateMixer):
            module.dt_bias.copy_(module.initial_dt_bias())
            module.A_log.zero_()
            module.D.fill_(1.0)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, x):
        for norm, mixer in zip(self.norms, self.mixers, strict=True):
            x = x + mixer(norm(x))
        return x
