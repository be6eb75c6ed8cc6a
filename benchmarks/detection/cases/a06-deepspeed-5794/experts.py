"""A mixture-of-experts layer; each worker holds some of the experts."""

import torch
import torch.distributed as dist
from dispatch import AllToAll, slots_of
from torch import nn


class Expert(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, hidden), nn.SiLU(), nn.Linear(hidden, width))

    def forward(self, x):
        return self.layers(x)


class ExpertLayer(nn.Module):
    """Each word goes to the expert that its router chooses, on whichever worker it is. No word is dropped."""

    def __init__(self, width, hidden, local_experts, mailbox):
        super().__init__()
        self.workers = dist.get_world_size()
        self.experts = nn.ModuleList(Expert(width, hidden) for _ in range(local_experts))
        self.router = nn.Linear(width, local_experts * self.workers)
        self.mailbox = mailbox

    def forward(self, x):
        probabilities = self.router(x).softmax(dim=-1)
        share, chosen = probabilities.max(dim=-1)
        slots, capacity = slots_of(chosen, probabilities.shape[1])
        sent = x.new_zeros(probabilities.shape[1] * capacity, x.shape[1])
        sent = sent.index_copy(0, slots, x).view(self.workers, len(self.experts), capacity, -1)
        arrived = AllToAll.apply(sent, self.mailbox)
        done = torch.stack([expert(arrived[:, index]) for index, expert in enumerate(self.experts)], dim=1)
        returned = AllToAll.apply(done, self.mailbox).flatten(0, 2)
        return x + share.unsqueeze(1) * returned[slots]

    def balance(self, x):
        """What is added to the loss so that the experts get about the same number of words."""
        probabilities = self.router(x).softmax(dim=-1)
        taken = torch.zeros_like(probabilities).scatter_(1, probabilities.argmax(1, keepdim=True), 1.0)
        return probabilities.shape[1] * (taken.mean(0) * probabilities.mean(0)).sum()
