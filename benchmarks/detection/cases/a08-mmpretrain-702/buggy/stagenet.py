"""Backbones made of a stem and stages of depthwise separable convolutions."""

import math

import torch
from torch import nn


class SeparableStage(nn.Module):
    """Halves the picture: a depthwise convolution, then one over the channels."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.depthwise = nn.Conv2d(inputs, inputs, 3, stride=2, padding=1, groups=inputs, bias=False)
        self.norm1 = nn.BatchNorm2d(inputs)
        self.pointwise = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.act = nn.Hardswish()

    def forward(self, x):
        x = self.norm1(self.depthwise(x))
        return self.act(self.norm2(self.pointwise(x)))


class StageNet(nn.Module):
    """Features after the last stage, averaged over the picture.

    `frozen_stages`: how many stages, counted from the first, keep their weights and statistics; from 1 on the
    stem is frozen as well, 0 freezes nothing.
    """

    def __init__(self, widths=(16, 24, 32), frozen_stages=0):
        super().__init__()
        self.frozen_stages = frozen_stages
        self.stem = nn.Sequential(nn.Conv2d(3, widths[0], 3, padding=1, bias=False), nn.BatchNorm2d(widths[0]))
        pairs = zip(widths, [*widths[1:], 2 * widths[-1]], strict=True)
        self.stages = nn.ModuleList(SeparableStage(inputs, outputs) for inputs, outputs in pairs)
        self.out_features = 2 * widths[-1]

    def forward(self, x):
        x = torch.relu(self.stem(x))
        for stage in self.stages:
            x = stage(x)
        return x.mean((2, 3))

    def _freeze_stages(self):
        if self.frozen_stages < 1:
            return
        for part in [self.stem, *self.stages[: self.frozen_stages]]:
            part.eval()
            for param in part.parameters():
                param.requires_grad = False

    def train(self, mode=True):
        super().train(mode)
        self._freeze_stages()
        return self


@torch.no_grad()
def load_cosine_filters(backbone):
    """Ready-made weights for all stages: 3x3 cosine filters, mixed by orthogonal matrices."""
    grid = torch.arange(3) + 0.5
    waves = torch.stack([torch.cos(math.pi * k * grid / 3) for k in range(3)])
    bank = torch.einsum("iy,jx->ijyx", waves, waves).reshape(9, 3, 3)
    bank = bank / bank.norm(dim=(1, 2), keepdim=True)
    for module in backbone.modules():
        if isinstance(module, nn.Conv2d) and module.kernel_size == (3, 3):
            outputs, inputs = module.weight.shape[:2]
            mix = torch.randn(outputs, inputs, 1, 1) if inputs > 1 else torch.ones(outputs, 1, 1, 1)
            mix = mix / mix.norm(dim=1, keepdim=True)
            module.weight.copy_(mix * bank[torch.arange(outputs) % 9][:, None])
        elif isinstance(module, nn.Conv2d):
            nn.init.orthogonal_(module.weight, gain=math.sqrt(2))
