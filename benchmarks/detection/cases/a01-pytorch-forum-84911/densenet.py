"""A narrow DenseNet, and weights for it that were fitted without labels."""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class DenseLayer(nn.Module):
    """Adds `growth` channels to those it gets."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.conv = nn.Conv2d(channels, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(F.relu(self.norm(x)))], dim=1)


class NarrowDenseNet(nn.Module):
    def __init__(self, num_classes: int, growth: int = 8, layers: int = 2) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 12, 5, padding=2, bias=False)
        channels, blocks = 12, []
        for block in range(2):
            if block:
                blocks.append(nn.AvgPool2d(2))
            for _ in range(layers):
                blocks.append(DenseLayer(channels, growth))
                channels += growth
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(channels)
        self.classifier = nn.Linear(2 * channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        features = F.relu(self.norm(self.blocks(self.stem(x))))
        return self.classifier(torch.cat([features.mean((2, 3)), features.amax((2, 3))], dim=1))


def principal_filters(conv: nn.Conv2d, inputs: tuple[Tensor]) -> None:
    """Give a convolution the main directions of the patches that it sees."""
    patches = F.unfold(inputs[0], conv.kernel_size, padding=conv.padding, stride=3)
    patches = patches.transpose(1, 2).flatten(0, 1)
    patches = patches - patches.mean(0)
    _, directions = torch.linalg.eigh(patches.T @ patches)
    main = directions.flip(1)[:, : conv.out_channels].T
    signs = torch.where(torch.rand(len(main), 1) < 0.5, -1.0, 1.0)
    conv.weight.copy_((signs * main).reshape_as(conv.weight))


@torch.no_grad()
def fit_filters(images: Tensor, path: Path) -> None:
    """Fit all convolutions and batch statistics to images without labels, and keep the weights in a file."""
    model = NarrowDenseNet(num_classes=10)
    convs = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    hooks = [conv.register_forward_pre_hook(principal_filters) for conv in convs]
    model(images)
    for hook in hooks:
        hook.remove()
    for chosen in torch.randperm(len(images)).split(10):
        model(images[chosen])
    torch.save(model.state_dict(), path)
