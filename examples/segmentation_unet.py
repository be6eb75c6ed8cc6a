"""A U-Net that segments blobs in noisy images; images and masks are augmented together in two loader workers."""

import argparse
import random
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

SIZE = 24


def draw_scene(rng):
    """A few ellipses on an uneven background, and the mask of what they cover."""
    y, x = np.mgrid[0:SIZE, 0:SIZE]
    slope = rng.normal(scale=0.02, size=2)
    image = 0.3 + slope[0] * (y - SIZE / 2) + slope[1] * (x - SIZE / 2)
    mask = np.zeros((SIZE, SIZE), dtype=bool)
    for _ in range(rng.integers(1, 4)):
        cy, cx = rng.uniform(4, SIZE - 4, size=2)
        ry, rx = rng.uniform(2, 6, size=2)
        inside = ((y - cy) / ry) ** 2 + ((x - cx) / rx) ** 2 < 1
        image[inside] += rng.uniform(0.35, 0.6)
        mask |= inside
    return image + 0.15 * rng.normal(size=image.shape), mask


class Blobs(Dataset):
    def __init__(self, count, seed, augment):
        rng = np.random.default_rng(seed)
        self.scenes = [draw_scene(rng) for _ in range(count)]
        self.augment = augment

    def __len__(self):
        return len(self.scenes)

    def __getitem__(self, index):
        image, mask = self.scenes[index]
        if self.augment:
            image, mask = self.transform(image, mask)
        image = torch.from_numpy(np.ascontiguousarray(image)).float().unsqueeze(0)
        mask = torch.from_numpy(np.ascontiguousarray(mask)).float().unsqueeze(0)
        return image, mask

    def transform(self, image, mask):
        # geometry changes both, brightness and noise only the image
        turns = np.random.randint(4)
        image, mask = np.rot90(image, turns), np.rot90(mask, turns)
        if random.random() < 0.5:
            image, mask = np.fliplr(image), np.fliplr(mask)
        dy, dx = np.random.randint(-3, 4, size=2)
        image, mask = np.roll(image, (dy, dx), (0, 1)), np.roll(mask, (dy, dx), (0, 1))
        contrast, brightness = np.random.uniform(0.8, 1.2), np.random.uniform(-0.1, 0.1)
        return contrast * image + brightness + 0.02 * np.random.randn(*image.shape), mask


def seed_worker(worker_id):
    worker_seed = torch.initial_seed() % 2**32
    np.random.seed(worker_seed)
    random.seed(worker_seed)


def double_conv(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
        nn.Conv2d(cout, cout, 3, padding=1, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.down1 = double_conv(1, width)
        self.down2 = double_conv(width, 2 * width)
        self.bottom = double_conv(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.merge2 = double_conv(4 * width, 2 * width)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.merge1 = double_conv(2 * width, width)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        skip1 = self.down1(x)
        skip2 = self.down2(F.max_pool2d(skip1, 2))
        x = self.bottom(F.max_pool2d(skip2, 2))
        x = self.merge2(torch.cat([self.up2(x), skip2], dim=1))
        x = self.merge1(torch.cat([self.up1(x), skip1], dim=1))
        return self.head(x)


class DiceBCELoss(nn.Module):
    def __init__(self, smooth=1.0):
        super().__init__()
        self.bce = nn.BCEWithLogitsLoss()
        self.smooth = smooth

    def forward(self, logits, masks):
        probs = torch.sigmoid(logits).flatten(1)
        truth = masks.flatten(1)
        overlap = (probs * truth).sum(1)
        dice = (2 * overlap + self.smooth) / (probs.sum(1) + truth.sum(1) + self.smooth)
        return self.bce(logits, masks) + (1 - dice).mean()


def validate(net, loader, criterion):
    net.eval()
    loss, overlap, union = 0.0, 0.0, 0.0
    with torch.inference_mode():
        for images, masks in loader:
            logits = net(images)
            loss += criterion(logits, masks).item()
            found, truth = logits > 0, masks > 0.5
            overlap += (found & truth).sum().item()
            union += (found | truth).sum().item()
    return loss / len(loader), overlap / union


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    g = torch.Generator()
    g.manual_seed(args.seed)
    train_loader = DataLoader(
        Blobs(192, args.seed, augment=True),
        batch_size=16,
        shuffle=True,
        num_workers=args.workers,
        worker_init_fn=seed_worker,
        generator=g,
    )
    val_loader = DataLoader(Blobs(48, args.seed + 1, augment=False), batch_size=24)

    net = UNet()
    criterion = DiceBCELoss()
    optimizer = torch.optim.NAdam(net.parameters(), lr=5e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.7)

    with tempfile.TemporaryDirectory() as folder:
        checkpoint, best = Path(folder) / "unet.pt", 0.0
        for epoch in range(args.epochs):
            net.train()
            epoch_loss = 0.0
            for images, masks in train_loader:
                optimizer.zero_grad(set_to_none=True)
                loss = criterion(net(images), masks)
                loss.backward()
                optimizer.step()
                epoch_loss += loss.item() * len(images)
            val_loss, iou = validate(net, val_loader, criterion)
            print(
                f"epoch {epoch}: lr {scheduler.get_last_lr()[0]:.4f}  "
                f"train {epoch_loss / len(train_loader.dataset):.4f}  val {val_loss:.4f}  IoU {iou:.3f}"
            )
            scheduler.step()
            if iou > best:
                best = iou
                torch.save(net.state_dict(), checkpoint)
        net.load_state_dict(torch.load(checkpoint, weights_only=True))
        print(f"best checkpoint: IoU {validate(net, val_loader, criterion)[1]:.3f}")


if __name__ == "__main__":
    main()
