"""Sort galaxies by shape with a small residual network on two workers, which exchange gradients over their link.

torchrun --standalone --nproc-per-node 2 sort_galaxies.py
"""

import argparse
import logging
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from galaxies import SHAPES, observe
from linkhook import Link, average_over_link
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

log = logging.getLogger("galaxies")


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return x + self.second(F.gelu(self.first(F.gelu(x))))


class GalaxyNet(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 5, stride=2, padding=2)
        self.block1 = Residual(channels)
        self.down = nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1)
        self.block2 = Residual(2 * channels)
        self.head = nn.Linear(2 * channels, len(SHAPES))

    def forward(self, pictures):
        features = self.block2(self.down(self.block1(self.stem(pictures))))
        return self.head(F.gelu(features).amax(dim=(2, 3)))


def train(model, loader, optimizer, schedule):
    model.train()
    for pictures, labels in loader:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(pictures), labels, label_smoothing=0.05)
        loss.backward()
        optimizer.step()
        schedule.step()
    return loss.item()


@torch.no_grad()
def accuracy(model, pictures, labels):
    model.eval()
    return (model(pictures).argmax(1) == labels).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--galaxies", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--channels", type=int, default=12)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    level = logging.INFO if dist.get_rank() == 0 else logging.WARNING
    logging.basicConfig(level=level, format="%(name)s: %(message)s")
    torch.manual_seed(args.seed)

    train_set = TensorDataset(*observe(args.galaxies, args.seed))
    sampler = DistributedSampler(train_set, seed=args.seed, drop_last=True)
    loader = DataLoader(train_set, args.batch_size, sampler=sampler, drop_last=True)
    validation = observe(128, args.seed + 1000)

    model = DistributedDataParallel(GalaxyNet(args.channels), bucket_cap_mb=0.02)
    link = Link()
    model.register_comm_hook(link, average_over_link)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=args.epochs * len(loader))

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        loss = train(model, loader, optimizer, schedule)
        log.info("epoch %d: loss %.3f, accuracy %.3f", epoch, loss, accuracy(model.module, *validation))
    log.info("%.1f MB over the link in %d backward passes", link.sent / 1e6, link.passes)
    dist.barrier()


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    time.sleep(0.5)
