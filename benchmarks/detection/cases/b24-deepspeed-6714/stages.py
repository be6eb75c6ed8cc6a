"""The two stages of a pipeline: the first is dense and has the embedding, the second holds the experts."""

import torch
import torch.nn.functional as F
from dialects import LANGUAGES, LETTERS
from torch import nn


class Stage(nn.Module):
    def members(self, group):
        """The parameters of this stage that belong to a group: "embedding", "experts", or "dense" for the others."""
        return [parameter for name, parameter in self.named_parameters() if self.group_of(name) == group]

    @staticmethod
    def group_of(name):
        first = name.split(".")[0]
        return first if first in ("embedding", "experts") else "dense"


class LetterStage(Stage):
    def __init__(self, width):
        super().__init__()
        self.embedding = nn.Embedding(LETTERS, width)
        self.conv = nn.Conv1d(width, width, kernel_size=3, padding=1)
        self.norm = nn.GroupNorm(4, width)

    def forward(self, letters):
        x = self.embedding(letters).transpose(1, 2)
        return (x + F.silu(self.norm(self.conv(x)))).transpose(1, 2).contiguous()


class Experts(nn.Module):
    """Feed-forward experts as stacked weights; all are computed and mixed by their weights."""

    def __init__(self, number, width, hidden):
        super().__init__()
        self.widen = nn.Parameter(torch.randn(number, width, hidden) / width**0.5)
        self.narrow = nn.Parameter(torch.randn(number, hidden, width) / hidden**0.5)

    def forward(self, x, mixture):
        hidden = F.silu(torch.einsum("blw,ewh->eblh", x, self.widen))
        return torch.einsum("eblh,ehw,ble->blw", hidden, self.narrow, mixture)


class ExpertStage(Stage):
    def __init__(self, width, experts=4):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.router = nn.Linear(width, experts)
        self.experts = Experts(experts, width, 2 * width)
        self.head = nn.Linear(width, LANGUAGES)

    def forward(self, x):
        normed = self.norm(x)
        logits = self.router(normed)
        scores, chosen = logits.topk(2, dim=-1)
        mixture = torch.zeros_like(logits).scatter(-1, chosen, scores.softmax(dim=-1))
        return self.head((x + self.experts(normed, mixture)).mean(dim=1))
