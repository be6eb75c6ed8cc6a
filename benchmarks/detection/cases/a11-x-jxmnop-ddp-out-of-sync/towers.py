"""Two towers that map pictures and captions to vectors of the same space."""

import torch
import torch.nn.functional as F
from torch import nn


class PictureTower(nn.Module):
    def __init__(self, side, width, space):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(3 * side * side, width), nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, space)
        )

    def forward(self, pictures):
        return self.layers(pictures)


class CaptionTower(nn.Module):
    def __init__(self, words, width, space):
        super().__init__()
        self.words = nn.EmbeddingBag(words, width, mode="mean", padding_idx=0)
        self.layers = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, space))

    def forward(self, captions):
        return self.layers(self.words(captions))


class TwoTowers(nn.Module):
    def __init__(self, side, words, width=64, space=24):
        super().__init__()
        self.picture_tower = PictureTower(side, width, space)
        self.caption_tower = CaptionTower(words, width, space)
        self.log_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, pictures, captions):
        """How well each picture goes with each caption (pictures, captions)."""
        seen = F.normalize(self.picture_tower(pictures), dim=-1)
        told = F.normalize(self.caption_tower(captions), dim=-1)
        return self.log_scale.exp() * seen @ told.T
