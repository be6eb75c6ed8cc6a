"""A residual network pretrained to name digits is fine-tuned to find them in clutter, with its first stages frozen."""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.optim.lr_scheduler import MultiStepLR
from torch.utils.data import DataLoader, TensorDataset

CANVAS = 16


class BasicBlock(nn.Module):
    def __init__(self, inplanes, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inplanes != planes:
            self.downsample = nn.Sequential(nn.Conv2d(inplanes, planes, 1, stride, bias=False), nn.BatchNorm2d(planes))

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu(out + identity)


class ResNet(nn.Module):
    """Stem and three stages. The stem and the first `frozen_stages` stages do not train (-1: all train).

    With `norm_eval` every batch norm uses its running statistics, in stages that train as well.
    """

    def __init__(self, widths=(16, 24, 32), frozen_stages=-1, norm_eval=False):
        super().__init__()
        self.frozen_stages = frozen_stages
        self.norm_eval = norm_eval
        self.stem = nn.Sequential(
            nn.Conv2d(1, widths[0], 3, padding=1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU(inplace=True)
        )
        self.layer1 = BasicBlock(widths[0], widths[0])
        self.layer2 = BasicBlock(widths[0], widths[1], stride=2)
        self.layer3 = BasicBlock(widths[1], widths[2], stride=2)
        self.out_channels = widths[2]
        self._freeze_stages()

    def _freeze_stages(self):
        if self.frozen_stages < 0:
            return
        for name in ["stem", *(f"layer{i}" for i in range(1, self.frozen_stages + 1))]:
            stage = getattr(self, name)
            stage.eval()
            for param in stage.parameters():
                param.requires_grad = False

    def train(self, mode=True):
        super().train(mode)
        self._freeze_stages()
        if mode and self.norm_eval:
            for module in self.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self

    def forward(self, x):
        return self.layer3(self.layer2(self.layer1(self.stem(x))))


class DigitNamer(nn.Module):
    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.fc = nn.Linear(backbone.out_channels, 10)

    def forward(self, x):
        return self.fc(self.backbone(x).mean(dim=(2, 3)))


class DigitFinder(nn.Module):
    """Says for each cell of a 4x4 grid how likely the digit's centre is there, and where in the cell."""

    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.neck = nn.Sequential(nn.Conv2d(backbone.out_channels, 32, 3, padding=1), nn.ReLU(inplace=True))
        self.objectness = nn.Conv2d(32, 1, 1)
        self.offset = nn.Conv2d(32, 2, 1)

    def forward(self, x):
        x = self.neck(self.backbone(x))
        return self.objectness(x).flatten(1), self.offset(x).flatten(2).sigmoid()


def scenes(images, rng):
    """Each digit somewhere on a canvas with noise and two crumbs of other digits; centres in cells of the grid."""
    canvas = 0.15 * rng.random((len(images), CANVAS, CANVAS))
    for _ in range(2):
        for scene, other in zip(canvas, rng.permutation(len(images)), strict=True):
            y, x = rng.integers(0, CANVAS - 3, size=2)
            scene[y : y + 3, x : x + 3] += images[other, 2:5, 2:5]
    corners = rng.integers(0, CANVAS - 8 + 1, size=(len(images), 2))
    for scene, image, (y, x) in zip(canvas, images, corners, strict=True):
        scene[y : y + 8, x : x + 8] = image
    centres = (corners + 4) / 4.0
    return TensorDataset(torch.from_numpy(canvas).float().clamp(0, 1).unsqueeze(1), torch.from_numpy(centres).float())


def finder_loss(objectness, offsets, centres):
    cells = centres.floor().clamp(max=3)
    index = (cells[:, 0] * 4 + cells[:, 1]).long()
    there = offsets[torch.arange(len(index)), :, index]
    return F.cross_entropy(objectness, index) + F.smooth_l1_loss(there, centres - cells, beta=0.1)


@torch.no_grad()
def mean_miss(model, loader):
    """Mean distance in pixels between the centres found and the true ones."""
    model.eval()
    distances = []
    for images, centres in loader:
        objectness, offsets = model(images)
        index = objectness.argmax(1)
        cells = torch.stack([index // 4, index % 4], dim=1)
        found = cells + offsets[torch.arange(len(index)), :, index]
        distances.append((4 * (found - centres)).norm(dim=1))
    return torch.cat(distances).mean().item()


def pretrain(images, labels, epochs, path):
    model = DigitNamer(ResNet())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    loader = DataLoader(TensorDataset(images, labels), batch_size=64, shuffle=True, drop_last=True)
    model.train()
    for epoch in range(epochs):
        losses = []
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"pretraining epoch {epoch}: loss {np.mean(losses):.4f}")
    torch.save(model.backbone.state_dict(), path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frozen-stages", type=int, default=1, choices=[-1, 0, 1, 2])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)

    digits = load_digits()
    images = digits.images / 16.0
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "backbone.pt"
        inputs = torch.from_numpy(images).float().unsqueeze(1)
        pretrain(inputs[:896], torch.from_numpy(digits.target[:896]), epochs=2, path=weights)
        backbone = ResNet(frozen_stages=args.frozen_stages, norm_eval=True)
        backbone.load_state_dict(torch.load(weights, weights_only=True))

    train_loader = DataLoader(scenes(images[:896], rng), batch_size=64, shuffle=True)
    val_loader = DataLoader(scenes(images[1400:], rng), batch_size=200)
    model = DigitFinder(backbone)
    in_backbone = [p for p in backbone.parameters() if p.requires_grad]
    in_head = [p for name, p in model.named_parameters() if not name.startswith("backbone.")]
    optimizer = torch.optim.SGD(
        [{"params": in_backbone, "lr": 0.02}, {"params": in_head, "lr": 0.1}], momentum=0.9, weight_decay=1e-4
    )
    scheduler = MultiStepLR(optimizer, milestones=[args.epochs // 2, 3 * args.epochs // 4], gamma=0.3)

    print(f"before fine-tuning: {mean_miss(model, val_loader):.2f} pixels off")
    for epoch in range(args.epochs):
        model.train()
        for x, centres in train_loader:
            optimizer.zero_grad()
            loss = finder_loss(*model(x), centres)
            loss.backward()
            nn.utils.clip_grad_norm_((p for p in model.parameters() if p.requires_grad), max_norm=5.0)
            optimizer.step()
        scheduler.step()
        print(f"epoch {epoch}: last loss {loss.item():.4f}, {mean_miss(model, val_loader):.2f} pixels off")


if __name__ == "__main__":
    main()
